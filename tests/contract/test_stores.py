"""The contract suite on the stores that are shipped."""

from __future__ import annotations

from pathlib import Path

from compcache.store.directory import DirectoryStore
from compcache.store.memory import MemoryStore
from compcache.store.protocol import Store
from compcache.testing.faults import Wrapper
from compcache.testing.store_contract import StoreContract


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


class TestMemoryStore(StoreContract):
    def make(self, tmp_path: Path) -> Store:
        return MemoryStore()


class TestWrapper(StoreContract):
    """A wrapper that changes nothing keeps the contract: faults are in what the others change."""

    def make(self, tmp_path: Path) -> Store:
        return Wrapper(DirectoryStore(tmp_path / "store"))
