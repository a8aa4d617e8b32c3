"""Leases: never two live ones, none for ever. Time is a fake clock; hosts are names."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from lease_case import KEY, NAME, Clock, held_by, there

from compcache import lease
from compcache.errors import StoreError
from compcache.lease import STALE_SECONDS, Budget, Watch, acquire, wait_until
from compcache.store.memory import MemoryStore

# On one host


def test_one_of_two_gets_it(store: MemoryStore) -> None:
    first = acquire(store, KEY, renew=False)
    assert first is not None
    assert acquire(store, KEY, renew=False) is None
    first.release()
    second = acquire(store, KEY, renew=False)
    assert second is not None
    first.release()  # again: not the second's
    assert there(store)
    second.release()
    assert not there(store)


def test_a_live_owner_is_named(store: MemoryStore) -> None:
    held_by(store)
    assert str(os.getpid()) in Watch(store, KEY).holder()
    assert there(store)


def test_a_live_owner_keeps_it_however_long_it_takes(store: MemoryStore, clock: Clock) -> None:
    held_by(store)
    watch = Watch(store, KEY, monotonic=clock)
    for _ in range(10):
        assert watch.holder()
        clock.now += STALE_SECONDS
        store.refresh(NAME)
    assert there(store)


def test_a_live_owner_that_renews_no_more_is_not_waited_for(store: MemoryStore, clock: Clock) -> None:
    """It hangs, or gave the lease up and could not remove it."""
    held_by(store)
    watch = Watch(store, KEY, monotonic=clock)
    assert watch.holder()
    clock.now += STALE_SECONDS + 1
    assert watch.holder() == ""
    assert not there(store)


@pytest.mark.parametrize(("pid", "start"), [(2**22 + 1, "1"), (None, "another start"), (-1, ""), (None, "")])
def test_a_dead_owner_is_seen_at_once(store: MemoryStore, pid: int | None, start: str) -> None:
    """A process that is gone, or whose number another one has by now."""
    held_by(store, pid=pid, start=start)
    assert Watch(store, KEY).holder() == ""
    assert not there(store)


def test_a_waiter_goes_on_when_the_owner_dies(
    store: MemoryStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_by(store)
    alive = lease.process_start
    monkeypatch.setattr(lease, "process_start", lambda pid: alive(pid) if clock.now < 1003 else "")
    budget = Budget(100)
    watch = Watch(store, KEY, monotonic=clock)
    assert not wait_until(lambda: False, watch, budget, sleep=clock.sleep, monotonic=clock)
    assert 3 <= 100 - budget.left < 4
    assert not there(store)


def test_a_child_of_a_fork_cannot_release_its_parents(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    held = acquire(store, KEY, renew=False)
    assert held is not None
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 1)
        held.release()
    assert there(store)


# Between hosts


def test_another_hosts_lease_is_stale_after_its_time_on_the_waiters_clock(store: MemoryStore, clock: Clock) -> None:
    held_by(store, host="elsewhere", pid=1)
    monotonic = Clock()  # the waiter's: has nothing to do with the store's
    watch = Watch(store, KEY, monotonic=monotonic)
    assert watch.holder()
    monotonic.now += STALE_SECONDS
    assert watch.holder()
    assert there(store)
    monotonic.now += 0.1
    assert watch.holder() == ""
    assert not there(store)


@pytest.mark.parametrize("skew", [-1e6, 1e6])
def test_clocks_of_two_hosts_are_never_compared(store: MemoryStore, clock: Clock, skew: float) -> None:
    clock.now += skew
    held_by(store, host="elsewhere", pid=1)
    assert Watch(store, KEY).holder()
    assert there(store)


def test_another_hosts_lease_lives_while_it_is_renewed(store: MemoryStore, clock: Clock) -> None:
    held_by(store, host="elsewhere", pid=1)
    watch = Watch(store, KEY, monotonic=clock)
    for _ in range(20):
        assert watch.holder()
        clock.now += STALE_SECONDS - 1
        store.refresh(NAME)
    assert there(store)


def test_a_stale_lease_that_another_took_meanwhile_stays(store: MemoryStore, clock: Clock) -> None:
    class Late(MemoryStore):
        """A new owner comes between the look and the removal."""

        def take(self, name: str, expected: bytes) -> bool:
            self.replace(name, b'{"token": "new"}')
            return super().take(name, expected)

    late = Late(clock=clock)
    held_by(late, host="elsewhere", pid=1)
    watch = Watch(late, KEY, monotonic=clock)
    watch.holder()
    clock.now += STALE_SECONDS + 1
    watch.holder()
    assert late.read(NAME, 100) == b'{"token": "new"}'


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"pid": "1"}', b"{" * 2000, b"[" * 4000, b"x" * 5000])
def test_a_lease_that_says_nothing_is_stale_in_time(store: MemoryStore, clock: Clock, content: bytes) -> None:
    store.replace(NAME, content)
    watch = Watch(store, KEY, monotonic=clock)
    assert watch.holder()
    clock.now += STALE_SECONDS + 1
    assert watch.holder() == ""
    assert not there(store)


class Hosts(RuleBasedStateMachine):
    """Three hosts that take, renew, lose and give back one lease, in any order: at most one has a live one."""

    NAMES = ("a", "b", "c")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.store = MemoryStore(clock=self.clock)
        self.watches = {host: Watch(self.store, KEY, monotonic=self.clock) for host in self.NAMES}
        self.live: dict[str, lease.Lease] = {}
        self.hung: list[lease.Lease] = []

    def acting(self, host: str) -> pytest.MonkeyPatch:
        patch = pytest.MonkeyPatch()
        patch.setattr(lease, "host_identity", lambda: host)
        return patch

    @rule(host=st.sampled_from(NAMES))
    def try_to_take(self, host: str) -> None:
        if host in self.live:
            return
        patch = self.acting(host)
        self.watches[host].holder()
        got = acquire(self.store, KEY, renew=False)
        patch.undo()
        if got is not None:
            self.live[host] = got

    @rule(seconds=st.sampled_from([1.0, lease.RENEW_SECONDS, STALE_SECONDS - 1]))
    def time_goes_by(self, seconds: float) -> None:
        self.clock.now += seconds
        for _ in self.live:
            self.store.refresh(NAME)

    @precondition(lambda self: self.live)
    @rule()
    def a_holder_hangs(self) -> None:
        self.hung.append(self.live.popitem()[1])

    @precondition(lambda self: self.hung)
    @rule()
    def one_that_hung_goes_on(self) -> None:
        self.hung.pop().release()

    @precondition(lambda self: self.live)
    @rule()
    def a_holder_gives_it_back(self) -> None:
        self.live.popitem()[1].release()

    @invariant()
    def at_most_one_is_live(self) -> None:
        assert len(self.live) <= 1

    @invariant()
    def a_live_one_is_in_the_store(self) -> None:
        for held in self.live.values():
            assert self.store.read(NAME, 4096) == held.content

    def teardown(self) -> None:
        """Whatever happened, once all who live gave it back, a patient waiter gets it."""
        for held in self.live.values():
            held.release()
        for _ in range(2):
            self.watches["a"].holder()
            self.clock.now += STALE_SECONDS + 1
        self.watches["a"].holder()
        assert acquire(self.store, KEY, renew=False) is not None


TestHosts = Hosts.TestCase
TestHosts.settings = settings(deadline=None, max_examples=60, stateful_step_count=25)


# Renewal


def test_renewals_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(MemoryStore):
        renewed = 0

        def refresh(self, name: str) -> None:
            assert name == NAME
            self.renewed += 1

    monkeypatch.setattr(lease, "RENEW_SECONDS", 0)
    monkeypatch.setattr(lease, "MAX_RENEWALS", 7)
    store = Counting()
    held = acquire(store, KEY)
    assert held is not None
    assert held._thread is not None
    held._thread.join()
    assert store.renewed == 7


def test_release_ends_renewal(store: MemoryStore) -> None:
    held = acquire(store, KEY)
    assert held is not None
    assert held._thread is not None
    held.release()
    held._thread.join()
    assert not there(store)


def test_a_store_that_fails_ends_renewal_and_release_does_not_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(MemoryStore):
        def refresh(self, name: str) -> None:
            raise StoreError(5, "gone")

        def take(self, name: str, expected: bytes) -> bool:
            raise StoreError(5, "gone")

    monkeypatch.setattr(lease, "RENEW_SECONDS", 0)
    held = acquire(Broken(), KEY)
    assert held is not None
    assert held._thread is not None
    held._thread.join()
    held.release()
