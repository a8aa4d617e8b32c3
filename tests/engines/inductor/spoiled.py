"""``graphs.py CASE`` with a torch whose ``_compile_fx_inner`` takes other arguments than the hook knows."""

from __future__ import annotations

import functools
import sys
from typing import Any

from compcache.adapters.imports import when_imported


def spoil(module: Any) -> None:
    original = module._compile_fx_inner

    def other(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    module._compile_fx_inner = functools.update_wrapper(other, original, assigned=["__name__"], updated=[])
    del other.__wrapped__


when_imported("torch._inductor.compile_fx", spoil)  # registered before the adapter's hook: runs before it

import graphs  # noqa: E402

if __name__ == "__main__":
    graphs.main(sys.argv[1])
