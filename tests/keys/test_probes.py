"""Probes of the host, the toolchain and the sources: what changes a program changes them, what cannot does not."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from compcache import environment
from compcache.environment import (
    device_factors,
    folder_digest,
    module_digest,
    module_version,
    predicted_isa,
    python_factors,
    source_digest,
)
from compcache.errors import FactorError

CPU = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Some CPU @ 2.0GHz
stepping\t: 8
cpu MHz\t\t: 2000.000
flags\t\t: fpu avx2 avx512f
bogomips\t: 4000.00

processor\t: 1
cpu family\t: 6
model\t\t: 143
flags\t\t: fpu avx2 avx512f
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], Mapping[str, Any]]:
    """``cpu_factors()`` on a host whose /proc/cpuinfo has a given text, or is not there."""

    def factors(text: str | None) -> Mapping[str, Any]:
        class Proc:
            def __init__(self, path: str) -> None:
                assert path == "/proc/cpuinfo"

            def read_text(self, **_: Any) -> str:
                if text is None:
                    raise FileNotFoundError(2, "No such file")
                return text

        monkeypatch.setattr(environment, "Path", Proc)
        return environment.cpu_factors.__wrapped__()

    return factors


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("avx512f", "avx512f amx_tile"),
        ("avx2 avx512f", "avx2"),
        ("model\t\t: 143", "model\t\t: 106"),
        ("cpu family\t: 6", "cpu family\t: 25"),
        ("stepping\t: 8", "stepping\t: 4"),
    ],
)
def test_another_cpu_is_another_factor(cpu: Callable[[str], Mapping[str, Any]], old: str, new: str) -> None:
    """-march=native takes the features and tunes for the model."""
    assert cpu(CPU)["cpu.features"] != cpu(CPU.replace(old, new))["cpu.features"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fpu avx2 avx512f", "avx512f fpu avx2"),
        ("fpu avx2 avx512f", "fpu avx2 avx512f fpu"),
        ("2000.000", "3100.125"),
        ("4000.00", "6200.00"),
        ("\nprocessor\t: 1\n", "\nprocessor\t: 7\n"),
    ],
)
def test_the_same_cpu_is_the_same_factor(cpu: Callable[[str], Mapping[str, Any]], old: str, new: str) -> None:
    assert CPU.replace(old, new) != CPU
    assert cpu(CPU) == cpu(CPU.replace(old, new))


def test_the_model_is_named(cpu: Callable[[str], Mapping[str, Any]]) -> None:
    assert cpu(CPU)["cpu.model"] == "Some CPU @ 2.0GHz"
    assert cpu(ARM)["cpu.model"] == "unknown"
    assert cpu(ARM)["cpu.features"] != cpu(ARM.replace("0xd40", "0xd4f"))["cpu.features"]


@pytest.mark.parametrize("text", [None, "", "processor\t: 0\n"], ids=["absent", "empty", "no flags"])
def test_a_cpu_that_cannot_be_read_is_said(cpu: Callable[[str | None], Mapping[str, Any]], text: str | None) -> None:
    with pytest.raises(FactorError):
        cpu(text)


# Vector ISA


FLAGS = ("avx2", "avx512", "vnni", "amx_tile", "avx512_bf16", "amx_fp16")


def fake_torch(flags: set[str], capability: str = "AVX2") -> Any:
    functions = {f"_is_{name}_supported": lambda name=name: name in flags for name in FLAGS}
    backends = types.SimpleNamespace(cpu=types.SimpleNamespace(get_cpu_capability=lambda: capability))
    return types.SimpleNamespace(cpu=types.SimpleNamespace(**functions), backends=backends)


KNOWN = {
    "2.7": ("avx512 amx_tile", "avx512", "avx2", "asimd", "asimd"),
    "2.13": ("avx512 avx512_vnni amx_tile", "avx512 avx512_vnni", "avx512", "avx2", "asimd", "asimd"),
}
"""What the ISAs are called in two releases of torch (``supported_vec_isa_list``, torch/_inductor/cpu_vec_isa.py)."""


def picked(flags: set[str], capability: str | None, known: Sequence[str]) -> str:
    """What torch picks: the first of its list whose parts are all supported, or the one that was asked for."""
    supported = {n for n in ("avx2", "avx512", "amx_tile") if n in flags}
    if {"avx512", "vnni"} <= flags:
        supported.add("avx512_vnni")
    valid = [isa for isa in known if set(isa.split()) <= supported]
    if not valid or capability == "default":
        return "INVALID_VEC_ISA"
    asked = [isa for isa in valid if capability in ("avx2", "avx512", "zvector", "vsx") and capability in isa]
    return (asked or valid)[0]


SETS = [set(chosen) for n in range(len(FLAGS) + 1) for chosen in itertools.combinations(FLAGS, n)]


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("capability", [None, "", "default", "avx2", "avx512", "zvector", "nonsense"])
def test_the_predicted_isa_is_what_torch_picks(
    monkeypatch: pytest.MonkeyPatch, capability: str | None, known: Sequence[str]
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    if capability is not None:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    for flags in SETS:
        assert predicted_isa(fake_torch(flags), known) == picked(flags, capability, known), flags


def test_no_prediction_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert predicted_isa(fake_torch({"avx2"}), KNOWN["2.13"]) == ""


def test_isa_factors_tell_sub_flags_and_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """F11: a store filled under avx512 must not serve avx2."""
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    seen = [environment.isa_factors(fake_torch(flags)) for flags in SETS]
    assert all(seen.count(factors) == 1 for factors in seen)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert environment.isa_factors(fake_torch(set(FLAGS))) not in seen
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    assert environment.isa_factors(fake_torch(set(FLAGS), "AVX512")) not in seen


def test_a_torch_without_the_flags_has_none() -> None:
    torch = fake_torch(set())
    torch.cpu = types.SimpleNamespace()
    assert environment.isa_factors(torch)["cpu.isa"] == []


# Sources


def test_a_source_digest_is_of_the_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "a.py", tmp_path / "elsewhere.py"
    one.write_bytes(b"x = 1\n")
    two.write_bytes(b"x = 1\n")
    before = source_digest(one)
    assert before == source_digest(str(two))
    one.write_bytes(b"x = 2\n")
    assert source_digest(one) != before


def test_a_source_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.py", tmp_path):
        with pytest.raises(FactorError, match=path.name):
            source_digest(path)


def package(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_folder_digest_is_of_names_and_sources(tmp_path: Path) -> None:
    base = folder_digest(package(tmp_path / "one", a="1", sub__b="2"))
    assert base == folder_digest(package(tmp_path / "moved", sub__b="2", a="1"))
    changed = [
        package(tmp_path / "two", a="1", sub__b="3"),
        package(tmp_path / "three", a="2", sub__b="1"),
        package(tmp_path / "four", a="1", b="2"),
        package(tmp_path / "five", a="1", sub__b="2", c=""),
        package(tmp_path / "six", a="1"),
    ]
    assert len({base, *map(folder_digest, changed)}) == 6
    (tmp_path / "one" / "notes.txt").write_text("no source")
    assert folder_digest(tmp_path / "one") == base


def test_a_folder_without_sources_is_said(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(FactorError):
            folder_digest(folder)


def test_a_module_digest_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "never_imported_module.py"
    path.write_text("raise AssertionError('imported')")
    before = module_digest("never_imported_module")
    assert before == source_digest(path)
    path.write_text("raise AssertionError('imported again')")
    assert module_digest("never_imported_module") == source_digest(path) != before
    assert "never_imported_module" not in sys.modules


def test_a_module_that_is_imported_goes_by_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("loaded_from_elsewhere")
    module.__file__ = str(tmp_path / "real.py")
    Path(module.__file__).write_text("x = 1")
    monkeypatch.setitem(sys.modules, "loaded_from_elsewhere", module)
    assert module_digest("loaded_from_elsewhere") == source_digest(module.__file__)


@pytest.mark.parametrize("name", ["no_such_module_at_all", "sys", "no_such.module", "", "os.path.nothing"])
def test_a_module_without_a_source_is_said(name: str) -> None:
    with pytest.raises(FactorError):
        module_digest(name)


# Versions


def test_versions_are_those_of_imported_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("some_toolchain")
    monkeypatch.setitem(sys.modules, "some_toolchain", module)
    assert module_version("some_toolchain") == "unknown"
    module.__version__ = "1.2"  # type: ignore[attr-defined]
    assert module_version("some_toolchain") == "1.2"
    assert module_version("not_imported_toolchain") == "absent"


def test_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    before = python_factors()
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    changed = {name for name, value in python_factors().items() if value != before[name]}
    assert changed == {"python.version", "os.machine"}


def test_libc_is_said() -> None:
    found = environment.libc_factors()
    assert set(found) == {"libc.version", "libstdcxx.version"}
    assert all(found.values())


def test_torch_factors_follow_its_settings() -> None:
    def torch(**more: Any) -> Any:
        known: dict[str, Any] = {"version": "2.13.0", "dtype": "float32", "matmul": "highest", "deterministic": False}
        known |= more
        return types.SimpleNamespace(
            __version__=known["version"],
            version=types.SimpleNamespace(git_version=known.get("git", "abc"), cuda=known.get("cuda"), hip=None),
            get_default_dtype=lambda: known["dtype"],
            get_float32_matmul_precision=lambda: known["matmul"],
            are_deterministic_algorithms_enabled=lambda: known["deterministic"],
        )

    changes: list[dict[str, Any]] = [
        {},
        {"version": "2.12"},
        {"dtype": "bfloat16"},
        {"matmul": "high"},
        {"deterministic": True},
        {"git": "def"},
        {"cuda": "13.0"},
    ]
    found = [environment.torch_factors(torch(**change)) for change in changes]
    assert all(found.count(factors) == 1 for factors in found)


def test_devices() -> None:
    assert device_factors(types.SimpleNamespace(), "cpu") == {"device.type": "cpu"}

    class Properties:
        name, major, minor, total_memory, multi_processor_count = "H", 9, 0, 1 << 37, 132

    class Cuda:
        current_device = staticmethod(lambda: 1)
        get_device_properties = staticmethod(lambda ordinal: Properties)

    found = device_factors(types.SimpleNamespace(cuda=Cuda), "cuda")
    assert (found["device.capability"], found["device.ordinal"]) == ([9, 0], 1)
    with pytest.raises(FactorError, match="xpu"):
        device_factors(types.SimpleNamespace(), "xpu")
