"""Stored entries: they come back as they were, and a change anywhere in one is found."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compcache import factors as factors_module
from compcache.cache import Cache, Draft, Part
from compcache.config import load
from compcache.entry import Assembly, BlobRef, Entry, Piece, ProgramRef, parse_entry
from compcache.entry import sealed as seal
from compcache.errors import Damaged
from compcache.factors import Factors, canonical
from compcache.session import Session
from compcache.store import layout
from compcache.store.memory import MemoryStore

KEY = "0123456789abcdef" * 2
DIGEST = "fedcba9876543210" * 4

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
plain = st.dictionaries(
    text.filter(bool), st.integers() | st.booleans() | text | st.lists(st.integers(), max_size=2), max_size=4
)
sizes = st.integers(0, 1 << 20)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
blobs = st.builds(BlobRef, digests, sizes, sizes, st.just("zstd"), text.filter(bool), text) | st.builds(
    lambda digest, size, role, name: BlobRef(digest, size, size, "raw", role, name),
    digests,
    sizes,
    text.filter(bool),
    text,
)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    shared, own = draw(plain), draw(plain)
    refs = tuple(draw(st.lists(blobs, min_size=1, max_size=3)))
    pieces = draw(st.lists(st.builds(Piece, st.just("blob"), st.integers(0, len(refs) - 1)), max_size=3))
    return Entry(
        kind=draw(st.sampled_from(["graph", "start-up", "executable"])),
        factors=Factors({f"s.{k}": v for k, v in shared.items()}, {f"o.{k}": v for k, v in own.items()}),
        blobs=refs,
        display=draw(plain),
        compile_seconds=draw(st.floats(0, 1e6)),
        programs=(ProgramRef(KEY, draw(text)),) * draw(st.integers(0, 2)),
        assembly=Assembly(tuple(pieces), draw(digests), draw(sizes)) if pieces else None,
        provenance=draw(plain),
        signature=draw(st.none() | plain),
    )


@settings(deadline=None, max_examples=60)
@given(entries())
def test_an_entry_comes_back_as_it_was(entry: Entry) -> None:
    data = entry.to_bytes()
    found = parse_entry(data, program_key=entry.program_key)
    assert found == entry
    assert found.to_bytes() == data


def sample() -> Entry:
    return Entry(
        kind="start-up",
        factors=Factors({"model.name": "Llama", "torch": [2, 13]}, {"range": "8", "opts": {"deep": [True, 1.5]}}),
        blobs=(BlobRef(DIGEST, 10, 20, "zstd", "segment", "0"), BlobRef("ab" * 32, 7, 7, "raw", "kernel", "k")),
        display={"dtype": "bfloat16"},
        compile_seconds=10.5,
        programs=(ProgramRef(KEY, "8"),),
        assembly=Assembly((Piece("blob", 0), Piece("program", 0)), DIGEST, 30),
        provenance={"stored_at": 7},
        signature={"by": "nobody"},
    )


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document, containers too."""
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def changed(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(document))
    at(copy, path[:-1])[path[-1]] = value
    return copy


def sealed(document: dict[str, Any]) -> bytes:
    """With a digest that fits: what somebody would write who knows the format."""
    return seal({name: value for name, value in document.items() if name != "digest"})


DOCUMENT: dict[str, Any] = json.loads(sample().to_bytes())


def others(value: Any) -> list[Any]:
    """Values of several types that are not this one."""
    near = {
        str: lambda: value[:-1] + ("0" if value[-1:] != "0" else "1"),
        bool: lambda: not value,
        int: lambda: value + 1,
        float: lambda: value + 0.5,
        list: lambda: value[1:],
        dict: lambda: {**value, "more": 1},
    }[type(value)]()
    return [near, None, "", 0, -1, [], {}]


@pytest.mark.parametrize("path", list(leaves(DOCUMENT)), ids=lambda path: ".".join(map(str, path)))
def test_a_change_of_any_field_is_found(path: tuple[Any, ...]) -> None:
    for value in others(at(DOCUMENT, path)):
        if canonical(value) != canonical(at(DOCUMENT, path)):
            with pytest.raises(Damaged):
                parse_entry(json.dumps(changed(DOCUMENT, path, value)).encode())


@pytest.mark.parametrize("path", list(leaves(DOCUMENT)), ids=lambda path: ".".join(map(str, path)))
def test_a_missing_field_is_found(path: tuple[Any, ...]) -> None:
    copy = changed(DOCUMENT, path, None)
    del at(copy, path[:-1])[path[-1]]
    with pytest.raises(Damaged):
        parse_entry(json.dumps(copy).encode())


def test_one_bit_anywhere_is_found() -> None:
    data = sample().to_bytes()
    for i in range(len(data)):
        flipped = data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1 :]
        with pytest.raises(Damaged):
            parse_entry(flipped)


def test_a_cut_anywhere_is_found() -> None:
    data = sample().to_bytes()
    for length in range(len(data)):
        with pytest.raises(Damaged):
            parse_entry(data[:length])


@pytest.mark.parametrize("path", [p for p in leaves(DOCUMENT) if p[0] in ("shared", "own") or p[0].endswith("_key")])
def test_keys_are_recomputed_from_the_factors(path: tuple[Any, ...]) -> None:
    """Even where the entry's own digest fits."""
    parse_entry(sealed(DOCUMENT))
    for value in others(at(DOCUMENT, path)):
        if canonical(value) != canonical(at(DOCUMENT, path)):
            with pytest.raises(Damaged):
                parse_entry(sealed(changed(DOCUMENT, path, value)))


BAD = [
    (("format",), 2),
    (("kind",), "pickle"),
    (("kind",), ["graph"]),
    (("compile_seconds",), -1),
    (("compile_seconds",), "10"),
    (("blobs",), None),
    (("blobs", 0), []),
    (("blobs", 0, "digest"), "../../etc/passwd"),
    (("blobs", 0, "digest"), DIGEST.upper()),
    (("blobs", 0, "digest"), DIGEST + "\n"),
    (("blobs", 0, "size"), -1),
    (("blobs", 0, "size"), True),
    (("blobs", 0, "size"), 1.5),
    (("blobs", 0, "raw_size"), 1 << 60),
    (("blobs", 0, "encoding"), "pickle"),
    (("blobs", 0, "role"), ""),
    (("blobs", 0, "name"), None),
    (("blobs", 0, "more"), 1),
    (("blobs", 1, "raw_size"), 8),
    (("programs", 0, "program_key"), "../" + KEY[3:]),
    (("programs", 0), KEY),
    (("assembly", "pieces"), []),
    (("assembly", "pieces", 0), ["blob", 2]),
    (("assembly", "pieces", 0), ["blob", -1]),
    (("assembly", "pieces", 1), ["program", 1]),
    (("assembly", "pieces", 1), ["file", 0]),
    (("assembly", "digest"), ""),
    (("assembly", "size"), 1 << 60),
    (("assembly",), {}),
    (("display",), []),
    (("provenance",), "x"),
    (("signature",), ["x"]),
    (("shared", "range"), "8"),
]


@pytest.mark.parametrize(("path", "value"), BAD, ids=lambda v: str(v)[:40])
def test_a_field_that_makes_no_sense_is_refused(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(Damaged):
        parse_entry(sealed(changed(DOCUMENT, path, value)))


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"3", b"{}", b"\xff", b"[" * 100_000, b'{"format": NaN}', b"1" * 10_000, b'{"format":1e999}'],
    ids=lambda data: repr(data[:16]),
)
def test_what_is_no_entry_is_damaged(data: bytes) -> None:
    with pytest.raises(Damaged):
        parse_entry(data)


def test_an_entry_that_is_too_large_is_not_parsed() -> None:
    with pytest.raises(Damaged, match="limit"):
        parse_entry(sample().to_bytes() + b" " * (16 << 20))


def test_the_key_wanted_is_the_key_of_the_file_name() -> None:
    entry = sample()
    assert parse_entry(entry.to_bytes(), program_key=entry.program_key) == entry
    with pytest.raises(Damaged, match="file name"):
        parse_entry(entry.to_bytes(), program_key=KEY)


# In a cache


def quiet_cache() -> Cache:
    return Cache(load({"HOME": "/nowhere"}), store=MemoryStore(), session=Session(say=lambda line: None))


def draft(factors: Factors, data: bytes = b"artifact") -> Draft:
    return Draft("graph", factors, (Part("artifact", data),))


def test_another_sound_entry_under_the_name_is_a_miss_and_goes() -> None:
    cache = quiet_cache()
    one, two = Factors({"m": 1}, {"r": 1}), Factors({"m": 1}, {"r": 2})
    first, _ = cache.publish(draft(one)), cache.publish(draft(two))
    name = layout.entry(two.configuration_key, two.program_key)
    cache.store.replace(name, first.to_bytes())
    assert cache.find(two) is None
    assert not any(found.name == name for found in cache.store.scan("configs"))
    assert cache.find(one) == first


@pytest.fixture
def colliding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factors_module, "key_of", lambda factors, checked=False: KEY)


@pytest.mark.usefixtures("colliding")
@pytest.mark.parametrize(
    "other",
    [
        Factors({"m": 1}, {"r": 2}),
        Factors({"m": 2}, {"r": 1}),
        Factors({"m": 1}, {"r": 1.0}),
        Factors({"m": 1}, {"r": True}),
        Factors({"m": 1}, {}),
        Factors({"m": 1}, {"r": 1, "s": None}),
        Factors({}, {"m": 1, "r": 1}),
        Factors({"m": 1, "r": 1}, {}),
    ],
    ids=str,
)
def test_a_colliding_key_is_a_miss(other: Factors) -> None:
    """A key finds an entry and never proves one: the factors are compared as a whole."""
    cache = quiet_cache()
    stored = Factors({"m": 1}, {"r": 1})
    cache.publish(draft(stored, b"of the first"))
    assert cache.find(other) is None
    assert cache.find(stored) is not None  # nothing is wrong with it, so it stays
    entry = cache.publish(draft(other, b"of the other"))
    assert cache.blob(entry.blobs[0]) == b"of the other"
    assert cache.find(other) == entry
    assert cache.find(stored) is None


def test_an_entry_is_not_made_of_what_it_would_refuse() -> None:
    for change in ({"kind": "model"}, {"compile_seconds": -1.0}, {"compile_seconds": float("nan")}, {"blobs": ()}):
        with pytest.raises(Damaged):
            dataclasses.replace(sample(), **change)
