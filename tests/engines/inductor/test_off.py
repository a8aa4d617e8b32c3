"""A torch that does not fit: the adapter is off as a whole, with one line, and torch is as it was."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from compcache.adapters.inductor import Adapter
from compcache.adapters.inductor_hooks import BY_MODULE, CACHES
from compcache.config import load
from compcache.session import Session

SPOILED = Path(__file__).with_name("spoiled.py")
SETTINGS = (
    ("torch._inductor.config", "fx_graph_remote_cache"),
    ("torch._functorch.config", "enable_remote_autograd_cache"),
    ("torch._inductor.config", "autotune_remote_cache"),
    ("torch._inductor.config", "bundled_autotune_remote_cache"),
    ("torch._dynamo.config", "automatic_dynamic_remote_pgo"),
)


def anything(*args: Any, **kwargs: Any) -> Any:
    """What a rewritten function may look like: its arguments are not those that a hook knows."""


def owners() -> Iterator[Any]:
    for name in ("torch._dynamo", *BY_MODULE):  # first: torch 2.7 imports its remote caches in this order only
        yield importlib.import_module(name)
    remote, codecache = (importlib.import_module(f"torch._inductor.{name}") for name in ("remote_cache", "codecache"))
    yield from (getattr(remote, name) for name in CACHES if hasattr(remote, name))
    yield codecache.FxGraphHashDetails
    yield codecache.FxGraphCache
    if hasattr(codecache, "GuardedCache"):
        yield codecache.GuardedCache


def everything() -> dict[str, Any]:
    """What the hooks change, as it is now; that a module got a submodule is an import, not a change."""
    found = {f"{owner.__name__}.{name}": value for owner in owners() for name, value in vars(owner).items()}
    found |= {name: getattr(importlib.import_module(module), name) for module, name in SETTINGS}
    return {n: v for n, v in found.items() if not isinstance(v, ModuleType) and "__builtins__" not in n}


def changed(before: dict[str, Any]) -> list[str]:
    now = everything()
    return sorted(name for name in before.keys() | now.keys() if before.get(name) is not now.get(name))


@pytest.fixture
def installed() -> Iterator[Callable[[], tuple[Adapter, list[str]]]]:
    made: list[Adapter] = []

    def install() -> tuple[Adapter, list[str]]:
        said: list[str] = []
        adapter = Adapter(load({}), Session(say=said.append))
        made.append(adapter)
        adapter.install()
        return adapter, said

    yield install
    for adapter in made:
        while adapter.undo:
            adapter.undo.pop()()


def test_every_change_can_be_undone(installed: Callable) -> None:
    before = everything()
    adapter, said = installed()
    assert (adapter.off, said) == ("", [])
    names = " ".join(changed(before))
    for expected in ("__init__", "prepare_key", "_compile_fx_inner", "get_compiler_fn", "fx_graph_remote_cache"):
        assert expected in names
    assert names.count("backend_override_cls") == len(CACHES)
    while adapter.undo:
        adapter.undo.pop()()
    assert changed(before) == []


CODECACHE = "torch._inductor.codecache"
SPOILERS = [
    ("torch._inductor.remote_cache", "RemoteAOTAutogradCache", None),
    (CODECACHE, "CppCodeCache.load_async", classmethod(anything)),
    (CODECACHE, "FxGraphCache.prepare_key", None),
    (CODECACHE, "GuardedCache.iterate_over_candidates", classmethod(anything)),  # since torch 2.8
    (CODECACHE, "FxGraphCache.cache_hit_post_compile", staticmethod(anything)),  # since torch 2.8
    (CODECACHE, "FxGraphCache._lookup_graph", staticmethod(anything)),  # torch 2.7
    ("torch._inductor.compile_fx", "_compile_fx_inner", anything),
    ("torch._dynamo.eval_frame", "get_compiler_fn", None),
]


@pytest.mark.parametrize(("module", "path", "other"), SPOILERS, ids=[path for _, path, _ in SPOILERS])
def test_a_part_that_is_missing_or_another_turns_it_off(
    installed: Callable, monkeypatch: pytest.MonkeyPatch, module: str, path: str, other: Any
) -> None:
    list(owners())
    owner, _, name = path.rpartition(".")
    target: Any = importlib.import_module(module)
    is_2_7 = not hasattr(importlib.import_module(CODECACHE), "GuardedCache")
    if (is_2_7 and path.startswith("Guarded")) or name == ("cache_hit_post_compile" if is_2_7 else "_lookup_graph"):
        pytest.skip("another torch")
    target = getattr(target, owner) if owner else target
    if other is None:
        monkeypatch.delattr(target, name)
    else:
        monkeypatch.setattr(target, name, other)
    before = everything()
    adapter, said = installed()
    assert adapter.off
    assert said == [f"off, this torch does not fit: {adapter.off}"]
    assert [name for name in changed(before) if not name.endswith("load_async")] == []


def test_a_process_goes_on_without(machine: Callable, tmp_path: Path) -> None:
    """The last module to be imported does not fit; what the others got is taken out again before anything compiles."""
    ran = machine("one").run("simple", script=SPOILED)
    assert ran["first"] == ran["eager"]
    assert ran.counts == (0, 0)
    assert ran["not_stored"] == 0
    assert ran.said.count("compcache: ") == 1
    assert "off, this torch does not fit" in ran.said
    assert not (tmp_path / "store").exists()
