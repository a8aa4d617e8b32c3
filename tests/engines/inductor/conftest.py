"""Real torch.compile in processes of their own, on machines that differ in everything but the store."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
GRAPHS = Path(__file__).with_name("graphs.py")
COMPILERS = ("g++", "gcc", "c++", "cc", "clang", "clang++")
_SHIM = """#!/bin/sh
echo "$0 $*" >> {log}
exec {real} "$@"
"""


@dataclass(frozen=True)
class Ran:
    """What one process did: its case's values and counts, the compilers it started, and what it said."""

    values: Mapping[str, Any]
    compilers: tuple[str, ...]
    said: str

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def counts(self) -> tuple[int, int]:
        return self.values["loaded"], self.values["compiled"]


@dataclass(frozen=True)
class Machine:
    """A home, a cache directory of torch's and a PATH of its own; ``compilers`` says whether it has any."""

    root: Path
    store: Path
    compilers: bool = True
    python: str = sys.executable

    def run(self, case: str, script: Path = GRAPHS, **variables: str) -> Ran:
        log = self.root / "compilers.log"
        self.root.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        started = [self.python, "-W", "ignore", str(script), case]
        done = subprocess.run(started, env=self._environment(log, variables), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
        return Ran(json.loads(line.removeprefix("RESULT ")), tuple(log.read_text().splitlines()), done.stderr)

    def imports(self, *options: str, **variables: str) -> dict[str, Any]:
        """What ``compcache import`` says that it did, on this machine."""
        log = self.root / "compilers.log"
        started = [self.python, "-W", "ignore", "-m", "compcache_cli.main", "import", "--json", *options]
        done = subprocess.run(started, env=self._environment(log, variables), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _environment(self, log: Path, variables: Mapping[str, str]) -> dict[str, str]:
        for folder in ("home", "tmp"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        return {
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.root / "torch"),
            # A header that is precompiled pays off from the second kernel on.
            "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
            "PATH": f"{_shims(self.root, log)}:/usr/bin:/bin" if self.compilers else "/nowhere",
            "COMPCACHE_DIR": str(self.store),
            "COMPCACHE_STATE": str(self.root / "state"),
            **variables,
        }


def _shims(root: Path, log: Path) -> Path:
    folder = root / "shims"
    folder.mkdir(exist_ok=True)
    for name in COMPILERS:
        real = shutil.which(name)
        if real and not (folder / name).exists():
            (folder / name).write_text(_SHIM.format(log=log, real=real))
            (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Machine]:
    """Makes machines that share a store; by default with compilers."""

    def make(name: str, store: Path | None = None, **more: Any) -> Machine:
        return Machine(tmp_path / name, store or tmp_path / "store", **more)

    return make


@pytest.fixture
def both(machine: Callable[..., Machine]) -> Callable[..., tuple[Ran, Ran]]:
    """A case cold on one machine, then on another that has no compiler; the bits are the same."""

    def run(case: str, **variables: str) -> tuple[Ran, Ran]:
        cold = machine("one").run(case, **variables)
        warm = machine("other", compilers=False).run(case, **variables)
        assert warm["bits"] == cold["bits"]
        assert warm.compilers == ()
        return cold, warm

    return run


@pytest.fixture(scope="session")
def simple_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """A store that holds the case "simple", and how it was filled; not to be written to: see ``filled``."""
    root = tmp_path_factory.mktemp("simple")
    ran = Machine(root / "filler", root / "store").run("simple")
    assert ran.counts == (0, 1)
    assert ran.compilers
    return root / "store", ran


@pytest.fixture
def filled(simple_store: tuple[Path, Ran], tmp_path: Path) -> tuple[Path, Ran]:
    """A copy of that store, in another place."""
    store, ran = simple_store
    shutil.copytree(store, tmp_path / "store")
    return tmp_path / "store", ran


@pytest.fixture(scope="session")
def torchs_own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """torch's directory with the case "wide", without compcache, and how it was filled; not to be written to."""
    root = tmp_path_factory.mktemp("alone")
    ran = Machine(root / "one", root / "store").run("wide", COMPCACHE_INDUCTOR="0")
    assert not (root / "store").exists()
    return root / "one" / "torch", ran
