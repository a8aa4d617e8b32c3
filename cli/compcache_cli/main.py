"""The ``compcache`` command. A verb is a name in VERBS, and a function of that name in a module of commands/.

Every error of the library ends as one line on stderr and an exit status: 2 for what the user wrote (an option, a
setting), 1 for the rest.
"""

from __future__ import annotations

import dataclasses
import errno
import gc
import importlib
import keyword
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from compcache import __version__, config
from compcache.errors import CompcacheError, ConfigError
from compcache_cli import render
from compcache_cli.commands import Place

VERBS = {
    "ls": "ls",
    "show": "show",
    "prune": "prune",
    "pin": "pin",
    "unpin": "pin",
    "stats": "stats",
    "verify": "verify",
    "import": "import_",
    "suspects": "suspects",
    "demo": "demo",
}
"""The module of each; only what is asked for is imported."""


class _Verbs(TyperGroup):
    """The group of verbs, and the one place where an error becomes a line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            render.say(render.message(error))
            raise typer.Exit(2) from error
        except CompcacheError as error:
            render.say(render.message(error))
            raise typer.Exit(1) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # who reads us has seen enough; Typer ends quietly
                raise
            render.say(render.message(error))
            raise typer.Exit(1) from error


def _print_version(wanted: bool) -> None:
    if wanted:
        render.line(f"compcache {__version__}")
        raise typer.Exit


def options(
    context: typer.Context,
    store: Annotated[
        str | None, typer.Option("--store", metavar="DIR", help="The store to work on, instead of COMPCACHE_DIR.")
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keeps what a compiler produced, so that a program is compiled once per configuration."""
    # Not by COMPCACHE_DIR: an empty value there means the default, and `prune --store "$UNSET"` must not prune that.
    if store is not None and (not store.strip() or "\0" in store):
        raise typer.BadParameter("it must be the path of a directory", param_hint="--store")
    settings = config.load()
    if store is not None:
        settings = dataclasses.replace(settings, directory=config.directory(store))
    for warning in settings.warnings:
        render.say(warning)
    context.obj = Place(settings)


def application(arguments: Iterable[str] = ()) -> typer.Typer:
    """The app with the verbs that ``arguments`` name, or with all of them."""
    app = typer.Typer(
        cls=_Verbs,
        help="Keeps what a compiler produced, so that a program is compiled once per configuration.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    for verb in VERBS.keys() & set(arguments) or VERBS:
        module = importlib.import_module(f"compcache_cli.commands.{VERBS[verb]}")
        app.command(verb)(getattr(module, f"{verb}_" if keyword.iskeyword(verb) else verb))
    return app


def main() -> None:
    """Entry point of the ``compcache`` command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a letter shows its escape
            stream.reconfigure(errors="backslashreplace")
    gc.disable()  # a verb reads, shows and ends; looking for cycles among a large store's rows takes a fifth of that
    application(sys.argv[1:])(prog_name="compcache")


if __name__ == "__main__":
    main()
