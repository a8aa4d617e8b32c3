"""A store that may take a start only so many seconds in all: beyond that it is left alone, and everything misses.

What cannot be bounded here is a single call into a file system that never returns (a hard mount whose server is gone).
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from compcache.errors import StoreError
from compcache.store.protocol import Folder, Found, Store

T = TypeVar("T")


class BoundedStore:
    """Passes everything on to ``store`` while less than ``seconds`` were spent in it; then raises StoreError."""

    def __init__(self, store: Store, seconds: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.seconds = seconds
        self.spent = 0.0
        self._monotonic = monotonic
        self._lock = threading.Lock()

    @property
    def label(self) -> str:
        return self.store.label

    def read(self, name: str, limit: int) -> bytes:
        began = self._begin()
        try:
            return self.store.read(name, limit)
        finally:
            self._end(began)

    def create(self, name: str, data: bytes) -> bool:
        began = self._begin()
        try:
            return self.store.create(name, data)
        finally:
            self._end(began)

    def replace(self, name: str, data: bytes) -> None:
        began = self._begin()
        try:
            self.store.replace(name, data)
        finally:
            self._end(began)

    def refresh(self, name: str) -> None:
        began = self._begin()
        try:
            self.store.refresh(name)
        finally:
            self._end(began)

    def remove(self, name: str) -> bool:
        began = self._begin()
        try:
            return self.store.remove(name)
        finally:
            self._end(began)

    def discard(self, name: str, mtime: float) -> bool:
        began = self._begin()
        try:
            return self.store.discard(name, mtime)
        finally:
            self._end(began)

    def take(self, name: str, expected: bytes) -> bool:
        """Never refused: a lease that is not given up holds up others."""
        return self.store.take(name, expected)

    def quarantine(self, name: str, reason: str) -> bool:
        began = self._begin()
        try:
            return self.store.quarantine(name, reason)
        finally:
            self._end(began)

    def scan(self, prefix: str) -> Iterator[Found]:
        return self._timed(self.store.scan(prefix))

    def folders(self, prefix: str) -> Iterator[Folder | Found] | None:
        found = self.store.folders(prefix)
        return None if found is None else self._timed(found)

    def _timed(self, found: Iterator[T]) -> Iterator[T]:
        """Timed from one to the next, without what the caller does in between."""
        while True:
            began = self._begin()
            try:
                item = next(found)
            except StopIteration:
                return
            finally:
                self._end(began)
            yield item

    def _begin(self) -> float:
        if self.spent >= self.seconds:
            raise StoreError(errno.ETIMEDOUT, f"{self.label} took {self.spent:.0f} s of this start; it is left alone")
        return self._monotonic()

    def _end(self, began: float) -> None:
        with self._lock:
            self.spent += self._monotonic() - began
