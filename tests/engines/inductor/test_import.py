"""What torch compiled without compcache is adopted where it fits; each reason why it is left."""

from __future__ import annotations

import base64
import hashlib
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compcache.inventory import inventory
from compcache.store.directory import DirectoryStore

ALONE = {"COMPCACHE_INDUCTOR": "0"}
INDUCTOR = "--from-inductor"


@pytest.fixture
def directory(torchs_own: tuple[Path, Any], tmp_path: Path) -> Path:
    shutil.copytree(torchs_own[0], tmp_path / "own")
    return tmp_path / "own"


def reasons(done: dict[str, Any]) -> set[str]:
    return {left["why"] for left in done["left"] if left["path"].startswith("fxgraph")}


def test_adopted_programs_load_on_another_machine(
    torchs_own: tuple, directory: Path, machine: Callable, tmp_path: Path
) -> None:
    one = machine("one")
    seen = one.imports(INDUCTOR, str(directory), "--dry-run")
    assert (seen["programs"], seen["dry_run"]) == (2, True)
    assert not (tmp_path / "store").exists()
    done = one.imports(INDUCTOR, str(directory))
    assert (done["programs"], done["already_stored"], reasons(done)) == (2, 0, set())
    again = one.imports(INDUCTOR, str(directory))
    assert (again["programs"], again["already_stored"]) == (0, 2)
    for name in ("first", "second"):  # by what was adopted; then by what the first one stored under its own key
        warm = machine(name, compilers=False).run("wide")
        assert warm.counts == (2, 0)
        assert warm["kernels"] == [2, 0]
        assert warm["faults"] == {}
        assert warm["bits"] == torchs_own[1]["bits"]
        assert warm["saved"] > 0
        assert warm["shown"][0]["model"] == ("activate" if name == "second" else "unnamed")
    store = DirectoryStore(tmp_path / "store")
    models = sorted(row.named["model"] for row in inventory(store).configurations if row.named["model"] != "unnamed")
    assert models == ["activate"]


def test_a_machine_without_a_compiler_says_so(directory: Path, machine: Callable) -> None:
    with pytest.raises(AssertionError) as failed:
        machine("one", compilers=False).imports(INDUCTOR, str(directory))
    assert "cannot be told without a C++ compiler" in str(failed.value)
    assert "Traceback" not in str(failed.value)


def test_what_cannot_be_shown_is_adopted_only_if_it_is_stated(machine: Callable, tmp_path: Path) -> None:
    """The text of a bfloat16 kernel does not tell for which width it was generated."""
    one = machine("one")
    cold = one.run("bf16_alone", **ALONE)
    own = str(tmp_path / "one" / "torch")
    left = one.imports(INDUCTOR, own)
    assert left["programs"] == 0
    assert all("does not tell the vector width" in why and "--same-host" in why for why in reasons(left)), left
    assert one.imports(INDUCTOR, own, "--same-host")["programs"] == 1
    warm = machine("other", compilers=False).run("bf16_alone")
    assert warm.counts == (1, 0)
    assert warm["bits"] == cold["bits"]


def test_another_vector_isa_is_left_and_what_was_adopted_is_not_loaded_under_it(
    directory: Path, machine: Callable
) -> None:
    torch = pytest.importorskip("torch")
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this CPU has one level only")
    one = machine("one")
    left = one.imports(INDUCTOR, str(directory), "--same-host", ATEN_CPU_CAPABILITY="default")
    assert left["programs"] == 0
    assert reasons(left) == {"a kernel was compiled by another command (vector ISA, flags or headers)"}
    assert one.imports(INDUCTOR, str(directory))["programs"] == 2
    assert machine("other").run("wide", ATEN_CPU_CAPABILITY="default").counts == (0, 2)


def test_another_thread_count_is_left(machine: Callable, tmp_path: Path) -> None:
    one = machine("one")
    one.run("threads_of_torch", THREADS="2", OMP_NUM_THREADS="2", **ALONE)
    own = str(tmp_path / "one" / "torch")
    left = one.imports(INDUCTOR, own, "--same-host", OMP_NUM_THREADS="1")
    assert reasons(left) == {"it runs 2 threads; this process has 1"}
    assert one.imports(INDUCTOR, own, OMP_NUM_THREADS="2")["programs"] == 1


def cut_record(own: Path) -> None:
    for path in own.glob("fxgraph/*/*/*"):
        path.write_bytes(path.read_bytes()[:-1])


def cut_kernel(own: Path) -> None:
    for path in own.glob("??/*.so"):
        path.write_bytes(path.read_bytes()[:-1])


def no_kernel(own: Path) -> None:
    for path in own.glob("??/*.main.so"):
        path.unlink()


def another_command(own: Path) -> None:
    for path in own.glob("??/*.main.*"):
        path.rename(path.with_name(path.name.replace("c", "d", 1)))


def another_cpu(own: Path) -> None:
    for path in own.glob("??/*.main.so"):
        data = path.read_bytes()
        assert b" -mpopcnt " in data
        path.write_bytes(data.replace(b" -mpopcnt ", b" -mothers "))


def no_debug_information(own: Path) -> None:
    for path in own.glob("??/*.main.so"):
        path.write_bytes(path.read_bytes().replace(b"GNU C++", b"another"))


def everybodys(own: Path) -> None:
    for path in own.glob("fxgraph/*/*/*"):
        path.chmod(0o666)


def link(own: Path) -> None:
    for path in own.glob("fxgraph/*/*/*"):
        aside = own / path.name
        path.rename(aside)
        path.symlink_to(aside)


class Runs:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def record(path: Path, content: bytes) -> None:
    """Put a record in the place of another, under the name that torch would give it."""
    name = base64.b32encode(hashlib.sha256(content).digest())[:51].decode().lower()
    path.unlink()
    path.with_name(name).write_bytes(content)


def planted(own: Path) -> None:
    """A record with the right name that runs code when it is unpickled."""
    for path in own.glob("fxgraph/*/*/*"):
        record(path, pickle.dumps([Runs(own / "ran"), "async_compile = AsyncCompile()\nboom("]))


def other_kinds(own: Path) -> None:
    for path in own.glob("fxgraph/*/*/*"):
        record(path, pickle.dumps(["async_compile = AsyncCompile()\nk = async_compile.triton('k', 'text')"]))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (cut_record, "not the digest of its content"),
        (cut_kernel, "a kernel's binary is cut"),
        (no_kernel, "a kernel's binary is missing"),
        (another_command, "another command"),
        (another_cpu, "for another CPU, or by another compiler"),
        (no_debug_information, "does not tell its CPU and compiler"),
        (everybodys, "writable by everybody"),
        (link, "not a regular file"),
        (planted, "its code cannot be read"),
        (other_kinds, "kernels of another kind (triton)"),
    ],
)
def test_what_does_not_fit_is_left_with_the_reason(
    directory: Path, machine: Callable, tmp_path: Path, spoil: Callable[[Path], None], why: str
) -> None:
    spoil(directory)
    stated = [] if spoil is no_debug_information else ["--same-host"]
    done = machine("one").imports(INDUCTOR, str(directory), *stated)
    assert done["programs"] == 0
    assert len(reasons(done)) >= 1
    assert all(why in reason for reason in reasons(done)), done
    assert not (tmp_path / "store" / "v1" / "configs").exists()
    assert not (directory / "ran").exists()


@pytest.mark.parametrize(
    ("source", "lanes"),
    [
        (
            "at::vec::Vectorized<float>::loadu(p + static_cast<int64_t>(x1 + 8L), static_cast<int64_t>(8));",
            ({8}, set()),
        ),
        ("x1+=static_cast<int64_t>(16L)", (set(), {16})),
        ("for(int64_t x0=0; x0<3; x0+=static_cast<int64_t>(1L))", (set(), set())),
        ("at::vec::Vectorized<at::BFloat16>::loadu(p, static_cast<int64_t>(16));", (set(), set())),
    ],
)
def test_the_width_that_a_kernel_was_generated_for(source: str, lanes: tuple[set[int], set[int]]) -> None:
    from compcache.adapters.inductor_evidence import vector_lanes

    assert vector_lanes(source) == lanes
