"""``compcache stats``: sums over the store, and what it saved this host."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated, Any

import typer

from compcache.inventory import Inventory, inventory
from compcache.records import Usage
from compcache_cli import render
from compcache_cli.commands import place


def stats(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how much is stored, and the hits and seconds saved on this host."""
    where = place(context)
    store = where.store()
    with where.listing(store) as listing:
        stored = inventory(store, where.usages(store), remembered=listing)
    total = where.from_index(lambda index: index.totals(), Usage())
    if as_json:
        render.document(_document(stored, total))
        return
    if not stored.configurations:
        render.line(f"nothing stored at {stored.label}")
    rows: list[tuple[str, object]] = [
        ("store", stored.label),
        ("configurations", len(stored.configurations)),
        ("programs", _programs(stored)),
        ("size", render.size(stored.bytes)),
        ("files", stored.files),
        ("damaged or unknown files", len(stored.skipped)),
        ("compile time stored", render.seconds(sum(c.measure.compile_seconds for c in stored.configurations))),
        ("hits here", sum(c.measure.hits for c in stored.configurations)),
        ("hits on this host, all stores", total.hits),
        ("saved on this host, all stores", render.seconds(total.seconds_saved)),
        ("last hit on this host", render.ago(total.last_used, time.time())),
    ]
    render.facts(rows)


def _kinds(stored: Inventory) -> Counter[str]:
    return Counter(row.kind for c in stored.configurations for group in c.ranges for row in group.programs)


def _programs(stored: Inventory) -> str:
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(_kinds(stored).items()))
    return f"{stored.programs} ({kinds})" if kinds else "0"


def _document(stored: Inventory, total: Usage) -> dict[str, Any]:
    return {
        "store": stored.label,
        "configurations": len(stored.configurations),
        "programs": stored.programs,
        "kinds": dict(_kinds(stored)),
        "bytes": stored.bytes,
        "files": stored.files,
        "skipped_files": len(stored.skipped),
        "compile_seconds": sum(c.measure.compile_seconds for c in stored.configurations),
        "hits": sum(c.measure.hits for c in stored.configurations),
        "host": {
            "hits": total.hits,
            "seconds_saved": total.seconds_saved,
            "last_use": render.iso(total.last_used),
        },
    }
