"""Real starts of vLLM, few and shared: each fixture starts once for the whole run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]

from compcache_cli.demo import starts, tiny_model
from compcache_cli.demo.starts import Machine
from vllm_pair import Pair


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def model(place: Path) -> Path:
    return tiny_model.make(place / "model")


@pytest.fixture(scope="session")
def small_model(place: Path) -> Path:
    """One layer: compiles in a third of the time, for tests that must compile."""
    return tiny_model.make(place / "small-model", num_hidden_layers=1)


@pytest.fixture(scope="session")
def small_start(place: Path, small_model: Path) -> tuple[Path, starts.Start]:
    """A store that a cold start of the small model filled, and that start. To be copied, not changed."""
    store = place / "small-store"
    return store, starts.start(Machine(place / "small"), "trace_once", small_model, store=store)


@pytest.fixture(scope="session")
def other_python(place: Path) -> str:
    return starts.other_python(place / "other")


@pytest.fixture(scope="session")
def pair(place: Path, model: Path, other_python: str) -> Callable[[str], Pair]:
    """``pair(mode)``: the two starts of a mode, made at the first call."""
    made: dict[str, Pair] = {}

    def make(mode: str) -> Pair:
        if mode not in made:
            store = place / mode / "store"
            cold = starts.start(Machine(place / mode / "first"), mode, model, store=store)
            other = Machine(place / "other" / mode, other_python, compilers=False)
            made[mode] = Pair(mode, store, cold, starts.start(other, mode, model, store=store))
        return made[mode]

    return make
