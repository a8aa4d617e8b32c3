"""``compcache pin KEY`` and ``compcache unpin KEY``: programs that no prune removes."""

from __future__ import annotations

from typing import Annotated

import typer

from compcache.store import layout
from compcache_cli import render
from compcache_cli.commands import place
from compcache_cli.commands.chosen import choose, program_key

Key = Annotated[str, typer.Argument(metavar="KEY", help="The beginning of a program or configuration key.")]


def pin(context: typer.Context, key: Key) -> None:
    """Keep a program, or all programs of a configuration, whatever the limits. A start-up keeps its graphs, too."""
    store = place(context).store(read_only=False)
    chosen = choose(store, key)
    new = [store.create(layout.pin(program_key(found)), b"") for found in chosen.programs]
    render.line(f"pinned {render.count(sum(new), 'program')}, {render.count(len(new) - sum(new), 'program')} before")


def unpin(context: typer.Context, key: Key) -> None:
    """Let a pinned program, or those of a configuration, go again."""
    store = place(context).store(read_only=False)
    gone = [store.remove(layout.pin(program_key(found))) for found in choose(store, key).programs]
    render.line(f"unpinned {render.count(sum(gone), 'program')}")
