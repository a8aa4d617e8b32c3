"""The cache: what it refuses, what it heals, what it says; on a store in memory, with a clock that a test sets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import filled
import pytest

from compcache.cache import NEAREST_LIMIT, Cache, Draft, Part, digest_of, encoded
from compcache.config import load
from compcache.entry import Assembly, Entry, Piece, ProgramRef
from compcache.errors import Damaged, NotStored, RequiredMiss, StoreError
from compcache.factors import Factors
from compcache.session import Session, explained
from compcache.store import layout
from compcache.store.memory import MemoryStore
from compcache.store.protocol import REFRESH_SECONDS

DATA = b"machine code that compresses well " * 100


class Case:
    """A cache on a store in memory; what it said; its time."""

    def __init__(self, mode: str = "rw", store: MemoryStore | None = None) -> None:
        self.now = 1_000_000.0
        self.said: list[str] = []
        self.store = store or MemoryStore(clock=lambda: self.now)
        settings = load({"HOME": "/nowhere", "COMPCACHE_DIR": "/x", "COMPCACHE_STATE": "/x", "COMPCACHE_MODE": mode})
        self.cache = Cache(settings, store=self.store, session=Session(say=self.said.append))
        self.cache.clock = lambda: self.now

    def publish(self, own: dict[str, Any], shared: dict[str, Any] | None = None, kind: str = "graph") -> Entry:
        factors = Factors({"model": "m"} if shared is None else shared, own)
        return self.cache.publish(Draft(kind, factors, (Part("artifact", DATA),)))

    def names(self, folder: str) -> list[str]:
        return [found.name for found in self.store.scan(folder)]


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_program_comes_back(case: Case) -> None:
    entry = case.publish({"range": "8"})
    found = case.cache.find(entry.factors)
    assert found == entry
    assert case.cache.blob(entry.blobs[0]) == DATA
    assert entry.provenance["stored_at"] == 1_000_000.0
    assert case.said == []


def test_the_shared_factors_are_readable(case: Case) -> None:
    entry = case.publish({"range": "8"})
    assert case.store.read(layout.shared_factors(entry.configuration_key), 999) == b'{"model":"m"}\n'


# Healing


def test_damage_is_looked_at_twice(case: Case) -> None:
    """A torn read of a network mount heals by itself: nothing is moved."""

    class Torn(MemoryStore):
        torn = True

        def read(self, name: str, limit: int) -> bytes:
            data = super().read(name, limit)
            if self.torn and name.startswith("blobs/"):
                self.torn = False
                return data[:7]
            return data

    torn = Case(store=Torn())
    entry = torn.publish({"range": "8"})
    assert torn.cache.blob(entry.blobs[0]) == DATA
    assert torn.said == []
    assert torn.names("quarantine") == []


@pytest.mark.parametrize("damage", [b"", b"{}", b"x" * 100])
def test_damage_is_quarantined_said_and_compiled_again_once(case: Case, damage: bytes) -> None:
    entry = case.publish({"range": "8"})
    case.store.replace(layout.blob(entry.blobs[0].digest), damage)
    with pytest.raises(Damaged):
        case.cache.blob(entry.blobs[0])
    assert len(case.said) == 1
    assert "quarantined" in case.said[0]
    with pytest.raises(NotStored):
        case.cache.blob(entry.blobs[0])
    again = case.publish({"range": "8"})
    assert case.cache.blob(again.blobs[0]) == DATA
    name = layout.entry(entry.configuration_key, entry.program_key)
    case.store.replace(name, damage)
    assert case.cache.find(entry.factors) is None
    assert name not in case.names("configs")
    assert case.publish({"range": "8"}).factors == entry.factors
    assert case.cache.find(entry.factors) is not None


def test_publishing_replaces_a_damaged_blob_of_that_name(case: Case) -> None:
    ref, data = encoded(Part("artifact", DATA))
    case.store.create(layout.blob(ref.digest), b"other bytes")
    entry = case.publish({"range": "8"})
    assert entry.blobs == (ref,)
    assert case.store.read(layout.blob(ref.digest), 9999) == data


@pytest.mark.parametrize("mode", ["ro", "require"])
def test_a_reader_moves_nothing(case: Case, mode: str) -> None:
    entry = case.publish({"range": "8"})
    case.store.replace(layout.blob(entry.blobs[0].digest), b"bad")
    reader = Case(mode, case.store)
    with pytest.raises(Damaged):
        reader.cache.blob(entry.blobs[0])
    assert case.names("quarantine") == []
    assert reader.said == []


# Assembling


def assembled(case: Case, **change: Any) -> tuple[Entry, dict[str, bytes]]:
    graph = case.publish({"range": "8"})
    whole = b"head" + DATA + b"tail"
    plan = Assembly((Piece("blob", 0), Piece("program", 0), Piece("blob", 1)), digest_of(whole), len(whole))
    draft = Draft(
        "start-up",
        Factors({"model": "m"}, {"start": 1}),
        (Part("segment", b"head"), Part("segment", b"tail")),
        programs=(ProgramRef(graph.program_key),),
        assembly=dataclasses.replace(plan, **change),
    )
    return case.cache.publish(draft), {graph.program_key: DATA}


def test_a_file_is_put_together(case: Case) -> None:
    entry, artifacts = assembled(case)
    assert case.cache.assemble(entry, artifacts) == b"head" + DATA + b"tail"


def test_wrong_bytes_are_not_handed_out(case: Case) -> None:
    entry, artifacts = assembled(case)
    for wrong in (DATA[:-1], DATA + b"x", DATA[:-1] + b"?", b""):
        with pytest.raises(Damaged):
            case.cache.assemble(entry, dict.fromkeys(artifacts, wrong))
    with pytest.raises(KeyError):
        case.cache.assemble(entry, {})


@pytest.mark.parametrize(
    "change", [{"size": 3}, {"digest": "0" * 64}, {"pieces": (Piece("blob", 1), Piece("program", 0), Piece("blob", 0))}]
)
def test_a_wrong_plan_is_refused(case: Case, change: dict[str, Any]) -> None:
    entry, artifacts = assembled(case, **change)
    with pytest.raises(Damaged):
        case.cache.assemble(entry, artifacts)


def test_an_entry_without_a_plan_has_no_file(case: Case) -> None:
    with pytest.raises(Damaged):
        case.cache.assemble(case.publish({"range": "8"}), {})


# The boundary


@pytest.mark.parametrize(
    "error", [StoreError(28, "full"), Damaged("bits"), KeyError("x"), RecursionError(), MemoryError()]
)
def test_a_fault_is_a_miss_counted_and_said_once(case: Case, error: Exception) -> None:
    def fails() -> str:
        raise error

    assert [case.cache.guarded("it", fails, "otherwise") for _ in range(3)] == ["otherwise"] * 3
    assert case.cache.session.faults == {"it": 3}
    assert len(case.said) == 1


@pytest.mark.parametrize("error", [RequiredMiss("asked for"), KeyboardInterrupt(), SystemExit(1)])
def test_only_what_was_asked_for_goes_through(case: Case, error: BaseException) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(type(error)):
        case.cache.guarded("it", fails, None)
    assert case.cache.session.faults == {}


def test_what_works_goes_through_as_it_is(case: Case) -> None:
    assert case.cache.guarded("it", lambda: 3, None) == 3
    assert case.said == []


def test_a_store_that_fails_is_raised_to_the_boundary() -> None:
    class Failing(MemoryStore):
        def read(self, name: str, limit: int) -> bytes:
            raise StoreError(5, "Input/output error")

    with pytest.raises(StoreError):
        Case(store=Failing()).cache.find(Factors({}, {}))


@pytest.mark.parametrize("at", ["blobs/", "configs/"])
def test_a_store_that_is_full_publishes_nothing(at: str) -> None:
    """F2 and F3: not an entry without its blobs."""

    class Full(MemoryStore):
        def create(self, name: str, data: bytes) -> bool:
            if name.startswith(at):
                raise StoreError(28, "No space left on device")
            return super().create(name, data)

    case = Case(store=Full())
    with pytest.raises(StoreError):
        case.publish({"range": "8"})
    assert case.names("configs") == []
    assert case.cache.find(Factors({"model": "m"}, {"range": "8"})) is None


# Explaining


def nearest(case: Case, own: dict[str, Any], kind: str = "graph", **more: Any) -> list[str] | None:
    found = case.cache.nearest(Factors({"model": "m"}, own), kind, **more)
    return None if found is None else [d.name for d in found]


def test_nothing_is_near_in_an_empty_store(case: Case) -> None:
    assert nearest(case, {"range": "8"}) is None
    assert "nothing like it" in explained(case.cache.nearest(Factors({}, {}), "graph"))


def test_the_nearest_differs_least(case: Case) -> None:
    case.publish({"range": "8", "isa": "avx2", "flag": 1})
    case.publish({"range": "8", "isa": "avx512", "flag": 1})
    assert nearest(case, {"range": "8", "isa": "avx512", "flag": 2}) == ["flag"]


def test_a_miss_for_an_unknown_variable_names_it(case: Case) -> None:
    """F14."""
    case.publish({"environment": {"VLLM_A": 1}})
    found = case.cache.nearest(
        Factors({"model": "m"}, {"environment": {"VLLM_A": 1, "VLLM_SOMETHING_NEW": "1"}}), "graph"
    )
    assert 'environment.VLLM_SOMETHING_NEW: not stored, now "1"' in explained(found)


def test_the_own_configuration_goes_before_others(case: Case) -> None:
    case.publish({"a": 1, "b": 2, "c": 3})
    case.publish({"a": 9, "b": 9, "c": 9}, {"model": "other"})
    assert nearest(case, {"a": 9, "b": 9, "c": 9}) == ["a", "b", "c"]


def test_another_configuration_explains_too(case: Case) -> None:
    case.publish({"a": 1}, {"model": "other"})
    assert nearest(case, {"a": 1}) == ["model"]


def test_only_programs_of_the_kind_count(case: Case) -> None:
    case.publish({"a": 1})
    assert nearest(case, {"a": 1}, "start-up") is None


def test_what_was_just_stored_is_skipped(case: Case) -> None:
    case.publish({"a": 1, "b": 1})
    mine = case.publish({"a": 2, "b": 2})
    assert nearest(case, {"a": 2, "b": 2}) == []
    assert nearest(case, {"a": 2, "b": 2}, skip={mine.program_key}) == ["a", "b"]


def test_sources_that_only_the_entry_knows_do_not_count(case: Case) -> None:
    case.publish({"a": 1, "source.model": "digest"})
    assert nearest(case, {"a": 1}) == []
    assert nearest(case, {"a": 1, "source.model": "other"}) == ["source.model"]


def test_damaged_entries_are_passed_over(case: Case) -> None:
    good = case.publish({"a": 1})
    bad = case.publish({"a": 2})
    case.store.replace(layout.entry(bad.configuration_key, bad.program_key), b"{")
    assert nearest(case, {"a": 2}) == ["a"]
    assert case.cache.find(good.factors) == good


def test_an_explanation_is_bounded() -> None:
    class Counting(MemoryStore):
        reads = 0

        def read(self, name: str, limit: int) -> bytes:
            self.reads += 1
            return super().read(name, limit)

    store = Counting()
    case = Case(store=store)
    for i in range(NEAREST_LIMIT + 40):
        case.publish({"i": i, "j": i}, {"model": str(i)})
    store.reads = 0
    assert nearest(case, {"i": -1}) is not None
    assert store.reads <= NEAREST_LIMIT


# Use


def age(case: Case, entry: Entry) -> float:
    name = layout.entry(entry.configuration_key, entry.program_key)
    return next(case.now - found.mtime for found in case.store.scan("configs") if found.name == name)


def test_use_is_marked_at_most_hourly(case: Case) -> None:
    used, other = case.publish({"a": 1}), case.publish({"a": 2})
    case.now += REFRESH_SECONDS
    case.cache.mark_used([used])
    assert age(case, used) == REFRESH_SECONDS
    case.now += 1
    case.cache.mark_used([used, used])
    assert age(case, used) == 0
    assert age(case, other) == REFRESH_SECONDS + 1


def test_a_reader_marks_nothing(case: Case) -> None:
    used = case.publish({"a": 1})
    case.now += 9 * REFRESH_SECONDS
    reader = Case("ro", case.store)
    reader.now = case.now
    reader.cache.mark_used([used])
    assert age(case, used) == 9 * REFRESH_SECONDS


def test_use_of_what_is_gone_is_no_error(case: Case) -> None:
    used = case.publish({"a": 1})
    case.store.remove(layout.entry(used.configuration_key, used.program_key))
    case.now += 9 * REFRESH_SECONDS
    case.cache.mark_used([used])


def test_nothing_is_opened_before_the_first_lookup(tmp_path: Path) -> None:
    filled.cache_at(tmp_path / "store")
    assert list(tmp_path.iterdir()) == []
    assert filled.cache_at(tmp_path / "store").find(Factors({}, {})) is None
    assert list(tmp_path.iterdir()) == []
