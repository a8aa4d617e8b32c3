"""Files that decide nothing, or little, spoilt: shared factors, modules, leases, pins, the tag, the index.

The work goes on and is right, nothing of it raises, no wait is longer than its bound; verify says what it can see.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import filled
import pytest
from spoils import SPOILS, Spoil

from compcache import lease, limits, prune
from compcache.adapters.startup import StartUp, find, publish_startup
from compcache.cache import Cache
from compcache.factors import Factors
from compcache.index import Index
from compcache.inventory import inventory
from compcache.records import Use
from compcache.repair import repair
from compcache.store import layout
from compcache.store.directory import DirectoryStore
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile, meaning, run
from compcache.verify import verify

FACTORS = Factors({"model.name": "m"}, {"range": "8"})
KINDS = ("config", "modules", "lease", "pin", "tag", "index", "index log")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    cache = filled.cache_at(tmp_path / "store")
    get_or_compile(cache, FakeCompiler(tmp_path / "journal"), FACTORS)
    publish_startup(cache, StartUp(FACTORS, {}), b"start-up " * 99, ["compcache.errors"])
    cache.store.create(layout.pin(FACTORS.program_key), b"pinned")
    owner = {"token": "t", "host": lease.host_identity(), "pid": 2**22 + 1, "start": "1"}
    cache.store.create(layout.lease("ab" * 16), json.dumps(owner).encode())
    index(cache).record([Use(FACTORS.program_key, cache.store.label, 1.0, 1.0)])
    return cache


def index(cache: Cache) -> Index:
    return Index(cache.settings.state / "index")


def path_of(cache: Cache, kind: str) -> Path:
    root = Path(cache.store.label)
    names = {
        "config": layout.shared_factors(FACTORS.configuration_key),
        "modules": layout.modules(FACTORS.configuration_key, FACTORS.program_key),
        "lease": layout.lease("ab" * 16),
        "pin": layout.pin(FACTORS.program_key),
    }
    if kind in names:
        return root / "v1" / names[kind]
    files = {"tag": root / "CACHEDIR.TAG", "index": cache.settings.state / "index/cache.db"}
    return files.get(kind, cache.settings.state / "index/cache.db-wal")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_the_work_goes_on(
    tmp_path: Path, cache: Cache, kind: str, spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.2)
    path = path_of(cache, kind)
    if not path.exists():
        path.write_bytes(b"a log that was left")
    spoil(path)
    again = filled.cache_at(tmp_path / "store")
    compiler = FakeCompiler(tmp_path / "journal")
    assert run(get_or_compile(again, compiler, FACTORS)) == meaning(FACTORS)
    assert compiler.compiles == 1, "what decides nothing lost a program"
    if find(again, FACTORS) is None:  # without its modules a start-up is a miss; it is stored again, and found
        assert kind == "modules"
        again.guarded(
            "not stored", lambda: publish_startup(again, StartUp(FACTORS, {}), b"new " * 99, ["compcache.errors"]), None
        )
    held = again.compile_or_wait("ab" * 16, lambda: False)
    if held is not None:
        held.release()
    assert again.budget.left > 200
    _statistics(again)
    repair(again.store, verify(again.store))
    prune.execute(again.store, prune.plan(again.store, max_size=10**9))
    inventory(again.store)
    assert run(get_or_compile(again, compiler, FACTORS)) == meaning(FACTORS)
    assert compiler.compiles == 1
    assert not list(tmp_path.rglob("*.ran")), "a planted pickle ran"


def _statistics(cache: Cache) -> None:
    """Statistics may be lost, with a line; nothing else is."""
    cache.guarded("no statistics", lambda: index(cache).record([Use("ab" * 16, cache.store.label, 1.0, 1.0)]), None)
    cache.guarded("no statistics", lambda: index(cache).usages(cache.store.label), None)
    cache.guarded("limits are not kept", lambda: limits.keep(cache, index(cache)), None)


@pytest.mark.parametrize("kind", ["config", "modules"])
@pytest.mark.parametrize("name", [n for n in SPOILS if n not in ("last bit flipped", "cut at n-1")])
def test_verify_finds_it_and_repair_mends_it(tmp_path: Path, cache: Cache, kind: str, name: str) -> None:
    path = path_of(cache, kind)
    good = path.read_bytes()
    SPOILS[name](path)
    store = DirectoryStore(tmp_path / "store")
    damage = verify(store).damage
    if name == "a directory":  # an empty directory is no file; nothing reads it as one
        return
    assert [finding.name for finding in damage] == [str(path.relative_to(tmp_path / "store/v1"))]
    repair(store, verify(store))
    assert not verify(store).damage
    assert json.loads(path.read_bytes()) == json.loads(good)
    assert not os.path.islink(path)
