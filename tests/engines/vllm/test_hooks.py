"""A vLLM or torch whose internals moved: the adapter is off as a whole, with one line, and raises nothing."""

from __future__ import annotations

import importlib
import types
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from compcache import environment
from compcache.adapters import vllm_hooks
from compcache.adapters.own_file import vouch
from compcache.adapters.startup import StartUp
from compcache.adapters.vllm import Adapter
from compcache.adapters.vllm_plugin import WATCHED
from compcache.config import Settings
from compcache.errors import RequiredMiss
from compcache.factors import Factors
from compcache.session import Session


def adapter(tmp_path: Path, mode: str = "rw") -> tuple[Adapter, list[str]]:
    said: list[str] = []
    return Adapter(Settings(tmp_path / "store", tmp_path / "state", mode), Session(say=said.append)), said


@pytest.mark.parametrize("hook", ["hook_names", "hook_load", "hook_wrapper", "hook_backends", "hook_serialize"])
def test_a_module_without_what_a_hook_needs(hook: str, tmp_path: Path) -> None:
    made, said = adapter(tmp_path)
    made._fits("moved", partial(getattr(vllm_hooks, hook), made))(types.ModuleType("moved"))
    assert made.off
    assert len(said) == 1
    assert said[0].startswith("off, this vLLM or torch does not fit:")


def test_a_loader_with_other_arguments(tmp_path: Path) -> None:
    made, said = adapter(tmp_path)
    module = types.ModuleType("moved")
    module._try_load_aot_compiled_fn = lambda model, path, more: None  # type: ignore[attr-defined]
    made._fits("moved", partial(vllm_hooks.hook_load, made))(module)
    assert made.off
    assert len(said) == 1


def test_the_kernels_seam_of_another_torch(tmp_path: Path) -> None:
    made, said = adapter(tmp_path)
    made._fits("moved", made.kernels.install)(types.ModuleType("torch._inductor.codecache"))
    assert made.off
    assert len(said) == 1


def test_a_module_that_no_start_imports_any_more(tmp_path: Path) -> None:
    """vLLM moved it: its hook was never asked whether it fits, and a start without it must not be half a start."""
    made, said = adapter(tmp_path)
    for name in WATCHED:
        if name != "vllm.compilation.caching":
            module = types.ModuleType(name)
            made._fits(name, lambda module: "")(module)
    found = types.ModuleType("vllm.compilation.decorators")
    found._try_load_aot_compiled_fn = lambda model, aot_compilation_path: aot_compilation_path  # type: ignore[attr-defined]
    made.hook(found)
    model = types.SimpleNamespace(vllm_config=ranks())
    assert found._try_load_aot_compiled_fn(model, "own") == "own"
    assert said == ["off, this vLLM or torch does not fit: vllm.compilation.caching is not imported at a start-up"]


def test_the_plugin_watches_every_module_that_has_a_hook() -> None:
    assert set(WATCHED) == set(vllm_hooks.BY_MODULE)


def test_off_means_vllms_own_loader(tmp_path: Path) -> None:
    made, _ = adapter(tmp_path)
    made.off = "it does not fit"
    model = types.SimpleNamespace(vllm_config=ranks())
    assert made.load(lambda model, path: (model, path), model, "own", None) == (model, "own")
    assert not (tmp_path / "store").exists()


def test_a_group_of_ranks_is_left_alone_and_said_once(tmp_path: Path) -> None:
    made, said = adapter(tmp_path)
    model = types.SimpleNamespace(vllm_config=ranks(2))
    for _ in range(2):
        assert made.load(lambda model, path: path, model, "own", None) == "own"
    assert said == ["off: groups of more than one rank are not supported yet"]


def ranks(world_size: int = 1, backend: str = "inductor") -> types.SimpleNamespace:
    """A vLLM configuration, as far as one decides by it whether it is left alone."""
    return types.SimpleNamespace(
        parallel_config=types.SimpleNamespace(world_size=world_size, data_parallel_size=1),
        compilation_config=types.SimpleNamespace(backend=backend),
    )


def test_a_model_that_cannot_be_read_is_left_to_vllm_and_its_own_file(tmp_path: Path) -> None:
    made, said = adapter(tmp_path)
    own = tmp_path / "model"
    own.write_bytes(b"vLLM's")
    model = types.SimpleNamespace(vllm_config=ranks())
    assert made.load(lambda model, path: path, model, str(own), None) == str(own)
    assert own.exists()
    assert len(said) == 1


def test_a_backend_that_compiles_nothing_is_left_alone(tmp_path: Path) -> None:
    made, said = adapter(tmp_path)
    model = types.SimpleNamespace(vllm_config=ranks(backend="eager"))
    for _ in range(3):
        assert made.load(lambda model, path: path, model, "own", None) == "own"
    assert not said
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("why", ["off", "ranks", "factors"])
def test_require_is_an_error_whatever_the_reason(tmp_path: Path, why: str) -> None:
    made, _ = adapter(tmp_path, mode="require")
    made.off = "it does not fit" if why == "off" else ""
    model = types.SimpleNamespace(vllm_config=ranks(2 if why == "ranks" else 1))
    with pytest.raises(RequiredMiss, match="COMPCACHE_MODE=require"):
        made.load(lambda model, path: path, model, "own", None)


class Current:
    """A start-up whose factors are known, at which nothing is stored."""

    def __init__(self, made: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
        factors = Factors({"model.name": "m"}, {"part": "model"})
        self.startup = StartUp(factors, {})
        monkeypatch.setattr(made, "_begin", lambda model, arguments: self.startup)
        self.model = types.SimpleNamespace(vllm_config=ranks())


def test_a_miss_sets_a_file_aside_that_nobody_vouches_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = adapter(tmp_path)
    current = Current(made, monkeypatch)
    own = tmp_path / "model"
    own.write_bytes(b"on a weaker key")
    assert made.load(lambda model, path: path, current.model, str(own), None) is None
    assert not own.exists()
    assert (tmp_path / "model.set-aside").exists()
    made._finish()


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_what_could_not_be_published_is_loaded_from_vllms_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    made, said = adapter(tmp_path, mode=mode)
    current = Current(made, monkeypatch)
    own = tmp_path / "model"
    own.write_bytes(b"saved by vLLM")
    vouch(made.settings.state, current.startup, b"saved by vLLM", ["compcache.errors"])
    loaded = made.load(lambda model, path: Path(path).read_bytes(), current.model, str(own), None)
    assert loaded == b"saved by vLLM"
    assert own.exists()
    assert any("vouches" in line for line in said)


@pytest.mark.parametrize("change", ["bytes", "sources", "factors", "record"])
def test_vllms_own_file_is_vouched_for_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    made, _ = adapter(tmp_path, mode="ro")
    current = Current(made, monkeypatch)
    own = tmp_path / "model"
    own.write_bytes(b"other bytes" if change == "bytes" else b"saved by vLLM")
    startup = current.startup
    if change == "factors":
        startup = StartUp(Factors({"model.name": "m"}, {"part": "another"}), {})
    vouch(made.settings.state, startup, b"saved by vLLM", ["compcache.errors"])
    if change == "sources":
        monkeypatch.setattr(environment, "module_digest", lambda name: "edited")
    if change == "record":
        for record in (made.settings.state / "own").iterdir():
            record.write_text("[")
    assert made.load(lambda model, path: path, current.model, str(own), None) is None
    assert (tmp_path / "model.set-aside").exists()


def test_forcing_a_load_keeps_its_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = adapter(tmp_path)
    current = Current(made, monkeypatch)
    monkeypatch.setenv("VLLM_FORCE_AOT_LOAD", "1")

    def original(model: object, path: str) -> object:
        raise FileNotFoundError(path)

    with pytest.raises(FileNotFoundError):
        made.load(original, current.model, str(tmp_path / "model"), None)
    made._finish()


NEEDED = {
    "hook_names": ("vllm.compilation.caching", ["aot_compile_hash_factors"]),
    "hook_load": ("vllm.compilation.decorators", ["_try_load_aot_compiled_fn"]),
    "hook_wrapper": ("vllm.compilation.wrapper", ["TorchCompileWithNoGuardsWrapper.aot_compile"]),
    "hook_backends": (
        "vllm.compilation.backends",
        [
            "CompilerManager.compile",
            "CompilerManager.compute_hash",
            "VllmBackend.collect_standalone_compile_artifacts",
        ],
    ),
    "hook_serialize": (
        "torch._dynamo.aot_compile",
        ["AOTCompiledFunction.serialize", "BundledAOTAutogradSerializableCallable.serialize_compile_artifacts"],
    ),
}


@pytest.mark.parametrize(
    ("hook", "module", "name"),
    [(hook, module, name) for hook, (module, names) in NEEDED.items() for name in names],
)
def test_each_thing_that_a_hook_needs_may_be_gone(tmp_path: Path, hook: str, module: str, name: str) -> None:
    """A copy of the real module, without that one name: off, one line, nothing raised, nothing half hooked."""
    real = importlib.import_module(module)
    moved = types.ModuleType(module)
    vars(moved).update({n: v for n, v in vars(real).items() if not n.startswith("__")})
    owner, _, attribute = name.rpartition(".")
    if owner:
        kind = getattr(real, owner)
        kept = {n: v for n, v in vars(kind).items() if n not in (attribute, "__dict__", "__weakref__")}
        setattr(moved, owner, type(owner, (), kept))
    else:
        delattr(moved, attribute)
    made, said = adapter(tmp_path)
    made._fits("moved", partial(getattr(vllm_hooks, hook), made))(moved)
    assert made.off, name
    assert len(said) == 1
