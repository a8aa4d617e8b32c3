"""The kill driver on the directory store; each failpoint is met; what must be durable is, in the right order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import filled
import pytest

import compcache
from compcache import failpoints
from compcache.adapters.startup import StartUp, publish_startup
from compcache.failpoints import Name, armed
from compcache.store import layout
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile

KILLS = int(os.environ.get("COMPCACHE_TEST_KILLS", "0"))
"""Beyond each step once; nox -s faults asks for a thousand."""


def driver(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    paths = [Path(compcache.__file__).parents[1], Path(__file__).parent]
    return subprocess.run(
        [sys.executable, "-m", "compcache.testing.kills", *options, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_process_killed_at_every_failpoint_loses_nothing(tmp_path: Path) -> None:
    done = driver(tmp_path, "--kills", str(max(KILLS, 220)))
    assert done.returncode == 0, done.stdout + done.stderr
    met = {name for name in get_args(Name) if f"'{name}'" in done.stdout}
    # Of the rest: one is a start-up's, one only a race reaches, and none of a store that was made in order.
    assert set(get_args(Name)) - met == {"publish.modules", "file.put_back"}
    total = re.search(r"^(\d+) kills at", done.stdout, re.MULTILINE)
    assert total is not None
    assert int(total[1]) >= max(KILLS, 220)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("publishes_in_place", "damage"),
        ("entry_before_blobs", "damage"),
        ("forgets", "another program was lost"),
    ],
)
def test_the_driver_finds_a_store_that_does_not_keep_its_promise(tmp_path: Path, fault: str, said: str) -> None:
    done = driver(tmp_path, "--store", f"unsound_stores:{fault}")
    assert done.returncode != 0
    assert "KillFailed" in done.stderr
    assert said in done.stderr


def test_a_start_up_is_complete_before_it_can_be_found(tmp_path: Path) -> None:
    met: list[Name] = []
    cache = filled.cache_at(tmp_path / "store")
    graph = filled.graph(cache, "8")
    with armed(met.append):
        publish_startup(cache, StartUp(graph.factors, filled.DISPLAY), b"start-up " * 99, ["compcache.errors"])
    assert met[-1] == "publish.modules"
    assert met.index("publish.blob") < met.index("publish.entry") < met.index("publish.checked")
    assert set(met) <= set(get_args(Name))


def test_nothing_is_called_once_a_block_has_ended() -> None:
    met: list[Name] = []
    with armed(met.append):
        failpoints.reached("name.linked")
    failpoints.reached("name.synced")
    assert met == ["name.linked"]


class Traced:
    """The calls that a publication makes to the kernel, in order, by path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        fsync, link, replace, mkdir = os.fsync, os.link, os.replace, os.mkdir

        def traced_fsync(fd: int) -> None:
            self.calls.append(("fsync", os.readlink(f"/proc/self/fd/{fd}")))
            fsync(fd)

        def traced_link(source: object, target: object) -> None:
            self.calls += [("link from", str(source)), ("link", str(target))]
            link(source, target)  # type: ignore[arg-type]

        def traced_replace(source: object, target: object) -> None:
            self.calls += [("replace from", str(source)), ("replace", str(target))]
            replace(source, target)  # type: ignore[arg-type]

        def traced_mkdir(path: object, mode: int = 0o777) -> None:
            self.calls.append(("mkdir", str(path)))
            mkdir(path, mode)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "fsync", traced_fsync)
        monkeypatch.setattr(os, "link", traced_link)
        monkeypatch.setattr(os, "replace", traced_replace)
        monkeypatch.setattr(os, "mkdir", traced_mkdir)

    def first(self, call: str, path: str | Path, after: int = 0) -> int:
        """Where that call is, at ``after`` or later."""
        return self.calls.index((call, str(path)), after)


def test_bytes_are_durable_before_their_name_and_names_before_what_refers_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    cache = filled.cache_at(root)
    trace = Traced(monkeypatch)
    entry = filled.graph(cache, "8")
    names = [trace.first("link", filled.blob_path(root, ref.digest)) for ref in entry.blobs]
    names.append(trace.first("link", filled.path_of(root, entry)))
    for at in names:
        source, target = trace.calls[at - 1], trace.calls[at]
        assert source[0] == "link from"
        assert trace.first("fsync", source[1]) < at, "a name before its bytes"
        trace.first("fsync", Path(target[1]).parent, after=at)
    for at in names[:-1]:
        folder = Path(trace.calls[at][1]).parent
        assert trace.first("fsync", folder, after=at) < names[-1], "an entry before its blob's name"
    for call, path in trace.calls:
        if call == "mkdir":
            trace.first("fsync", Path(path).parent, after=trace.first("mkdir", path))


def test_modules_are_durable_before_they_replace_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    cache = filled.cache_at(root)
    graph = filled.graph(cache, "8")
    startup = StartUp(graph.factors, filled.DISPLAY)
    trace = Traced(monkeypatch)
    entry = publish_startup(cache, startup, b"start-up " * 99, ["compcache.errors"])
    modules = root / "v1" / layout.modules(startup.factors.configuration_key, startup.key)
    at = trace.first("replace", modules)
    assert trace.first("fsync", trace.calls[at - 1][1]) < at
    trace.first("fsync", modules.parent, after=at)
    assert trace.first("fsync", modules.parent, trace.first("link", filled.path_of(root, entry))) < at


def test_a_compile_call_returns_after_publication(tmp_path: Path) -> None:
    """Promise 3: nothing waits for interpreter exit; the program is whole when the call returns."""
    met: list[Name] = []
    cache = filled.cache_at(tmp_path / "store")
    with armed(met.append):
        get_or_compile(cache, FakeCompiler(tmp_path / "journal"), filled.graph(cache, "8").factors.with_own({"n": 1}))
    assert "publish.checked" in met
