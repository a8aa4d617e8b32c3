"""Prune while other processes use, pin and publish: between plan and execution, and at every step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import filled
import pytest
from prune_case import DAY, HOUR, Case, Clock, name_of

from compcache.cache import Cache
from compcache.entry import Entry
from compcache.prune import execute, plan
from compcache.store import layout
from compcache.store.memory import MemoryStore
from compcache.store.protocol import Found, Store
from compcache.verify import verify


@pytest.fixture
def case() -> Iterator[Case]:
    case = Case()
    yield case
    assert case.whole(), verify(case.store).damage


class TestBetweenPlanAndExecution:
    """Another process does something after the plan was made."""

    @pytest.fixture
    def graphs(self, case: Case) -> list[Entry]:
        graphs, _ = filled.piecewise(case.cache)
        case.clock.now += 2 * HOUR
        return graphs

    def test_a_program_that_was_used_stays_with_its_blobs(self, case: Case, graphs: list[Entry]) -> None:
        planned = case.plan(max_size=0)
        case.store.refresh(name_of(graphs[0]))
        outcome = execute(case.store, planned)
        assert case.has(graphs[0])
        assert case.whole()
        assert name_of(graphs[0]) in {removal.name for removal in outcome.spared}
        assert not any(case.has(graph) for graph in graphs[1:])

    def test_a_start_up_that_was_used_keeps_its_graphs(self, case: Case, graphs: list[Entry]) -> None:
        planned = case.plan(max_size=0)
        start_up = filled.piecewise(case.cache)[1]
        case.store.refresh(name_of(start_up))
        before = case.names()
        outcome = execute(case.store, planned)
        assert case.names() == before
        assert outcome.removed == []

    def test_a_start_up_that_is_used_at_the_last_moment(self, case: Case, graphs: list[Entry]) -> None:
        start_up = filled.piecewise(case.cache)[1]
        planned = case.plan(max_size=0)
        discard = case.store.discard

        def late(name: str, mtime: float) -> bool:
            if name == name_of(start_up):
                case.clock.now += 1
                case.store.refresh(name)
            return discard(name, mtime)

        case.store.discard = late  # type: ignore[method-assign]
        outcome = execute(case.store, planned)
        case.store.discard = discard  # type: ignore[method-assign]
        assert outcome.removed == []
        assert all(case.has(entry) for entry in (start_up, *graphs))

    def test_a_start_up_that_was_published_keeps_its_graphs(self, case: Case, graphs: list[Entry]) -> None:
        case.store.remove(name_of(filled.piecewise(case.cache)[1]))
        planned = case.plan(max_size=0)
        new = filled.start_up(case.cache, graphs[:2])
        execute(case.store, planned)
        assert case.has(new)
        assert [case.has(graph) for graph in graphs] == [True, True, False, False, False]

    def test_a_pin_that_was_set(self, case: Case, graphs: list[Entry]) -> None:
        planned = case.plan(max_size=0)
        case.store.create(layout.pin(graphs[2].program_key), b"")
        execute(case.store, planned)
        assert case.has(graphs[2])

    def test_an_entry_that_reuses_a_blob(self, case: Case, graphs: list[Entry]) -> None:
        for graph in graphs:
            case.store.remove(name_of(graph))
        case.store.remove(name_of(filled.start_up(case.cache, ())))
        for found in list(case.store.scan("configs")):
            case.store.remove(found.name)
        planned = case.plan()
        assert planned.blobs
        new = filled.graph(case.cache, "8")
        execute(case.store, planned)
        assert case.has(new)
        assert case.whole()

    def test_a_live_lease_in_the_place_of_a_dead_one(self, case: Case) -> None:
        case.store.create(layout.lease("k"), b"dead")
        case.clock.now += 2 * DAY
        planned = case.plan()
        case.store.replace(layout.lease("k"), b"live")
        execute(case.store, planned)
        assert case.store.read(layout.lease("k"), 10) == b"live"

    def test_what_is_gone_already_is_no_error(self, case: Case, graphs: list[Entry]) -> None:
        planned = case.plan(max_size=0)
        execute(case.store, planned)
        outcome = execute(case.store, planned)
        assert outcome.removed == []
        assert len(outcome.spared) == len(planned.removals)


class Interleaved(MemoryStore):
    """Lets another process act right before the n-th operation of prune."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self.until = -1
        self.act: Callable[[], None] = lambda: None

    def _step(self) -> None:
        self.until -= 1
        if self.until == 0:
            self.act()

    def read(self, name: str, limit: int) -> bytes:
        self._step()
        return super().read(name, limit)

    def discard(self, name: str, mtime: float) -> bool:
        self._step()
        return super().discard(name, mtime)

    def scan(self, prefix: str) -> Iterator[Found]:
        self._step()
        return super().scan(prefix)


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_discard_spares_what_was_touched(tmp_path: Path, kind: str) -> None:
    clock = Clock()
    store: Store = MemoryStore(clock=clock) if kind == "memory" else filled.cache_at(tmp_path / "store").store
    store.create("tmp/a", b"x")
    (found,) = store.scan("tmp")
    assert not store.discard("tmp/b", found.mtime)
    assert not store.discard("tmp/a", found.mtime - 1)
    clock.now += 1
    if kind == "directory":
        os.utime(tmp_path / "store" / "v1" / "tmp" / "a", (5, 5))
    store.refresh("tmp/a")
    assert not store.discard("tmp/a", found.mtime)
    (found,) = store.scan("tmp")
    assert store.discard("tmp/a", found.mtime)
    assert list(store.scan("tmp")) == list(store.scan("trash")) == []


def test_discard_puts_back_what_is_touched_at_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer refreshes the file after the look, right before it is moved to trash/."""
    from compcache import fsio

    store = filled.cache_at(tmp_path / "store").store
    store.create("tmp/a", b"x")
    (found,) = store.scan("tmp")
    move = fsio.move

    def late(source: Path, target: Path) -> None:
        os.utime(source, (found.mtime + 5, found.mtime + 5))
        move(source, target)

    monkeypatch.setattr(fsio, "move", late)
    assert not store.discard("tmp/a", found.mtime)
    assert store.read("tmp/a", 10) == b"x"
    assert list(store.scan("trash")) == []


def test_a_publication_at_every_step_of_prune_ends_whole() -> None:
    """A put that reuses a blob never ends with a dead entry, wherever it falls."""
    fell = 0
    for step in range(1, 200):
        clock = Clock()
        store: Store = Interleaved(clock)
        assert isinstance(store, Interleaved)
        cache = filled.cache_at(Path("/nowhere"), store)
        filled.graph(cache, "1")
        clock.now += 2 * DAY
        published: list[Entry] = []

        def publish(cache: Cache = cache, published: list[Entry] = published) -> None:
            published.append(filled.graph(cache, "2"))  # shares its kernel with the program that goes

        store.act, store.until = publish, step
        execute(store, plan(store, max_age=DAY, clock=clock))
        store.until = -1
        if not published:
            break
        fell += 1
        assert not verify(store).damage, f"step {step}"
        assert name_of(published[0]) in {found.name for found in store.scan("configs")}
    assert fell > 8
