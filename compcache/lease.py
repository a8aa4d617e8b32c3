"""Leases: "I am compiling this". They save work; correctness never depends on one.

A lease is a file in the store, made with ``create`` (one wins). It names its owner: a random token, the host's
identity, the process and its start time. On the owner's host a dead process is seen at once. Otherwise a lease is stale
when it has not been renewed for ``STALE_SECONDS`` of the *waiter's* own monotonic clock, whether its owner lives or
not; clocks of two hosts are never compared. Renewals are capped, so that a process that hangs in its compiler, or
could not remove its lease, does not hold others for ever.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from compcache.errors import CompcacheError, Damaged, NotStored, StoreError
from compcache.failpoints import reached
from compcache.fsio import random_name
from compcache.store import layout
from compcache.store.protocol import Store

STALE_SECONDS = 30.0
RENEW_SECONDS = 5.0
MAX_RENEWALS = 360
"""Half an hour of renewals; a longer compile goes on, but others no longer wait for it."""
MAX_LEASE_BYTES = 4096


@functools.cache
def host_identity() -> str:
    """Tells hosts and boots apart without naming them: the kernel's boot id and this process's PID namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown:{random_name()}"


def process_start(pid: int) -> str:
    """When a process of this host started, as its kernel says; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


_held: set[bytes] = set()
"""Contents of the leases that this process holds: one that it could not remove must not be waited for."""


@dataclass
class Lease:
    """One held lease. Renewed by a thread until :meth:`release`, or until the cap."""

    store: Store
    name: str
    content: bytes
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _pid: int = field(default_factory=os.getpid)

    def renew_in_background(self) -> None:
        self._thread = threading.Thread(target=self._renew, name="compcache-lease", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        for _ in range(MAX_RENEWALS):
            if self._stop.wait(RENEW_SECONDS) or os.getpid() != self._pid:
                return
            try:
                self.store.refresh(self.name)
            except CompcacheError:
                return

    def release(self) -> None:
        """Give the lease up (idempotent). Never raises: a lease that stays is stale soon."""
        self._stop.set()
        _held.discard(self.content)
        if os.getpid() != self._pid:
            return
        try:
            self.store.take(self.name, self.content)
        except CompcacheError:
            return


def acquire(store: Store, key: str, *, renew: bool = True) -> Lease | None:
    """The lease on ``key``, or None if another process holds it. Raises StoreError if leases cannot be made here."""
    name = layout.lease(key)
    content = json.dumps(
        {
            "token": random_name(),
            "host": host_identity(),
            "pid": os.getpid(),
            "start": process_start(os.getpid()),
        },
        sort_keys=True,
    ).encode()
    if not store.create(name, content):
        return None
    reached("publish.lease")
    lease = Lease(store, name, content)
    _held.add(content)
    if renew:
        lease.renew_in_background()
    return lease


class Watch:
    """Watches somebody else's lease on ``key`` and says when it is no longer worth waiting for."""

    def __init__(self, store: Store, key: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._name = layout.lease(key)
        self._monotonic = monotonic
        self._seen: tuple[bytes | None, float] | None = None
        self._since = 0.0

    def holder(self) -> str:
        """Who holds it, for a line of text; empty if nobody does. Clears a lease whose owner is dead or stale."""
        try:
            content = self._content()
        except NotStored:
            return ""
        owner = _owner(content or b"")
        if content is None or owner.get("host") != host_identity():
            return self._renewed(content, "another host")
        start = process_start(owner["pid"])
        given_up = owner["pid"] == os.getpid() and content not in _held
        if start and start == owner.get("start") and not given_up:
            # Alive, and yet it may have given the lease up without being able to remove it, or hang: it must renew.
            return self._renewed(content, f"process {owner['pid']}")
        self._store.take(self._name, content)
        return ""

    def _content(self) -> bytes | None:
        """The lease as it is; None if it cannot be read. Raises NotStored if there is none."""
        try:
            return self._store.read(self._name, MAX_LEASE_BYTES)
        except NotStored:
            raise
        except (StoreError, Damaged):
            return None

    def _renewed(self, content: bytes | None, who: str) -> str:
        """``who``, while the lease's mtime moves; nobody once it has not for STALE_SECONDS of this process's clock."""
        renewed = max((f.mtime for f in self._store.scan("leases") if f.name == self._name), default=0.0)
        now = self._monotonic()
        if (content, renewed) != self._seen:
            self._seen, self._since = (content, renewed), now
        elif now - self._since > STALE_SECONDS:
            self._clear(content)
            return ""
        return who

    def _clear(self, content: bytes | None) -> None:
        """Remove a stale lease. One that was replaced meanwhile is somebody's live one, and stays."""
        if content is not None:
            self._store.take(self._name, content)
        else:
            with contextlib.suppress(NotStored):
                if self._content() is None:
                    self._store.quarantine(self._name, "a lease that nobody can read or renews")


def _owner(content: bytes) -> dict[str, Any]:
    try:
        owner = json.loads(content)
        return owner if isinstance(owner, dict) and isinstance(owner.get("pid"), int) else {}
    except (ValueError, RecursionError):
        return {}


class Budget:
    """Seconds that one start may wait in all. Shared by all waits of that start."""

    def __init__(self, seconds: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._left = max(0.0, seconds)
        self._monotonic = monotonic
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        return self._left

    def spend(self, seconds: float) -> None:
        with self._lock:
            self._left = max(0.0, self._left - seconds)


def wait_until(
    ready: Callable[[], bool],
    watch: Watch,
    budget: Budget,
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = lambda line: None,
) -> bool:
    """Wait until ``ready()`` or until nobody holds the lease or the budget is spent; the last word of ``ready()``.

    ``say`` is called once with who is waited for. Slow looks at the store are paid from the budget too.
    """
    pause = 0.05
    said = False
    before = monotonic()
    while not ready():
        holder = watch.holder()
        if not holder or budget.left <= 0:
            return ready()
        if not said:
            say(f"waiting up to {budget.left:.0f} s for {holder}, which compiles the same")
            said = True
        sleep(min(pause * random.uniform(0.8, 1.2), budget.left))
        now = monotonic()
        budget.spend(now - before)
        before = now
        pause = min(pause * 1.5, 0.5)
    return True
