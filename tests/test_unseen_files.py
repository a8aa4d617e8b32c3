"""A file that is there and cannot be looked at: who lists a store says so, or stops, and takes nothing for gone."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import filled
import pytest

from compcache import limits, prune
from compcache.adapters.vllm_report import ReadyReport
from compcache.cache import Cache
from compcache.entry import Entry
from compcache.errors import StoreError
from compcache.factors import Factors
from compcache.index import Index
from compcache.inventory import inventory
from compcache.session import Session
from compcache.store import layout
from compcache.store.directory import DirectoryStore
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile, meaning, run
from compcache.testing.faults import CannotLookAt
from compcache.testing.filesystems import At, hostile
from compcache.verify import verify

NUMBERS = [errno.EIO, errno.ESTALE, errno.EACCES]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def graphs(root: Path) -> list[Entry]:
    graphs, _ = filled.piecewise(filled.cache_at(root))
    filled.make_old(root, 90_000)
    return graphs


def unseen(path: Path, number: int) -> AbstractContextManager[None]:
    return hostile(path.parent, At(path, number, ("stat", "lstat")))


@pytest.mark.parametrize("number", NUMBERS)
def test_prune_takes_no_blob_of_an_entry_that_it_cannot_see(root: Path, graphs: list[Entry], number: int) -> None:
    store = DirectoryStore(root)
    before = filled.snapshot(root)
    with unseen(filled.path_of(root, graphs[0]), number), pytest.raises(StoreError):
        prune.execute(store, prune.plan(store))
    assert filled.snapshot(root) == before


@pytest.mark.parametrize("number", NUMBERS)
def test_an_entry_that_hides_after_the_plan_keeps_its_blobs(root: Path, graphs: list[Entry], number: int) -> None:
    store = DirectoryStore(root)
    filled.path_of(root, graphs[0]).rename(root / "aside")  # its artifact seems to be nobody's
    planned = prune.plan(store)
    assert planned.blobs
    (root / "aside").rename(filled.path_of(root, graphs[0]))
    with unseen(filled.path_of(root, graphs[0]), number), pytest.raises(StoreError):
        prune.execute(store, planned)
    assert filled.cache_at(root).blob(graphs[0].blobs[0])


def test_limits_are_not_kept_and_that_is_said(root: Path, graphs: list[Entry], tmp_path: Path) -> None:
    cache, said = saying(root)
    filled.graph(cache, "16")
    before = filled.snapshot(root)
    cache.store = CannotLookAt(cache.store, layout.entry(graphs[0].configuration_key, graphs[0].program_key))
    with pytest.raises(StoreError):
        limits.keep(cache, Index(tmp_path / "index"))
    assert filled.snapshot(root) == before, "a file went, or the sweep's lease was left"
    assert not said


@pytest.mark.parametrize("number", NUMBERS)
def test_verify_says_it_and_looks_at_the_rest(root: Path, graphs: list[Entry], number: int) -> None:
    other = filled.graph(filled.cache_at(root), "8", model="another")
    filled.blob_path(root, other.blobs[0].digest).write_bytes(b"spoilt")
    with unseen(filled.path_of(root, graphs[0]), number):
        damage = verify(DirectoryStore(root, read_only=True)).damage
    assert {(finding.kind, finding.name) for finding in damage} == {
        ("unread", layout.configuration(graphs[0].configuration_key)),
        ("damaged", layout.blob(other.blobs[0].digest)),
    }
    assert str(filled.path_of(root, graphs[0])) in "".join(finding.detail for finding in damage)


def test_a_folder_that_cannot_be_looked_at_is_found_too(root: Path, graphs: list[Entry]) -> None:
    store = CannotLookAt(DirectoryStore(root, read_only=True), "pins/")
    DirectoryStore(root).create(layout.pin(graphs[0].program_key), b"")
    assert [(finding.kind, finding.name) for finding in verify(store).damage] == [("unread", "pins")]


def test_a_listing_for_people_says_it(root: Path, graphs: list[Entry]) -> None:
    with unseen(filled.path_of(root, graphs[0]), errno.EIO), pytest.raises(StoreError, match=graphs[0].program_key):
        inventory(DirectoryStore(root, read_only=True))


def saying(root: Path) -> tuple[Cache, list[str]]:
    cache, said = filled.cache_at(root), list[str]()
    cache.session = Session(say=said.append, store=cache.store.label)
    return cache, said


def test_the_line_at_the_end_of_a_start_is_said_and_uses_are_counted(root: Path, graphs: list[Entry]) -> None:
    cache, said = saying(root)
    cache.session.load([graphs[0]], 0.1, 21.0)
    cache.session.miss(Factors({"model.name": "another"}, {}))
    adapter = SimpleNamespace(settings=cache.settings, session=cache.session, shared_cache=cache, caches=[cache])
    report = ReadyReport(adapter)  # type: ignore[arg-type]
    report.bookkeeping.used(cache, [graphs[0]])
    with unseen(filled.path_of(root, graphs[0]), errno.EIO):
        report.report()
    assert [line for line in said if "1 programs loaded" in line], said
    assert [line for line in said if "no explanation" in line], said
    usage = Index(cache.settings.state / "index").usage(graphs[0].program_key)
    assert usage is not None
    assert usage.hits == 1


@pytest.mark.parametrize("place", ["leases/", "configs/", "blobs/", ""])
def test_an_engine_goes_on(root: Path, tmp_path: Path, place: str) -> None:
    compiler = FakeCompiler(tmp_path / "journal")
    cache, _ = saying(root)
    cache.store = CannotLookAt(cache.store, place)
    for number in [0, 1, 2] * 2:
        factors = Factors({"model.name": "m"}, {"range": str(number)})
        assert run(get_or_compile(cache, compiler, factors)) == meaning(factors)
    assert compiler.compiles == 3, "looking up lists nothing"
