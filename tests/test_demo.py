"""The demo's own judgement and its watch, without an engine."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from compcache_cli.commands import demo
from compcache_cli.demo import starts
from compcache_cli.demo.starts import Start

LINE = (
    "(Worker pid=1) compcache: 16 programs loaded in 0.35 s; 0 compiled in 0.0 s; 49.7 s saved;"
    " kernels: 30 loaded, 0 compiled; store /s"
)


def a_start(**changes: object) -> Start:
    answer = {"ready": 110.0, "tokens": [[1, 2], [3]]}
    start = starts._read(answer, 100.0, f"noise\n{LINE}\nnoise", [{"kind": "compile-phase", "seconds": 0.2}])
    return dataclasses.replace(start, **changes)  # type: ignore[arg-type]


def test_a_start_is_read_from_its_log_and_its_watch() -> None:
    start = a_start()
    assert (start.loaded, start.compiled, start.kernels_loaded, start.kernels_compiled) == (16, 0, 30, 0)
    assert (start.whole, start.compile_phase) == (10.0, 0.2)
    assert start.line.startswith("compcache: 16 programs loaded")


def test_compilers_are_told_from_other_programs() -> None:
    names = ["g++", "x86_64-linux-gnu-g++-12", "clang++-17", "cc1plus", "ld", "lscpu", "openssl", "python3", "gdb"]
    events = [{"kind": "exec", "program": f"/usr/bin/{name}", "argv": [name]} for name in names]
    found = starts._read({"ready": 1.0, "tokens": []}, 0.0, "", events).compilers_run
    assert found == ["g++", "x86_64-linux-gnu-g++-12", "clang++-17", "cc1plus", "ld"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": [[1, 2], [4]]}, "other tokens"),
        ({"compiled": 1}, "compiled 1 programs"),
        ({"kernels_compiled": 2}, "2 kernels"),
        ({"loaded": 0}, "loaded nothing"),
        ({"compilers_run": ["g++"]}, "ran g++"),
    ],
)
def test_what_a_warm_start_must_never_show(changes: dict[str, object], words: str) -> None:
    assert demo._wrong(a_start(), a_start()) == []
    found = demo._wrong(a_start(), a_start(**changes))
    assert len(found) == 1
    assert words in found[0]


def test_a_machine_without_compilers_has_everything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "usr-bin"
    place.mkdir()
    for name in ("g++", "gcc-12", "x86_64-linux-gnu-gcc", "as", "ld", "lscpu", "assess"):
        (place / name).write_text("#!/bin/sh\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(place))
    assert {p.name for p in starts._tools(tmp_path / "bin").iterdir()} == {"lscpu", "assess"}


def test_the_watch_sees_every_program_of_every_python_process(tmp_path: Path) -> None:
    script = "import subprocess, sys; subprocess.run(['true']); subprocess.run([sys.executable, '-c', INNER])"
    inner = "import os; os.posix_spawn('/bin/sh', ['sh', '-c', 'true'], os.environ)"
    watch = Path(starts.__file__).parent / "watch"
    environment = {**os.environ, "PYTHONPATH": str(watch), "START_WATCH_FILE": str(tmp_path / "watch.jsonl")}
    subprocess.run([sys.executable, "-c", f"INNER = {inner!r}; {script}"], check=True, env=environment)
    events = [json.loads(line) for line in (tmp_path / "watch.jsonl").read_text().splitlines()]
    programs = [Path(e["program"]).name for e in events if e["kind"] == "exec"]
    assert programs[0] == "true"
    assert "sh" in programs, "the inner process was not watched"
