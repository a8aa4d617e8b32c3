"""``compcache suspects``: what this host does not load, since processes died of it here; and how to lift that."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from compcache import limits, suspicion
from compcache.errors import NotStored
from compcache.prune import Outcome
from compcache.suspicion import Suspect
from compcache_cli import render
from compcache_cli.commands import Place, place


def suspects(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="The beginning of a program key; all if left out.")] = "",
    clear: Annotated[bool, typer.Option("--clear", help="Forget: these programs are loaded here again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one row per program, or what was done.")] = False,
) -> None:
    """Show programs that this host compiles again instead of loading them, or (--clear) let it load them again."""
    where = place(context)
    found = [s for s in suspicion.suspects(where.settings.state) if s.program_key.startswith(key.strip().lower())]
    if key and not found:
        raise NotStored(None, f"this host suspects no program whose key begins with {key!r}")
    if clear:
        _clear(where, found, key.strip().lower(), as_json)
    else:
        _show(where, found, as_json)


def _show(where: Place, found: list[Suspect], as_json: bool) -> None:
    again = suspicion.compiled_again(where.settings.state, found)
    if as_json:
        render.document([{**_row(s), "healed": s.program_key in again} for s in found])
    elif not found:
        render.line("this host suspects nothing")
    else:
        now = time.time()
        rows = [
            (s.program_key, s.why, render.ago(s.since, now), "yes" if s.program_key in again else "no") for s in found
        ]
        render.table(("program", "why", "since", "compiled again here"), rows)


def _clear(where: Place, found: list[Suspect], key: str, as_json: bool) -> None:
    records = suspicion.forget(where.settings.state, key)
    outcome = limits.drop_unsuspected(where.settings.state)
    if as_json:
        render.document({"cleared": [_row(s) for s in found], "records": records, **_freed(outcome)})
        return
    for suspect in found:
        render.line(f"no longer suspected: {suspect.program_key}")
    programs = render.count(len({s.program_key for s in found}), "program")
    render.line(f"cleared {programs}; {render.count(records, 'record')} of deaths removed")
    if outcome.removed:
        files = render.count(len(outcome.removed), "file")
        render.line(f"what was compiled again in their place goes: {files}, {render.size(outcome.bytes_freed)}")


def _row(suspect: Suspect) -> dict[str, Any]:
    return {
        "program_key": suspect.program_key,
        "digest": suspect.digest,
        "why": suspect.why,
        "since": render.iso(suspect.since),
    }


def _freed(outcome: Outcome) -> dict[str, Any]:
    return {"files_removed": len(outcome.removed), "bytes_freed": outcome.bytes_freed}
