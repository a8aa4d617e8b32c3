"""``compcache demo``: a real vLLM starts cold, then warm from the store, as what looks like another machine."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from compcache.store.directory import DirectoryStore
from compcache_cli import render
from compcache_cli.commands.ls import print_listing
from compcache_cli.demo import starts, tiny_model
from compcache_cli.demo.starts import Machine, Start, StartFailed

_PAIRS = 3
"""Warm and eager starts of a mode; the table shows the fastest of each, since one start varies by a tenth."""
_HEADINGS = ("start", "compile phase", "whole start", "of eager", "loaded", "compiled", "compilers run")
_NAMES = {
    "trace_once": "DYNAMO_TRACE_ONCE, vLLM's default on a CPU",
    "piecewise": "VLLM_COMPILE, piecewise: one symbolic range and sizes 1, 2, 4, 8",
}


def demo(
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Work in DIR and keep it; else a temporary folder.")
    ] = None,
) -> None:
    """Start a tiny Llama in real vLLM: cold, by vLLM's own cache, and warm from a store; compare and list."""
    if importlib.util.find_spec("vllm") is None:
        render.say("the demo starts vLLM, and none is installed here (see the README: nox -s demo)")
        raise typer.Exit(1)
    place = folder or Path(tempfile.mkdtemp(prefix="compcache-demo-"))
    try:
        wrong = _all_modes(place.absolute())
    except StartFailed as error:
        render.say(str(error))
        raise typer.Exit(1) from error
    finally:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)
    for line in wrong:
        render.say(line)
    if wrong:
        raise typer.Exit(1)
    render.line("same tokens, nothing compiled, no compiler started")


def _all_modes(place: Path) -> list[str]:
    model = tiny_model.make(place / "model")
    store = place / "store"
    python = starts.other_python(place / "other")
    modes = ["trace_once", *(["piecewise"] if starts.piecewise_possible() else [])]
    if len(modes) == 1:
        render.line("(piecewise mode on a CPU needs the test-only plugin of a checkout; skipped)")
    wrong = []
    for mode in modes:
        render.heading(_NAMES[mode])
        mine, alone = Machine(place / mode), Machine(place / f"{mode}-alone")
        cold = _start("cold, the store is empty", mine, mode, model, store)
        own_cold = _start("vLLM alone, cold", alone, mode, model, None)
        own = _start("vLLM alone, its own restart", alone, mode, model, None)
        warm, eager = [], []
        for i in range(_PAIRS):
            # As fresh as each other: vLLM's first start under an empty cache root takes seconds more, eager or not.
            other, bare = (Machine(place / "other" / f"{mode}-{kind}{i}", python, compilers=False) for kind in "we")
            for kind in "we" if i % 2 == 0 else "ew":  # a host that gets slower, or warmer, favours neither
                if kind == "w":
                    warm.append(_start("warm, another machine, no compiler", other, mode, model, store))
                else:
                    eager.append(_start("eager there: compiles nothing", bare, "eager", model, None))
        rows = {
            "cold": cold,
            "vLLM alone, cold": own_cold,
            "vLLM alone, restart": own,
            "warm from the store": _fastest(warm),
            "eager": _fastest(eager),
        }
        render.table(
            _HEADINGS, [_row(name, start, rows["eager"]) for name, start in rows.items()], indent=2, right=_HEADINGS[1:]
        )
        render.line(f"  (warm and eager: the fastest of {_PAIRS} starts)")
        render.line(f"  {rows['warm from the store'].line}")
        wrong += [f"{mode}: {line}" for start in warm for line in _wrong(cold, start)]
    render.line()
    print_listing(DirectoryStore(store, read_only=True))
    return wrong


def _fastest(starts_of_a_kind: list[Start]) -> Start:
    return min(starts_of_a_kind, key=lambda start: start.whole)


def _start(what: str, machine: Machine, mode: str, model: Path, store: Path | None) -> Start:
    render.line(f"  starting vLLM: {what} ...")
    return starts.start(machine, mode, model, store=store)


def _row(name: str, start: Start, eager: Start) -> tuple[str, ...]:
    compcache = bool(start.lines)
    return (
        name,
        render.seconds(start.compile_phase) if start.compile_phase else "none",
        render.seconds(start.whole),
        f"{start.whole / eager.whole:.2f}x",
        str(start.loaded) if compcache else "",
        str(start.compiled) if compcache else "",
        str(len(start.compilers_run)),
    )


def _wrong(cold: Start, warm: Start) -> list[str]:
    """What a warm start must never show."""
    found = []
    if warm.tokens != cold.tokens:
        found.append("the warm start generated other tokens than the cold one")
    if warm.compiled or warm.kernels_compiled:
        found.append(f"the warm start compiled {warm.compiled} programs and {warm.kernels_compiled} kernels")
    if not warm.loaded:
        found.append("the warm start loaded nothing")
    if warm.compilers_run:
        found.append(f"the warm start ran {', '.join(sorted(set(warm.compilers_run)))}")
    return found
