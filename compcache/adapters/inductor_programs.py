"""torch's records as programs of the store: graphs with their kernels, and what torch keeps beside them.

One key of torch's can stand for several programs: a graph with symbolic shapes is stored with the guards under which it
was compiled (``guards_expr``, torch/_inductor/codecache.py), and torch tries one after the other. Here they are
numbered, and the number is a factor.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from compcache.adapters.inductor_backend import parts_of_key
from compcache.adapters.startup import ARTIFACT, KERNEL, compiler_name
from compcache.cache import Draft, Part
from compcache.entry import Entry
from compcache.errors import RequiredMiss
from compcache.factors import Factors, JsonValue
from compcache.lease import Lease
from compcache.session import explained

if TYPE_CHECKING:
    from compcache.adapters.inductor import Adapter

MOST_VARIANTS = 16
ADOPTED = "adopted"


@dataclass
class Compile:
    """One graph that this thread is compiling, or about to load (``_compile_fx_inner``)."""

    part: str
    range: str
    kernels: dict[str, bytes] = field(default_factory=dict)
    outer: Compile | None = None
    lease: Lease | None = None
    missed: Factors | None = None
    stored: bool = False
    began: float = field(default_factory=time.perf_counter)


@dataclass
class Candidate:
    """A graph that torch has taken, stored or from its own directory, and is about to load."""

    key: str
    entry: Entry | None
    content: bytes = b""
    adopted: bool = False
    began: float = field(default_factory=time.perf_counter)


class Here(threading.local):
    """What this thread is at."""

    number = 0
    """Which of the programs under one key of torch's is looked up."""
    adopted = False
    """Whether it is looked up among what was adopted from torch's own directory."""
    plain = False
    """Whether torch makes a key without compcache's factors."""
    plain_key: Callable[[], str] | None = None
    """Torch's key, without them, of the graph that torch made a key for last."""
    found = False
    entry: Entry | None = None
    """What the last lookup gave."""
    compile: Compile | None = None
    candidate: Candidate | None = None


class Graphs:
    """FX graphs, or AOTAutograd's records of how to call them. Nothing here raises into torch but RequiredMiss."""

    def __init__(self, adapter: Adapter, kind: str) -> None:
        self.adapter = adapter
        self.kind = kind
        self.here = adapter.here

    def get(self, key: str) -> tuple[bytes, float] | None:
        self.here.found = False
        return self.adapter.cache.guarded(f"no {self.kind} is loaded", lambda: self._get(key), None)

    def stored(self, key: str) -> Entry | None:
        """What is stored under a key, and the number that is looked up."""
        return self.adapter.cache.guarded(f"no {self.kind} is loaded", lambda: self._find(key), None)

    def _find(self, key: str) -> Entry | None:
        number = 0 if self.kind in self.adapter.single else self.here.number
        plain = self.here.adopted
        factors = self.adapter.plain_factors(key, number, ADOPTED) if plain else self.adapter.factors(key, number)
        return self.adapter.cache.find(factors)

    def is_free(self, key: str, number: int) -> None:
        """Nothing is stored under that number yet, as far as this process knows."""
        self.adapter.free[key] = number

    def _next(self, key: str) -> Factors:
        """The factors of what is compiled now. torch may look up others before it stores it."""
        return self.adapter.factors(key, self.adapter.free.get(key, 0))

    def _get(self, key: str) -> tuple[bytes, float] | None:
        cache = self.adapter.cache
        entry = self._find(key)
        if entry is None:
            return None
        content = cache.blob(entry.blobs_with(ARTIFACT)[0])
        self.here.entry = entry
        self.here.found = True
        return content, entry.compile_seconds

    def put(self, key: str, read: Callable[[], tuple[bytes, float]]) -> None:
        current = self.here.compile if self.kind == "graph" else None
        self.adapter.cache.guarded(f"a {self.kind} is not stored", lambda: self._put(key, read, current), None)

    def _put(self, key: str, read: Callable[[], tuple[bytes, float]], current: Compile | None) -> None:
        content, seconds = read()
        self.publish(key, content, seconds, current.kernels if current else {}, current)

    def publish(
        self, key: str, content: bytes, seconds: float, kernels: Mapping[str, bytes], current: Compile | None = None
    ) -> None:
        """Store a graph, or what torch keeps beside it. Raises StoreError, FactorError."""
        adapter = self.adapter
        if not adapter.cache.writes or (kernels and not adapter.isa_is_right()):
            return
        entry = adapter.cache.publish(self._draft(key, content, seconds, kernels, current))
        if self.kind == "graph":
            if current is not None:
                current.stored = True
                if current.lease is not None:  # whoever waits need not wait for what torch does afterwards
                    current.lease.release()
            adapter.session.compile([entry], seconds)

    def _draft(
        self, key: str, content: bytes, seconds: float, kernels: Mapping[str, bytes], current: Compile | None
    ) -> Draft:
        adapter = self.adapter
        display = dict(adapter.display(key))
        if current is not None:
            display |= {"range": current.range, "part": current.part}
        elif self.kind != "graph":
            display["part"] = self.kind
        return Draft(
            kind=self.kind,
            factors=self._next(key),
            parts=(Part(ARTIFACT, content), *(Part(KERNEL, data, name) for name, data in sorted(kernels.items()))),
            display=display,
            compile_seconds=seconds,
            provenance={"compiler": compiler_name()},
        )

    # Between a lookup and a load

    def taken(self, key: str, entry: Entry | None, content: bytes, *, adopted: bool = False) -> None:
        """torch has taken what was looked up under ``key``, or instead of that among what was adopted."""
        if self.kind == "graph":
            self.here.candidate = Candidate(key, entry, content, adopted)

    def plain_key(self) -> str | None:
        """The key by which what was adopted is looked up, for what torch looks up now."""
        make = self.here.plain_key
        if self.kind != "graph" or make is None:
            return None
        return self.adapter.cache.guarded("nothing adopted is loaded", make, None)

    def may_be_ready(self, key: str) -> bool:
        """After a miss: whether another process has stored it while this one waited for it.

        Raises RequiredMiss where the user asked for that.
        """
        current = self.here.compile
        if self.kind != "graph" or current is None:
            return False  # nothing is compiled here: torch looks up the graph itself before it compiles it
        factors = self.adapter.cache.guarded("no factors", lambda: self._next(key), None)
        if factors is None:
            return False
        if current.outer is None and current.lease is None:
            current.lease = self.adapter.cache.compile_or_wait(
                factors.program_key, lambda: self.adapter.cache.find(factors) is not None
            )
            if self.adapter.cache.guarded("nothing is loaded", lambda: self.adapter.cache.find(factors), None):
                return True
        return False

    def missed(self, key: str) -> None:
        """Nothing is stored: it is compiled now. Raises RequiredMiss where the user asked for that."""
        current = self.here.compile
        if self.kind != "graph" or current is None:
            return
        cache = self.adapter.cache
        current.missed = cache.guarded("no factors", lambda: self._next(key), None)
        if self.adapter.settings.mode == "require":
            why = "its factors cannot be read" if current.missed is None else self.why(current.missed)
            raise RequiredMiss(f"COMPCACHE_MODE=require: {why}")

    def why(self, factors: Factors, skip: Collection[str] = ()) -> str:
        """Why a graph missed, by the nearest one stored; ``skip`` are programs that this process stored itself."""
        cache = self.adapter.cache
        nearest = functools.partial(cache.nearest, factors, self.kind, skip)
        return cache.guarded("no explanation", lambda: explained(nearest()), "missed")

    def load(self, candidate: Candidate, action: Callable[[], Any]) -> Any:
        """Run torch's load of a graph with its kernels at hand; None if it failed and is to be compiled."""
        kernels, cache, entry = self.adapter.kernels, self.adapter.cache, candidate.entry
        if entry is None:
            with kernels.collecting_here() as found:
                result = action()
            self._adopt(candidate, found, result)
            return result
        sources = {ref.name: functools.partial(cache.blob, ref) for ref in entry.blobs_with(KERNEL)}
        with kernels.serving_here(sources) as compiled:
            result = cache.guarded("a stored graph does not load", action, None)
        if result is None or result[0] is None:
            return result
        seconds = time.perf_counter() - candidate.began
        self.adapter.session.load([entry], seconds, entry.compile_seconds)
        if candidate.adopted:
            cache.guarded("an adopted graph is not stored", lambda: self._settle(candidate, entry, compiled), None)
        elif compiled:
            cache.guarded("a graph is not mended", lambda: self._mend(candidate, entry, compiled), None)
        return result

    def _adopt(self, candidate: Candidate, kernels: Mapping[str, bytes], result: Any) -> None:
        """Store a graph that torch had in its own directory, under the same key, and the store has not."""
        graph = result[0]
        if graph is None or not candidate.content:
            return
        seconds = float(getattr(graph, "_time_taken_ns", None) or 0) / 1e9
        self.adapter.cache.guarded(
            "a graph is not stored",
            lambda: self.publish(candidate.key, candidate.content, seconds, kernels, self.here.compile),
            None,
        )

    def _settle(self, candidate: Candidate, entry: Entry, compiled: Mapping[str, bytes]) -> None:
        """Store an adopted graph under the key by which it is looked up first, with model, dtype and range."""
        cache = self.adapter.cache
        # Without kernels of its own there may be no compiler here, which the check needs.
        if cache.writes and (not compiled or self.adapter.isa_is_right()):
            content = cache.blob(entry.blobs_with(ARTIFACT)[0])
            kernels = {ref.name: cache.blob(ref) for ref in entry.blobs_with(KERNEL) if ref.name not in compiled}
            kernels |= compiled
            draft = self._draft(candidate.key, content, entry.compile_seconds, kernels, self.here.compile)
            cache.publish(dataclasses.replace(draft, provenance=entry.provenance))

    def _mend(self, candidate: Candidate, entry: Entry, compiled: Mapping[str, bytes]) -> None:
        """Store a graph again with the kernels that were missing or unfit and were compiled."""
        cache = self.adapter.cache
        if not cache.writes or not self.adapter.isa_is_right():
            return
        old = [r for r in entry.blobs if r.name not in compiled]
        parts = [Part(ref.role, cache.blob(ref), ref.name) for ref in old]
        parts += [Part(KERNEL, data, name) for name, data in sorted(compiled.items())]
        cache.publish(
            Draft(
                kind=entry.kind,
                factors=entry.factors,
                parts=tuple(parts),
                display=entry.display,
                compile_seconds=entry.compile_seconds,
                provenance={"compiler": compiler_name()},
            )
        )


class Choices:
    """Tuning choices and profiles of shapes: bytes that torch looks up by key, whatever the model.

    A profile grows: each one that differs is stored under the next number, and the last is used.
    """

    def __init__(self, adapter: Adapter, kind: str) -> None:
        self.adapter = adapter
        self.kind = kind

    def get(self, key: str) -> tuple[bytes, float] | None:
        return self.adapter.cache.guarded(f"no {self.kind} is loaded", lambda: self._last(key)[0], None)

    def _last(self, key: str) -> tuple[tuple[bytes, float] | None, int]:
        """The last one stored, and the number that is free."""
        cache, last = self.adapter.cache, None
        for number in range(MOST_VARIANTS):
            entry = cache.find(self._factors(key, number))
            if entry is None:
                return last, number
            last = cache.blob(entry.blobs_with(ARTIFACT)[0]), entry.compile_seconds
            if self.kind != "profile":
                break
        return last, MOST_VARIANTS

    def _factors(self, key: str, number: int) -> Factors:
        return self.adapter.plain_factors(key, number, self.kind)

    def put(self, key: str, read: Callable[[], tuple[bytes, float]]) -> None:
        if self.adapter.cache.writes:
            self.adapter.cache.guarded(f"a {self.kind} is not stored", lambda: self._put(key, read), None)

    def _put(self, key: str, read: Callable[[], tuple[bytes, float]]) -> None:
        content, seconds = read()
        last, number = self._last(key)
        if number < MOST_VARIANTS and (last is None or last[0] != content):
            display: dict[str, JsonValue] = {**self.adapter.toolchain(), "part": self.kind, "range": "any"}
            self.adapter.cache.publish(
                Draft(
                    kind=self.kind,
                    factors=self._factors(key, number),
                    parts=(Part(ARTIFACT, content),),
                    display=display,
                    compile_seconds=seconds,
                )
            )


def own_factors(key: str, number: int) -> dict[str, JsonValue]:
    """What tells one program of a configuration from another: torch's key, and which of the programs under it."""
    cache, rest = parts_of_key(key)
    return {"torch.cache": cache, "torch.key": rest, "torch.variant": number}
