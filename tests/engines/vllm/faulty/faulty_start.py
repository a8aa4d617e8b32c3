"""Faults in a real start of vLLM, put in by the demo's watch (START_WATCH_ALSO)."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from compcache.adapters.imports import when_imported


def die_at_first_run() -> None:
    """The process dies by FAULTY_SIGNAL where its first profiling run begins: what was loaded has not run."""

    def hook(module: Any) -> None:
        def monitor_profiling_run(*args: Any, **kwargs: Any) -> Any:
            os.kill(os.getpid(), int(os.environ["FAULTY_SIGNAL"]))

        module.monitor_profiling_run = monitor_profiling_run

    when_imported("vllm.compilation.decorators", hook)


def hostile_store() -> None:
    """The store is on a file system without links, that fails, forgets, and is behind."""
    from compcache.testing.filesystems import Every, NegativeCaching, NoLinks, Skew, hostile

    faults = (NoLinks(), NegativeCaching(2), Every(9, errno.ESTALE), Every(31, errno.EIO), Skew(-300.0))
    hostile(Path(os.environ["COMPCACHE_DIR"]), *faults).__enter__()
