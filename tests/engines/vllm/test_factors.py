"""What a start-up's factors see: scalars that Dynamo would bake in, parameters' shapes, not names of checkpoints."""

from __future__ import annotations

import json
import types

import pytest

pytest.importorskip("vllm")

import torch

from compcache.adapters.module_tree import described
from compcache.adapters.module_tree import digests as module_digests
from compcache.adapters.vllm_factors import _without_names, config_factors, own_names


def closure(value: object) -> object:
    def inner() -> object:
        return value

    return inner


class Scaled(torch.nn.Module):
    """Holds a Python scalar, as a layer does whose KV-cache scale came from a checkpoint."""

    def __init__(self, scale: float, width: int = 4, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.scale = scale
        self.inner = torch.nn.Linear(width, width, dtype=dtype)


def test_one_scalar_of_a_checkpoint_is_a_factor() -> None:
    assert module_digests(Scaled(0.5)) == module_digests(Scaled(0.5))
    assert module_digests(Scaled(0.5)) != module_digests(Scaled(0.5000001))


def test_an_integer_is_not_a_float() -> None:
    assert module_digests(Scaled(1)) != module_digests(Scaled(1.0))


def test_weights_are_no_factor_but_their_shapes_and_dtypes_are() -> None:
    one, other = Scaled(1.0), Scaled(1.0)
    with torch.no_grad():
        other.inner.weight.add_(1)
    assert module_digests(one) == module_digests(other)
    assert module_digests(one) != module_digests(Scaled(1.0, width=8))
    assert module_digests(one) != module_digests(Scaled(1.0, dtype=torch.bfloat16))


def test_lists_dicts_and_dtypes_of_a_module_count() -> None:
    def of(value: object) -> object:
        module = Scaled(1.0)
        module.extra = value  # type: ignore[assignment]
        return module_digests(module)

    values = [[1, 2], [1, 3], {"a": 1}, {"a": 2}, torch.bfloat16, torch.float16, "x", None, [], {}, [None], [[]]]
    values += [list(range(2000)), list(range(2001)), {"a": {"b": object()}}, {"a": {"b": [object()]}}, int, str]
    values += [torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(3, 2).t(), torch.zeros(2, 3, dtype=torch.int)]
    values += [closure(1), closure(2), lambda x: x + 1, lambda x: x + 2, closure(torch.zeros(2)), {1}, {2}, b"a", b"b"]
    digests = [json.dumps(of(value)) for value in values]
    assert len(set(digests)) == len(digests)


def test_circles_and_depth_end() -> None:
    circle: list[object] = []
    circle.append(circle)
    assert described(circle) == ["list", [["object", "builtins.list"]]]
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    json.dumps(described(deep))


def test_no_address_is_in_a_description() -> None:
    def made() -> object:
        return {"o": object(), "f": closure(object()), "l": [object()], "m": closure(1).__call__}

    assert described(made()) == described(made())


def test_vllms_parts_count_by_their_attributes() -> None:
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    class Method(QuantizeMethodBase):
        def __init__(self, bits: int) -> None:
            self.bits = [bits, None]

        def create_weights(self, layer: object, *args: object, **kwargs: object) -> None: ...

        def apply(self, layer: object, *args: object, **kwargs: object) -> torch.Tensor:
            return torch.zeros(1)

    Method.__module__ = "vllm.somewhere"
    assert described(Method(4)) == described(Method(4))
    assert described(Method(4)) != described(Method(8))


def test_vllms_own_directory_is_another_for_another_checkpoint() -> None:
    def config(model: str) -> object:
        kind = type("ModelConfig", (), {"model": model, "revision": None})
        return types.SimpleNamespace(model_config=kind(), load_config=None)

    assert own_names(config("a")) == own_names(config("a"))
    assert own_names(config("a")) != own_names(config("b"))


def test_names_of_a_checkpoint_are_left_out_of_its_config() -> None:
    one = {"hidden_size": 4, "_name_or_path": "a/b", "transformers_version": "5", "text": {"_name_or_path": "a"}}
    other = {"hidden_size": 4, "_name_or_path": "c/d", "transformers_version": "6", "text": {"_name_or_path": "b"}}
    assert _without_names(one) == _without_names(other) == {"hidden_size": 4, "text": {}}


def test_vllms_own_factors_are_kept_by_field() -> None:
    from vllm.config import VllmConfig

    found = config_factors(VllmConfig())
    assert "model_config" not in found or found["model_config"] is None
    assert found["cache_config"]["cache_dtype"] == "auto"
    assert isinstance(found["compilation_config"]["pass_config"], dict)
    json.dumps(found)
