"""A graph whose compile makes real Triton kernels for a GPU that need not be there: ``cubins.py CASE``; prints JSON.

Triton compiles for a target that it is told (ptxas comes with it). What Inductor does with a kernel it compiled, it
does here too: into its Triton directory of that device, and noted for the bundle that travels in the graph's record
(``CachingAutotuner._precompile_worker``, torch/_inductor/runtime/triton_heuristics.py).
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import graphs  # first: it switches compcache on
import torch
import triton
import triton.language as tl
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.runtime.runtime_utils import triton_cache_dir
from torch._inductor.runtime.triton_heuristics import triton_hash_to_path_key
from torch._inductor.triton_bundler import TritonBundler
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

DEVICES = (0, 1)
compiles = 0


@triton.jit
def add_one(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def compiled(device: int) -> Any:
    os.environ["TRITON_CACHE_DIR"] = triton_cache_dir(device)
    source = ASTSource(
        fn=add_one, signature={"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}, constexprs={"BLOCK": 64}
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32))


class MakesKernels(CustomGraphPass):
    def __call__(self, graph: torch.fx.Graph) -> None:
        global compiles
        for device in DEVICES:
            TritonBundler.put(triton_hash_to_path_key(compiled(device).hash), device)
            compiles += 1

    def uuid(self) -> Any:
        return "makes kernels"


def files(device: int) -> dict[str, str]:
    """What lies in Triton's directory of a device; with the directory itself taken out of Triton's own lists."""
    below = Path(triton_cache_dir(device))
    return {
        str(path.relative_to(below)): hashlib.sha256(
            path.read_bytes().replace(os.fsencode(path.parent), b"HERE")
        ).hexdigest()
        for path in sorted(below.rglob("*"))
        if path.is_file()
    }


@graphs.case
def cubins() -> graphs.Values:
    options = {"post_grad_custom_post_pass": MakesKernels()}
    found = torch.compile(graphs.activate, options=options)(graphs.data(3))
    with mock.patch.object(ASTSource, "make_ir", side_effect=AssertionError("Triton compiled again")):
        ready = [hashlib.sha256(compiled(device).asm["cubin"]).hexdigest() for device in DEVICES]
    return {
        "bits": graphs.bits(found),
        "compiles": compiles,
        "files": [files(device) for device in DEVICES],
        "cubins": ready,
    }


if __name__ == "__main__":
    graphs.main(sys.argv[1])
