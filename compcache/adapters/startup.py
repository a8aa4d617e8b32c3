"""One start-up of a vLLM model part: from the look into the store to the publication of what was compiled.

A start-up's file is one pickle in which each graph's artifact lies verbatim. It is stored as segments of bytes and
references to graph programs; put together again it must have the stored digest before vLLM sees it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compcache import environment
from compcache.cache import Cache, Draft, Part, digest_of
from compcache.entry import MAX_ENTRY_BYTES, Assembly, Entry, Piece, ProgramRef
from compcache.errors import Damaged, FactorError, NotStored, StoreError
from compcache.factors import Factors, JsonValue
from compcache.failpoints import reached
from compcache.lease import Lease
from compcache.store import layout

ARTIFACT = "artifact"
KERNEL = "kernel"
SEGMENT = "segment"


@dataclass
class GraphRecord:
    """One graph that was compiled for one range: its identity from before the compile, and what it cost."""

    digest: str
    inputs: JsonValue
    engine_key: str = ""
    seconds: float = 0.0
    kernels: dict[str, bytes] = field(default_factory=dict)


@dataclass
class StartUp:
    """The start-up that this process is at. ``display`` is for people."""

    factors: Factors
    display: Mapping[str, JsonValue]
    lease: Lease | None = None
    seconds: float = 0.0
    compiled: Any = None
    whole: GraphRecord | None = None
    symbolic: bool = True
    kernels: dict[str, bytes] = field(default_factory=dict)
    graphs: dict[tuple[int, str], GraphRecord] = field(default_factory=dict)
    published: list[Entry] = field(default_factory=list)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    """Artifacts as they will lie in the file, by program key."""
    holds_graphs: bool = False
    """Whether vLLM put the graphs' artifacts into the file."""
    doubt: str = ""
    """Why this start-up must not be published; empty if it may."""

    @property
    def key(self) -> str:
        return self.factors.program_key

    @property
    def programs(self) -> int:
        """How many programs it consists of: its graphs, equal ones once, and itself."""
        graphs = {(record.digest, compiled_range) for (_, compiled_range), record in self.graphs.items()}
        return (len(graphs) or int(self.whole is not None)) + 1

    def release(self) -> None:
        if self.lease is not None:
            self.lease.release()
            self.lease = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A stored start-up, verified: the bytes that vLLM loads, and the kernels that they need (by name)."""

    entry: Entry
    graphs: tuple[Entry, ...]
    data: bytes
    kernels: Mapping[str, bytes]

    @property
    def compile_seconds(self) -> float:
        return self.entry.compile_seconds + sum(e.compile_seconds for e in self.graphs)


# Looking up


def find(cache: Cache, factors: Factors) -> Entry | None:
    """The variant of a start-up that fits the installed sources, or None.

    ``modules.json`` says which modules were traced; digests of their installed sources make the variant's name. Both
    before anything is unpickled.
    """
    try:
        raw = cache.store.read(layout.modules(factors.configuration_key, factors.program_key), MAX_ENTRY_BYTES)
        names = json.loads(raw)
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            return None
        return cache.find(factors.with_own(source_factors(names)))
    except (NotStored, Damaged, FactorError, ValueError, RecursionError):
        return None


def source_factors(modules: list[str]) -> dict[str, JsonValue]:
    """``source.<module>`` for each module: the digest of its installed source."""
    return {f"source.{name}": environment.module_digest(name) for name in sorted(set(modules))}


def ready(cache: Cache, entry: Entry, own_file: str) -> Ready:
    """Everything that a start-up's entry names, verified.

    Raises NotStored or Damaged; an entry that cannot be put together any more is quarantined, so that the next
    compile replaces it. vLLM's ``own_file`` serves if its digest is the one that the entry vouches for.
    """
    graphs = []
    artifacts: dict[str, bytes] = {}
    kernels: dict[str, bytes] = {}
    try:
        for ref in entry.programs:
            graph = cache.entry_of(entry.configuration_key, ref.program_key)
            if not graph.factors.shares_with(entry.factors):
                raise Damaged("a graph of another configuration")
            graphs.append(graph)
            for blob in graph.blobs:
                if blob.role == KERNEL:
                    kernels[blob.name] = cache.blob(blob)
                elif blob.role == ARTIFACT:
                    artifacts[graph.program_key] = cache.blob(blob)
        data = cache.assemble(entry, artifacts)
    except (NotStored, Damaged, KeyError) as error:
        vouched = _vouched(entry, own_file)
        if vouched is None:
            if cache.writes and not (isinstance(error, NotStored) and not error.gone):
                cache.store.quarantine(layout.entry(entry.configuration_key, entry.program_key), str(error))
            raise Damaged(f"the stored start-up is not whole: {error}") from error
        data = vouched
    return Ready(entry, tuple(graphs), data, kernels)


def _vouched(entry: Entry, own_file: str) -> bytes | None:
    try:
        with open(own_file, "rb") as file:
            data = file.read()
    except OSError:
        return None
    same = entry.assembly is not None and digest_of(data) == entry.assembly.digest
    return data if same else None


# Publishing


def publish_graphs(cache: Cache, startup: StartUp, artifacts: Any, indices: Mapping[str, int]) -> None:
    """Publish each (graph, range) of a piecewise start-up as a program of its own.

    ``artifacts`` is vLLM's StandaloneCompiledArtifacts: ``submodule_bytes`` maps "<graph>_<range>" to a SHA-256 digest
    and ``submodule_bytes_store`` that digest to bytes. Where an equal program was published first, its bytes take the
    artifact's place in both tables, before vLLM pickles them. ``indices`` maps graph names to piecewise indices.
    """
    groups: dict[str, tuple[Factors, GraphRecord, str, list[str]]] = {}
    for name, digest in artifacts.submodule_bytes.items():
        graph, _, compiled_range = name.rpartition("_")
        record = startup.graphs.get((indices.get(graph, -1), compiled_range))
        if record is None or not record.digest or not record.engine_key:
            cache.session.cannot_cache(f"graph {graph}", "it has no identity; it stays inside its start-up")
            continue
        factors = _graph_factors(startup, record, range_label(compiled_range))
        group = groups.setdefault(factors.program_key, (factors, record, digest, []))
        group[3].append(name)
        _merge(group[1], record)
    for key, (factors, record, digest, names) in groups.items():
        own = artifacts.submodule_bytes_store[artifacts.submodule_bytes[names[0]]]
        entry = _publish_graph(cache, startup, factors, record, own, sorted({n.rpartition("_")[0] for n in names}))
        data = _artifact(cache, entry, own)
        startup.artifacts[key] = data
        if data != own:
            token = hashlib.sha256(data).hexdigest()
            for name in names:
                artifacts.submodule_bytes[name] = token
            artifacts.submodule_bytes_store[token] = data
            if digest not in artifacts.submodule_bytes.values():
                artifacts.submodule_bytes_store.pop(digest, None)


def _merge(first: GraphRecord, other: GraphRecord) -> None:
    """Equal graphs are compiled once: what the later ones cost and loaded belongs to the first."""
    if other is not first:
        first.seconds += other.seconds
        first.kernels.update(other.kernels)


def publish_whole(cache: Cache, startup: StartUp, data: bytes) -> bytes:
    """Publish the one graph of a start-up that is not split; the bytes to use in its place."""
    record = startup.whole
    if record is None or not record.digest:
        return data
    record.kernels = startup.kernels
    record.seconds = startup.seconds
    # Not looked up by itself: it may depend on anything that its start-up depends on.
    factors = startup.factors.with_own(
        {"graph.digest": record.digest, "graph.inputs": record.inputs, "range": _whole_range(startup)}
    )
    entry = _publish_graph(cache, startup, factors, record, data, ["whole"])
    found = _artifact(cache, entry, data)
    startup.artifacts[factors.program_key] = found
    return found


def publish_startup(cache: Cache, startup: StartUp, data: bytes, modules: list[str]) -> Entry:
    """Publish the start-up itself, then ``modules.json``, by which readers find it."""
    pieces, segments, programs = split(data, startup.artifacts)
    entry = cache.publish(
        Draft(
            kind="start-up",
            factors=startup.factors.with_own(source_factors(modules)),
            parts=tuple(Part(SEGMENT, segment, str(i)) for i, segment in enumerate(segments)),
            display=startup.display,
            compile_seconds=max(0.0, startup.seconds - sum(e.compile_seconds for e in startup.published)),
            programs=tuple(ProgramRef(key) for key in programs),
            assembly=Assembly(pieces, digest_of(data), len(data)),
        )
    )
    name = layout.modules(startup.factors.configuration_key, startup.key)
    cache.store.replace(name, json.dumps(sorted(set(modules)), indent=0).encode())
    reached("publish.modules")
    return entry


def split(data: bytes, artifacts: Mapping[str, bytes]) -> tuple[tuple[Piece, ...], list[bytes], list[str]]:
    """Cut a file at the artifacts that lie in it verbatim: pieces, segments, and program keys in order."""
    places = sorted((at, key) for key, blob in artifacts.items() if blob and (at := data.find(blob)) >= 0)
    pieces: list[Piece] = []
    segments: list[bytes] = []
    programs: list[str] = []
    end = 0
    for at, key in places:
        if at < end:
            continue  # equal bytes under two keys: the second reference would overlap
        if at > end:
            pieces.append(Piece("blob", len(segments)))
            segments.append(data[end:at])
        pieces.append(Piece("program", len(programs)))
        programs.append(key)
        end = at + len(artifacts[key])
    if end < len(data) or not pieces:
        pieces.append(Piece("blob", len(segments)))
        segments.append(data[end:])
    # Programs that are not in the file any more (an artifact that vLLM shares under another key) are still needed.
    programs.extend(key for key in artifacts if key not in programs)
    return tuple(pieces), segments, programs


def _graph_factors(startup: StartUp, record: GraphRecord, label: str) -> Factors:
    own = {
        "part": startup.factors.own["part"],
        "graph.digest": record.digest,
        "graph.engine_key": record.engine_key,
        "graph.inputs": record.inputs,
        "range": label,
    }
    return Factors(startup.factors.shared, own)


def _publish_graph(
    cache: Cache, startup: StartUp, factors: Factors, record: GraphRecord, data: bytes, graphs: list[str]
) -> Entry:
    kernels = tuple(Part(KERNEL, blob, name) for name, blob in sorted(record.kernels.items()))
    entry = cache.publish(
        Draft(
            kind="graph",
            factors=factors,
            parts=(Part(ARTIFACT, data), *kernels),
            display={**startup.display, "range": factors.own["range"], "graphs": graphs},
            compile_seconds=record.seconds,
            provenance={"compiler": compiler_name()},
        )
    )
    startup.published.append(entry)
    return entry


def _artifact(cache: Cache, entry: Entry, own: bytes) -> bytes:
    """The bytes of the program in the store: ours, or those of who was first."""
    try:
        return cache.blob(entry.blobs_with(ARTIFACT)[0])
    except (StoreError, Damaged, IndexError):
        return own


def range_label(compiled_range: str) -> str:
    """vLLM's "(8, 8)" is "8"; "(1, 2048)" is "symbolic 1..2048"."""
    first, _, last = compiled_range.strip("()").replace(" ", "").partition(",")
    return first if first == last else f"symbolic {first}..{last}"


def _whole_range(startup: StartUp) -> str:
    return "symbolic" if startup.symbolic else "fixed"


def compiler_name() -> str:
    """The C++ compiler in PATH or CXX, by the name of its file; for provenance only, nothing is run."""
    import os
    import shutil

    path = shutil.which(os.environ.get("CXX") or "g++")
    return os.path.basename(os.path.realpath(path)) if path else "none"


def now() -> float:
    """Seconds on a clock for durations."""
    return time.perf_counter()
