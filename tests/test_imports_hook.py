"""Actions that wait for an import: run once, after the module's own code, and leave the module as it was."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import compcache
from compcache.adapters.imports import when_imported

_numbers = itertools.count()
Made = Callable[[str], str]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Makes a module that can be imported, with a name of its own; forgets it after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    finders = list(sys.meta_path)

    def make(text: str) -> str:
        name = f"compcache_watched_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    yield make
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        if name.startswith("compcache_watched_"):
            del sys.modules[name]


def test_after_the_modules_code(made: Made) -> None:
    name = made("x = 1")
    seen: list[tuple[str, int]] = []
    when_imported(name, lambda module: seen.append((module.__name__, module.x)))
    assert seen == []
    importlib.import_module(name)
    importlib.import_module(name)
    assert seen == [(name, 1)]


def test_at_once_if_it_is_there(made: Made) -> None:
    name = made("x = 1")
    module = importlib.import_module(name)
    seen: list[ModuleType] = []
    when_imported(name, seen.append)
    assert seen == [module]


def test_all_actions_in_order(made: Made) -> None:
    first, second = made(""), made("")
    seen: list[str] = []
    when_imported(first, lambda module: seen.append("1"))
    when_imported(second, lambda module: seen.append("other"))
    when_imported(first, lambda module: seen.append("2"))
    importlib.import_module(first)
    assert seen == ["1", "2"]
    importlib.import_module(second)
    assert seen == ["1", "2", "other"]


def test_one_finder_however_many_actions(made: Made) -> None:
    before = len(sys.meta_path)
    for _ in range(3):
        when_imported(made(""), lambda module: None)
    assert len(sys.meta_path) <= before + 1


def test_the_module_keeps_its_own_loader(made: Made) -> None:
    plain, watched = made("def f(): return 1"), made("def f(): return 1")
    when_imported(watched, lambda module: None)
    one, other = importlib.import_module(plain), importlib.import_module(watched)
    assert type(one.__loader__) is type(other.__loader__)
    assert other.__spec__ is not None
    assert other.__spec__.loader is other.__loader__
    assert inspect.getsource(other.f) == "def f(): return 1\n"
    assert other.__file__ is not None
    assert other.__file__.endswith(f"{watched}.py")


def test_looking_for_the_module_does_not_use_the_actions_up(made: Made) -> None:
    """Libraries look whether others are installed; digests of sources do, too."""
    name = made("")
    seen: list[ModuleType] = []
    when_imported(name, seen.append)
    assert importlib.util.find_spec(name) is not None
    assert name not in sys.modules
    module = importlib.import_module(name)
    assert seen == [module]


def test_an_import_that_fails_runs_nothing_and_may_be_tried_again(made: Made, tmp_path: Path) -> None:
    name = made("raise RuntimeError('own error')")
    seen: list[ModuleType] = []
    when_imported(name, seen.append)
    with pytest.raises(RuntimeError, match="own error"):
        importlib.import_module(name)
    assert seen == []
    (tmp_path / f"{name}.py").write_text("x = 'now it works'")
    importlib.invalidate_caches()
    assert seen == [importlib.import_module(name)]


def test_a_module_that_is_not_there(made: Made) -> None:
    when_imported("compcache_watched_absent", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match="compcache_watched_absent"):
        importlib.import_module("compcache_watched_absent")
    assert importlib.util.find_spec("compcache_watched_absent") is None


def test_a_module_inside_a_package_and_one_that_imports_the_other(made: Made, tmp_path: Path) -> None:
    package = made("")
    (tmp_path / f"{package}.py").unlink()
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / package / "inner.py").write_text("x = 1")
    (tmp_path / package / "outer.py").write_text(f"from {package} import inner")
    importlib.invalidate_caches()
    seen: list[str] = []
    for part in (f"{package}.outer", f"{package}.inner", package):
        when_imported(part, lambda module: seen.append(module.__name__.removeprefix(package)))
    importlib.import_module(f"{package}.outer")
    assert seen == ["", ".inner", ".outer"]


def test_two_threads_that_import_at_once(made: Made) -> None:
    name = made("import time; time.sleep(0.05)")
    seen: list[ModuleType] = []
    when_imported(name, seen.append)
    threads = [threading.Thread(target=importlib.import_module, args=(name,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [sys.modules[name]]


def test_the_plugin_imports_no_engine() -> None:
    """It is loaded in every process of vLLM; what it waits for may never be imported there."""
    script = """
import sys
import compcache.adapters.vllm_plugin as plugin
plugin.register()
assert not {"torch", "vllm", "diskcache", "sqlite3", "typer", "rich", "zstandard"} & set(sys.modules)
own = {name for name in sys.modules if name.startswith("compcache.")}
assert own == {"compcache.adapters", "compcache.adapters.imports", "compcache.adapters.vllm_plugin"}
import threading
assert threading.active_count() == 1
"""
    place = Path(compcache.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script], cwd=place, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
