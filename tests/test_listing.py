"""What this host has seen of a store: spares looks at what did not change, and never shows or removes what did."""

from __future__ import annotations

import functools
import json
import operator
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import filled
import pytest
import xxhash

from compcache import limits, listing, prune
from compcache.contents import Contents, StoredEntry, contents
from compcache.index import Index
from compcache.inventory import ConfigurationRow, Showing, inventory, showing
from compcache.listing import FILES, SETTLED_SECONDS, Listing
from compcache.records import Usage
from compcache.store import layout
from compcache.store.directory import DirectoryStore
from compcache.store.memory import MemoryStore
from compcache.store.protocol import Folder, Found, Store
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
        return Listing(self.load, believed=believed, clock=lambda: self.now)

    def load(self, kind: str, after: str) -> list[tuple[str, str]]:
        """As the index does, three at a time."""
        start = len(kind) + 1
        found = sorted((name[start:], text) for name, text in self.rows.items() if name.startswith(f"{kind} "))
        return [row for row in found if row[0] > after][:3]

    def keep(self, listing: Listing) -> None:
        """What the index does with it."""
        for name, text in listing.changes.items():
            if text is None:
                del self.rows[name]
            else:
                self.rows[name] = text

    def look(self, believed: float = 3600.0) -> Contents:
        """A look with what is remembered, and what that one remembers; it must see what a look without it sees."""
        listing = self.listing(believed)
        self.store.reads = self.store.scans = 0
        seen = contents(self.store, remembered=listing)
        listing.finish()
        self.keep(listing)
        return seen

    def record(self, path: Path) -> str:
        """The name of the record of a folder."""
        return f"{FILES} {os.path.relpath(path, self.root / 'v1')}"


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
    assert index.listing("/a b", FILES) == []
    case.rows = {f"{FILES} {folder}": text for folder, text in index.listing("/a", FILES)}
    last = max(case.rows).partition(" ")[2]
    assert index.listing("/a", FILES, last) == index.listing("/a", "ranges") == []
    assert [folder for folder, _ in index.listing("/a", FILES, "configs")] == [
        name.partition(" ")[2] for name in sorted(case.rows) if name > f"{FILES} configs"
    ]
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
    kept = case.rows.get(case.record(path.parent))
    assert kept is None or float(kept.split(" ")[1]) != path.parent.stat().st_mtime


def test_a_folder_that_changed_a_moment_ago_is_not_remembered(case: Case) -> None:
    filled.graph(case.cache, "16", model="one")
    case.look()
    changed = {case.record(path) for path in case.folders() if path.stat().st_mtime > case.now - DAY}
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
    assert case.record(first) not in case.rows


def sealed(rest: str) -> str:
    return f"{xxhash.xxh3_64_hexdigest(rest.encode())} {rest}"


BODY = {
    "files": [], "sizes": [], "mtimes": [], "displays": [], "entries": [], "entry sizes": [], "entry mtimes": [],
    "kinds": [], "digests": [], "blob sizes": [], "programs": [], "seconds": [], "display": [],
}  # fmt: skip
ENTRY = {
    "displays": [{}], "entries": ["a" * 32], "entry sizes": [1], "entry mtimes": [1.0], "kinds": ["graph"],
    "digests": [["b" * 64]], "blob sizes": [[1]], "programs": [[]], "seconds": [1.0], "display": [0],
}  # fmt: skip
FILE = {"files": ["config.json"], "sizes": [1], "mtimes": [1.0]}


def body(*changes: dict[str, object]) -> str:
    return json.dumps(functools.reduce(operator.or_, changes, BODY))


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "{}", "[" * 100_000, '{"mtime": 1}',
        body(FILE, {"files": ["../../etc/passwd"]}), body(FILE, {"files": ["other"]}),
        body(FILE, {"mtimes": [float("inf")]}), body(FILE, {"mtimes": [1]}), body(FILE, {"mtimes": ["1"]}),
        body(FILE, {"sizes": ["1"]}), body(FILE, {"sizes": [True]}), body(FILE, {"sizes": []}),
        body(ENTRY, {"entries": [".."]}), body(ENTRY, {"entries": ["a" * 32 + "," + "a" * 32]}),
        body(ENTRY, {"entries": []}), body(ENTRY, {"kinds": ["other"]}), body(ENTRY, {"kinds": [[]]}),
        body(ENTRY, {"digests": [["b"]]}), body(ENTRY, {"digests": [[1]]}), body(ENTRY, {"digests": ["b" * 64]}),
        body(ENTRY, {"digests": []}), body(ENTRY, {"blob sizes": [["1"]]}), body(ENTRY, {"programs": [["../x"]]}),
        body(ENTRY, {"seconds": [float("nan")]}), body(ENTRY, {"display": [1]}), body(ENTRY, {"displays": [[]]}),
        body(ENTRY, {"displays": []}), body(ENTRY, {"display": []}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("heading", ["MTIME NOW 1 1", "MTIME NOW"])
def test_a_record_that_is_not_ours_is_looked_at_again(case: Case, heading: str, text: str) -> None:
    case.look()
    for path in case.folders():
        row = f"{heading}\n{text}".replace("MTIME", repr(path.stat().st_mtime)).replace("NOW", repr(case.now))
        case.rows[case.record(path)] = sealed(row)
    assert plain(case.look()) == plain(contents(case.store))
    assert plain(case.look()) == plain(contents(case.store))


def test_the_bodies_of_that_test_are_ours_but_for_what_it_changes() -> None:
    for more in ({}, FILE, ENTRY, FILE | ENTRY):
        assert listing._parsed("configs/cc/" + "c" * 32, json.loads(body(more))).count == sum(
            len(names) for names in (more.get("files", []), more.get("entries", []))
        )


@pytest.mark.parametrize("heading", ["MTIME", "MTIME x", "x NOW", "", "MTIME inf", "MTIME nan"])
def test_nor_one_with_another_heading(case: Case, heading: str) -> None:
    case.look()
    for path in case.folders():
        row = f"{heading}\n{body(FILE)}".replace("MTIME", repr(path.stat().st_mtime)).replace("NOW", repr(case.now))
        case.rows[case.record(path)] = sealed(row)
    assert plain(case.look()) == plain(contents(case.store))


def test_a_flipped_bit_makes_no_blob_nobodys(case: Case) -> None:
    case.look()
    for name, text in case.rows.items():
        for digest in re.findall(r"[0-9a-f]{64}", text):
            text = text.replace(digest, digest[:-1] + ("0" if digest[-1] != "0" else "1"))
        case.rows[name] = text
    assert plain(case.look()) == plain(contents(case.store))
    assert not prune.plan(case.store, remembered=case.listing(), grace=0.0).blobs


def test_folders_may_be_asked_for_in_any_order(case: Case) -> None:
    case.look()
    known = case.listing()
    folders = [folder for folder in case.store.folders("") or () if isinstance(folder, Folder)]
    for order in (sorted(folders), sorted(folders, reverse=True), folders):
        assert all(known.recall(folder) for folder in order)
        assert not known.recall(Folder("configs/zz", 1.0))
    known.finish()
    assert not known.changes


def shown_as(row: ConfigurationRow) -> str:
    return f"{row.key} {row.named['model']} {row.measure.bytes} {row.measure.hits}"


def show(case: Case, usages: dict[str, Usage], *, totals: bool = True) -> Showing:
    known = case.listing()
    made = showing(case.store, usages, shown_as, way="ranges", listing=known, totals=totals)
    known.finish("" if totals else "configs", "ranges")
    case.keep(known)
    return made


def test_a_text_is_made_once_and_shows_what_rows_show(case: Case) -> None:
    for totals in (False, True, True):
        case.store.reads = case.store.scans = 0
        made = show(case, {}, totals=totals)
        stored = inventory(case.store)
        assert [text.text for _, text in made.configurations] == [shown_as(row) for row in stored.configurations]
        assert (made.programs, made.skipped) == (stored.programs, [])
        assert (made.bytes, made.files) == ((stored.bytes, stored.files) if totals else (0, 0))
    case.store.reads = case.store.scans = 0
    assert show(case, {}).programs == 12
    assert (case.store.reads, case.store.scans) == (0, 0)


def test_what_the_index_knows_of_a_program_is_shown_at_once_and_not_remembered(case: Case) -> None:
    show(case, {})
    key = _keys(case)[1]
    for hits in (1, 2):
        made = show(case, {key: Usage(hits, 1.0, case.now + hits)})
        (used,) = [text for _, text in made.configurations if key in text.keys]
        assert used.text.endswith(f" {hits}")
        assert made.configurations[0][1] == used
        assert used.last_use == case.now + hits
    assert all(text.text.endswith(" 0") for _, text in show(case, {}).configurations)


def test_a_changed_configuration_is_shown_as_it_is(case: Case) -> None:
    before = show(case, {})
    filled.graph(case.cache, "16", model="one")
    after = show(case, {})
    assert (before.programs, after.programs) == (12, 13)
    assert after.bytes > before.bytes
    shutil.rmtree(case.root / "v1/configs")
    assert show(case, {}).configurations == []
    case.now += 2 * DAY
    show(case, {})
    assert not [name for name in case.rows if name.startswith("ranges")]


@pytest.mark.parametrize("rest", ["", "x", "MTIME NOW", "MTIME NOW inf key\ntext", "MTIME NOW 1.0 a b\ntext"])
def test_a_text_that_is_not_ours_is_made_again(case: Case, rest: str) -> None:
    before = show(case, {})
    for path in (case.root / "v1").glob("configs/*/*"):
        row = rest.replace("MTIME", repr(path.stat().st_mtime)).replace("NOW", repr(case.now))
        name = "ranges" + case.record(path).removeprefix(FILES)
        assert name in case.rows
        case.rows[name] = sealed(row)
    assert show(case, {}) == before


def test_a_store_without_folders_is_shown(tmp_path: Path) -> None:
    store = MemoryStore()
    filled.piecewise(filled.cache_at(tmp_path / "store", store))
    made = showing(store, {}, shown_as, way="ranges", listing=Listing())
    stored = inventory(store)
    assert (made.programs, made.bytes, made.files) == (6, stored.bytes, stored.files)


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
            kept.append(len(index.listing(case.store.label, FILES)))
    else:
        raise AssertionError(kept)
    assert len(kept) > 1
    assert kept == sorted(kept)
    assert swept is not None
    assert swept.files_before == swept.files_after == contents(case.store).count
