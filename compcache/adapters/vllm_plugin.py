"""The entry point of ``vllm.general_plugins``: what every process of vLLM runs, and most of them for nothing.

A start of vLLM has three processes or more (the front end, one that inspects the model, an engine); only those that
hold a model import vLLM's compiler modules. So registering imports none of compcache's own, reads no settings and opens
nothing: it arranges for the adapter to be made when one of those modules is imported.
"""

from __future__ import annotations

import os
import threading
from types import ModuleType
from typing import TYPE_CHECKING

from compcache.adapters.imports import when_imported

if TYPE_CHECKING:
    from compcache.adapters.vllm import Adapter

WATCHED = tuple(f"vllm.compilation.{name}" for name in ("wrapper", "caching", "backends", "decorators"))
"""In the order in which vLLM 0.32 is done importing them; any other does as well."""

_registered = False


def register() -> None:
    """Cheap, idempotent, never raises: vLLM calls plugins unguarded, and in some processes more than once."""
    global _registered
    if _registered:
        return
    _registered = True
    plugin = Plugin(dict(os.environ))
    for name in WATCHED:
        when_imported(name, plugin.hook)


class Plugin:
    """Makes the adapter of this process, once, whichever module comes first.

    ``inherited`` is ``os.environ`` at registration: vLLM sets variables of its own afterwards.
    """

    def __init__(self, inherited: dict[str, str]) -> None:
        self.inherited = inherited
        self._lock = threading.Lock()
        self._made = False
        self._adapter: Adapter | None = None

    def hook(self, module: ModuleType) -> None:
        """Put the hooks into one of ``WATCHED``, just imported. Does not raise."""
        with self._lock:
            if not self._made:
                self._made = True
                self._adapter = self._make()
        if self._adapter is not None:
            self._adapter.hook(module)

    def _make(self) -> Adapter | None:
        from compcache.session import to_stderr

        try:
            from compcache import config

            settings = config.load(self.inherited)
            if settings.mode == "off":
                return None
            from compcache.adapters.vllm import Adapter

            adapter = Adapter(settings, inherited=self.inherited)
            adapter.install()
        except (ImportError, AttributeError, TypeError, OSError, ValueError, LookupError, RecursionError) as error:
            to_stderr(f"off: {error}")  # this is an import of vLLM's own: nothing of ours may end it
            return None
        return adapter
