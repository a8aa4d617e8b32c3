"""``compcache prune``: make a store smaller. Prints the plan, asks, then does it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from compcache import config
from compcache import prune as pruning
from compcache.errors import ConfigError
from compcache.inventory import range_of
from compcache_cli import render
from compcache_cli.commands import place

T = TypeVar("T")
_WHY = {
    "age": "not used for too long",
    "size": "least recently used",
    "dependent": "needs a program that goes",
    "unreferenced": "nothing refers to it",
    "leftover": "left by a process that ended",
}


def prune(
    context: typer.Context,
    max_size: Annotated[
        str | None, typer.Option("--max-size", metavar="SIZE", help="Keep at most this much: 20GB, 500MiB.")
    ] = None,
    max_age: Annotated[
        str | None, typer.Option("--max-age", metavar="AGE", help="Remove what was not used for this long: 30d, 12h.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan, and what was done, as JSON.")] = False,
) -> None:
    """Remove the least recently used programs, down to a size or an age."""
    size_limit = _parsed(max_size, config.parse_size, "--max-size")
    age_limit = _parsed(max_age, config.parse_age, "--max-age")
    if size_limit is None and age_limit is None:
        render.say("prune needs to know how much to keep: --max-size 20GB, --max-age 30d, or both")
        raise typer.Exit(2)
    where = place(context)
    store = where.store(read_only=dry_run)
    with where.listing(store, believed=0.0) as listing:  # who asks for it gets the last uses of this moment
        plan = pruning.plan(store, max_size=size_limit, max_age=age_limit, remembered=listing)
    if not as_json:
        _print_plan(plan, store.label, size_limit)
    outcome = None
    if plan.removals and not dry_run:
        if not yes:
            typer.confirm(f"Remove {render.count(len(plan.removals), 'file')}?", abort=True, err=True)
        outcome = pruning.execute(store, plan)
        _forget(context, store.label, outcome)
    if as_json:
        render.document(_document(plan, outcome))
    elif outcome is not None:
        _print_outcome(outcome)


def _parsed(text: str | None, parse: Callable[[str], T], option: str) -> T | None:
    if text is None:
        return None
    try:
        return parse(text)
    except ConfigError as error:
        raise typer.BadParameter(render.message(error), param_hint=option) from None


def _print_plan(plan: pruning.Plan, label: str, size_limit: int | None) -> None:
    if not plan.removals:
        render.line(f"nothing to remove at {label}: {render.size(plan.bytes_before)} stored")
    else:
        _print_removals(plan)
        render.line(
            f"frees {render.size(plan.bytes_freed)} of {render.size(plan.bytes_before)} at {label};"
            f" {render.size(plan.bytes_after)} stay"
        )
    if plan.bytes_young:
        render.line(f"{render.size(plan.bytes_young)} in blobs without a program stay until they are an hour old")
    if plan.spares_blobs:
        render.line("some entries cannot be read now, so no blob is removed: see compcache verify")
    if size_limit is not None and plan.bytes_after - plan.bytes_young > size_limit:
        render.line("that is more than the limit: the rest is pinned, or not for prune to remove")


def _print_removals(plan: pruning.Plan) -> None:
    now = time.time()
    rows = [(*_named(r), render.ago(r.found.mtime, now), render.size(r.found.size), _WHY[r.why]) for r in plan.entries]
    if rows:
        render.table(("program", "model", "range", "last use", "size", "why"), rows, right=("last use", "size"))
    for removals, word in ((plan.blobs, "blob"), (plan.others, "other file")):
        if removals:
            total = sum(removal.found.size for removal in removals)
            render.line(f"{render.count(len(removals), word)}, {render.size(total)}")


def _named(removal: pruning.Removal) -> tuple[str, str, str]:
    entry = removal.entry
    if entry is None:
        return removal.name.rsplit("/", 1)[-1][:12], "damaged entry", ""
    return entry.program_key[:12], entry.display.get("model", ""), range_of(entry)


def _print_outcome(outcome: pruning.Outcome) -> None:
    spared = f"; {render.count(len(outcome.spared), 'file')} spared, used or gone since" if outcome.spared else ""
    removed = render.count(len(outcome.removed), "file")
    render.line(f"removed {removed}, {render.size(outcome.bytes_freed)}{spared}")


def _forget(context: typer.Context, label: str, outcome: pruning.Outcome) -> None:
    keys = [removal.entry.program_key for removal in outcome.removed if removal.entry is not None]
    place(context).from_index(lambda index: index.forget(keys, label), None)


def _document(plan: pruning.Plan, outcome: pruning.Outcome | None) -> dict[str, Any]:
    done = outcome or pruning.Outcome()
    return {
        "bytes_before": plan.bytes_before,
        "bytes_after": plan.bytes_after,
        "bytes_freed": plan.bytes_freed,
        "bytes_young": plan.bytes_young,
        "spares_blobs": plan.spares_blobs,
        "plan": [_removal(removal) for removal in plan.removals],
        "executed": outcome is not None,
        "removed": [removal.name for removal in done.removed],
        "spared": [removal.name for removal in done.spared],
    }


def _removal(removal: pruning.Removal) -> dict[str, Any]:
    return {
        "name": removal.name,
        "program_key": removal.entry.program_key if removal.entry else None,
        "why": removal.why,
        "bytes": removal.found.size,
        "last_use": render.iso(removal.found.mtime),
    }
