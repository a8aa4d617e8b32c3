"""F3 and formats: a full, read-only or newer store; work goes on, nothing partial is left, nothing foreign touched."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import filled
import pytest

from compcache.cache import Cache
from compcache.errors import UnknownFormat
from compcache.factors import Factors
from compcache.session import Session
from compcache.store.directory import DirectoryStore
from compcache.store.memory import MemoryStore
from compcache.store.protocol import Store
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile, meaning, program_of, run
from compcache.testing.faults import AlwaysFails, FullAfter, LastByteFlipped, ReadOnly, Truncated

FACTORS = Factors({"model.name": "m"}, {"range": "8"})


def cache_over(store: Store, tmp_path: Path) -> tuple[Cache, list[str]]:
    said: list[str] = []
    settings = filled.cache_at(tmp_path / "unused").settings
    return Cache(settings, store=store, session=Session(say=said.append)), said


@pytest.fixture
def compiler(tmp_path: Path) -> FakeCompiler:
    return FakeCompiler(tmp_path / "journal", size=20_000)


@pytest.mark.parametrize(
    "number", [errno.EIO, errno.EACCES, errno.ENOSPC, errno.ESTALE, errno.ENOTCONN, errno.EROFS, errno.ENOENT]
)
def test_a_store_that_always_fails_costs_a_compile_and_a_line(
    tmp_path: Path, compiler: FakeCompiler, number: int
) -> None:
    cache, said = cache_over(AlwaysFails(MemoryStore(), number), tmp_path)
    for _ in range(3):
        assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    assert compiler.compiles == 3
    assert sum(cache.session.faults.values()) >= 3
    assert len(said) == 1, "one cause, one line"


@pytest.mark.parametrize("left", [0, 100, 15_000, 30_000])
def test_a_store_that_fills_up(tmp_path: Path, compiler: FakeCompiler, left: int) -> None:
    store = MemoryStore()
    cache, said = cache_over(FullAfter(store, left), tmp_path)
    assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    assert said
    assert not list(store.scan("configs")), "an entry without its blobs"
    healthy, _ = cache_over(store, tmp_path)
    assert run(get_or_compile(healthy, compiler, FACTORS)) == meaning(FACTORS)
    assert program_of(healthy, FACTORS) is not None


def test_a_read_only_store_serves_and_takes_nothing(tmp_path: Path, compiler: FakeCompiler) -> None:
    store = MemoryStore()
    get_or_compile(cache_over(store, tmp_path)[0], compiler, FACTORS)
    cache, _ = cache_over(ReadOnly(store), tmp_path)
    assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    other = Factors({"model.name": "m"}, {"range": "16"})
    assert run(get_or_compile(cache, compiler, other)) == meaning(other)
    assert compiler.compiles == 2


@pytest.mark.parametrize("prefix", ["configs", "blobs"])
def test_a_store_that_reads_wrong_for_ever_never_gives_wrong_bytes(
    tmp_path: Path, compiler: FakeCompiler, prefix: str
) -> None:
    for store in (LastByteFlipped(MemoryStore(), prefix), Truncated(MemoryStore(), 7, prefix)):
        cache, _ = cache_over(store, tmp_path)
        for _ in range(2):
            assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
            assert program_of(cache, FACTORS) is None


def test_one_torn_read_is_read_again_and_quarantines_nothing(tmp_path: Path, compiler: FakeCompiler) -> None:
    store = MemoryStore()
    get_or_compile(cache_over(store, tmp_path)[0], compiler, FACTORS)
    cache, said = cache_over(LastByteFlipped(store, times=1), tmp_path)
    assert program_of(cache, FACTORS) is not None
    assert not list(store.scan("quarantine"))
    assert not said


def test_a_newer_store_is_named_and_left_as_it_is(tmp_path: Path, compiler: FakeCompiler) -> None:
    root = tmp_path / "store"
    (root / "v2/configs").mkdir(parents=True)
    (root / "v2/configs/x.json").write_text("{}")
    root.chmod(0o700)
    before = filled.snapshot(root), sorted((str(p), p.stat().st_mtime_ns) for p in [root, *root.rglob("*")])
    with pytest.raises(UnknownFormat, match="v2"):
        DirectoryStore(root).check()
    cache, said = cache_over(DirectoryStore(root), tmp_path)
    assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    assert any("v2" in line for line in said)
    after = filled.snapshot(root), sorted((str(p), p.stat().st_mtime_ns) for p in [root, *root.rglob("*")])
    assert after == before


# Real file systems: only where mounting is permitted (root, outside most containers)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "mounted"
    place.mkdir()
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


def mount(place: Path, options: str) -> None:
    program = shutil.which("mount")
    if program is None or os.geteuid() != 0:
        pytest.skip("mounting needs root")
    command = [program, "-t", "tmpfs", "-o", options, "none", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")


@pytest.mark.parametrize("options", ["size=1m,mode=700", "nr_inodes=50,mode=700", "size=64k,mode=700"])
def test_a_small_file_system(mounted: Path, tmp_path: Path, compiler: FakeCompiler, options: str) -> None:
    mount(mounted, options)
    store = DirectoryStore(mounted / "store")
    cache, said = cache_over(store, tmp_path)
    sizes = [Factors({"model.name": "m"}, {"range": str(i)}) for i in range(60)]
    for factors in sizes:
        assert run(get_or_compile(cache, compiler, factors)) == meaning(factors)
    assert said, "it never filled up"
    assert not list((store.root / "v1/tmp").glob("*"))
    for factors in sizes:
        found = program_of(cache, factors)
        assert found is None or run(found) == meaning(factors)


def test_a_file_system_that_turns_read_only(mounted: Path, tmp_path: Path, compiler: FakeCompiler) -> None:
    mount(mounted, "size=8m,mode=700")
    cache, said = cache_over(DirectoryStore(mounted / "store"), tmp_path)
    get_or_compile(cache, compiler, FACTORS)
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    other = Factors({"model.name": "m"}, {"range": "16"})
    assert run(get_or_compile(cache, compiler, FACTORS)) == meaning(FACTORS)
    assert run(get_or_compile(cache, compiler, other)) == meaning(other)
    assert compiler.compiles == 2
    assert any("Read-only" in line for line in said), said
