"""The cache of one process: the one place where settings, store, entries, leases and session are put together.

Publishing a program: its blobs, then its entry, then a look whether the blobs are still there (a collector may have
run in between). A program that was published first wins; the writer goes on with the winner. Looking one up: by
name only, the factors compared as a whole, every byte checked against its digest before anybody sees it.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import blake3
import zstandard

from compcache import __version__, lease
from compcache.config import Settings
from compcache.entry import (
    MAX_ENTRY_BYTES,
    MAX_RAW_BYTES,
    Assembly,
    BlobRef,
    Entry,
    ProgramRef,
    parse_entry,
)
from compcache.errors import CompcacheError, Damaged, NotStored, RequiredMiss, StoreError
from compcache.factors import Difference, Factors, JsonValue, canonical, differences
from compcache.failpoints import reached
from compcache.session import Session
from compcache.store import layout
from compcache.store.bounded import BoundedStore
from compcache.store.directory import DirectoryStore
from compcache.store.protocol import REFRESH_SECONDS, Store

T = TypeVar("T")
COMPRESS_FROM = 512
"""Blobs of fewer bytes are stored raw."""
RETRY_SECONDS = 0.02
MOST_LOST = 50
"""How often a lease is tried for that nobody seems to hold."""
NEAREST_LIMIT = 200
"""How many stored entries an explanation of a miss looks at."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a program that is to be published, with their role and name."""

    role: str
    data: bytes
    name: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A program that is to be published; fields as in :class:`compcache.entry.Entry`."""

    kind: str
    factors: Factors
    parts: tuple[Part, ...]
    display: Mapping[str, JsonValue] = field(default_factory=dict)
    compile_seconds: float = 0.0
    programs: tuple[ProgramRef, ...] = ()
    assembly: Assembly | None = None
    provenance: Mapping[str, JsonValue] = field(default_factory=dict)


class Cache:
    """Programs by factors, in one store. Nothing is opened before the first lookup."""

    def __init__(self, settings: Settings, *, store: Store | None = None, session: Session | None = None) -> None:
        self.settings = settings
        chosen = store or DirectoryStore(settings.directory, trust=settings.trust, read_only=settings.mode == "ro")
        self.store: Store = BoundedStore(chosen, settings.store_seconds)
        self.session = session or Session()
        self.session.store = self.store.label
        self.clock: Callable[[], float] = time.time
        self.budget = lease.Budget(settings.wait_seconds)
        self._published = (0, 0)

    @property
    def writes(self) -> bool:
        return self.settings.mode == "rw"

    def guarded(self, what: str, action: Callable[[], T], otherwise: T) -> T:
        """The one boundary between the cache and an engine: any fault in ``action`` becomes ``otherwise``.

        It is counted and said once. Only RequiredMiss goes through: the user asked for that.
        """
        try:
            return action()
        except RequiredMiss:
            raise
        except Exception as error:  # promise 2: never worse than no cache
            self.session.fault(what, error)
            return otherwise

    # Lookup

    def find(self, factors: Factors) -> Entry | None:
        """The entry of the program with exactly these factors, or None.

        A damaged entry is re-read once, then quarantined, and is a miss. Raises StoreError if the store fails.
        """
        key = factors.program_key
        name = layout.entry(factors.configuration_key, key)
        try:
            entry = self._healing(name, MAX_ENTRY_BYTES, lambda data: parse_entry(data, program_key=key))
        except (NotStored, Damaged):
            return None
        return entry if entry.factors.same_as(factors) else None

    def entry_of(self, configuration_key: str, program_key: str) -> Entry:
        """An entry by its keys. Raises NotStored or Damaged."""
        name = layout.entry(configuration_key, program_key)
        return self._healing(name, MAX_ENTRY_BYTES, lambda data: parse_entry(data, program_key=program_key))

    def blob(self, ref: BlobRef) -> bytes:
        """The verified, decoded bytes of a blob. Raises NotStored or Damaged (after quarantining it)."""
        name = layout.blob(ref.digest)
        try:
            return decoded(ref, self.store.read(name, ref.size))
        except Damaged as error:
            if self._blob_is_sound(ref):
                raise Damaged(f"the entry is wrong about a sound blob: {error}") from error
        return self._healing(name, ref.size, lambda data: decoded(ref, data))

    def _blob_is_sound(self, ref: BlobRef) -> bool:
        """Whether the bytes are those of the name: then the reference lies about them, and others may be right."""
        try:
            return digest_of(self.store.read(layout.blob(ref.digest), MAX_RAW_BYTES)) == ref.digest
        except Damaged:
            return False

    def _healing(self, name: str, limit: int, parse: Callable[[bytes], T]) -> T:
        """Read and parse; damage is looked at twice (a torn read on a network mount heals), then quarantined."""
        for attempt in (1, 2):
            try:
                return parse(self.store.read(name, limit))
            except Damaged as error:
                if attempt == 2:
                    if self.writes and self.store.quarantine(name, str(error)):
                        self.session.say(f"quarantined {name}: {error}")
                    raise
        raise AssertionError("unreachable")

    def assemble(self, entry: Entry, programs: Mapping[str, bytes]) -> bytes:
        """The file of a start-up, from its segments and the artifacts of its ``programs`` (by program key).

        Raises Damaged if the result is not what was stored.
        """
        plan = entry.assembly
        if plan is None:
            raise Damaged("the entry has no assembly")
        data = b"".join(
            self.blob(entry.blobs[piece.index])
            if piece.source == "blob"
            else programs[entry.programs[piece.index].program_key]
            for piece in plan.pieces
        )
        if len(data) != plan.size or digest_of(data) != plan.digest:
            raise Damaged("the assembled bytes do not match their digest")
        return data

    # Publishing

    def publish(self, draft: Draft) -> Entry:
        """Store a program; the entry that is in the store afterwards (another's, if that was first).

        Complete when it returns. Raises StoreError if the store cannot take it; nothing partial is visible then.
        """
        present = self.find(draft.factors)
        if present is not None and self._blobs_sound(present):
            # A prune that was planned before must see that it is in use again.
            self.store.refresh(layout.entry(present.configuration_key, present.program_key))
            return present
        blobs = tuple(self._publish_blob(part) for part in draft.parts)
        entry = Entry(
            kind=draft.kind,
            factors=draft.factors,
            blobs=blobs,
            display=draft.display,
            compile_seconds=draft.compile_seconds,
            programs=draft.programs,
            assembly=draft.assembly,
            provenance={"compcache": __version__, "stored_at": round(self.clock(), 3), **draft.provenance},
        )
        self._publish_config(draft.factors)
        return self._publish_entry(entry, draft)

    def _publish_entry(self, entry: Entry, draft: Draft) -> Entry:
        name = layout.entry(entry.configuration_key, entry.program_key)
        data = entry.to_bytes()
        created = self.store.create(name, data)
        reached("publish.entry")
        if created:
            self.count_published(len(data), 1)
        else:
            winner = self.find(entry.factors)
            if winner is not None and self._blobs_sound(winner):
                return winner
            # What has the name is unusable and could not be moved away (a lost blob, or another's damaged file).
            self.store.replace(name, data)
        # A collector may have removed a reused blob between our look at it and the entry: then store it again.
        for part, ref in zip(draft.parts, entry.blobs, strict=True):
            if not self._has(ref):
                self._publish_blob(part)
        self._check_programs(entry)
        reached("publish.checked")
        return entry

    def _check_programs(self, entry: Entry) -> None:
        """A start-up whose programs were pruned while it was published is taken back. Raises StoreError."""
        for ref in entry.programs:
            try:
                self.entry_of(entry.configuration_key, ref.program_key)
            except (NotStored, Damaged) as error:
                self.store.remove(layout.entry(entry.configuration_key, entry.program_key))
                raise StoreError(errno.ENOENT, f"a program that it needs is gone: {ref.program_key}") from error

    def _publish_blob(self, part: Part) -> BlobRef:
        ref, data = encoded(part)
        name = layout.blob(ref.digest)
        created = self.store.create(name, data)
        reached("publish.blob")
        if created:
            self.count_published(len(data), 1)
            return ref
        try:
            decoded(ref, self.store.read(name, ref.size))
            self.store.refresh(name)
        except (Damaged, NotStored) as error:
            self.store.quarantine(name, str(error))
            self.store.replace(name, data)
        return ref

    def _publish_config(self, factors: Factors) -> None:
        name = layout.shared_factors(factors.configuration_key)
        self.store.create(name, canonical(dict(factors.shared)) + b"\n")
        reached("publish.config")

    def _has(self, ref: BlobRef) -> bool:
        try:
            return len(self.store.read(layout.blob(ref.digest), ref.size)) == ref.size
        except (NotStored, Damaged):
            return False

    def _blobs_sound(self, entry: Entry) -> bool:
        """Whether an entry's blobs are there and right; one that is bad is quarantined."""
        try:
            for ref in entry.blobs:
                self.blob(ref)
        except (NotStored, Damaged):
            return False
        return True

    def count_published(self, size: int, files: int) -> None:
        """Add to what :meth:`take_published` gives."""
        self._published = (self._published[0] + size, self._published[1] + files)

    def take_published(self) -> tuple[int, int]:
        """Bytes and files that this process added to the store since the last call."""
        taken, self._published = self._published, (0, 0)
        return taken

    # Single flight

    def compile_or_wait(self, key: str, ready: Callable[[], bool]) -> lease.Lease | None:
        """Take the lease on ``key``, or wait (within this start's budget) for who has it.

        None if ``ready()`` became true, or if there is nobody to wait for and no lease to be had: then compile.
        Store faults are not raised: without leases, everybody compiles.
        """
        if not self.writes:
            return None
        try:
            return self._lease_or_ready(key, ready)
        except CompcacheError as error:
            self.session.fault("no lease", error)
            return None

    def _lease_or_ready(self, key: str, ready: Callable[[], bool]) -> lease.Lease | None:
        watch = lease.Watch(self.store, key)
        lost = 0
        while (held := lease.acquire(self.store, key)) is None:
            if self.budget.left <= 0 or lease.wait_until(ready, watch, self.budget, say=self.session.say):
                return None
            # Nobody has it, and yet it was taken: lost a race, or a stale view. The next try is paid for, too.
            lost += 1
            if lost > MOST_LOST:
                return None  # a lease that cannot be cleared (another user's): without one, everybody compiles
            time.sleep(RETRY_SECONDS)
            self.budget.spend(RETRY_SECONDS)
        # Only after the lease is held can nobody else publish between this look and the compile.
        try:
            if not ready():
                return held
        except BaseException:
            held.release()
            raise
        held.release()
        return None

    # Explaining and bookkeeping

    def nearest(self, factors: Factors, kind: str, skip: Collection[str] = ()) -> list[Difference] | None:
        """The differences to the nearest stored entry of that kind; None if there is none. Bounded, local data only.

        ``factors`` may be the start of a longer set (a start-up's before its sources are known): names that only the
        entry has, and that begin with "source.", do not count. ``skip`` are program keys that are not looked at: what
        this process has just stored.
        """
        best: list[Difference] | None = None
        own_configuration = layout.configuration(factors.configuration_key)
        looked = 0
        for prefix in (own_configuration, "configs"):
            for found in self.store.scan(prefix):
                name = layout.parse_entry_name(found.name)
                if (
                    name is None
                    or name.program_key in skip
                    or (prefix == "configs" and name.configuration_key == factors.configuration_key)
                ):
                    continue
                looked += 1
                if looked > NEAREST_LIMIT:
                    return best
                try:
                    entry = parse_entry(self.store.read(found.name, MAX_ENTRY_BYTES))
                except (StoreError, Damaged):
                    continue
                if entry.kind != kind:
                    continue
                differ = [
                    d
                    for d in differences(factors.all, entry.factors.all)
                    if not (d.missing == "wanted" and d.name.startswith("source."))
                ]
                if best is None or len(differ) < len(best):
                    best = differ
            if best is not None:
                return best
        return best

    def mark_used(self, entries: Iterable[Entry]) -> None:
        """Refresh the mtimes of used entries, at most hourly each. For after the engine is ready."""
        if not self.writes:
            return
        used = {layout.entry(e.configuration_key, e.program_key) for e in entries}
        for folder in {name.rpartition("/")[0] for name in used}:
            for found in self.store.scan(folder):
                if found.name in used and self.clock() - found.mtime > REFRESH_SECONDS:
                    self.store.refresh(found.name)


def digest_of(data: bytes) -> str:
    """BLAKE3, 64 hexadecimal digits."""
    return blake3.blake3(data).hexdigest()


def encoded(part: Part) -> tuple[BlobRef, bytes]:
    """A part as it is stored, and the reference to it. Compressed where that saves at least a tenth."""
    data, encoding = part.data, "raw"
    if len(data) >= COMPRESS_FROM:
        smaller = zstandard.ZstdCompressor(level=3).compress(data)
        if len(smaller) * 10 <= len(data) * 9:
            data, encoding = smaller, "zstd"
    return BlobRef(digest_of(data), len(data), len(part.data), encoding, part.role, part.name), data


def decoded(ref: BlobRef, data: bytes) -> bytes:
    """The bytes that were stored. Raises Damaged unless size, digest and raw size are those of the reference."""
    if len(data) != ref.size or digest_of(data) != ref.digest:
        raise Damaged(f"blob {ref.digest[:12]} does not match its digest")
    if ref.encoding == "raw":
        return data
    try:
        # Decompressing into a buffer of the stated size: a frame that claims more is refused, not expanded.
        size = zstandard.frame_content_size(data)
        if size != ref.raw_size:
            raise Damaged(f"blob {ref.digest[:12]} claims {size} bytes, not {ref.raw_size}")
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=ref.raw_size)
    except zstandard.ZstdError as error:
        raise Damaged(f"blob {ref.digest[:12]} cannot be decoded: {error}") from error
    if len(raw) != ref.raw_size:
        raise Damaged(f"blob {ref.digest[:12]} has {len(raw)} bytes, not {ref.raw_size}")
    return raw
