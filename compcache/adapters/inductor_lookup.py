"""torch's lookups of graphs, and of AOTAutograd's records, go to the store first; one key can stand for several.

Since torch 2.8 a lookup asks ``GuardedCache.iterate_over_candidates`` for one record after the other, evaluates the
guards of each, and hands the one that fits to ``FxGraphCache.cache_hit_post_compile``. torch 2.7 does both in
``FxGraphCache._lookup_graph``, and keeps one record of AOTAutograd's per key.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compcache import fsio
from compcache.adapters.inductor_programs import MOST_VARIANTS, Candidate, Graphs
from compcache.entry import MAX_RAW_BYTES
from compcache.errors import CompcacheError

if TYPE_CHECKING:
    from compcache.adapters.inductor import Adapter

Action = Callable[[], Any]


def hook(adapter: Adapter, module: Any) -> str:
    """Put the hooks into ``torch._inductor.codecache``; a reason if this torch's does not fit, else empty."""
    graphs = module.FxGraphCache
    if not hasattr(module, "GuardedCache"):
        return _hook_lookup(adapter, graphs)
    candidates = module.GuardedCache.__dict__["iterate_over_candidates"]
    parameters = list(inspect.signature(candidates.__func__).parameters)
    if not isinstance(candidates, classmethod) or parameters != ["cls", "local", "remote_cache", "key"]:
        return "torch's GuardedCache.iterate_over_candidates takes other arguments"
    load = graphs.__dict__["cache_hit_post_compile"]
    if not isinstance(load, staticmethod) or "graph" not in inspect.signature(load.__func__).parameters:
        return "torch's FxGraphCache.cache_hit_post_compile takes other arguments"
    _hook_candidates(adapter, module.GuardedCache, candidates.__func__)
    _hook_load(adapter, graphs, load.__func__)
    return ""


def _records(remote_cache: Any) -> Graphs | None:
    """What is behind one of torch's remote caches, if it is compcache's."""
    found = getattr(getattr(remote_cache, "backend", None), "records", None)
    return found if isinstance(found, Graphs) else None


def _whole(remote_cache: Any, key: str) -> str:
    return str(remote_cache._get_key(key)) if hasattr(remote_cache, "_get_key") else key


# torch 2.8 and later


def _hook_candidates(adapter: Adapter, guarded: Any, original: Callable[..., Iterator[Any]]) -> None:
    @functools.wraps(original)
    def iterate_over_candidates(cls: Any, local: bool, remote_cache: Any, key: str) -> Iterator[Any]:
        graphs = _records(remote_cache)
        if graphs is None:
            yield from original(cls, local, remote_cache, key)
            return
        whole = _whole(remote_cache, key)
        yield from _stored(graphs, lambda: original(cls, False, remote_cache, key), whole)
        if local:
            yield from _taken(graphs, original(cls, True, None, key), whole)
        plain = graphs.plain_key()
        if plain is not None:
            yield from _stored(graphs, lambda: original(cls, False, remote_cache, plain), whole, adopted=True)
        if graphs.may_be_ready(whole):
            yield from _stored(graphs, lambda: original(cls, False, remote_cache, key), whole)
        graphs.missed(whole)

    adapter.replace(guarded, "iterate_over_candidates", classmethod(iterate_over_candidates))


def _stored(
    graphs: Graphs, candidates: Callable[[], Iterator[Any]], key: str, *, adopted: bool = False
) -> Iterator[Any]:
    """What the store has under one key of torch's, one program after the other, until torch takes one."""
    here = graphs.here
    for number in range(MOST_VARIANTS):
        here.number, here.found, here.adopted = number, False, adopted
        for item in candidates():
            entry, here.adopted = here.entry, False
            try:
                yield item
            except GeneratorExit:
                graphs.taken(key, entry, b"", adopted=adopted)
                raise
        here.adopted = False
        if not here.found:
            if not adopted:
                graphs.is_free(key, number)
            return


def _taken(graphs: Graphs, candidates: Iterator[Any], key: str) -> Iterator[Any]:
    """What torch has in its own directory, likewise."""
    for item in candidates:
        try:
            yield item
        except GeneratorExit:
            graphs.taken(key, None, item[1])
            raise


def _hook_load(adapter: Adapter, graphs: Any, original: Callable[..., Any]) -> None:
    @functools.wraps(original)
    def cache_hit_post_compile(graph: Any, cache_info: Any, *args: Any, **kwargs: Any) -> Any:
        candidate, adapter.here.candidate = adapter.here.candidate, None
        if candidate is None:
            return original(graph, cache_info, *args, **kwargs)
        loaded = adapter.graphs.load(candidate, lambda: original(graph, cache_info, *args, **kwargs))
        return (None, cache_info) if loaded is None else loaded

    adapter.replace(graphs, "cache_hit_post_compile", staticmethod(cache_hit_post_compile))


# torch 2.7


def _hook_lookup(adapter: Adapter, graphs: Any) -> str:
    lookup = graphs.__dict__.get("_lookup_graph")
    expected = ["key", "example_inputs", "local", "remote_cache"]
    if not isinstance(lookup, staticmethod) or list(inspect.signature(lookup.__func__).parameters)[:4] != expected:
        return "torch's FxGraphCache._lookup_graph takes other arguments"
    original = lookup.__func__
    adapter.single.add("autograd")

    @functools.wraps(original)
    def _lookup_graph(key: str, inputs: Any, local: bool, remote_cache: Any, *args: Any, **kwargs: Any) -> Any:
        records = _records(remote_cache)
        if records is None:
            return original(key, inputs, local, remote_cache, *args, **kwargs)
        whole = _whole(remote_cache, key)

        def asked(key: str) -> Action:
            return lambda: original(key, inputs, False, remote_cache, *args, **kwargs)

        found = _loaded(records, whole, whole, asked(key))
        if found is None and local:
            own = _only_file(Path(graphs._get_tmp_dir_for_key(key)))
            found = _fitting(
                records.load(Candidate(whole, None, own), lambda: original(key, inputs, True, None, *args, **kwargs))
            )
        plain = None if found is not None else records.plain_key()
        if plain is not None:
            found = _loaded(records, _whole(remote_cache, plain), whole, asked(plain), adopted=True)
        if found is None and records.may_be_ready(whole):
            found = _loaded(records, whole, whole, asked(key))
        if found is None:
            records.missed(whole)
        return (None, {}) if found is None else found

    adapter.replace(graphs, "_lookup_graph", staticmethod(_lookup_graph))
    return ""


def _loaded(graphs: Graphs, asked: str, key: str, action: Action, *, adopted: bool = False) -> Any:
    """The first program stored under ``asked`` whose guards hold, loaded; None if there is none."""
    here = graphs.here
    for number in range(MOST_VARIANTS):
        here.number, here.adopted = number, adopted
        try:
            entry = graphs.stored(asked)
            if entry is None:
                if not adopted:
                    graphs.is_free(key, number)
                return None
            found = _fitting(graphs.load(Candidate(key, entry, adopted=adopted), action))
        finally:
            here.adopted = False
        if found is not None:
            return found
    return None


def _fitting(result: Any) -> Any:
    """What torch gave, if there is a graph in it."""
    return None if result is None or result[0] is None else result


def _only_file(folder: Path) -> bytes:
    """The record that torch has in its own directory; of several it is not told which was taken: none is stored."""
    try:
        paths = list(folder.iterdir())
        return fsio.read_file(paths[0], MAX_RAW_BYTES, fsio.Trust()) if len(paths) == 1 else b""
    except (OSError, CompcacheError):
        return b""
