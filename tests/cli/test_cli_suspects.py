"""``compcache suspects``: what this host does not load, why, and how it is made to load it again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import filled
import pytest
from processes import environment
from typer.testing import Result

from compcache import suspicion
from compcache.entry import Entry

Run = Callable[..., Result]

LOAD = """
import os, sys
from pathlib import Path
import filled
from compcache import suspicion
entry = filled.graph(filled.cache_at(Path(sys.argv[1])), sys.argv[3])
assert suspicion.watched(Path(sys.argv[2]), entry) is not None
os.kill(os.getpid(), int(sys.argv[4]))
"""


@pytest.fixture
def state(root: Path) -> Path:
    return root.parent / "store.state"


@pytest.fixture
def dies(root: Path, state: Path) -> Callable[[str, int], Entry]:
    """A process dies of a signal after it loaded the graph of one range; the entry."""

    def dies(size: str, number: int) -> Entry:
        command = [sys.executable, "-c", LOAD, str(root), str(state), size, str(int(number))]
        assert subprocess.run(command, env=environment(state), capture_output=True, check=False).returncode == -number
        return filled.graph(filled.cache_at(root), size)

    return dies


def heal(state: Path, size: str) -> Entry:
    """Compile a graph again, for this host alone, as the adapter does."""
    again = filled.cache_at(suspicion.healed(state))
    again.clock = lambda: 1.0
    return filled.graph(again, size)


def rows(run: Run, *arguments: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(run("suspects", *arguments, "--json").stdout)
    return found


def test_a_host_that_suspects_nothing(run: Run, state: Path) -> None:
    assert run("suspects").stdout == "this host suspects nothing\n"
    assert rows(run) == []
    assert "cleared 0 programs; 0 records" in run("suspects", "--clear").stdout
    assert not state.exists(), "a look made something"


def test_it_shows_why_and_since_when(run: Run, state: Path, dies: Callable[[str, int], Entry]) -> None:
    seen = dies("8", signal.SIGSEGV)
    dies("4", signal.SIGKILL)
    assert [row["program_key"] for row in rows(run)] == [seen.program_key], "one unseen death is no suspicion"
    unseen = dies("4", signal.SIGKILL)
    found = {row["program_key"]: row for row in rows(run)}
    assert set(found) == {seen.program_key, unseen.program_key}
    assert found[seen.program_key]["digest"] == seen.digest
    assert "Segmentation fault" in str(found[seen.program_key]["why"])
    assert "2 processes died" in str(found[unseen.program_key]["why"])
    assert all(str(row["since"]).endswith("Z") and row["healed"] is False for row in found.values())
    shown = run("suspects", seen.program_key[:8])
    assert seen.program_key in shown.stdout
    assert unseen.program_key not in shown.stdout
    assert " s ago" in shown.stdout


def test_it_shows_what_was_compiled_again(run: Run, state: Path, dies: Callable[[str, int], Entry]) -> None:
    dies("8", signal.SIGSEGV)
    again = heal(state, "8")
    assert [row["healed"] for row in rows(run)] == [True]
    bad = Path(f"{state}/loads/{again.program_key}.{again.digest}.{'0' * 32}.load")
    owner = next((state / "loads").glob("*.load"))
    bad.write_bytes(owner.read_bytes())
    bad.with_suffix(".trace").write_text("Fatal Python error: Bus error")
    for path in (bad, bad.with_suffix(".trace")):
        path.chmod(0o600)
    assert [row["healed"] for row in rows(run)] == [False, False], "what stands in is suspected, too"


def test_one_program_is_cleared_and_what_stood_in_for_it_goes(
    run: Run, root: Path, state: Path, dies: Callable[[str, int], Entry]
) -> None:
    first, second = dies("8", signal.SIGSEGV), dies("4", signal.SIGSEGV)
    before = filled.snapshot(root)
    heal(state, "8"), heal(state, "4")
    filled.make_old(suspicion.healed(state), 7200)
    result = run("suspects", "--clear", first.program_key[:12])
    assert result.exit_code == 0
    assert "cleared 1 program; 1 record of deaths removed" in result.stdout
    assert "compiled again in their place goes: 2 files" in result.stdout, "its entry and its artifact"
    assert suspicion.suspected(state, first) == ""
    assert suspicion.suspected(state, second)
    own = filled.cache_at(suspicion.healed(state))
    assert own.find(first.factors) is None
    kept = own.find(second.factors)
    assert kept is not None
    assert all(own.blob(ref) for ref in kept.blobs)
    assert filled.snapshot(root) == before, "the shared store was changed"


def test_all_is_cleared(run: Run, state: Path, dies: Callable[[str, int], Entry]) -> None:
    seen = dies("8", signal.SIGSEGV)
    dies("4", signal.SIGKILL)
    heal(state, "8")
    filled.make_old(suspicion.healed(state), 7200)
    done = json.loads(run("suspects", "--clear", "--json").stdout)
    assert [row["program_key"] for row in done["cleared"]] == [seen.program_key]
    assert done["records"] == 2
    assert done["files_removed"] > 0
    assert not list((state / "loads").iterdir())
    assert not list((suspicion.healed(state) / "v1/blobs").glob("*/*"))
    assert run("suspects").stdout == "this host suspects nothing\n"


def test_a_process_that_still_loads_is_let_be(run: Run, root: Path, state: Path) -> None:
    load = suspicion.watched(state, filled.graph(filled.cache_at(root), "8"))
    assert load is not None
    assert run("suspects", "--clear").exit_code == 0
    assert load.record.exists()
    load.abandoned()


def test_a_key_that_is_not_suspected(run: Run, root: Path) -> None:
    for arguments in (["ffff"], ["--clear", "ffff"]):
        result = run("suspects", *arguments)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert "ffff" in result.stderr


def test_it_needs_no_store(run: Run, tmp_path: Path) -> None:
    assert run("suspects").stdout == "this host suspects nothing\n"
    assert not (tmp_path / "store").exists()
