"""Options before the verb, and stores that are not there, not stores, newer, or not trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import filled
import pytest
from typer.testing import Result

import compcache

Run = Callable[..., Result]
VERBS = (["ls"], ["show", "abc"], ["prune", "--max-size", "1GB", "--yes"], ["stats"], ["verify"])


def one_line(result: Result, *words: str) -> None:
    """Exit status 1, nothing on stdout, one line on stderr with these words."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "Errno" not in result.stderr
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: str(verb[0]))
class TestNoStore:
    def test_missing(self, run: Run, tmp_path: Path, verb: list[str]) -> None:
        one_line(run(*verb), "nothing stored at", str(tmp_path / "store"), "no such directory")
        assert not (tmp_path / "store").exists()

    def test_not_a_store(self, run: Run, tmp_path: Path, verb: list[str]) -> None:
        (tmp_path / "store").mkdir(mode=0o700)
        (tmp_path / "store" / "letter.txt").write_text("keep me")
        one_line(run(*verb), "not a compcache store")
        assert os.listdir(tmp_path / "store") == ["letter.txt"]

    def test_a_file(self, run: Run, tmp_path: Path, verb: list[str]) -> None:
        (tmp_path / "store").write_text("keep me")
        one_line(run(*verb), "is not a directory")

    def test_newer_format(self, run: Run, tmp_path: Path, verb: list[str]) -> None:
        (tmp_path / "store" / "v2").mkdir(parents=True, mode=0o700)
        (tmp_path / "store").chmod(0o700)
        one_line(run(*verb), "format v2")
        assert os.listdir(tmp_path / "store") == ["v2"]

    def test_untrusted(self, run: Run, root: Path, verb: list[str]) -> None:
        root.chmod(0o777)
        one_line(run(*verb), "writable by everybody")

    def test_no_json_either(self, run: Run, verb: list[str]) -> None:
        one_line(run(*verb, "--json"))


def test_an_empty_store_is_no_error(run: Run, root: Path) -> None:
    for path in (root / "v1" / "configs").rglob("*.json"):
        path.unlink()
    result = run("ls")
    assert (result.exit_code, result.stdout) == (0, f"nothing stored at {root}\n")
    assert json.loads(run("ls", "--json").stdout) == []
    assert json.loads(run("stats", "--json").stdout)["programs"] == 0


def test_store_option_wins_over_the_variable(run: Run, root: Path, tmp_path: Path) -> None:
    result = run("--store", str(root), "ls", COMPCACHE_DIR=str(tmp_path / "elsewhere"))
    assert result.exit_code == 0
    assert "6 programs" in result.stdout


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_store_option_is_not_the_default_store(run: Run, root: Path, value: str) -> None:
    before = filled.snapshot(root)
    result = run("--store", value, "prune", "--max-size", "0", "--yes")
    assert result.exit_code == 2
    assert "--store" in result.stderr
    assert filled.snapshot(root) == before


def test_settings_that_cannot_be_understood(run: Run, root: Path) -> None:
    result = run("ls", COMPCACHE_MODE="sometimes")
    assert result.exit_code == 2
    assert "COMPCACHE_MODE" in result.stderr
    warned = run("ls", COMPCACHE_NO_SUCH="1")
    assert warned.exit_code == 0
    assert "COMPCACHE_NO_SUCH" in warned.stderr


def test_version_and_help(run: Run) -> None:
    assert run("--version").stdout == f"compcache {compcache.__version__}\n"
    for verb in ("ls", "show", "prune", "stats", "verify"):
        assert verb in run("--help").stdout
        assert run(verb, "--help").exit_code == 0
    assert run("no-such-verb").exit_code == 2


def process(*arguments: str, home: Path, **more: str) -> subprocess.CompletedProcess[bytes]:
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment |= {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", **more}
    command = [sys.executable, "-m", "compcache_cli.main", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=120)


def test_a_real_process_lists_and_fails_clearly(root: Path, tmp_path: Path) -> None:
    good = process("--store", str(root), "ls", "--json", home=tmp_path)
    assert (good.returncode, good.stderr) == (0, b"")
    assert len(json.loads(good.stdout)) == 6
    bad = process("--store", str(tmp_path / "nowhere"), "ls", home=tmp_path)
    assert bad.returncode == 1
    assert b"nothing stored at" in bad.stderr
    assert b"Traceback" not in bad.stderr


def test_a_real_process_with_an_ascii_terminal_and_odd_names(root: Path, tmp_path: Path) -> None:
    filled.graph(filled.cache_at(root), "16", model="Modèle 4x256")
    found = process("--store", str(root), "ls", home=tmp_path, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert found.returncode == 0, found.stderr
    assert b"Mod\\xe8le" in found.stdout


def test_listing_imports_no_engine(root: Path) -> None:
    program = (
        "import sys; from compcache_cli.main import application;"
        " application()(['--store', sys.argv[1], 'ls'], standalone_mode=False);"
        " print(sorted({'torch', 'vllm', 'jax'} & set(sys.modules)), file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, check=True, timeout=120)
    assert found.stderr.splitlines()[-1] == b"[]"


def test_a_home_that_nobody_has(run: Run) -> None:
    result = run("--store", "~nosuchuser/x", "ls")
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    assert "nosuchuser" in result.stderr
