"""Many processes put, get, prune, verify and damage one store at once: no bad read, no exception, a sound store.

What is pruned was made old first, so that its blobs go while others publish them anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import filled
from processes import Processes

from compcache.cache import Cache
from compcache.store.directory import DirectoryStore
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile, meaning, run
from compcache.verify import verify

PROCESSES = 32
ROUNDS = int(os.environ.get("COMPCACHE_TEST_ROUNDS", "25"))
PROGRAMS = 12

SCRIPT = """
import os, random, sys
from pathlib import Path
import filled
from compcache import prune
from compcache.factors import Factors
from compcache.store.directory import DirectoryStore
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile, meaning, run
from compcache.verify import verify

root, number, rounds, programs = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
chosen = random.Random(number)
said = []
cache = filled.cache_at(root)
cache.session.say = said.append
compiler = FakeCompiler(root.parent / f"journal-{number}", size=3000)
store = DirectoryStore(root)
go()
for _ in range(rounds):
    what = chosen.choices(["get", "prune", "age", "verify"], [12, 2, 2, 1])[0]
    if what == "get":
        factors = Factors({"model.name": "many"}, {"range": str(chosen.randrange(programs))})
        assert run(get_or_compile(cache, compiler, factors)) == meaning(factors)
    elif what == "prune":
        prune.execute(store, prune.plan(store, max_size=chosen.randrange(200_000)))
    elif what == "age":  # an entry and its blobs seem unused for long
        for found in list(store.scan(chosen.choice(["configs", "blobs"])))[: chosen.randrange(8)]:
            try:
                os.utime(root / "v1" / found.name, (found.mtime - 9000, found.mtime - 9000))
            except FileNotFoundError:
                pass
    else:
        kinds = {f.kind for f in verify(DirectoryStore(root, read_only=True)).damage}
        # An entry whose blob has just been pruned as one that nothing refers to is a miss until it is stored again.
        assert kinds <= {"missing blob"}, kinds
assert not cache.session.faults, (cache.session.faults, said)
assert not any("quarantined" in line for line in said), said
"""


def test_many_processes_at_one_store(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    try:
        processes.together([processes.start(SCRIPT, str(i), str(ROUNDS), str(PROGRAMS)) for i in range(PROCESSES)])
    finally:
        processes.end()
    _next_start(tmp_path)


def _next_start(folder: Path) -> None:
    """No entry is dead; every program is there or is compiled once more, and the store is sound then."""
    from compcache.factors import Factors

    assert not verify(DirectoryStore(folder / "store", read_only=True)).damage
    cache: Cache = filled.cache_at(folder / "store")
    compiler = FakeCompiler(folder / "journal")
    for i in range(PROGRAMS):
        factors = Factors({"model.name": "many"}, {"range": str(i)})
        assert run(get_or_compile(cache, compiler, factors)) == meaning(factors)
    assert not cache.session.faults
    assert not verify(DirectoryStore(folder / "store", read_only=True)).damage
