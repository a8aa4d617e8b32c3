"""What can happen to a file: cut, flipped, replaced by something else."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

Spoil = Callable[[Path], None]


def cut(part: Callable[[int], int]) -> Spoil:
    def spoil(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: part(len(data))])

    return spoil


def flip(place: Callable[[int], int]) -> Spoil:
    def spoil(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[place(len(data))] ^= 1
        path.write_bytes(data)

    return spoil


def other(path: Path) -> None:
    """The bytes of a sound file of another kind, or of none."""
    path.write_bytes(b'{"format": 1}\n')


def symlink(path: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix="aside-", dir=path.parents[len(path.parents) - 4])) / path.name
    path.rename(aside)
    path.symlink_to(aside)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb(str(path.with_suffix(".ran")))))


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.mark, "w")


SPOILS: dict[str, Spoil] = {
    "cut at 0": cut(lambda n: 0),
    "cut at half": cut(lambda n: n // 2),
    "cut at n-1": cut(lambda n: n - 1),
    "first bit flipped": flip(lambda n: 0),
    "a bit flipped": flip(lambda n: n // 2),
    "last bit flipped": flip(lambda n: n - 1),
    "another valid file": other,
    "a pickle": pickled,
    "a symlink": symlink,
    "a fifo": fifo,
    "a directory": directory,
}
