"""The hooks of the Inductor adapter: where they sit, and what each needs to fit (torch 2.7 to 2.14).

Each ``hook_*`` takes the module that it changes and gives the reason why it does not fit, or an empty text.

* ``torch._inductor.remote_cache``: the classes of torch's remote caches get backends over the store, and are on.
* ``torch._inductor.codecache.FxGraphHashDetails.__init__``: torch's keys get compcache's factors, in every thread
  (torch's settings are a thread's own: ``user_override`` in torch/utils/_config_module.py is a ContextVar).
* ``GuardedCache.iterate_over_candidates`` and ``FxGraphCache.cache_hit_post_compile``
  (:mod:`compcache.adapters.inductor_lookup`): the store is asked before torch's own directory, which checks no digests,
  and for each of the programs that one key stands for; the kernels of a graph are served while it is loaded.
* ``FxGraphCache.prepare_key``: why torch caches a graph not at all.
* ``torch._inductor.compile_fx._compile_fx_inner``: one graph, from its lookup to its publication, in one thread.
* ``torch._dynamo.eval_frame.get_compiler_fn``: backends other than Inductor.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from compcache.adapters import inductor_lookup
from compcache.adapters.inductor_backend import Pickled, Plain
from compcache.adapters.inductor_factors import TAG
from compcache.adapters.inductor_names import part_of, shown_range
from compcache.adapters.inductor_programs import Choices, Compile, Graphs

if TYPE_CHECKING:
    from compcache.adapters.inductor import Adapter

CACHES = {
    "RemoteFxGraphCache": "graph",
    "RemoteAOTAutogradCache": "autograd",
    "RemoteAutotuneCache": "tuning",
    "RemoteBundledAutotuneCache": "tuning",
    "RemoteDynamoPGOCache": "profile",
}
"""torch's remote caches, and the kind of what each holds."""


def hook_remote(adapter: Adapter, module: Any) -> str:
    classes = {name: getattr(module, name, None) for name in CACHES}
    missing = [name for name, found in classes.items() if not hasattr(found, "backend_override_cls")]
    if missing:
        return f"torch._inductor.remote_cache has no {', '.join(missing)} whose backend can be chosen"
    for name, found in classes.items():
        backend = _backend(adapter, CACHES[name])
        adapter.replace(found, "backend_override_cls", staticmethod(lambda backend=backend: backend))
    switch_on(adapter)
    return ""


def _backend(adapter: Adapter, kind: str) -> Plain:
    if kind in ("graph", "autograd"):
        return Pickled(Graphs(adapter, kind))
    return (Pickled if kind == "profile" else Plain)(Choices(adapter, kind))


def switch_on(adapter: Adapter) -> None:
    """torch's switches, for all threads; what the user or a variable has switched off stays off."""
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config
    from torch.utils._triton import has_triton

    wanted = [
        (torch._inductor.config, "fx_graph_remote_cache"),
        (torch._functorch.config, "enable_remote_autograd_cache"),
        (torch._inductor.config, "autotune_remote_cache"),
        (torch._dynamo.config, "automatic_dynamic_remote_pgo"),
    ]
    if has_triton():  # without it, the bundle's key cannot be made: AutotuneCacheBundler.begin_compile asserts
        wanted.append((torch._inductor.config, "bundled_autotune_remote_cache"))
    for module, name in wanted:
        if getattr(module, name, False) is None:
            adapter.undo.append(functools.partial(preset, module, name, module._config[name].env_value_default))
            preset(module, name, True)
        elif not getattr(module, name, False):
            adapter.session.say(f"torch's {name} is switched off; what it would keep is not cached")


def preset(module: Any, name: str, value: Any) -> None:
    """Make ``value`` what a setting of torch's is in every thread that has not set it itself.

    ``_ConfigEntry.env_value_default`` (torch/utils/_config_module.py) ranks below what a thread sets.
    """
    module._config[name].env_value_default = value
    mark = getattr(module, "_mark_get_dict_dirty", None)
    if mark is not None:
        mark(name)


def hook_codecache(adapter: Adapter, module: Any) -> str:
    unfit = adapter.kernels.install(module)
    if unfit:
        return unfit
    adapter.undo.append(functools.partial(adapter.kernels.uninstall, module))
    unfit = inductor_lookup.hook(adapter, module)
    if unfit:
        return unfit
    _hook_key(adapter, module.FxGraphHashDetails)
    _hook_prepare(adapter, module, module.FxGraphCache)
    return ""


def _hook_key(adapter: Adapter, details: Any) -> None:
    original = details.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        tag = adapter.refresh_tag()
        original(self, *args, **kwargs)
        if adapter.here.plain:
            self.cache_key_tag = str(self.cache_key_tag).partition(TAG)[0]
        elif tag and tag not in str(self.cache_key_tag):  # a thread that has set a tag of its own
            self.cache_key_tag = f"{self.cache_key_tag}{tag}"

    adapter.replace(details, "__init__", __init__)


def _hook_prepare(adapter: Adapter, module: Any, graphs: Any) -> None:
    original = graphs.__dict__["prepare_key"].__func__
    here = adapter.here

    def plain_key(*inputs: Any) -> str:
        here.plain = True
        try:
            return str(module.compiled_fx_graph_hash(*inputs)[0])
        finally:
            here.plain = False

    @functools.wraps(original)
    def prepare_key(*args: Any, **kwargs: Any) -> Any:
        here.plain_key = functools.partial(plain_key, *args[:4]) if len(args) >= 4 else None
        result = original(*args, **kwargs)
        key, info = result
        if key is None:
            adapter.session.cannot_cache("a graph", str(info.get("cache_bypass_reason", "torch makes no key for it")))
        return result

    adapter.replace(graphs, "prepare_key", staticmethod(prepare_key))


def hook_compile(adapter: Adapter, module: Any) -> str:
    original = module._compile_fx_inner
    if list(inspect.signature(original).parameters)[:2] != ["gm", "example_inputs"]:
        return "torch's _compile_fx_inner takes other arguments"

    @functools.wraps(original)
    def _compile_fx_inner(gm: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        with adapter.compiling(_described(adapter, example_inputs, kwargs)):
            return original(gm, example_inputs, *args, **kwargs)

    adapter.replace(module, "_compile_fx_inner", _compile_fx_inner)
    return ""


def _described(adapter: Adapter, inputs: Any, options: dict[str, Any]) -> Compile:
    import torch

    part = part_of(options)
    shown = adapter.cache.guarded(
        "a range is unknown", lambda: shown_range(torch, inputs, options.get("static_input_idxs") or ()), "any"
    )
    return Compile(part, adapter.remember_range(shown, backward=part == "backward"))


def hook_backends(adapter: Adapter, module: Any) -> str:
    original = module.get_compiler_fn

    @functools.wraps(original)
    def get_compiler_fn(compiler_fn: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(compiler_fn, "compiler_name", compiler_fn)
        if compiler_fn is not None and name != "inductor":
            shown = name if isinstance(name, str) else getattr(name, "__qualname__", type(name).__qualname__)
            adapter.session.cannot_cache(f"what backend {shown} compiles", "compcache knows only Inductor's programs")
        return original(compiler_fn, *args, **kwargs)

    adapter.replace(module, "get_compiler_fn", get_compiler_fn)
    return ""


BY_MODULE: dict[str, Callable[[Adapter, Any], str]] = {
    "torch._inductor.remote_cache": hook_remote,
    "torch._inductor.codecache": hook_codecache,
    "torch._inductor.compile_fx": hook_compile,
    "torch._dynamo.eval_frame": hook_backends,
}
"""Which module gets which hook, once it is imported."""
