"""The only formatter: sizes, times, ages, tables, JSON and lines of text; it parses typed sizes and ages too.

Names, factors and display values come from files. They are shown as plain text: no markup is read in them, and
control characters (which could move a terminal's cursor) are replaced.
"""

from __future__ import annotations

import datetime
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from compcache.session import size_text

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 1000
size = size_text


def seconds(value: float) -> str:
    """A duration: "0.15 s", "51.5 s", "12 min 5 s", "3 h 20 min"."""
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.1f} s"
    if not math.isfinite(value):
        return "?"
    whole = round(value)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def age(value: float) -> str:
    """An age in one unit: "5 s", "12 min", "3 h", "40 d"."""
    value = max(0.0, value)
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if value < limit:
            return f"{int(value // unit)} {name}"
    return f"{int(value // 86400)} d"


def ago(moment: float, now: float) -> str:
    """How long ago a Unix time was; "never" for 0."""
    return f"{age(now - moment)} ago" if moment > 0 else "never"


def moment(text: str | None) -> float:
    """The Unix time that :func:`iso` wrote; 0 for None."""
    return datetime.datetime.fromisoformat(text).timestamp() if text else 0.0


def iso(moment: float) -> str | None:
    """A Unix time as UTC for JSON, "2026-12-01T06:14:25Z"; None for 0 and for what no calendar has."""
    if moment <= 0:
        return None
    try:
        return datetime.datetime.fromtimestamp(int(moment), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return None


def count(number: int, word: str) -> str:
    """A number and its noun: "1 program", "25 programs"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def plain(value: object) -> str:
    """Text that is safe on a terminal, in one line."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def message(error: BaseException) -> str:
    """An error as a line, without the ``[Errno 2]`` that an OSError puts in front."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    return str(error) or type(error).__name__


def say(text: str) -> None:
    """A line on stderr."""
    sys.stderr.write(f"compcache: {plain(text)}\n")
    sys.stderr.flush()


def line(text: str = "") -> None:
    """A line on stdout."""
    _print_line(plain(text))


def heading(text: str) -> None:
    """A line on stdout that stands over what follows."""
    _print_line(plain(text), "bold")


def _print_line(text: str, style: str = "") -> None:
    if sys.stdout.isatty():
        from rich.text import Text

        _console().print(Text(text, style=style), soft_wrap=True)
    else:  # as the console would, at a hundredth of the cost: a large store has 100,000 lines
        sys.stdout.write(text + "\n")


def facts(rows: Iterable[tuple[str, object]], *, indent: int = 0) -> None:
    """Names and their values on stdout, one a line."""
    from rich.table import Table
    from rich.text import Text

    result = Table(box=None, pad_edge=False, show_header=False)
    if indent:
        result.add_column("", min_width=indent - 1)
    result.add_column("", style="dim", overflow="fold")
    result.add_column("", overflow="fold")
    for name, value in rows:
        result.add_row(*([Text("")] if indent else []), Text(plain(name)), Text(plain(value)))
    _console().print(result)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, indent: int = 0, right: Iterable[str] = ()
) -> None:
    """A table on stdout; the columns named in ``right`` are aligned there. Folded where the terminal is too narrow."""
    cells = [[plain(cell) for cell in row] for row in rows]
    aligned = set(right)
    widths = [max(map(_width, column)) for column in zip(columns, *cells, strict=True)]
    if sum(widths) + 2 * len(widths) + indent > (_console().width if sys.stdout.isatty() else _PIPE_WIDTH):
        _print_folded(columns, cells, indent, aligned)
        return
    places = [(width, name in aligned) for width, name in zip(widths, columns, strict=True)]
    before = " " * (indent + 1) if indent else ""
    _print_line(before + _aligned(columns, places), "dim")
    for row in cells:
        _print_line(before + _aligned(row, places))


def _width(text: str) -> int:
    """Columns of a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _aligned(row: Sequence[str], places: Sequence[tuple[int, bool]]) -> str:
    filled = [(cell, " " * (width - _width(cell)), right) for cell, (width, right) in zip(row, places, strict=True)]
    return "  ".join([space + cell if right else cell + space for cell, space, right in filled]).rstrip()


def _print_folded(columns: Sequence[str], rows: Iterable[Sequence[str]], indent: int, right: set[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    result = Table(box=None, pad_edge=False, header_style="dim")
    if indent:
        result.add_column("", min_width=indent - 1)
    for name in columns:
        result.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        result.add_row(*([Text("")] if indent else []), *map(Text, row))
    _console().print(result)


def document(value: Any) -> None:
    """JSON on stdout, and nothing else there: an object indented, a list with one row a line."""
    if isinstance(value, list):
        documents(map(json_text, value))
    else:
        sys.stdout.write(json_text(value, indent=2) + "\n")
        sys.stdout.flush()


def documents(texts: Iterable[str]) -> None:
    """A JSON list on stdout, from the text of its rows: one, or several with a comma and a line end between them."""
    between = "[\n"
    for text in texts:
        sys.stdout.write(between)
        sys.stdout.write(text)
        between = ",\n"
    sys.stdout.write("[]\n" if between == "[\n" else "\n]\n")
    sys.stdout.flush()


def json_text(value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no infinities: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


_made: list[tuple[Any, Console]] = []


def _console() -> Console:
    # Made once for a stdout, which may be another one by then. A pipe has no width, and must not get lines cut at 80.
    if not _made or _made[0][0] is not sys.stdout:
        from rich.console import Console

        width = None if sys.stdout.isatty() else _PIPE_WIDTH
        _made[:] = [(sys.stdout, Console(file=sys.stdout, highlight=False, width=width))]
    return _made[0][1]
