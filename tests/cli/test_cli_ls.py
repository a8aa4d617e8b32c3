"""``compcache ls`` and ``compcache stats``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import filled
import pytest
from typer.testing import Result

from compcache.index import Index
from compcache.records import Use

Run = Callable[..., Result]


def rows(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    parsed = json.loads(result.stdout)
    assert isinstance(parsed, list)
    return parsed


def test_ls_json_lists_the_symbolic_range_and_every_batch_size(root: Path, run: Run) -> None:
    found = {row["range"]: row for row in rows(run("ls", "--json"))}
    assert list(found) == [filled.SYMBOLIC, "1", "2", "4", "8", "start-up"]
    for name in (filled.SYMBOLIC, "1", "2", "4", "8"):
        row = found[name]
        assert row["model"] == "LlamaForCausalLM 4x256"
        assert row["dtype"] == "bfloat16"
        assert isinstance(row["bytes"], int)
        assert row["bytes"] > 100
        assert row["compile_seconds"] == 10.5
        assert str(row["last_use"]).endswith("Z")
    assert found[filled.SYMBOLIC]["symbolic"] is True
    assert [found[str(size)]["size"] for size in filled.SIZES] == list(filled.SIZES)


def test_ls_shows_one_row_for_each_range_under_its_configuration(root: Path, run: Run) -> None:
    filled.piecewise(filled.cache_at(root), model="Qwen3 2x64")
    result = run("ls")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    titles = [i for i, line in enumerate(lines) if "[" in line]
    assert len(titles) == 2
    first = [line.split()[0] for line in lines[titles[0] + 2 : titles[1]] if line.strip()]
    assert first == ["symbolic", "1", "2", "4", "8", "start-up", "all"]
    assert "2 configurations, 12 programs" in lines[-1]


def test_programs_has_one_row_for_each_program(root: Path, run: Run) -> None:
    keys = [row["key"] for row in rows(run("ls", "--programs", "--json"))]
    assert len(set(keys)) == len(keys) == 6
    text = run("ls", "--programs").stdout
    assert all(str(key)[:12] in text for key in keys)
    assert "submod_0" in text


def test_bytes_count_a_shared_blob_once_over_the_configuration(root: Path, run: Run) -> None:
    on_disk = sum(p.stat().st_size for p in (root / "v1").rglob("*") if p.is_file())
    assert json.loads(run("stats", "--json").stdout)["bytes"] == on_disk
    assert sum(int(str(row["bytes"])) for row in rows(run("ls", "--json"))) > on_disk  # each row counts the kernel


def test_last_use_and_hits_come_from_the_index_if_it_is_newer(root: Path, run: Run, tmp_path: Path) -> None:
    filled.make_old(root, 86400.0 * 400)
    key = str(rows(run("ls", "--programs", "--json"))[0]["key"])
    before = rows(run("ls", "--json"))[0]
    Index(tmp_path / "store.state" / "index").record([Use(key, str(root), 4.0, 1_800_000_000.0)])
    after = rows(run("ls", "--json"))[0]
    assert before["hits"] == 0
    assert after["hits"] == 1
    assert str(before["last_use"]) < str(after["last_use"]) == "2027-01-15T08:00:00Z"


def test_a_broken_index_costs_statistics_only(root: Path, run: Run, tmp_path: Path) -> None:
    index = tmp_path / "store.state" / "index"
    index.mkdir(parents=True, mode=0o700)
    os.symlink("/etc/passwd", index / "cache.db")
    result = run("ls", "--json")
    assert len(rows(result)) == 6
    assert "no statistics" in result.stderr


def test_stats(root: Path, run: Run, tmp_path: Path) -> None:
    Index(tmp_path / "store.state" / "index").record([Use("a" * 32, "/other", 4.5, 1000.0)])
    found = json.loads(run("stats", "--json").stdout)
    assert found["programs"] == 6
    assert found["kinds"] == {"graph": 5, "start-up": 1}
    assert found["host"] == {"hits": 1, "seconds_saved": 4.5, "last_use": "1970-01-01T00:16:40Z"}
    assert found["hits"] == 0
    text = run("stats").stdout
    assert "6 (5 graph, 1 start-up)" in text
    assert "4.50 s" in text


@pytest.mark.parametrize("verb", ["ls", "stats"])
def test_damaged_and_unknown_files_are_counted_and_skipped(root: Path, run: Run, verb: str) -> None:
    entries = sorted((root / "v1" / "configs").rglob("*.json"))
    entry = next(path for path in entries if path.name != "config.json")
    entry.write_bytes(entry.read_bytes()[:-1])
    (root / "v1" / "configs" / "zz").mkdir()
    (root / "v1" / "configs" / "zz" / "\udcff\x1b[31m.txt").write_bytes(b"?")
    os.mkfifo(entry.with_name("f" * 32 + ".json"))
    result = run(verb)
    assert result.exit_code == 0
    if verb == "ls":
        assert "5 programs" in result.stdout
        assert "3 files skipped" in result.stderr
    else:
        assert json.loads(run("stats", "--json").stdout)["skipped_files"] == 3


def test_control_characters_and_markup_in_stored_text_are_inert(root: Path, run: Run) -> None:
    filled.graph(filled.cache_at(root), "16", model="[bold]\x1b]0;title\x07\nLlama[/bold]")
    text = run("ls").stdout
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]" in text
