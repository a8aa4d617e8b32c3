"""The contract suite on the stores that are shipped."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from compcache.errors import StoreError
from compcache.store.directory import DirectoryStore
from compcache.store.memory import MemoryStore
from compcache.store.protocol import Store
from compcache.testing.faults import AlwaysFails, FullAfter, ReadOnly, Wrapper
from compcache.testing.filesystems import At, hostile
from compcache.testing.store_contract import LIMIT, NAME, StoreContract


class TestDirectoryStore(StoreContract):
    def make(self, tmp_path: Path) -> Store:
        return DirectoryStore(tmp_path / "store")

    def path(self, store: Store, name: str) -> Path:
        assert isinstance(store, DirectoryStore)
        return store.root / "v1" / name

    def plant(self, store: Store, name: str, data: bytes) -> None:
        path = self.path(store, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)

    def peek(self, store: Store, name: str) -> bytes | None:
        path = self.path(store, name)
        return path.read_bytes() if path.exists() else None

    def date(self, store: Store, name: str, mtime: float) -> None:
        os.utime(self.path(store, name), (mtime, mtime))

    def unseen(self, store: Store, name: str, number: int) -> AbstractContextManager[None]:
        path = self.path(store, name)
        return hostile(path.parents[3], At(path, number, ("stat", "lstat")))


class TestMemoryStore(StoreContract):
    def make(self, tmp_path: Path) -> Store:
        return MemoryStore()

    def plant(self, store: Store, name: str, data: bytes) -> None:
        assert isinstance(store, MemoryStore)
        store._files[name] = (data, 2_000_000.0)

    def peek(self, store: Store, name: str) -> bytes | None:
        assert isinstance(store, MemoryStore)
        return store._files[name][0] if name in store._files else None

    def date(self, store: Store, name: str, mtime: float) -> None:
        assert isinstance(store, MemoryStore)
        store._files[name] = (store._files[name][0], mtime)


class TestWrapper(TestDirectoryStore):
    """A wrapper that changes nothing keeps the contract: faults are in what the others change."""

    def make(self, tmp_path: Path) -> Store:
        return Wrapper(super().make(tmp_path))

    def path(self, store: Store, name: str) -> Path:
        assert isinstance(store, Wrapper)
        return super().path(store.store, name)


CHANGES = {
    "create": lambda store: store.create(NAME, b"y"),
    "replace": lambda store: store.replace(NAME, b"y"),
    "refresh": lambda store: store.refresh(NAME),
    "remove": lambda store: store.remove(NAME),
    "discard": lambda store: store.discard(NAME, 1.0),
    "take": lambda store: store.take(NAME, b"x"),
    "quarantine": lambda store: store.quarantine(NAME, "bad"),
}


def read_only(store: DirectoryStore) -> list[Store]:
    return [ReadOnly(store), DirectoryStore(store.root, read_only=True)]


@pytest.mark.parametrize("change", CHANGES)
def test_no_method_changes_a_read_only_store(tmp_path: Path, change: str) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.create(NAME, b"x")
    path = store.root / "v1" / NAME
    os.utime(path, (1.0, 1.0))
    for closed in read_only(store):
        if change in ("refresh", "quarantine"):  # by contract these say no without an error
            assert not CHANGES[change](closed)
        else:
            with pytest.raises(StoreError):
                CHANGES[change](closed)
        assert closed.read(NAME, LIMIT) == b"x"
        assert path.stat().st_mtime == 1.0


@pytest.mark.parametrize("change", CHANGES)
def test_what_always_fails_fails_in_every_method(change: str) -> None:
    with pytest.raises(StoreError):
        CHANGES[change](AlwaysFails(MemoryStore()))


def test_what_does_not_fit_is_not_stored() -> None:
    store = MemoryStore()
    full = FullAfter(store, 4)
    assert full.create(NAME, b"1234")
    with pytest.raises(StoreError):
        full.replace(NAME, b"5")
    assert store.read(NAME, LIMIT) == b"1234"
