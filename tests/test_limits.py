"""Limits are kept by themselves: cheap while they hold, rare when they do not, and nothing in use goes."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import filled
import pytest

from compcache import lease, limits
from compcache.cache import Cache
from compcache.config import Limits
from compcache.entry import Entry
from compcache.index import Index
from compcache.records import StoreSize
from compcache.store import layout
from compcache.store.memory import MemoryStore
from compcache.verify import verify

HOUR, DAY = 3600.0, 86400.0


class Case:
    """A store in memory whose time a test sets, with limits, and this host's index."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_000_000.0
        self.store = MemoryStore(clock=lambda: self.now)
        self.cache: Cache = filled.cache_at(folder / "store", self.store)
        self.cache.clock = lambda: self.now
        self.index = Index(folder / "index")
        self.scans = 0
        scan = self.store.scan

        def counted(prefix: str) -> object:
            self.scans += prefix == ""
            return scan(prefix)

        self.store.scan = counted  # type: ignore[method-assign, assignment]

    def limit(self, **changes: float | None) -> None:
        none = Limits(None, None, None)
        self.cache.settings = dataclasses.replace(
            self.cache.settings,
            limits=dataclasses.replace(none, **changes),  # type: ignore[arg-type]
        )

    def publish(self, number: int, size: int = 10_000) -> Entry:
        self.now += 1
        return filled.graph(self.cache, str(number), model=f"m{number}", kernel=os.urandom(size))

    def keep(self) -> limits.Sweep | None:
        return limits.keep(self.cache, self.index)

    @property
    def bytes(self) -> int:
        return sum(found.size for found in self.store.scan(""))

    def has(self, entry: Entry) -> bool:
        name = layout.entry(entry.configuration_key, entry.program_key)
        return any(found.name == name for found in self.store.scan("configs"))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_while_the_limits_hold_a_publication_costs_no_scan(case: Case) -> None:
    case.limit(max_bytes=10**6)
    case.publish(0)
    assert case.keep() is not None, "the first measures"
    before = case.scans
    for i in range(1, 20):
        case.publish(i)
        assert case.keep() is None
    assert case.scans == before
    known = case.index.add_to_store(case.store.label, size=0, files=0)
    assert known is not None
    # Shared factors and the like are not counted until the next measurement.
    assert 0 <= case.bytes - known.bytes < 20 * 200


def test_a_host_that_only_loads_neither_scans_nor_writes(case: Case) -> None:
    case.publish(0)
    case.cache.take_published()
    case.limit(max_bytes=1)
    before = case.scans
    assert case.keep() is None
    assert case.scans == before
    assert not list(case.store.scan("leases"))
    assert not case.index.path.exists()


def test_over_the_limit_the_least_recently_used_go_some_way_below_it(case: Case) -> None:
    entries = [case.publish(i) for i in range(20)]
    total = case.bytes
    case.now += 2 * HOUR
    case.store.refresh(layout.entry(entries[0].configuration_key, entries[0].program_key))
    case.limit(max_bytes=total - 1)
    swept = case.keep()
    assert swept is not None
    assert total * 0.85 < swept.bytes_after <= (total - 1) * limits.LOW_WATER
    assert 0 <= swept.bytes_after - case.bytes < 300, "its own lease, at most"
    assert case.has(entries[0]), "it was used"
    assert not case.has(entries[1])
    assert case.has(entries[-1])
    assert not verify(case.store).damage


def test_files_are_limited_too(case: Case) -> None:
    entries = [case.publish(i) for i in range(20)]
    case.now += 2 * HOUR
    case.limit(max_files=40)
    swept = case.keep()
    assert swept is not None
    assert swept.files_before > 40
    assert swept.files_after <= 36
    assert case.has(entries[-1])
    assert not verify(case.store).damage


def test_what_is_in_use_stays_and_the_next_sweep_waits(case: Case) -> None:
    entries = [case.publish(i) for i in range(5)]
    case.limit(max_bytes=1000)
    swept = case.keep()
    assert swept is not None
    assert not swept.outcome.removed
    assert all(case.has(entry) for entry in entries)
    before = case.scans
    case.publish(5)
    assert case.keep() is None
    assert case.scans == before
    case.now += 2 * HOUR
    assert case.keep() is not None
    assert case.bytes < 1000


def test_a_server_whose_clock_is_ahead_does_not_make_the_youngest_go(case: Case) -> None:
    case.publish(0)
    case.now += 300
    young = case.publish(1)
    case.now -= 300
    case.limit(max_bytes=1000)
    case.keep()
    assert case.has(young)


def test_age_is_kept_by_a_measurement_a_day(case: Case) -> None:
    old = case.publish(0)
    case.limit(max_age=30 * DAY)
    assert case.keep() is not None
    case.now += 20 * DAY
    young = case.publish(1)
    assert case.keep() is not None, "a measurement is believed for a day"
    assert case.has(old)
    case.now += 11 * DAY
    assert case.keep() is not None, "nothing was published, and yet"
    assert not case.has(old)
    assert case.has(young)


def test_a_pinned_program_stays(case: Case) -> None:
    entry = case.publish(0)
    case.store.create(layout.pin(entry.program_key), b"")
    case.now += 2 * HOUR
    case.limit(max_bytes=1)
    assert case.keep() is not None
    assert case.has(entry)


def test_one_host_sweeps_at_a_time(case: Case) -> None:
    case.publish(0)
    case.limit(max_bytes=1)
    case.store.create(layout.lease(limits.SWEEP_KEY), json.dumps({"host": "another", "pid": 1, "start": "1"}).encode())
    assert case.keep() is None
    case.now += limits.LEASE_SECONDS / 2
    assert case.keep() is None
    case.now += limits.LEASE_SECONDS
    assert case.keep() is None, "it clears what is old, and leaves the sweep to the next"
    assert case.keep() is not None
    assert not list(case.store.scan("leases"))


def test_the_lease_of_a_dead_sweeper_is_cleared(case: Case) -> None:
    case.publish(0)
    case.limit(max_bytes=1)
    dead = {"host": lease.host_identity(), "pid": 2**22 + 1, "start": "1"}
    case.store.create(layout.lease(limits.SWEEP_KEY), json.dumps(dead).encode())
    assert case.keep() is None
    assert case.keep() is not None


def test_a_store_that_takes_too_long_is_said_and_left_for_a_day(case: Case) -> None:
    for i in range(5):
        case.publish(i)
    case.limit(max_bytes=1)
    ticks = iter(range(0, 10**6, 5))
    with pytest.raises(limits.TooSlow, match="compcache prune"):
        limits.keep(case.cache, case.index, monotonic=lambda: float(next(ticks)))
    assert not list(case.store.scan("leases"))
    case.publish(5)
    assert case.keep() is None
    case.now += DAY + 1
    assert case.keep() is not None


def test_a_clock_that_was_set_back_measures_again(case: Case) -> None:
    case.publish(0)
    case.limit(max_bytes=10**6)
    assert case.keep() is not None
    case.now -= 10 * DAY
    assert case.keep() is not None


@pytest.mark.parametrize("mode", ["ro", "require"])
def test_who_may_not_write_does_not_sweep(case: Case, mode: str) -> None:
    case.publish(0)
    case.now += 2 * HOUR
    case.limit(max_bytes=1)
    case.cache.settings = dataclasses.replace(case.cache.settings, mode=mode)
    assert case.keep() is None


def test_a_planted_size_is_measured_again(case: Case) -> None:
    case.publish(0)
    case.limit(max_bytes=10**6)
    case.index.set_store_size(case.store.label, StoreSize(-1, 0, case.now, 0.0))
    assert case.keep() is not None
