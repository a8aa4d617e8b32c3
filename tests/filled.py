"""A store filled as the vLLM adapter fills one, without vLLM: for tests of listing, prune, verify and the CLI."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from compcache.cache import Cache, Draft, Part, digest_of
from compcache.config import load
from compcache.entry import Assembly, Entry, Piece, ProgramRef
from compcache.factors import Factors
from compcache.session import Session
from compcache.store import layout
from compcache.store.protocol import Store

SIZES = (1, 2, 4, 8)
SYMBOLIC = "symbolic 1..2048"
DISPLAY = {
    "model": "LlamaForCausalLM 4x256",
    "dtype": "bfloat16",
    "quantization": "none",
    "parallel": "tp1",
    "engine": "vllm 0.32.0",
    "toolchain": "torch 2.13.0+cpu",
    "hardware": "cpu avx2",
    "mode": "VLLM_COMPILE",
}
KERNEL = b"\x7fELF kernel that every range of one configuration loads " * 40


def cache_at(root: Path, store: Store | None = None) -> Cache:
    """A cache on the directory ``root``, or on ``store``; it says nothing."""
    settings = load({"COMPCACHE_DIR": str(root), "COMPCACHE_STATE": str(root) + ".state", "HOME": str(root.parent)})
    return Cache(settings, store=store, session=Session(say=lambda line: None))


def graph(cache: Cache, size: str, *, model: str = "LlamaForCausalLM 4x256", kernel: bytes = KERNEL) -> Entry:
    """Publish the graph program of one range."""
    return cache.publish(
        Draft(
            kind="graph",
            factors=Factors({"model.name": model, "torch.version": "2.13.0"}, {"shape.range": size, "graph": "g0"}),
            parts=(Part("artifact", f"artifact of {model} for {size}".encode()), Part("kernel", kernel, "k0.so")),
            display={**DISPLAY, "model": model, "range": size, "part": "backbone", "graphs": ["submod_0"], "rank": 0},
            compile_seconds=10.5,
            provenance={"seconds": 10.5},
        )
    )


def start_up(cache: Cache, graphs: Iterable[Entry], *, model: str = "LlamaForCausalLM 4x256") -> Entry:
    """Publish the start-up that refers to ``graphs``."""
    graphs = tuple(graphs)
    head, artifacts = b"head of the shell ", b""
    for program in graphs:
        artifacts += cache.blob(program.blobs_with("artifact")[0])
    whole = head + artifacts
    return cache.publish(
        Draft(
            kind="start-up",
            factors=Factors({"model.name": model, "torch.version": "2.13.0"}, {"source.vllm": "abc"}),
            parts=(Part("segment", head),),
            display={**DISPLAY, "model": model, "rank": 0},
            compile_seconds=2.0,
            programs=tuple(ProgramRef(p.program_key, str(p.display["range"])) for p in graphs),
            assembly=Assembly(
                (Piece("blob", 0), *(Piece("program", i) for i in range(len(graphs)))), digest_of(whole), len(whole)
            ),
        )
    )


def piecewise(cache: Cache, *, model: str = "LlamaForCausalLM 4x256") -> tuple[list[Entry], Entry]:
    """One symbolic range, sizes 1, 2, 4, 8, and their start-up."""
    graphs = [graph(cache, size, model=model) for size in (SYMBOLIC, *map(str, SIZES))]
    return graphs, start_up(cache, graphs, model=model)


def path_of(root: Path, entry: Entry) -> Path:
    return root / "v1" / layout.entry(entry.configuration_key, entry.program_key)


def blob_path(root: Path, digest: str) -> Path:
    return root / "v1" / layout.blob(digest)


def make_old(root: Path, seconds: float, *, below: str = "v1") -> None:
    """Move the mtimes of all files below a folder into the past."""
    for folder, _, names in os.walk(root / below):
        for name in names:
            path = os.path.join(folder, name)
            moment = os.lstat(path).st_mtime - seconds
            os.utime(path, (moment, moment), follow_symlinks=False)


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below ``root`` and its bytes."""
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
