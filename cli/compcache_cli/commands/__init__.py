"""The verbs, one module each, and the place that they work on: the store that was chosen and this host's index.

A verb takes ``typer.Context`` first; :func:`place` gives it the settings that the options before the verb made.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import typer

from compcache.config import Settings
from compcache.errors import CompcacheError, NotStored
from compcache.index import Index
from compcache.listing import Listing
from compcache.records import Usage
from compcache.store.directory import DirectoryStore
from compcache.store.protocol import REFRESH_SECONDS
from compcache_cli import render

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a verb works."""

    settings: Settings

    def store(self, *, read_only: bool = True) -> DirectoryStore:
        """The store, once it is known to be one. Raises NotStored, UnknownFormat, Untrusted or StoreError."""
        store = DirectoryStore(self.settings.directory, trust=self.settings.trust, read_only=read_only)
        try:
            store.check()
        except NotStored as error:
            raise NotStored(errno.ENOENT, f"nothing stored at {store.label}: {_why_not(store.root)}") from error
        return store

    @property
    def index(self) -> Index:
        return Index(self.settings.state / "index")

    def usages(self, store: DirectoryStore) -> dict[str, Usage]:
        """What the index knows of a store's programs; nothing, and a line that says so, if it cannot be read."""
        return self.from_index(lambda index: index.usages(store.label), {})

    @contextlib.contextmanager
    def listing(
        self, store: DirectoryStore, believed: float = REFRESH_SECONDS, looks_at: str = "", way: str = ""
    ) -> Iterator[Listing]:
        """What this host has seen of a store, for a look at all of it (or of one of its folders); kept for the next one
        if that is worth it."""
        nothing: list[tuple[str, str]] = []

        def load(kind: str, after: str) -> list[tuple[str, str]]:
            return self.from_index(lambda index: index.listing(store.label, kind, after), nothing)

        known = Listing(load, believed=believed)
        yield known
        known.finish(looks_at, way)
        if known.worth_keeping:
            self.from_index(lambda index: index.set_listing(store.label, known.changes), None)

    def from_index(self, action: Callable[[Index], T], otherwise: T) -> T:
        """Statistics are never worth a failure."""
        try:
            return action(self.index)
        except CompcacheError as error:
            render.say(f"no statistics of this host: {render.message(error)}")
            return otherwise


def _why_not(root: Path) -> str:
    if not os.path.lexists(root):
        return "there is no such directory"
    return "the directory is not a compcache store"


def place(context: typer.Context) -> Place:
    """The place that the options before the verb chose."""
    found = context.find_object(Place)
    if found is None:
        raise RuntimeError("a verb runs below the app's own callback")
    return found
