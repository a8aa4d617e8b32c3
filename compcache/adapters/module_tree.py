"""What Dynamo can bake in from a tree of modules, as digests: a start-up runs without guards on any of it.

Every attribute of every module counts. Plain values count by value; functions by their code, defaults and what they
close over; tensors by dtype, shape and stride; vLLM's own objects (quantization methods, attention implementations) by
their attributes; anything else by its type, since its value could be an address or a path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import blake3

from compcache.factors import JsonValue, canonical

_SKIPPED = frozenset({"compiled", "first_compile", "was_aot_compile_fn_loaded_from_disk"})
_NOT_PARTS = ("vllm.config", "vllm.distributed", "vllm.compilation", "vllm.logger")
_DEPTH = 6


def digests(model: Any) -> dict[str, JsonValue]:
    """By class, a digest over its instances in the tree, with their places in it."""
    found: dict[str, list[Any]] = {}
    for path, module in model.named_modules():
        kind = _name(type(module))
        found.setdefault(kind, []).append([path, _attributes(module, 0, ()), _tensors(module)])
    return {kind: blake3.blake3(canonical(items)).hexdigest(length=16) for kind, items in sorted(found.items())}


def described(value: Any, depth: int = 0, above: tuple[int, ...] = ()) -> Any:
    """A plain, stable description of a value. ``above`` are the objects that it was reached by, against circles."""
    if value is None or isinstance(value, (bool, int, str)):
        return [type(value).__name__, str(value)]
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", blake3.blake3(bytes(value)).hexdigest(length=16)]
    if isinstance(value, type):
        return ["type", _name(value)]
    if depth >= _DEPTH or id(value) in above:
        return ["object", _name(type(value))]
    inner = (*above, id(value))
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [described(item, depth + 1, inner) for item in value]]
    if isinstance(value, (set, frozenset)):
        return ["set", sorted((described(item, depth + 1, inner) for item in value), key=canonical)]
    if isinstance(value, Mapping):
        items = [[described(key), described(item, depth + 1, inner)] for key, item in value.items()]
        return ["mapping", sorted(items, key=canonical)]
    if isinstance(value, MethodType):
        # Not what it is bound to: that is part of the tree, or an object that counts by its type.
        return ["method", _name(type(value.__self__)), _function(value.__func__, depth, inner)]
    if isinstance(value, FunctionType):
        return _function(value, depth, inner)
    if isinstance(value, BuiltinFunctionType):
        return ["builtin", str(value.__module__), value.__qualname__]
    if _is_tensor(value):
        return _tensor(value)
    if type(value).__module__ == "torch":  # dtype, device, memory_format, layout
        return [type(value).__name__, str(value)]
    if _is_part(value):
        return ["part", _name(type(value)), _attributes(value, depth + 1, inner)]
    return ["object", _name(type(value))]


def _function(value: Any, depth: int, above: tuple[int, ...]) -> Any:
    code = getattr(value, "__code__", None)
    if code is None:
        return ["callable", _name(type(value))]
    closed = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    defaults = [value.__defaults__, value.__kwdefaults__]
    return [
        "function",
        f"{value.__module__}.{value.__qualname__}",
        _code(code),
        [described(item, depth + 1, above) for item in (*closed, *defaults)],
    ]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


def _code(code: CodeType) -> str:
    """A digest of byte code, constants and names, those of inner functions too; not of the file it is from."""
    constants = [_code(c) if isinstance(c, CodeType) else described(c) for c in code.co_consts]
    text = canonical([code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)])
    return blake3.blake3(text).hexdigest(length=16)


def _attributes(owner: Any, depth: int, above: tuple[int, ...]) -> dict[str, Any]:
    names: Iterable[tuple[str, Any]] = sorted(getattr(owner, "__dict__", {}).items())
    return {
        name: described(value, depth, (*above, id(owner)))
        for name, value in names
        if name not in _SKIPPED and not name.startswith(("_compcache", "_parameters", "_buffers", "_modules"))
    }


def _is_part(value: Any) -> bool:
    """vLLM's own objects that hang on a module and steer its forward; modules have their own place in the tree."""
    module = type(value).__module__
    return (
        module.startswith("vllm.")
        and not module.startswith(_NOT_PARTS)
        and hasattr(value, "__dict__")
        and not hasattr(value, "named_modules")
    )


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "stride")


def _tensor(value: Any) -> Any:
    stride = [int(step) for step in value.stride()]
    return [_name(type(value)), str(value.dtype), [int(size) for size in value.shape], stride, str(value.device)]


def _tensors(module: Any) -> dict[str, Any]:
    groups = {"parameter": module._parameters, "buffer": module._buffers}
    return {
        f"{kind} {name}": None if tensor is None else _tensor(tensor)
        for kind, group in groups.items()
        for name, tensor in group.items()
    }


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
