"""The canonical encoding: one key for one meaning, other keys for other meanings, and nothing dropped in silence."""

from __future__ import annotations

import enum
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compcache
from compcache.errors import FactorError
from compcache.factors import Factors, canonical, differences, equal, key_of, plain

examples = settings(deadline=None, max_examples=60)
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
values = st.recursive(scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(text, v, max_size=4), max_leaves=12)
names = text.filter(bool)
sets = st.dictionaries(names, values, max_size=6)


def marked(value: Any) -> Any:
    """An independent description of a value that keeps every type apart."""
    if isinstance(value, dict):
        return ("dict", frozenset((k, marked(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(marked(v) for v in value))
    return (type(value).__name__, repr(value))


def shuffled(value: Any, rng: random.Random) -> Any:
    """The same value with every dict in another order."""
    if isinstance(value, dict):
        items = [(k, shuffled(v, rng)) for k, v in value.items()]
        rng.shuffle(items)
        return dict(items)
    return [shuffled(v, rng) for v in value] if isinstance(value, list) else value


@examples
@given(values)
def test_the_encoding_says_everything(value: Any) -> None:
    """Decoding gives the value back with its types: so two values have one encoding only if they are the same."""
    assert marked(json.loads(canonical(value))) == marked(value)


@examples
@given(values)
def test_the_encoding_is_ascii_without_spaces_between_tokens(value: Any) -> None:
    data = canonical(value)
    assert max(data, default=0) < 128
    assert b"\n" not in data


@examples
@given(sets, st.randoms(use_true_random=False))
def test_the_order_does_not_matter(factors: dict[str, Any], rng: random.Random) -> None:
    other = shuffled(factors, rng)
    assert key_of(factors) == key_of(other)
    assert equal(factors, other)
    assert differences(factors, other) == []


@examples
@given(sets, sets)
def test_equality_is_sameness_as_a_whole(left: dict[str, Any], right: dict[str, Any]) -> None:
    same = marked(left) == marked(right)
    assert equal(left, right) is same
    assert (key_of(left) == key_of(right)) is same
    assert (differences(left, right) == []) is same


@examples
@given(sets, names, values, values)
def test_another_value_is_another_key_and_is_named(factors: dict[str, Any], name: str, first: Any, second: Any) -> None:
    left, right = {**factors, name: first}, {**factors, name: second}
    same = marked(first) == marked(second)
    assert (key_of(left) == key_of(right)) is same
    assert all(d.name == name or d.name.startswith(name + ".") for d in differences(left, right))
    assert bool(differences(left, right)) is not same


@examples
@given(sets, names, values)
def test_one_factor_more_is_another_key(factors: dict[str, Any], name: str, value: Any) -> None:
    factors.pop(name, None)
    assert key_of(factors) != key_of({**factors, name: value})
    assert [d.missing for d in differences(factors, {**factors, name: value})] == ["wanted"]
    assert [d.missing for d in differences({**factors, name: value}, factors)] == ["stored"]


def test_numbers_and_truth_are_three_things() -> None:
    assert len({key_of({"x": value}) for value in (1, 1.0, True, "1", [1], None)}) == 6
    assert len({key_of({"x": value}) for value in (0, 0.0, -0.0, False, "", [], {}, None)}) == 8
    assert not equal({"x": 1}, {"x": True})
    assert not equal({"x": [1.0]}, {"x": [1]})


def test_the_encoding_and_the_key_stay_what_they_are() -> None:
    """A change here makes every stored program unreachable: it needs another version of the encoding."""
    factors = {"b": [1, 1.0, True, None, "\u00e9\U0001f600"], "a": {"z": -0.5, "y": ()}}
    assert canonical(factors) == b'{"a":{"y":[],"z":-0.5},"b":[1,1.0,true,null,"\\u00e9\\ud83d\\ude00"]}'
    assert key_of(factors) == "9e56539e5017f24044eff544f1ec4f8b"


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        {1},
        frozenset(),
        b"bytes",
        bytearray(),
        object(),
        1j,
        len,
        {1: 2},
        {None: 1},
        "\ud800",
    ],
    ids=repr,
)
def test_what_cannot_be_said_is_refused(value: object) -> None:
    for wrapped in (value, [value], {"inside": (value,)}):
        with pytest.raises(FactorError):
            plain(wrapped)
        with pytest.raises(FactorError):
            Factors({"shared": wrapped}, {})
        with pytest.raises(FactorError):
            key_of({"x": wrapped})


def test_the_refusal_names_the_place() -> None:
    with pytest.raises(FactorError, match=r"config\.layers\[1\]"):
        Factors({}, {"config": {"layers": [0, {1}]}})


@pytest.mark.parametrize("name", ["", 3, None, b"x"])
def test_a_factor_needs_a_name(name: Any) -> None:
    with pytest.raises(FactorError):
        Factors({}, {name: 1})


def test_a_name_that_is_not_unicode_has_no_key() -> None:
    with pytest.raises(FactorError):
        _ = Factors({}, {"\ud800": 1}).program_key


def test_enum_members_are_their_values() -> None:
    class Mode(enum.StrEnum):
        FAST = "fast"

    class Level(enum.IntEnum):
        THREE = 3

    assert key_of({"x": [Mode.FAST, Level.THREE]}) == key_of({"x": ["fast", 3]})
    assert type(plain(Mode.FAST)) is str
    assert type(plain(Level.THREE)) is int


def test_a_name_is_in_one_set_only() -> None:
    with pytest.raises(FactorError, match="twice"):
        Factors({"a": 1}, {"a": 1})
    with pytest.raises(FactorError, match="twice"):
        Factors({"a": 1}, {"b": 1}).with_own({"b": 1})
    with pytest.raises(FactorError, match="twice"):
        Factors({"a": 1}, {}).with_own({"a": 1})


def test_factors_are_a_copy() -> None:
    inner = {"a": [1]}
    factors = Factors({"x": inner}, {})
    before = factors.program_key
    inner["a"].append(2)
    assert factors.program_key == before


def test_the_configuration_key_is_that_of_the_shared_factors() -> None:
    one, two = Factors({"m": 1}, {"r": 1}), Factors({"m": 1}, {"r": 2})
    assert one.configuration_key == two.configuration_key == key_of({"m": 1})
    assert one.program_key != two.program_key
    assert one.program_key == key_of({"m": 1, "r": 1})


SCRIPT = """
import random, sys
from compcache.factors import Factors
pairs = {f"factor.{i}": {j: [j, float(i), str(i), "\\u0130\\u00df"] for j in {"a", "b", "c"}} for i in range(40)}
names = list({*pairs})  # in the order of this process's hash seed
random.Random(int(sys.argv[1])).shuffle(names)
half = [n for n in names if int(n[7:]) % 2]
factors = Factors({n: pairs[n] for n in half}, {n: pairs[n] for n in names if n not in half})
print(factors.configuration_key, factors.program_key)
"""


def test_one_key_in_any_order_hash_seed_and_locale(tmp_path: Path) -> None:
    """F7: the same factors in another order, in 6 processes with 6 hash seeds and other locales."""
    places = ["C", "C.UTF-8", "POSIX", "tr_TR.UTF-8", "de_DE@euro", "ja_JP.eucJP"]
    running = []
    for seed, place in enumerate(places):
        environment = {"PYTHONHASHSEED": str(seed + 1), "LC_ALL": place, "HOME": str(tmp_path / place)}
        environment["PYTHONPATH"] = str(Path(compcache.__file__).parents[1])
        environment["PATH"] = os.environ.get("PATH", "")
        command = [sys.executable, "-c", SCRIPT, str(seed)]
        running.append(subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True))
    found = [process.communicate()[0] for process in running]
    assert all(len(line.split()) == 2 for line in found)
    assert len(set(found)) == 1
