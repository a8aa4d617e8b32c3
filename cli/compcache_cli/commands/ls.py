"""``compcache ls``: what is stored, by configuration; one row per compile range, or per program.

A configuration becomes a text once, and this host's index keeps it (see :mod:`compcache.listing`): its sums as JSON in
the first line, what all its rows share in the second, without the closing brace, then a line for each row, without
the opening one. The JSON that is printed is these lines put together; tables are made from them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from compcache.contents import CONFIGURATION_FIELDS
from compcache.inventory import ConfigurationRow, Measure, Showing, showing
from compcache.listing import Listing
from compcache.records import Usage
from compcache.store.protocol import Store
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
    way = "programs" if programs else "ranges"
    with where.listing(store, looks_at="configs" if as_json else "", way=way) as listing:
        shown = _showing(store, where.usages(store), listing, programs, totals=not as_json)
    if as_json:
        render.documents(_rows_text(text.text) for _, text in shown.configurations)
    else:
        _print_listing(shown, programs)


def print_listing(store: Store) -> None:
    """Print what is stored, by configuration and range."""
    _print_listing(_showing(store, {}, Listing(), programs=False, totals=True), programs=False)


def _showing(store: Store, usages: Mapping[str, Usage], listing: Listing, programs: bool, totals: bool) -> Showing:
    return showing(
        store,
        usages,
        _program_lines if programs else _range_lines,
        way="programs" if programs else "ranges",
        listing=listing,
        programs=programs,
        totals=totals,
    )


def _range_lines(row: ConfigurationRow) -> str:
    own = [
        {
            "range": group.range,
            "symbolic": group.symbolic,
            "size": group.size,
            "programs": group.measure.programs,
            **_numbers(group.measure),
        }
        for group in row.ranges
    ]
    return _lines(row, own)


def _program_lines(row: ConfigurationRow) -> str:
    own = [
        {
            "range": group.range,
            "symbolic": group.symbolic,
            "size": group.size,
            **{name: getattr(program, name) for name in ("key", "kind", "part", "graphs", "rank")},
            **_numbers(program.measure),
        }
        for group in row.ranges
        for program in group.programs
    ]
    return _lines(row, own)


def _lines(row: ConfigurationRow, rows: list[dict[str, Any]]) -> str:
    sums = {"programs": row.measure.programs, **_numbers(row.measure)}
    shared = {"configuration": row.key, **{name: row.named.get(name, "") for name in CONFIGURATION_FIELDS}}
    lines = [render.json_text(sums), render.json_text(shared)[:-1] + ", "]
    return "\n".join([*lines, *(render.json_text(own)[1:] for own in rows)])


def _numbers(measure: Measure) -> dict[str, Any]:
    return {
        "bytes": measure.bytes,
        "files": measure.files,
        "compile_seconds": measure.compile_seconds,
        "last_use": render.iso(measure.last_use),
        "hits": measure.hits,
    }


def _rows_text(text: str) -> str:
    _sums, shared, rows = text.split("\n", 2)
    return shared + rows.replace("\n", ",\n" + shared)


def _print_listing(shown: Showing, programs: bool) -> None:
    if not shown.configurations:
        render.line(f"nothing stored at {shown.label}")
    now = time.time()
    for key, text in shown.configurations:
        sums, *_ = text.text.split("\n", 1)
        rows = json.loads(f"[{_rows_text(text.text)}]")
        render.heading("  ".join([*filter(None, map(rows[0].get, CONFIGURATION_FIELDS)), f"[{key[:12]}]"]))
        if programs:
            _print_programs(rows, now)
        else:
            _print_ranges(rows, json.loads(sums), now)
        render.line()
    if shown.configurations:
        render.line(
            f"{render.count(len(shown.configurations), 'configuration')}, {render.count(shown.programs, 'program')},"
            f" {render.size(shown.bytes)} in {render.count(shown.files, 'file')} at {shown.label}"
        )
    if shown.skipped:
        render.say(f"{render.count(len(shown.skipped), 'file')} skipped, damaged or unknown: see compcache verify")


def _print_ranges(rows: list[dict[str, Any]], sums: dict[str, Any], now: float) -> None:
    cells = [(row["range"], row["programs"], *_cells(row, now)) for row in rows]
    if len(cells) > 1:
        cells.append(("all", sums["programs"], *_cells(sums, now)))
    render.table(("range", "programs", *_MEASURES), cells, indent=2, right=_RIGHT)


def _print_programs(rows: list[dict[str, Any]], now: float) -> None:
    cells = [(row["key"][:12], row["range"], _what(row), *_cells(row, now)) for row in rows]
    render.table(("program", "range", "part", *_MEASURES), cells, indent=2, right=_RIGHT)


def _what(row: dict[str, Any]) -> str:
    """The part and graphs of a program, and its rank if there are several."""
    rank = f"rank {row['rank']}" if row["rank"] else ""
    return " ".join(filter(None, (row["part"], row["graphs"], rank))) or str(row["kind"])


def _cells(row: dict[str, Any], now: float) -> tuple[str, ...]:
    return (
        render.size(row["bytes"]),
        str(row["files"]),
        render.seconds(row["compile_seconds"] if row["compile_seconds"] is not None else float("inf")),
        render.ago(render.moment(row["last_use"]), now),
        str(row["hits"]),
    )
