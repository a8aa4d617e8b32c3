"""The index: what this host used, when, and what that saved. In diskcache, on the host's own disk.

Deleting it loses statistics only; nothing that decides what is loaded is in it. It is opened per call and closed
again, so a process that forks afterwards hands down no connection, and it is made by the first record, never by a look.

diskcache trusts its database: a row may ask it to unpickle, and to open or delete whatever path the row names
(CVE-2025-69872). So nothing of that is left on: the Disk class here takes and gives bytes, str and int only, writes no
files, opens none, removes none; settings that a database brings along are checked before diskcache obeys them; looks
go past diskcache, through a read-only connection that sees plain rows alone. A database that cannot be used is
discarded, once per call, and made again.

Failures are raised (StoreError: busy, read-only, full; Damaged: broken again right after it was made). In an engine the
caller guards.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from compcache import fsio
from compcache.errors import Damaged, StoreError
from compcache.records import StoreSize, Usage, Use, parsed_size, parsed_usage, text_of

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
BUSY_SECONDS = 5.0
"""How long a call waits for another process that writes."""
_FILES = ("cache.db-wal", "cache.db-shm", "cache.db-journal", "cache.db")
"""In the order in which they are discarded: a log that outlives its database would be replayed into the next one."""
_KEY = re.compile(r"[0-9a-f]{32} ")
_TOTALS = "totals"
_SIZE = "size "
_LISTING = "listing "
_AT_ONCE = 256
"""Records of folders; a thousand programs, a megabyte."""
_NO_FILES = 1 << 62
_SETTINGS: dict[str, Any] = {
    "statistics": 0,
    "tag_index": 0,
    "eviction_policy": "none",
    "size_limit": 1 << 40,
    "cull_limit": 0,
    "sqlite_auto_vacuum": 1,
    "sqlite_cache_size": 1 << 11,
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
    "sqlite_synchronous": 0,  # statistics are not worth waiting for a disk while an engine starts
    "disk_min_file_size": _NO_FILES,
    "disk_pickle_protocol": 0,
}
_COUNTS = ("count", "size", "hits", "misses")
# sqlite_errorcode & 0xff: PERM, BUSY, LOCKED, NOMEM, READONLY, INTERRUPT, IOERR, FULL, CANTOPEN, PROTOCOL, AUTH.
# They tell of the moment; the file may well be sound.
_SOUND = frozenset({3, 5, 6, 7, 8, 9, 10, 13, 14, 15, 23})


class Index:
    """The index in the directory ``path`` (0700, made by the first record)."""

    def __init__(self, path: Path | str, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.path = Path(os.path.abspath(os.path.expanduser(path)))
        self._busy = busy_seconds

    def record(self, uses: Iterable[Use]) -> None:
        """Count programs as used now. All of them or none."""
        added: dict[str, Usage] = {}
        for use in uses:
            one = Usage(1, max(0.0, use.seconds_saved), use.at)
            for key in (_row(use.program_key, use.store), _TOTALS):
                added[key] = added.get(key, Usage()).and_(one)
        if added:
            self._writing(lambda database: _add(database, added))

    def forget(self, program_keys: Iterable[str], store: str) -> None:
        """Drop the records of programs that are no longer in a store. Totals stay."""
        keys = [_row(key, store) for key in program_keys]
        if keys and (self.path / "cache.db").exists():
            self._writing(lambda database: _drop(database, keys))

    def usage(self, program_key: str, store: str | None = None) -> Usage | None:
        """What is known of one program, in one store or in all; None if it was never used here."""
        low, high = (_row(program_key, store),) * 2 if store is not None else (f"{program_key} ", f"{program_key}!")
        found = list(self._rows(low, high).values())
        return functools.reduce(Usage.and_, found) if found else None

    def usages(self, store: str) -> dict[str, Usage]:
        """Usage by program key, of all programs in one store. (One statement: diskcache's own listing is slow.)"""
        found = self._rows("0", "g").items()
        return {key[:32]: usage for key, usage in found if _KEY.match(key) and key == _row(key[:32], store)}

    def totals(self) -> Usage:
        """All uses on this host since the index was made."""
        return self._rows(_TOTALS, _TOTALS).get(_TOTALS, Usage())

    def add_to_store(self, store: str, *, size: int, files: int) -> StoreSize | None:
        """Count what was published into a store; what it holds then, or None if it was never measured by this host."""
        key = _SIZE + _label(store)
        if not size and not files:
            return parsed_size(self._texts(key, key).get(key))

        def add(database: Any) -> StoreSize | None:
            with database.transact():
                known = parsed_size(_value(database, key))
                if known is None:
                    return None
                total = replace(known, bytes=known.bytes + size, files=known.files + files)
                database.set(key, json.dumps(asdict(total)))
                return total

        return self._writing(add)

    def set_store_size(self, store: str, measured: StoreSize) -> None:
        """Replace what is believed of a store by what was measured."""
        self._writing(lambda database: database.set(_SIZE + _label(store), json.dumps(asdict(measured))))

    def listing(self, store: str, kind: str, after: str = "") -> list[tuple[str, str]]:
        """Some records of that kind that :class:`compcache.listing.Listing` keeps of a store: by folder, in order, the
        first after that one."""
        start = f"{_LISTING}{_label(store)} {kind} "
        low = f"{start}{after}\x00" if after else start
        found = self._texts(low, start[:-1] + "!", limit=_AT_ONCE).items()
        return [(key[len(start) :], text) for key, text in found if key.startswith(start)]

    def set_listing(self, store: str, changes: Mapping[str, str | None]) -> None:
        """Replace records, by kind and folder; None removes one. All of them or none."""

        def change(database: Any) -> None:
            with database.transact():
                for name, text in changes.items():
                    key = f"{_LISTING}{_label(store)} {name}"
                    database.delete(key) if text is None else database.set(key, text)

        if changes:
            self._writing(change)

    def _rows(self, low: str, high: str) -> dict[str, Usage]:
        parsed = ((key, parsed_usage(value)) for key, value in self._texts(low, high).items())
        return {key: usage for key, usage in parsed if usage is not None}

    def _texts(self, low: str, high: str, limit: int = -1) -> dict[str, str]:
        """Plain rows with low <= key <= high, in order. Read-only; nothing where there is no index, or a broken one."""
        if not self._trusted():
            return {}
        import sqlite3

        try:
            with contextlib.closing(self._connect(read_only=True)) as connection:
                found: list[tuple[str, str]] = connection.execute(
                    "SELECT key, value FROM Cache WHERE raw = 1 AND mode = 1 AND filename IS NULL"
                    " AND typeof(key) = 'text' AND typeof(value) = 'text' AND key BETWEEN ? AND ? ORDER BY key LIMIT ?",
                    (low, high, limit),
                ).fetchall()
        except sqlite3.Error as error:
            if _is_broken(error):
                return {}  # the next record discards it
            raise StoreError(errno.EIO, f"cannot read the index in {self.path}: {error}") from error
        return dict(found)

    def _writing(self, action: Callable[[Any], T]) -> T:
        import sqlite3

        for attempt in (1, 2):
            seen = self._identity()
            try:
                with self._opened() as database:
                    return action(database)
            except (sqlite3.Error, Damaged) as error:
                if isinstance(error, sqlite3.Error) and not _is_broken(error):
                    raise StoreError(errno.EIO, f"cannot write the index in {self.path}: {error}") from error
                if attempt == 2:
                    raise Damaged(f"the index in {self.path} is broken: {error}") from error
                if self._identity() == seen:  # else another process has discarded it already, and this is the new one
                    self._discard()
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        """diskcache's Cache, for this thread and block."""
        import diskcache

        if os.path.expandvars(self.path) != str(self.path):
            # diskcache would expand it and write elsewhere.
            raise StoreError(errno.EINVAL, f"the index cannot be in {self.path}: the path has a $ in it")
        self._make()
        if self._trusted():
            with contextlib.closing(self._connect(read_only=False)) as connection:
                _check_settings(connection)
                # diskcache waits a minute for a lock when it opens; wait here, and less, first.
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
        try:
            database = diskcache.Cache(str(self.path), timeout=self._busy, disk=_disk(), **_SETTINGS)
            try:
                yield database
            finally:
                database.close()
        except diskcache.Timeout as error:
            raise StoreError(errno.EBUSY, f"the index in {self.path} is busy") from error

    def _connect(self, *, read_only: bool) -> sqlite3.Connection:
        import sqlite3

        address = f"{(self.path / 'cache.db').as_uri()}?mode={'ro' if read_only else 'rw'}"
        return sqlite3.connect(address, uri=True, timeout=self._busy, isolation_level=None)

    def _make(self) -> None:
        try:
            fsio.make_directory(self.path, 0o700, durable=False)
        except OSError as error:
            raise fsio.translated(error, f"cannot make the index in {self.path}") from error

    def _trusted(self) -> bool:
        """Whether there is a database. Raises Untrusted or Damaged if it is not a file of this user alone."""
        trust = fsio.Trust()
        try:
            place = os.lstat(self.path)
            if not stat.S_ISDIR(place.st_mode):
                raise StoreError(errno.ENOTDIR, f"{self.path} is not a directory")
            trust.check(place, str(self.path))
            info = os.lstat(self.path / "cache.db")
        except StoreError:
            raise
        except FileNotFoundError:
            return False
        except OSError as error:
            raise fsio.translated(error, f"cannot reach the index in {self.path}") from error
        if not stat.S_ISREG(info.st_mode):
            raise StoreError(errno.EINVAL, f"{self.path / 'cache.db'} is not a regular file")
        trust.check(info, str(self.path / "cache.db"))
        return True

    def _identity(self) -> tuple[int, int] | None:
        try:
            info = os.lstat(self.path / "cache.db")
        except OSError:
            return None
        return info.st_dev, info.st_ino

    def _discard(self) -> None:
        """Remove the database's own files, by their fixed names."""
        for name in _FILES:
            try:
                os.unlink(self.path / name)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise fsio.translated(error, f"cannot discard the broken index in {self.path}") from error


def _row(program_key: str, store: str) -> str:
    """The key of a row."""
    return f"{program_key} {_label(store)}"


def _label(store: str) -> str:
    """In ASCII, since the path of a store need not be text."""
    return store.encode("ascii", "backslashreplace").decode()


def _add(database: Any, added: dict[str, Usage]) -> None:
    with database.transact():
        for key, more in added.items():
            before = parsed_usage(_value(database, key)) or Usage()
            database.set(key, text_of(before.and_(more)))


def _drop(database: Any, keys: list[str]) -> None:
    with database.transact():
        for key in keys:
            database.delete(key)


def _value(database: Any, key: str) -> object:
    try:
        return database.get(key)
    except Damaged:  # a planted row: it counts as absent, and is overwritten
        return None


def _is_broken(error: sqlite3.Error) -> bool:
    """Whether an error tells of the file (no database, malformed, other tables), not of the moment."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF not in _SOUND


def _check_settings(connection: sqlite3.Connection) -> None:
    """Raise Damaged for a database whose settings or triggers diskcache did not make: it obeys whatever is there."""
    tables = connection.execute("SELECT type, name FROM sqlite_master").fetchall()
    expected = {("table", "Settings"), ("table", "Cache"), ("index", "Cache_key_raw"), ("index", "Cache_expire_time")}
    expected |= {("trigger", f"Settings_{what}") for what in _TRIGGERS}
    unknown = [name for kind, name in tables if (kind, name) not in expected and not name.startswith("sqlite_")]
    if unknown:
        raise Damaged(f"the index has a {shown(unknown[0])} that is not ours")
    if ("table", "Settings") not in tables:
        return
    for key, value in connection.execute("SELECT key, value FROM Settings"):
        ours = value == _SETTINGS[key] if key in _SETTINGS else key in _COUNTS and isinstance(value, int)
        if not ours:
            raise Damaged(f"the index has a setting {shown(key)} that is not ours")


_TRIGGERS = ("count_insert", "count_delete", "size_insert", "size_update", "size_delete")


def shown(name: object) -> str:
    """A name from a database, for one line of text."""
    return ascii(name)[:60]


@functools.cache
def _disk() -> Any:
    """The Disk class: plain values in the database, or nothing. (Made on first use: diskcache is imported late.)"""
    import sqlite3

    import diskcache

    class PlainDisk(diskcache.Disk):  # type: ignore[misc]
        """Refuses pickles and files, both ways."""

        def put(self, key: object) -> tuple[object, bool]:
            if type(key) not in (bytes, str, int):
                raise Damaged(f"an index key is a {type(key).__name__}")
            return (sqlite3.Binary(key) if isinstance(key, bytes) else key), True

        def get(self, key: object, raw: object) -> object:
            if raw != 1 or type(key) not in (bytes, str, int):
                raise Damaged("an index row has a key that is not plain")
            return key

        def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, object]:
            if read or type(value) not in (bytes, str, int):
                raise Damaged(f"an index value is a {type(value).__name__}")
            return 0, 1, None, sqlite3.Binary(value) if isinstance(value, bytes) else value

        def fetch(self, mode: object, filename: object, value: object, read: bool) -> object:
            if mode != 1 or filename is not None or read or type(value) not in (bytes, str, int):
                raise Damaged("an index row has a value that is not plain")
            return value

        def filename(self, key: object = None, value: object = None) -> tuple[str, str]:
            raise Damaged("the index keeps nothing in files")

        def remove(self, file_path: object) -> None:
            """Nothing: rows of ours name no file, and what another row names is not to be deleted."""

    return PlainDisk
