"""Stores that fail in one way each: wrappers with the Store interface, to see what becomes of a fault."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from compcache.errors import StoreError
from compcache.store.protocol import Folder, Found, Store


def _failure(number: int) -> StoreError:
    return StoreError(number, os.strerror(number))


class Wrapper:
    """Passes everything on; the base of the others."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def label(self) -> str:
        return self.store.label

    def read(self, name: str, limit: int) -> bytes:
        return self.store.read(name, limit)

    def create(self, name: str, data: bytes) -> bool:
        return self.store.create(name, data)

    def replace(self, name: str, data: bytes) -> None:
        self.store.replace(name, data)

    def refresh(self, name: str) -> None:
        self.store.refresh(name)

    def remove(self, name: str) -> bool:
        return self.store.remove(name)

    def discard(self, name: str, mtime: float) -> bool:
        return self.store.discard(name, mtime)

    def take(self, name: str, expected: bytes) -> bool:
        return self.store.take(name, expected)

    def quarantine(self, name: str, reason: str) -> bool:
        return self.store.quarantine(name, reason)

    def scan(self, prefix: str) -> Iterator[Found]:
        return self.store.scan(prefix)

    def folders(self, prefix: str) -> Iterator[Folder | Found] | None:
        return self.store.folders(prefix)


class LastByteFlipped(Wrapper):
    """The last byte of everything below ``prefix`` reads wrong, ``times`` times (None: for ever)."""

    def __init__(self, store: Store, prefix: str = "", times: int | None = None) -> None:
        super().__init__(store)
        self.prefix = prefix
        self.times = times

    def read(self, name: str, limit: int) -> bytes:
        data = self.store.read(name, limit)
        if not data or not name.startswith(self.prefix) or self.times == 0:
            return data
        if self.times is not None:
            self.times -= 1
        return data[:-1] + bytes([data[-1] ^ 1])


class Truncated(Wrapper):
    """Everything below ``prefix`` reads as its first ``length`` bytes."""

    def __init__(self, store: Store, length: int, prefix: str = "") -> None:
        super().__init__(store)
        self.length = length
        self.prefix = prefix

    def read(self, name: str, limit: int) -> bytes:
        data = self.store.read(name, limit)
        return data[: self.length] if name.startswith(self.prefix) else data


class AlwaysFails(Wrapper):
    """Every call fails with this errno."""

    def __init__(self, store: Store, number: int = errno.EIO) -> None:
        super().__init__(store)
        self.number = number

    def _fail(self) -> StoreError:
        return _failure(self.number)

    def read(self, name: str, limit: int) -> bytes:
        raise self._fail()

    def create(self, name: str, data: bytes) -> bool:
        raise self._fail()

    def replace(self, name: str, data: bytes) -> None:
        raise self._fail()

    def refresh(self, name: str) -> None:
        raise self._fail()

    def remove(self, name: str) -> bool:
        raise self._fail()

    def discard(self, name: str, mtime: float) -> bool:
        raise self._fail()

    def take(self, name: str, expected: bytes) -> bool:
        raise self._fail()

    def quarantine(self, name: str, reason: str) -> bool:
        raise self._fail()

    def scan(self, prefix: str) -> Iterator[Found]:
        raise self._fail()

    def folders(self, prefix: str) -> Iterator[Folder | Found] | None:
        raise self._fail()


class CannotLookAt(Wrapper):
    """A scan that comes to a name that begins with ``prefix`` fails there with this errno; all else works."""

    def __init__(self, store: Store, prefix: str, number: int = errno.EIO) -> None:
        super().__init__(store)
        self.prefix = prefix
        self.number = number

    def scan(self, prefix: str) -> Iterator[Found]:
        for found in self.store.scan(prefix):
            if found.name.startswith(self.prefix):
                raise _failure(self.number)
            yield found


class ReadOnly(Wrapper):
    """Reads work; what would change the store fails with EROFS, or does nothing where the protocol says so."""

    def create(self, name: str, data: bytes) -> bool:
        raise _failure(errno.EROFS)

    def replace(self, name: str, data: bytes) -> None:
        raise _failure(errno.EROFS)

    def refresh(self, name: str) -> None:
        """No error, and no change."""

    def remove(self, name: str) -> bool:
        raise _failure(errno.EROFS)

    def discard(self, name: str, mtime: float) -> bool:
        raise _failure(errno.EROFS)

    def take(self, name: str, expected: bytes) -> bool:
        raise _failure(errno.EROFS)

    def quarantine(self, name: str, reason: str) -> bool:
        return False


class FullAfter(Wrapper):
    """Takes ``left`` bytes; what does not fit into the rest of them fails with ENOSPC, and stores nothing."""

    def __init__(self, store: Store, left: int) -> None:
        super().__init__(store)
        self.left = left

    def _spend(self, data: bytes) -> None:
        if len(data) > self.left:
            raise _failure(errno.ENOSPC)
        self.left -= len(data)

    def create(self, name: str, data: bytes) -> bool:
        self._spend(data)
        return self.store.create(name, data)

    def replace(self, name: str, data: bytes) -> None:
        self._spend(data)
        self.store.replace(name, data)
