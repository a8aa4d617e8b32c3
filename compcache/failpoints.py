"""Failpoints: the named steps of everything that changes a store, at which a test may stop, fail or kill a process.

The term and the idea are those of FreeBSD's fail(9). A step says its name by :func:`reached`; unless a test has armed
an action (:func:`armed`), that costs one call and one comparison. :mod:`compcache.testing.kills` kills a process at
each of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Literal

Name = Literal[
    "directory.made",
    "temporary.created",
    "temporary.written",
    "temporary.synced",
    "name.linked",
    "name.replaced",
    "name.synced",
    "temporary.removed",
    "file.moved",
    "file.put_back",
    "file.removed",
    "publish.lease",
    "publish.blob",
    "publish.config",
    "publish.entry",
    "publish.checked",
    "publish.modules",
    "quarantine.moved",
    "quarantine.explained",
    "prune.entry",
    "prune.blob",
    "prune.other",
]
"""``temporary``, ``name``, ``file`` and ``directory`` are steps of a directory store; the rest are met on any store."""

_action: Callable[[Name], None] | None = None


def reached(name: Name) -> None:
    """A step was done. Does nothing unless a test armed an action."""
    if _action is not None:
        _action(name)


@contextlib.contextmanager
def armed(action: Callable[[Name], None]) -> Iterator[None]:
    """Call ``action`` at every failpoint that this process reaches within the block. For tests."""
    global _action
    before, _action = _action, action
    try:
        yield
    finally:
        _action = before
