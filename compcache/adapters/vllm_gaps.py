"""Where vLLM 0.32 and torch 2.13 do not fit each other, or keep more than they should, and small facts about both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def traced(fn: Any) -> list[str]:
    """The modules whose sources Dynamo traced."""
    return sorted({source.module for source in fn.source_info().inlined_sources})


def force_aot_load() -> bool:
    """VLLM_FORCE_AOT_LOAD: vLLM raises where it would compile."""
    import vllm.envs

    return bool(getattr(vllm.envs, "VLLM_FORCE_AOT_LOAD", False))


@contextlib.contextmanager
def finalize_loading() -> Iterator[None]:
    """vLLM 0.32 calls ``finalize_loading`` of whatever it loaded, but torch's own bundled callable has none.

    That one is complete once deserialized (torch/_dynamo/aot_compile_types.py), so a method that does nothing is
    right for it (vllm/compilation/decorators.py, ``_try_load_aot_compiled_fn``).
    """
    from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable as Bundled

    if "finalize_loading" in vars(Bundled):
        yield
        return
    Bundled.finalize_loading = lambda self, vllm_config: None
    try:
        yield
    finally:
        del Bundled.finalize_loading


@contextlib.contextmanager
def plain_backend_name(fn: Any) -> Iterator[None]:
    """Keep the backend's name, not the backend, in the file.

    torch 2.13 stores ``getattr(backend, "compiler_name")`` (torch/_dynamo/aot_compile.py), which for vLLM is its whole
    backend object: with its configuration, paths, and any token in it.
    """
    artifacts = fn._artifacts
    name = artifacts.backend_name
    if not isinstance(name, str):
        artifacts.backend_name = type(name).__qualname__
    try:
        yield
    finally:
        artifacts.backend_name = name
