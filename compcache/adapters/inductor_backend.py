"""torch's remote caches over the store.

A remote cache of torch (torch/_inductor/remote_cache.py) asks a backend for bytes by key; which backend, its class
says in ``backend_override_cls``. Keys look like ``pt2:fx-graph-v1::<key>:c1``. What graphs and AOTAutograd's records
are handed over as is JSON around base64 of a pickle; in the store it is the pickle, a blob, which torch unpickles only
after its digest was checked here.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any, Protocol

TORCH_KEY = re.compile(r"pt2:(?P<cache>.+?)::(?P<key>.*):c\d+", re.DOTALL)


class Records(Protocol):
    """What a backend needs: one kind of torch's records in the store. Does not raise but for RequiredMiss."""

    def get(self, key: str) -> tuple[bytes, float] | None:
        """The bytes of a record, and the seconds that it cost."""

    def put(self, key: str, read: Callable[[], tuple[bytes, float]]) -> None:
        """Store what ``read`` gives, as :meth:`get` does."""


class Plain:
    """Bytes as torch hands them over: JSON, for tuning choices."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def get(self, key: str) -> bytes | None:
        found = self.records.get(key)
        return None if found is None else found[0]

    def put(self, key: str, data: bytes) -> None:
        self.records.put(key, lambda: (data, 0.0))


class Pickled(Plain):
    """JSON around base64 of a pickle: ``{"data": ..., "time_taken_ms": ...}``."""

    def get(self, key: str) -> bytes | None:
        found = self.records.get(key)
        if found is None:
            return None
        content, seconds = found
        # As json.dumps would: base64 has nothing that JSON escapes.
        return b'{"data": "%s", "time_taken_ms": %d}' % (base64.b64encode(content), int(seconds * 1000))

    def put(self, key: str, data: bytes) -> None:
        self.records.put(key, lambda: _unwrapped(data))


def _unwrapped(data: bytes) -> tuple[bytes, float]:
    document: dict[str, Any] = json.loads(data)
    return base64.b64decode(document["data"]), float(document.get("time_taken_ms") or 0.0) / 1000


def graph_key(key: str) -> str:
    """As torch's remote cache asks for a graph (``FxGraphCache.get_remote_cache``, ``RemoteCache._get_key``)."""
    return f"pt2:fx-graph-v1::{key}:c1"


def parts_of_key(key: str) -> tuple[str, str]:
    """The name of torch's cache in a key, and the rest of it."""
    match = TORCH_KEY.fullmatch(key)
    return (match["cache"], match["key"]) if match else ("", key)
