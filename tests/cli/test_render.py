"""Sizes, ages and text."""

from __future__ import annotations

import pytest
from compcache_cli import render


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_960, "1.0 MB"),
        (312_400, "312.4 kB"),
        (5 * 10**15, "5000.0 TB"),
    ],
)
def test_sizes_are_shown(count: int, expected: str) -> None:
    assert render.size(count) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.154, "0.15 s"), (51.52, "51.5 s"), (725, "12 min 5 s"), (12000, "3 h 20 min"), (float("inf"), "?")],
)
def test_durations_are_shown(value: float, expected: str) -> None:
    assert render.seconds(value) == expected


def test_ages_are_shown() -> None:
    now = 1_000_000.0
    assert [render.ago(now - s, now) for s in (5, 600, 10800, 864000)] == [
        "5 s ago",
        "10 min ago",
        "3 h ago",
        "10 d ago",
    ]
    assert render.ago(now + 50, now) == "0 s ago"  # another host's clock is ahead
    assert render.ago(0.0, now) == "never"
    assert render.iso(1e30) is None


def test_text_from_files_is_plain() -> None:
    assert render.plain("a\x1b[31mb\nc\ud800") == "a\N{REPLACEMENT CHARACTER}[31mb\N{REPLACEMENT CHARACTER}c" + (
        "\N{REPLACEMENT CHARACTER}"
    )


def test_json_is_valid_whatever_the_numbers_are(capsys: pytest.CaptureFixture[str]) -> None:
    render.document({"a": float("inf"), "b": [float("nan")]})
    assert capsys.readouterr().out == '{\n  "a": null,\n  "b": [\n    null\n  ]\n}\n'
