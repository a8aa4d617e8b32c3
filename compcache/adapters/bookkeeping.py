"""What is done once an engine is ready, or a process is at its end: last use, seconds saved, limits."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from compcache.cache import Cache
from compcache.entry import Entry
from compcache.index import Index
from compcache.records import Use
from compcache.session import size_text


class Bookkeeping:
    """Each loaded program counts once, however often a process reports. :meth:`keep` does not raise."""

    def __init__(self) -> None:
        self._uses: list[tuple[Cache, list[Entry]]] = []

    def used(self, cache: Cache, entries: Iterable[Entry]) -> None:
        """These were loaded from the store of that cache; it is written down once there is time."""
        self._uses.append((cache, list(entries)))

    def keep(self, caches: Sequence[Cache]) -> None:
        """Write down what was used, and keep the limits of the stores of ``caches``, which share one session."""
        first = caches[0]
        first.guarded("no bookkeeping", lambda: self._count(first), None)
        for cache in caches:
            first.guarded("limits are not kept", functools.partial(_keep_limits, cache), None)

    def _count(self, first: Cache) -> None:
        uses, self._uses = self._uses, []
        saved = first.session.saved_seconds / max(1, len(first.session.loaded))
        _index(first).record(
            Use(entry.program_key, cache.store.label, saved, cache.clock()) for cache, used in uses for entry in used
        )
        # Last: it lists folders of the store, and one that cannot be listed must not cost the statistics.
        for cache, used in uses:
            cache.mark_used(used)


def _keep_limits(cache: Cache) -> None:
    from compcache import limits  # only here: the engine waits for the imports of this module

    swept = limits.keep(cache, _index(cache))
    if swept is not None and swept.outcome.removed:
        cache.session.say(
            f"pruned {swept.files_before - swept.files_after} files to keep {cache.store.label} within its limits:"
            f" {size_text(swept.bytes_before)} before, {size_text(swept.bytes_after)} now"
        )


def _index(cache: Cache) -> Index:
    return Index(cache.settings.state / "index")
