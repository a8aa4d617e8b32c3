"""What must not be loaded is not: other instructions, threads, weights, passes. Each is checked by its results, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")


def test_f11_other_vector_instructions(filled: tuple, machine: Callable) -> None:
    """Filled with the host's widest; torch's own key does not have them: 95.87 in place of 191.74 elsewhere."""
    store, cold = filled
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this CPU has one level only")
    assert cold["first"] == cold["eager"] == 191.74
    other = machine("other", store).run("simple", ATEN_CPU_CAPABILITY="default")
    assert other.counts == (0, 1)
    assert other["first"] == other["eager"] == 191.74
    assert other.compilers
    # And back: both are in the store now, and torch's own directory has the other one.
    again = machine("other", store, compilers=False).run("simple")
    assert again.counts == (1, 0)
    assert again["bits"] == cold["bits"]


def test_f11_the_other_way_round(machine: Callable) -> None:
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this CPU has one level only")
    cold = machine("one").run("simple", ATEN_CPU_CAPABILITY="default")
    wide = machine("other").run("simple")
    assert (cold.counts, wide.counts) == ((0, 1), (0, 1))
    assert cold["first"] == wide["first"] == 191.74
    same = machine("third", compilers=False).run("simple", ATEN_CPU_CAPABILITY="default")
    assert same.counts == (1, 0)


def test_f12_other_thread_counts(machine: Callable) -> None:
    """The count is baked into a kernel: another one compiles, the same one loads."""
    one = machine("one").run("threads_of_torch", THREADS="1")
    two = machine("one").run("threads_of_torch", THREADS="2")
    assert (one.counts, two.counts) == ((0, 1), (0, 1))
    for threads, cold in (("1", one), ("2", two)):
        warm = machine(f"with-{threads}", compilers=False).run("threads_of_torch", THREADS=threads)
        assert warm.counts == (1, 0)
        assert warm["bits"] == cold["bits"]


def test_a_thread_count_by_variable(filled: tuple, machine: Callable) -> None:
    store, _ = filled
    first = machine("first", store).run("simple", OMP_NUM_THREADS="1")
    assert first.counts == (0, 1)
    assert machine("second", store, compilers=False).run("simple", OMP_NUM_THREADS="1").counts == (1, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_LOGS", "recompiles"),
        ("TORCHINDUCTOR_COMPILE_THREADS", "3"),
        ("TORCH_COMPILE_JOB_ID", "a-job"),
        ("HOSTNAME", "other"),
        ("TZ", "Asia/Tokyo"),
        ("PYTHONHASHSEED", "7"),
    ],
)
def test_what_cannot_matter_hits(filled: tuple, machine: Callable, name: str, value: str) -> None:
    store, cold = filled
    warm = machine("other", store, compilers=False).run("simple", **{name: value})
    assert warm.counts == (1, 0)
    assert warm["bits"] == cold["bits"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("COMPCACHE_KEY_EXTRA", "mine"),
        ("TORCHINDUCTOR_CPP_ENABLE_UNSAFE_MATH_OPT_FLAG", "1"),
        ("TORCH_SOMETHING_NEW", "1"),
    ],
)
def test_what_may_matter_misses(filled: tuple, machine: Callable, name: str, value: str) -> None:
    store, _ = filled
    other = machine("other", store).run("simple", **{name: value})
    assert other.counts == (0, 1)
    assert "missed: differs from the nearest entry" in other.said


def test_two_sets_of_weights_share_a_program(machine: Callable) -> None:
    one = machine("one").run("model", SEED="0")
    other = machine("other", compilers=False).run("model", SEED="1")
    assert (one.counts, other.counts) == ((0, 1), (1, 0))
    assert one["bits"] != other["bits"]


def test_frozen_weights_are_not_anothers(machine: Callable) -> None:
    """Freezing makes constants of weights: whatever is loaded computes with this process's own."""
    one = machine("one").run("frozen", SEED="0")
    other = machine("other").run("frozen", SEED="1")
    assert one["right"]
    assert other["right"]
    assert one["bits"] != other["bits"]


def test_autocast_of_two_dtypes(machine: Callable) -> None:
    one = machine("one").run("autocast", AUTOCAST="bfloat16")
    other = machine("other").run("autocast", AUTOCAST="float16")
    assert (one.counts, other.counts) == ((0, 1), (0, 1))
    assert (one["dtype"], other["dtype"]) == ("torch.bfloat16", "torch.float16")


def test_a_pass_without_identity_is_not_cached_and_said(machine: Callable) -> None:
    for name in ("one", "other"):
        ran = machine(name).run("unknown_pass")
        assert ran.counts == (0, 0)
        assert "custom pass" in ran["uncacheable"]["a graph"]
        assert "not caching a graph: Unsupported post grad custom pass" in ran.said
    assert not (ran.values["faults"])


def test_a_pass_with_another_identity_misses(machine: Callable) -> None:
    assert machine("one").run("known_pass", PASS="one").counts == (0, 1)
    assert machine("one").run("known_pass", PASS="two").counts == (0, 1)
    assert machine("other", compilers=False).run("known_pass", PASS="two").counts == (1, 0)


def test_another_backend_is_not_cached_and_said(machine: Callable) -> None:
    ran = machine("one").run("other_backend")
    assert ran.counts == (0, 0)
    assert "compcache knows only Inductor's programs" in ran.said


def test_caches_that_are_switched_off_stay_off(filled: tuple, machine: Callable) -> None:
    store, _ = filled
    ran = machine("one", store).run("no_cache_at_all")
    assert ran.counts == (0, 0)
    assert ran["faults"] == {}
