"""A store that another process makes at this moment is no store of a format that is unknown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compcache.errors import NotStored, UnknownFormat
from compcache.store.directory import DirectoryStore


def test_made_between_the_look_and_the_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    root.mkdir()
    listed = os.listdir

    def late(path: Path) -> list[str]:
        (root / "v1").mkdir()
        return listed(path)

    monkeypatch.setattr(os, "listdir", late)
    with pytest.raises(NotStored):
        DirectoryStore(root).read("configs/ab/x.json", 10)


@pytest.mark.parametrize("names", [["v2"], ["v2", "v10"], ["v0"]])
def test_only_other_formats(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(UnknownFormat):
        DirectoryStore(tmp_path).check()
    with pytest.raises(UnknownFormat):
        DirectoryStore(tmp_path).create("tmp/x", b"")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize("names", [[], ["vx"], ["v"], ["other"]])
def test_nothing_of_ours(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(NotStored):
        DirectoryStore(tmp_path).check()
