"""What is done once the engine is ready, without an engine: the least that is due, and all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import filled
import pytest

import compcache

SCRIPT = """
import sys
from pathlib import Path
from types import SimpleNamespace
import filled
from compcache.adapters.vllm_report import ReadyReport

cache = filled.cache_at(Path(sys.argv[1]))
entry = filled.graph(cache, sys.argv[2])
cache.session.load([entry], 0.1, 20.0)
report = ReadyReport(SimpleNamespace(settings=cache.settings, session=cache.session, shared_cache=cache))
report.used(cache, [entry])
report.report()
assert not cache.session.faults, cache.session.faults
print(*sorted(name for name in sys.modules if name.startswith("compcache.")))
"""
SWEEPING = {"compcache.contents", "compcache.listing", "compcache.prune"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    filled.graph(filled.cache_at(root), "8")
    return root


def modules(root: Path, size: str) -> set[str]:
    """What a process has imported by the end of a start that used the program of one size."""
    paths = [Path(compcache.__file__).parents[1], Path(filled.__file__).parent]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-c", SCRIPT, str(root), size]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_a_start_at_which_no_sweep_is_due_imports_nothing_for_one(root: Path) -> None:
    assert not modules(root, "8") & SWEEPING, "it published nothing"
    assert modules(root, "4") >= SWEEPING, "it published, and nobody has measured yet"
    assert not modules(root, "8") & SWEEPING
    assert not modules(root, "2") & SWEEPING, "it published, and the measured size is far from the limit"
