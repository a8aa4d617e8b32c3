"""What torch's own directory holds (TORCHINDUCTOR_CACHE_DIR), adopted: ``compcache import --from-inductor DIR``.

A graph is adopted if this is proven (:mod:`compcache.adapters.inductor_evidence` says by what):

* torch and its sources, the graph, its inputs, Inductor's configuration: torch's key, its folder's name, has them, and
  the graph is looked up by that key.
* that the record is whole: its name is the digest of its content.
* of each kernel: the compiler's command and environment, compiler and CPU, thread count, vector width.

What cannot be shown (a kernel without debug information; one whose text tells no width: bfloat16, gemm templates) is
adopted only by the user's statement that all of it was compiled on this host, with the environment as it is now; the
statement is kept in the entry. What is shown not to fit is left whatever the user states. Nothing in the directory is
unpickled or loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from compcache import fsio
from compcache.adapters.inductor import Adapter
from compcache.adapters.inductor_backend import graph_key
from compcache.adapters.inductor_evidence import Evidence, Unfit, Unproven
from compcache.adapters.inductor_names import UNNAMED
from compcache.adapters.inductor_programs import ADOPTED, MOST_VARIANTS
from compcache.adapters.startup import ARTIFACT, KERNEL
from compcache.cache import Draft, Part, digest_of
from compcache.entry import MAX_RAW_BYTES
from compcache.errors import CompcacheError, NotStored, StoreError

STATE_IT = "; --same-host states that all of it was compiled on this host, in an environment as now"


@dataclass(frozen=True, slots=True)
class Fitting:
    """A graph that may be adopted: torch's key, its record, its kernels by name, the seconds that it cost."""

    key: str
    content: bytes
    kernels: Mapping[str, bytes]
    seconds: float
    doubt: str = ""
    """What the user stated, and no file shows."""


@dataclass(frozen=True, slots=True)
class Left:
    """What stays where it is, and why; ``path`` is relative to the directory."""

    path: str
    why: str


@dataclass
class Plan:
    """What an import would do."""

    fitting: list[Fitting] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Adopted:
    """What an import did."""

    programs: int = 0
    already_stored: int = 0
    left: tuple[Left, ...] = ()


def plan(directory: Path, *, same_host: bool) -> Plan:
    """What of torch's directory fits this host. Raises NotStored if it has no graphs, FactorError, StoreError."""
    import torch._inductor.codecache as codecache

    found = Plan()
    records = _records(directory)
    try:
        evidence = Evidence(directory)
    except RuntimeError as error:  # torch's, for a compiler that is not there or does not work
        raise StoreError(None, f"what was compiled here cannot be told without a C++ compiler: {error}") from error
    for path in records:
        shown = str(path.relative_to(directory))
        try:
            content = fsio.read_file(path, MAX_RAW_BYTES, fsio.Trust())
            if codecache.sha256_hash(content) != path.name:
                raise Unfit("it is damaged: its name is not the digest of its content")
            found.fitting.append(_fitting(evidence, path.parent.name, content, same_host))
        except (Unfit, CompcacheError) as error:
            found.left.append(Left(shown, str(error)))
    found.left += _others(directory)
    return found


def _fitting(evidence: Evidence, key: str, content: bytes, same_host: bool) -> Fitting:
    try:
        kernels, seconds = evidence.of(content)
        return Fitting(key, content, kernels, seconds)
    except Unproven as doubt:
        if not same_host:
            raise Unfit(f"{doubt}{STATE_IT}") from doubt
        kernels, seconds = evidence.of(content, stated=True)
        return Fitting(key, content, kernels, seconds, str(doubt))


def adopt(adapter: Adapter, found: Plan, *, dry_run: bool = False) -> Adopted:
    """Store what fits, under torch's key without compcache's part. Raises StoreError, FactorError."""
    done = already = 0
    free: dict[str, _Numbers] = {}
    left = list(found.left)
    for graph in found.fitting:
        if graph.key not in free:
            free[graph.key] = _Numbers(adapter, graph.key)
        numbers = free[graph.key]
        if digest_of(graph.content) in numbers.stored:
            already += 1
        elif numbers.free >= MOST_VARIANTS:
            left.append(Left(graph.key, f"{MOST_VARIANTS} graphs are stored under its key"))
        else:
            if not dry_run:
                _publish(adapter, graph, numbers.free)
            numbers.free += 1
            numbers.stored.add(digest_of(graph.content))
            done += 1
    return Adopted(done, already, tuple(left))


class _Numbers:
    """Which graphs are stored under one key of torch's, and the number that is free."""

    def __init__(self, adapter: Adapter, key: str) -> None:
        self.stored: set[str] = set()
        self.free = 0
        while self.free < MOST_VARIANTS:
            entry = adapter.cache.find(adapter.plain_factors(graph_key(key), self.free, ADOPTED))
            if entry is None:
                return
            self.stored.add(digest_of(adapter.cache.blob(entry.blobs_with(ARTIFACT)[0])))
            self.free += 1


def _publish(adapter: Adapter, graph: Fitting, number: int) -> None:
    kernels = (Part(KERNEL, data, name) for name, data in sorted(graph.kernels.items()))
    names = {"model": UNNAMED, "dtype": UNNAMED, "mode": ADOPTED, "range": "any", "part": ADOPTED}
    adapter.cache.publish(
        Draft(
            kind="graph",
            factors=adapter.plain_factors(graph_key(graph.key), number, ADOPTED),
            parts=(Part(ARTIFACT, graph.content), *kernels),
            display={**names, **adapter.toolchain()},
            compile_seconds=graph.seconds,
            provenance={"adopted": "from torch's directory", "stated to fit": graph.doubt},
        )
    )


def _records(directory: Path) -> list[Path]:
    """torch's graphs: fxgraph/<xx>/<key>/<digest>. Raises NotStored if the directory is none of torch's."""
    graphs = directory / "fxgraph"
    try:
        info = fsio.status(graphs)
    except OSError as error:
        raise NotStored(error.errno, f"{directory} is not a directory of torch's: it has no fxgraph") from error
    fsio.Trust().check(info, str(graphs))
    return sorted(path for path in graphs.glob("*/*/*") if not path.name.startswith("."))


def _others(directory: Path) -> Iterator[Left]:
    for name, why in (
        ("aotautograd", "made again in seconds once its graph is loaded; its key has no counterpart to look it up by"),
        ("cache", "tuning choices: a graph that is adopted needs none"),
        ("triton", "Triton kernels: they travel in a graph's record, where torch put them"),
    ):
        if (directory / name).is_dir():
            yield Left(name, why)
