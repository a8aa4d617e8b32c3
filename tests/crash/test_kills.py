"""F15: a writer is killed, at random moments and at each step; what is there is whole, needs no repair, and goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import filled
import pytest

import compcache
from compcache.factors import Factors
from compcache.store.directory import DirectoryStore
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile, meaning, program_of, run
from compcache.verify import verify

KILLS = 12
PROGRAMS = 4000
"""More than a writer publishes before it is killed."""
SCRIPT = """
import sys
from pathlib import Path
import filled
from compcache.factors import Factors
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile
root = Path(sys.argv[1])
cache = filled.cache_at(root / "store")
compiler = FakeCompiler(root / "journal", size=50_000)
for i in range(int(sys.argv[2]), int(sys.argv[3])):
    get_or_compile(cache, compiler, Factors({"model.name": "m"}, {"range": str(i)}))
    print(i, flush=True)
"""


def environment(home: Path) -> dict[str, str]:
    paths = [Path(compcache.__file__).parents[1], Path(filled.__file__).parent]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "HOME": str(home)}


def killed_writer(root: Path, first: int, seconds: float) -> int:
    """Start a writer of new programs from number ``first`` on, kill it; the last number that it said was stored."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(root), str(first), str(first + PROGRAMS)],
        env=environment(root),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()  # the first is stored
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    said += process.communicate()[0]
    assert process.returncode == -signal.SIGKILL, "it ended before the kill"
    return int(said.rpartition("\n")[0].split()[-1])  # a line that the kill cut does not count


def checked(root: Path, number: int) -> bool:
    """Whether a program is stored; what is found is right, and nothing was wrong on the way."""
    cache = filled.cache_at(root / "store")
    factors = Factors({"model.name": "m"}, {"range": str(number)})
    found = program_of(cache, factors)
    assert found is None or run(found) == meaning(factors)
    assert not cache.session.faults, "a read after a kill found damage"
    return found is not None


def test_a_writer_killed_at_random_moments(tmp_path: Path) -> None:
    seed = random.Random(20261201)
    first = 0
    for _ in range(KILLS):
        last = killed_writer(tmp_path, first, seed.uniform(0, 0.25))
        for i in range(last + 1):
            assert checked(tmp_path, i), "a program that was stored before the kill is lost"
        checked(tmp_path, last + 1)  # the one that was being written: there, or not
        assert not verify(DirectoryStore(tmp_path / "store", read_only=True)).damage
        assert not list((tmp_path / "store/v1/quarantine").iterdir())
        first = last + 1
    compiler = FakeCompiler(tmp_path / "journal")
    factors = Factors({"model.name": "m"}, {"range": "after"})
    assert run(get_or_compile(filled.cache_at(tmp_path / "store"), compiler, factors)) == meaning(factors)
    assert program_of(filled.cache_at(tmp_path / "store"), factors) is not None


@pytest.mark.parametrize(("scenario", "least"), [("cold", 60), ("bad_entry", 40), ("bad_blob", 40)])
def test_a_writer_killed_before_each_step(tmp_path: Path, scenario: str, least: int) -> None:
    """Whatever the step was, the next start reads nothing wrong, compiles at most once, and leaves a sound store."""
    script = Path(__file__).with_name("killed.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), scenario],
        env=environment(tmp_path),
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(done.stdout) >= least, "it was hardly killed"
    factors = Factors({"model.name": "m"}, {"range": "8"})
    for root in sorted(tmp_path.iterdir()):
        next_start(root, factors, sound=scenario == "cold")


def next_start(root: Path, factors: Factors, *, sound: bool) -> None:
    """A start after the kill. Where nothing was damaged before the kill (``sound``), nothing is now."""
    said: list[str] = []
    cache = filled.cache_at(root / "store")
    cache.session.say = said.append
    compiler = FakeCompiler(root / "journal")
    if sound and (root / "store").exists():
        assert not verify(DirectoryStore(root / "store", read_only=True)).damage, root
    found = program_of(cache, factors)
    assert found is None or run(found) == meaning(factors)
    before = compiler.compiles
    assert run(get_or_compile(cache, compiler, factors)) == meaning(factors)
    assert compiler.compiles <= before + 1
    assert program_of(cache, factors) is not None, root
    assert not cache.session.faults, root
    assert not [line for line in said if "waiting" in line], "it waited for the dead"
    assert not verify(cache.store).damage, root
