"""``compcache ls``: what is stored, by configuration; one row per compile range, or per program."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from compcache.contents import CONFIGURATION_FIELDS
from compcache.inventory import ConfigurationRow, Inventory, Measure, ProgramRow, inventory
from compcache_cli import render
from compcache_cli.commands import place

_MEASURES = ("size", "files", "compile", "last use", "hits")
_RIGHT = ("programs", *_MEASURES)


def ls(
    context: typer.Context,
    programs: Annotated[bool, typer.Option("--programs", help="One row per program instead of one per range.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of the rows.")] = False,
) -> None:
    """List what is stored, by configuration."""
    where = place(context)
    store = where.store()
    with where.listing(store) as listing:
        stored = inventory(store, where.usages(store), programs=programs, remembered=listing)
    if as_json:
        render.document([row for configuration in stored.configurations for row in _documents(configuration, programs)])
        return
    print_listing(stored, programs)


def print_listing(stored: Inventory, programs: bool) -> None:
    """Print what is stored, by configuration; ``programs`` asks for one row per program instead of per range."""
    if not stored.configurations:
        render.line(f"nothing stored at {stored.label}")
    for configuration in stored.configurations:
        render.heading(_title(configuration))
        (_print_programs if programs else _print_ranges)(configuration, time.time())
        render.line()
    _print_sums(stored)


def _title(configuration: ConfigurationRow) -> str:
    named = [configuration.named[name] for name in CONFIGURATION_FIELDS if configuration.named.get(name)]
    return "  ".join([*named, f"[{configuration.key[:12]}]"])


def _print_ranges(configuration: ConfigurationRow, now: float) -> None:
    rows = [(row.range, row.measure.programs, *_cells(row.measure, now)) for row in configuration.ranges]
    if len(rows) > 1:
        rows.append(("all", configuration.measure.programs, *_cells(configuration.measure, now)))
    render.table(("range", "programs", *_MEASURES), rows, indent=2, right=_RIGHT)


def _print_programs(configuration: ConfigurationRow, now: float) -> None:
    rows = [
        (row.key[:12], row.range, _what(row), *_cells(row.measure, now))
        for group in configuration.ranges
        for row in group.programs
    ]
    render.table(("program", "range", "part", *_MEASURES), rows, indent=2, right=_RIGHT)


def _what(row: ProgramRow) -> str:
    """The part and graphs of a program, and its rank if there are several."""
    rank = f"rank {row.rank}" if row.rank else ""
    return " ".join(filter(None, (row.part, row.graphs, rank))) or row.kind


def _cells(measure: Measure, now: float) -> tuple[str, ...]:
    return (
        render.size(measure.bytes),
        str(measure.files),
        render.seconds(measure.compile_seconds),
        render.ago(measure.last_use, now),
        str(measure.hits),
    )


def _print_sums(stored: Inventory) -> None:
    if stored.configurations:
        render.line(
            f"{render.count(len(stored.configurations), 'configuration')}, {render.count(stored.programs, 'program')},"
            f" {render.size(stored.bytes)} in {render.count(stored.files, 'file')} at {stored.label}"
        )
    if stored.skipped:
        render.say(f"{render.count(len(stored.skipped), 'file')} skipped, damaged or unknown: see compcache verify")


def _documents(configuration: ConfigurationRow, programs: bool) -> list[dict[str, Any]]:
    shared = {"configuration": configuration.key}
    shared |= {name: configuration.named.get(name, "") for name in CONFIGURATION_FIELDS}
    rows: list[dict[str, Any]] = []
    for group in configuration.ranges:
        ranged: dict[str, Any] = {**shared, "range": group.range, "symbolic": group.symbolic, "size": group.size}
        if not programs:
            rows.append({**ranged, "programs": group.measure.programs, **_numbers(group.measure)})
        for row in group.programs if programs else ():
            own = {name: getattr(row, name) for name in ("key", "kind", "part", "graphs", "rank")}
            rows.append({**ranged, **own, **_numbers(row.measure)})
    return rows


def _numbers(measure: Measure) -> dict[str, Any]:
    return {
        "bytes": measure.bytes,
        "files": measure.files,
        "compile_seconds": measure.compile_seconds,
        "last_use": render.iso(measure.last_use),
        "hits": measure.hits,
    }
