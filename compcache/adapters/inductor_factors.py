"""The factors of what Inductor compiles, beside torch's own key, and the tag by which they enter that key.

torch's key (``FxGraphHashDetails``, torch/_inductor/codecache.py) has the graph, the inputs, Inductor's configuration
and torch's sources. It has neither the vector ISA nor the CPU's features, nor, before torch 2.10, the thread count.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compcache import environment
from compcache.adapters import host
from compcache.config import Settings
from compcache.factors import JsonValue, key_of

TAG = "compcache-"


@dataclass(frozen=True, slots=True)
class Reading:
    """The factors of this process as they are now, and their tag."""

    factors: Mapping[str, JsonValue]
    tag: str


@dataclass
class HostFactors:
    """Reads them: once what stays, at each lookup what a program can change."""

    settings: Settings
    _lasting: dict[str, JsonValue] = field(default_factory=dict)
    _readings: dict[tuple[Any, ...], Reading] = field(default_factory=dict)

    def read(self, torch: Any) -> Reading:
        """Raises FactorError if anything cannot be read."""
        if not self._lasting:
            self._lasting = self._read_lasting(torch)
        changing = {
            **environment.torch_factors(torch),
            **environment.isa_factors(torch),
            "cpu.threads": threads(torch),
            "device.ordinal": _ordinal(torch),
        }
        known = tuple(repr(value) for value in changing.values())
        if known not in self._readings:
            found = {**self._lasting, **_device(torch), **changing}
            self._readings[known] = Reading(found, TAG + key_of(found))
        return self._readings[known]

    def _read_lasting(self, torch: Any) -> dict[str, JsonValue]:
        # The environment as it is at the first compile: a script may set variables before it imports torch.
        variables = environment.variables(os.environ, {}, self.settings.key_ignore)
        return {
            **host.toolchain_factors(torch),
            **host.cpu_factors(torch),
            "environment": variables,
            **host.user_factors(self.settings),
        }


def threads(torch: Any) -> JsonValue:
    """The thread count, where C++ code bakes it in (``parallel_num_threads``, torch/_inductor/codegen/cpp.py)."""
    options = torch._inductor.config.cpp
    if options.dynamic_threads:
        return "dynamic"
    return int(options.threads) if options.threads >= 1 else int(torch.get_num_threads())


def _accelerator(torch: Any) -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _ordinal(torch: Any) -> JsonValue:
    """The current device: generated code can hold its number, and torch's key has it only for graphs without inputs."""
    return int(torch.cuda.current_device()) if _accelerator(torch) == "cuda" else None


def _device(torch: Any) -> dict[str, JsonValue]:
    return environment.device_factors(torch, _accelerator(torch))


def mode_name(torch: Any) -> str:
    """The mode in the words of ``torch.compile`` (``list_mode_options``, torch/_inductor/__init__.py)."""
    config = torch._inductor.config
    graphs = bool(config.triton.cudagraphs)
    if config.max_autotune or config.max_autotune_gemm:
        name = "max-autotune" if graphs else "max-autotune-no-cudagraphs"
    else:
        name = "reduce-overhead" if graphs else "default"
    return f"{name} freezing" if config.freezing else name
