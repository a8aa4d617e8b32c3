"""``compcache import``: what it says of folders, without an engine; tests/engines/inductor has the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Run = Callable[..., Result]


@pytest.mark.parametrize("option", ["--from-inductor", "--from-vllm"])
def test_a_folder_of_something_else(run: Run, tmp_path: Path, option: str) -> None:
    if option == "--from-inductor":
        pytest.importorskip("torch")
    done = run("import", option, str(tmp_path))
    assert done.exit_code == 1
    assert "is not a directory of" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--from-inductor", "a", "--from-vllm", "b"]])
def test_one_folder_at_a_time(run: Run, arguments: list[str]) -> None:
    done = run("import", *arguments)
    assert done.exit_code == 2
    assert "name one directory" in done.stderr


@pytest.mark.parametrize("mode", ["ro", "off"])
def test_a_mode_that_stores_nothing(run: Run, tmp_path: Path, mode: str) -> None:
    done = run("import", "--from-inductor", str(tmp_path), COMPCACHE_MODE=mode)
    assert done.exit_code == 2
    assert "--dry-run" in done.stderr


def test_all_of_vllms_is_left_with_the_reason(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "cache" / "torch_compile_cache"
    for name in ("torch_aot_compile/0a/rank_0_0/model", "1b/rank_0_0/backbone/vllm_compile_cache.py"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(b"x")
    (root / "1b/rank_0_0/inductor_cache").mkdir()
    for folder in (root, root.parent):
        done = run("import", "--from-vllm", str(folder))
        assert done.exit_code == 0
        assert "adopted 0 programs; left 3:" in done.stdout
        assert "runs without guards" in done.stdout
        assert "looked up only through their start-up" in done.stdout
