"""Hostile file systems: the calls that compcache makes below a folder, with the faults of network mounts.

::

    with hostile(root, NegativeCaching(), NoLinks(), Every(7, errno.ESTALE)):
        ...

Patches the functions of :mod:`os` for the time of the block, in this process, for paths below ``root`` alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NAMING = ("link", "rename", "replace")
CALLS = ("open", "stat", "lstat", *NAMING, "unlink", "mkdir", "utime", "scandir", "chmod", "listdir")


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class Fault:
    """What happens at calls below the folder; ``before`` may raise OSError, ``after`` sees what was done."""

    def before(self, call: str, paths: tuple[str, ...]) -> None:
        """The call has not been made yet."""

    def after(self, call: str, paths: tuple[str, ...]) -> None:
        """The call has succeeded."""


class Every(Fault):
    """Every nth call fails with that errno: EIO, ESTALE, EBUSY, ..."""

    def __init__(self, nth: int, number: int, calls: tuple[str, ...] = CALLS) -> None:
        self.nth, self.number, self.calls = nth, number, calls
        self.count = 0

    def before(self, call: str, paths: tuple[str, ...]) -> None:
        if call in self.calls:
            self.count += 1
            if self.count % self.nth == 0:
                raise _error(self.number, paths[0])


class At(Fault):
    """Calls for one path fail with that errno."""

    def __init__(self, path: Path | str, number: int, calls: tuple[str, ...] = CALLS) -> None:
        self.path, self.number, self.calls = os.path.abspath(path), number, calls

    def before(self, call: str, paths: tuple[str, ...]) -> None:
        if call in self.calls and self.path in paths:
            raise _error(self.number, self.path)


class NegativeCaching(Fault):
    """A new name is not seen by the next ``looks`` calls: an NFS client that remembers that it was not there."""

    def __init__(self, looks: int = 3) -> None:
        self.looks = looks
        self.hidden: dict[str, int] = {}

    def after(self, call: str, paths: tuple[str, ...]) -> None:
        if call in NAMING:
            self.hidden[paths[-1]] = self.looks

    def before(self, call: str, paths: tuple[str, ...]) -> None:
        if call in ("open", "stat", "lstat", "utime") and self.hidden.get(paths[0], 0) > 0:
            self.hidden[paths[0]] -= 1
            raise _error(errno.ENOENT, paths[0])


class NoLinks(Fault):
    """Hard links are not supported."""

    def before(self, call: str, paths: tuple[str, ...]) -> None:
        if call == "link":
            raise _error(errno.EPERM, paths[0])


class Stall(Fault):
    """Every call takes ``seconds``; ``sleep`` is how they pass."""

    def __init__(self, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        self.seconds, self.sleep = seconds, sleep

    def before(self, call: str, paths: tuple[str, ...]) -> None:
        self.sleep(self.seconds)


class Skew(Fault):
    """The server's clock is ``seconds`` ahead of (or, negative, behind) this host's: so are the mtimes that it sets."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def after(self, call: str, paths: tuple[str, ...]) -> None:
        if call in (*NAMING, "utime"):
            moment = time.time() + self.seconds
            with contextlib.suppress(OSError):
                _REAL["utime"](paths[-1], (moment, moment), follow_symlinks=False)


class _Listing:
    """What ``scandir`` gives; to ask one of its entries for its status is a call, too."""

    def __init__(self, found: Any, faults: tuple[Fault, ...]) -> None:
        self.found, self.faults = found, faults

    def __enter__(self) -> _Listing:
        return self

    def __exit__(self, *error: object) -> None:
        self.found.close()

    def __iter__(self) -> Iterator[Any]:
        return (_Listed(entry, self.faults) for entry in self.found)


class _Listed:
    """One entry of a listing; whether it is a folder is known without a call."""

    def __init__(self, entry: os.DirEntry[str], faults: tuple[Fault, ...]) -> None:
        self.name, self.path, self.is_dir = entry.name, entry.path, entry.is_dir
        self._entry, self._faults = entry, faults

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        for fault in self._faults:
            fault.before("stat" if follow_symlinks else "lstat", (os.path.abspath(self.path),))
        return self._entry.stat(follow_symlinks=follow_symlinks)


class LocksForEverybody(Fault):
    """``flock`` and ``lockf`` succeed for everybody (some FUSE and NFS mounts); see :func:`hostile`."""


_REAL: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CALLS}


@contextlib.contextmanager
def hostile(root: Path | str, *faults: Fault) -> Iterator[None]:
    """File-system calls below ``root`` meet the faults, in this order, within the block."""
    top = os.path.abspath(root)

    def below(argument: object) -> str:
        if isinstance(argument, int) or argument is None:
            return ""
        path = os.path.abspath(os.fsdecode(argument))  # type: ignore[arg-type]
        return path if path == top or path.startswith(top + os.sep) else ""

    def faulty(name: str) -> Callable[..., Any]:
        real = _REAL[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            paths = tuple(filter(None, map(below, args[:2] if name in NAMING else args[:1])))
            if not paths:
                return real(*args, **kwargs)
            for fault in faults:
                fault.before(name, paths)
            result = real(*args, **kwargs)
            for fault in faults:
                fault.after(name, paths)
            return _Listing(result, faults) if name == "scandir" else result

        return call

    with contextlib.ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(_patched(os, name, faulty(name)))
        if any(isinstance(fault, LocksForEverybody) for fault in faults):
            stack.enter_context(_patched(fcntl, "flock", lambda *args: None))
            stack.enter_context(_patched(fcntl, "lockf", lambda *args: None))
        yield


@contextlib.contextmanager
def _patched(module: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
