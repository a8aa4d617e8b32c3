"""The contract of a store, as tests that any store can run (see :mod:`compcache.testing`).

Where a store's insides can be reached, data is prepared and inspected behind its back (``plant``, ``peek`` and
``date``), so that a bug in ``create`` cannot hide one in ``read``.
"""

from __future__ import annotations

import errno
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from compcache.errors import Damaged, NotStored, StoreError
from compcache.store.protocol import Folder, Store

NAME = "blobs/ab/" + "ab" * 32
OTHER = "blobs/cd/" + "cd" * 32
LIMIT = 1 << 20
LONG_AGO = 1_000_000.0


class StoreContract:
    """Subclass it, name the subclass ``Test...``, and give it a ``make``.

    ``resolution`` is how fine the mtimes of the store's folders are, in seconds.
    """

    resolution = 0.02

    def make(self, tmp_path: Path) -> Store:
        """An empty store."""
        raise NotImplementedError

    def plant(self, store: Store, name: str, data: bytes) -> None:
        """Put bytes under a name, if possible without the store's own code."""
        assert store.create(name, data)

    def peek(self, store: Store, name: str) -> bytes | None:
        """The bytes under a name, if possible without the store's own code; None if there are none."""
        try:
            return store.read(name, LIMIT)
        except NotStored:
            return None

    def date(self, store: Store, name: str, mtime: float) -> None:
        """Set the mtime of a name behind the store's back."""
        pytest.skip("mtimes of this store cannot be set")

    def unseen(self, store: Store, name: str, number: int) -> AbstractContextManager[None]:
        """Within the block, who asks below the store for the status of a name gets this errno.

        A store of files can use :func:`compcache.testing.filesystems.hostile` with ``At``.
        """
        pytest.skip("errors cannot be made below this store")

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return self.make(tmp_path)

    def names(self, store: Store, prefix: str) -> dict[str, int]:
        return {found.name: found.size for found in store.scan(prefix)}

    def test_it_is_a_store(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert store.label

    def test_reading_nothing_is_not_stored(self, store: Store) -> None:
        with pytest.raises(NotStored):
            store.read(NAME, LIMIT)
        assert self.names(store, "") == {}

    @pytest.mark.parametrize("data", [b"", b"x", b"\0" * 4096, bytes(range(256)) * 1000])
    def test_what_is_there_is_read(self, store: Store, data: bytes) -> None:
        self.plant(store, NAME, data)
        assert store.read(NAME, LIMIT) == data
        assert store.read(NAME, len(data)) == data

    def test_more_than_the_limit_is_damage(self, store: Store) -> None:
        self.plant(store, NAME, b"12345")
        with pytest.raises(Damaged):
            store.read(NAME, 4)

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 1000])
    def test_create_stores_all_of_it(self, store: Store, data: bytes) -> None:
        assert store.create(NAME, data) is True
        assert self.peek(store, NAME) == data

    def test_the_first_create_wins(self, store: Store) -> None:
        assert store.create(NAME, b"first") is True
        assert store.create(NAME, b"second") is False
        assert self.peek(store, NAME) == b"first"

    def test_replace_replaces_and_makes(self, store: Store) -> None:
        store.replace(NAME, b"one")
        store.replace(NAME, b"two")
        assert self.peek(store, NAME) == b"two"

    def test_nothing_is_left_over(self, store: Store) -> None:
        store.create(NAME, b"one")
        store.create(NAME, b"again")
        store.replace(OTHER, b"two")
        assert self.names(store, "tmp") == {}
        assert self.names(store, "blobs") == {NAME: 3, OTHER: 3}

    def test_scan_is_by_folder(self, store: Store) -> None:
        self.plant(store, NAME, b"1")
        self.plant(store, "configs/ab/" + "ab" * 16 + "/config.json", b"22")
        assert set(self.names(store, "blobs")) == {NAME}
        assert len(self.names(store, "")) == 2
        assert self.names(store, "pins") == {}

    @pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
    @pytest.mark.parametrize("prefix", ["", "blobs", "blobs/ab"])
    def test_what_cannot_be_looked_at_is_an_error_and_not_left_out(
        self, store: Store, prefix: str, number: int
    ) -> None:
        for name in (NAME, OTHER):
            self.plant(store, name, b"x")
        with self.unseen(store, NAME, number):
            with pytest.raises(StoreError) as raised:
                list(store.scan(prefix))
            assert not (isinstance(raised.value, NotStored) and raised.value.gone)
            assert set(self.names(store, "blobs/cd")) == {OTHER}
        with self.unseen(store, NAME, errno.ENOENT):
            assert set(self.names(store, "blobs")) == {OTHER}, "what vanishes on the way is no error"
        assert set(self.names(store, "blobs")) == {NAME, OTHER}

    def test_remove(self, store: Store) -> None:
        self.plant(store, NAME, b"x")
        assert store.remove(NAME) is True
        assert self.peek(store, NAME) is None
        assert store.remove(NAME) is False

    def test_take_only_takes_what_is_expected(self, store: Store) -> None:
        self.plant(store, NAME, b"mine")
        assert store.take(NAME, b"theirs") is False
        assert store.take(NAME, b"min") is False
        assert self.peek(store, NAME) == b"mine"
        assert store.take(NAME, b"mine") is True
        assert self.peek(store, NAME) is None
        assert store.take(NAME, b"mine") is False

    def test_one_of_many_takes(self, store: Store) -> None:
        self.plant(store, NAME, b"mine")
        won: list[bool] = []
        threads = [threading.Thread(target=lambda: won.append(store.take(NAME, b"mine"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == [False] * 7 + [True]

    def test_one_of_many_creates(self, store: Store) -> None:
        won: list[tuple[bool, bytes]] = []

        def create(data: bytes) -> None:
            won.append((store.create(NAME, data), data))

        threads = [threading.Thread(target=create, args=(bytes([i]) * 5000,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [data for did, data in won if did]
        assert len(winners) == 1
        assert self.peek(store, NAME) == winners[0]

    def test_discard_spares_what_was_touched(self, store: Store) -> None:
        self.plant(store, NAME, b"x")
        mtime = next(found.mtime for found in store.scan("blobs"))
        assert store.discard(NAME, mtime - 10) is False
        assert self.peek(store, NAME) == b"x"
        assert store.discard(NAME, mtime) is True
        assert self.peek(store, NAME) is None
        assert store.discard(NAME, mtime) is False

    def test_a_refreshed_name_is_young_and_spared(self, store: Store) -> None:
        self.plant(store, NAME, b"x")
        self.plant(store, OTHER, b"y")
        for name in (NAME, OTHER):
            self.date(store, name, LONG_AGO)
        store.refresh(NAME)
        mtimes = {found.name: found.mtime for found in store.scan("blobs")}
        assert mtimes[NAME] > LONG_AGO
        assert mtimes[OTHER] == LONG_AGO
        assert store.discard(NAME, LONG_AGO) is False
        assert store.discard(OTHER, LONG_AGO) is True
        assert self.peek(store, NAME) == b"x"
        assert self.peek(store, OTHER) is None

    def test_what_is_replaced_is_young(self, store: Store) -> None:
        self.plant(store, NAME, b"x")
        self.date(store, NAME, LONG_AGO)
        store.replace(NAME, b"y")
        assert all(found.mtime > LONG_AGO for found in store.scan("blobs"))

    def test_a_reader_sees_the_old_bytes_or_the_new_ones(self, store: Store) -> None:
        versions = {bytes([i]) * 200_000 for i in range(2)}
        store.replace(NAME, min(versions))
        done = threading.Event()

        def replace() -> None:
            for _ in range(50):
                for data in versions:
                    store.replace(NAME, data)
            done.set()

        writer = threading.Thread(target=replace)
        writer.start()
        seen = set()
        while not done.is_set():
            seen.add(store.read(NAME, LIMIT))
        writer.join()
        assert seen <= versions

    def test_quarantine_keeps_the_bytes_and_the_reason(self, store: Store) -> None:
        self.plant(store, NAME, b"bad")
        assert store.quarantine(NAME, "it is bad") is True
        assert self.peek(store, NAME) is None
        kept = [store.read(name, LIMIT) for name in self.names(store, "quarantine")]
        assert b"bad" in kept
        assert any(b"it is bad" in data and NAME.encode() in data for data in kept)
        assert store.quarantine(NAME, "again") is False

    def test_a_quarantined_name_can_be_stored_again(self, store: Store) -> None:
        self.plant(store, NAME, b"bad")
        store.quarantine(NAME, "it is bad")
        assert store.create(NAME, b"good") is True
        assert self.peek(store, NAME) == b"good"

    def folders(self, store: Store, prefix: str) -> dict[str, float]:
        """Folders below a place and their mtimes, once any change to come gets another one."""
        time.sleep(self.resolution)
        found = store.folders(prefix)
        if found is None:
            pytest.skip("a store without folders")
        return {folder.name: folder.mtime for folder in found if isinstance(folder, Folder)}

    def test_a_folder_changes_with_the_names_in_it_and_only_then(self, store: Store) -> None:
        assert self.folders(store, "") == {}
        seen = []
        for change in (
            lambda: store.create(NAME, b"one"),
            lambda: store.create(NAME + "0", b"two"),
            lambda: store.replace(NAME, b"three"),
            lambda: store.remove(NAME + "0"),
            lambda: store.quarantine(NAME, "it is bad"),
        ):
            change()
            seen.append(self.folders(store, "blobs")["blobs/ab"])
        assert len(set(seen)) == len(seen)
        store.create(NAME, b"again")
        before = self.folders(store, "")
        store.refresh(NAME)
        store.read(NAME, LIMIT)
        store.create(OTHER, b"elsewhere")
        assert self.folders(store, "")["blobs/ab"] == before["blobs/ab"]

    def test_folders_hold_all_entries_and_blobs(self, store: Store) -> None:
        key = "ab" * 16
        for name in (NAME, OTHER, f"configs/ab/{key}/{key}.json", f"configs/ab/{key}/config.json", f"pins/{key}"):
            self.plant(store, name, b"x")
        folders = self.folders(store, "")
        assert set(folders) == {"blobs/ab", "blobs/cd", f"configs/ab/{key}"}
        held = {name for folder in folders for name in self.names(store, folder)}
        assert held == set(self.names(store, "blobs")) | set(self.names(store, "configs"))
        assert set(self.folders(store, f"configs/ab/{key}")) == {f"configs/ab/{key}"}
        assert self.folders(store, "configs/ab/" + "cd" * 16) == {}

    def test_refresh_of_nothing_is_no_error(self, store: Store) -> None:
        store.refresh(NAME)
        assert self.names(store, "") == {}

    @pytest.mark.parametrize(
        "name", ["/etc/passwd", "../x", "blobs/../../x", "blobs", "", "other/ab/x", "blobs/a/b\0c"]
    )
    def test_a_name_that_is_none_is_refused(self, store: Store, name: str) -> None:
        with pytest.raises(StoreError):
            store.read(name, LIMIT)
        with pytest.raises(StoreError):
            store.create(name, b"x")
        with pytest.raises(StoreError):
            store.replace(name, b"x")
        with pytest.raises(StoreError):
            store.remove(name)
        with pytest.raises(StoreError):
            store.take(name, b"x")
        with pytest.raises(StoreError):
            store.discard(name, 0.0)
