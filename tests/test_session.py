"""What one process says about its start: once, in one line, whatever happened."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path

import filled
import pytest

from compcache.entry import Entry
from compcache.factors import Difference, Factors, differences
from compcache.session import Session, explained, to_stderr
from compcache.store.memory import MemoryStore


class Said(list[str]):
    """A session's voice that keeps what it said."""

    def session(self) -> Session:
        return Session(say=self.append, store="place")


@pytest.fixture
def entry() -> Entry:
    return filled.graph(filled.cache_at(Path("/nowhere"), MemoryStore()), "8")


def test_nothing_to_report() -> None:
    session = Said().session()
    assert not session.active
    assert "0 programs loaded" in session.report()
    assert "faults" not in session.report()


def test_the_report_is_one_line_of_all_counts(entry: Entry) -> None:
    session = Said().session()
    session.load([entry, entry], 0.25, 21.0)
    session.compile([entry], 12.5)
    for loaded in (True, True, False):
        session.kernel(loaded=loaded)
    session.fault("no lease", OSError("full"))
    session.fault("no lease", OSError("full"))
    assert session.report() == (
        "2 programs loaded in 0.25 s; 1 compiled in 12.5 s; 20.8 s saved; kernels: 2 loaded, 1 compiled;"
        " faults: 2; store place"
    )


def test_without_a_store() -> None:
    assert Session(say=lambda line: None).report().endswith("store none")


def test_a_load_that_took_longer_than_the_compile_saved_nothing(entry: Entry) -> None:
    session = Said().session()
    session.load([entry], 5.0, 1.0)
    assert session.saved_seconds == 0.0


@pytest.mark.parametrize("what", ["load", "compile", "fault", "miss"])
def test_what_makes_a_session_worth_a_report(what: str, entry: Entry) -> None:
    session = Said().session()
    {
        "load": lambda: session.load([entry], 0, 0),
        "compile": lambda: session.compile([entry], 0),
        "fault": lambda: session.fault("x", OSError()),
        "miss": lambda: session.miss(Factors({}, {})),
    }[what]()
    assert session.active


def test_a_fault_is_counted_always_and_said_once() -> None:
    said = Said()
    session = said.session()
    for _ in range(3):
        session.fault("the store", OSError(28, "No space left\non device"))
    session.fault("a lease", ValueError())
    assert said == [
        "the store: [Errno 28] No space left on device; going on without",
        "a lease: ValueError; going on without",
    ]
    assert session.faults == {"the store": 3, "a lease": 1}


def test_an_uncacheable_program_is_said_once_for_each_reason() -> None:
    said = Said()
    session = said.session()
    for reason in ("no digest", "no digest", "random key", "random key"):
        session.cannot_cache("graph 1", reason)
    session.cannot_cache("graph 2", "no digest")
    assert said == [
        "not caching graph 1: no digest",
        "not caching graph 1: random key",
        "not caching graph 2: no digest",
    ]


def test_threads_count_together() -> None:
    said = Said()
    session = said.session()
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(500):
            session.kernel(loaded=True)
            session.fault("x", OSError())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (session.kernels_loaded, session.faults) == (4000, {"x": 4000})
    assert len(said) == 1


def test_a_closed_stderr_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    to_stderr("line")


def test_lines_go_to_stderr_with_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    Session().fault("the store", OSError("full"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "compcache: the store: full; going on without\n"


# Explaining a miss


def test_nothing_stored() -> None:
    assert explained(None) == "missed: nothing like it is stored yet"
    assert "equal factors" in explained([])


def test_a_miss_names_factors_with_both_values() -> None:
    wanted = {"torch.version": "2.14", "env": {"VLLM_NEW": "1", "same": 0}, "added": True}
    stored = {"torch.version": "2.13", "env": {"same": 0}, "gone": [1]}
    line = explained(differences(wanted, stored), most=9)
    assert line == (
        'missed: differs from the nearest entry in added: not stored, now true; env.VLLM_NEW: not stored, now "1";'
        ' gone: stored [1], now absent; torch.version: stored "2.13", now "2.14"'
    )


def test_a_miss_names_a_few_and_counts_the_rest() -> None:
    line = explained([Difference(f"f{i}", "x" * 1000, i) for i in range(10)])
    assert line.count("stored") == 3
    assert line.endswith("; and 7 more")
    assert len(line) < 400
