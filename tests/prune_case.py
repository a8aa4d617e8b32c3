"""A store in memory whose time a test sets, with its cache: for the tests of prune."""

from __future__ import annotations

from pathlib import Path

import filled

from compcache.cache import Cache
from compcache.entry import Entry
from compcache.prune import Outcome, Plan, execute, plan
from compcache.store import layout
from compcache.store.memory import MemoryStore
from compcache.verify import verify

HOUR, DAY = 3600.0, 86400.0


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Case:
    """A store in memory, its cache, and its clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore(clock=self.clock)
        self.cache: Cache = filled.cache_at(Path("/nowhere"), self.store)

    def plan(self, **limits: float | None) -> Plan:
        return plan(self.store, clock=self.clock, **limits)  # type: ignore[arg-type]

    def prune(self, **limits: float | None) -> Outcome:
        return execute(self.store, self.plan(**limits))

    def names(self) -> set[str]:
        return {found.name for found in self.store.scan("")}

    def has(self, entry: Entry) -> bool:
        return name_of(entry) in self.names()

    @property
    def bytes(self) -> int:
        return sum(found.size for found in self.store.scan(""))

    def whole(self) -> bool:
        return not verify(self.store).damage


def name_of(entry: Entry) -> str:
    return layout.entry(entry.configuration_key, entry.program_key)
