"""A store in this process's memory, for tests and for callers that want no files."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator

from compcache.errors import Damaged, NotStored, StoreError
from compcache.store import layout
from compcache.store.protocol import Found


class MemoryStore:
    """Implements the Store protocol in a dict. ``clock`` gives Unix time in seconds."""

    def __init__(self, label: str = "memory", *, clock: Callable[[], float] | None = None) -> None:
        import time

        self._label = label
        self._clock = clock or time.time
        self._lock = threading.Lock()
        self._files: dict[str, tuple[bytes, float]] = {}

    @property
    def label(self) -> str:
        return self._label

    def read(self, name: str, limit: int) -> bytes:
        with self._lock:
            found = self._files.get(_checked(name))
        if found is None:
            raise NotStored(errno.ENOENT, f"{name} is not stored")
        if len(found[0]) > limit:
            raise Damaged(f"{name} has {len(found[0])} bytes; the limit is {limit}")
        return found[0]

    def create(self, name: str, data: bytes) -> bool:
        with self._lock:
            if _checked(name) in self._files:
                return False
            self._files[name] = (bytes(data), self._clock())
            return True

    def replace(self, name: str, data: bytes) -> None:
        with self._lock:
            self._files[_checked(name)] = (bytes(data), self._clock())

    def refresh(self, name: str) -> None:
        with self._lock:
            if name in self._files:
                self._files[name] = (self._files[name][0], self._clock())

    def remove(self, name: str) -> bool:
        with self._lock:
            return self._files.pop(_checked(name), None) is not None

    def discard(self, name: str, mtime: float) -> bool:
        with self._lock:
            found = self._files.get(_checked(name))
            if found is None or found[1] != mtime:
                return False
            del self._files[name]
            return True

    def take(self, name: str, expected: bytes) -> bool:
        with self._lock:
            found = self._files.get(_checked(name))
            if found is None or found[0] != expected:
                return False
            del self._files[name]
            return True

    def quarantine(self, name: str, reason: str) -> bool:
        from compcache.fsio import random_name

        with self._lock:
            found = self._files.pop(_checked(name), None)
            if found is None:
                return False
            aside = f"quarantine/{name.rsplit('/', 1)[-1]}.{random_name()[:8]}"
            self._files[aside] = found
            self._files[aside + ".reason"] = (f"{name}\n{reason}\n".encode(), self._clock())
            return True

    def scan(self, prefix: str) -> Iterator[Found]:
        with self._lock:
            found = list(self._files.items())
        for name, (data, mtime) in found:
            if not prefix or name.startswith(prefix.rstrip("/") + "/"):
                yield Found(name, len(data), mtime)

    def folders(self, prefix: str) -> None:
        return None


def _checked(name: str) -> str:
    if not layout.is_name(name):
        raise StoreError(errno.EINVAL, f"{name!r} is not a name in a store")
    return name
