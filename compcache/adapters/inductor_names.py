"""What people call what torch.compile is at: the model or function, its dtype, its shapes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

UNNAMED = "unnamed"
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+?)_at_\d+")


def traced(torch: Any) -> tuple[Any, Mapping[str, Any]]:
    """The code that Dynamo is at in this thread, and the values of its variables; None if it is at none.

    Dynamo has both in the frame of ``_compile`` (torch/_dynamo/convert_frame.py): ``code`` and ``locals``.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        values = frame.f_locals if frame.f_code.co_name == "_compile" else {}
        if hasattr(values.get("code"), "co_qualname") and isinstance(values.get("locals"), Mapping):
            return values["code"], dict(values["locals"])
        frame = frame.f_back
    return None, {}


def model_name(torch: Any, code: Any, values: Mapping[str, Any]) -> str:
    if code is None:
        return UNNAMED
    owner = values.get("self")
    if isinstance(owner, torch.nn.Module):
        return type(owner).__qualname__
    # Without the line at which a function goes on after a graph break: an edit above it changes no graph.
    name = _RESUMED.sub(r"\1", str(code.co_qualname))
    return name.replace("<locals>.", "")


def dtype_name(torch: Any, values: Mapping[str, Any]) -> str:
    """The first floating dtype among a module's parameters and the arguments; and what autocast makes of it."""
    owner = values.get("self")
    parameters: Iterable[Any] = owner.parameters() if isinstance(owner, torch.nn.Module) else ()
    tensors = (v for group in (parameters, _leaves(values.values())) for v in group if isinstance(v, torch.Tensor))
    found = next((str(t.dtype) for t in tensors if t.is_floating_point()), UNNAMED).removeprefix("torch.")
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return f"{found} autocast {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}"
    return found


def _leaves(values: Iterable[Any], depth: int = 2) -> Iterable[Any]:
    for value in list(values):
        if isinstance(value, (list, tuple)) and depth:
            yield from _leaves(value[:8], depth - 1)
        elif isinstance(value, dict) and depth:
            yield from _leaves(list(value.values())[:8], depth - 1)
        else:
            yield value


def shown_range(torch: Any, inputs: Sequence[Any], constant: Sequence[int]) -> str:
    """The range of a graph by its inputs: "symbolic 2..1024", or the first size of the first that is no parameter.

    ``constant`` are the indices of parameters and buffers (``static_input_idxs``, torch/_inductor/compile_fx.py).
    """
    symbols = {str(value): _bounds(value) for value in inputs if isinstance(value, torch.SymInt)}
    if symbols:
        return "symbolic " + ", ".join(dict.fromkeys(symbols.values()))
    skipped = set(constant)
    for index, value in enumerate(inputs):
        if index not in skipped and isinstance(value, torch.Tensor) and value.dim():
            return str(int(value.shape[0]))
    return "scalar"


def _bounds(symbol: Any) -> str:
    try:
        limits = symbol.node.shape_env.var_to_range[symbol.node.expr]
        # Compared before it is converted: no upper bound is an infinity of sympy's, of which int() can make nothing.
        return f"{int(limits.lower)}..{int(limits.upper)}" if limits.upper < 2**31 else f"{int(limits.lower)}.."
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return "any"


def part_of(options: Mapping[str, Any]) -> str:
    """Which part of a function a graph is, by the options that ``_compile_fx_inner`` gets."""
    if options.get("is_backward"):
        return "backward"
    return "inference" if options.get("is_inference") else "forward"
