"""A store in rows for people: configurations, ranges, programs.

Bytes and files of a row are those of its entries and of the blobs that they refer to (whether these are there is for
verify to say), each blob counted once in every row: two rows that share a blob both count it, the sum over the store
does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from compcache.contents import (
    CONFIGURATION_FIELDS,
    Contents,
    Remembered,
    Skipped,
    StoredEntry,
    contents,
    folder_contents,
    in_order,
    sort_into,
)
from compcache.listing import Listing, Shown
from compcache.records import Usage
from compcache.store import layout
from compcache.store.protocol import Folder, Found, Store

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
    making = _Rows(usages or {}, programs)
    rows = [making.configuration(key, entries) for key, entries in _by_configuration(stored).items()]
    return Inventory(
        label=store.label,
        configurations=tuple(sorted(rows, key=lambda row: (-row.measure.last_use, row.key))),
        programs=len(stored.entries),
        bytes=stored.bytes,
        files=stored.count,
        skipped=tuple(stored.skipped),
    )


@dataclass(slots=True)
class Showing:
    """A store as texts, one a configuration; the last used first."""

    label: str
    configurations: list[tuple[str, Shown]] = field(default_factory=list)
    """By configuration key."""
    programs: int = 0
    bytes: int = 0
    files: int = 0
    """Of the whole store, if they were asked for."""
    skipped: list[Skipped] = field(default_factory=list)


def showing(
    store: Store,
    usages: Mapping[str, Usage],
    show: Callable[[ConfigurationRow], str],
    *,
    way: str,
    listing: Listing,
    programs: bool = False,
    totals: bool = True,
) -> Showing:
    """Every configuration as the text that ``show`` makes of its row.

    A text is made once and remembered under ``way``, so that 100,000 programs are listed without a look at each. Where
    ``usages`` knows of a program, it is made again. Without ``totals``, bytes and files stay 0, and only the folders of
    configurations are looked at.
    """
    made = Showing(store.label)
    look = _Look(store, _Rows(usages, programs), show, way, listing, made)
    folders = in_order(store, "" if totals else "configs")
    if folders is None:
        look.at_all_of(contents(store, "" if totals else "configs"))
    for folder in folders or ():
        look.at(folder, totals)
    for place in layout.FOLDERS if folders is not None and totals else ():
        if place not in layout.DEEP:
            _add_sums(made, contents(store, place))
    if not totals:
        made.bytes = made.files = 0
    made.programs = sum(len(shown.keys) for _, shown in made.configurations)
    made.configurations.sort(key=lambda pair: (-pair[1].last_use, pair[0]))
    return made


@dataclass(frozen=True, slots=True)
class _Look:
    """Fills a Showing."""

    store: Store
    rows: _Rows
    show: Callable[[ConfigurationRow], str]
    way: str
    listing: Listing
    made: Showing

    def at(self, folder: Folder | Found, totals: bool) -> None:
        if not isinstance(folder, Folder):
            held = Contents()
            sort_into(self.store, folder, held)
            _add_sums(self.made, held)
        elif not self._remembered(folder, totals):
            held = folder_contents(self.store, folder, self.listing)
            _add_sums(self.made, held)
            if held.entries:
                shown = self._shown(held.entries)
                if self.rows.usages.keys().isdisjoint(shown.keys):
                    self.listing.show(self.way, folder, shown)

    def at_all_of(self, held: Contents) -> None:
        _add_sums(self.made, held)
        for entries in _by_configuration(held).values():
            self._shown(entries)

    def _remembered(self, folder: Folder, totals: bool) -> bool:
        """Take what this host has seen of a folder; False if that is not enough."""
        place, key = folder.name.partition("/")[0], folder.name.rpartition("/")[2]
        size = self.listing.size(folder) if totals else (0, 0)
        if size is None:
            return False
        if place == "configs":
            shown = self.listing.shown(self.way, folder)
            if shown is None or not self.rows.usages.keys().isdisjoint(shown.keys):
                return False
            self.made.configurations.append((key, shown))
        self.made.bytes += size[0]
        self.made.files += size[1]
        return True

    def _shown(self, entries: list[StoredEntry]) -> Shown:
        row = self.rows.configuration(entries[0].configuration_key, entries)
        shown = Shown(row.measure.last_use, [entry.program_key for entry in entries], self.show(row))
        self.made.configurations.append((row.key, shown))
        return shown


def _by_configuration(held: Contents) -> dict[str, list[StoredEntry]]:
    groups: dict[str, list[StoredEntry]] = {}
    for entry in held.entries:
        groups.setdefault(entry.configuration_key, []).append(entry)
    return groups


def _add_sums(made: Showing, held: Contents) -> None:
    made.bytes += held.bytes
    made.files += held.count
    made.skipped += held.skipped


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

    def __init__(self, usages: Mapping[str, Usage], programs: bool) -> None:
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
        blobs = {d: size for entry in entries for d, size in zip(entry.digests, entry.blob_sizes, strict=True)}
        used = [self.usages[key] for entry in entries if (key := entry.program_key) in self.usages]
        return Measure(
            programs=len(entries),
            bytes=sum(entry.found.size for entry in entries) + sum(blobs.values()),
            files=len(entries) + len(blobs),
            compile_seconds=sum(entry.compile_seconds for entry in entries),
            last_use=max([entry.found.mtime for entry in entries] + [usage.last_used for usage in used]),
            hits=sum(usage.hits for usage in used),
        )
