"""``compcache verify``: read every file of the store and say what is wrong with it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from compcache import repair as repairing
from compcache import verify as verifying
from compcache_cli import render
from compcache_cli.commands import place


def verify(
    context: typer.Context,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what can be mended; what no start can use is set aside.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check every entry and blob. Exit status 1 if something is, or stays, damaged; notes alone leave it 0."""
    store = place(context).store(read_only=not repair)
    report = verifying.verify(store)
    repairs = repairing.repair(store, report) if repair else ()
    if as_json:
        render.document({**_document(report), "repairs": [_repair(r) for r in repairs]})
    else:
        _print_report(report, store.label)
        _print_repairs(repairs)
    if repairing.left(repairs) if repair else report.damage:
        raise typer.Exit(1)


def _print_report(report: verifying.Report, label: str) -> None:
    if report.findings:
        rows = [("damage" if f.damage else "note", f.kind, f.name, f.detail) for f in report.findings]
        render.table(("", "what", "file", "detail"), rows)
    checked = f"{render.count(report.entries, 'program')} and {render.count(report.blobs, 'blob')} checked at {label}"
    notes = f", {render.count(len(report.notes), 'note')}" if report.notes else ""
    if report.damage:
        render.line(f"{checked}: {render.count(len(report.damage), 'finding')}{notes}")
    else:
        render.line(f"{checked}: no damage{notes}")


def _print_repairs(repairs: tuple[repairing.Repair, ...]) -> None:
    if repairs:
        rows = [(r.done or "left", r.finding.kind, r.finding.name, r.left) for r in repairs]
        render.table(("repair", "what", "file", "why"), rows)


def _repair(repair: repairing.Repair) -> dict[str, Any]:
    return {"name": repair.finding.name, "kind": repair.finding.kind, "done": repair.done, "left": repair.left}


def _document(report: verifying.Report) -> dict[str, Any]:
    return {
        "ok": not report.damage,
        "programs": report.entries,
        "blobs": report.blobs,
        "bytes": report.bytes,
        "findings": [{"name": f.name, "kind": f.kind, "detail": f.detail, "damage": f.damage} for f in report.findings],
    }
