"""Stores that break a promise each, to see that the kill driver notices."""

from __future__ import annotations

from pathlib import Path

from compcache.failpoints import reached
from compcache.store.directory import DirectoryStore
from compcache.store.protocol import Store
from compcache.testing.faults import Wrapper


class InPlace(DirectoryStore):
    """Writes a file under its final name, in two halves."""

    def create(self, name: str, data: bytes) -> bool:
        path = self._writable(name)
        if name.startswith("leases/"):
            return super().create(name, data)
        if path.exists():
            return False
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(path, "wb", buffering=0) as file:
            file.write(data[: len(data) // 2])
            reached("temporary.written")
            file.write(data[len(data) // 2 :])
        path.chmod(0o600)
        return True


class Late(Wrapper):
    """Keeps blobs back until the entry is stored."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.late: dict[str, bytes] = {}

    def create(self, name: str, data: bytes) -> bool:
        if name.startswith("blobs/"):
            self.late[name] = data
            return True
        done = self.store.create(name, data)
        if name.endswith(".json") and name.startswith("configs/") and not name.endswith("config.json"):
            reached("publish.entry")
            for late, content in self.late.items():
                self.store.create(late, content)
            self.late.clear()
        return done


class Forgetful(Wrapper):
    """Removes another program when one is set aside."""

    def quarantine(self, name: str, reason: str) -> bool:
        for found in list(self.store.scan("configs")):
            if found.name != name and not found.name.endswith("config.json"):
                self.store.remove(found.name)
        return self.store.quarantine(name, reason)


def publishes_in_place(folder: Path) -> Store:
    return InPlace(folder)


def entry_before_blobs(folder: Path) -> Store:
    return Late(DirectoryStore(folder))


def forgets(folder: Path) -> Store:
    return Forgetful(DirectoryStore(folder))
