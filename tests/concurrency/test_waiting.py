"""Waiting for who compiles the same: within one budget for a start, and as a cache does it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import filled
import pytest
from lease_case import KEY, NAME, Clock, held_by, there

from compcache.cache import Cache
from compcache.errors import StoreError
from compcache.lease import Budget, Watch, acquire, wait_until
from compcache.store.directory import DirectoryStore
from compcache.store.memory import MemoryStore
from compcache.store.protocol import Store


def wait(ready: Callable[[], bool], store: Store, budget: Budget, clock: Clock, said: list[str] | None = None) -> bool:
    watch = Watch(store, KEY, monotonic=clock)
    say = (said if said is not None else []).append
    return wait_until(ready, watch, budget, sleep=clock.sleep, monotonic=clock, say=say)


def test_one_budget_for_two_waits(store: MemoryStore, clock: Clock) -> None:
    held_by(store)
    budget = Budget(10)
    assert wait(lambda: clock.now >= 1006, store, budget, clock)
    assert budget.left == pytest.approx(1010 - clock.now)
    assert not wait(lambda: False, store, budget, clock)
    assert budget.left == 0
    assert clock.now == pytest.approx(1010)
    assert not wait(lambda: False, store, budget, clock)
    assert clock.now == pytest.approx(1010)


def test_slow_looks_at_the_store_are_paid_too(store: MemoryStore, clock: Clock) -> None:
    held_by(store)

    def slow() -> bool:
        clock.now += 4
        return False

    assert not wait(slow, store, Budget(10), clock)
    assert clock.now <= 1000 + 10 + 3 * 4


def test_what_is_ready_is_not_waited_for(store: MemoryStore, clock: Clock) -> None:
    held_by(store)
    budget = Budget(10)
    assert wait(lambda: True, store, budget, clock)
    assert (clock.now, budget.left) == (1000, 10)


def test_it_is_said_once_who_is_waited_for(store: MemoryStore, clock: Clock) -> None:
    held_by(store)
    said: list[str] = []
    wait(lambda: False, store, Budget(20), clock, said)
    assert len(said) == 1
    assert f"up to 20 s for process {os.getpid()}" in said[0]


@pytest.mark.parametrize("seconds", [0, -5])
def test_no_budget_is_no_wait(seconds: float, tmp_path: Path) -> None:
    cache = filled.cache_at(tmp_path / "store")
    cache.budget = Budget(seconds)
    held_by(cache.store)
    assert cache.compile_or_wait(KEY, lambda: False) is None


# As a cache uses them


def test_after_the_lease_a_last_look(tmp_path: Path) -> None:
    """Another may have published between a miss and the lease."""
    cache = filled.cache_at(tmp_path / "store")
    assert cache.compile_or_wait(KEY, lambda: True) is None
    assert not there(cache.store)


def test_a_look_that_raises_gives_the_lease_back(tmp_path: Path) -> None:
    cache = filled.cache_at(tmp_path / "store")

    def ready() -> bool:
        raise RuntimeError("from the engine")

    with pytest.raises(RuntimeError):
        cache.compile_or_wait(KEY, ready)
    assert not there(cache.store)


def test_without_leases_everybody_compiles(tmp_path: Path) -> None:
    class Full(MemoryStore):
        def create(self, name: str, data: bytes) -> bool:
            raise StoreError(28, "No space left on device")

    cache: Cache = filled.cache_at(tmp_path / "store", Full())
    assert cache.compile_or_wait(KEY, lambda: False) is None
    assert cache.session.faults == {"no lease": 1}


def test_a_reader_makes_no_lease(tmp_path: Path) -> None:
    cache = Cache(
        filled.load({"COMPCACHE_DIR": str(tmp_path / "store"), "COMPCACHE_MODE": "ro", "HOME": str(tmp_path)})
    )
    assert cache.compile_or_wait(KEY, lambda: False) is None
    assert not (tmp_path / "store").exists()


def test_leases_of_a_directory_are_small_files_that_name_no_host(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    held = acquire(store, KEY, renew=False)
    assert held is not None
    content = (tmp_path / "store" / "v1" / NAME).read_text()
    assert os.uname().nodename not in content
    assert len(content) < 400
    held.release()
    assert not there(store)
