"""The identity of an FX graph, taken before anything changes it.

vLLM donates its graphs to the first compile, and passes mutate them: a digest taken later would depend on the order
of ranges. What is digested is the graph itself: operators, arguments, and the type, dtype, shape, stride and device of
every value. Names of nodes and symbols are replaced by their order, so that equal layers give equal digests.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import blake3

from compcache.errors import FactorError
from compcache.factors import canonical

_SYMBOL = re.compile(r"\b([su]|zuf|zf)\d+\b")


class _Names:
    """Renames nodes and symbols by the order in which they are first seen."""

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._symbols: dict[str, str] = {}

    def node(self, name: str) -> str:
        return self._nodes.setdefault(name, f"%{len(self._nodes)}")

    def symbolic(self, text: str) -> str:
        return _SYMBOL.sub(lambda m: self._symbols.setdefault(m[0], f"{m[1]}_{len(self._symbols)}"), text)


def graph_digest(graph: Any) -> str:
    """Digest of a ``torch.fx.GraphModule``, 32 hexadecimal digits.

    Raises FactorError for what has no stable identity: a value that is neither plain, a node, an operator, nor a
    nested graph.
    """
    names = _Names()
    lines = [_node(node, names, graph) for node in graph.graph.nodes]
    return blake3.blake3(canonical(lines)).hexdigest(length=16)


def _node(node: Any, names: _Names, owner: Any) -> list[Any]:
    target: Any = node.op
    if node.op in ("call_function", "call_method", "call_module"):
        target = _target(node.target)
    elif node.op == "get_attr":
        target = _attribute(owner, str(node.target))
    value = node.meta.get("example_value", node.meta.get("val"))
    return [
        node.op,
        names.node(node.name),
        target,
        _argument(node.args, names),
        _argument(node.kwargs, names),
        described(value, names),
    ]


def _target(target: Any) -> str:
    if isinstance(target, str):
        return target
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    text = str(target)
    if text and " at 0x" not in text and not text.startswith("<"):
        return text  # operators of torch.ops say their overload
    if name and "<locals>" not in name and "<lambda>" not in name:
        return f"{getattr(target, '__module__', '')}.{name}"
    raise FactorError(f"a graph calls {text}, which has no stable name")


def _attribute(owner: Any, path: str) -> Any:
    value = owner
    for part in path.split("."):
        value = getattr(value, part)
    if hasattr(value, "graph"):
        return graph_digest(value)
    if hasattr(value, "dtype"):
        # A constant tensor is part of the program, with its values.
        return [described(value, _Names()), values_digest(value)]
    raise FactorError(f"a graph holds {path}, a {type(value).__name__}, which has no stable identity")


def values_digest(tensor: Any) -> str:
    """Digest of a tensor's values, 32 hexadecimal digits. Raises FactorError if it has none that can be read."""
    if not hasattr(tensor, "data_ptr"):
        raise FactorError(f"a {type(tensor).__name__} has no stable identity")
    values = tensor.detach().cpu().contiguous()
    raw = ctypes.string_at(values.data_ptr(), values.numel() * values.element_size()) if values.numel() else b""
    return blake3.blake3(raw).hexdigest(length=16)


def _argument(value: Any, names: _Names) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _argument(item, names) for key, item in value.items()}
    if isinstance(value, slice):
        return ["slice", *(_argument(part, names) for part in (value.start, value.stop, value.step))]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_argument(item, names) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if value is Ellipsis:
        return ["ellipsis"]
    if isinstance(value, float):
        return ["float", value.hex()]  # infinities and NaN too
    kind = type(value)
    if kind.__module__.startswith("torch.fx") and hasattr(value, "op"):
        return ["node", names.node(value.name)]
    if kind.__module__.startswith("torch") and not hasattr(value, "storage"):
        return [kind.__qualname__, names.symbolic(str(value))]
    if callable(value):
        return ["callable", _target(value)]
    raise FactorError(f"a graph has an argument of type {kind.__module__}.{kind.__qualname__}")


def described(value: Any, names: _Names | None = None) -> Any:
    """What a compiler knows of a value: dtype, shape with symbols by order, stride and device of a tensor."""
    names = names or _Names()
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        stride = value.stride() if callable(getattr(value, "stride", None)) else ()
        return [
            str(value.dtype),
            [names.symbolic(str(size)) for size in value.shape],
            [names.symbolic(str(step)) for step in stride],
            str(getattr(value, "device", "")),
            bool(getattr(value, "requires_grad", False)),
        ]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, Mapping):
        return {str(key): described(item, names) for key, item in value.items()}
    if isinstance(value, Iterable) and isinstance(value, Sequence):
        return [described(item, names) for item in value]
    return [type(value).__qualname__, names.symbolic(str(value)) if " at 0x" not in str(value) else ""]


def is_symbolic(values: Sequence[Any]) -> bool:
    """Whether any input is a symbol or has one in its shape: False for a graph that was specialised to constants."""
    return any(hasattr(v, "node") or any(hasattr(s, "node") for s in getattr(v, "shape", ())) for v in values)


def inputs(values: Sequence[Any]) -> list[Any]:
    """The observed inputs of a graph, for its factors: see :func:`described`."""
    names = _Names()
    return [described(value, names) for value in values]
