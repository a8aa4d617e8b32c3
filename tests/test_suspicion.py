"""A program that a process of this host died of is skipped here; one that was killed from outside is not."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import filled
import pytest
from processes import environment

from compcache import suspicion
from compcache.entry import Entry

SCRIPT = """
import faulthandler, os, signal, sys
from pathlib import Path
import filled
from compcache import suspicion
state = Path(sys.argv[2])
entry = filled.graph(filled.cache_at(Path(sys.argv[1])), "8")
if "taken" in sys.argv:
    faulthandler.enable()
load = suspicion.watched(state, entry)
assert load is not None
exec(sys.argv[3])
"""


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    return filled.graph(filled.cache_at(tmp_path / "store"), "8")


@pytest.fixture
def load(tmp_path: Path, entry: Entry) -> Callable[..., int]:
    """Loads the entry in a process that then runs a line of Python; its exit status."""

    def load(line: str, *options: str) -> int:
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), str(tmp_path / "state"), line, *options]
        return subprocess.run(command, env=environment(tmp_path), capture_output=True, check=False).returncode

    return load


def why(tmp_path: Path, entry: Entry) -> str:
    return suspicion.suspected(tmp_path / "state", entry)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGSEGV, "Segmentation fault"),
        (signal.SIGILL, "Illegal instruction"),
        (signal.SIGBUS, "Bus error"),
        (signal.SIGABRT, "Aborted"),
    ],
)
def test_one_death_that_is_seen_is_enough(
    tmp_path: Path, entry: Entry, load: Callable[..., int], number: int, said: str
) -> None:
    assert load(f"os.kill(os.getpid(), {int(number)})") == -number
    assert why(tmp_path, entry) == f"a process died of it here: {said}"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_from_outside_is_not_its_fault_but_two_in_a_row_may_be(
    tmp_path: Path, entry: Entry, load: Callable[..., int], number: int
) -> None:
    assert load(f"os.kill(os.getpid(), {int(number)})") == -number
    assert why(tmp_path, entry) == ""
    assert load(f"os.kill(os.getpid(), {int(number)})") == -number
    assert "2 processes died" in why(tmp_path, entry)


def test_a_run_that_succeeds_clears_what_was_unseen(tmp_path: Path, entry: Entry, load: Callable[..., int]) -> None:
    load("os.kill(os.getpid(), 9)")
    assert load("load.succeeded(); os.kill(os.getpid(), 11)") == -signal.SIGSEGV, "it died later, of something else"
    load("os.kill(os.getpid(), 9)")
    assert why(tmp_path, entry) == ""


@pytest.mark.parametrize(
    ("line", "status"), [("", 0), ("raise RuntimeError('elsewhere')", 1), ("raise SystemExit(3)", 3)]
)
def test_an_orderly_end_tells_nothing(
    tmp_path: Path, entry: Entry, load: Callable[..., int], line: str, status: int
) -> None:
    for _ in range(3):
        assert load(line) == status
    assert why(tmp_path, entry) == ""
    assert not list((tmp_path / "state/loads").iterdir())


def test_a_child_of_multiprocessing_that_ends_in_order_tells_nothing(
    tmp_path: Path, entry: Entry, load: Callable[..., int]
) -> None:
    line = """
import multiprocessing
load.abandoned()
def child():
    assert suspicion.watched(state, entry) is not None
for _ in range(3):
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
"""
    assert load(line) == 0
    assert why(tmp_path, entry) == ""


def test_a_fork_that_ends_does_not_end_the_watch(tmp_path: Path, entry: Entry, load: Callable[..., int]) -> None:
    line = "\npid = os.fork()\nif not pid: load.succeeded(); os._exit(0)\nos.waitpid(pid, 0)\nos.kill(os.getpid(), 11)"
    assert load(line) == -signal.SIGSEGV
    assert "Segmentation fault" in why(tmp_path, entry)


def test_where_faulthandler_is_taken_a_death_is_unseen(tmp_path: Path, entry: Entry, load: Callable[..., int]) -> None:
    assert load("os.kill(os.getpid(), 11)", "taken") == -signal.SIGSEGV
    assert why(tmp_path, entry) == ""
    assert load("os.kill(os.getpid(), 11)", "taken") == -signal.SIGSEGV
    assert why(tmp_path, entry)


def test_a_process_that_still_loads_is_no_death(tmp_path: Path, entry: Entry) -> None:
    loads = [suspicion.watched(tmp_path / "state", entry) for _ in range(3)]
    assert why(tmp_path, entry) == ""
    for load in loads:
        assert load is not None
        load.abandoned()


def test_another_entry_under_its_key_is_not_suspected(tmp_path: Path, entry: Entry, load: Callable[..., int]) -> None:
    load("os.kill(os.getpid(), 11)")
    assert why(tmp_path, entry)
    filled.path_of(tmp_path / "store", entry).unlink()
    again = filled.cache_at(tmp_path / "store")
    again.clock = lambda: 1.0
    other = filled.graph(again, "8")
    assert other.program_key == entry.program_key
    assert why(tmp_path, other) == ""


def test_other_programs_and_hosts_are_not_affected(tmp_path: Path, entry: Entry, load: Callable[..., int]) -> None:
    load("os.kill(os.getpid(), 11)")
    assert why(tmp_path, filled.graph(filled.cache_at(tmp_path / "store"), "4")) == ""
    assert suspicion.suspected(tmp_path / "state of another host", entry) == ""
    assert suspicion.forget(tmp_path / "state") == 1
    assert why(tmp_path, entry) == ""


def test_a_state_that_cannot_be_written_watches_nothing(tmp_path: Path, entry: Entry) -> None:
    (tmp_path / "state").write_text("a file")
    assert suspicion.watched(tmp_path / "state", entry) is None
    assert why(tmp_path, entry) == ""


def test_planted_records_read_and_remove_nothing(tmp_path: Path, entry: Entry) -> None:
    folder = tmp_path / "state/loads"
    folder.mkdir(parents=True)
    mark = tmp_path / "mark"
    mark.write_text("kept")
    record = folder / f"{entry.program_key}.{entry.digest}.{'0' * 32}.load"
    record.symlink_to(mark)
    assert why(tmp_path, entry) == "", "one record that nobody can read is one unseen death at most"
    assert suspicion.forget(tmp_path / "state") == 1
    assert mark.read_text() == "kept"
