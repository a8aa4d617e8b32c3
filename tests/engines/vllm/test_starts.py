"""A real vLLM starts cold, publishes, and starts warm elsewhere: cases F10 and F19, promises 1 and 6."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compcache_cli.demo.starts import Start
from vllm_pair import MODES, Pair

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("mode", MODES)
def test_the_cold_start_compiles_and_says_so(mode: str, pair: Callable[[str], Pair]) -> None:
    cold = pair(mode).cold
    assert (cold.loaded, cold.compiled) == (0, {"trace_once": 2, "piecewise": 16}[mode])
    assert cold.compilers_run, "the watch saw no compiler in a start that compiles: it watches nothing"
    assert len([line for line in cold.lines if "programs loaded" in line]) == 1
    assert "missed: nothing like it is stored yet" in cold.line


@pytest.mark.parametrize("mode", MODES)
def test_the_warm_start_loads_everything_on_another_machine(mode: str, pair: Callable[[str], Pair]) -> None:
    found = pair(mode)
    assert (found.warm.loaded, found.warm.compiled) == (found.cold.compiled, 0), found.warm.lines
    assert found.warm.kernels_loaded > 0
    assert found.warm.kernels_compiled == 0
    assert len(found.warm.lines) == 1, "one line, and no fault"
    assert str(found.store) in found.warm.line


@pytest.mark.parametrize("mode", MODES)
def test_the_warm_start_starts_no_compiler(mode: str, pair: Callable[[str], Pair]) -> None:
    assert pair(mode).warm.compilers_run == []


@pytest.mark.parametrize("mode", MODES)
def test_the_tokens_are_the_same(mode: str, pair: Callable[[str], Pair]) -> None:
    found = pair(mode)
    assert found.warm.tokens == found.cold.tokens
    assert all(len(tokens) == 16 for tokens in found.warm.tokens)


@pytest.mark.parametrize("mode", MODES)
def test_f19_vllm_loads_the_start_up_without_an_error(mode: str, pair: Callable[[str], Pair]) -> None:
    log = pair(mode).warm.log
    assert "Compiling model again" not in log
    assert "finalize_loading" not in log
    assert "Directly load AOT compilation" in log


def rows(store: Path, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "compcache_cli.main", "--store", str(store), "ls", "--json", *arguments]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert isinstance(found, list)
    return found


def test_ls_lists_the_symbolic_range_and_each_size(pair: Callable[[str], Pair]) -> None:
    found = rows(pair("piecewise").store)
    graphs = {row["range"]: row for row in found if row["range"] != "start-up"}
    assert set(graphs) == {"symbolic 1..2048", "1", "2", "4", "8"}
    for row in graphs.values():
        assert row["model"] == "LlamaForCausalLM 4x256"
        assert row["dtype"] == "bfloat16"
        assert row["programs"] == 3
        assert row["bytes"] > 10_000
        assert row["compile_seconds"] > 0
        assert row["last_use"]


def test_ls_programs_names_the_graphs_that_share_one(pair: Callable[[str], Pair]) -> None:
    found = rows(pair("piecewise").store, "--programs")
    assert len([row for row in found if row["kind"] == "graph"]) == 15
    assert len([row for row in found if row["kind"] == "start-up"]) == 1
    assert {row["graphs"] for row in found if row["range"] == "4"} == {
        "submod_0",
        "submod_2, submod_4, submod_6",
        "submod_8",
    }


@pytest.mark.parametrize("mode", MODES)
def test_what_is_stored_verifies(mode: str, pair: Callable[[str], Pair]) -> None:
    command = [sys.executable, "-m", "compcache_cli.main", "--store", str(pair(mode).store), "verify"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_no_path_of_the_writer_is_in_a_factor(mode: str, pair: Callable[[str], Pair], place: Path) -> None:
    for entry in pair(mode).store.glob("v1/configs/*/*/*.json"):
        text = entry.read_text()
        assert str(place) not in text
        assert sys.prefix not in text
        assert not re.search(r'"hf_token"|"(VLLM_)?API_KEY"', text)


def speaks(start: Start, words: str) -> int:
    """How many of compcache's lines have these words."""
    return len([line for line in start.lines if words in line])
