"""What the store costs: reading and storing a program, and looking at 100,000 of them, beside its peers.

Rows are microseconds a call, or seconds where they say so; each is measured in rounds that alternate between
the peers, so that a slow moment of the machine meets them all. Peers: a bare file read; a plain directory of files by
key; diskcache; JAX's LRU cache (jax._src.lru_cache), where JAX is installed; and, for storing, the same files and
directories written and fsynced by hand.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import Report, options

from compcache import prune
from compcache.cache import Cache, Draft, Part
from compcache.config import load
from compcache.contents import contents
from compcache.entry import BlobRef, Entry
from compcache.factors import Factors
from compcache.index import Index
from compcache.listing import SETTLED_SECONDS, Listing
from compcache.session import Session
from compcache.store import layout
from compcache.store.directory import DirectoryStore

ENVIRONMENT = "jax"
SIZE = 100_000
BLOBS = 64
CALLS = 400
PROGRAMS, CONFIGURATIONS = 100_000, 4_000
Action = Callable[[int], Any]


def main(arguments: list[str]) -> int:
    parser = options("The store beside its peers.")
    parser.add_argument("--programs", type=int, default=PROGRAMS, help=f"of the large store (default {PROGRAMS})")
    parser.add_argument("--look", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--index", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.look is not None:
        print(_look(chosen.look, chosen.index))
        return 0
    report = Report("store", unit="us, or s where a row says so")
    with tempfile.TemporaryDirectory(prefix="compcache-bench-") as folder:
        _reads(report, Path(folder), chosen.repeat)
        _writes(report, Path(folder), chosen.repeat)
        _large(report, Path(folder), chosen.programs, chosen.repeat)
    report.finish(chosen.json)
    return 0


def cache_at(root: Path) -> Cache:
    settings = load({"HOME": str(root), "COMPCACHE_DIR": str(root / "store"), "COMPCACHE_STORE_SECONDS": "86400"})
    return Cache(settings, session=Session(say=lambda line: None))


def _rounds(report: Report, rows: dict[str, Action], repeat: int, calls: int) -> None:
    """``repeat`` samples a row, each the mean of ``calls`` calls, in turns of a few calls."""
    turn = 20
    for _ in range(repeat):
        spent = dict.fromkeys(rows, 0.0)
        for first in range(0, calls, turn):
            order = list(rows)
            random.shuffle(order)
            for name in order:
                began = time.perf_counter()
                for i in range(first, first + turn):
                    rows[name](i)
                spent[name] += time.perf_counter() - began
        for name, seconds in spent.items():
            report.add(name, seconds / calls * 1e6)


# Reading


def _reads(report: Report, folder: Path, repeat: int) -> None:
    import diskcache

    cache = cache_at(folder / "reads")
    contents = [os.urandom(SIZE) for _ in range(BLOBS)]
    entries = [
        cache.publish(Draft("graph", Factors({"m": "m"}, {"n": i}), (Part("artifact", data),)))
        for i, data in enumerate(contents)
    ]
    refs = [entry.blobs[0] for entry in entries]
    paths = [str(folder / "reads/store/v1" / layout.blob(ref.digest)) for ref in refs]
    database = diskcache.Cache(str(folder / "diskcache"), eviction_policy="none")
    for i, data in enumerate(contents):
        database.set(str(i), data)

    def bare(i: int) -> bytes:
        with open(paths[i % BLOBS], "rb", buffering=0) as file:
            return file.read()

    rows: dict[str, Action] = {
        "bare file read": bare,
        "verified get": lambda i: cache.blob(refs[i % BLOBS]),
        "diskcache get": lambda i: database.get(str(i % BLOBS)),
    }
    if (lru := _jax_cache(folder / "jax")) is not None:
        for i, data in enumerate(contents):
            lru.put(str(i), data)
        rows["JAX's LRU cache get"] = lambda i: lru.get(str(i % BLOBS))
    assert all(cache.blob(ref) == data for ref, data in zip(refs, contents, strict=True))
    _rounds(report, rows, repeat, CALLS * 5)
    database.close()
    report.ratio("verified_get_over_file_read", "verified get", "bare file read")
    report.ratio("verified_get_over_diskcache", "verified get", "diskcache get")
    report.ratio("verified_get_over_jax_lru", "verified get", "JAX's LRU cache get")


def _jax_cache(folder: Path) -> Any:
    try:
        from jax._src.lru_cache import LRUCache
    except ImportError:
        return None
    return LRUCache(str(folder), max_size=1 << 32)


# Storing


def _writes(report: Report, folder: Path, repeat: int) -> None:
    import diskcache

    database = diskcache.Cache(str(folder / "diskcache-put"), eviction_policy="none")
    cache = cache_at(folder / "writes")
    by_hand = _ByHand(folder / "by-hand")
    plain = folder / "plain"
    plain.mkdir()
    numbers = iter(range(10**9))
    # Made before the clock runs; a blob each, of its own, as a compile leaves them.
    data = [os.urandom(SIZE) for _ in range(20)]

    def fresh(i: int) -> bytes:
        return next(numbers).to_bytes(8, "little") + data[i % len(data)]

    def put(i: int) -> None:
        blob = fresh(i)
        cache.publish(Draft("graph", Factors({"m": "m"}, {"n": next(numbers)}), (Part("artifact", blob),)))

    rows: dict[str, Action] = {
        "put": put,
        "the same files, fsynced by hand": lambda i: by_hand.put(fresh(i), next(numbers)),
        "plain directory, no fsync": lambda i: (plain / str(next(numbers))).write_bytes(fresh(i)),
        "diskcache set": lambda i: database.set(str(next(numbers)), fresh(i)),
    }
    if (lru := _jax_cache(folder / "jax-put")) is not None:
        rows["JAX's LRU cache put"] = lambda i: lru.put(str(next(numbers)), fresh(i))
    for action in rows.values():
        for i in range(20):  # the folders that are made once
            action(i)
    _rounds(report, rows, repeat, CALLS // 2)
    database.close()
    report.ratio("put_over_fsynced_put", "put", "the same files, fsynced by hand")
    report.ratio("put_over_diskcache", "put", "diskcache set")


class _ByHand:
    """Writes the files that a publication of one blob writes, in the same folders, each fsynced, and its folder too."""

    def __init__(self, root: Path) -> None:
        import blake3

        self.digest = blake3.blake3
        self.root = str(root)
        self.count = 0
        self.entry = Entry(
            "graph", Factors({"m": "m"}, {"n": 0}), (BlobRef("0" * 64, SIZE, SIZE, "raw", "artifact", ""),)
        ).to_bytes()
        self.folder = f"{self.root}/configs/ab/{'ab' * 16}"
        os.makedirs(self.folder)
        os.makedirs(f"{self.root}/new")

    def put(self, blob: bytes, number: int) -> None:
        digest = self.digest(blob).hexdigest()
        self._file(f"{self.root}/blobs/{digest[:2]}", digest, blob)
        self._file(self.folder, f"{number:032x}.json", self.entry)

    def _file(self, folder: str, name: str, data: bytes) -> None:
        if not os.path.isdir(folder):
            os.makedirs(folder)
            self._sync(os.path.dirname(folder))
        self.count += 1
        temporary = f"{self.root}/new/{self.count}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, data)
        os.fsync(fd)
        os.close(fd)
        os.rename(temporary, f"{folder}/{name}")
        self._sync(folder)

    def _sync(self, folder: str) -> None:
        fd = os.open(folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


# A large store


def _large(report: Report, folder: Path, programs: int, repeat: int) -> None:
    root = folder / "large"
    _fill(root, programs)
    for _ in range(repeat):
        shutil.rmtree(root / "state", ignore_errors=True)
        report.add("ls, no index (s)", _seconds(["compcache", "ls", "--json"], root))
        report.add("ls, warm index (s)", _seconds(["compcache", "ls", "--json"], root))
        report.add("compcache --version (s)", _seconds(["compcache", "--version"], root))
        began = time.perf_counter()
        opened = DirectoryStore(root / "store", read_only=True)
        opened.check()
        report.add("open (s)", time.perf_counter() - began)
        for index in ("no", "warm"):
            script = [sys.executable, __file__, "--look", str(root / "store")]
            script += ["--index", str(root / "state/index")] if index == "warm" else []
            look, plan, memory = subprocess.run(script, check=True, capture_output=True, text=True).stdout.split()
            report.add(f"look for a prune plan, {index} index (s)", float(look))
            report.add(f"prune plan, {index} index, its look included (s)", float(look) + float(plan))
            report.add(f"memory of a process that plans, {index} index (MB)", float(memory))
    report.ratio("ls_no_index_over_warm_index", "ls, no index (s)", "ls, warm index (s)")


def _look(root: Path, index: Path | None) -> str:
    """Plan to empty the store; seconds of the look and of the plan, and megabytes at the peak of this process."""
    store = DirectoryStore(root, read_only=True)
    began = time.perf_counter()
    listing = Listing(functools.partial(Index(index).listing, store.label)) if index is not None else None
    seen = contents(store, remembered=listing)
    looked = time.perf_counter()
    planned = prune.planned(seen, max_size=1)
    seconds = time.perf_counter() - looked
    assert planned.entries
    return f"{looked - began} {seconds} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000}"


def _seconds(command: list[str], root: Path) -> float:
    program = str(Path(sys.executable).with_name(command[0]))
    environment = {
        "HOME": str(root),
        "COMPCACHE_DIR": str(root / "store"),
        "COMPCACHE_STATE": str(root / "state"),
        "PATH": os.environ.get("PATH", ""),
    }
    began = time.perf_counter()
    subprocess.run([program, *command[1:]], check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _fill(root: Path, programs: int) -> None:
    """Entries as vLLM's are (a hundred factors), with a blob of its own each, not fsynced."""
    import blake3

    DirectoryStore(root / "store").create("pins/" + "0" * 32, b"")
    base = root / "store/v1"
    (base / ("pins/" + "0" * 32)).unlink()
    common = {f"environment.VLLM_SETTING_{i}": f"value {i}" for i in range(90)}
    display = {"model": "LlamaForCausalLM 4x256", "dtype": "bfloat16", "quantization": "none", "parallel": "tp1 pp1"}
    display |= {"engine": "vllm 0.32.0", "toolchain": "torch 2.13.0", "hardware": "cpu avx2", "mode": "VLLM_COMPILE"}
    for i in range(programs):
        shared = {**common, "model.hidden_size": i % CONFIGURATIONS}
        blob = b"program %d" % i
        ref = BlobRef(blake3.blake3(blob).hexdigest(), len(blob), len(blob), "raw", "artifact", "")
        number = i // CONFIGURATIONS
        entry = Entry(
            "graph",
            Factors(shared, {"range": str(number)}),
            (ref,),
            {**display, "range": str(number or "symbolic 1..2048")},
            compile_seconds=10.0,
        )
        for name, data in (
            (layout.entry(entry.configuration_key, entry.program_key), entry.to_bytes()),
            (layout.blob(ref.digest), blob),
        ):
            path = base / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o600)
    settled = time.time() - 2 * SETTLED_SECONDS  # as those of a store that is not filled at this moment
    for place in DirectoryStore(root / "store").folders(""):
        os.utime(base / place.name, (settled, settled))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
