"""``compcache show KEY``: everything that is stored about one program, or one configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from compcache.contents import read_entry
from compcache.entry import Entry
from compcache.errors import CompcacheError, NotStored
from compcache.factors import JsonValue, shown
from compcache.records import Usage
from compcache.store.protocol import Found, Store
from compcache_cli import render
from compcache_cli.commands import Place, place
from compcache_cli.commands.chosen import choose

_VALUE_LETTERS = 100


def show(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The beginning of a program or configuration key.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Show one program (factors, blobs, cost, provenance) or one configuration (shared factors, programs)."""
    where = place(context)
    store = where.store()
    chosen = choose(store, key)
    if chosen.program is not None:
        _show_program(where, store, chosen.program, as_json)
    else:
        _show_configuration(store, chosen.configuration_key, list(chosen.programs), as_json)


def _show_program(where: Place, store: Store, found: Found, as_json: bool) -> None:
    entry = read_entry(store, found)
    usage = where.from_index(lambda index: index.usage(entry.program_key, store.label), None) or Usage()
    last_use = max(found.mtime, usage.last_used)
    if as_json:
        render.document(_document(entry, last_use, usage))
        return
    render.heading(f"{entry.kind} program {entry.program_key}")
    facts: list[tuple[str, object]] = [("configuration", entry.configuration_key)]
    facts += [(name, _value(value)) for name, value in entry.display.items()]
    facts += [
        ("compile", render.seconds(float(entry.compile_seconds))),
        ("last use", render.ago(last_use, time.time())),
        ("hits", f"{usage.hits} on this host, {render.seconds(usage.seconds_saved)} saved"),
        ("signature", "unsigned" if entry.signature is None else "signed"),
    ]
    render.facts(facts, indent=2)
    _print_factors("factors that its configuration shares", entry.factors.shared)
    _print_factors("its own factors", entry.factors.own)
    _print_blobs(entry)
    _print_factors("provenance", entry.provenance)


def _print_factors(title: str, values: Mapping[str, JsonValue]) -> None:
    if values:
        render.line()
        render.heading(f"{title} ({len(values)})")
        render.facts([(name, _value(values[name])) for name in sorted(values)], indent=2)


def _print_blobs(entry: Entry) -> None:
    render.line()
    render.heading(f"blobs ({len(entry.blobs)}, {render.size(entry.size)})")
    rows = [(b.role, b.name, render.size(b.size), render.size(b.raw_size), b.encoding, b.digest) for b in entry.blobs]
    render.table(("role", "name", "stored", "raw", "encoding", "digest"), rows, indent=2, right=("stored", "raw"))
    if entry.programs:
        render.line()
        render.heading(f"programs that it needs ({len(entry.programs)})")
        render.table(("program", "name"), [(ref.program_key, ref.name) for ref in entry.programs], indent=2)


def _value(value: JsonValue) -> str:
    return value if isinstance(value, str) and value else shown(value, _VALUE_LETTERS)


def _document(entry: Entry, last_use: float, usage: Usage) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "program_key": entry.program_key,
        "configuration_key": entry.configuration_key,
        "display": dict(entry.display),
        "factors": {"shared": dict(entry.factors.shared), "own": dict(entry.factors.own)},
        "blobs": [{name: getattr(blob, name) for name in type(blob).__slots__} for blob in entry.blobs],
        "programs": [{"program_key": ref.program_key, "name": ref.name} for ref in entry.programs],
        "bytes": entry.size,
        "compile_seconds": float(entry.compile_seconds),
        "last_use": render.iso(last_use),
        "hits": usage.hits,
        "seconds_saved": usage.seconds_saved,
        "provenance": dict(entry.provenance),
        "signed": entry.signature is not None,
    }


def _show_configuration(store: Store, key: str, programs: list[Found], as_json: bool) -> None:
    entries = _readable(store, programs)
    if not entries:
        raise NotStored(None, f"no program of configuration {key} can be read: see compcache verify")
    shared = entries[0].factors.shared
    if as_json:
        rows = [{"program_key": e.program_key, "kind": e.kind, "display": dict(e.display)} for e in entries]
        render.document({"configuration_key": key, "factors": {"shared": dict(shared)}, "programs": rows})
        return
    render.heading(f"configuration {key}")
    _print_factors("factors that its programs share", shared)
    render.line()
    render.heading(f"programs ({len(entries)})")
    rows_of_text = [(e.program_key, e.kind, _value(e.display.get("range", ""))) for e in entries]
    render.table(("program", "kind", "range"), rows_of_text, indent=2)


def _readable(store: Store, programs: list[Found]) -> list[Entry]:
    entries = []
    for found in sorted(programs, key=lambda found: found.name):
        try:
            entries.append(read_entry(store, found))
        except CompcacheError as error:
            render.say(f"{found.name} skipped: {render.message(error)}")
    return entries
