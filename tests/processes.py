"""Python processes that run a script beside the test, with compcache and the modules of tests/ in their path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import filled

import compcache

PATHS = os.pathsep.join(map(str, (Path(compcache.__file__).parents[1], Path(filled.__file__).parent)))
GO = """
import sys
def go():
    "Say that this process is there, and wait until all are."
    print("ready", flush=True)
    sys.stdin.readline()
"""


def environment(home: Path) -> dict[str, str]:
    """That of such a process."""
    return {**os.environ, "PYTHONPATH": PATHS, "HOME": str(home)}


class Processes:
    """Starts processes that run a script after GO and a prelude; ends those that are left."""

    def __init__(self, folder: Path, prelude: str = "") -> None:
        self.folder = folder
        self.root = folder / "store"
        self.prelude = GO + prelude
        self.started: list[subprocess.Popen[str]] = []

    def start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", self.prelude + script, str(self.root), *arguments],
            env=environment(self.folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def together(self, started: list[subprocess.Popen[str]]) -> list[str]:
        """Let them go at one time; what each printed then. None may say anything on stderr."""
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        ends = [process.communicate() for process in started]
        assert [process.returncode for process in started] == [0] * len(started), [error for _, error in ends if error]
        assert not any(error for _, error in ends)
        return [printed for printed, _ in ends]

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
