"""Run something once a module has been imported, so that hooks cost nothing in processes that never import it."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

Action = Callable[[ModuleType], None]


def when_imported(name: str, action: Action) -> None:
    """Call ``action(module)`` now if the module is imported, else right after its import. ``action`` must not raise."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    _finder().add(name, action)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the other finders find a watched module and runs its actions after its code."""

    def __init__(self) -> None:
        self._actions: dict[str, list[Action]] = {}
        self._busy = threading.local()

    def add(self, name: str, action: Action) -> None:
        self._actions.setdefault(name, []).append(action)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._actions or getattr(self._busy, "name", None) == fullname:
            return None
        self._busy.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.name = None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, functools.partial(self._actions.pop, fullname, ()))
        return spec


class _Loader(importlib.abc.Loader):
    """A loader that runs actions after the module's own loader.

    ``take`` gives the actions, once: a spec may be looked for and not used, and an import may fail and be tried again.
    """

    def __init__(self, loader: importlib.abc.Loader, take: Callable[[], Sequence[Action]]) -> None:
        self._loader = loader
        self._take = take

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its own loader: inspect and pickle ask it for sources.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for action in self._take():
            action(module)


def _finder() -> _Finder:
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            return finder
    made = _Finder()
    sys.meta_path.insert(0, made)
    return made
