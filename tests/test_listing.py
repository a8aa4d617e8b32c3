"""What this host has seen of a store: spares looks at what did not change, and never shows or removes what did."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import filled
import pytest

from compcache import limits, prune
from compcache.contents import Contents, StoredEntry, contents
from compcache.index import Index
from compcache.inventory import inventory
from compcache.listing import SETTLED_SECONDS, Listing
from compcache.store import layout
from compcache.store.directory import DirectoryStore
from compcache.store.memory import MemoryStore
from compcache.store.protocol import Found, Store
from compcache.testing.faults import Wrapper
from compcache.verify import verify

DAY = 86400.0


class Counting(Wrapper):
    """Counts the files that are read, and the folders of entries and blobs that are listed."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.reads = 0
        self.scans = 0

    def read(self, name: str, limit: int) -> bytes:
        self.reads += 1
        return super().read(name, limit)

    def scan(self, prefix: str) -> Iterator[Found]:
        self.scans += prefix.split("/", 1)[0] in layout.DEEP
        return super().scan(prefix)


class Case:
    """A store of two configurations, old enough to be remembered, and what is remembered of it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "store"
        self.cache = filled.cache_at(self.root)
        for model in ("one", "two"):
            filled.piecewise(self.cache, model=model)
        self.age(10 * DAY)
        self.store = Counting(DirectoryStore(self.root))
        self.rows: dict[str, str] = {}
        self.now = time.time()

    def age(self, seconds: float) -> None:
        filled.make_old(self.root, seconds)
        for path in self.folders():
            old = path.stat().st_mtime - seconds
            os.utime(path, (old, old))

    def folders(self) -> list[Path]:
        base = self.root / "v1"
        return [*base.glob("configs/*/*"), *base.glob("blobs/*")]

    def listing(self, believed: float = 3600.0) -> Listing:
        return Listing(self.rows, believed=believed, clock=lambda: self.now)

    def look(self, believed: float = 3600.0) -> Contents:
        """A look with what is remembered, and what that one remembers; it must see what a look without it sees."""
        listing = self.listing(believed)
        self.store.reads = self.store.scans = 0
        seen = contents(self.store, remembered=listing)
        listing.finish()
        for folder, text in listing.changes.items():
            if text is None:
                del self.rows[folder]
            else:
                self.rows[folder] = text
        return seen


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def plain(seen: Contents) -> tuple[object, ...]:
    """All of it in a fixed order, but for mtimes, which may be behind."""

    def row(e: StoredEntry) -> tuple[object, ...]:
        digests, display = sorted(e.digests), dict(e.display)
        return e.found.name, e.configuration_key, e.kind, digests, e.programs, e.compile_seconds, display

    files = sorted((found.name, found.size) for found in seen.found())
    return sorted(map(row, seen.entries), key=str), files, sorted(seen.blobs), sorted(seen.configs), seen.skipped


def test_a_second_look_reads_and_lists_nothing(case: Case) -> None:
    first = case.look()
    assert case.store.reads == 12
    assert len(case.rows) == len(case.folders())
    again = case.look()
    assert (case.store.reads, case.store.scans) == (0, 0)
    assert plain(first) == plain(again) == plain(contents(case.store))


def test_it_survives_the_index(case: Case, tmp_path: Path) -> None:
    first = case.look()
    index = Index(tmp_path / "index")
    for label in ("/a", "/a b", "/a listing"):
        index.set_listing(label, case.rows)
    index.set_listing("/a b", dict.fromkeys(case.rows))
    assert index.listing("/a b") == {}
    case.rows = index.listing("/a")
    again = case.look()
    assert (case.store.reads, case.store.scans) == (0, 0)
    assert plain(first) == plain(again)


def test_uses_of_others_are_seen_once_it_is_no_longer_believed_and_nothing_is_read_for_them(case: Case) -> None:
    case.look()
    entry = case.cache.find(case.cache.entry_of(*_keys(case)).factors)
    assert entry is not None
    path = filled.path_of(case.root, entry)
    os.utime(path)
    name = str(path.relative_to(case.root / "v1"))
    assert _mtime(case.look(), name) < path.stat().st_mtime - DAY
    case.now += 3601
    assert _mtime(case.look(), name) == path.stat().st_mtime
    assert case.store.reads == 0
    os.utime(path, (5, 5))
    assert _mtime(case.look(believed=0.0), name) == 5


def _keys(case: Case) -> tuple[str, str]:
    entry = contents(case.store).entries[0]
    return entry.configuration_key, entry.program_key


def _mtime(seen: Contents, name: str) -> float:
    (found,) = [entry.found for entry in seen.entries if entry.found.name == name]
    return found.mtime


def test_new_removed_and_replaced_entries_are_seen(case: Case) -> None:
    case.look()
    new = filled.graph(case.cache, "16", model="one")
    assert plain(case.look()) == plain(contents(case.store))
    path = filled.path_of(case.root, new)
    case.age(DAY)
    case.look()
    data = path.read_bytes()
    path.unlink()
    assert new.program_key not in {entry.program_key for entry in case.look().entries}
    path.write_bytes(data.replace(b"artifact", b"artefact"))
    path.chmod(0o600)
    assert [skipped.kind for skipped in case.look().skipped] == ["damaged"]
    folder = os.path.relpath(path.parent, case.root / "v1")
    assert folder not in case.rows or json.loads(case.rows[folder])["mtime"] != path.parent.stat().st_mtime


def test_a_folder_that_changed_a_moment_ago_is_not_remembered(case: Case) -> None:
    filled.graph(case.cache, "16", model="one")
    case.look()
    changed = {
        os.path.relpath(path, case.root / "v1") for path in case.folders() if path.stat().st_mtime > case.now - DAY
    }
    assert changed
    assert not changed & case.rows.keys()
    case.now += SETTLED_SECONDS + 60
    case.look()
    assert changed <= case.rows.keys()


def test_a_folder_that_is_gone_is_forgotten(case: Case) -> None:
    case.look()
    (first, *_) = case.folders()
    for path in first.iterdir():
        path.unlink()
    first.rmdir()
    case.look()
    assert os.path.relpath(first, case.root / "v1") not in case.rows


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "{}", "[" * 100_000, '{"mtime": 1}',
        '{"mtime": MTIME, "looked": NOW, "files": [["../../etc/passwd", 1, 1]], "displays": [], "entries": []}',
        '{"mtime": MTIME, "looked": NOW, "files": [["config.json", 1, Infinity]], "displays": [], "entries": []}',
        '{"mtime": MTIME, "looked": NOW, "files": [["config.json", "1", 1]], "displays": [], "entries": []}',
        '{"mtime": MTIME, "looked": NOW, "files": [], "displays": [], "entries": [["..", 1, 1, "graph", 1, 0, "", 0]]}',
        '{"mtime": MTIME, "looked": NOW, "files": [], "displays": [[]], "entries": []}',
        '{"mtime": MTIME, "looked": 1e999, "files": [], "displays": [], "entries": 5}',
    ],
)  # fmt: skip
def test_a_record_that_is_not_ours_is_looked_at_again(case: Case, text: str) -> None:
    case.look()
    for path in case.folders():
        row = text.replace("MTIME", repr(path.stat().st_mtime)).replace("NOW", repr(case.now))
        case.rows[os.path.relpath(path, case.root / "v1")] = row
    assert plain(case.look()) == plain(contents(case.store))
    assert plain(case.look()) == plain(contents(case.store))


def test_a_plan_from_a_view_that_is_behind_takes_no_blob_that_is_needed(case: Case) -> None:
    """A network mount may show the folder as it was: what is published meanwhile reuses a blob, and refreshes it."""
    case.look()
    stamps = {path: path.stat().st_mtime for path in case.folders()}
    new = filled.graph(case.cache, "16", model="one")  # its kernel is the one that all have
    for path, mtime in stamps.items():
        os.utime(path, (mtime, mtime))
    listing = case.listing()
    planned = prune.plan(case.store, max_size=0, remembered=listing)
    assert planned.blobs
    assert new.program_key not in {removal.entry.program_key for removal in planned.entries if removal.entry}
    prune.execute(case.store, planned, remembered=listing)
    assert case.cache.find(new.factors) == new
    assert not verify(case.store).damage


def test_a_store_without_folders_is_looked_at_whole(tmp_path: Path) -> None:
    store = MemoryStore()
    filled.piecewise(filled.cache_at(tmp_path / "store", store))
    listing = Listing(clock=lambda: time.time() + DAY)
    assert plain(contents(store, remembered=listing)) == plain(contents(store))
    assert not listing.changes
    assert inventory(store, remembered=listing).programs == 6


def test_a_sweep_that_takes_too_long_gets_further_the_next_time(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compcache.listing.WORTH", 1)
    case.cache.store = case.store
    index = Index(tmp_path / "index")
    ticks = iter(range(10**6))

    def sweep() -> limits.Sweep | None:
        return limits._sweep(case.cache, index, case.cache.settings.limits, lambda: 0.4 * next(ticks))

    kept = []
    for _ in range(50):
        try:
            swept = sweep()
            break
        except limits.TooSlow:
            kept.append(len(index.listing(case.store.label)))
    else:
        raise AssertionError(kept)
    assert len(kept) > 1
    assert kept == sorted(kept)
    assert swept is not None
    assert swept.files_before == swept.files_after == contents(case.store).count
