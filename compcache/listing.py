"""What this host has seen of a store, so that a look at 100,000 programs neither reads nor lists them all again.

One record a folder, in the index: its mtime, when it was looked at, its files, and of its entries what rows and plans
need. It is believed while the folder's mtime is the same, which says that the same names are there (contents never
change under a name); their own mtimes, which a refresh changes, are believed for ``believed`` seconds on top. A folder
that changed a short while ago is not remembered: within the resolution of its mtime it may change once more.

Nothing that decides what is loaded is in it. A plan made from it is safe, since a removal looks again: what was used
or stored since then is spared by its mtime (:mod:`compcache.prune`).
"""

from __future__ import annotations

import functools
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from compcache.cache import REFRESH_SECONDS
from compcache.contents import Contents, StoredEntry
from compcache.entry import KINDS, is_digest, is_key
from compcache.errors import Damaged
from compcache.store import layout
from compcache.store.protocol import Folder, Found

SETTLED_SECONDS = 600.0
"""How long ago, by this host's clock, a folder must have changed; more than clocks and resolutions differ."""
WORTH = 256
"""Fewer new files than this are not worth a write of the index: to look at them again costs less."""
_KINDS = {kind: kind for kind in KINDS}


class Listing:
    """The records of one store. ``rows`` is what the index holds, by folder; ``changes`` is what it should.

    ``believed``: seconds. Entries are refreshed hourly at most, so the default loses nothing that there was.
    """

    def __init__(
        self,
        rows: Mapping[str, str] | None = None,
        *,
        believed: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._rows = dict(rows or {})
        self._believed = believed
        self._clock = clock
        self._seen: set[str] = set()
        self._current: set[str] = set()
        self.changes: dict[str, str | None] = {}
        self.learnt = 0
        """Files that were new to it."""

    @property
    def worth_keeping(self) -> bool:
        return self.learnt >= WORTH

    def recall(self, folder: Folder) -> tuple[Contents, bool] | None:
        """See :class:`compcache.contents.Remembered`."""
        self._seen.add(folder.name)
        text = self._rows.get(folder.name)
        if text is None:
            return None
        try:
            row = json.loads(text)
            if row["mtime"] != folder.mtime:
                return None
            age = self._clock() - float(row["looked"])
            held = _parsed(folder.name, row)
            if 0 <= age < REFRESH_SECONDS:
                self._current.add(folder.name)
            return held, 0 <= age < self._believed
        except (AttributeError, Damaged, KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError):
            return None  # not ours: it is looked at, and written again

    def finish(self) -> None:
        """After a look at the whole store: folders that were not met are gone."""
        for name in self._rows.keys() - self._seen:
            del self._rows[name]
            self.changes[name] = None

    def learn(self, folder: Folder, held: Contents) -> None:
        """See :class:`compcache.contents.Remembered`."""
        if folder.name in self._current:
            return  # looked at again for this moment's uses alone: not worth a write
        now = self._clock()
        if abs(now - folder.mtime) < SETTLED_SECONDS or held.skipped:
            return
        files = [[found.name.rsplit("/", 1)[1], found.size, found.mtime] for found in held.found_beside_entries()]
        displays: dict[int, int] = {}
        shown: list[Mapping[str, str]] = []
        entries = []
        for entry in held.entries:
            if id(entry.display) not in displays:
                displays[id(entry.display)] = len(shown)
                shown.append(entry.display)
            file = [entry.program_key, entry.found.size, entry.found.mtime]
            own = [entry.kind, entry.compile_seconds, displays[id(entry.display)], entry.digests, entry.programs]
            entries.append([*file, *own])
        row = {"mtime": folder.mtime, "looked": now, "files": files, "displays": shown, "entries": entries}
        self._rows[folder.name] = self.changes[folder.name] = json.dumps(row, separators=(",", ":"))
        self.learnt += len(files) + len(entries)


def _parsed(folder: str, row: Mapping[str, Any]) -> Contents:
    held = Contents()
    place, key = folder.partition("/")[0], sys.intern(folder.rpartition("/")[2])
    for name, size, mtime in row["files"]:
        found = _found(f"{folder}/{name}", size, mtime)
        if place == "blobs":
            held.blobs[is_digest(name)] = found
        elif name == "config.json":
            held.configs[key] = found
        elif layout.is_modules_name(found.name):
            held.modules.append(found)
        else:
            raise ValueError("not a file of a store")
    displays = [_display(tuple(display.items())) for display in row["displays"]]
    for program_key, size, mtime, kind, seconds, display, digests, programs in row["entries"]:
        found = _found(f"{folder}/{is_key(program_key)}.json", size, mtime)
        digests, programs = tuple(map(is_digest, digests)), tuple(map(is_key, programs))
        held.entries.append(
            StoredEntry(found, key, _KINDS[kind], digests, programs, _number(seconds), displays[display])
        )
    return held


@functools.lru_cache(maxsize=4096)
def _display(items: tuple[tuple[object, object], ...]) -> Mapping[str, str]:
    """Shared by the entries that show the same, as in :mod:`compcache.contents`."""
    return {str(word): str(value) for word, value in items}


def _found(name: str, size: Any, mtime: Any) -> Found:
    if type(size) is not int:
        raise ValueError("not a size")
    return Found(name, size, _number(mtime))


def _number(value: Any) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise ValueError("not a finite number")
    return value
