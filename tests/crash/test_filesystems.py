"""Hostile file systems under the directory store: the work goes on, right, within bounds, and the store stays sound."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import filled
import pytest
from lease_case import Clock

from compcache import lease, prune
from compcache.cache import Cache
from compcache.errors import StoreError
from compcache.factors import Factors
from compcache.store import layout
from compcache.store.bounded import BoundedStore
from compcache.store.directory import DirectoryStore
from compcache.store.memory import MemoryStore
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile, meaning, program_of, run
from compcache.testing.filesystems import (
    Every,
    Fault,
    LocksForEverybody,
    NegativeCaching,
    NoLinks,
    Skew,
    Stall,
    hostile,
)
from compcache.verify import verify

PROGRAMS = 5
HOUR = 3600.0


def factors(number: int) -> Factors:
    return Factors({"model.name": "hostile"}, {"range": str(number)})


def work(cache: Cache, compiler: FakeCompiler) -> None:
    """What an engine does: it gets programs, and they are right."""
    for i in range(PROGRAMS):
        assert run(get_or_compile(cache, compiler, factors(i))) == meaning(factors(i))


FAULTS: dict[str, Callable[[], tuple[Fault, ...]]] = {
    "names are not seen at first": lambda: (NegativeCaching(),),
    "names are not seen for long": lambda: (NegativeCaching(50),),
    "stale handles": lambda: (Every(7, errno.ESTALE),),
    "busy": lambda: (Every(4, errno.EBUSY),),
    "interrupted": lambda: (Every(3, errno.EINTR),),
    "input and output errors": lambda: (Every(6, errno.EIO),),
    "every second call fails": lambda: (Every(2, errno.EIO),),
    "no call works": lambda: (Every(1, errno.EIO),),
    "no links": lambda: (NoLinks(),),
    "locks for everybody": lambda: (LocksForEverybody(),),
    "a server that is ahead": lambda: (Skew(300.0),),
    "a server that is behind": lambda: (Skew(-300.0),),
    "quota": lambda: (Every(3, errno.EDQUOT, ("open", "mkdir", "link", "rename", "replace")),),
    "all at once": lambda: (NoLinks(), NegativeCaching(2), Every(11, errno.ESTALE), Skew(-300.0)),
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_the_work_goes_on_and_the_store_stays_sound(tmp_path: Path, faults: Callable[[], tuple[Fault, ...]]) -> None:
    root = tmp_path / "store"
    compiler = FakeCompiler(tmp_path / "journal")
    with hostile(root, *faults()):
        work(filled.cache_at(root), compiler)
        work(filled.cache_at(root), compiler)
    if (root / "v1").exists():
        assert not verify(DirectoryStore(root, read_only=True)).damage
    cache = filled.cache_at(root)
    work(cache, compiler)
    before = compiler.compiles
    work(cache, compiler)
    assert compiler.compiles == before, "not stored once the file system is well"
    assert not cache.session.faults
    assert not verify(cache.store).damage


@pytest.mark.parametrize(
    "name",
    ["names are not seen at first", "stale handles", "no links", "a server that is behind", "locks for everybody"],
)
def test_what_a_retry_mends_is_stored_the_first_time(tmp_path: Path, name: str) -> None:
    root = tmp_path / "store"
    compiler = FakeCompiler(tmp_path / "journal")
    with hostile(root, *FAULTS[name]()):
        cache = filled.cache_at(root)
        work(cache, compiler)
        work(cache, compiler)
    assert compiler.compiles <= PROGRAMS + (name == "stale handles")
    assert program_of(filled.cache_at(root), factors(0)) is not None


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_a_full_store_is_read_under_every_fault(tmp_path: Path, faults: Callable[[], tuple[Fault, ...]]) -> None:
    root = tmp_path / "store"
    compiler = FakeCompiler(tmp_path / "journal")
    work(filled.cache_at(root), compiler)
    with hostile(root, *faults()):
        work(filled.cache_at(root), compiler)
    assert not verify(DirectoryStore(root, read_only=True)).damage
    before = compiler.compiles
    work(filled.cache_at(root), compiler)
    assert compiler.compiles == before, "a fault of the moment lost what was stored"


def test_a_store_that_stalls_costs_its_bound_and_no_more(tmp_path: Path) -> None:
    root = tmp_path / "store"
    compiler = FakeCompiler(tmp_path / "journal")
    clock = Clock(0.0)
    cache = filled.cache_at(root)
    cache.store = BoundedStore(DirectoryStore(root), 60.0, monotonic=clock)
    said: list[str] = []
    cache.session.say = said.append
    with hostile(root, Stall(2.0, clock.sleep)):
        work(cache, compiler)
        work(cache, compiler)
    # One call of the store that began within the bound may make several of the kernel.
    assert 60.0 <= clock.now < 60.0 + 2.0 * 60
    assert len([line for line in said if "left alone" in line]) == 1
    assert not verify(DirectoryStore(root, read_only=True)).damage


def test_a_listing_that_stalls_is_bounded_too() -> None:
    clock = Clock(0.0)

    class Slow(MemoryStore):
        def scan(self, prefix: str):  # type: ignore[no-untyped-def]
            for found in super().scan(prefix):
                clock.sleep(2.0)
                yield found

    slow = Slow()
    for i in range(100):
        slow.create(f"blobs/ab/{i:064x}", b"x")
    with pytest.raises(StoreError, match="left alone"):
        list(BoundedStore(slow, 60.0, monotonic=clock).scan("blobs"))
    assert clock.now == 60.0


def test_time_between_two_files_of_a_listing_is_not_the_stores() -> None:
    clock = Clock(0.0)
    store = MemoryStore()
    for i in range(100):
        store.create(f"blobs/ab/{i:064x}", b"x")
    for _ in BoundedStore(store, 60.0, monotonic=clock).scan("blobs"):
        clock.sleep(10.0)


def test_no_lock_of_the_kernel_is_relied_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> None:
        raise AssertionError("the store took a lock")

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(fcntl, "lockf", refused)
    compiler = FakeCompiler(tmp_path / "journal")
    cache = filled.cache_at(tmp_path / "store")
    work(cache, compiler)
    prune.execute(cache.store, prune.plan(cache.store, max_size=0))
    work(cache, compiler)


@pytest.mark.parametrize("seconds", [300.0, -300.0])
def test_clocks_that_differ_neither_free_a_live_lease_nor_a_young_blob(tmp_path: Path, seconds: float) -> None:
    root = tmp_path / "store"
    with hostile(root, Skew(seconds)):
        cache = filled.cache_at(root)
        filled.graph(cache, "8")
        orphan = b"a blob whose entry is not published yet"
        name = "blobs/ab/" + "ab" * 32
        cache.store.create(name, orphan)
        owner = {"token": "t", "host": "another", "pid": 1, "start": "1"}
        cache.store.create(layout.lease("ab" * 16), json.dumps(owner).encode())
        plan = prune.plan(cache.store)
        assert not plan.removals
        now = Clock(0.0)
        watch = lease.Watch(cache.store, "ab" * 16, monotonic=now)
        for _ in range(20):
            assert watch.holder() == "another host", "a lease that is renewed was freed"
            now.sleep(20.0)
            cache.store.refresh(layout.lease("ab" * 16))
        now.sleep(lease.STALE_SECONDS + 1)
        watch.holder()
        now.sleep(lease.STALE_SECONDS + 1)
        assert watch.holder() == ""


def test_two_hosts_never_both_free_a_live_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two waiters of two hosts find a lease stale; one frees it, a third takes it anew; the other frees nothing."""
    store = DirectoryStore(tmp_path / "store")
    key = "cd" * 16
    store.create(layout.lease(key), json.dumps({"token": "old", "host": "gone", "pid": 1, "start": "1"}).encode())
    clocks = [Clock(), Clock()]
    watches = [lease.Watch(store, key, monotonic=clock) for clock in clocks]
    for clock, watch in zip(clocks, watches, strict=True):
        assert watch.holder() == "another host"
        clock.sleep(lease.STALE_SECONDS + 1)
    assert watches[0].holder() == ""
    monkeypatch.setattr(lease, "host_identity", lambda: "a third host")
    held = lease.acquire(store, key, renew=False)
    assert held is not None
    monkeypatch.setattr(lease, "host_identity", lambda: "the second host")
    assert watches[1].holder() == "another host"
    assert store.read(layout.lease(key), 4096) == held.content
    held.release()


def test_the_shim_leaves_other_paths_alone(tmp_path: Path) -> None:
    with hostile(tmp_path / "store", Every(1, errno.EIO)):
        (tmp_path / "other").write_text("x")
        assert os.path.exists(tmp_path / "other")
        with pytest.raises(OSError, match="Input/output"):
            os.mkdir(tmp_path / "store")
