"""A store in rows for people: configurations, ranges, programs.

Bytes and files of a row are those of its entries and of the blobs that they refer to, each blob counted once in every
row: two rows that share a blob both count it, the sum over the store does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from compcache.contents import CONFIGURATION_FIELDS, Contents, Remembered, Skipped, StoredEntry, contents
from compcache.records import Usage
from compcache.store.protocol import Store

START_UP = "start-up"


@dataclass(frozen=True, slots=True)
class Measure:
    """What a row adds up to. Seconds are those that its programs cost to compile; ``last_use`` is a Unix time."""

    programs: int
    bytes: int
    files: int
    compile_seconds: float
    last_use: float
    hits: int


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """One program."""

    key: str
    kind: str
    range: str
    part: str
    graphs: str
    rank: str
    measure: Measure


@dataclass(frozen=True, slots=True)
class RangeRow:
    """The programs of one compile range: a symbolic one, one batch size, or the start-ups."""

    range: str
    symbolic: bool
    size: int | None
    measure: Measure
    programs: tuple[ProgramRow, ...]
    """Empty where they were not asked for."""


@dataclass(frozen=True, slots=True)
class ConfigurationRow:
    """One configuration; ``named`` has those of CONFIGURATION_FIELDS that are known."""

    key: str
    named: Mapping[str, str]
    measure: Measure
    ranges: tuple[RangeRow, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """A store in rows: configurations, the last used first. ``bytes`` and ``files`` count every file of the store."""

    label: str
    configurations: tuple[ConfigurationRow, ...]
    programs: int
    bytes: int
    files: int
    skipped: tuple[Skipped, ...]


def inventory(
    store: Store,
    usages: Mapping[str, Usage] | None = None,
    *,
    programs: bool = True,
    remembered: Remembered | None = None,
) -> Inventory:
    """The rows of a store; ``usages`` is what this host's index knows, by program key.

    Without ``programs``, ranges are the last level: their rows hold no programs.
    """
    stored = contents(store, remembered=remembered)
    by_configuration: dict[str, list[StoredEntry]] = {}
    for entry in stored.entries:
        by_configuration.setdefault(entry.configuration_key, []).append(entry)
    making = _Rows(stored, usages or {}, programs)
    rows = [making.configuration(key, entries) for key, entries in by_configuration.items()]
    return Inventory(
        label=store.label,
        configurations=tuple(sorted(rows, key=lambda row: (-row.measure.last_use, row.key))),
        programs=len(stored.entries),
        bytes=stored.bytes,
        files=stored.count,
        skipped=tuple(stored.skipped),
    )


def range_of(entry: StoredEntry) -> str:
    """The range that a program is for, as shown: "symbolic 1..2048", "8", or "start-up"."""
    return entry.display.get("range") or (START_UP if entry.kind == START_UP else "-")


def _order(name: str) -> tuple[int, int, str]:
    """Symbolic ranges first, then batch sizes in number order, then start-ups, then the rest."""
    if name.startswith("symbolic"):
        return 0, 0, name
    if size := _size(name):
        return 1, size, name
    return (2 if name == START_UP else 3), 0, name


def _size(name: str) -> int | None:
    return int(name) if re.fullmatch(r"[0-9]{1,18}", name) else None


class _Rows:
    """Makes the rows of one look at a store."""

    def __init__(self, stored: Contents, usages: Mapping[str, Usage], programs: bool) -> None:
        self.blobs = stored.blobs
        self.usages = usages
        self.programs = programs

    def configuration(self, key: str, entries: list[StoredEntry]) -> ConfigurationRow:
        by_range: dict[str, list[StoredEntry]] = {}
        for entry in entries:
            by_range.setdefault(range_of(entry), []).append(entry)
        newest = max(entries, key=lambda entry: (len(entry.display), entry.found.mtime))
        return ConfigurationRow(
            key=key,
            named={name: newest.display[name] for name in CONFIGURATION_FIELDS if name in newest.display},
            measure=self._measure(entries),
            ranges=tuple(self._range(name, by_range[name]) for name in sorted(by_range, key=_order)),
        )

    def _range(self, name: str, entries: list[StoredEntry]) -> RangeRow:
        programs = [self._program(entry) for entry in entries] if self.programs else []
        return RangeRow(
            range=name,
            symbolic=name.startswith("symbolic"),
            size=_size(name),
            measure=self._measure(entries),
            programs=tuple(sorted(programs, key=lambda row: (row.graphs, row.part, row.rank, row.key))),
        )

    def _program(self, entry: StoredEntry) -> ProgramRow:
        return ProgramRow(
            key=entry.program_key,
            kind=entry.kind,
            range=range_of(entry),
            part=entry.display.get("part", ""),
            graphs=entry.display.get("graphs", ""),
            rank=entry.display.get("rank", ""),
            measure=self._measure([entry]),
        )

    def _measure(self, entries: list[StoredEntry]) -> Measure:
        digests = {digest for entry in entries for digest in entry.digests if digest in self.blobs}
        used = [self.usages[key] for entry in entries if (key := entry.program_key) in self.usages]
        return Measure(
            programs=len(entries),
            bytes=sum(entry.found.size for entry in entries) + sum(self.blobs[digest].size for digest in digests),
            files=len(entries) + len(digests),
            compile_seconds=sum(entry.compile_seconds for entry in entries),
            last_use=max([entry.found.mtime for entry in entries] + [usage.last_used for usage in used]),
            hits=sum(usage.hits for usage in used),
        )
