"""What is in a store: its files by kind, and rows for people (configurations, ranges, programs).

Read-only. A file that cannot be used is counted with its reason and skipped; nothing here raises for one bad file.
Bytes and files of a row are those of its entries and of the blobs that they refer to, each blob counted once in every
row: two rows that share a blob both count it, the sum over the store does not.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from compcache.entry import KINDS, MAX_ENTRY_BYTES, BlobRef, Entry, ProgramRef, parse_entry, parse_summary
from compcache.errors import Damaged, NotStored, StoreError
from compcache.factors import JsonValue
from compcache.records import Usage
from compcache.store import layout
from compcache.store.protocol import Found, Store

CONFIGURATION_FIELDS = ("model", "dtype", "quantization", "parallel", "engine", "toolchain", "hardware", "mode")
"""What names a configuration, in the order in which it is shown."""
START_UP = "start-up"
_DISPLAY = (*CONFIGURATION_FIELDS, "range", "part", "graphs", "rank")
_LEFTOVERS = ("tmp", "trash", "leases", "quarantine")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that could not be used: ``kind`` is "damaged", "unread" (not now, or not by us) or "unknown"."""

    name: str
    kind: str
    reason: str
    found: Found


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """What rows and plans need of an entry; its factors are not kept, so that a large store fits in memory."""

    found: Found
    configuration_key: str
    program_key: str
    kind: str
    blobs: tuple[BlobRef, ...]
    programs: tuple[str, ...]
    compile_seconds: float
    display: Mapping[str, str]

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(blob.digest for blob in self.blobs)


@dataclass(slots=True)
class Contents:
    """Every file of a store, by kind."""

    entries: list[StoredEntry] = field(default_factory=list)
    blobs: dict[str, Found] = field(default_factory=dict)
    configs: dict[str, Found] = field(default_factory=dict)
    modules: list[Found] = field(default_factory=list)
    pins: dict[str, Found] = field(default_factory=dict)
    leftovers: dict[str, list[Found]] = field(default_factory=lambda: {place: [] for place in _LEFTOVERS})
    """By folder: tmp, trash, leases, quarantine."""
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(found.size for found in self.found())

    @property
    def count(self) -> int:
        """How many files there are."""
        return sum(1 for _ in self.found())

    def found(self) -> Iterable[Found]:
        """Every file once."""
        yield from (entry.found for entry in self.entries)
        for group in (self.blobs, self.configs, self.pins):
            yield from group.values()
        yield from self.modules
        for leftover in self.leftovers.values():
            yield from leftover
        yield from (skipped.found for skipped in self.skipped)


def read_entry(store: Store, found: Found) -> Entry:
    """The entry in a file that a scan found; damage is looked at twice. Raises NotStored, Damaged or StoreError."""
    name = layout.parse_entry_name(found.name)
    if name is None:
        raise Damaged(f"{found.name} is not the name of an entry")
    for attempt in (1, 2):
        try:
            entry = parse_entry(store.read(found.name, MAX_ENTRY_BYTES), program_key=name.program_key)
            if entry.configuration_key != name.configuration_key:
                raise Damaged("the entry is in the folder of another configuration")
            return entry
        except Damaged:
            if attempt == 2:
                raise
    raise AssertionError("unreachable")


def read_summary(store: Store, found: Found, name: layout.EntryName) -> StoredEntry:
    """As :func:`read_entry`, for listings and plans: the digest is checked, keys are not recomputed."""
    for attempt in (1, 2):
        try:
            summary = parse_summary(store.read(found.name, MAX_ENTRY_BYTES))
            if summary.get("configuration_key") != name.configuration_key:
                raise Damaged("the entry is in the folder of another configuration")
            if summary.get("program_key") != name.program_key:
                raise Damaged("the entry's program key is not that of its file name")
            return _slim(found, name, summary)
        except Damaged:
            if attempt == 2:
                raise
    raise AssertionError("unreachable")


def contents(store: Store, prefix: str = "", *, on_file: Callable[[], None] = lambda: None) -> Contents:
    """Look at every file below ``prefix``. Raises StoreError only if the store cannot be listed.

    ``on_file`` is called before each file; what it raises ends the look.
    """
    result = Contents()
    for found in store.scan(prefix):
        on_file()
        _sort(store, found, result)
    return result


def _sort(store: Store, found: Found, into: Contents) -> None:
    name = found.name
    place = name.split("/", 1)[0]
    if place == "blobs" and (digest := layout.parse_blob_name(name)):
        into.blobs[digest] = found
    elif place == "configs" and (entry := layout.parse_entry_name(name)):
        _add_entry(store, found, entry, into)
    elif configuration_key := _config_of(name):
        into.configs[configuration_key] = found
    elif layout.is_modules_name(name):
        into.modules.append(found)
    elif place in into.leftovers and layout.is_name(name):
        into.leftovers[place].append(found)
    elif place == "pins" and re.fullmatch(r"pins/[0-9a-f]{32}", name):
        into.pins[PurePosixPath(name).name] = found
    else:
        into.skipped.append(Skipped(name, "unknown", "no file of a store has such a name", found))


def _config_of(name: str) -> str | None:
    key = PurePosixPath(name).parent.name
    return key if re.fullmatch(r"[0-9a-f]{32}", key) and name == layout.shared_factors(key) else None


def _add_entry(store: Store, found: Found, name: layout.EntryName, into: Contents) -> None:
    try:
        into.entries.append(read_summary(store, found, name))
    except NotStored as error:
        if not error.gone:  # prune must not take what it cannot read now for what is not there
            into.skipped.append(Skipped(found.name, "unread", error.strerror or str(error), found))
    except Damaged as error:
        into.skipped.append(Skipped(found.name, "damaged", str(error), found))
    except StoreError as error:
        into.skipped.append(Skipped(found.name, "unread", error.strerror or str(error), found))


def _slim(found: Found, name: layout.EntryName, summary: Mapping[str, Any]) -> StoredEntry:
    try:
        return StoredEntry(
            found=found,
            configuration_key=sys.intern(name.configuration_key),
            program_key=name.program_key,
            kind=_checked(summary["kind"], KINDS),
            blobs=tuple(BlobRef(**blob) for blob in summary["blobs"]),
            programs=tuple(ProgramRef(**ref).program_key for ref in summary["programs"]),
            compile_seconds=float(summary["compile_seconds"]),
            display=_display(json.dumps(summary["display"])),
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Damaged(f"not an entry: {type(error).__name__}: {error}") from error


@functools.lru_cache(maxsize=4096)
def _display(text: str) -> Mapping[str, str]:
    """Shared by the entries that show the same: a large store repeats itself."""
    display = json.loads(text)
    return {word: _text(display[word]) for word in _DISPLAY if display.get(word) is not None}


def _checked(value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise Damaged(f"not an entry: {value!r} is none of {', '.join(known)}")
    return str(value)


def _text(value: JsonValue) -> str:
    """A display value as text: a list by its parts."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


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


def inventory(store: Store, usages: Mapping[str, Usage] | None = None) -> Inventory:
    """The rows of a store; ``usages`` is what this host's index knows, by program key."""
    stored = contents(store)
    by_configuration: dict[str, list[StoredEntry]] = {}
    for entry in stored.entries:
        by_configuration.setdefault(entry.configuration_key, []).append(entry)
    rows = [_configuration(key, entries, stored, usages or {}) for key, entries in by_configuration.items()]
    return Inventory(
        label=store.label,
        configurations=tuple(sorted(rows, key=lambda row: (-row.measure.last_use, row.key))),
        programs=len(stored.entries),
        bytes=stored.bytes,
        files=stored.count,
        skipped=tuple(stored.skipped),
    )


def _configuration(
    key: str, entries: list[StoredEntry], stored: Contents, usages: Mapping[str, Usage]
) -> ConfigurationRow:
    by_range: dict[str, list[StoredEntry]] = {}
    for entry in entries:
        by_range.setdefault(range_of(entry), []).append(entry)
    newest = max(entries, key=lambda entry: (len(entry.display), entry.found.mtime))
    return ConfigurationRow(
        key=key,
        named={name: newest.display[name] for name in CONFIGURATION_FIELDS if name in newest.display},
        measure=_measure(entries, stored, usages),
        ranges=tuple(_range(name, by_range[name], stored, usages) for name in sorted(by_range, key=_order)),
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


def _range(name: str, entries: list[StoredEntry], stored: Contents, usages: Mapping[str, Usage]) -> RangeRow:
    programs = [_program(entry, stored, usages) for entry in entries]
    return RangeRow(
        range=name,
        symbolic=name.startswith("symbolic"),
        size=_size(name),
        measure=_measure(entries, stored, usages),
        programs=tuple(sorted(programs, key=lambda row: (row.graphs, row.part, row.rank, row.key))),
    )


def _program(entry: StoredEntry, stored: Contents, usages: Mapping[str, Usage]) -> ProgramRow:
    return ProgramRow(
        key=entry.program_key,
        kind=entry.kind,
        range=range_of(entry),
        part=entry.display.get("part", ""),
        graphs=entry.display.get("graphs", ""),
        rank=entry.display.get("rank", ""),
        measure=_measure([entry], stored, usages),
    )


def _measure(entries: list[StoredEntry], stored: Contents, usages: Mapping[str, Usage]) -> Measure:
    digests = {digest for entry in entries for digest in entry.digests if digest in stored.blobs}
    used = [usages[entry.program_key] for entry in entries if entry.program_key in usages]
    return Measure(
        programs=len(entries),
        bytes=sum(entry.found.size for entry in entries) + sum(stored.blobs[digest].size for digest in digests),
        files=len(entries) + len(digests),
        compile_seconds=sum(entry.compile_seconds for entry in entries),
        last_use=max([entry.found.mtime for entry in entries] + [usage.last_used for usage in used]),
        hits=sum(usage.hits for usage in used),
    )
