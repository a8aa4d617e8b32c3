"""Limits that hold without anybody running a command: kept after a publication, by running totals and rare sweeps.

What this process published is added to what this host believes the store to hold, in the index: one small write. Only
when that exceeds a limit, or is a day old (others publish, too), is the store measured by a scan and, if need be,
pruned down to LOW_WATER of the limit, so that the next sweep is far. A sweep looks at a store for at most
SWEEP_SECONDS, on one host at a time; what was used within the last hour stays, since mtimes are refreshed hourly.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compcache import lease, suspicion
from compcache.cache import Cache
from compcache.config import Limits
from compcache.errors import Damaged, NotStored, StoreError
from compcache.factors import key_of
from compcache.index import Index
from compcache.records import StoreSize
from compcache.store import layout
from compcache.store.directory import DirectoryStore
from compcache.store.protocol import REFRESH_SECONDS, Found

if TYPE_CHECKING:  # imported where a sweep is due: that none is due must cost a start next to nothing
    from compcache.prune import Outcome

LOW_WATER = 0.9
MEASURED_SECONDS = 86400.0
"""How long a measured size is believed."""
AGAIN_SECONDS = 600.0
"""Between two sweeps of a store whose size cannot be brought below its limits."""
SWEEP_SECONDS = 10.0
LEASE_SECONDS = 3600.0
IN_USE_SECONDS = REFRESH_SECONDS + 600.0
"""What was used this recently may be loading now: its mtime need not have been refreshed since."""
SWEEP_KEY = key_of({"compcache": "sweep"})


class TooSlow(StoreError):
    """A store cannot be looked at within SWEEP_SECONDS."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep found and did: bytes and files of the whole store, before and after."""

    bytes_before: int
    files_before: int
    bytes_after: int
    files_after: int
    outcome: Outcome


def keep(cache: Cache, index: Index, *, monotonic: Callable[[], float] = time.monotonic) -> Sweep | None:
    """Keep the limits of the settings; what a sweep did, or None if none was due.

    For after an engine is ready. Raises StoreError or Damaged of the store or the index; the caller guards.
    """
    limits = cache.settings.limits
    if not cache.writes or not limits.any:
        return None
    size, files = cache.take_published()
    believed = index.add_to_store(cache.store.label, size=size, files=files)
    now = cache.clock()
    if believed is None and not files and limits.max_age is None:
        return None  # a host that only loads: who publishes measures
    if believed is not None:
        # A clock that was set back makes "measured" lie in the future: then measure again.
        fresh = 0 <= now - believed.measured < MEASURED_SECONDS
        if fresh and (not exceeds(believed.bytes, believed.files, limits) or now < believed.next_sweep):
            return None
    held = lease.acquire(cache.store, SWEEP_KEY, renew=False)
    if held is None:
        if believed is None:
            cache.count_published(size, files)  # not counted anywhere yet
        _clear_dead(cache, now)
        return None
    try:
        return _sweep(cache, index, limits, monotonic)
    except TooSlow:
        late = StoreSize(believed.bytes if believed else size, believed.files if believed else files, now, now)
        index.set_store_size(cache.store.label, _again_after(late, MEASURED_SECONDS))
        raise
    finally:
        held.release()


def _clear_dead(cache: Cache, now: float) -> None:
    """A sweep takes seconds: the lease of a dead process of this host goes at once, any other after LEASE_SECONDS."""
    if not lease.Watch(cache.store, SWEEP_KEY).holder():
        return
    name = layout.lease(SWEEP_KEY)
    for found in cache.store.scan("leases"):
        if found.name == name and now - found.mtime > LEASE_SECONDS:
            cache.store.discard(name, found.mtime)


def exceeds(size: int, files: int, limits: Limits) -> bool:
    return (limits.max_bytes is not None and size > limits.max_bytes) or (
        limits.max_files is not None and files > limits.max_files
    )


def _sweep(cache: Cache, index: Index, limits: Limits, monotonic: Callable[[], float]) -> Sweep:
    from compcache import prune
    from compcache.contents import contents
    from compcache.listing import Listing

    end = monotonic() + SWEEP_SECONDS

    def in_time() -> None:
        if monotonic() > end:
            raise TooSlow(None, f"looking at the store takes over {SWEEP_SECONDS:.0f} s; run compcache prune on it")

    label = cache.store.label
    listing = Listing(functools.partial(index.listing, label), clock=cache.clock)
    try:
        stored = contents(cache.store, on_file=in_time, remembered=listing)
        listing.finish()
    finally:  # also of a look that took too long: the next one gets further
        if listing.worth_keeping:
            with contextlib.suppress(StoreError, Damaged):  # what is not kept is looked at again
                index.set_listing(label, listing.changes)
    before = stored.bytes, stored.count
    planned = prune.planned(
        stored,
        max_size=_low(limits.max_bytes, before[0]),
        max_files=_low(limits.max_files, before[1]),
        max_age=limits.max_age,
        in_use=IN_USE_SECONDS,
        clock=cache.clock,
    )
    outcome = prune.execute(cache.store, planned, remembered=listing) if planned.removals else prune.Outcome()
    after = before[0] - outcome.bytes_freed, before[1] - len(outcome.removed)
    now = cache.clock()
    size = StoreSize(*after, measured=now, next_sweep=now)
    index.set_store_size(label, _again_after(size, AGAIN_SECONDS) if exceeds(*after, limits) else size)
    index.forget([r.entry.program_key for r in outcome.removed if r.entry], label)
    return Sweep(*before, *after, outcome)


def drop_unsuspected(state: Path) -> Outcome:
    """Remove from this host's own store what stands in for no program that is suspected (any more).

    Nothing would find it. Blobs that may belong to what is being compiled again now stay until they are older.
    """
    from compcache import prune
    from compcache.contents import contents

    store = DirectoryStore(suspicion.healed(state))
    try:
        store.check()
    except NotStored:
        return prune.Outcome()
    stored = contents(store)
    stored.pins |= {s.program_key: Found(layout.pin(s.program_key), 0, 0.0) for s in suspicion.suspects(state)}
    return prune.execute(store, prune.planned(stored, max_size=0))


def _low(limit: int | None, now: int) -> int | None:
    """Where to prune to: nowhere if the limit holds, else some way below it."""
    return int(limit * LOW_WATER) if limit is not None and now > limit else None


def _again_after(size: StoreSize, seconds: float) -> StoreSize:
    return StoreSize(size.bytes, size.files, size.measured, size.measured + seconds)
