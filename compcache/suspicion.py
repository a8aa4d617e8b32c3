"""Suspicion: stored programs that a process of this host died of between their load and its first successful run.

A load leaves a record in this host's state folder until :meth:`Load.succeeded`. For as long, Python's faulthandler
writes into a file beside it, so that a death by SIGSEGV, SIGILL, SIGBUS, SIGFPE or SIGABRT is seen by who comes next.
One such death, or two that nobody saw (SIGKILL: out of memory, a liveness probe, a hang), make an entry suspected. Then
it is skipped on this host, compiled again, and kept beside the records (``healed``), where only this host finds it: a
sick host never changes what others share. An entry is suspected by its digest, so another one under its key is not.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from compcache import fsio
from compcache.entry import MAX_ENTRY_BYTES, Entry, parse_entry
from compcache.errors import CompcacheError
from compcache.lease import host_identity, process_start
from compcache.store import layout
from compcache.store.directory import DirectoryStore

UNSEEN = 2
"""How many deaths of unknown cause make an entry suspected."""
MAX_RECORD_BYTES = 1 << 16
_CAUSE = re.compile(rb"Fatal Python error: ([A-Za-z ]{1,60})")
_NAME = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{64})\.[0-9a-f]{32}\.load")


@dataclass
class Load:
    """One load whose first run has not succeeded yet."""

    record: Path
    _trace: IO[bytes] | None = None
    _pid: int = field(default_factory=os.getpid)

    def succeeded(self) -> None:
        """The program has run: forget this load, and the deaths before it. Never raises."""
        self._end()
        match = _NAME.fullmatch(self.record.name)
        if match:
            for path in _records(self.record.parent, match[1], match[2]):
                if not _alive(path):
                    _remove(path)

    def abandoned(self) -> None:
        """This process ends in order (an error elsewhere): that tells nothing about the program. Never raises."""
        self._end()

    def _end(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork of the process that loads
        if self._trace is not None:
            faulthandler.disable()
            self._trace.close()
            self._trace = None
        _remove(self.record)
        atexit.unregister(self.abandoned)


def watched(state: Path, entry: Entry) -> Load | None:
    """From now on a death of this process counts against ``entry``; None if no record can be written."""
    folder = state / "loads"
    owner = {"host": host_identity(), "pid": os.getpid(), "start": process_start(os.getpid())}
    record = folder / f"{entry.program_key}.{entry.digest}.{fsio.random_name()}.load"
    try:
        fsio.make_directory(folder, 0o700, durable=False)
        fsio.write_unsynced(record, json.dumps(owner).encode())
    except OSError:
        return None
    load = Load(record, _faults_into(record))
    # In order of their ends: an interpreter that exits, or one of multiprocessing's children, which skips atexit.
    atexit.register(load.abandoned)
    if (multiprocessing := sys.modules.get("multiprocessing.util")) is not None:
        multiprocessing.Finalize(None, load.abandoned, exitpriority=0)
    return load


@dataclass(frozen=True, slots=True)
class Suspect:
    """A program that is not loaded on this host, as its entry of that digest: why, and since when (Unix time)."""

    program_key: str
    digest: str
    why: str
    since: float


def suspected(state: Path, entry: Entry) -> str:
    """Why this entry must not be loaded on this host; empty if it may."""
    return _judged(_records(state / "loads", entry.program_key, entry.digest))[0]


def suspects(state: Path) -> list[Suspect]:
    """What this host suspects, the latest first."""
    records: dict[tuple[str, str], list[Path]] = {}
    for path, key, digest in _all_records(state / "loads"):
        records.setdefault((key, digest), []).append(path)
    found = [Suspect(key, digest, *_judged(paths)) for (key, digest), paths in records.items()]
    return sorted((s for s in found if s.why), key=lambda s: (-s.since, s.program_key, s.digest))


def forget(state: Path, program_key: str = "") -> int:
    """Drop all suspicion of programs whose key begins so, and deaths that did not suffice; how many records went."""
    found = _all_records(state / "loads")
    records = [path for path, key, _ in found if key.startswith(program_key) and not _alive(path)]
    for path in records:
        _remove(path)
    return len(records)


def healed(state: Path) -> Path:
    """This host's own store, for what it compiled in the place of what it suspects."""
    return state / "healed"


def compiled_again(state: Path, suspected: Iterable[Suspect]) -> set[str]:
    """Of these, the program keys under which this host's own store has an entry that is not suspected itself."""
    bad = {(suspect.program_key, suspect.digest) for suspect in suspected}
    keys, store = {key for key, _ in bad}, DirectoryStore(healed(state), read_only=True)
    found = set()
    for file in store.scan("configs"):
        name = layout.parse_entry_name(file.name)
        if name and name.program_key in keys:
            with contextlib.suppress(CompcacheError):  # one that cannot be read does not stand in for anything
                entry = parse_entry(store.read(file.name, MAX_ENTRY_BYTES), program_key=name.program_key)
                found |= {entry.program_key} - {key for key, digest in bad if digest == entry.digest}
    return found


def _judged(records: Iterable[Path]) -> tuple[str, float]:
    """Why the loads of one entry make it suspected, and since when; an empty text if they do not."""
    unseen = []
    for path in records:
        if _alive(path):
            continue
        if not _owner(path):
            continue  # a record that nobody can trust, or read, tells nothing
        if cause := _cause(path):
            return f"a process died of it here: {cause}", _moment(path.with_suffix(".trace"))
        unseen.append(_moment(path))
    if len(unseen) < UNSEEN:
        return "", 0.0
    return f"{len(unseen)} processes died here between its load and its first run", sorted(unseen)[UNSEEN - 1]


def _moment(path: Path) -> float:
    try:
        return fsio.status(path, follow=False).st_mtime
    except OSError:
        return 0.0


def _faults_into(record: Path) -> IO[bytes] | None:
    """Let faulthandler write beside the record; None where somebody else uses it already."""
    if faulthandler.is_enabled():
        return None
    try:
        fd = fsio.new_file(record.with_suffix(".trace"), 0o600)
    except OSError:
        return None
    trace = open(fd, "wb", buffering=0)  # noqa: SIM115 - faulthandler writes to it until the load has succeeded
    faulthandler.enable(trace, all_threads=False)
    return trace


def _records(folder: Path, program_key: str, digest: str) -> Iterator[Path]:
    return (path for path, *of in _all_records(folder) if of == [program_key, digest])


def _all_records(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """Records of loads, each with the program key and the digest of the entry that was loaded."""
    for path in _listed(folder):
        if match := _NAME.fullmatch(path.name):
            yield path, match[1], match[2]


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _alive(record: Path) -> bool:
    """Whether the process of a record runs; one that cannot be read counts as a dead one's."""
    owner = _owner(record)
    pid = owner.get("pid")
    if owner.get("host") != host_identity() or not isinstance(pid, int):
        return False
    start = process_start(pid)
    return bool(start) and start == owner.get("start")


def _owner(record: Path) -> dict[str, Any]:
    return fsio.read_record(record, MAX_RECORD_BYTES)


def _cause(record: Path) -> str:
    """What faulthandler said: "Segmentation fault", "Illegal instruction", ...; empty if it said nothing."""
    try:
        trace = fsio.read_file(record.with_suffix(".trace"), 1 << 24, fsio.Trust())
    except CompcacheError:
        return ""
    match = _CAUSE.search(trace)
    return match[1].decode("ascii").strip() if match else ""


def _remove(record: Path) -> None:
    for path in (record.with_suffix(".trace"), record):
        with contextlib.suppress(OSError):
            os.unlink(path)
