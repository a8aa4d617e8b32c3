"""What is done once the engine is ready, without an engine: the least that is due, and all of it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import filled
import pytest
from processes import environment

from compcache import limits, suspicion
from compcache.adapters.vllm import Adapter
from compcache.cache import Cache
from compcache.config import Limits
from compcache.entry import Entry
from compcache.session import Session
from compcache.store import layout

SCRIPT = """
import sys
import time
from pathlib import Path
from types import SimpleNamespace
import filled
from compcache.adapters.vllm_report import ReadyReport

cache = filled.cache_at(Path(sys.argv[1]))
entry = filled.graph(cache, sys.argv[2])
cache.session.load([entry], 0.1, 20.0)
known = {"settings": cache.settings, "session": cache.session, "shared_cache": cache, "caches": [cache]}
report = ReadyReport(SimpleNamespace(**known))
report.bookkeeping.used(cache, [entry])
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
    command = [sys.executable, "-c", SCRIPT, str(root), size]
    done = subprocess.run(command, env=environment(root.parent), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_a_start_at_which_no_sweep_is_due_imports_nothing_for_one(root: Path) -> None:
    assert not modules(root, "8") & SWEEPING, "it published nothing"
    assert modules(root, "4") >= SWEEPING, "it published, and nobody has measured yet"
    assert not modules(root, "8") & SWEEPING
    assert not modules(root, "2") & SWEEPING, "it published, and the measured size is far from the limit"


# This host's own store, for what is suspected here


def started(root: Path, *, max_bytes: int) -> Adapter:
    """The adapter of one process, whose stores may hold so much."""
    settings = dataclasses.replace(filled.cache_at(root).settings, limits=Limits(max_bytes, None, None))
    return Adapter(settings, Session(say=lambda line: None))


def publish(cache: Cache, size: str) -> Entry:
    return filled.graph(cache, size, kernel=os.urandom(50_000))


def test_what_is_compiled_for_this_host_alone_is_limited_as_the_store_is(root: Path) -> None:
    adapter = started(root, max_bytes=120_000)
    healed = suspicion.healed(adapter.settings.state)
    entries = [publish(adapter.own_cache, str(size)) for size in range(4)]
    filled.make_old(healed, 2 * limits.IN_USE_SECONDS)
    adapter.own_cache.store.refresh(layout.entry(entries[0].configuration_key, entries[0].program_key))
    adapter.report.report()
    assert sum(len(data) for data in filled.snapshot(healed).values()) <= 120_000
    assert adapter.own_cache.find(entries[0].factors) is not None, "it was used"
    assert adapter.own_cache.find(entries[1].factors) is None
    assert adapter.shared_cache.find(filled.graph(filled.cache_at(root), "8").factors) is not None


def test_a_start_that_has_no_use_for_it_keeps_its_age_limit(root: Path) -> None:
    first = started(root, max_bytes=10**6)
    entry = publish(first.own_cache, "16")
    first.report.report()
    filled.make_old(suspicion.healed(first.settings.state), 90_000)
    settings = dataclasses.replace(first.settings, limits=Limits(None, None, 86_400.0))
    later = Adapter(settings, Session(say=lambda line: None))
    for cache in later.caches:
        cache.clock = lambda: time.time() + 2 * limits.MEASURED_SECONDS
    later.report.report()
    assert later.own_cache.find(entry.factors) is None


def test_a_use_counts_where_it_was_loaded_from(root: Path) -> None:
    adapter = started(root, max_bytes=10**6)
    own = publish(adapter.own_cache, "8")
    shared = filled.graph(filled.cache_at(root), "8")
    assert own.program_key == shared.program_key
    for place in (root, suspicion.healed(adapter.settings.state)):
        filled.make_old(place, 90_000)
    before = filled.path_of(root, shared).stat().st_mtime
    adapter.report.bookkeeping.used(adapter.own_cache, [own])
    adapter.report.report()
    assert filled.path_of(suspicion.healed(adapter.settings.state), own).stat().st_mtime > before + 80_000
    assert filled.path_of(root, shared).stat().st_mtime == before, "a use of another entry protects this one"


def test_without_a_suspicion_there_is_one_store(root: Path) -> None:
    adapter = started(root, max_bytes=10**6)
    assert list(adapter.caches) == [adapter.shared_cache]
    adapter.report.report()
    assert not suspicion.healed(adapter.settings.state).exists()
