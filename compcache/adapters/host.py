"""The factors of host and toolchain that every adapter over torch shares; see :mod:`compcache.environment` for each."""

from __future__ import annotations

from typing import Any

from compcache import environment
from compcache.config import Settings
from compcache.factors import JsonValue


def toolchain_factors(torch: Any) -> dict[str, JsonValue]:
    """Python, the C and C++ libraries, torch, Triton."""
    return {
        **environment.python_factors(),
        **environment.libc_factors(),
        **environment.torch_factors(torch),
        "triton.version": environment.module_version("triton"),
    }


def cpu_factors(torch: Any) -> dict[str, JsonValue]:
    """The CPU that kernels are built for: vector ISA with its sub-flags, and features (``-march=native``)."""
    features = {name: value for name, value in environment.cpu_factors().items() if name != "cpu.model"}
    return {**environment.isa_factors(torch), **features}


def user_factors(settings: Settings) -> dict[str, JsonValue]:
    """What the user left out of keys, or put into them."""
    found: dict[str, JsonValue] = {}
    if settings.key_ignore:
        found["compcache.key_ignore"] = list(settings.key_ignore)
    if settings.key_extra:
        found["compcache.key_extra"] = settings.key_extra
    return found


def isa_doubt(torch: Any) -> str:
    """The ISA in the factors was predicted without a compiler; now that there was one, why it is another, if it is."""
    from torch._inductor import cpu_vec_isa

    predicted = environment.predicted_isa(torch, map(str, cpu_vec_isa.supported_vec_isa_list))
    actual = str(cpu_vec_isa.pick_vec_isa())
    return f"Inductor built for {actual}, where {predicted} was expected" if predicted and predicted != actual else ""
