"""The interface of every store, and what each method promises.

A name is a relative POSIX path as in :mod:`compcache.store.layout`. Contents never change under a name, except
where ``replace`` is used (``modules.json`` alone). Any method may raise StoreError; ``read`` of what is not there
raises NotStored. Every method may run twice for one intent (a caller may retry), and may race with every other
method in any process on any host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

REFRESH_SECONDS = 3600.0
"""A program in use has its entry refreshed this often at most."""


class Found(NamedTuple):
    """One name of a scan: size in bytes, and mtime (Unix time, seconds), which means "last stored or used"."""

    name: str
    size: int
    mtime: float


class Folder(NamedTuple):
    """A folder of entries or blobs; ``mtime`` (Unix time, seconds) changes whenever a name in it comes, goes, or is put
    there anew, and not when it is refreshed."""

    name: str
    mtime: float


@runtime_checkable
class Store(Protocol):
    """A tree of immutable files."""

    @property
    def label(self) -> str:
        """How a line of text names this store."""

    def read(self, name: str, limit: int) -> bytes:
        """All bytes under ``name``, at most ``limit``.

        Raises NotStored; Damaged if it is larger or no plain file; Untrusted by owner or mode.
        """

    def create(self, name: str, data: bytes) -> bool:
        """Store ``data`` durably under a name that is not taken; True if this call did. All of it appears, or none."""

    def replace(self, name: str, data: bytes) -> None:
        """Store ``data`` durably under ``name``, whatever is there. A reader sees the old bytes or the new ones."""

    def refresh(self, name: str) -> None:
        """Set the mtime to now: stored again, or used. No error if the name is gone or the store is read-only."""

    def remove(self, name: str) -> bool:
        """Remove a name; True if it was there."""

    def discard(self, name: str, mtime: float) -> bool:
        """Remove a name only if its mtime is still the one that a scan gave; True if this call removed it.

        What was stored again, or used, since that scan stays. (Between a look and a ``remove``, a writer could have
        reused the file, looked, found it there, and gone on.)
        """

    def take(self, name: str, expected: bytes) -> bool:
        """Remove a name only if it holds ``expected``; True if this call removed it. Other content stays."""

    def quarantine(self, name: str, reason: str) -> bool:
        """Move a bad file out of the way and keep it for a look, with the reason; True if this call moved it.

        False where this process does not own the file: others' files are skipped, never moved.
        """

    def scan(self, prefix: str) -> Iterator[Found]:
        """Every file below a folder, in no order; files that vanish on the way are left out. Temporary names too.

        A file or folder that is there and cannot be looked at is an error: who does not see an entry takes its blobs
        for nobody's.
        """

    def folders(self, prefix: str) -> Iterator[Folder | Found] | None:
        """The folders below ``prefix`` that hold entries or blobs, so that a look at a large store need not list what
        did not change; and files that lie where such a folder should. None where the store has no folders. Errors as
        in ``scan``.
        """
