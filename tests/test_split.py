"""The file of a start-up: cut at the artifacts that lie in it, and put together again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compcache.adapters.startup import range_label, split
from compcache.entry import Piece


def together(
    pieces: tuple[Piece, ...], segments: list[bytes], programs: list[str], artifacts: dict[str, bytes]
) -> bytes:
    return b"".join(segments[p.index] if p.source == "blob" else artifacts[programs[p.index]] for p in pieces)


blobs = st.binary(max_size=6) | st.sampled_from([b"a", b"aa", b"aaa", b"ab", b"ba"])


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), blobs, max_size=4), st.data())
def test_what_was_cut_can_be_put_together(artifacts: dict[str, bytes], data: st.DataObject) -> None:
    """Whatever overlaps, repeats, is empty or is not in the file."""
    parts = data.draw(st.lists(st.sampled_from([*artifacts.values(), b"x", b"a", b""]), max_size=8))
    whole = b"".join(parts)
    pieces, segments, programs = split(whole, artifacts)
    assert pieces
    assert together(pieces, segments, programs, artifacts) == whole
    assert sorted(programs) == sorted(artifacts)
    assert all(segments) or whole == b""


def test_an_artifact_in_the_file_is_not_stored_again() -> None:
    artifacts = {"one": b"1" * 50, "two": b"2" * 50}
    pieces, segments, programs = split(b"head" + artifacts["two"] + b"mid" + artifacts["one"], artifacts)
    assert segments == [b"head", b"mid"]
    assert programs == ["two", "one"]
    assert [p.source for p in pieces] == ["blob", "program", "blob", "program"]


@pytest.mark.parametrize(
    ("compiled_range", "label"),
    [("(8, 8)", "8"), ("(1, 2048)", "symbolic 1..2048"), ("(1,1)", "1"), ("(2, 16)", "symbolic 2..16")],
)
def test_the_label_of_a_range(compiled_range: str, label: str) -> None:
    assert range_label(compiled_range) == label
