"""A store of format 1, frozen: every later version reads it. Its sources digest of compcache.errors is of that day."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import filled
import pytest

from compcache import prune
from compcache.cache import Cache
from compcache.entry import Entry
from compcache.errors import UnknownFormat
from compcache.inventory import inventory
from compcache.store import layout
from compcache.store.directory import DirectoryStore
from compcache.store.memory import MemoryStore
from compcache.store.protocol import Store
from compcache.verify import verify

FROZEN = Path(__file__).parents[1] / "data" / "store-of-format-1"
EXPECTED: dict[str, Any] = json.loads(FROZEN.with_suffix(".json").read_text())


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        memory = MemoryStore()
        for path in (FROZEN / "v1").rglob("*"):
            if path.is_file():
                memory.create(str(path.relative_to(FROZEN / "v1")), path.read_bytes())
        return memory
    root = tmp_path / "store"
    shutil.copytree(FROZEN, root)
    for folder, _, names in os.walk(root):
        os.chmod(folder, 0o700)
        for name in names:
            os.chmod(os.path.join(folder, name), 0o600)
    return DirectoryStore(root)


@pytest.fixture
def cache(store: Store, tmp_path: Path) -> Cache:
    return filled.cache_at(tmp_path / "store", store)


def entries(cache: Cache) -> list[Entry]:
    names = [layout.parse_entry_name(found.name) for found in cache.store.scan("configs")]
    return [cache.entry_of(name.configuration_key, name.program_key) for name in names if name]


def test_every_program_is_found_by_its_factors_and_its_bytes_are_those_of_that_day(cache: Cache) -> None:
    found = {
        entry.program_key: [hashlib.sha256(cache.blob(ref)).hexdigest() for ref in entry.blobs]
        for entry in entries(cache)
    }
    assert found == EXPECTED["programs"]
    assert all(cache.find(entry.factors) == entry for entry in entries(cache))


def test_start_ups_are_put_together(cache: Cache) -> None:
    made = {}
    for entry in entries(cache):
        if entry.assembly is not None:
            programs = {
                ref.program_key: cache.blob(
                    cache.entry_of(entry.configuration_key, ref.program_key).blobs_with("artifact")[0]
                )
                for ref in entry.programs
            }
            made[entry.program_key] = hashlib.sha256(cache.assemble(entry, programs)).hexdigest()
    assert made == EXPECTED["start_ups"]


def test_it_is_sound_and_listed_and_nothing_rewrites_it(store: Store, cache: Cache) -> None:
    before = {found.name: store.read(found.name, 1 << 20) for found in store.scan("")}
    assert not verify(store).damage
    listed = inventory(store)
    assert listed.programs == len(EXPECTED["programs"])
    assert listed.bytes == EXPECTED["bytes"]
    for entry in entries(cache):
        assert Entry.to_bytes(entry) == before[layout.entry(entry.configuration_key, entry.program_key)]
    assert {found.name: store.read(found.name, 1 << 20) for found in store.scan("")} == before


def test_modules_and_pins_are_understood(store: Store) -> None:
    name = layout.modules(EXPECTED["configuration_key"], EXPECTED["startup_key"])
    assert json.loads(store.read(name, 1 << 20)) == ["compcache.errors"]
    plan = prune.plan(store, max_size=0, grace=0.0)
    kept = set(EXPECTED["programs"]) - {removal.entry.program_key for removal in plan.entries if removal.entry}
    assert len(kept) == 6, "the pinned start-up and its five graphs"


def test_a_store_of_format_2_is_refused_by_name_and_left_untouched(tmp_path: Path) -> None:
    root = tmp_path / "store"
    (root / "v2").mkdir(parents=True)
    (root / "v2/entries").write_bytes(b"what format 2 may be")
    root.chmod(0o700)
    before = filled.snapshot(root)
    cache = filled.cache_at(root)
    assert cache.guarded("nothing is stored", lambda: filled.graph(cache, "8"), None) is None
    with pytest.raises(UnknownFormat, match="format v2"):
        DirectoryStore(root).check()
    assert filled.snapshot(root) == before


def test_formats_live_side_by_side(store: Store, tmp_path: Path) -> None:
    if isinstance(store, DirectoryStore):
        newer = store.root / "v2/entries"
        newer.parent.mkdir()
        newer.write_bytes(b"of a newer version")
        assert not verify(store).damage
        prune.execute(store, prune.plan(store, max_size=0, grace=0.0))
        assert newer.read_bytes() == b"of a newer version"
