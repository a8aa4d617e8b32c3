"""``compcache import``: adopt what an engine's own cache has on disk, where it can be proven to fit."""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compcache.errors import ConfigError, StoreError
from compcache_cli import render
from compcache_cli.commands import Place, place

if TYPE_CHECKING:
    from compcache.adapters.inductor_import import Adopted, Left


def import_(
    context: typer.Context,
    from_inductor: Annotated[
        Path | None,
        typer.Option("--from-inductor", metavar="DIR", help="torch's own directory (TORCHINDUCTOR_CACHE_DIR)."),
    ] = None,
    from_vllm: Annotated[
        Path | None, typer.Option("--from-vllm", metavar="DIR", help="vLLM's own directory, torch_compile_cache.")
    ] = None,
    same_host: Annotated[
        bool,
        typer.Option(
            "--same-host",
            help="State that all of DIR was compiled on this host, in an environment as now, where no file shows it.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be adopted; store nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Adopt programs that an engine compiled without compcache. Says what is left, and why."""
    if (from_inductor is None) == (from_vllm is None):
        raise ConfigError("name one directory: --from-inductor DIR or --from-vllm DIR")
    if from_inductor is not None:
        adopted = _from_inductor(place(context), from_inductor, same_host, dry_run)
    else:
        adopted = _from_vllm(from_vllm or Path())
    if as_json:
        render.document({**dataclasses.asdict(adopted), "dry_run": dry_run})
    else:
        _print(adopted, dry_run)


def _from_inductor(where: Place, directory: Path, same_host: bool, dry_run: bool) -> Adopted:
    if not dry_run and where.settings.mode != "rw":
        raise ConfigError(f"COMPCACHE_MODE={where.settings.mode} stores nothing; see what fits with --dry-run")
    if importlib.util.find_spec("torch") is None:
        raise StoreError(None, "torch is not installed here: import in the environment that is to use the programs")
    from compcache.adapters import inductor, inductor_import

    adapter = inductor.Adapter(where.settings)
    return inductor_import.adopt(adapter, inductor_import.plan(directory, same_host=same_host), dry_run=dry_run)


def _from_vllm(directory: Path) -> Adopted:
    from compcache.adapters import vllm_import
    from compcache.adapters.inductor_import import Adopted

    return Adopted(left=tuple(vllm_import.left(directory)))


def _print(adopted: Adopted, dry_run: bool) -> None:
    said = f"{'would adopt' if dry_run else 'adopted'} {render.count(adopted.programs, 'program')}"
    if adopted.already_stored:
        said += f"; {adopted.already_stored} adopted before"
    render.line(f"{said}; left {len(adopted.left)}{':' if adopted.left else ''}")
    for why, files in _by_reason(adopted.left).items():
        shown = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
        render.line(f"  left: {shown}: {why}")


def _by_reason(left: tuple[Left, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = collections.defaultdict(list)
    for item in left:
        found[item.why].append(item.path)
    return found
