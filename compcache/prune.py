"""Prune: first a plan (data), then its execution, which looks again before each removal.

Order is what keeps a store whole at any instruction:

- a start-up goes before the graph programs that it needs, and an entry before its blobs, so that a kill in between
  leaves programs that nothing names and blobs that nothing refers to, never the reverse;
- the last use of a graph program is the latest of its own and of the start-ups that name it, so that the least
  recently used order takes start-ups first, and one in use protects its graphs; so does a pin;
- a blob goes only if no remaining entry refers to it and it is older than the grace period: a writer that reuses a
  blob refreshes it before it publishes the entry, and looks afterwards whether it is still there;
- what was touched since the plan was made stays (the store compares mtimes as it removes), and so does a program that
  a start-up published since then names.

If an entry cannot be read for reasons of the moment, nobody knows what it refers to: then no blob goes at all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from compcache.contents import Contents, Remembered, StoredEntry, contents
from compcache.failpoints import Name, reached
from compcache.store import layout
from compcache.store.protocol import Found, Store

GRACE_SECONDS = 3600.0
"""Blobs younger than this may belong to a program that is being published."""
SLACK_SECONDS = 3600.0
"""How far the clocks of two hosts may differ before what was just used counts as old."""
LEFTOVER_SECONDS = 86400.0
"""What a killed process left in tmp/, trash/ or leases/ is nobody's after a day: no lease is renewed that long."""


class Removal(NamedTuple):
    """One file that goes. ``why``: "age", "size", "dependent" (its program goes), "unreferenced" or "leftover"."""

    found: Found
    why: str
    entry: StoredEntry | None = None

    @property
    def name(self) -> str:
        return self.found.name


@dataclass(frozen=True, slots=True)
class Plan:
    """What prune would do. Bytes are those of all files of the store."""

    entries: tuple[Removal, ...]
    """In order: start-ups before the graph programs that they need."""
    blobs: tuple[Removal, ...]
    others: tuple[Removal, ...]
    """Leftovers, quarantined files, and the shared files of configurations that have no program left."""
    bytes_before: int
    bytes_young: int
    """Of blobs that nothing refers to once the plan is done, too young to go now: a later prune frees them."""
    spares_blobs: bool = False
    """Some entry could not be read, so that no blob goes."""

    @property
    def removals(self) -> tuple[Removal, ...]:
        return (*self.entries, *self.blobs, *self.others)

    @property
    def bytes_freed(self) -> int:
        return sum(removal.found.size for removal in self.removals)

    @property
    def bytes_after(self) -> int:
        return self.bytes_before - self.bytes_freed


@dataclass(slots=True)
class Outcome:
    """What an execution did: ``spared`` was touched, or needed again, since the plan; or was gone already."""

    removed: list[Removal] = field(default_factory=list)
    spared: list[Removal] = field(default_factory=list)

    @property
    def bytes_freed(self) -> int:
        return sum(removal.found.size for removal in self.removed)


def plan(
    store: Store,
    *,
    max_size: int | None = None,
    max_files: int | None = None,
    max_age: float | None = None,
    grace: float = GRACE_SECONDS,
    clock: Callable[[], float] = time.time,
    remembered: Remembered | None = None,
) -> Plan:
    """What has to go so that the store has at most ``max_size`` bytes in ``max_files`` files, and nothing unused for
    ``max_age`` seconds.

    Without limits only what nobody refers to goes.
    """
    stored = contents(store, remembered=remembered)
    return planned(stored, max_size=max_size, max_files=max_files, max_age=max_age, grace=grace, clock=clock)


def planned(
    stored: Contents,
    *,
    max_size: int | None = None,
    max_files: int | None = None,
    max_age: float | None = None,
    grace: float = GRACE_SECONDS,
    in_use: float = 0.0,
    clock: Callable[[], float] = time.time,
) -> Plan:
    """As :func:`plan`, of what was looked at. Entries used within ``in_use`` seconds stay, whatever the size."""
    return _Planning(stored, clock(), grace, in_use).plan(max_size, max_files, max_age)


class _Planning:
    """The state of one plan: which entries are left, and how many of them refer to each blob."""

    def __init__(self, stored: Contents, now: float, grace: float, in_use: float) -> None:
        self.stored = stored
        self.now = now
        self.grace = grace
        self.in_use = in_use
        self.going: dict[str, Removal] = {}
        self.references = Counter([digest for entry in stored.entries for digest in entry.digests])
        # Bytes that are left to count: without those that go, or will go once they are old enough.
        orphans = [blob for digest, blob in stored.blobs.items() if digest not in self.references]
        self.bytes = stored.bytes
        self.left = self.bytes - sum(blob.size for blob in orphans)
        self.files = stored.count - len(orphans)
        self.needed_by: dict[str, list[StoredEntry]] = {}
        for entry in stored.entries:
            for key in entry.programs:
                self.needed_by.setdefault(key, []).append(entry)
        self.spares_blobs = any(skipped.kind == "unread" for skipped in stored.skipped)

    def plan(self, max_size: int | None, max_files: int | None, max_age: float | None) -> Plan:
        def full() -> bool:
            return (max_size is not None and self.left > max_size) or (max_files is not None and self.files > max_files)

        others = self._leftovers(max_age)
        for removal in others:
            self._out(removal.found)
        candidates = self._candidates()
        if max_age is not None:
            for last_use, found, entry in candidates:
                if self.now - last_use > max_age:
                    self._go(found, entry, "age")
        quarantined = sorted(self.stored.leftovers["quarantine"], key=lambda found: found.mtime)
        others += self._surplus_quarantine(quarantined, full, others)
        for last_use, found, entry in candidates:
            if not full():
                break
            # A server's clock may be ahead of ours; a last use in the far future protects no entry for ever.
            ahead = SLACK_SECONDS if self.in_use else 0.0
            if not -ahead <= self.now - last_use < self.in_use and found.name not in self.going:
                self._go(found, entry, "size")
        return self._result(others)

    def _out(self, found: Found) -> None:
        self.left -= found.size
        self.files -= 1

    def _candidates(self) -> list[tuple[float, Found, StoredEntry | None]]:
        """Entries that may go, the least recently used first, a start-up before its graphs; damaged ones as well."""
        pinned = self._pinned()
        rows: list[tuple[float, bool, str, Found, StoredEntry | None]] = [
            (self._last_use(entry), not entry.programs, entry.found.name, entry.found, entry)
            for entry in self.stored.entries
            if not pinned or entry.program_key not in pinned
        ]
        for skipped in self.stored.skipped:
            name = layout.parse_entry_name(skipped.name)
            if skipped.kind == "damaged" and name and name.program_key not in pinned:
                rows.append((skipped.found.mtime, True, skipped.name, skipped.found, None))
        rows.sort()  # no two have the same name
        return [(last_use, found, entry) for last_use, _, _, found, entry in rows]

    def _pinned(self) -> set[str]:
        pinned = set(self.stored.pins)
        return pinned | {key for entry in self.stored.entries if entry.program_key in pinned for key in entry.programs}

    def _dependents(self, entry: StoredEntry) -> list[StoredEntry]:
        named = self.needed_by.get(entry.program_key, ()) if self.needed_by else ()
        return [other for other in named if other.configuration_key == entry.configuration_key] if named else []

    def _last_use(self, entry: StoredEntry) -> float:
        dependents = self._dependents(entry)
        return max([entry.found.mtime, *(d.found.mtime for d in dependents)]) if dependents else entry.found.mtime

    def _go(self, found: Found, entry: StoredEntry | None, why: str) -> None:
        """Let an entry go, after those that need it (whoever wrote them: they may name each other in a circle)."""
        if entry is None or not self._dependents(entry):
            self._count_out(Removal(found, why, entry))
            return
        together = {found.name: Removal(found, why, entry)}
        pending = [entry]
        while pending:
            for dependent in self._dependents(pending.pop()):
                if dependent.found.name not in together:
                    together[dependent.found.name] = Removal(dependent.found, "dependent", dependent)
                    pending.append(dependent)
        for removal in reversed(together.values()):
            self._count_out(removal)

    def _count_out(self, removal: Removal) -> None:
        found, _, entry = removal
        if found.name in self.going:
            return
        self.going[found.name] = removal
        self._out(found)
        for digest in entry.digests if entry else ():
            left = self.references[digest] = self.references[digest] - 1
            if not left and (blob := self.stored.blobs.get(digest)) is not None:
                self._out(blob)

    def _leftovers(self, max_age: float | None) -> list[Removal]:
        groups = self.stored.leftovers
        old = [f for place in ("tmp", "trash", "leases") for f in groups[place] if self._older(f, LEFTOVER_SECONDS)]
        old += [f for f in groups["leases"] if not f.size and self._older(f, self.grace) and f not in old]
        removals = [Removal(found, "leftover") for found in old]
        if max_age is not None:
            removals += [Removal(found, "age") for found in groups["quarantine"] if self._older(found, max_age)]
        return removals

    def _surplus_quarantine(
        self, quarantined: list[Found], full: Callable[[], bool], others: list[Removal]
    ) -> list[Removal]:
        """Quarantined files are kept for a look while there is room; they save nobody a compile, so they go first."""
        gone = {removal.name for removal in others}
        removals: list[Removal] = []
        for found in quarantined:
            if full() and found.name not in gone:
                removals.append(Removal(found, "size"))
                self._out(found)
        return removals

    def _older(self, found: Found, seconds: float) -> bool:
        return self.now - found.mtime > seconds

    def _result(self, others: list[Removal]) -> Plan:
        orphans = [found for digest, found in self.stored.blobs.items() if not self.references[digest]]
        old = [] if self.spares_blobs else [found for found in orphans if self._older(found, self.grace)]
        blobs = tuple(Removal(found, "unreferenced") for found in sorted(old, key=lambda found: found.name))
        return Plan(
            entries=tuple(self.going.values()),
            blobs=blobs,
            others=(*others, *self._shared_files()),
            bytes_before=self.bytes,
            bytes_young=sum(found.size for found in orphans) - sum(found.size for found in old),
            spares_blobs=self.spares_blobs,
        )

    def _shared_files(self) -> Iterator[Removal]:
        """config.json and modules.json of configurations in which no entry is left."""
        entries = [*(e.found for e in self.stored.entries), *(s.found for s in self.stored.skipped)]
        alive = {_folder(found) for found in entries if found.name not in self.going}
        for found in (*self.stored.configs.values(), *self.stored.modules):
            if _folder(found) not in alive and self._older(found, self.grace):
                yield Removal(found, "unreferenced")


def _folder(found: Found) -> str:
    return found.name.rpartition("/")[0]


def execute(store: Store, planned: Plan, *, remembered: Remembered | None = None) -> Outcome:
    """Do what was planned, as far as it still holds. Raises StoreError where the store refuses a removal.

    ``remembered`` spares it to read again every entry of the store, where blobs are to go.
    """
    outcome = Outcome()
    for folder, removals in _by_folder(planned.entries).items():
        _remove_entries(store, folder, removals, outcome)
    if planned.blobs:
        _remove_blobs(store, planned.blobs, outcome, remembered)
    _remove_others(store, planned.others, outcome)
    return outcome


def _remove(store: Store, removal: Removal, outcome: Outcome, step: Name) -> bool:
    removed = store.discard(removal.name, removal.found.mtime)
    reached(step)
    (outcome.removed if removed else outcome.spared).append(removal)
    return removed


def _remove_entries(store: Store, folder: str, removals: Iterable[Removal], outcome: Outcome) -> None:
    """The entries of one configuration, start-ups first.

    What was touched or pinned since the plan is spared, and so is a program that a start-up still names (one that is
    spared itself, or was published since the plan).
    """
    now = contents(store, folder)
    pinned = {found.name.rpartition("/")[2] for found in store.scan("pins")}
    there = {found.name: found.mtime for found in now.found()}
    going = {removal.name for removal in removals if there.get(removal.name) == removal.found.mtime}
    going -= {entry.found.name for entry in now.entries if entry.program_key in pinned}
    needed = {key for entry in now.entries if entry.found.name not in going for key in entry.programs}
    unread = any(skipped.kind == "unread" for skipped in now.skipped)
    for removal in sorted(removals, key=lambda removal: not (removal.entry and removal.entry.programs)):
        key = removal.entry.program_key if removal.entry else ""
        if unread or removal.name not in going or key in needed:
            outcome.spared.append(removal)
        elif _remove(store, removal, outcome, "prune.entry"):
            continue
        if removal.entry and removal.name in there:
            needed.update(removal.entry.programs)


def _by_folder(removals: Iterable[Removal]) -> dict[str, list[Removal]]:
    groups: dict[str, list[Removal]] = {}
    for removal in removals:
        groups.setdefault(_folder(removal.found), []).append(removal)
    return groups


def _remove_blobs(
    store: Store, removals: Iterable[Removal], outcome: Outcome, remembered: Remembered | None = None
) -> None:
    """Blobs that no entry of this moment refers to. None, if an entry cannot be read."""
    now = contents(store, "configs", remembered=remembered)
    unread = any(skipped.kind == "unread" for skipped in now.skipped)
    needed = {digest for entry in now.entries for digest in entry.digests}
    for removal in removals:
        if unread or layout.parse_blob_name(removal.name) in needed:
            outcome.spared.append(removal)
        else:
            _remove(store, removal, outcome, "prune.blob")


def _remove_others(store: Store, removals: Iterable[Removal], outcome: Outcome) -> None:
    alive = {_folder(found) for found in store.scan("configs") if layout.parse_entry_name(found.name)}
    for removal in removals:
        if removal.name.startswith("configs/") and _folder(removal.found) in alive:
            outcome.spared.append(removal)
        else:
            _remove(store, removal, outcome, "prune.other")
