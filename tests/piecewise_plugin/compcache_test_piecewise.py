"""Run vLLM's piecewise mode (VLLM_COMPILE) on a CPU, for tests and benchmarks only.

``CpuPlatform.check_and_update_config`` (vllm/platforms/cpu.py, vLLM 0.32) turns VLLM_COMPILE into
DYNAMO_TRACE_ONCE. With ``COMPCACHE_TEST_PIECEWISE=1`` this plugin wraps it: the mode that was asked for is
kept, with backend "inductor", and the post-grad pass manager is one whose last step does nothing, since
``FixFunctionalizationPass`` names operators that only a CUDA build registers.
"""

from __future__ import annotations

import os
from typing import Any


def register() -> None:
    """Entry point of ``vllm.general_plugins``; does nothing unless ``COMPCACHE_TEST_PIECEWISE=1``."""
    if os.environ.get("COMPCACHE_TEST_PIECEWISE") != "1":
        return
    from vllm.platforms import cpu

    platform = cpu.CpuPlatform
    if getattr(platform, "_compcache_test_piecewise", False):
        return
    original = platform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        from vllm.config import CompilationMode

        compilation = vllm_config.compilation_config
        piecewise = compilation.mode == CompilationMode.VLLM_COMPILE
        original(cls, vllm_config)
        if piecewise:
            compilation.mode = CompilationMode.VLLM_COMPILE
            compilation.backend = "inductor"

    def get_pass_manager_cls(cls: type) -> str:
        return "compcache_test_piecewise.CpuPassManager"

    platform.check_and_update_config = classmethod(check_and_update_config)  # type: ignore[assignment]
    platform.get_pass_manager_cls = classmethod(get_pass_manager_cls)  # type: ignore[assignment]
    platform._compcache_test_piecewise = True  # type: ignore[attr-defined]


def __getattr__(name: str) -> Any:
    if name == "CpuPassManager":
        return _pass_manager()
    raise AttributeError(name)


def _pass_manager() -> type:
    """The pass manager class, made on first use: importing vLLM's passes is slow."""
    from vllm.compilation.passes.inductor_pass import InductorPass
    from vllm.compilation.passes.pass_manager import PostGradPassManager

    class KeepFunctional(InductorPass):
        """Stands in for FixFunctionalizationPass; leaves the graph as it is."""

        def __call__(self, graph: Any) -> None:
            return None

        def uuid(self) -> str:
            return "compcache-test-keep-functional"

    class CpuPassManager(PostGradPassManager):
        def configure(self, config: Any) -> None:
            super().configure(config)
            self.fix_functionalization = KeepFunctional()

    globals()["CpuPassManager"] = CpuPassManager
    CpuPassManager.__module__ = __name__
    CpuPassManager.__qualname__ = "CpuPassManager"
    return CpuPassManager
