"""Entries: the manifest of one program, as stored in ``<program key>.json``.

An entry is complete in itself: it holds all factors (so that they can be compared as a whole), references to blobs
with their digests and roles, what the program cost to compile, and where it came from. It is JSON with a version and
a digest of its own; reading one checks the digest, validates every field, and recomputes both keys from the factors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import blake3

from compcache.errors import Damaged, FactorError
from compcache.factors import Factors, JsonValue, plain

FORMAT = 1
MAX_ENTRY_BYTES = 16 << 20
"""No entry is larger than this; a larger file is refused before it is parsed."""
MAX_RAW_BYTES = 8 << 30

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_KEY = re.compile(r"[0-9a-f]{32}\Z")
ENCODINGS = ("raw", "zstd")
KINDS = ("graph", "start-up", "executable", "autograd", "tuning", "profile")
"""Programs, and torch's records beside its graphs: how AOTAutograd calls them, which tuning choice won, and which
shapes Dynamo saw vary."""
_HEAD, _AFTER = b'{\n "digest": "', b'",\n'
_LAST = ("shared", "own")


@dataclass(frozen=True, slots=True)
class BlobRef:
    """One blob of a program.

    ``digest`` is the BLAKE3 digest (64 hexadecimal digits) of the ``size`` bytes as stored; ``raw_size`` is the hard
    limit when decoding. ``role`` says what it is for ("artifact", "kernel", "segment"), ``name`` which one.
    """

    digest: str
    size: int
    raw_size: int
    encoding: str
    role: str
    name: str = ""

    def __post_init__(self) -> None:
        is_digest(self.digest)
        _require(_is_size(self.size) and _is_size(self.raw_size), "a blob size")
        _require(self.encoding in ENCODINGS, "a known blob encoding")
        _require(isinstance(self.role, str) and bool(self.role), "a blob role")
        _require(isinstance(self.name, str), "a blob name")
        _require(self.encoding != "raw" or self.size == self.raw_size, "equal sizes of a raw blob")


@dataclass(frozen=True, slots=True)
class ProgramRef:
    """Names another program (of the same configuration) that this one needs: a start-up names its graphs."""

    program_key: str
    name: str = ""

    def __post_init__(self) -> None:
        is_key(self.program_key)
        _require(isinstance(self.name, str), "a program name")


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of an assembled file: the blob of that index, or the "artifact" blob of the program of that index."""

    source: str
    """"blob" or "program"."""
    index: int

    def __post_init__(self) -> None:
        _require(self.source in ("blob", "program"), "a piece source")
        _require(_is_size(self.index), "a piece index")


@dataclass(frozen=True, slots=True)
class Assembly:
    """How a start-up's file is put together, and the BLAKE3 digest and size in bytes that the result must have."""

    pieces: tuple[Piece, ...]
    digest: str
    size: int

    def __post_init__(self) -> None:
        _require(bool(self.pieces), "pieces of an assembly")
        _require(isinstance(self.digest, str) and bool(_DIGEST.match(self.digest)), "an assembly digest")
        _require(_is_size(self.size) and self.size <= MAX_RAW_BYTES, "an assembly size")


@dataclass(frozen=True, slots=True)
class Entry:
    """One program.

    ``display`` is for people only (model, dtype, shape, part, engine); nothing is decided by it. ``compile_seconds``
    is what the program cost when it was compiled. ``provenance`` holds plain values about its making (versions,
    Unix time in seconds); it is in no key.
    """

    kind: str
    factors: Factors
    blobs: tuple[BlobRef, ...]
    display: Mapping[str, JsonValue] = field(default_factory=dict)
    compile_seconds: float = 0.0
    programs: tuple[ProgramRef, ...] = ()
    assembly: Assembly | None = None
    provenance: Mapping[str, JsonValue] = field(default_factory=dict)
    signature: Mapping[str, JsonValue] | None = None

    def __post_init__(self) -> None:
        _require(self.kind in KINDS, "a known kind")
        _seconds(self.compile_seconds)
        _require(self.signature is None or isinstance(self.signature, Mapping), "a signature that is an object")
        if self.assembly is not None:
            for piece in self.assembly.pieces:
                limit = len(self.blobs) if piece.source == "blob" else len(self.programs)
                _require(piece.index < limit, "pieces that exist")

    @property
    def program_key(self) -> str:
        return self.factors.program_key

    @property
    def configuration_key(self) -> str:
        return self.factors.configuration_key

    @property
    def size(self) -> int:
        """Bytes of its own blobs as stored (each digest once); blobs of referenced programs are theirs."""
        return sum({b.digest: b.size for b in self.blobs}.values())

    @property
    def digest(self) -> str:
        """The entry's own digest, over all that it says."""
        return self.to_bytes()[len(_HEAD) : len(_HEAD) + 64].decode("ascii")

    def blobs_with(self, role: str) -> tuple[BlobRef, ...]:
        """Its blobs of one role, in order."""
        return tuple(b for b in self.blobs if b.role == role)

    def to_bytes(self) -> bytes:
        """The entry as stored: JSON in UTF-8; the digest first, the factors last (see :func:`sealed`)."""
        return sealed(self._document())

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "format": FORMAT,
            "kind": self.kind,
            "program_key": self.program_key,
            "configuration_key": self.configuration_key,
            "compile_seconds": float(self.compile_seconds),
            "display": plain(dict(self.display), "display"),
            "blobs": [{name: getattr(b, name) for name in BlobRef.__slots__} for b in self.blobs],
            "programs": [{name: getattr(p, name) for name in ProgramRef.__slots__} for p in self.programs],
            "provenance": plain(dict(self.provenance), "provenance"),
        }
        if self.assembly is not None:
            document["assembly"] = {
                "pieces": [[p.source, p.index] for p in self.assembly.pieces],
                "digest": self.assembly.digest,
                "size": self.assembly.size,
            }
        if self.signature is not None:
            document["signature"] = plain(dict(self.signature), "signature")
        return {**document, "shared": dict(self.factors.shared), "own": dict(self.factors.own)}


def sealed(document: Mapping[str, Any]) -> bytes:
    """A document as an entry's file: one line a field, in order, and before them the BLAKE3 digest of those lines.

    The digest finds damage (a flipped bit in a role), not forgery, and needs no parser. The factors, most of the bytes,
    come last, so that who lists a store reads as far as it needs.
    """
    lines = [f' "{name}": {_text(value, indented=name in _LAST)}' for name, value in document.items()]
    body = (",\n".join(lines) + "\n}\n").encode()
    return _HEAD + blake3.blake3(body).hexdigest().encode() + _AFTER + body


def _text(value: object, *, indented: bool) -> str:
    return json.dumps(value, indent=2 if indented else None, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _body(data: bytes) -> bytes:
    """What is sealed. Raises Damaged unless the digest is that of the rest."""
    start = len(_HEAD) + 64
    digest, body = data[len(_HEAD) : start], data[start + len(_AFTER) :]
    if not data.startswith(_HEAD) or data[start : start + len(_AFTER)] != _AFTER:
        raise Damaged("not an entry: it does not begin with its digest")
    if blake3.blake3(body).hexdigest().encode() != digest:
        raise Damaged("the entry does not match its digest")
    return body


class Summary(NamedTuple):
    """What listings and plans need of an entry; ``display`` is its JSON text."""

    kind: str
    program_key: str
    configuration_key: str
    compile_seconds: float
    display: bytes
    digests: tuple[str, ...]
    """Of its blobs, each once."""
    sizes: tuple[int, ...]
    """Theirs as stored, in bytes."""
    programs: tuple[str, ...]


# Fields, their order, and one line for each are the format's (see sealed). No text within a JSON string reads like a
# name and its value, since a quote is escaped there.
_SUMMARY = re.compile(
    rb' "format": %d,\n "kind": "(%s)",\n "program_key": "([0-9a-f]{32})",\n "configuration_key": "([0-9a-f]{32})",\n'
    rb' "compile_seconds": ([0-9.e+-]+),\n "display": ({.*}),\n "blobs": \[(.*)\],\n "programs": \[(.*)\],\n'
    % (FORMAT, "|".join(KINDS).encode())
)
_BLOB = re.compile(r'"digest": "([0-9a-f]{64})".*?"size": ([0-9]{1,10})[,}]')
_PROGRAM_KEY = re.compile(r'"program_key": "([0-9a-f]{32})"')
_KIND = {kind.encode(): kind for kind in KINDS}


def parse_summary(data: bytes) -> Summary:
    """What an entry says before its factors. Its digest is checked, its keys are not recomputed. Raises Damaged."""
    match = _SUMMARY.match(_body(data))
    if match is None:
        raise Damaged(f"not an entry of format {FORMAT}")
    kind, program_key, configuration_key, seconds, display, blobs, programs = match.groups()
    try:
        sizes = dict(_all(_BLOB, blobs.decode(), '"digest": '))
        return Summary(
            _KIND[kind],
            program_key.decode(),
            configuration_key.decode(),
            _seconds(float(seconds)),
            display,
            tuple(sizes),
            tuple(map(int, sizes.values())),
            tuple(dict.fromkeys(_all(_PROGRAM_KEY, programs.decode(), '"program_key": '))),
        )
    except ValueError as error:
        raise Damaged(f"not an entry: {error}") from error


def _all(pattern: re.Pattern[str], text: str, name: str) -> list[Any]:
    found = pattern.findall(text)
    _require(len(found) == text.count(name), f"a value of each {name[:-2]}")
    return found


def parse_entry(data: bytes, *, program_key: str | None = None) -> Entry:
    """The entry in ``data``; raises Damaged if it is not one.

    The keys written in it must equal those recomputed from its factors, and ``program_key`` (from the file's name)
    must be the same: key wanted = key recomputed = file name.
    """
    if len(data) > MAX_ENTRY_BYTES:
        raise Damaged(f"an entry of {len(data)} bytes; the limit is {MAX_ENTRY_BYTES}")
    try:
        document = json.loads(b"{" + _body(data), parse_constant=_no_constant)
        entry = _entry(document)
    except (FactorError, KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
        raise Damaged(f"not an entry: {type(error).__name__}: {error}") from error
    for name, key in (("program_key", entry.program_key), ("configuration_key", entry.configuration_key)):
        if document.get(name) != key:
            raise Damaged(f"the {name} in the entry is not that of its factors")
    if program_key is not None and program_key != entry.program_key:
        raise Damaged("the entry's program key is not that of its file name")
    return entry


def _entry(document: dict[str, Any]) -> Entry:
    _require(isinstance(document, dict), "an object")
    _require(document["format"] == FORMAT, f"format {FORMAT}")
    assembly = document.get("assembly")
    return Entry(
        kind=document["kind"],
        factors=Factors(_object(document, "shared"), _object(document, "own")),
        blobs=tuple(BlobRef(**blob) for blob in document["blobs"]),
        display=_object(document, "display"),
        compile_seconds=document["compile_seconds"],
        programs=tuple(ProgramRef(**ref) for ref in document["programs"]),
        assembly=None
        if assembly is None
        else Assembly(
            tuple(Piece(source, index) for source, index in assembly["pieces"]), assembly["digest"], assembly["size"]
        ),
        provenance=_object(document, "provenance"),
        signature=document.get("signature"),
    )


def _object(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document[name]
    _require(isinstance(value, dict), f"an object named {name}")
    return dict(value)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _seconds(value: float) -> float:
    _require(isinstance(value, (int, float)) and 0 <= value < 1e12, "compile seconds")
    return value


def is_digest(value: object) -> str:
    """``value``, if it is the digest of a blob. Raises Damaged."""
    _require(isinstance(value, str) and bool(_DIGEST.match(value)), "a blob digest")
    return str(value)


def is_key(value: object) -> str:
    """``value``, if it is a key. Raises Damaged."""
    _require(isinstance(value, str) and bool(_KEY.match(value)), "a program key")
    return str(value)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_RAW_BYTES


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Damaged(f"expected {what}")
