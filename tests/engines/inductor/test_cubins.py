"""Triton's kernels travel with their graph: real ones, compiled for a GPU that is not here and cannot launch them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compcache.adapters.inductor_factors import HostFactors
from compcache.config import Settings, load

CUBINS = Path(__file__).with_name("cubins.py")


def test_another_machine_has_each_devices_kernels_and_compiles_none(machine: Callable) -> None:
    pytest.importorskip("triton")
    cold = machine("one").run("cubins", script=CUBINS)
    assert cold.counts == (0, 1)
    assert cold["compiles"] == 2
    warm = machine("other", compilers=False).run("cubins", script=CUBINS)
    assert warm.counts == (1, 0)
    assert (warm["compiles"], warm.compilers, warm["faults"]) == (0, (), {})
    assert warm["bits"] == cold["bits"]
    assert warm["cubins"] == cold["cubins"]
    assert warm["files"] == cold["files"]
    assert all(any(name.endswith(".cubin") for name in files) for files in warm["files"])


class Gpu:
    """A GPU as torch describes it."""

    def __init__(self, **other: Any) -> None:
        self.ordinal = other.pop("ordinal", 0)
        known = {"name": "NVIDIA H200", "major": 9, "minor": 0, "total_memory": 150 << 30, "multi_processor_count": 132}
        self.properties = SimpleNamespace(**{**known, **other})

    def put_in(self, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.ordinal)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: self.properties)


def tag(torch: Any, settings: Settings) -> str:
    return HostFactors(settings).read(torch).tag


@pytest.mark.parametrize(
    "other",
    [
        {"ordinal": 1},
        {"name": "NVIDIA H100"},
        {"major": 10},
        {"minor": 1},
        {"multi_processor_count": 114},
        {"total_memory": 80 << 30},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_gpu_has_another_key(other: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import torch._inductor.config

    settings = load({})
    Gpu().put_in(torch, monkeypatch)
    one = tag(torch, settings)
    assert tag(torch, settings) == one
    Gpu(**other).put_in(torch, monkeypatch)
    assert tag(torch, settings) != one


def test_the_current_gpu_is_read_at_each_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import torch._inductor.config

    factors = HostFactors(load({}))
    Gpu().put_in(torch, monkeypatch)
    first = factors.read(torch).tag
    Gpu(ordinal=1).put_in(torch, monkeypatch)
    assert factors.read(torch).tag != first
    Gpu().put_in(torch, monkeypatch)
    assert factors.read(torch).tag == first
