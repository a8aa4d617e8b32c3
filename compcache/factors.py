"""Factors, their canonical encoding, and the keys made from them.

A factor is one named input of a key (``torch.version``, ``input.0.dtype``) with a plain JSON value. The canonical
encoding is independent of dict order, hash seed, locale and path: JSON in ASCII, keys sorted by code point, no
spaces, integers and floats kept apart (``1`` is not ``1.0``), behind a line that names the encoding's version.
A key is xxh3-128 over that encoding, as 32 hexadecimal digits. A key finds an entry; it never proves one: the
stored factors are compared as a whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import xxhash

from compcache.errors import FactorError

ENCODING = b"compcache-factors-1\n"

JsonValue: TypeAlias = Any
"""None, bool, int, finite float, str, or a list or str-keyed dict of these."""


def plain(value: object, name: str = "value") -> JsonValue:
    """A copy of ``value`` in plain JSON types; tuples become lists.

    Raises FactorError for what JSON cannot say without loss: NaN, infinities, sets, bytes, objects, and dict keys
    that are not strings. A factor that cannot be said must not be dropped: its program is uncacheable.
    """
    if value is None or isinstance(value, (bool, str)):
        return _checked_text(value, name) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FactorError(f"factor {name} is {value!r}; only finite numbers can be factors")
        return float(value)
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        result = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise FactorError(f"factor {name} has the key {key!r}; keys must be strings")
            result[_checked_text(key, name)] = plain(item, f"{name}.{key}")
        return result
    raise FactorError(f"factor {name} is a {type(value).__name__}; only plain JSON values can be factors")


def _checked_text(text: str, name: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FactorError(f"factor {name} holds text that is not valid Unicode") from error
    return str.__str__(text)  # of a str that is also an enum member: its value, not its name


def canonical(value: JsonValue) -> bytes:
    """The canonical encoding of a value, which is checked to be plain (without the version line)."""
    return encoded(plain(value))


def encoded(value: JsonValue) -> bytes:
    """The canonical encoding of a value that is known to be plain: one :func:`plain` gave, or parsed JSON.

    Raises ValueError for an infinity, which JSON text can hold as ``1e999``.
    """
    text = json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def key_of(factors: Mapping[str, JsonValue], *, checked: bool = False) -> str:
    """The key of a set of factors: 32 hexadecimal digits. ``checked`` says that they are known to be plain."""
    return xxhash.xxh3_128_hexdigest(ENCODING + (encoded if checked else canonical)(dict(factors)))


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of one program: ``shared`` by all programs of its configuration, and its ``own``.

    No name may be in both. Values are copied and checked at construction.
    """

    shared: Mapping[str, JsonValue]
    own: Mapping[str, JsonValue]
    _keys: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        both = self.shared.keys() & self.own.keys()
        if both:
            raise FactorError(f"factors named twice: {', '.join(sorted(both))}")
        for part in ("shared", "own"):
            object.__setattr__(self, part, _checked_set(getattr(self, part)))

    def with_own(self, more: Mapping[str, JsonValue]) -> Factors:
        """These factors and ``more`` of the program's own; raises FactorError for a name that is there already."""
        twice = self.own.keys() & more.keys()
        if twice:
            raise FactorError(f"factors named twice: {', '.join(sorted(twice))}")
        return Factors(self.shared, {**self.own, **more})

    @property
    def all(self) -> dict[str, JsonValue]:
        """Every factor by name."""
        return {**self.shared, **self.own}

    @property
    def configuration_key(self) -> str:
        """Key of the factors that all programs of the configuration share."""
        return self._key("configuration", self.shared)

    @property
    def program_key(self) -> str:
        """Key of the whole set."""
        return self._key("program", self.all)

    def _key(self, which: str, factors: Mapping[str, JsonValue]) -> str:
        # A start-up's lookup asks for the keys of dozens of entries, several times each.
        if which not in self._keys:
            self._keys[which] = key_of(factors, checked=True)
        return self._keys[which]

    def same_as(self, other: Factors) -> bool:
        """Whether both are the same as a whole, value by value: a key can collide."""
        return self.shares_with(other) and encoded(self.own) == encoded(other.own)

    def shares_with(self, other: Factors) -> bool:
        """Whether both belong to one configuration, value by value."""
        return encoded(self.shared) == encoded(other.shared)


def _checked_set(factors: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    for name in factors:
        if not isinstance(name, str) or not name:
            raise FactorError(f"a factor needs a name, not {name!r}")
        _checked_text(name, "names")
    return {name: plain(value, name) for name, value in factors.items()}


def equal(left: Mapping[str, JsonValue], right: Mapping[str, JsonValue]) -> bool:
    """Whether two sets of factors are the same as a whole (``1``, ``1.0`` and ``True`` all differ)."""
    return canonical(dict(left)) == canonical(dict(right))


@dataclass(frozen=True, slots=True)
class Difference:
    """One factor that differs. A side that has no such factor is None; see ``missing``."""

    name: str
    wanted: JsonValue
    stored: JsonValue
    missing: str = ""
    """"wanted" or "stored": the side that has no factor of this name; empty if both have it."""

    def __str__(self) -> str:
        if self.missing == "stored":
            return f"{self.name}: not stored, now {shown(self.wanted)}"
        if self.missing == "wanted":
            return f"{self.name}: stored {shown(self.stored)}, now absent"
        return f"{self.name}: stored {shown(self.stored)}, now {shown(self.wanted)}"


def shown(value: JsonValue, limit: int = 60) -> str:
    """A value for one line of text, cut at ``limit`` characters."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def differences(wanted: Mapping[str, JsonValue], stored: Mapping[str, JsonValue]) -> list[Difference]:
    """The factors that differ, by name; dict values are opened, so that the field inside is named."""
    result: list[Difference] = []
    for name in sorted(wanted.keys() | stored.keys()):
        if name not in stored:
            result.append(Difference(name, wanted[name], None, "stored"))
        elif name not in wanted:
            result.append(Difference(name, None, stored[name], "wanted"))
        elif canonical(wanted[name]) != canonical(stored[name]):
            result.extend(_inside(name, wanted[name], stored[name]))
    return result


def _inside(name: str, wanted: JsonValue, stored: JsonValue) -> Iterable[Difference]:
    if isinstance(wanted, dict) and isinstance(stored, dict):
        return (Difference(f"{name}.{d.name}", d.wanted, d.stored, d.missing) for d in differences(wanted, stored))
    return [Difference(name, wanted, stored)]
