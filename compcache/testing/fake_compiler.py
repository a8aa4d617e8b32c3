"""A compiler whose output is a function of its factors, and whose bytes nevertheless never repeat.

Real compiled bytes hold timings, directories and debug strings; so each compile here adds a nonce. What a program
*does* is its first line, which depends on nothing but the factors.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compcache.cache import Cache, Draft, Part
from compcache.entry import Entry
from compcache.errors import Damaged, NotStored
from compcache.factors import Factors


def meaning(factors: Factors) -> str:
    """What a program compiled for these factors does."""
    text = json.dumps(factors.all, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def run(program: bytes) -> str:
    """Run a compiled program: its meaning. Raises ValueError for bytes that no compile made."""
    first, _, rest = program.partition(b"\n")
    if len(first) != 64 or not rest.endswith(b"\nend"):
        raise ValueError("not a program")
    return first.decode("ascii")


@dataclass(frozen=True)
class FakeCompiler:
    """``journal`` gets a line for each compile, by any process. ``size`` is about the bytes of a program."""

    journal: Path
    size: int = 4096
    seconds: float = 0.0

    def compile(self, factors: Factors) -> bytes:
        if self.seconds:
            time.sleep(self.seconds)
        with open(self.journal, "a", encoding="ascii") as file:
            file.write(f"{os.getpid()} {factors.program_key}\n")
        return meaning(factors).encode() + b"\n" + os.urandom(self.size) + b"\nend"

    @property
    def compiles(self) -> int:
        """How often it compiled, in all processes."""
        return len(self.journal.read_text().splitlines()) if self.journal.exists() else 0


def loaded(cache: Cache, entry: Entry) -> bytes:
    """The artifact of a program, after all that it needs was read."""
    blobs = {ref.role: cache.blob(ref) for ref in entry.blobs}
    return blobs["artifact"]


def parts_of(program: bytes) -> tuple[Part, ...]:
    """A program as it is published: an artifact that does not compress, and a kernel that does."""
    return Part("artifact", program), Part("kernel", b"\x7fELF" + program.hex().encode(), "k")


def program_of(cache: Cache, factors: Factors) -> bytes | None:
    """The bytes of a stored program, or None for a miss of any kind: one whose kernel is bad is one, too."""

    def load() -> bytes | None:
        entry = cache.find(factors)
        with contextlib.suppress(NotStored, Damaged):  # a blob that is gone or bad: a miss, no fault of the store
            return None if entry is None else loaded(cache, entry)
        return None

    return cache.guarded("nothing is loaded", load, None)


def get_or_compile(
    cache: Cache, compiler: FakeCompiler, factors: Factors, *, before_publish: Callable[[], None] = lambda: None
) -> bytes:
    """What an adapter does: look up; else take the lease or wait; else compile, publish, and go on with the winner."""
    program = program_of(cache, factors)
    if program is not None:
        return program
    lease = cache.compile_or_wait(factors.program_key, lambda: program_of(cache, factors) is not None)
    try:
        program = program_of(cache, factors)
        if program is not None:
            return program
        made = compiler.compile(factors)
        before_publish()
        draft = Draft("graph", factors, parts_of(made))
        entry: Entry | None = cache.guarded("nothing is stored", lambda: cache.publish(draft), None)
    finally:
        if lease is not None:  # released at publication: what is loaded afterwards holds up nobody
            lease.release()
    return made if entry is None else _winner(cache, entry) or made


def _winner(cache: Cache, entry: Entry) -> bytes | None:
    """The stored program's bytes; None if it has been pruned, or damaged, since it was published."""

    def load() -> bytes | None:
        with contextlib.suppress(NotStored, Damaged):
            return loaded(cache, entry)
        return None

    return cache.guarded("nothing is loaded", load, None)
