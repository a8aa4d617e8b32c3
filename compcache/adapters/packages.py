"""AOTInductor packages (``.pt2``): stored and found by key.

    from compcache.adapters import packages
    packages.compile_package(torch.export.export(model, inputs), "model.pt2")

In place of ``torch._inductor.aoti_compile_and_package``. A package holds the weights beside the code, and constants
folded from them in it, so a digest over their values is a factor; it is built for its host (``-march=native``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import blake3

from compcache.adapters import graph, inductor
from compcache.adapters.startup import ARTIFACT, compiler_name
from compcache.adapters.torch_settings import changed_settings, identity, settings_digest
from compcache.cache import Draft, Part
from compcache.errors import FactorError
from compcache.factors import Factors, JsonValue


def compile_package(program: Any, path: str | os.PathLike[str], *, options: Mapping[str, Any] | None = None) -> Path:
    """Write the package of a ``torch.export.ExportedProgram`` to ``path``: from the store, or compiled and stored.

    ``options`` are settings of Inductor's, as ``inductor_configs`` of torch's function.
    """
    target = Path(path)
    adapter = inductor.enable()
    factors = None if adapter is None else _factors(adapter, program, options or {})
    if adapter is None or factors is None:
        return _compiled(program, target, options)
    cache = adapter.cache
    if _written(adapter, factors, target):
        return target
    lease = cache.compile_or_wait(factors.program_key, lambda: cache.find(factors) is not None)
    try:
        if _written(adapter, factors, target):
            return target
        began = time.perf_counter()
        _compiled(program, target, options)
        seconds = time.perf_counter() - began
        entry = None
        if cache.writes:
            draft = _draft(adapter, factors, target, seconds)
            entry = cache.guarded("a package is not stored", lambda: cache.publish(draft), None)
        adapter.session.compile([] if entry is None else [entry], seconds, not_stored=int(entry is None))
    finally:
        if lease is not None:
            lease.release()
    return target


def _compiled(program: Any, target: Path, options: Mapping[str, Any] | None) -> Path:
    import torch._inductor

    made = torch._inductor.aoti_compile_and_package(
        program, package_path=str(target), inductor_configs=dict(options or {})
    )
    return Path(made)


def _written(adapter: inductor.Adapter, factors: Factors, target: Path) -> bool:
    began = time.perf_counter()

    def verified() -> tuple[Any, bytes] | None:
        entry = adapter.cache.find(factors)
        return None if entry is None else (entry, adapter.cache.blob(entry.blobs_with(ARTIFACT)[0]))

    found = adapter.cache.guarded("no package is loaded", verified, None)
    if found is None:
        return False
    target.write_bytes(found[1])
    adapter.session.load([found[0]], time.perf_counter() - began, found[0].compile_seconds)
    return True


def _draft(adapter: inductor.Adapter, factors: Factors, target: Path, seconds: float) -> Draft:
    display = {name: factors.shared[name] for name in ("model", "dtype", "mode")}
    return Draft(
        kind="graph",
        factors=factors,
        parts=(Part(ARTIFACT, target.read_bytes()),),
        display={**display, **adapter.toolchain(), "range": "package", "part": "inference"},
        compile_seconds=seconds,
        provenance={"compiler": compiler_name()},
    )


def _factors(adapter: inductor.Adapter, program: Any, options: Mapping[str, Any]) -> Factors | None:
    import torch
    import torch._inductor.config

    def read() -> Factors:
        try:
            names: dict[str, JsonValue] = {
                "model": "exported",
                "dtype": next((str(t.dtype)[6:] for t in program.state_dict.values()), "unnamed"),
                "mode": "AOTInductor",
            }
            return Factors({**adapter.host_factors(), **names}, _own(torch, program, options))
        except FactorError as error:
            adapter.session.cannot_cache("a package", str(error))
            raise

    return adapter.cache.guarded("no factors of a package", read, None)


def _own(torch: Any, program: Any, options: Mapping[str, Any]) -> dict[str, JsonValue]:
    module = program.graph_module
    inputs = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    signature = f"{program.graph_signature}\n{program.call_spec}"
    return {
        "graph.digest": graph.graph_digest(module),
        "graph.inputs": graph.inputs(inputs),
        "graph.signature": blake3.blake3(signature.encode()).hexdigest(length=16),
        "graph.limits": sorted(str(limits) for limits in program.range_constraints.values()),
        "weights": {**_digests(program.state_dict), **_digests(program.constants)},
        "options": {str(name): identity(value, str(name)) for name, value in options.items()},
        "torch.inductor": changed_settings(torch._inductor.config),
        "torch.inductor.digest": settings_digest(torch._inductor.config),
    }


def _digests(tensors: Mapping[str, Any]) -> dict[str, JsonValue]:
    """By name, type and shape of each tensor, and a digest of its values."""
    return {name: [graph.described(tensor), graph.values_digest(tensor)] for name, tensor in tensors.items()}
