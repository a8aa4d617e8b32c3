"""Prune: what a plan takes, what it spares, and what happens between plan and execution."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import filled
import pytest
from prune_case import DAY, HOUR, Case, name_of

from compcache import lease
from compcache.cache import Draft, Part
from compcache.entry import Entry, ProgramRef
from compcache.factors import Factors
from compcache.prune import execute, plan
from compcache.store import layout
from compcache.testing.filesystems import Every, hostile
from compcache.verify import verify


@pytest.fixture
def case() -> Iterator[Case]:
    case = Case()
    yield case
    assert case.whole(), verify(case.store).damage


def test_without_limits_only_what_nothing_refers_to_goes(case: Case) -> None:
    filled.piecewise(case.cache)
    case.clock.now += 400 * DAY
    assert case.plan().removals == ()


def test_age_takes_what_was_not_used(case: Case) -> None:
    old, _ = filled.piecewise(case.cache)
    case.clock.now += 10 * DAY
    new = filled.graph(case.cache, "8", model="Qwen3 2x64")
    assert case.plan(max_age=10 * DAY).removals == ()  # not older than the limit
    case.clock.now += 1.0
    planned = case.plan(max_age=10 * DAY)
    assert {removal.why for removal in planned.entries} == {"age"}
    before = case.bytes
    outcome = execute(case.store, planned)
    assert outcome.spared == []
    assert outcome.bytes_freed == planned.bytes_freed == before - case.bytes
    assert planned.bytes_after == case.bytes
    assert case.has(new)
    assert not any(case.has(entry) for entry in old)
    # Its configuration's shared file went with the last entry, the blob that the other configuration shares stayed.
    assert {name.split("/")[0] for name in case.names()} == {"configs", "blobs"}
    assert len(case.names()) == 2 + len(new.blobs)


def test_size_takes_the_least_recently_used_first(case: Case) -> None:
    entries = []
    for number in range(6):
        entries.append(filled.graph(case.cache, str(number + 1), kernel=os.urandom(2000)))
        case.clock.now += HOUR
    case.store.refresh(name_of(entries[0]))  # used again
    case.clock.now += 2 * HOUR
    limit = case.bytes - 2500
    planned = case.plan(max_size=limit)
    assert [removal.name for removal in planned.entries] == [name_of(entries[1])]
    assert planned.bytes_after <= limit
    execute(case.store, planned)
    assert case.bytes == planned.bytes_after
    assert [case.has(entry) for entry in entries] == [True, False, True, True, True, True]


def test_a_limit_that_holds_already_takes_nothing(case: Case) -> None:
    filled.piecewise(case.cache)
    assert case.plan(max_size=case.bytes).removals == ()


def test_a_blob_lives_as_long_as_either_of_two_entries(case: Case) -> None:
    first, second = filled.graph(case.cache, "1"), filled.graph(case.cache, "2")
    shared = layout.blob(first.blobs_with("kernel")[0].digest)
    case.clock.now += 2 * DAY
    case.store.refresh(name_of(second))
    case.prune(max_age=DAY)
    assert not case.has(first)
    assert shared in case.names()
    case.clock.now += 2 * DAY
    case.prune(max_age=DAY)
    assert case.names() == set()


def test_a_start_up_in_use_keeps_its_graphs(case: Case) -> None:
    _, start_up = filled.piecewise(case.cache)
    case.clock.now += 30 * DAY
    case.store.refresh(name_of(start_up))
    assert case.plan(max_age=DAY).entries == ()
    # By size, the other configuration goes first though its mtime is later than that of the graphs.
    case.clock.now -= DAY
    other = filled.graph(case.cache, "8", model="Qwen3 2x64")
    case.clock.now += 2 * DAY
    planned = case.plan(max_size=case.bytes - 1)
    assert [removal.name for removal in planned.entries] == [name_of(other)]


def test_a_start_up_never_stays_without_its_graphs(case: Case) -> None:
    graphs, start_up = filled.piecewise(case.cache)
    case.clock.now += 2 * HOUR
    for limit in range(0, case.bytes, 400):
        names = [removal.name for removal in case.plan(max_size=limit).entries]
        if set(names) & {name_of(graph) for graph in graphs}:
            assert names[0] == name_of(start_up)


@pytest.mark.parametrize("kept", range(8))
def test_a_kill_after_any_removal_leaves_a_whole_store(case: Case, kept: int) -> None:
    filled.piecewise(case.cache)
    case.clock.now += 2 * HOUR
    planned = case.plan(max_size=0)
    discard, calls = case.store.discard, iter(range(100))

    def dies(name: str, mtime: float) -> bool:
        if next(calls) >= kept:
            raise KeyboardInterrupt
        return discard(name, mtime)

    case.store.discard = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        execute(case.store, planned)
    assert case.whole()
    case.store.discard = discard  # type: ignore[method-assign]
    case.prune(max_size=0)
    assert case.names() == set()


def test_pins_protect_a_program_and_what_it_needs(case: Case) -> None:
    graphs, start_up = filled.piecewise(case.cache)
    extra = filled.graph(case.cache, "16")
    case.store.create(layout.pin(start_up.program_key), b"")
    case.clock.now += 400 * DAY
    planned = case.plan(max_size=0, max_age=1.0)
    assert [removal.name for removal in planned.entries] == [name_of(extra)]
    execute(case.store, planned)
    assert case.has(start_up)
    assert all(case.has(graph) for graph in graphs)
    assert not case.has(extra)


def test_young_blobs_stay_and_are_counted_as_gone_later(case: Case) -> None:
    first = filled.graph(case.cache, "1", kernel=os.urandom(2000))
    case.clock.now += 1.0
    second = filled.graph(case.cache, "2", kernel=os.urandom(2000))
    # Taking the first is enough, though its blobs cannot go yet: the second is not taken for their sake.
    planned = case.plan(max_size=case.bytes - 1500)
    assert [removal.name for removal in planned.entries] == [name_of(first)]
    assert planned.blobs == ()
    assert planned.bytes_young == first.size
    execute(case.store, planned)
    again = case.plan(max_size=case.bytes - 1500)
    assert again.entries == ()
    case.clock.now += HOUR + 1
    assert len(case.plan().blobs) == 2
    case.prune()
    assert case.has(second)
    assert case.plan().bytes_young == 0
    assert not any(layout.blob(blob.digest) in case.names() for blob in first.blobs)


def test_the_grace_period_is_a_parameter(case: Case) -> None:
    case.store.create(layout.blob("0" * 64), b"orphan")
    case.clock.now += 10.0
    assert case.plan().blobs == ()
    assert len(case.plan(grace=5.0).blobs) == 1
    case.store.remove(layout.blob("0" * 64))


def test_leftovers(case: Case) -> None:
    filled.piecewise(case.cache)
    held = lease.acquire(case.store, "held", renew=False)
    assert held is not None
    case.store.create("tmp/" + "0" * 32, b"old")
    case.store.create("trash/" + "1" * 32, b"old")
    case.store.create("leases/empty.json", b"")
    case.clock.now += HOUR + 1
    assert [removal.name for removal in case.plan().others] == ["leases/empty.json"]
    case.clock.now += DAY
    case.store.create("tmp/" + "2" * 32, b"young")
    case.store.create(layout.lease("young"), b"")
    gone = {"tmp/" + "0" * 32, "trash/" + "1" * 32, "leases/empty.json", layout.lease("held")}
    planned = case.plan()
    assert {removal.name for removal in planned.others} == gone
    assert {removal.why for removal in planned.others} == {"leftover"}
    assert {removal.name for removal in execute(case.store, planned).removed} == gone
    assert "tmp/" + "2" * 32 in case.names()


def test_quarantined_files_stay_while_there_is_room(case: Case) -> None:
    entry = filled.graph(case.cache, "8")
    case.store.create("tmp/bad", b"x" * 1000)
    case.store.quarantine("tmp/bad", "for a look")
    case.clock.now += 2 * HOUR
    assert case.plan(max_size=case.bytes).removals == ()
    outcome = case.prune(max_size=case.bytes - 900)
    assert outcome.bytes_freed >= 1000
    assert case.has(entry)
    case.store.create("tmp/bad", b"x")
    case.store.quarantine("tmp/bad", "for a look")
    case.clock.now += 2 * DAY
    case.store.refresh(name_of(entry))
    assert len(case.prune(max_age=DAY).removed) == 3  # two of that, and the reason that the first left


def test_unknown_files_are_never_touched(tmp_path: Path) -> None:
    root = tmp_path / "store"
    cache = filled.cache_at(root)
    filled.piecewise(cache)
    (root / "v1" / "letter.txt").write_text("keep me")
    (root / "v1" / "blobs" / "letter.txt").write_text("keep me")
    filled.make_old(root, 400 * DAY)
    execute(cache.store, plan(cache.store, max_size=0, max_age=0.0))
    assert list(filled.snapshot(root)) == ["CACHEDIR.TAG", "v1/blobs/letter.txt", "v1/letter.txt"]


def test_damaged_entries_count_and_go_by_age(tmp_path: Path) -> None:
    root = tmp_path / "store"
    cache = filled.cache_at(root)
    entry = filled.graph(cache, "8")
    filled.path_of(root, entry).write_bytes(b"damaged")
    filled.make_old(root, 2 * DAY)
    planned = plan(cache.store, max_age=DAY)
    assert [removal.entry for removal in planned.entries] == [None]
    execute(cache.store, planned)
    assert list(filled.snapshot(root)) == ["CACHEDIR.TAG"]


def test_no_blob_goes_while_an_entry_cannot_be_read(tmp_path: Path) -> None:
    root = tmp_path / "store"
    cache = filled.cache_at(root)
    entry = filled.graph(cache, "8")
    filled.path_of(root, entry).chmod(0o666)  # not trusted now: nobody knows what it refers to
    filled.make_old(root, 2 * DAY)
    before = filled.snapshot(root)
    planned = plan(cache.store, max_size=0, max_age=0.0)
    assert planned.spares_blobs
    assert planned.removals == ()
    execute(cache.store, planned)
    assert filled.snapshot(root) == before


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EBUSY])
def test_no_blob_goes_while_a_network_mount_does_not_answer(tmp_path: Path, number: int) -> None:
    root = tmp_path / "store"
    cache = filled.cache_at(root)
    graphs, _ = filled.piecewise(cache)
    entry = str(filled.path_of(root, graphs[0]))
    filled.make_old(root, 2 * DAY)

    class OneEntry(Every):
        """Opening that entry fails."""

        def before(self, call: str, paths: tuple[str, ...]) -> None:
            if call == "open" and paths[0] == entry:
                super().before(call, paths)

    before = filled.snapshot(root)
    with hostile(root, OneEntry(1, number)):
        planned = plan(cache.store, max_size=0)
        assert planned.spares_blobs
        execute(cache.store, planned)
    after = filled.snapshot(root)
    assert {n for n in before if "/blobs/" in n} == {n for n in after if "/blobs/" in n}


def test_programs_that_name_each_other_in_a_circle(case: Case) -> None:
    factors = [Factors({"s": 1}, {"n": number}) for number in range(3)]
    for number, one in enumerate(factors):
        refs = (ProgramRef(factors[(number + 1) % 3].program_key),)
        entry = Entry("start-up", one, (), programs=refs)
        case.store.create(name_of(entry), entry.to_bytes())
    case.clock.now += 2 * HOUR
    case.prune(max_size=0)
    assert case.names() == set()


def test_whatever_needs_a_program_goes_with_it(case: Case) -> None:
    """One level of naming is what start-ups do; a store that holds more of it stays whole all the same."""
    last = filled.graph(case.cache, "1")
    shared = last.factors.shared
    entries = [last]
    for number in range(3):
        refs = (ProgramRef(entries[-1].program_key),)
        draft = Draft("start-up", Factors(shared, {"n": number}), (Part("segment", b"x"),), programs=refs)
        entries.append(case.cache.publish(draft))
    case.clock.now += 2 * DAY
    case.store.refresh(name_of(entries[-1]))
    planned = case.plan(max_age=DAY)
    whys = {removal.name: removal.why for removal in planned.entries}
    assert whys.keys() == {name_of(entry) for entry in entries}
    assert whys[name_of(entries[-1])] == "dependent"
    execute(case.store, planned)
    assert not any(case.has(entry) for entry in entries)
