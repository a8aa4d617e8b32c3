"""vLLM's own start-up file, where what is in it could not be published: this host vouches for it.

A store that is read-only, full or away must not make a restart slower than it is without compcache. So the digest of
the file that vLLM saved is kept in this host's state folder, under the same factors as an entry would have; at the
next start the file is loaded if all of them fit. Without such a record it is set aside.
"""

from __future__ import annotations

import json
from pathlib import Path

from compcache import fsio
from compcache.adapters.startup import StartUp, source_factors
from compcache.cache import digest_of
from compcache.entry import MAX_RAW_BYTES
from compcache.errors import CompcacheError
from compcache.factors import Factors

MAX_RECORD_BYTES = 1 << 20


def vouch(state: Path, startup: StartUp, data: bytes, modules: list[str]) -> None:
    """Keep the digest of what vLLM is about to save. Raises OSError or FactorError."""
    variant = startup.factors.with_own(source_factors(modules)).program_key
    record = {"modules": sorted(set(modules)), "variant": variant, "digest": digest_of(data)}
    folder = state / "own"
    fsio.make_directory(folder, 0o700)
    temporary = fsio.write_temporary(folder, json.dumps(record).encode(), 0o600)
    fsio.publish_over(temporary, folder / f"{startup.key}.json")


def vouched(state: Path, factors: Factors, own_file: str) -> bytes | None:
    """The bytes of vLLM's own file, if this host vouches for it under these factors and the installed sources."""
    record = fsio.read_record(state / "own" / f"{factors.program_key}.json", MAX_RECORD_BYTES)
    modules = record.get("modules")
    if not isinstance(modules, list) or not all(isinstance(name, str) for name in modules):
        return None
    try:
        if record.get("variant") != factors.with_own(source_factors(modules)).program_key:
            return None
        data = fsio.read_file(own_file, MAX_RAW_BYTES, fsio.Trust())
    except CompcacheError:
        return None
    return data if digest_of(data) == record.get("digest") else None
