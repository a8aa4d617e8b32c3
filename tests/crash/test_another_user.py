"""Something in a store belongs to another user: what depends on it is a miss or is refused, with a reason.

The store is that of an unprivileged user; one file or folder in it is of a third one, readable or not. The engine (the
fake compiler) gets right programs, with what it may read from the store and compiled otherwise, and nothing raises.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filled
import pytest
from another_user import place_for, python_as

from compcache.adapters.startup import StartUp, publish_startup
from compcache.factors import Factors
from compcache.store import layout
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile

READER, OTHER = 1002700000, 1002700001
STORED = Factors({"model.name": "m"}, {"range": "8"})
KEY = "ab" * 16

SCRIPT = """
import json, sys
from pathlib import Path
import filled
from compcache import lease, limits, prune
from compcache.adapters.startup import StartUp, find, publish_startup
from compcache.cache import Cache
from compcache.config import load
from compcache.errors import CompcacheError
from compcache.factors import Factors
from compcache.index import Index
from compcache.inventory import inventory
from compcache.session import Session
from compcache.store.directory import DirectoryStore
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile, meaning, program_of, run
from compcache.verify import verify

lease.STALE_SECONDS = 0.2
said = []
settings = load()
cache = Cache(settings, session=Session(say=said.append))
compiler = FakeCompiler(Path(sys.argv[1]))
STORED, NEW = (Factors({"model.name": "m"}, {"range": size}) for size in ("8", "16"))

def startup():
    return cache.guarded("no start-up", lambda: find(cache, STORED), None)

did = {"found": startup() is not None, "right": True}
for factors in (STORED, NEW, STORED, NEW):
    did["right"] &= run(get_or_compile(cache, compiler, factors)) == meaning(factors)
did["compiles"] = compiler.compiles
draft = StartUp(STORED, {})
cache.guarded("not stored", lambda: publish_startup(cache, draft, b"new " * 99, ["compcache.errors"]), None)
did["found again"] = startup() is not None
held = cache.compile_or_wait("ab" * 16, lambda: False)
if held is not None:
    held.release()
did["waited"] = settings.wait_seconds - cache.budget.left
cache.guarded("limits are not kept", lambda: limits.keep(cache, Index(settings.state / "index")), None)
cache.guarded("no bookkeeping", lambda: cache.mark_used([cache.find(STORED)]), None)
did["unread"] = [f.name for f in verify(DirectoryStore(settings.directory, trust=settings.trust)).damage]
did["refused"] = []
store = DirectoryStore(settings.directory, trust=settings.trust)
for verb in (inventory, lambda store: prune.execute(store, prune.plan(store, max_size=10**9))):
    try:
        verb(store)
    except CompcacheError as error:
        did["refused"].append(str(error))
did["said"] = said
print(json.dumps(did))
"""


@dataclass(frozen=True)
class Place:
    folder: Path
    artifact: str
    """The digest of the stored program's blob."""

    @property
    def root(self) -> Path:
        return self.folder / "store"

    def path(self, kind: str) -> Path:
        names = {
            "entry": layout.entry(STORED.configuration_key, STORED.program_key),
            "config": layout.shared_factors(STORED.configuration_key),
            "blob": layout.blob(self.artifact),
            "modules": layout.modules(STORED.configuration_key, STORED.program_key),
            "lease": layout.lease(KEY),
            "pin": layout.pin(STORED.program_key),
        }
        return self.root / "v1" / names.get(kind, kind)

    def give(self, path: Path, user: int, mode: int | None = None) -> None:
        os.chown(path, user, user)
        if mode is not None:
            path.chmod(mode)

    def give_all(self, user: int) -> None:
        for path in (self.root, *self.root.rglob("*")):
            self.give(path, user)

    def start(self, **settings: str) -> dict[str, Any]:
        """What an engine of the reader does, with the store and after it."""
        work = self.folder / "work"
        work.mkdir(mode=0o700)
        self.give(work, READER)
        environment = {"COMPCACHE_DIR": str(self.root), "COMPCACHE_STATE": str(work / "state"), "TMPDIR": str(work)}
        done = python_as(
            READER, "-c", SCRIPT, str(work / "journal"), group=READER, HOME=str(work), **environment, **settings
        )
        assert (done.returncode, done.stderr) == (0, "")
        did: dict[str, Any] = json.loads(done.stdout)
        assert did["right"]
        assert did["waited"] < 5.0
        return did


@pytest.fixture
def place() -> Iterator[Place]:
    """A store of the reader with a program, a start-up, a pin, a lease of another host, and a quarantined file."""
    for folder in place_for(READER):
        cache = filled.cache_at(folder / "store")
        get_or_compile(cache, FakeCompiler(folder / "journal"), STORED)
        publish_startup(cache, StartUp(STORED, {}), b"start-up " * 99, ["compcache.errors"])
        cache.store.create(layout.pin(STORED.program_key), b"")
        cache.store.create(layout.lease(KEY), json.dumps({"host": "another", "pid": 1, "start": "1"}).encode())
        cache.store.create("blobs/ab/" + "ab" * 32, b"x")
        cache.store.quarantine("blobs/ab/" + "ab" * 32, "a test")
        entry = cache.find(STORED)
        assert entry is not None
        place = Place(folder, entry.blobs_with("artifact")[0].digest)
        place.give_all(READER)
        yield place


def why(mode: int) -> str:
    """The reason that is given: whose it is and the way out, or that the system refuses."""
    return f"COMPCACHE_TRUST_OWNER={OTHER}" if mode & 0o044 else "Permission denied"


@pytest.mark.parametrize("mode", [0o644, 0o600], ids=["readable", "unreadable"])
@pytest.mark.parametrize("kind", ["entry", "blob"])
def test_a_program_of_another_user_is_compiled_and_left_as_it_is(place: Place, kind: str, mode: int) -> None:
    path = place.path(kind)
    content = path.read_bytes()
    place.give(path, OTHER, mode)
    did = place.start()
    assert did["compiles"] == 3, "it is compiled each time; another program is stored"
    assert any(why(mode) in line for line in did["said"]), did["said"]
    assert str(path.relative_to(place.root / "v1")) in did["unread"]
    assert (path.read_bytes(), path.stat().st_uid) == (content, OTHER)


@pytest.mark.parametrize("mode", [0o644, 0o600], ids=["readable", "unreadable"])
def test_modules_of_another_user_are_a_miss_and_are_written_again(place: Place, mode: int) -> None:
    path = place.path("modules")
    place.give(path, OTHER, mode)
    did = place.start()
    assert (did["found"], did["found again"], did["compiles"]) == (False, True, 1)
    assert any(why(mode) in line for line in did["said"]), did["said"]
    assert path.stat().st_uid == READER


@pytest.mark.parametrize("mode", [0o644, 0o600], ids=["readable", "unreadable"])
@pytest.mark.parametrize("kind", ["config", "lease", "pin"])
def test_what_decides_nothing_costs_nothing(place: Place, kind: str, mode: int) -> None:
    path = place.path(kind)
    place.give(path, OTHER, mode)
    did = place.start()
    assert (did["found"], did["compiles"]) == (True, 1)
    assert not did["refused"]
    assert did["unread"] == ([str(path.relative_to(place.root / "v1"))] if kind == "config" else [])


@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["readable", "unreadable"])
@pytest.mark.parametrize("kind", layout.FOLDERS)
def test_a_store_with_a_folder_of_another_user_is_refused(place: Place, kind: str, mode: int) -> None:
    """Who owns a folder decides which files are there at all, and can put others in their place."""
    path = place.path(kind)
    place.give(path, OTHER, mode)
    before = filled.snapshot(place.root)
    did = place.start()
    assert (did["found"], did["found again"], did["compiles"]) == (False, False, 4)
    assert [line for line in did["said"] if f"{path} belongs to uid {OTHER}; trust it with" in line], did["said"]
    assert filled.snapshot(place.root) == before


def test_a_whole_store_of_another_user_is_refused(place: Place) -> None:
    place.give_all(OTHER)
    for path in (place.root, *place.root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    did = place.start()
    assert did["compiles"] == 4
    assert any(why(0o644) in line for line in did["said"]), did["said"]


@pytest.mark.parametrize("user", [READER, OTHER])
def test_one_that_is_trusted_is_read_and_what_cannot_be_written_is_said(place: Place, user: int) -> None:
    """The reader may write to none of it: it belongs to another user, or its folders are closed to their own."""
    place.give_all(user)
    for path in (place.root, *place.root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = filled.snapshot(place.root)
    did = place.start(COMPCACHE_TRUST_OWNER=str(OTHER))
    assert (did["found"], did["compiles"]) == (True, 2), "what is stored is loaded; the other one is compiled each time"
    assert len([line for line in did["said"] if "Permission denied" in line]) <= 2, did["said"]
    assert any("Permission denied" in line for line in did["said"]), did["said"]
    assert filled.snapshot(place.root) == before
