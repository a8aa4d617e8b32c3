"""``compcache pin`` and ``unpin``, and ``verify --repair``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import filled
from typer.testing import Result

Run = Callable[..., Result]


def test_a_pinned_start_up_keeps_its_graphs(root: Path, run: Run) -> None:
    graphs, start_up = filled.piecewise(filled.cache_at(root))
    other = filled.graph(filled.cache_at(root), "8", model="another")
    assert "pinned 1 program, 0 programs before" in run("pin", start_up.program_key).stdout
    assert "pinned 0 programs, 1 program before" in run("pin", start_up.program_key).stdout
    assert run("prune", "--max-size", "0", "--yes").exit_code == 0
    assert all(filled.path_of(root, entry).exists() for entry in (*graphs, start_up))
    assert not filled.path_of(root, other).exists()
    assert "unpinned 1 program" in run("unpin", start_up.program_key).stdout
    assert "unpinned 0 programs" in run("unpin", start_up.program_key).stdout
    assert run("prune", "--max-size", "0", "--yes").exit_code == 0
    assert not filled.path_of(root, start_up).exists()


def test_a_configuration_is_pinned_whole(root: Path, run: Run) -> None:
    graphs, _ = filled.piecewise(filled.cache_at(root))
    assert "pinned 6 programs" in run("pin", graphs[0].configuration_key).stdout
    assert len(list((root / "v1/pins").iterdir())) == 6


def test_what_is_not_there_cannot_be_pinned(root: Path, run: Run) -> None:
    result = run("pin", "ffff")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1


def test_repair_mends_and_says_so(root: Path, run: Run) -> None:
    entry = filled.graph(filled.cache_at(root), "8", model="another")
    filled.path_of(root, entry).write_bytes(b"{")
    assert run("verify").exit_code == 1
    result = run("verify", "--repair")
    assert result.exit_code == 0
    assert "set aside" in result.stdout
    assert run("verify").exit_code == 0


def test_repair_says_what_stays(root: Path, run: Run) -> None:
    (root / "v1/configs/strange").write_text("?")
    result = run("verify", "--repair", "--json")
    assert result.exit_code == 1
    assert [r["done"] for r in json.loads(result.stdout)["repairs"]] == [""]
