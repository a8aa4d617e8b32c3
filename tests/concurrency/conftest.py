"""A store whose time a test sets."""

from __future__ import annotations

import pytest
from lease_case import Clock

from compcache.store.memory import MemoryStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock=clock)
