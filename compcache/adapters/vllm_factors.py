"""The factors of a vLLM start-up: what its programs depend on, by name.

vLLM's own keys are two opaque hashes; here the same facts are kept apart. Each configuration object has a
``compute_hash`` (vllm/config/*.py, vLLM 0.28 to 0.32) that collects its factors and hashes them with ``hash_factors``;
what goes into that call is recorded. A start-up runs without guards (vllm/compilation/wrapper.py drops them), so that
anything that Dynamo could have baked in is a factor too: scalars of every module, and names, shapes and dtypes of its
parameters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import blake3

from compcache import environment
from compcache.adapters import graph, host, module_tree
from compcache.adapters.torch_settings import changed_settings, settings_digest
from compcache.config import Settings
from compcache.errors import FactorError
from compcache.factors import Factors, JsonValue, canonical, plain

NOT_FACTORS: Mapping[str, frozenset[str]] = {
    # Names of a checkpoint and where it is: two fine-tunes of one architecture share their programs.
    "ModelConfig": frozenset(
        {"model", "model_weights", "revision", "code_revision", "hf_token", "generation_config"}
        | {"override_generation_config", "hf_config_path", "served_model_name", "hf_image_processor_config"}
    ),
    "LoadConfig": frozenset({"download_dir", "ignore_patterns", "use_tqdm_on_load", "model_loader_extra_config"}),
}
"""Fields that vLLM hashes and that are in no key here, by configuration class."""

HF_NOT_FACTORS = frozenset({"_name_or_path", "name_or_path", "transformers_version", "_commit_hash"})
"""Fields of a Hugging Face config that name the checkpoint or its writer."""

_ENGINE_FOLDERS = ("compilation", "ir", "model_executor/kernels")


def startup_factors(model: Any, arguments: tuple[Any, Any] | None, shared: Mapping[str, JsonValue]) -> Factors:
    """The factors of the start-up of one compiled part of a model, beside the ``shared`` ones.

    ``arguments`` are the args and kwargs of its first call. Raises FactorError if anything cannot be read.
    """
    config = model.vllm_config
    own: dict[str, JsonValue] = {
        "part": str(getattr(model, "_compile_tag", "") or "model"),
        "forward": _forward(model),
        "model.modules": module_tree.digests(model),
        "parallel.rank": _ranks(config),
    }
    if arguments is None:
        raise FactorError("the arguments of the model's first call cannot be read")
    args, kwargs = arguments
    own["inputs"] = {"args": _observed(list(args)), "kwargs": _observed(dict(kwargs))}
    return Factors(shared, own)


def shared_factors(config: Any, settings: Settings, inherited: Mapping[str, str]) -> dict[str, JsonValue]:
    """What all programs of the configuration share. ``inherited`` are the environment's variables."""
    import torch

    found = host.toolchain_factors(torch)
    found["vllm.version"] = environment.module_version("vllm")
    found["vllm.source"] = engine_digest()
    found["vllm.plugins"] = plugin_digests()
    found["vllm.passes"] = _pass_manager()
    found.update(environment.device_factors(torch, str(config.device_config.device_type)))
    found.update(host.cpu_factors(torch))
    found["cpu.threads"] = _threads(torch, config)
    for name, module in (
        ("inductor", torch._inductor.config),
        ("functorch", torch._functorch.config),
        ("dynamo", torch._dynamo.config),
    ):
        found[f"torch.{name}"] = changed_settings(module)
        found[f"torch.{name}.digest"] = settings_digest(module)
    found["environment"] = _variables(settings, inherited)
    found["config"] = config_factors(config)
    found.update(host.user_factors(settings))
    return found


def _variables(settings: Settings, inherited: Mapping[str, str]) -> dict[str, JsonValue]:
    """vLLM's variables as it resolves them. What its compile_factors leaves out counts as inherited: its list has
    VLLM_CPU_MOE_PREPACK and the like, so compcache has one of its own (environment.EXCLUDED)."""
    import vllm.envs

    resolved = dict(vllm.envs.compile_factors())
    return environment.variables(inherited, json.loads(json.dumps(resolved)), settings.key_ignore)


def _threads(torch: Any, config: Any) -> JsonValue:
    """The thread count, where code bakes it in: unless Inductor's ``cpp.dynamic_threads`` is on."""
    options = getattr(config.compilation_config, "inductor_compile_config", {}) or {}
    dynamic = options.get("cpp.dynamic_threads", torch._inductor.config.cpp.dynamic_threads)
    return "dynamic" if dynamic else int(torch.get_num_threads())


def _ranks(config: Any) -> list[int]:
    parallel = config.parallel_config
    return [int(parallel.rank), int(getattr(parallel, "data_parallel_index", 0))]


def _forward(model: Any) -> dict[str, JsonValue]:
    function = model.forward
    return {"name": f"{type(model).__module__}.{function.__qualname__}", "line": function.__code__.co_firstlineno}


def _observed(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _fixed(value) for name, value in values.items()}
    return [_fixed(value) for value in values]


def _fixed(value: Any) -> Any:
    """An input without its first dimension, which vLLM marks dynamic: the profile run's size is no part of it."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return [str(value.dtype), len(value.shape), [int(size) for size in value.shape[1:]], str(value.device)]
    tensors = getattr(value, "tensors", None)
    if isinstance(tensors, dict):
        return {name: _fixed(item) for name, item in tensors.items()}
    return graph.described(value)


# vLLM's configuration


_recording = threading.Lock()


def config_factors(config: Any) -> dict[str, JsonValue]:
    """The engine's own factors, by configuration class and field, minus NOT_FACTORS."""
    result: dict[str, JsonValue] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name, None)
        if callable(getattr(value, "compute_hash", None)):
            result[item.name] = _hashed_fields(value)
        elif item.name == "additional_config":
            # By digest: it may hold anything, a secret too.
            result[item.name] = blake3.blake3(canonical(plain(value or {}, item.name))).hexdigest(length=16)
        elif item.name == "quant_config":
            result[item.name] = None if value is None else module_tree.described(value)
    return result


def own_names(config: Any) -> str:
    """What vLLM's own key has and compcache's has not (NOT_FACTORS), for the name of vLLM's own directory.

    A start-up whose factors cannot be read is left to vLLM: its file must not be found on less than without compcache.
    """
    found = [(kind, name) for kind, names in sorted(NOT_FACTORS.items()) for name in sorted(names)]
    owners = {type(value).__name__: value for value in (config.model_config, config.load_config)}
    return json.dumps([[kind, name, str(getattr(owners.get(kind), name, None))] for kind, name in found])


def _hashed_fields(config: Any) -> JsonValue:
    """What ``config.compute_hash`` gives to ``hash_factors``; its hash, where it uses something else."""
    with _recording, _recorded() as calls:
        token = config.compute_hash()
    # Nested configurations are hashed first, and their hash is a field of the outer one: give the fields back.
    inner = dict(calls[:-1])
    if not calls or calls[-1][0] != token:
        return str(token)
    skipped = NOT_FACTORS.get(type(config).__name__, frozenset())
    outer = calls[-1][1]
    outer = {n: inner.get(v, v) if isinstance(v, str) else v for n, v in outer.items()}
    return {str(name): _field(name, value) for name, value in outer.items() if name not in skipped}


@contextlib.contextmanager
def _recorded() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Record what this thread hands to ``hash_factors`` of ``vllm.config``, with the hash that it gives."""
    import vllm.config.utils as source

    original = source.hash_factors
    calls: list[tuple[str, dict[str, Any]]] = []
    thread = threading.get_ident()

    def hash_factors(items: dict[str, Any]) -> str:
        token = str(original(items))
        if threading.get_ident() == thread:
            calls.append((token, dict(items)))
        return token

    users = [m for n, m in list(sys.modules.items()) if n.startswith("vllm.config") and m is not None]
    users = [m for m in users if m.__dict__.get("hash_factors") is original]
    for module in users:
        module.hash_factors = hash_factors  # type: ignore[attr-defined]
    try:
        yield calls
    finally:
        for module in users:
            module.hash_factors = original  # type: ignore[attr-defined]


def _field(name: str, value: Any) -> JsonValue:
    if name.startswith("hf_") and isinstance(value, str) and value.startswith("{"):
        with contextlib.suppress(ValueError):
            return _without_names(json.loads(value))
    return json.loads(json.dumps(value))


def _without_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_names(item) for key, item in value.items() if key not in HF_NOT_FACTORS}
    if isinstance(value, list):
        return [_without_names(item) for item in value]
    return value


# The engine's code


def engine_digest() -> dict[str, JsonValue]:
    """Digests of the parts of vLLM that shape programs without being traced: its compiler, passes and kernels."""
    import vllm

    root = Path(vllm.__file__).parent
    return {name: environment.folder_digest(root / name) for name in _ENGINE_FOLDERS if (root / name).is_dir()}


def plugin_digests() -> dict[str, JsonValue]:
    """The vLLM plugins that are loaded here (other than compcache), by all sources of their packages."""
    from importlib.metadata import entry_points

    import vllm.envs

    allowed = vllm.envs.VLLM_PLUGINS
    result: dict[str, JsonValue] = {}
    for group in ("vllm.general_plugins", "vllm.platform_plugins"):
        for point in entry_points(group=group):
            if point.module.split(".")[0] == "compcache" or (allowed is not None and point.name not in allowed):
                continue
            package = point.module.partition(".")[0]
            # vLLM's own plugins are small modules beside the whole of vLLM, whose sources are factors elsewhere.
            own = package == "vllm"
            digest = environment.module_digest(point.module) if own else environment.package_digest(package)
            result[f"{group}:{point.value}"] = digest
    return result


def _pass_manager() -> JsonValue:
    """The post-grad pass manager that the platform chose, and its source."""
    from vllm.platforms import current_platform

    name = str(current_platform.get_pass_manager_cls())
    return {name: environment.module_digest(name.rpartition(".")[0])}


# For people


def display(model: Any) -> dict[str, JsonValue]:
    """What ``ls`` shows of a configuration; nothing is decided by it."""
    import torch

    config = model.vllm_config
    hf = config.model_config.hf_text_config
    parallel = config.parallel_config
    sizes = "x".join(str(v) for v in (getattr(hf, "num_hidden_layers", "?"), getattr(hf, "hidden_size", "?")))
    architecture = (getattr(config.model_config.hf_config, "architectures", None) or [type(model).__name__])[0]
    device = str(config.device_config.device_type)
    isa = str(torch.backends.cpu.get_cpu_capability()).lower()
    return {
        "model": f"{architecture} {sizes}",
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "quantization": str(config.model_config.quantization or "none"),
        "parallel": f"tp{parallel.tensor_parallel_size} pp{parallel.pipeline_parallel_size}",
        "engine": f"vllm {environment.module_version('vllm')}",
        "toolchain": f"torch {torch.__version__}",
        "hardware": f"cpu {isa}" if device == "cpu" else str(environment.device_factors(torch, device)["device.name"]),
        "mode": str(getattr(config.compilation_config.mode, "name", config.compilation_config.mode)),
        "part": str(getattr(model, "_compile_tag", "") or "model"),
        "rank": _ranks(config)[0],
    }
