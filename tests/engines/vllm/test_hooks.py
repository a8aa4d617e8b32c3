"""A vLLM or torch whose internals moved: the adapter is off as a whole, with one line, and raises nothing."""

from __future__ import annotations

import types
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from compcache.adapters import vllm_hooks
from compcache.adapters.vllm import Adapter
from compcache.config import Settings
from compcache.session import Session


def adapter(tmp_path: Path) -> tuple[Adapter, list[str]]:
    said: list[str] = []
    return Adapter(Settings(tmp_path / "store", tmp_path / "state"), Session(say=said.append)), said


@pytest.mark.parametrize("hook", ["hook_names", "hook_load", "hook_wrapper", "hook_backends", "hook_serialize"])
def test_a_module_without_what_a_hook_needs(hook: str, tmp_path: Path) -> None:
    made, said = adapter(tmp_path)
    made._fits(partial(getattr(vllm_hooks, hook), made))(types.ModuleType("moved"))
    assert made.off
    assert len(said) == 1
    assert said[0].startswith("off, this vLLM or torch does not fit:")


def test_a_loader_with_other_arguments(tmp_path: Path) -> None:
    made, said = adapter(tmp_path)
    module = types.ModuleType("moved")
    module._try_load_aot_compiled_fn = lambda model, path, more: None  # type: ignore[attr-defined]
    made._fits(partial(vllm_hooks.hook_load, made))(module)
    assert made.off
    assert len(said) == 1


def test_the_kernels_seam_of_another_torch(tmp_path: Path) -> None:
    made, said = adapter(tmp_path)
    made._fits(made.kernels.install)(types.ModuleType("torch._inductor.codecache"))
    assert made.off
    assert len(said) == 1


def test_off_means_vllms_own_loader(tmp_path: Path) -> None:
    made, _ = adapter(tmp_path)
    made.off = "it does not fit"
    config = types.SimpleNamespace(parallel_config=types.SimpleNamespace(world_size=1, data_parallel_size=1))
    model = types.SimpleNamespace(vllm_config=config)
    assert made.load(lambda model, path: (model, path), model, "own", None) == (model, "own")
    assert not (tmp_path / "store").exists()


def test_a_group_of_ranks_is_left_alone_and_said_once(tmp_path: Path) -> None:
    made, said = adapter(tmp_path)
    config = types.SimpleNamespace(parallel_config=types.SimpleNamespace(world_size=2, data_parallel_size=1))
    model = types.SimpleNamespace(vllm_config=config)
    for _ in range(2):
        assert made.load(lambda model, path: path, model, "own", None) == "own"
    assert said == ["off: groups of more than one rank are not supported yet"]


def test_a_model_that_cannot_be_read_is_not_cached_and_vllms_own_file_is_set_aside(tmp_path: Path) -> None:
    made, said = adapter(tmp_path)
    own = tmp_path / "model"
    own.write_bytes(b"on a weaker key")
    config = types.SimpleNamespace(parallel_config=types.SimpleNamespace(world_size=1, data_parallel_size=1))
    model = types.SimpleNamespace(vllm_config=config)
    called: list[str] = []
    assert made.load(lambda model, path: called.append(path), model, str(own), None) is None
    assert not called
    assert not own.exists()
    assert (tmp_path / "model.set-aside").exists()
    assert len(said) == 1
