"""verify --repair mends what can be mended, says the rest, and loses nothing that a start could use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import filled
import pytest

from compcache.adapters.startup import StartUp, find, publish_startup
from compcache.cache import Cache
from compcache.entry import Entry
from compcache.factors import Factors
from compcache.repair import left, repair
from compcache.store import layout
from compcache.store.directory import DirectoryStore
from compcache.verify import verify

FACTORS = Factors({"model.name": "LlamaForCausalLM 4x256", "torch.version": "2.13.0"}, {"part": "backbone"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def cache(root: Path) -> Cache:
    return filled.cache_at(root)


def repaired(root: Path) -> list[tuple[str, str]]:
    store = DirectoryStore(root)
    done = repair(store, verify(store))
    return [(r.finding.kind, r.done or "left") for r in done]


def startup_with_modules(cache: Cache) -> Path:
    startup = StartUp(FACTORS, filled.DISPLAY)
    publish_startup(cache, startup, b"a start-up " * 100, ["compcache.errors", "compcache.factors"])
    return Path(cache.store.label) / "v1" / layout.modules(FACTORS.configuration_key, FACTORS.program_key)


def test_a_damaged_entry_is_set_aside(root: Path, cache: Cache) -> None:
    graphs, _ = filled.piecewise(cache)
    filled.path_of(root, graphs[0]).write_bytes(b"{")
    # The start-up that needs it goes with it: it could not be put together.
    assert repaired(root) == [("damaged", "set aside"), ("missing program", "set aside")]
    assert not verify(DirectoryStore(root)).damage
    assert cache.find(graphs[1].factors) is not None


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b""), lambda path: path.unlink()])
def test_entries_of_a_bad_blob_are_set_aside(root: Path, cache: Cache, spoil: Callable[[Path], None]) -> None:
    graphs, start_up = filled.piecewise(cache)
    other = filled.graph(cache, "8", model="another")
    spoil(filled.blob_path(root, graphs[0].blobs_with("artifact")[0].digest))
    repaired(root)
    assert not verify(DirectoryStore(root)).damage
    assert cache.find(graphs[0].factors) is None
    assert cache.find(start_up.factors) is None
    assert all(cache.find(entry.factors) is not None for entry in (*graphs[1:], other))


def test_shared_factors_are_written_again(root: Path, cache: Cache) -> None:
    entry = filled.graph(cache, "8")
    path = root / "v1" / layout.shared_factors(entry.configuration_key)
    good = path.read_bytes()
    path.write_bytes(b"{}")
    assert repaired(root) == [("damaged", "written again")]
    assert path.read_bytes() == good


def test_modules_are_written_again_and_found_by(root: Path, cache: Cache) -> None:
    path = startup_with_modules(cache)
    good = path.read_bytes()
    path.write_bytes(b"[")
    assert find(cache, FACTORS) is None
    assert repaired(root) == [("damaged", "written again")]
    assert json.loads(path.read_bytes()) == json.loads(good)
    assert find(cache, FACTORS) is not None


def test_what_is_not_ours_to_remove_is_said(root: Path, cache: Cache) -> None:
    filled.graph(cache, "8")
    strange = root / "v1/configs/what.txt"
    strange.write_text("?")
    store = DirectoryStore(root)
    done = repair(store, verify(store))
    assert [r.left for r in left(done)] == ["not for compcache to remove: look at it"]
    assert strange.exists()


def test_a_sound_store_is_left_alone(root: Path, cache: Cache) -> None:
    filled.piecewise(cache)
    before = filled.snapshot(root)
    assert repaired(root) == []
    assert filled.snapshot(root) == before


def test_a_read_only_store_is_said(root: Path, cache: Cache) -> None:
    entry: Entry = filled.graph(cache, "8")
    filled.path_of(root, entry).write_bytes(b"{")
    store = DirectoryStore(root, read_only=True)
    done = repair(store, verify(store))
    assert left(done) == done
    assert len(done) == 1
