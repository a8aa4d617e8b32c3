"""The hooks of the vLLM adapter: where they sit, and what each needs to fit.

Each ``hook_*`` takes the module that it changes and gives the reason why it does not fit, or an empty text.

The hooks, in the order in which a start meets them (vLLM 0.32, torch 2.13):

* ``vllm.compilation.caching.aot_compile_hash_factors``: vLLM's own directory, and in it torch's local caches, are named
  by compcache's factors, so that they cannot hit on fewer (and vLLM's own, which take 0.6 s to hash, are not needed).
* ``vllm.compilation.decorators._try_load_aot_compiled_fn``: look into the store first; on a hit vLLM loads verified
  bytes from a private file, with kernels served; on a miss, vLLM's own file is set aside.
* ``vllm.compilation.wrapper.TorchCompileWithNoGuardsWrapper.aot_compile``: what is compiled, and for how long.
* ``vllm.compilation.backends.CompilerManager.compile`` and ``.compute_hash``: graphs before their first compile; and
  vLLM's own directory of graphs gets compcache's factors in its name, so that it cannot hit on less.
* ``torch._TorchCompileInductorWrapper.__call__``: the graph, where it is not split.
* ``VllmBackend.collect_standalone_compile_artifacts``, ``AOTCompiledFunction.serialize`` and
  ``BundledAOTAutogradSerializableCallable.serialize_compile_artifacts``: publish, before the compile call returns.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from compcache.adapters import startup, vllm_factors
from compcache.factors import key_of

if TYPE_CHECKING:
    from compcache.adapters.vllm import Adapter


def hook_names(adapter: Adapter, module: Any) -> str:
    original = module.aot_compile_hash_factors
    if list(inspect.signature(original).parameters) != ["vllm_config"]:
        return "vllm.compilation.caching.aot_compile_hash_factors takes other arguments"

    @functools.wraps(original)
    def aot_compile_hash_factors(vllm_config: Any) -> list[str]:
        if adapter.leaves_alone(vllm_config):
            return list(original(vllm_config))
        shared = adapter.cache.guarded("no factors", lambda: adapter.shared_factors(vllm_config), None)
        return (
            list(original(vllm_config))
            if shared is None
            else ["compcache", key_of(shared), vllm_factors.own_names(vllm_config)]
        )

    module.aot_compile_hash_factors = aot_compile_hash_factors
    return ""


def hook_load(adapter: Adapter, module: Any) -> str:
    original = getattr(module, "_try_load_aot_compiled_fn", None)
    if original is None or list(inspect.signature(original).parameters) != ["model", "aot_compilation_path"]:
        return "vllm.compilation.decorators has no _try_load_aot_compiled_fn(model, aot_compilation_path)"

    @functools.wraps(original)
    def _try_load_aot_compiled_fn(model: Any, aot_compilation_path: str) -> Any:
        adapter.check_hooks()
        return adapter.load(original, model, aot_compilation_path, _caller_arguments())

    module._try_load_aot_compiled_fn = _try_load_aot_compiled_fn
    return ""


def hook_wrapper(adapter: Adapter, module: Any) -> str:
    owner = module.TorchCompileWithNoGuardsWrapper
    original = owner.aot_compile

    @functools.wraps(original)
    def aot_compile(model: Any, *args: Any, **kwargs: Any) -> Any:
        return adapter.compile(lambda: original(model, *args, **kwargs))

    owner.aot_compile = aot_compile
    return ""


def hook_backends(adapter: Adapter, module: Any) -> str:
    manager, backend = module.CompilerManager, module.VllmBackend
    compile_one, compute_hash = manager.compile, manager.compute_hash
    collect = backend.collect_standalone_compile_artifacts
    signature = inspect.signature(compile_one)
    if not {"graph", "example_inputs", "compile_range", "graph_index"} <= signature.parameters.keys():
        return "vllm.compilation.backends.CompilerManager.compile takes other arguments"

    @functools.wraps(compile_one)
    def compile_graph(own: Any, *args: Any, **kwargs: Any) -> Any:
        if adapter.current is None:
            return compile_one(own, *args, **kwargs)
        call = signature.bind(own, *args, **kwargs)
        call.apply_defaults()
        return adapter.compile_graph(own, call.arguments, lambda: compile_one(own, *args, **kwargs))

    @functools.wraps(compute_hash)
    def hash_with_factors(own: Any, *args: Any, **kwargs: Any) -> str:
        token = str(compute_hash(own, *args, **kwargs))
        return token if adapter.current is None else f"{token} {adapter.current.factors.configuration_key}"

    @functools.wraps(collect)
    def collect_and_publish(own: Any) -> Any:
        result = collect(own)
        current = adapter.current
        if current is None or result[0] is None:
            return result
        current.holds_graphs = True
        if adapter.stores(current):
            adapter.cache.guarded(
                "graphs are not stored", lambda: adapter.publish_graphs(current, own, result[0]), None
            )
        return result

    manager.compile, manager.compute_hash = compile_graph, hash_with_factors
    backend.collect_standalone_compile_artifacts = collect_and_publish
    return ""


def hook_serialize(adapter: Adapter, module: Any) -> str:
    import torch

    owner, bundled = module.AOTCompiledFunction, module.BundledAOTAutogradSerializableCallable
    serialize = owner.__dict__["serialize"].__func__
    serialize_bundled = bundled.__dict__["serialize_compile_artifacts"].__func__
    wrapper = torch._TorchCompileInductorWrapper
    inductor_call = wrapper.__call__

    @functools.wraps(serialize)
    def serialize_and_publish(cls: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        current = adapter.current
        if current is None or current.compiled is not fn:
            return serialize(cls, fn, *args, **kwargs)
        return adapter.save(current, fn, lambda: serialize(cls, fn, *args, **kwargs))

    @functools.wraps(serialize_bundled)
    def serialize_whole(cls: Any, fn: Any) -> bytes:
        data: bytes = serialize_bundled(cls, fn)
        current = adapter.current
        whole = current is not None and getattr(getattr(current.compiled, "_artifacts", None), "compiled_fn", None)
        if current is None or whole is not fn:
            return data
        current.holds_graphs = True
        if not adapter.stores(current):
            return data
        return adapter.cache.guarded(
            "a graph is not stored", lambda: startup.publish_whole(adapter.cache, current, data), data
        )

    @functools.wraps(inductor_call)
    def observed(own: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:
        if adapter.current is not None:
            adapter.observe_whole(adapter.current, gm)
        return inductor_call(own, gm, *args, **kwargs)

    owner.serialize = classmethod(serialize_and_publish)
    bundled.serialize_compile_artifacts = classmethod(serialize_whole)
    wrapper.__call__ = observed
    return ""


BY_MODULE: dict[str, Callable[[Adapter, Any], str]] = {
    "vllm.compilation.wrapper": hook_wrapper,
    "vllm.compilation.caching": hook_names,
    "vllm.compilation.backends": hook_backends,
    "vllm.compilation.decorators": hook_load,
}
"""What the plugin watches (vllm_plugin.WATCHED), and which hook each gets."""


def _caller_arguments() -> tuple[Any, Any] | None:
    """The args and kwargs of the model's ``__call__``: two frames up, or more if others wrapped the loader too."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            break
        if frame.f_code.co_name == "__call__" and {"args", "kwargs"} <= frame.f_locals.keys():
            return frame.f_locals["args"], frame.f_locals["kwargs"]
        frame = frame.f_back
    return None
