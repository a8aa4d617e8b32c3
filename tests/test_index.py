"""The index: counts, what a planted or broken database can do (nothing), and several writers."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from compcache.errors import Damaged, StoreError, Untrusted
from compcache.index import Index
from compcache.records import Usage, Use

A, B = "a" * 32, "b" * 32


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "state" / "index")


class Bomb:
    """Unpickling this makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


def database(index: Index) -> sqlite3.Connection:
    return sqlite3.connect(index.path / "cache.db")


def plant(
    index: Index, *, key: object, raw: int = 1, mode: int = 1, filename: str | None = None, value: object
) -> None:
    with closing(database(index)) as connection, connection:
        connection.execute("DELETE FROM Cache WHERE key = ?", (key,))
        connection.execute(
            "INSERT INTO Cache (key, raw, store_time, access_time, mode, filename, value, size)"
            " VALUES (?, ?, 1, 1, ?, ?, ?, 0)",
            (key, raw, mode, filename, value),
        )


def test_counts_by_program_store_and_host(index: Index) -> None:
    index.record([Use(A, "/s", 2.5, 100.0), Use(B, "/s", 1.0, 90.0), Use(A, "/t", 1.0, 50.0)])
    index.record([Use(A, "/s", 2.5, 80.0)])
    assert index.usage(A) == Usage(3, 6.0, 100.0)
    assert index.usage(A, "/t") == Usage(1, 1.0, 50.0)
    assert index.usage("c" * 32) is None
    assert index.usages("/s") == {A: Usage(2, 5.0, 100.0), B: Usage(1, 1.0, 90.0)}
    assert index.totals() == Usage(4, 7.0, 100.0)


def test_forget_drops_records_and_keeps_totals(index: Index) -> None:
    index.record([Use(A, "/s", 2.5, 100.0), Use(A, "/t", 1.0, 50.0)])
    index.forget([A], "/s")
    assert index.usages("/s") == {}
    assert index.usage(A) == Usage(1, 1.0, 50.0)
    assert index.totals().hits == 2


def test_a_store_path_need_not_be_text(index: Index) -> None:
    index.record([Use(A, "/s\udcff %", 1.0, 1.0)])
    assert index.usages("/s\udcff %") == {A: Usage(1, 1.0, 1.0)}


def test_a_look_makes_nothing(index: Index) -> None:
    assert (index.totals(), index.usage(A), index.usages("/s")) == (Usage(), None, {})
    index.forget([A], "/s")
    index.record([])
    assert not index.path.exists()


def test_only_its_user_can_reach_it(index: Index) -> None:
    before = os.umask(0)
    try:
        index.record([Use(A, "/s", 1.0, 1.0)])
    finally:
        os.umask(before)
    assert stat.S_IMODE(index.path.stat().st_mode) == 0o700
    index.path.chmod(0o777)
    with pytest.raises(Untrusted):
        index.record([Use(A, "/s", 1.0, 1.0)])
    with pytest.raises(Untrusted):
        index.totals()


def test_importing_it_imports_no_database() -> None:
    program = "import sys, compcache.index; print([m for m in ('diskcache', 'sqlite3') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"[]\n"


class TestPlantedRows:
    """Each would run, read or delete something in a plain diskcache (the last test shows that the bait works)."""

    @pytest.fixture
    def victim(self, index: Index, tmp_path: Path) -> Path:
        index.record([Use(B, "/s", 1.0, 1.0)])
        victim = tmp_path / "victim" / "precious.txt"
        victim.parent.mkdir()
        victim.write_text('{"hits": 9, "saved": 9, "used": 9}')
        return victim

    @pytest.fixture(autouse=True)
    def nothing_ran(self, victim: Path, tmp_path: Path) -> Iterator[None]:
        yield
        assert victim.exists()
        assert not (tmp_path / "ran").exists()

    def exercise(self, index: Index) -> None:
        assert index.usage(A) is None
        assert index.usages("/s") == {B: Usage(1, 1.0, 1.0)}
        index.record([Use(A, "/s", 1.0, 7.0)])
        assert index.usage(A) == Usage(1, 1.0, 7.0)
        assert index.usages("/s").keys() == {A, B}
        index.forget([A, B], "/s")
        assert index.usages("/s") == {}

    @pytest.mark.parametrize("mode", [2, 3, 4, 0, 99])
    def test_a_row_that_names_a_file(self, index: Index, victim: Path, mode: int) -> None:
        plant(index, key=f"{A} /s", mode=mode, filename=str(victim), value=None)
        self.exercise(index)

    def test_a_plain_row_that_also_names_a_file(self, index: Index, victim: Path) -> None:
        plant(index, key=f"{A} /s", filename=str(victim), value='{"hits": 5, "saved": 5, "used": 5}')
        self.exercise(index)

    def test_forget_deletes_the_row_and_not_the_file(self, index: Index, victim: Path) -> None:
        plant(index, key=f"{A} /s", mode=2, filename=str(victim), value=None)
        index.forget([A], "/s")
        with closing(database(index)) as connection:
            assert connection.execute("SELECT key FROM Cache WHERE filename IS NOT NULL").fetchall() == []

    def test_a_pickled_value(self, index: Index, tmp_path: Path) -> None:
        plant(index, key=f"{A} /s", mode=4, value=pickle.dumps(Bomb(tmp_path / "ran")))
        self.exercise(index)

    def test_a_pickled_value_in_a_file(self, index: Index, tmp_path: Path) -> None:
        (tmp_path / "bomb").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
        plant(index, key=f"{A} /s", mode=4, filename=str(tmp_path / "bomb"), value=None)
        self.exercise(index)
        assert (tmp_path / "bomb").exists()

    def test_a_pickled_key(self, index: Index, tmp_path: Path) -> None:
        plant(index, key=pickle.dumps(Bomb(tmp_path / "ran")), raw=0, value="1")
        self.exercise(index)

    @pytest.mark.parametrize("value", ["", "[]", "{", '{"hits": -1, "saved": 0, "used": 0}', "[" * 9999, 7, 1.5, b"x",
                                       '{"hits": 1, "saved": NaN, "used": 1e999}', '{"hits": "x"}'])  # fmt: skip
    def test_a_value_that_is_no_record(self, index: Index, value: object) -> None:
        plant(index, key=f"{A} /s", value=value)
        self.exercise(index)

    def test_settings_and_triggers_that_diskcache_would_obey(self, index: Index, tmp_path: Path) -> None:
        for statement in (
            f"INSERT OR REPLACE INTO Settings VALUES ('_directory', '{tmp_path / 'victim'}')",
            "INSERT OR REPLACE INTO Settings VALUES ('sqlite_mmap_size', '1; DROP TABLE Cache')",
            "INSERT OR REPLACE INTO Settings VALUES ('disk_surprise', 1)",
            "CREATE TRIGGER more AFTER INSERT ON Cache BEGIN DELETE FROM Settings; END",
            "CREATE VIEW extra AS SELECT 1",
        ):
            with closing(database(index)) as connection, connection:
                connection.execute(statement)
            index.record([Use(A, "/s", 1.0, 7.0)])
            assert index.usages("/s") == {A: Usage(1, 1.0, 7.0)}, "made again"
        assert sorted(os.listdir(tmp_path / "victim")) == ["precious.txt"]

    def test_the_bait_works_on_plain_diskcache(self, index: Index, tmp_path: Path) -> None:
        import diskcache  # type: ignore[import-untyped]

        (tmp_path / "other.txt").write_text("gone soon")
        plant(index, key=f"{A} /s", mode=2, filename=str(tmp_path / "other.txt"), value=None)
        plant(index, key="bomb", mode=4, value=pickle.dumps(Bomb(tmp_path / "ran")))
        with closing(diskcache.Cache(str(index.path))) as cache:
            assert cache.get(f"{A} /s") == b"gone soon"
            cache.get("bomb")
            cache.delete(f"{A} /s")
        assert not (tmp_path / "other.txt").exists()
        (tmp_path / "ran").rmdir()


class TestPlainDisk:
    """The Disk class alone."""

    @pytest.fixture
    def disk(self, tmp_path: Path) -> object:
        from compcache.index import _disk

        return _disk()(str(tmp_path), min_file_size=0)

    @pytest.mark.parametrize("key", [1.5, None, ("a",), True, object()])
    def test_odd_keys_are_refused(self, disk: object, key: object) -> None:
        with pytest.raises(Damaged):
            disk.put(key)  # type: ignore[attr-defined]

    @pytest.mark.parametrize("value", [1.5, None, ["a"], True, object()])
    def test_odd_values_are_refused(self, disk: object, value: object) -> None:
        with pytest.raises(Damaged):
            disk.store(value, False)  # type: ignore[attr-defined]

    @pytest.mark.parametrize("value", ["x" * 100_000, b"x" * 100_000, 7])
    def test_values_stay_in_the_database(self, disk: object, tmp_path: Path, value: object) -> None:
        size, mode, filename, kept = disk.store(value, False)  # type: ignore[attr-defined]
        assert (size, mode, filename) == (0, 1, None)
        assert disk.fetch(1, None, bytes(kept) if isinstance(value, bytes) else kept, False) == value  # type: ignore[attr-defined]
        assert os.listdir(tmp_path) == []


class TestBroken:
    @pytest.mark.parametrize("damage", ["garbage", "cut", "empty", "flipped", "other tables"])
    def test_a_broken_database_is_made_again(self, index: Index, damage: str) -> None:
        index.record([Use(A, "/s", 1.0, 1.0)] * 50)
        path = index.path / "cache.db"
        data = path.read_bytes()
        if damage == "other tables":
            path.unlink()
            with closing(database(index)) as connection, connection:
                connection.execute("CREATE TABLE Cache (key)")
        else:
            broken = {"garbage": b"not a database" * 99, "cut": data[: len(data) // 2], "empty": b"",
                      "flipped": data[:16] + bytes(200) + data[216:]}  # fmt: skip
            path.write_bytes(broken[damage])
        assert index.totals().hits in (0, 50)  # a look never fails
        index.record([Use(B, "/s", 1.0, 1.0)])
        index.record([Use(B, "/s", 1.0, 1.0)])
        assert index.usages("/s")[B].hits == 2

    def test_something_else_under_its_name_is_left_alone(self, index: Index, tmp_path: Path) -> None:
        index.path.mkdir(parents=True, mode=0o700)
        (tmp_path / "precious").write_bytes(b"not a database")
        (index.path / "cache.db").symlink_to(tmp_path / "precious")
        for action in (lambda: index.record([Use(A, "/s", 1.0, 1.0)]), index.totals):
            with pytest.raises(StoreError):
                action()
        assert (tmp_path / "precious").read_bytes() == b"not a database"

    def test_a_path_that_diskcache_would_rewrite(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError):
            Index(tmp_path / "$HOME").record([Use(A, "/s", 1.0, 1.0)])
        assert not (tmp_path / "$HOME").exists()

    def test_a_file_where_the_directory_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "state").write_text("")
        with pytest.raises(StoreError):
            Index(tmp_path / "state" / "index").record([Use(A, "/s", 1.0, 1.0)])

    def test_a_busy_database_is_an_error_and_not_discarded(self, index: Index) -> None:
        index.record([Use(A, "/s", 1.0, 1.0)])
        impatient = Index(index.path, busy_seconds=0.05)
        with closing(database(index)) as connection:
            connection.isolation_level = None
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError):
                impatient.record([Use(A, "/s", 1.0, 1.0)])
            assert impatient.usage(A) == Usage(1, 1.0, 1.0)  # readers do not wait
        impatient.record([Use(A, "/s", 1.0, 1.0)])
        assert index.totals().hits == 2


def write_many(path: Path, number: int) -> None:
    mine = f"{number:x}" * 32
    for moment in range(20):
        Index(path, busy_seconds=60).record([Use(A, "/s", 1.0, float(moment)), Use(mine, "/s", 0.5, float(moment))])


def test_four_processes_write_at_once(index: Index) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(index.path, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert index.usage(A) == Usage(80, 80.0, 19.0)
    assert [index.usages("/s")[f"{n:x}" * 32].hits for n in range(4)] == [20] * 4
    assert index.totals().hits == 160
