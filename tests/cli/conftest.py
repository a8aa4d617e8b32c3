"""Runs the command line in this process; ``filled`` (a module of tests/) makes the stores."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the module `filled`

import filled


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with one piecewise configuration."""
    root = tmp_path / "store"
    filled.piecewise(filled.cache_at(root))
    return root


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    """Runs ``compcache`` with a HOME, store and state of its own."""
    environment = {
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": None,
        "XDG_CONFIG_HOME": None,
        "COMPCACHE_DIR": str(tmp_path / "store"),
        "COMPCACHE_STATE": str(tmp_path / "store.state"),
        "COMPCACHE_CONFIG": None,
        "COMPCACHE_MODE": None,
        "COMPCACHE_TRUST_OWNER": None,
    }

    def run(*arguments: str, typed: str = "", **more: str) -> Result:
        from compcache_cli.main import application

        result = CliRunner(env={**environment, **more}).invoke(application(), list(arguments), input=typed)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception  # a traceback is never an answer
        return result

    return run
