"""A lease of some process of some host, and time that a test sets: for the tests of leases."""

from __future__ import annotations

import json
import os

from compcache import lease
from compcache.store import layout
from compcache.store.protocol import Store

KEY = "ab" * 16
NAME = layout.lease(KEY)


class Clock:
    """Time that a test sets; sleeping moves it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def held_by(store: Store, *, host: str | None = None, pid: int | None = None, start: str | None = None) -> bytes:
    """Write the lease of some process; of this one by default."""
    pid = os.getpid() if pid is None else pid
    start = lease.process_start(pid) if start is None else start
    owner = {"token": "t", "host": host or lease.host_identity(), "pid": pid, "start": start}
    content = json.dumps(owner).encode()
    if pid == os.getpid():  # what this process does not hold is nobody's
        lease._held.add(content)
    store.replace(NAME, content)
    return content


def there(store: Store) -> bool:
    return any(found.name == NAME for found in store.scan("leases"))
