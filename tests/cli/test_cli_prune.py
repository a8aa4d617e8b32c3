"""``compcache prune`` and ``compcache verify``, as typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import filled
import pytest
from typer.testing import Result

from compcache.index import Index
from compcache.records import Use

Run = Callable[..., Result]
HOUR = 3600.0


def test_without_limits_it_says_what_it_needs(root: Path, run: Run) -> None:
    before = filled.snapshot(root)
    result = run("prune", "--yes")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "--max-size" in result.stderr
    assert filled.snapshot(root) == before


@pytest.mark.parametrize(
    "option",
    [
        *(("--max-size", text) for text in ("", "GB", "-1GB", "1XB", "1 000", "1e9", "nan", "\u0661GB", "9" * 40)),
        *(("--max-age", text) for text in ("", "30", "-1d", "1y", "d", "1.2.3d", "inf")),
    ],
)
def test_a_bad_size_or_age_is_refused(root: Path, run: Run, option: tuple[str, str]) -> None:
    before = filled.snapshot(root)
    result = run("prune", f"{option[0]}={option[1]}", "--yes")
    assert result.exit_code == 2
    assert option[0] in result.stderr
    assert "write it like" in result.stderr
    assert filled.snapshot(root) == before


def test_dry_run_prints_the_plan_and_does_nothing(root: Path, run: Run) -> None:
    filled.make_old(root, 2 * HOUR)
    before = filled.snapshot(root)
    text = run("prune", "--max-size", "0", "--dry-run")
    assert text.exit_code == 0
    assert "start-up" in text.stdout
    assert "least recently used" in text.stdout
    document = json.loads(run("prune", "--max-size", "0", "--dry-run", "--json").stdout)
    assert document["bytes_after"] == 0
    assert document["executed"] is False
    assert len(document["plan"]) == len(before) - 1  # all but CACHEDIR.TAG
    assert filled.snapshot(root) == before


def test_it_asks_and_no_means_no(root: Path, run: Run) -> None:
    filled.make_old(root, 2 * HOUR)
    before = filled.snapshot(root)
    for typed in ("n\n", ""):
        assert run("prune", "--max-size", "0", typed=typed).exit_code == 1
        assert filled.snapshot(root) == before
    assert run("prune", "--max-size", "0", typed="y\n").exit_code == 0
    assert list(filled.snapshot(root)) == ["CACHEDIR.TAG"]


def test_by_age_with_json(root: Path, run: Run, tmp_path: Path) -> None:
    cache = filled.cache_at(root)
    old = filled.graph(cache, "8").program_key
    filled.make_old(root, 48 * HOUR)
    graphs, _ = filled.piecewise(cache, model="Qwen3 2x64")
    index = Index(tmp_path / "store.state" / "index")
    index.record([Use(old, str(root), 1.0, 5.0), Use(graphs[0].program_key, str(root), 1.0, 5.0)])
    result = run("prune", "--max-age", "1d", "--yes", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert {row["why"] for row in document["plan"] if row["program_key"]} == {"age"}
    assert document["spared"] == []
    left = json.loads(run("ls", "--json").stdout)
    assert {row["model"] for row in left} == {"Qwen3 2x64"}
    assert len(left) == 6
    assert set(index.usages(str(root))) == {graphs[0].program_key}
    assert json.loads(run("verify", "--json").stdout)["ok"]


def test_nothing_to_remove(root: Path, run: Run) -> None:
    result = run("prune", "--max-size", "1TB")
    assert result.exit_code == 0
    assert "nothing to remove" in result.stdout


def test_verify_is_content_with_a_good_store(root: Path, run: Run) -> None:
    before = filled.snapshot(root)
    result = run("verify")
    assert result.exit_code == 0
    assert "6 programs and 7 blobs checked" in result.stdout
    assert "no damage" in result.stdout
    assert filled.snapshot(root) == before


def test_verify_names_what_is_damaged(root: Path, run: Run) -> None:
    blob = next(path for path in (root / "v1" / "blobs").rglob("*") if path.is_file())
    blob.write_bytes(b"x" + blob.read_bytes()[1:])
    before = filled.snapshot(root)
    result = run("verify")
    assert result.exit_code == 1
    assert blob.name in result.stdout
    document = json.loads(run("verify", "--json").stdout)
    assert document["ok"] is False
    assert [finding["kind"] for finding in document["findings"]] == ["damaged"]
    assert filled.snapshot(root) == before
