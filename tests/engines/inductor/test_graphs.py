"""Programs of every kind, cold on one machine and loaded on another that has no compiler: the same bits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compcache.inventory import inventory
from compcache.store.directory import DirectoryStore

Both = Callable[..., tuple]


@pytest.mark.parametrize(
    ("case", "programs"),
    [
        ("model", 1),
        ("bf16", 1),
        ("autocast", 1),
        ("training", 2),
        ("sizes", 2),
        ("dynamic", 1),
        ("automatic", 2),
        ("marked", 1),
        ("guarded", 2),
        ("tuned", 1),
        ("reduced", 1),
        ("frozen", 1),
        ("wrapped_in_cpp", 1),
        ("resets", 2),
        ("known_pass", 1),
    ],
)
def test_another_machine_loads_it_and_starts_no_compiler(both: Both, case: str, programs: int) -> None:
    cold, warm = both(case)
    assert cold.counts == (0, programs)
    assert warm.counts == (programs, 0)
    assert warm["kernels"][1] == 0
    assert warm["kernels"][0] >= 1
    assert warm["faults"] == cold["faults"] == {}
    assert warm["saved"] > 0


def test_the_line_says_what_was_loaded(filled: tuple, machine: Callable) -> None:
    store, cold = filled
    warm = machine("other", store, compilers=False).run("simple")
    assert "0 programs loaded" in cold.said
    assert "1 compiled" in cold.said
    assert "1 programs loaded" in warm.said
    assert "s saved; kernels: 1 loaded, 0 compiled" in warm.said


def test_packages_are_found_by_their_weights_too(machine: Callable) -> None:
    cold = machine("one").run("packaged", SEED="0")
    other = machine("one").run("packaged", SEED="1")
    warm = machine("other", compilers=False).run("packaged", SEED="0")
    assert (cold.counts, other.counts, warm.counts) == ((0, 1), (0, 1), (1, 0))
    assert cold["right"]
    assert other["right"]
    assert warm["bits"] == cold["bits"] != other["bits"]


def test_several_compile_threads(machine: Callable) -> None:
    cold = machine("one").run("sizes", TORCHINDUCTOR_COMPILE_THREADS="4")
    warm = machine("other", compilers=False).run("sizes", TORCHINDUCTOR_COMPILE_THREADS="1")
    assert (cold.counts, warm.counts) == ((0, 2), (2, 0))
    assert warm["bits"] == cold["bits"]


def test_threads_that_compile_at_once(both: Both) -> None:
    """Each graph has its own kernels, whichever thread compiled it, and compcache's factors in its key."""
    cold, warm = both("in_threads")
    assert (cold.counts, warm.counts) == ((0, 3), (3, 0))
    assert warm["kernels"] == [3, 0]


def test_a_forked_child(both: Both) -> None:
    cold, warm = both("in_a_child")
    assert cold["child"][:2] == [0, 1]
    assert warm["child"][:2] == [1, 0]
    assert warm["child"][2] >= 1


def test_listings_say_what_is_what(tmp_path: Path, machine: Callable) -> None:
    one = machine("one")
    for case in ("sizes", "dynamic", "training", "bf16"):
        one.run(case)
    found = inventory(DirectoryStore(tmp_path / "store")).configurations
    named = {(row.named["model"], row.named["dtype"]): row for row in found}
    assert {("activate", "float32"), ("Net", "float32"), ("Net", "bfloat16")} == set(named)
    ranges = [row.range for row in named["activate", "float32"].ranges]
    assert ranges == ["symbolic 2..", "3", "5"]
    parts = {program.part for row in named["Net", "float32"].ranges for program in row.programs}
    assert parts == {"forward", "backward", "autograd"}
    assert {row.named["mode"] for row in found} == {"default"}


# Where it is


def test_f10_everything_but_the_store_is_elsewhere(simple_store: tuple, tmp_path: Path, machine: Callable) -> None:
    store, cold = simple_store
    shutil.copytree(store, tmp_path / "moved" / "away")
    warm = machine("quite/another", tmp_path / "moved" / "away", compilers=False).run("simple", USER="somebody")
    assert warm.counts == (1, 0)
    assert warm["bits"] == cold["bits"]


def test_torchs_own_directory_is_asked_after_the_store(filled: tuple, machine: Callable) -> None:
    store, cold = filled
    one = machine("one", store)
    one.run("simple")
    warm = one.run("simple")
    assert warm.counts == (1, 0)
    assert warm.compilers == ()
    assert warm["bits"] == cold["bits"]


def test_what_torch_has_in_its_own_directory_is_stored(tmp_path: Path, machine: Callable) -> None:
    """A host that compiled it before, and a store that is new: others must find it."""
    cold = machine("one").run("model")
    shutil.rmtree(tmp_path / "store")
    again = machine("one").run("model")
    assert again.counts == (0, 1)
    warm = machine("other", compilers=False).run("model")
    assert warm.counts == (1, 0)
    assert warm["kernels"][1] == 0
    assert warm["bits"] == cold["bits"]
