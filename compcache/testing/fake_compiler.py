"""A compiler whose output is a function of its factors, and whose bytes nevertheless never repeat.

Real compiled bytes hold timings, directories and debug strings; so each compile here adds a nonce. What a program
*does* is its first line, which depends on nothing but the factors.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compcache.cache import Cache, Draft, Part
from compcache.entry import Entry
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


def program_of(cache: Cache, factors: Factors) -> bytes | None:
    """The bytes of a stored program, or None for a miss of any kind."""

    def load() -> bytes | None:
        entry = cache.find(factors)
        return None if entry is None else cache.blob(entry.blobs_with("artifact")[0])

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
        draft = Draft("graph", factors, (Part("artifact", made), Part("kernel", b"\x7fELF" + made, "k")))
        entry: Entry | None = cache.guarded("nothing is stored", lambda: cache.publish(draft), None)
        if entry is None:
            return made
        return cache.guarded("nothing is loaded", lambda: cache.blob(entry.blobs_with("artifact")[0]), made)
    finally:
        if lease is not None:
            lease.release()
