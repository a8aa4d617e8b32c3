"""``compcache show KEY``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import filled
from typer.testing import Result

Run = Callable[..., Result]


def test_show_a_program_by_a_unique_prefix(root: Path, run: Run) -> None:
    entry = filled.graph(filled.cache_at(root), "8")
    found = json.loads(run("show", entry.program_key[:14].upper(), "--json").stdout)
    assert found["program_key"] == entry.program_key
    assert found["factors"]["own"] == {"shape.range": "8", "graph": "g0"}
    assert found["factors"]["shared"] == {"model.name": "LlamaForCausalLM 4x256", "torch.version": "2.13.0"}
    assert [blob["role"] for blob in found["blobs"]] == ["artifact", "kernel"]
    assert found["compile_seconds"] == 10.5
    assert found["provenance"]["seconds"] == 10.5
    text = run("show", entry.program_key).stdout
    for word in (entry.program_key, entry.configuration_key, "shape.range", "k0.so", "10.5 s", "unsigned", "stored_at"):
        assert word in text


def test_show_a_start_up_names_its_programs(root: Path, run: Run) -> None:
    cache = filled.cache_at(root)
    graphs, start_up = filled.piecewise(cache)
    text = run("show", start_up.program_key).stdout
    assert "programs that it needs (5)" in text
    assert all(graph.program_key in text for graph in graphs)


def test_show_a_configuration(root: Path, run: Run) -> None:
    entry = filled.graph(filled.cache_at(root), "8")
    found = json.loads(run("show", entry.configuration_key[:16], "--json").stdout)
    assert found["configuration_key"] == entry.configuration_key
    assert len(found["programs"]) == 6
    text = run("show", entry.configuration_key).stdout
    assert "torch.version" in text
    assert entry.program_key in text


def test_none_and_ambiguous(root: Path, run: Run) -> None:
    for key, word in (("xyz", "no program or configuration"), ("", "ambiguous"), ("*", "no program")):
        result = run("show", key)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert word in result.stderr
        assert result.stderr.count("\n") == 1
    assert "and 3 more" in run("show", "").stderr


def test_a_damaged_entry_is_said_to_be_damaged(root: Path, run: Run) -> None:
    entry = filled.graph(filled.cache_at(root), "8")
    path = filled.path_of(root, entry)
    path.write_bytes(path.read_bytes().replace(b'"g0"', b'"g1"'))
    result = run("show", entry.program_key)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert path.exists()  # looking moves nothing
    # Its configuration can still be shown, without it.
    whole = run("show", entry.configuration_key, "--json")
    assert len(json.loads(whole.stdout)["programs"]) == 5
    assert entry.program_key in whole.stderr
