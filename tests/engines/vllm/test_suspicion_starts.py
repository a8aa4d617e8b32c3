"""Start-ups that kill vLLM, sick file systems, changed variables and read-only stores, in real starts."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import filled
import pytest
from compcache_cli.demo import starts
from compcache_cli.demo.starts import Machine, Start, StartFailed

from compcache.store.directory import DirectoryStore
from compcache.verify import verify

pytestmark = pytest.mark.vllm
WATCH = Path(starts.__file__).parent / "watch"
FAULTY = Path(__file__).parent / "faulty"


def faulty(function: str, **more: str) -> dict[str, str]:
    return {"PYTHONPATH": f"{WATCH}:{FAULTY}", "START_WATCH_ALSO": f"faulty_start:{function}", **more}


def test_a_start_up_that_kills_is_compiled_again_for_this_host(
    place: Path, small_model: Path, small_start: tuple[Path, Start]
) -> None:
    filled_store, first = small_start
    store, machine = shutil.copytree(filled_store, place / "sick-store"), Machine(place / "sick")
    before = filled.snapshot(store)
    with pytest.raises(StartFailed):
        starts.start(
            machine,
            "trace_once",
            small_model,
            store=store,
            environment=faulty("die_at_first_run", FAULTY_SIGNAL=str(int(signal.SIGSEGV))),
        )
    again = starts.start(machine, "trace_once", small_model, store=store)
    assert [line for line in again.lines if "Segmentation fault; compiling it again" in line], again.lines
    assert (again.loaded, again.compiled, again.tokens) == (0, first.compiled, first.tokens)
    healed = starts.start(machine, "trace_once", small_model, store=store)
    assert (healed.loaded, healed.compiled, healed.tokens) == (first.compiled, 0, first.tokens)
    assert healed.compilers_run == []
    assert filled.snapshot(store) == before, "one sick host changed what others share"
    other = starts.start(Machine(place / "sound"), "trace_once", small_model, store=store)
    assert (other.loaded, other.compiled) == (first.compiled, 0), "another host is not affected"


def test_a_variable_of_torch_that_the_user_set_is_a_miss_that_names_it(
    place: Path, small_model: Path, small_start: tuple[Path, Start]
) -> None:
    """vLLM's engine process has no environment of its own to be read: setproctitle writes over /proc/self/environ."""
    filled_store, first = small_start
    store = shutil.copytree(filled_store, place / "variable-store")
    changed = {"TORCHINDUCTOR_EMULATE_PRECISION_CASTS": "1"}
    start = starts.start(Machine(place / "variable"), "trace_once", small_model, store=store, environment=changed)
    assert (start.loaded, start.compiled) == (0, first.compiled)
    assert "TORCHINDUCTOR_EMULATE_PRECISION_CASTS" in start.line


def test_a_hostile_file_system_is_no_worse_than_no_cache(place: Path, small_model: Path) -> None:
    store = place / "hostile-store"
    first, second = (
        starts.start(Machine(root), "trace_once", small_model, store=store, environment=faulty("hostile_store"))
        for root in (place / "hostile-a", place / "hostile-b")
    )
    assert first.tokens == second.tokens
    assert all(first.tokens)
    assert "Traceback" not in first.log
    assert not verify(DirectoryStore(store, read_only=True)).damage


def test_a_restart_whose_store_cannot_be_written_uses_vllms_own_file(place: Path, small_model: Path) -> None:
    """In piecewise mode, where vLLM can load its own file: no slower than without compcache."""
    machine = Machine(place / "readonly")
    environment = {"COMPCACHE_MODE": "ro"}
    first, second = (
        starts.start(machine, "piecewise", small_model, store=place / "no-store", environment=environment)
        for _ in range(2)
    )
    assert first.compiled > 0
    assert second.compiled == 0
    assert second.tokens == first.tokens
    assert [line for line in second.lines if "vouches" in line], second.lines
    assert not (place / "no-store").exists()
