"""The records of the index, and their text: plain JSON; what is not ours is not read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

MAX_VALUE = 4096
"""Characters of one record; a longer one is not ours."""


@dataclass(frozen=True, slots=True)
class Use:
    """A program was loaded from the store of that label, ``at`` a Unix time; it stood for ``seconds_saved``."""

    program_key: str
    store: str
    seconds_saved: float
    at: float


@dataclass(frozen=True, slots=True)
class Usage:
    """What this host knows of one program, or of all: ``last_used`` is a Unix time."""

    hits: int = 0
    seconds_saved: float = 0.0
    last_used: float = 0.0

    def and_(self, other: Usage) -> Usage:
        return Usage(
            self.hits + other.hits, self.seconds_saved + other.seconds_saved, max(self.last_used, other.last_used)
        )


@dataclass(frozen=True, slots=True)
class StoreSize:
    """What this host believes a store to hold: ``measured`` by a scan then (Unix time), plus what it published since.

    ``next_sweep`` is the Unix time before which no scan is made again, whatever the size.
    """

    bytes: int = 0
    files: int = 0
    measured: float = 0.0
    next_sweep: float = 0.0


def text_of(usage: Usage) -> str:
    return json.dumps({"hits": usage.hits, "saved": round(usage.seconds_saved, 3), "used": round(usage.last_used, 3)})


def parsed_usage(value: object) -> Usage | None:
    """The usage in a record; None if it is not one of ours."""
    if not isinstance(value, str) or len(value) > MAX_VALUE:
        return None
    try:
        record = json.loads(value)
        usage = Usage(int(record["hits"]), float(record["saved"]), float(record["used"]))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    sound = all(math.isfinite(n) and 0 <= n < 1e15 for n in (usage.hits, usage.seconds_saved, usage.last_used))
    return usage if sound else None


def parsed_size(value: object) -> StoreSize | None:
    if not isinstance(value, str) or len(value) > MAX_VALUE:
        return None
    try:
        record = json.loads(value)
        size = StoreSize(
            int(record["bytes"]), int(record["files"]), float(record["measured"]), float(record["next_sweep"])
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    sound = all(math.isfinite(n) and 0 <= n < 1e18 for n in (size.bytes, size.files, size.measured, size.next_sweep))
    return size if sound else None
