"""One real start of vLLM, in a process and as a machine of its own: HOME, cache roots, PATH and Python chosen."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMPILERS = ("g++", "gcc", "c++", "cc", "clang++", "clang", "cc1plus", "as", "ld")
PROMPTS = ["hello world", "the cat sat on", "1 2 3 4"]
TIMEOUT_SECONDS = 900.0
_LINE = re.compile(
    r"compcache: (\d+) programs loaded in .*?; (\d+) compiled in [\d.]+ s; .*kernels: (\d+) loaded, (\d+)"
)
_HERE = Path(__file__).parent

MODES: Mapping[str, Mapping[str, Any]] = {
    "eager": {"enforce_eager": True},
    "trace_once": {},
    "piecewise": {
        "compilation_config": {
            "mode": 3,
            "compile_sizes": [1, 2, 4, 8],
            "pass_config": {"fuse_norm_quant": False, "fuse_act_quant": False},
        }
    },
}
"""Options of ``vllm.LLM``. "piecewise" needs the test-only plugin in tests/piecewise_plugin on a CPU."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What looks like one machine: a home and cache roots below ``root``, a Python, and which compilers it has."""

    root: Path
    python: str = sys.executable
    compilers: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Start:
    """What one start showed. Times are seconds; ``compile_phase`` is 0 for one that compiles and loads nothing."""

    whole: float
    compile_phase: float
    tokens: list[list[int]]
    loaded: int
    compiled: int
    kernels_loaded: int
    kernels_compiled: int
    compilers_run: list[str]
    lines: list[str]
    log: str

    @property
    def line(self) -> str:
        """compcache's last line; empty if it said nothing."""
        return self.lines[-1] if self.lines else ""


class StartFailed(RuntimeError):
    """vLLM did not start; the message ends with the last lines of its log."""


def start(
    machine: Machine,
    mode: str,
    model: Path,
    *,
    store: Path | None,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    dtype: str = "bfloat16",
    probe_isa: bool = False,
) -> Start:
    """Start vLLM on ``model``, generate, and stop it. ``store`` None switches compcache off.

    ``probe_isa`` calls Inductor's ISA probe once before vLLM looks for its own file. Raises StartFailed.
    """
    machine.root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="start-", dir=machine.root) as scratch:
        folder = Path(scratch)
        request = {
            "model": str(model),
            "dtype": dtype,
            "prompts": PROMPTS,
            "options": {**MODES[mode], **(options or {})},
        }
        (folder / "request.json").write_text(json.dumps(request))
        variables = _variables(machine, mode, store, folder)
        if probe_isa:
            variables["START_WATCH_PROBE_ISA"] = "1"
        variables.update(environment or {})
        began = time.time()
        log = _run([machine.python, str(_HERE / "child.py"), "request.json", "answer.json"], folder, variables)
        if not (folder / "answer.json").exists():
            raise StartFailed("vLLM did not start:\n" + "\n".join(log.splitlines()[-40:]))
        answer = json.loads((folder / "answer.json").read_text())
        return _read(answer, began, log, _events(folder / "watch.jsonl"))


def _variables(machine: Machine, mode: str, store: Path | None, folder: Path) -> dict[str, str]:
    kept = ("LANG", "TMPDIR", "LD_LIBRARY_PATH", "OPENBLAS_CORETYPE")
    home = machine.root / "home"
    home.mkdir(exist_ok=True)
    variables = {name: os.environ[name] for name in kept if name in os.environ}
    variables |= {
        "HOME": str(home),
        "VLLM_CACHE_ROOT": str(machine.root / "vllm-cache"),
        "PATH": os.environ.get("PATH", "/usr/bin:/bin") if machine.compilers else str(_tools(machine.root / "bin")),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": str(_HERE / "watch"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "START_WATCH_FILE": str(folder / "watch.jsonl"),
        "COMPCACHE_TEST_PIECEWISE": "1" if mode == "piecewise" else "0",
        "COMPCACHE_MODE": "rw" if store else "off",
    }
    if store:
        variables["COMPCACHE_DIR"] = str(store)
    return {**variables, **machine.environment}


def _tools(folder: Path) -> Path:
    """A folder with the programs in PATH except compilers."""
    if not folder.exists():
        folder.mkdir(parents=True)
        for place in os.environ.get("PATH", "/usr/bin:/bin").split(os.pathsep):
            for program in Path(place).iterdir() if Path(place).is_dir() else ():
                bare = re.sub(r"^.*-linux-gnu-|-\d+(\.\d+)*$", "", program.name)
                target = folder / program.name
                if bare not in COMPILERS and not target.is_symlink() and os.access(program, os.X_OK):
                    target.symlink_to(program)
    return folder


def _run(command: list[str], folder: Path, variables: Mapping[str, str]) -> str:
    """Run to its end, in a process group of its own that is ended as a whole; its output."""
    with open(folder / "log", "w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TIMEOUT_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        return log.read()


def _events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _read(answer: dict[str, Any], began: float, log: str, events: list[dict[str, Any]]) -> Start:
    lines = [line[line.index("compcache: ") :] for line in log.splitlines() if "compcache: " in line]
    counts = [tuple(map(int, m.groups())) for line in lines if (m := _LINE.search(line))]
    loaded, compiled, kernels_loaded, kernels_compiled = (
        (sum(column) for column in zip(*counts, strict=True)) if counts else (0,) * 4
    )
    run = [Path(e["program"]).name for e in events if e["kind"] == "exec"]
    return Start(
        whole=answer["ready"] - began,
        compile_phase=sum(e["seconds"] for e in events if e["kind"] == "compile-phase"),
        tokens=answer["tokens"],
        loaded=loaded,
        compiled=compiled,
        kernels_loaded=kernels_loaded,
        kernels_compiled=kernels_compiled,
        compilers_run=[p for p in run if re.sub(r"^.*-linux-gnu-|-\d+(\.\d+)*$", "", p) in COMPILERS],
        lines=lines,
        log=log,
    )


def piecewise_possible() -> bool:
    """Whether the test-only plugin is installed here."""
    import importlib.util

    return importlib.util.find_spec("compcache_test_piecewise") is not None


def other_python(folder: Path) -> str:
    """This virtual environment under another path: a copy made of hard links, in ``folder``; its Python.

    Raises OSError where hard links cannot be made (another file system).
    """
    place = folder / "venv"
    if not place.exists():
        shutil.copytree(sys.prefix, place, symlinks=True, copy_function=os.link)
    return str(place / "bin" / Path(sys.executable).name)
