"""What a store holds: every file, by kind; of an entry, what rows and plans need.

Read-only. A file that cannot be used is counted with its reason and skipped; nothing here raises for one bad file.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol

from compcache.entry import MAX_ENTRY_BYTES, Entry, parse_entry, parse_summary
from compcache.errors import Damaged, NotStored, StoreError
from compcache.factors import JsonValue
from compcache.store import layout
from compcache.store.protocol import Folder, Found, Store

CONFIGURATION_FIELDS = ("model", "dtype", "quantization", "parallel", "engine", "toolchain", "hardware", "mode")
"""What names a configuration, in the order in which it is shown."""
_DISPLAY = (*CONFIGURATION_FIELDS, "range", "part", "graphs", "rank")
_LEFTOVERS = ("tmp", "trash", "leases", "quarantine")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that could not be used: ``kind`` is "damaged", "unread" (not now, or not by us) or "unknown"."""

    name: str
    kind: str
    reason: str
    found: Found


class StoredEntry(NamedTuple):
    """What rows and plans need of an entry; its factors are not kept, so that a large store fits in memory."""

    found: Found
    configuration_key: str
    kind: str
    digests: tuple[str, ...]
    """Of its blobs, each once."""
    blob_sizes: tuple[int, ...]
    """Theirs as stored, in bytes, by what the entry says."""
    programs: tuple[str, ...]
    """Keys of the programs that it needs."""
    compile_seconds: float
    display: Mapping[str, str]

    @property
    def program_key(self) -> str:
        return layout.program_key(self.found.name)


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
        return sum([found.size for found in self.found()])

    @property
    def count(self) -> int:
        """How many files there are."""
        files = len(self.entries) + len(self.blobs) + len(self.configs) + len(self.modules)
        return files + len(self.pins) + sum(map(len, self.leftovers.values())) + len(self.skipped)

    def add(self, other: Contents) -> None:
        """Take what another look found."""
        self.entries += other.entries
        self.blobs |= other.blobs
        self.configs |= other.configs
        self.modules += other.modules
        self.pins |= other.pins
        for place, found in other.leftovers.items():
            self.leftovers[place] += found
        self.skipped += other.skipped

    def found_beside_entries(self) -> Iterable[Found]:
        """What else a folder of entries or blobs holds."""
        yield from self.blobs.values()
        yield from self.configs.values()
        yield from self.modules

    def found(self) -> Iterable[Found]:
        """Every file once."""
        yield from [entry.found for entry in self.entries]
        yield from self.found_beside_entries()
        yield from self.pins.values()
        for leftover in self.leftovers.values():
            yield from leftover
        yield from [skipped.found for skipped in self.skipped]


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
            if summary.configuration_key != name.configuration_key:
                raise Damaged("the entry is in the folder of another configuration")
            if summary.program_key != name.program_key:
                raise Damaged("the entry's program key is not that of its file name")
            return StoredEntry(
                found,
                sys.intern(summary.configuration_key),
                summary.kind,
                summary.digests,
                summary.sizes,
                summary.programs,
                summary.compile_seconds,
                _display(summary.display),
            )
        except Damaged:
            if attempt == 2:
                raise
    raise AssertionError("unreachable")


class Remembered(Protocol):
    """What this host has seen of a store (:class:`compcache.listing.Listing`)."""

    def recall(self, folder: Folder) -> tuple[Contents, bool] | None:
        """What a folder held, if it holds the same names now, and whether its mtimes are new enough, too."""

    def learn(self, folder: Folder, held: Contents) -> None:
        """What a folder holds; its mtime was taken before it was listed."""


def contents(
    store: Store,
    prefix: str = "",
    *,
    on_file: Callable[[], None] = lambda: None,
    remembered: Remembered | None = None,
) -> Contents:
    """Look at every file below ``prefix``. Raises StoreError only if the store cannot be listed.

    ``on_file`` is called before each file or folder that is looked at; what it raises ends the look. With
    ``remembered``, a folder that holds the names that it held is not read again, nor listed if that was lately.
    """
    result = Contents()
    folders = in_order(store, prefix) if remembered is not None else None
    if remembered is None or folders is None:
        for found in store.scan(prefix):
            on_file()
            sort_into(store, found, result)
        return result
    for folder in folders:
        on_file()
        if isinstance(folder, Found):
            sort_into(store, folder, result)
        else:
            result.add(folder_contents(store, folder, remembered, on_file))
    for place in layout.FOLDERS if not prefix else ():
        for found in store.scan(place) if place not in layout.DEEP else ():
            on_file()
            sort_into(store, found, result)
    return result


def in_order(store: Store, prefix: str) -> list[Folder | Found] | None:
    """The folders of a store by name: in order, records about them are read once."""
    folders = store.folders(prefix)
    return None if folders is None else sorted(folders, key=lambda folder: folder.name)


def folder_contents(
    store: Store, folder: Folder, remembered: Remembered, on_file: Callable[[], None] = lambda: None
) -> Contents:
    """Look at one folder of entries or blobs, with what this host has seen of it. As :func:`contents`."""
    before, lately = remembered.recall(folder) or (Contents(), False)
    if lately:
        return before
    held = Contents()
    known = {entry.found.name: entry for entry in before.entries}
    for found in store.scan(folder.name):
        on_file()
        entry = known.get(found.name)
        if entry is not None and entry.found.size == found.size:
            held.entries.append(entry._replace(found=found))
        else:
            sort_into(store, found, held)
    remembered.learn(folder, held)
    return held


def sort_into(store: Store, found: Found, into: Contents) -> None:
    """Add a file to what a look found, by its name; an entry is read."""
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


@functools.lru_cache(maxsize=4096)
def _display(text: bytes) -> Mapping[str, str]:
    """Shared by the entries that show the same: a large store repeats itself."""
    try:
        display = json.loads(text)
        return {word: _text(display[word]) for word in _DISPLAY if display.get(word) is not None}
    except (AttributeError, ValueError, RecursionError) as error:
        raise Damaged(f"not an entry: {type(error).__name__}: {error}") from error


def _text(value: JsonValue) -> str:
    """A display value as text: a list by its parts."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
