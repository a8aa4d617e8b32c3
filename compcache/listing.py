"""What this host has seen of a store, so that a look at 100,000 programs neither reads nor lists them all again.

One record a folder, in the index: its mtime, when it was looked at, its files, and of its entries what rows and plans
need. It is believed while the folder's mtime is the same, which says that the same names are there (contents never
change under a name); their own mtimes, which a refresh changes, are believed for ``believed`` seconds on top. A folder
that changed a short while ago is not remembered: within the resolution of its mtime it may change once more. Beside
them, one record a folder for each way in which it was shown: text, ready-made, believed as long.

Nothing that decides what is loaded is in it. A plan made from it is safe, since a removal looks again: what was used
or stored since then is spared by its mtime (:mod:`compcache.prune`). A record begins with a digest of the rest, so that
a flipped bit cannot make a blob nobody's.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import xxhash

from compcache.contents import Contents, StoredEntry
from compcache.entry import KINDS
from compcache.errors import Damaged
from compcache.store import layout
from compcache.store.protocol import REFRESH_SECONDS, Folder, Found

SETTLED_SECONDS = 600.0
"""How long ago, by this host's clock, a folder must have changed; more than clocks and resolutions differ."""
WORTH = 256
"""Fewer new files than this are not worth a write of the index: to look at them again costs less."""
FILES = "files"
_DIGESTS, _KEYS = re.compile(r"(?:[0-9a-f]{64},)*"), re.compile(r"(?:[0-9a-f]{32},)*")
_KINDS = {kind: kind for kind in KINDS}
_NOT_OURS = (AttributeError, Damaged, KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError)
Load = Callable[[str, str], Sequence[tuple[str, str]]]
"""``load(kind, after)``: some records of that kind, by folder, in the order of folders, the first after that one."""


class Shown(NamedTuple):
    """A folder of entries as text: ``last_use`` (Unix time) is the latest of its entries' mtimes."""

    last_use: float
    keys: Sequence[str]
    """Of its programs: the text is of no use where the index knows of their uses."""
    text: str


class Listing:
    """The records of one store. ``load`` gives what the index holds; ``changes`` is what it should.

    A kind is FILES, or a way of showing. ``believed``: seconds. Entries are refreshed hourly at most, so the default
    loses nothing that there was. Folders are best asked for in order: records are then read once, and let go as they
    are used (a large store's are tens of megabytes).
    """

    def __init__(
        self,
        load: Load = lambda kind, after: (),
        *,
        believed: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._load = load
        self._ahead: dict[str, _Ahead] = {}
        self._believed = believed
        self._clock = clock
        self._seen: set[str] = set()
        self._looked: dict[str, float] = {}
        self.changes: dict[str, str | None] = {}
        """By kind and folder, as ``files configs/ab/...``; None for a record that is to go."""
        self.learnt = 0
        """Files that were new to it."""

    @property
    def worth_keeping(self) -> bool:
        return self.learnt >= WORTH

    def recall(self, folder: Folder) -> tuple[Contents, bool] | None:
        """See :class:`compcache.contents.Remembered`."""
        record = self._record(FILES, folder)
        if record is None:
            return None
        looked, _, body = record
        try:
            held = _parsed(folder.name, json.loads(body))
        except _NOT_OURS:
            return None  # not ours: it is looked at, and written again
        age = self._clock() - looked
        if 0 <= age < REFRESH_SECONDS:
            self._looked[folder.name] = looked
        return held, 0 <= age < self._believed

    def size(self, folder: Folder) -> tuple[int, int] | None:
        """Bytes and number of the files in a folder, if it was looked at lately."""
        record = self._record(FILES, folder)
        if record is None or not 0 <= self._clock() - record[0] < self._believed:
            return None
        try:
            size, count = map(int, record[1])
        except ValueError:
            return None
        return size, count

    def shown(self, way: str, folder: Folder) -> Shown | None:
        """What :meth:`show` kept, if the folder was looked at lately."""
        record = self._record(way, folder)
        if record is None or not 0 <= self._clock() - record[0] < self._believed:
            return None
        try:
            last_use, keys = record[1]
            return Shown(_number(float(last_use)), keys.split(","), record[2])
        except _NOT_OURS:
            return None

    def show(self, way: str, folder: Folder, shown: Shown) -> None:
        """Keep a text about a folder that was recalled or learnt, as long as what is known of it."""
        looked = self._looked.get(folder.name)
        if looked is not None:
            self._keep(way, folder, looked, (repr(shown.last_use), ",".join(shown.keys)), shown.text)
            self.learnt += len(shown.keys)

    def finish(self, place: str = "", way: str = "") -> None:
        """After a look at the whole store, or at one of its places: folders that were not met are gone.

        ``way`` is how they were shown, if they were.
        """
        for kind in {way or FILES, *self._ahead}:
            ahead = self._records(kind)
            ahead.at("~")
            for name in ahead.names - self._seen:
                if not place or name.startswith(f"{place}/"):
                    self.changes[f"{kind} {name}"] = None

    def learn(self, folder: Folder, held: Contents) -> None:
        """See :class:`compcache.contents.Remembered`."""
        if folder.name in self._looked:
            return  # looked at again for this moment's uses alone: not worth a write
        now = self._clock()
        if abs(now - folder.mtime) < SETTLED_SECONDS or held.skipped:
            return
        sums = (str(held.bytes), str(held.count))
        self._keep(FILES, folder, now, sums, json.dumps(_columns(held), separators=(",", ":")))
        self._looked[folder.name] = now
        self.learnt += held.count

    def _keep(self, kind: str, folder: Folder, looked: float, heading: Iterable[str], body: str) -> None:
        rest = " ".join((repr(folder.mtime), repr(looked), *heading)) + "\n" + body
        self.changes[f"{kind} {folder.name}"] = f"{_digest(rest)} {rest}"

    def _record(self, kind: str, folder: Folder) -> tuple[float, list[str], str] | None:
        """When a folder was looked at, the rest of the record's heading, and its body; None if it has changed since."""
        self._seen.add(folder.name)
        text = self.changes.get(f"{kind} {folder.name}")
        if text is None:
            text = self._records(kind).at(folder.name)
        digest, _, rest = text.partition(" ")
        heading, _, body = rest.partition("\n")
        if not text or digest != _digest(rest):
            return None
        try:
            mtime, looked, *others = heading.split(" ")
            return (_number(float(looked)), others, body) if float(mtime) == folder.mtime else None
        except ValueError:
            return None

    def _records(self, kind: str) -> _Ahead:
        return self._ahead.setdefault(kind, _Ahead(functools.partial(self._load, kind)))


class _Ahead:
    """Reads records in order, a few at a time; from the beginning again where it is asked for one further back."""

    def __init__(self, load: Callable[[str], Sequence[tuple[str, str]]]) -> None:
        self._load = load
        self._rows: Sequence[tuple[str, str]] = ()
        self._next = 0
        self._last = ""
        self.names: set[str] = set()
        """That were met."""

    def at(self, name: str) -> str:
        """The record of a folder, or nothing."""
        if name < self._last:
            self._rows, self._next = (), 0
        self._last = name
        while True:
            while self._next < len(self._rows):
                found, text = self._rows[self._next]
                if found > name:
                    return ""
                if found == name:
                    return text  # and stays: it may be asked for twice
                self._next += 1
            after = self._rows[-1][0] if self._rows else ""
            self._rows, self._next = self._load(after), 0
            self.names.update(found for found, _ in self._rows)
            if not self._rows:
                self._last = "~"
                return ""


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))


def _columns(held: Contents) -> dict[str, list[Any]]:
    """A folder by columns: a large store is read and checked by the column."""
    displays: dict[int, int] = {}
    shown: list[Mapping[str, str]] = []
    for entry in held.entries:
        if id(entry.display) not in displays:
            displays[id(entry.display)] = len(shown)
            shown.append(entry.display)
    entries, files = held.entries, list(held.found_beside_entries())
    return {
        "files": [found.name.rsplit("/", 1)[1] for found in files],
        "sizes": [found.size for found in files],
        "mtimes": [found.mtime for found in files],
        "displays": shown,
        "entries": [entry.program_key for entry in entries],
        "entry sizes": [entry.found.size for entry in entries],
        "entry mtimes": [entry.found.mtime for entry in entries],
        "kinds": [entry.kind for entry in entries],
        "digests": [entry.digests for entry in entries],
        "blob sizes": [entry.blob_sizes for entry in entries],
        "programs": [entry.programs for entry in entries],
        "seconds": [float(entry.compile_seconds) for entry in entries],
        "display": [displays[id(entry.display)] for entry in entries],
    }


def _parsed(folder: str, row: Mapping[str, Any]) -> Contents:
    held = Contents()
    place, key = folder.partition("/")[0], sys.intern(folder.rpartition("/")[2])
    names = row["files"]
    files = _found(folder, names, "", row["sizes"], row["mtimes"])
    if place == "blobs":
        held.blobs = dict(zip(_matching(_DIGESTS, names), files, strict=True))
    else:
        for name, found in zip(names, files, strict=True):
            if name == "config.json":
                held.configs[key] = found
            elif layout.is_modules_name(found.name):
                held.modules.append(found)
            else:
                raise ValueError("not a file of a store")
    entries = _found(folder, _matching(_KEYS, row["entries"]), ".json", row["entry sizes"], row["entry mtimes"])
    _matching(_DIGESTS, [digest for digests in row["digests"] for digest in digests])
    _matching(_KEYS, [key for programs in row["programs"] for key in programs])
    _sizes([size for sizes in row["blob sizes"] for size in sizes])
    displays = [_display(tuple(display.items())) for display in row["displays"]]
    held.entries = list(
        map(
            StoredEntry,
            entries,
            repeat(key),
            map(_KINDS.__getitem__, row["kinds"]),
            map(tuple, row["digests"]),
            map(tuple, row["blob sizes"]),
            map(tuple, row["programs"]),
            _numbers(row["seconds"]),
            map(displays.__getitem__, row["display"]),
        )
    )
    if len(held.entries) != len(entries):
        raise ValueError("columns of different lengths")
    return held


@functools.lru_cache(maxsize=4096)
def _display(items: tuple[tuple[object, object], ...]) -> Mapping[str, str]:
    """Shared by the entries that show the same, as in :mod:`compcache.contents`."""
    return {str(word): str(value) for word, value in items}


def _found(folder: str, names: list[str], suffix: str, sizes: list[int], mtimes: list[float]) -> list[Found]:
    if not len(names) == len(sizes) == len(mtimes):
        raise ValueError("columns of different lengths")
    return list(map(Found, [f"{folder}/{name}{suffix}" for name in names], _sizes(sizes), _numbers(mtimes)))


def _matching(pattern: re.Pattern[str], values: list[str]) -> list[str]:
    text = ",".join(values) + "," if values else ""
    if not pattern.fullmatch(text) or text.count(",") != len(values):
        raise ValueError("not keys or digests")
    return values


def _sizes(values: list[int]) -> list[int]:
    if not set(map(type, values)) <= {int}:
        raise ValueError("not sizes")
    return values


def _numbers(values: list[float]) -> list[float]:
    if not set(map(type, values)) <= {float} or not math.isfinite(sum(values)):
        raise ValueError("not finite numbers")
    return values


def _number(value: float) -> float:
    (value,) = _numbers([value])
    return value
