"""F1, F2, F9: what is damaged, half written or planted is a miss or a refusal, and the next compile heals it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import filled
import pytest

from compcache.cache import Cache
from compcache.errors import Damaged, Untrusted
from compcache.factors import Factors
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile, meaning, program_of, run

FACTORS = Factors({"model.name": "m"}, {"range": "8"})

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


def symlink(path: Path) -> None:
    path.rename(path.with_suffix(".aside"))
    path.symlink_to(path.with_suffix(".aside"))


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
    "a pickle": pickled,
    "a symlink": symlink,
    "a fifo": fifo,
    "a directory": directory,
}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return filled.cache_at(tmp_path / "store")


@pytest.fixture
def compiler(tmp_path: Path) -> FakeCompiler:
    return FakeCompiler(tmp_path / "journal")


def file_of(tmp_path: Path, kind: str) -> Path:
    """The file of one kind that a cold start left."""
    pattern = {"entry": "v1/configs/*/*/[0-9a-f]*.json", "blob": "v1/blobs/*/*"}[kind]
    return sorted((tmp_path / "store").glob(pattern))[0]


@pytest.mark.parametrize("kind", ["entry", "blob"])
@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_a_spoilt_file_is_a_miss_and_heals(
    tmp_path: Path, cache: Cache, compiler: FakeCompiler, kind: str, spoil: Spoil
) -> None:
    get_or_compile(cache, compiler, FACTORS)
    assert program_of(cache, FACTORS) is not None
    path = file_of(tmp_path, kind)
    if kind == "blob":  # the one that is read: the artifact's
        entry = cache.find(FACTORS)
        assert entry is not None
        path = next(p for p in path.parent.parent.glob("*/*") if p.name == entry.blobs_with("artifact")[0].digest)
    spoil(path)
    assert program_of(cache, FACTORS) is None, "the spoilt bytes were used"
    assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    assert compiler.compiles == 2
    assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    assert compiler.compiles == 2, "it did not heal: compiled again"
    assert not list(tmp_path.rglob("*.ran")), "a planted pickle ran"


def test_damage_is_kept_for_a_look_and_said(tmp_path: Path, compiler: FakeCompiler) -> None:
    said: list[str] = []
    cache = filled.cache_at(tmp_path / "store")
    cache.session.say = said.append
    get_or_compile(cache, compiler, FACTORS)
    path = file_of(tmp_path, "entry")
    flip(lambda n: n // 2)(path)
    bad = path.read_bytes()
    assert program_of(cache, FACTORS) is None
    kept = list((tmp_path / "store/v1/quarantine").iterdir())
    assert bad in [p.read_bytes() for p in kept]
    assert len([line for line in said if "quarantined" in line]) == 1


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
@pytest.mark.parametrize("kind", ["entry", "blob"])
def test_a_file_that_others_can_write_is_refused(
    tmp_path: Path, cache: Cache, compiler: FakeCompiler, kind: str, mode: int
) -> None:
    get_or_compile(cache, compiler, FACTORS)
    entry = cache.find(FACTORS)
    assert entry is not None
    for path in (tmp_path / "store/v1").rglob("*"):
        if path.is_file() and (kind == "entry") == (path.suffix == ".json"):
            path.chmod(mode)
    with pytest.raises(Untrusted, match="writable by"):
        cache.find(FACTORS) if kind == "entry" else cache.blob(entry.blobs[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused_and_the_way_out_is_named(
    tmp_path: Path, cache: Cache, compiler: FakeCompiler
) -> None:
    get_or_compile(cache, compiler, FACTORS)
    for path in (tmp_path / "store/v1").rglob("*.json"):
        os.chown(path, 12345, 12345)
    with pytest.raises(Untrusted, match="COMPCACHE_TRUST_OWNER=12345"):
        cache.find(FACTORS)


def test_f2_a_compile_that_fails_half_way_stores_nothing(tmp_path: Path, cache: Cache, compiler: FakeCompiler) -> None:
    def fail() -> None:
        raise RuntimeError("serialisation failed")

    with pytest.raises(RuntimeError):
        get_or_compile(cache, compiler, FACTORS, before_publish=fail)
    assert not [p for p in (tmp_path / "store/v1").rglob("*") if p.is_file()], "something was left, a lease perhaps"


@pytest.mark.parametrize("call", range(1, 6))
def test_f2_a_write_that_fails_half_way_leaves_nothing_partial(
    tmp_path: Path, cache: Cache, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """The nth fsync fails: the program is a miss, and every file that is there is whole."""
    calls = []
    fsync = os.fsync

    def failing(fd: int) -> None:
        calls.append(fd)
        if len(calls) == call + 12:  # past the making of the tree
            raise OSError(28, "No space left on device")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", failing)
    assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    monkeypatch.setattr(os, "fsync", fsync)
    assert not list((tmp_path / "store/v1/tmp").iterdir())
    found = program_of(cache, FACTORS)
    assert found is None or run(found) == meaning(FACTORS)
    assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    assert program_of(cache, FACTORS) is not None


def test_a_blob_that_claims_another_size_is_refused(cache: Cache, compiler: FakeCompiler) -> None:
    get_or_compile(cache, compiler, FACTORS)
    entry = cache.find(FACTORS)
    assert entry is not None
    cache.store.replace("blobs/" + entry.blobs[0].digest[:2] + "/" + entry.blobs[0].digest, b"short")
    with pytest.raises(Damaged):
        cache.blob(entry.blobs[0])
