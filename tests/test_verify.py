"""Verify finds every kind of damage, and changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import filled
import pytest

from compcache.cache import Draft, Part
from compcache.entry import Entry
from compcache.errors import Damaged
from compcache.store import layout
from compcache.verify import Report, verify


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    filled.piecewise(filled.cache_at(root))
    return root


def report(root: Path) -> Report:
    before = filled.snapshot(root)
    result = verify(filled.cache_at(root).store)
    assert filled.snapshot(root) == before
    return result


def kinds(root: Path) -> list[tuple[str, str]]:
    return [(finding.kind, Path(finding.name).name) for finding in report(root).findings]


def graph(root: Path) -> Entry:
    return filled.graph(filled.cache_at(root), "8")


def start_up(root: Path) -> Entry:
    return filled.piecewise(filled.cache_at(root))[1]


def test_a_good_store_has_no_findings(root: Path) -> None:
    found = report(root)
    assert (found.entries, found.blobs, found.findings) == (6, 7, ())


Damage = Callable[[bytes], bytes]
CUT: dict[str, Damage] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "last byte": lambda data: data[:-1],
    "one bit": lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
    "longer": lambda data: data + b"!",
}


@pytest.mark.parametrize("damage", CUT)
def test_a_damaged_blob(root: Path, damage: str) -> None:
    for ref in graph(root).blobs:
        path = filled.blob_path(root, ref.digest)
        data = path.read_bytes()
        path.write_bytes(CUT[damage](data))
        assert kinds(root) == [("damaged", ref.digest)]
        path.write_bytes(data)
    assert kinds(root) == []


def test_a_damaged_blob_that_no_entry_refers_to(root: Path) -> None:
    digest = "ab" * 32
    filled.cache_at(root).store.create(layout.blob(digest), b"not those bytes")
    assert kinds(root) == [("damaged", digest)]


@pytest.mark.parametrize("lie", ["size", "raw_size"])
def test_an_entry_that_is_wrong_about_a_sound_blob(root: Path, lie: str) -> None:
    store = filled.cache_at(root).store
    entry = graph(root)
    kernel = entry.blobs_with("kernel")[0]
    assert kernel.encoding == "zstd"
    wrong = dataclasses.replace(kernel, **{lie: getattr(kernel, lie) + 1})
    other = dataclasses.replace(entry, factors=entry.factors.with_own({"more": 1}), blobs=(wrong,))
    store.create(layout.entry(other.configuration_key, other.program_key), other.to_bytes())
    assert kinds(root) == [("damaged", f"{other.program_key}.json")]
    cache = filled.cache_at(root)
    with pytest.raises(Damaged, match="wrong about a sound blob"):
        cache.blob(wrong)
    assert cache.blob(kernel), "what one entry says wrong took a blob from all others"
    assert not list((root / "v1/quarantine").iterdir())


@pytest.mark.parametrize("damage", CUT)
def test_a_damaged_entry(root: Path, damage: str) -> None:
    path = filled.path_of(root, start_up(root))
    path.write_bytes(CUT[damage](path.read_bytes()))
    assert ("damaged", path.name) in kinds(root)
    assert report(root).entries == 6


def test_a_whole_entry_with_another_factor(root: Path) -> None:
    path = filled.path_of(root, graph(root))
    path.write_bytes(path.read_bytes().replace(b'"g0"', b'"g1"'))
    assert ("damaged", path.name) in kinds(root)


def test_another_valid_entry_in_its_place(root: Path) -> None:
    path = filled.path_of(root, graph(root))
    path.write_bytes(filled.path_of(root, filled.graph(filled.cache_at(root), "4")).read_bytes())
    assert ("damaged", path.name) in kinds(root)


def test_a_missing_blob(root: Path) -> None:
    entry = graph(root)
    filled.blob_path(root, entry.blobs_with("artifact")[0].digest).unlink()
    assert kinds(root) == [("missing blob", entry.program_key + ".json")]


def test_a_missing_program(root: Path) -> None:
    entry, needs_it = graph(root), start_up(root)
    filled.path_of(root, entry).unlink()
    assert kinds(root) == [
        ("missing program", needs_it.program_key + ".json"),
        ("orphan blob", entry.blobs_with("artifact")[0].digest),
    ]
    (damage,) = report(root).damage
    assert damage.detail == entry.program_key


def test_what_a_kill_leaves_is_a_note(root: Path) -> None:
    entry = start_up(root)
    filled.path_of(root, entry).unlink()  # published its blobs, then was killed
    (root / "v1" / "tmp" / ("0" * 32)).write_bytes(b"partial")
    found = report(root)
    assert found.damage == ()
    assert [note.kind for note in found.notes] == ["orphan blob", "leftover"]


def test_unknown_files_symlinks_and_odd_modes(root: Path) -> None:
    entry = graph(root)
    (root / "v1" / "configs" / "readme.txt").write_bytes(b"?")
    digest = entry.blobs_with("kernel")[0].digest
    blob = filled.blob_path(root, digest)
    blob.chmod(0o666)
    artifact = filled.blob_path(root, entry.blobs_with("artifact")[0].digest)
    artifact.unlink()
    artifact.symlink_to(blob)
    assert sorted(kinds(root)) == sorted([("damaged", artifact.name), ("unread", digest), ("unknown", "readme.txt")])


def test_shared_factors_and_modules(root: Path) -> None:
    folder = filled.path_of(root, graph(root)).parent
    (folder / "config.json").write_bytes(b'{"model.name": "another"}')
    (folder / ("a" * 32 + ".modules.json")).write_bytes(b"[")
    (folder / ("b" * 32 + ".modules.json")).write_bytes(b"[]")
    assert kinds(root) == [("damaged", "a" * 32 + ".modules.json"), ("damaged", "config.json")]


def test_a_start_up_whose_pieces_are_sound_but_not_its_own(root: Path) -> None:
    """A program that was compiled again holds other bytes than those that the start-up was made of."""
    cache = filled.cache_at(root)
    entry, needs_it = graph(root), start_up(root)
    filled.path_of(root, entry).unlink()
    cache.publish(Draft("graph", entry.factors, (Part("artifact", b"compiled again"),), display=entry.display))
    found = report(root)
    assert [(f.kind, Path(f.name).stem) for f in found.damage] == [("damaged", needs_it.program_key)]
    assert "pieces" in found.damage[0].detail


def test_quarantined_files_are_notes_with_their_reason(root: Path) -> None:
    cache = filled.cache_at(root)
    cache.store.quarantine(f"blobs/{graph(root).blobs[0].digest[:2]}/{graph(root).blobs[0].digest}", "a flipped bit")
    (note,) = report(root).notes
    assert note.kind == "quarantined"
    assert "a flipped bit" in note.detail
