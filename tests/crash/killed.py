"""In a process of its own: forks a child that publishes and is killed before its nth step; for each n, a new store.

``python killed.py ROOT SCENARIO``: the child of step n works below ROOT/n. Ends with the first child that no kill met,
and prints how many were killed. Steps are what the kernel is asked to do to files: open, mkdir, link, rename, unlink,
fsync. Nothing in the product knows of them.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import filled

from compcache.cache import Cache
from compcache.factors import Factors
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile

FACTORS = Factors({"model.name": "m"}, {"range": "8"})
STEPS = ("open", "os.mkdir", "os.link", "os.rename", "os.remove")
MOST = 200
SIZE = 200_000


def cold(root: Path) -> None:
    """Nothing is stored."""


def bad_entry(root: Path) -> None:
    """The entry is damaged: it is set aside, and the program is stored again."""
    entry = stored(root).find(FACTORS)
    assert entry is not None
    filled.path_of(root / "store", entry).write_bytes(b"")


def bad_blob(root: Path) -> None:
    """A blob is damaged: it is set aside, and a new entry replaces the one that refers to it."""
    entry = stored(root).find(FACTORS)
    assert entry is not None
    filled.blob_path(root / "store", entry.blobs[0].digest).write_bytes(b"")


SCENARIOS: dict[str, Callable[[Path], None]] = {"cold": cold, "bad_entry": bad_entry, "bad_blob": bad_blob}


def stored(root: Path) -> Cache:
    cache = filled.cache_at(root / "store")
    get_or_compile(cache, FakeCompiler(root / "journal", size=SIZE), FACTORS)
    return cache


def die_before_step(number: int, below: str) -> None:
    """From now on this process dies by SIGKILL before that step on files below a folder."""
    left = number
    fsync = os.fsync

    def step() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_event(event: str, args: tuple[object, ...]) -> None:
        if event in STEPS and str(args[0]).startswith(below):
            step()

    def on_fsync(fd: int) -> None:
        step()
        fsync(fd)

    sys.addaudithook(on_event)
    os.fsync = on_fsync


def die_half_way_through_a_file() -> None:
    """From now on this process dies by SIGXFSZ when half of a large file is written."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, SIZE // 2))


def survives(root: Path, prepare: Callable[[], None]) -> bool:
    """Whether a child that publishes after ``prepare`` lives to the end."""
    child = os.fork()
    if child == 0:
        try:
            prepare()
            stored(root)
        except BaseException:  # a child that fails is not one that was killed
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status > 0:
        raise RuntimeError(f"a child failed in {root}")
    return status == 0


def prepared(root: Path, scenario: str) -> Path:
    root.mkdir()
    child = os.fork()  # no thread of this process may live when it forks again: a lease has one
    if child == 0:
        SCENARIOS[scenario](root)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError(f"{scenario} cannot be prepared")
    return root


def main() -> None:
    top, scenario = Path(sys.argv[1]), sys.argv[2]
    for number in range(MOST):
        root = prepared(top / str(number), scenario)
        below = str(root / "store")
        if survives(root, lambda n=number, b=below: die_before_step(n, b)):
            print(number)
            break
    if survives(prepared(top / "half", scenario), die_half_way_through_a_file):
        raise RuntimeError("no file was cut")


if __name__ == "__main__":
    main()
