"""A store that is damaged, full or read-only, and switches: torch.compile goes on as it would without."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compcache.entry import parse_entry
from compcache.store.directory import DirectoryStore
from compcache.verify import verify


def entries(store: Path, kind: str = "graph") -> list[tuple[Path, object]]:
    found = []
    for path in (store / "v1" / "configs").rglob("*.json"):
        if path.name != "config.json":
            entry = parse_entry(path.read_bytes())
            if entry.kind == kind:
                found.append((path, entry))
    return found


def blob(store: Path, role: str, kind: str = "graph") -> Path:
    ((_, entry),) = entries(store, kind)
    (ref,) = entry.blobs_with(role)
    return store / "v1" / "blobs" / ref.digest[:2] / ref.digest


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("spoil", [flip, cut, Path.unlink])
@pytest.mark.parametrize(("role", "kind"), [("artifact", "graph"), ("artifact", "autograd")])
def test_a_bad_record_is_compiled_again_and_healed(
    filled: tuple, machine: Callable, role: str, kind: str, spoil: Callable[[Path], object]
) -> None:
    store, cold = filled
    spoil(blob(store, role, kind))
    again = machine("other", store).run("simple")
    assert again["bits"] == cold["bits"]
    assert again.counts == ((0, 1) if kind == "graph" else (1, 0))
    healed = machine("third", store, compilers=False).run("simple")
    assert healed.counts == (1, 0)
    assert healed["faults"] == {}
    assert [f for f in verify(DirectoryStore(store)).findings if f.damage] == []


@pytest.mark.parametrize("spoil", [flip, Path.unlink])
def test_a_bad_kernel_is_the_only_thing_compiled(
    filled: tuple, machine: Callable, spoil: Callable[[Path], object]
) -> None:
    store, cold = filled
    spoil(blob(store, "kernel"))
    again = machine("other", store).run("simple")
    assert again["bits"] == cold["bits"]
    assert again.counts == (1, 0)
    assert again["kernels"] == [0, 1]
    healed = machine("third", store, compilers=False).run("simple")
    assert healed["kernels"] == [1, 0]
    assert healed["faults"] == {}


def test_a_record_that_is_lost_is_stored_where_it_is_looked_up(machine: Callable, tmp_path: Path) -> None:
    """Of two graphs under one key the second is loaded; AOTAutograd's record of it is under a key of its own."""
    cold = machine("one").run("guarded")
    for path, _ in entries(tmp_path / "store", "autograd"):
        path.unlink()
    again = machine("other").run("guarded", SIZES="[7]")
    assert again.counts == (1, 0)
    assert again["bits"] == cold["bits"][1:]
    ((_, entry),) = entries(tmp_path / "store", "autograd")
    assert entry.factors.own["torch.variant"] == 0


def test_an_entry_that_is_cut_is_a_miss(filled: tuple, machine: Callable) -> None:
    store, cold = filled
    ((path, _),) = entries(store)
    path.write_bytes(path.read_bytes()[:100])
    again = machine("other", store).run("simple")
    assert again.counts == (0, 1)
    assert again["bits"] == cold["bits"]


def test_nothing_is_unpickled_before_its_digest_is_checked(filled: tuple, machine: Callable, tmp_path: Path) -> None:
    """A pickle that runs code, in the place of a graph."""
    store, cold = filled
    mark = tmp_path / "ran"
    planted = b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
    blob(store, "artifact").write_bytes(planted)
    blob(store, "artifact", "autograd").write_bytes(planted)
    again = machine("other", store).run("simple")
    assert again["bits"] == cold["bits"]
    assert not mark.exists()


def test_a_store_that_only_reads(filled: tuple, machine: Callable) -> None:
    store, _ = filled
    before = sorted(p for p in store.rglob("*"))
    warm = machine("other", store, compilers=False).run("simple", COMPCACHE_MODE="ro")
    assert warm.counts == (1, 0)
    other = machine("other", store).run("model", COMPCACHE_MODE="ro")
    assert other.counts == (0, 0)
    assert other["not_stored"] == 1
    assert sorted(p for p in store.rglob("*")) == before


def test_no_place_for_a_store(machine: Callable, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    one = machine("one", tmp_path / "file" / "store")
    cold = one.run("simple")
    assert cold["first"] == cold["eager"]
    assert cold["not_stored"] == 1
    assert cold["faults"]
    assert cold.said.count("going on without") <= 2
    # torch's own directory serves, as without compcache: the factors are in its keys.
    assert one.run("simple")["first"] == cold["first"]


def test_the_mode_that_requires(filled: tuple, machine: Callable) -> None:
    store, cold = filled
    warm = machine("other", store, compilers=False).run("simple", COMPCACHE_MODE="require")
    assert warm["bits"] == cold["bits"]
    with pytest.raises(AssertionError, match="COMPCACHE_MODE=require: missed: differs from the nearest entry"):
        machine("third", store).run("model", COMPCACHE_MODE="require")


@pytest.mark.parametrize(("name", "value"), [("COMPCACHE_MODE", "off"), ("COMPCACHE_INDUCTOR", "0")])
def test_switched_off(machine: Callable, tmp_path: Path, name: str, value: str) -> None:
    ran = machine("one").run("simple", **{name: value})
    assert "loaded" not in ran.values
    assert ran["first"] == ran["eager"]
    assert not (tmp_path / "store").exists()


# Many at once, sessions, scripts


def test_processes_that_start_together_compile_once(machine: Callable, tmp_path: Path) -> None:
    script = (
        "import sys, concurrent.futures as f; sys.path.insert(0, sys.argv[1]); from conftest import Machine;"
        "from pathlib import Path; root = Path(sys.argv[2]);"
        "run = lambda i: Machine(root / f'm{i}', root / 'store').run('simple');"
        "done = list(f.ThreadPoolExecutor(3).map(run, range(3)));"
        "print(sum(d.counts[0] for d in done), sum(d.counts[1] for d in done), len({str(d['bits']) for d in done}))"
    )
    folder = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", script, folder, str(tmp_path)], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.stdout.split() == ["2", "1", "1"], done.stderr[-2000:]


def test_sessions_count_what_is_in_them(machine: Callable) -> None:
    cold = machine("one").run("in_a_session")
    warm = machine("other", compilers=False).run("in_a_session")
    for ran in (cold, warm):
        assert ran["counts"] == [1, 1]
    assert "1 programs loaded" in warm["report"]
    assert warm.counts == (2, 0)


SCRIPT = """
import sys, torch
f = torch.compile(lambda x: torch.nn.functional.gelu(x * 3).sum(-1))
print(sys.argv, f(torch.ones(4, 4)).tolist())
"""


def test_a_script_that_cannot_be_edited(machine: Callable, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    said = []
    for name, compilers in (("one", True), ("other", False)):
        one = machine(name, compilers=compilers)
        one.root.mkdir()
        environment = one._environment(one.root / "log", {"COMPCACHE_INDUCTOR": "1"})
        command = [sys.executable, "-W", "ignore", "-m", "compcache", "run", str(tmp_path / "script.py"), "a", "b"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "'a', 'b']" in done.stdout
        said.append((done.stdout, done.stderr))
    assert said[0][0] == said[1][0]
    assert "1 programs loaded" in said[1][1]


def test_run_without_a_script_says_how() -> None:
    for arguments in ([], ["run"], ["run", "-m"], ["other"]):
        done = subprocess.run([sys.executable, "-m", "compcache", *arguments], capture_output=True, text=True)
        assert done.returncode == 2
        assert "usage" in done.stderr
