"""F15: a writer is killed at random moments; what is there afterwards is whole, needs no repair, and goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import filled

import compcache
from compcache.factors import Factors
from compcache.store.directory import DirectoryStore
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile, meaning, program_of, run
from compcache.verify import verify

KILLS = 12
PROGRAMS = 400
SCRIPT = """
import sys
from pathlib import Path
import filled
from compcache.factors import Factors
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile
root = Path(sys.argv[1])
cache = filled.cache_at(root / "store")
compiler = FakeCompiler(root / "journal", size=50_000)
for i in range(int(sys.argv[2])):
    get_or_compile(cache, compiler, Factors({"model.name": "m"}, {"range": str(i)}))
    print(i, flush=True)
"""


def writer(root: Path) -> subprocess.Popen[str]:
    paths = [Path(compcache.__file__).parents[1], Path(filled.__file__).parent]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(root), str(PROGRAMS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "HOME": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_writer_killed_at_random_moments(tmp_path: Path) -> None:
    seed = random.Random(20261201)
    reached = 0
    for _ in range(KILLS):
        process = writer(tmp_path)
        assert process.stdout is not None
        process.stdout.readline()  # it has published at least one more program, or found one
        time.sleep(seed.uniform(0, 0.25))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        cache = filled.cache_at(tmp_path / "store")
        for i in range(PROGRAMS):
            factors = Factors({"model.name": "m"}, {"range": str(i)})
            found = program_of(cache, factors)
            if found is None:
                break
            assert run(found) == meaning(factors)
            reached = max(reached, i)
        assert not cache.session.faults, "a read after a kill found damage"
        assert not verify(DirectoryStore(tmp_path / "store", read_only=True)).damage
    assert reached > 0
    compiler = FakeCompiler(tmp_path / "journal")
    factors = Factors({"model.name": "m"}, {"range": "after"})
    assert run(get_or_compile(filled.cache_at(tmp_path / "store"), compiler, factors)) == meaning(factors)
    assert program_of(filled.cache_at(tmp_path / "store"), factors) is not None
