"""Who may call what: the boundaries that a linter of imports cannot see."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import compcache

ROOT = Path(compcache.__file__).parents[1]
FOLDERS = ("compcache", "cli", "tests", "benchmarks")
MOST_LINES = 450
CORE = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in [*(ROOT / "compcache").glob("*.py"), *(ROOT / "compcache" / "store").glob("*.py")]
    if path.stem != "__init__"
)


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))
    yield from (path for path in ROOT.glob("*.py") if set(folders) == set(FOLDERS))


Rule = Callable[[ast.AST], bool]


def offenders(rule: Rule, paths: Iterator[Path], *allowed: str) -> list[str]:
    """Places that break a rule, but for files that are allowed to."""
    return [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        for path in paths
        if str(path.relative_to(ROOT)) not in allowed
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if rule(node)
    ]


def imports(node: ast.AST, *names: str) -> bool:
    """Whether a node imports one of some modules, or anything from it."""
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] in names for alias in node.names)
    return isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in names


ORDERED = {"rename", "renames", "replace", "link", "fsync", "fdatasync", "O_EXCL", "O_TMPFILE"}


def orders_files(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("os", "posix"):
        return node.attr in ORDERED
    if isinstance(node, ast.Attribute):
        return node.attr in ("hardlink_to", "rename")  # of a pathlib.Path
    if isinstance(node, ast.ImportFrom) and node.module in ("os", "posix"):
        return bool(ORDERED & {alias.name for alias in node.names})
    return imports(node, "fcntl")


def reads_settings(node: ast.AST) -> bool:
    def ours(value: ast.AST) -> bool:
        return isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.startswith("COMPCACHE_")

    def environment(value: ast.AST) -> bool:
        return "environ" in ast.unparse(value)

    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and ours(node.slice) and environment(node.value)
    if isinstance(node, ast.Compare):
        return ours(node.left) and any(environment(value) for value in node.comparators)
    if isinstance(node, ast.Call) and node.args and ours(node.args[0]):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name == "getenv" or (name in ("get", "pop", "setdefault") and environment(node.func))
    return False


def unpickles(node: ast.AST) -> bool:
    return imports(node, "pickle", "marshal", "shelve", "dill", "cloudpickle", "_pickle", "joblib")


def uses_a_word_that_says_nothing(path: Path) -> bool:
    return bool({"manager", "utils", "util", "helpers", "helper", "data", "handler"} & set(path.stem.split("_")))


def test_only_fsio_orders_files() -> None:
    faults = "compcache/testing/filesystems.py"  # it stands in for such calls
    assert offenders(orders_files, sources("compcache"), "compcache/fsio.py", faults) == []
    assert offenders(orders_files, iter([ROOT / "compcache" / "fsio.py"])) != []


def test_only_config_reads_settings() -> None:
    assert offenders(reads_settings, sources("compcache"), "compcache/config.py") == []
    assert offenders(reads_settings, iter([ROOT / "compcache" / "config.py"])) != []


def test_only_adapters_may_unpickle() -> None:
    core = (path for path in sources("compcache", "cli") if "adapters" not in path.parts)
    assert offenders(unpickles, core) == []


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (orders_files, "import os\nos.replace(a, b)"),
        (orders_files, "from os import link"),
        (orders_files, "from fcntl import flock"),
        (orders_files, "path.rename(other)"),
        (orders_files, "os.open(p, os.O_CREAT | os.O_EXCL)"),
        (reads_settings, "os.environ['COMPCACHE_DIR']"),
        (reads_settings, "os.environ.get('COMPCACHE_DIR', '')"),
        (reads_settings, "os.getenv('COMPCACHE_DIR')"),
        (reads_settings, "'COMPCACHE_DIR' in os.environ"),
        (unpickles, "import pickle"),
        (unpickles, "from marshal import loads"),
    ],
)
def test_the_rules_find_what_they_are_for(rule: Rule, text: str) -> None:
    assert any(rule(node) for node in ast.walk(ast.parse(text)))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (orders_files, "text.replace('a', 'b'); os.unlink(p); os.open(p, os.O_RDONLY)"),
        (reads_settings, "os.environ['HOME']; 'see COMPCACHE_DIR'; os.environ['COMPCACHE_DIR'] = '/x'"),
        (unpickles, "import json"),
    ],
)
def test_the_rules_find_nothing_else(rule: Rule, text: str) -> None:
    assert not any(rule(node) for node in ast.walk(ast.parse(text)))


@pytest.mark.parametrize("path", sorted(sources(*FOLDERS)), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short_and_named_for_what_they_are(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < MOST_LINES
    assert not uses_a_word_that_says_nothing(path)


def loaded_by(statement: str) -> set[str]:
    """The modules that a statement brings into a fresh process."""
    script = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


ENGINES = {"torch", "vllm", "jax", "torch_xla", "triton", "numpy", "typer", "rich"}


def test_importing_compcache_brings_in_nothing() -> None:
    loaded = loaded_by("import compcache")
    assert "compcache" in loaded
    assert not loaded & {*ENGINES, "diskcache", "sqlite3", "pickle", "asyncio", "blake3", "zstandard"}


def test_the_cache_brings_in_no_engine_and_no_database() -> None:
    loaded = loaded_by("import compcache.cache, compcache.environment, compcache.config")
    assert "compcache.store.directory" in loaded
    assert not loaded & {*ENGINES, "diskcache", "sqlite3"}


def test_no_module_of_the_core_brings_in_an_engine() -> None:
    loaded = loaded_by("import " + ", ".join(CORE))
    assert set(CORE) <= loaded
    assert not loaded & ENGINES
