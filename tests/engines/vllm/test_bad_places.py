"""Whatever is wrong with the store, the engine starts, and says what is wrong once: promise 2, on a real vLLM."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from compcache_cli.demo import starts
from compcache_cli.demo.starts import Machine

pytestmark = pytest.mark.vllm


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_newer_store_a_broken_file_and_an_unknown_variable(place: Path, small_model: Path) -> None:
    root = place / "newer"
    store = root / "store"
    (store / "v2" / "configs").mkdir(parents=True)
    (store / "v2" / "format.json").write_text("{}")
    settings = root / "compcache.toml"
    settings.write_text("mode = [not toml")
    before = snapshot(store)
    machine = Machine(root / "machine")
    environment = {"COMPCACHE_CONFIG": str(settings), "COMPCACHE_DIRR": "/nowhere"}
    start = starts.start(machine, "trace_once", small_model, store=store, environment=environment)
    assert all(start.tokens)
    assert snapshot(store) == before
    for words in ("store of format v2", "compcache.toml is not used", "unknown variable COMPCACHE_DIRR"):
        assert len([line for line in start.lines if words in line]) == 1, (words, start.lines)
    assert "0 programs loaded" in start.line


def test_a_store_that_cannot_be_written(place: Path, small_model: Path) -> None:
    start = starts.start(Machine(place / "unwritable"), "trace_once", small_model, store=Path("/proc/compcache/store"))
    assert all(start.tokens)
    assert [line for line in start.lines if "cannot write" in line or "No such file" in line], start.lines
    assert not [line for line in start.lines if "Traceback" in line]


def test_a_mode_that_is_none_switches_it_off_with_a_line(place: Path, small_model: Path) -> None:
    start = starts.start(
        Machine(place / "mode"),
        "eager",
        small_model,
        store=place / "mode-store",
        environment={"COMPCACHE_MODE": "readwrite"},
    )
    assert all(start.tokens)
    assert [line for line in start.lines if "COMPCACHE_MODE is 'readwrite'" in line]
    assert not (place / "mode-store").exists()


def test_damage_is_a_miss_and_heals(place: Path, small_model: Path, small_start: tuple[Path, starts.Start]) -> None:
    filled_store, first = small_start
    store = shutil.copytree(filled_store, place / "damage-store")
    blob = max(store.glob("v1/blobs/*/*"), key=lambda path: path.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    second = starts.start(Machine(place / "damage-b"), "trace_once", small_model, store=store)
    assert second.tokens == first.tokens
    assert second.compiled == first.compiled
    assert [line for line in second.lines if "quarantined" in line], second.lines
    assert list(store.glob("v1/quarantine/*.reason"))
    third = starts.start(Machine(place / "damage-c"), "trace_once", small_model, store=store)
    assert (third.loaded, third.compiled, third.tokens) == (first.compiled, 0, first.tokens)
