"""The rows of a store."""

from __future__ import annotations

from pathlib import Path

import filled
import pytest

from compcache.cache import Draft, Part
from compcache.contents import contents
from compcache.factors import Factors
from compcache.inventory import inventory
from compcache.records import Usage
from compcache.store.memory import MemoryStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    filled.piecewise(filled.cache_at(root))
    return root


def test_one_row_for_each_range_in_order(root: Path) -> None:
    cache = filled.cache_at(root)
    for size in ("16", "512", "64"):
        filled.graph(cache, size)
    (row,) = inventory(cache.store).configurations
    names = [group.range for group in row.ranges]
    assert names == [filled.SYMBOLIC, "1", "2", "4", "8", "16", "64", "512", "start-up"]
    assert [group.size for group in row.ranges] == [None, 1, 2, 4, 8, 16, 64, 512, None]
    assert [group.symbolic for group in row.ranges] == [True] + [False] * 8
    assert row.named == filled.DISPLAY


def test_bytes_and_files_count_each_blob_once(root: Path) -> None:
    cache = filled.cache_at(root)
    (row,) = inventory(cache.store).configurations
    config = next((root / "v1" / "configs").rglob("config.json")).stat().st_size
    on_disk = [p.stat().st_size for p in (root / "v1").rglob("*") if p.is_file()]
    assert row.measure.bytes == sum(on_disk) - config
    assert row.measure.files == len(on_disk) - 1
    assert inventory(cache.store).bytes == sum(on_disk)
    for group in row.ranges[:-1]:
        assert group.measure.files == 3  # its entry, its artifact, the kernel that all share
        assert group.measure.compile_seconds == 10.5
    assert row.measure.compile_seconds == 5 * 10.5 + 2.0


def test_last_use_is_the_later_of_mtime_and_index(root: Path) -> None:
    cache = filled.cache_at(root)
    entry = filled.graph(cache, "8")
    mtime = filled.path_of(root, entry).stat().st_mtime
    for used, expected in ((mtime - 100, mtime), (mtime + 100, mtime + 100)):
        (row,) = inventory(cache.store, {entry.program_key: Usage(3, 1.0, used)}).configurations
        (found,) = [group.measure for group in row.ranges if group.range == "8"]
        assert found.last_use == expected
        assert found.hits == 3


def test_the_configuration_used_last_comes_first(root: Path) -> None:
    filled.make_old(root, 100.0)
    cache = filled.cache_at(root)
    filled.graph(cache, "8", model="Qwen3 2x64")
    assert [c.named["model"] for c in inventory(cache.store).configurations] == ["Qwen3 2x64", "LlamaForCausalLM 4x256"]


def test_an_entry_without_display_is_listed(tmp_path: Path) -> None:
    cache = filled.cache_at(tmp_path / "store", MemoryStore())
    cache.publish(Draft("executable", Factors({"dtype": "float32"}, {"n": 1}), (Part("artifact", b"x"),)))
    (row,) = inventory(cache.store).configurations
    assert row.named == {}
    assert [group.range for group in row.ranges] == ["-"]


def test_every_file_is_sorted_and_bad_ones_are_skipped(root: Path) -> None:
    cache = filled.cache_at(root)
    good, other = filled.graph(cache, "8"), filled.graph(cache, "4")
    filled.path_of(root, good).write_bytes(b"{}")
    filled.path_of(root, other).chmod(0o666)
    filled.path_of(root, other).with_name("e" * 32 + ".json").symlink_to("/etc/passwd")
    for name in ("pins/" + "a" * 32, "tmp/abc", "leases/x.json", "quarantine/x", "trash/y", "blobs/zz", "pins/x"):
        (root / "v1" / name).write_bytes(b"12345")
    found = contents(cache.store)
    skipped = {s.name.rsplit("/", 1)[-1]: s.kind for s in found.skipped}
    assert skipped == {
        good.program_key + ".json": "damaged",
        other.program_key + ".json": "unread",
        "e" * 32 + ".json": "damaged",
        "zz": "unknown",
        "x": "unknown",
    }
    assert list(found.pins) == ["a" * 32]
    assert {place: len(files) for place, files in found.leftovers.items()} == dict.fromkeys(found.leftovers, 1)
    assert len(found.entries) == 4
    on_disk = [p for p in (root / "v1").rglob("*") if p.is_symlink() or p.is_file()]
    assert sum(1 for _ in found.found()) == len(on_disk)


def test_an_entry_in_the_folder_of_another_configuration_is_skipped(root: Path) -> None:
    cache = filled.cache_at(root)
    entry = filled.graph(cache, "8")
    path = filled.path_of(root, entry)
    moved = root / "v1" / "configs" / "00" / ("0" * 32) / path.name
    moved.parent.mkdir(parents=True)
    moved.write_bytes(path.read_bytes())
    moved.chmod(0o600)
    (skipped,) = contents(cache.store).skipped
    assert skipped.kind == "damaged"
    assert "another configuration" in skipped.reason
