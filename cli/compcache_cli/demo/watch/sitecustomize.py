"""Watches every Python process of a start from outside vLLM: programs that are executed, and the compile phase.

Put on PYTHONPATH by :mod:`compcache_cli.demo.starts`. Neither changes what vLLM does, with or without compcache. The
compile phase runs from the first call of the model, where vLLM begins to look for a compiled function, to where its
first profiling run begins (``monitor_profiling_run``): keys, looking up, compiling or loading, and saving.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
from typing import Any

_REPORT = os.environ.get("START_WATCH_FILE")
_PROBE_ISA = os.environ.get("START_WATCH_PROBE_ISA") == "1"
_ALSO = os.environ.get("START_WATCH_ALSO")
"""MODULE:FUNCTION to call in each process: how tests put faults into a start."""


def _write(kind: str, **values: Any) -> None:
    line = json.dumps({"kind": kind, "pid": os.getpid(), **values}) + "\n"
    with open(str(_REPORT), "a", encoding="utf-8") as file:
        file.write(line)


def _executed(event: str, args: tuple[Any, ...]) -> None:
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
        argv = args[1] if event != "os.system" else args[0]
        program = str(args[0]) if event != "os.system" else str(args[0]).split()[0]
        words = [str(word) for word in argv][:4] if isinstance(argv, (list, tuple)) else str(argv)
        _write("exec", program=program, argv=words)


def _watch_compile_phase() -> None:
    from compcache.adapters.imports import when_imported

    began: list[float] = []

    def hook(module: Any) -> None:
        looked, profiled = module.is_forward_context_available, module.monitor_profiling_run

        @functools.wraps(looked)
        def is_forward_context_available() -> Any:
            if not began:
                if _PROBE_ISA:
                    from torch._inductor.cpu_vec_isa import pick_vec_isa

                    pick_vec_isa()
                began.append(time.perf_counter())
            return looked()

        @functools.wraps(profiled)
        def monitor_profiling_run(*args: Any, **kwargs: Any) -> Any:
            if began:
                _write("compile-phase", seconds=time.perf_counter() - began.pop())
            return profiled(*args, **kwargs)

        module.is_forward_context_available = is_forward_context_available
        module.monitor_profiling_run = monitor_profiling_run

    when_imported("vllm.compilation.decorators", hook)


if _REPORT:
    sys.addaudithook(_executed)
    _watch_compile_phase()
if _ALSO:
    module, _, function = _ALSO.partition(":")
    getattr(importlib.import_module(module), function)()
