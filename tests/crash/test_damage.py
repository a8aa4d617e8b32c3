"""F1, F2, F9: what is damaged, half written or planted is a miss or a refusal, and the next compile heals it."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import filled
import pytest
from spoils import SPOILS, Spoil, flip

from compcache.cache import Cache, Draft
from compcache.entry import Entry
from compcache.errors import Damaged, StoreError, Untrusted
from compcache.factors import Factors
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile, meaning, parts_of, program_of, run
from compcache.verify import verify

FACTORS = Factors({"model.name": "m"}, {"range": "8"})

FILES = 6
"""How many files a first publication writes: the tag, the lease, two blobs, the shared factors, the entry."""
KINDS = ("entry", "artifact", "kernel")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return filled.cache_at(tmp_path / "store")


@pytest.fixture
def compiler(tmp_path: Path) -> FakeCompiler:
    return FakeCompiler(tmp_path / "journal")


def file_of(cache: Cache, kind: str) -> Path:
    """The file of the stored program: its entry, or its blob of that role."""
    entry = cache.find(FACTORS)
    assert entry is not None
    root = Path(cache.store.label)
    if kind == "entry":
        return filled.path_of(root, entry)
    return filled.blob_path(root, entry.blobs_with(kind)[0].digest)


def set_aside(cache: Cache) -> list[Path]:
    return [p for p in (Path(cache.store.label) / "v1/quarantine").iterdir() if p.suffix != ".reason"]


@pytest.mark.timeout(60)  # a fifo that is opened for reading would wait for ever
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_a_spoilt_file_is_a_miss_and_heals(
    tmp_path: Path, cache: Cache, compiler: FakeCompiler, kind: str, spoil: Spoil
) -> None:
    get_or_compile(cache, compiler, FACTORS)
    assert program_of(cache, FACTORS) is not None
    path = file_of(cache, kind)
    spoil(path)
    spoilt = os.lstat(path).st_ino
    assert program_of(cache, FACTORS) is None, "the spoilt bytes were used"
    assert not os.path.lexists(path)
    assert [os.lstat(p).st_ino for p in set_aside(cache)] == [spoilt]
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
    path = file_of(cache, "entry")
    flip(lambda n: n // 2)(path)
    bad = path.read_bytes()
    assert program_of(cache, FACTORS) is None
    assert [p.read_bytes() for p in set_aside(cache)] == [bad]
    assert len([line for line in said if "quarantined" in line]) == 1


def refused(cache: Cache, compiler: FakeCompiler, path: Path, why: str) -> None:
    """The file is refused with that reason, stays as it is, and the work goes on without it."""
    before = compiler.compiles
    planted = path.read_bytes()
    with pytest.raises(Untrusted, match=why):
        cache.store.read(str(path.relative_to(Path(cache.store.label) / "v1")), 1 << 20)
    assert program_of(cache, FACTORS) is None
    assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    assert compiler.compiles == before + 1
    assert path.read_bytes() == planted
    assert not set_aside(cache)
    assert cache.session.faults


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_others_can_write_is_refused(cache: Cache, compiler: FakeCompiler, kind: str, mode: int) -> None:
    get_or_compile(cache, compiler, FACTORS)
    path = file_of(cache, kind)
    path.chmod(mode)
    refused(cache, compiler, path, "writable by")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_user_is_refused_and_the_way_out_is_named(
    cache: Cache, compiler: FakeCompiler, kind: str
) -> None:
    get_or_compile(cache, compiler, FACTORS)
    path = file_of(cache, kind)
    os.chown(path, 12345, 12345)
    refused(cache, compiler, path, "COMPCACHE_TRUST_OWNER=12345")


def test_f2_a_compile_that_fails_half_way_stores_nothing(tmp_path: Path, cache: Cache, compiler: FakeCompiler) -> None:
    def fail() -> None:
        raise RuntimeError("serialisation failed")

    with pytest.raises(RuntimeError):
        get_or_compile(cache, compiler, FACTORS, before_publish=fail)
    assert not [p for p in (tmp_path / "store/v1").rglob("*") if p.is_file()], "something was left, a lease perhaps"


def test_f2_an_entry_that_cannot_be_written_down_is_not_published(cache: Cache) -> None:
    def publish() -> Entry:
        return cache.publish(Draft("graph", FACTORS, parts_of(b"x" * 4096), provenance={"seconds": float("nan")}))

    assert cache.guarded("nothing is stored", publish, None) is None
    assert cache.session.faults == {"nothing is stored": 1}
    assert cache.find(FACTORS) is None
    assert not verify(cache.store).damage


def files(cache: Cache, folder: str) -> list[Path]:
    return [p for p in (Path(cache.store.label) / "v1" / folder).rglob("*") if p.is_file()]


@pytest.mark.parametrize("number", range(FILES))
def test_f2_a_write_that_fails_leaves_nothing_partial(
    cache: Cache, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The fsync of one of the files that a first publication writes fails."""
    fsync = os.fsync
    written: list[int] = []

    def failing(fd: int) -> None:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            written.append(fd)
            if len(written) == number + 1:
                raise OSError(errno.ENOSPC, "No space left on device")
        fsync(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    assert len(written) > number, "nothing failed"
    assert sum(cache.session.faults.values()) == 1
    assert not files(cache, "tmp")
    assert not verify(cache.store).damage
    assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    assert program_of(cache, FACTORS) is not None
    assert not files(cache, "leases")


@contextlib.contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The kernel takes the first ``size`` bytes of a file and fails the rest with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_f2_a_write_that_stops_half_way_leaves_nothing_partial(cache: Cache, tmp_path: Path) -> None:
    compiler = FakeCompiler(tmp_path / "journal", size=200_000)
    with no_file_larger_than(100_000):
        assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    assert cache.session.faults == {"nothing is stored": 1}
    assert not [p for folder in ("configs", "blobs", "tmp", "leases") for p in files(cache, folder)]
    assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    assert program_of(cache, FACTORS) is not None


def test_f2_a_replacement_that_stops_half_way_leaves_the_old_bytes(cache: Cache) -> None:
    name = "blobs/ab/" + "ab" * 32
    cache.store.replace(name, b"old")
    with no_file_larger_than(100_000), pytest.raises(StoreError):
        cache.store.replace(name, bytes(200_000))
    assert cache.store.read(name, 1 << 20) == b"old"
    assert not files(cache, "tmp")


def test_a_blob_that_claims_another_size_is_refused(cache: Cache, compiler: FakeCompiler) -> None:
    get_or_compile(cache, compiler, FACTORS)
    entry = cache.find(FACTORS)
    assert entry is not None
    cache.store.replace("blobs/" + entry.blobs[0].digest[:2] + "/" + entry.blobs[0].digest, b"short")
    with pytest.raises(Damaged):
        cache.blob(entry.blobs[0])
