"""The seam for kernels, against a cache class with the shape of torch's: what is served, collected, and given up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compcache.adapters.kernels import Kernels, kernel_name
from compcache.adapters.torch_settings import changed_settings, identity
from compcache.errors import FactorError
from compcache.session import Session


class Library:
    """A loaded kernel."""

    def __init__(self, path: str) -> None:
        self.__file__ = path
        self.data = Path(path).read_bytes()


class Codecache:
    """A module with torch's cache classes. ``compiles`` and ``loads`` are what happened."""

    def __init__(self, folder: Path) -> None:
        compiles: list[str] = []
        loads: list[str] = []

        class CppCodeCache:
            cpp_compile_command_flags: dict[str, Any] = {}
            entry_function = ""

            @classmethod
            def _load_library(cls, path: str, key: str) -> Library:
                loads.append(path)
                library = Library(path)
                if library.data.startswith(b"broken"):
                    raise OSError("invalid ELF header")
                return library

            @classmethod
            def load_async(
                cls, main_code: str, device_type: str = "cpu", submit_fn: Any = None, extra_flags: tuple[str, ...] = ()
            ) -> Callable[[], Library]:
                path = folder / f"{cls.__name__}{abs(hash((main_code, device_type, extra_flags)))}.so"

                def result() -> Library:
                    compiles.append(main_code)
                    path.write_bytes(f"binary of {main_code}".encode())
                    return cls._load_library(str(path), "key")

                return result

        class CppPythonBindingsCodeCache(CppCodeCache):
            cpp_compile_command_flags = {"shared": True}
            entry_function = "kernel"

        self.CppCodeCache = CppCodeCache
        self.CppPythonBindingsCodeCache = CppPythonBindingsCodeCache
        self.compiles = compiles
        self.loads = loads

    def load(self, code: str, **more: Any) -> Library:
        library: Library = self.CppPythonBindingsCodeCache.load_async(code, **more)()
        return library

    def name(self, code: str, **more: Any) -> str:
        return kernel_name(self.CppPythonBindingsCodeCache, {"cls": None, "main_code": code, **more})


@pytest.fixture
def codecache(tmp_path: Path) -> Codecache:
    return Codecache(tmp_path)


@pytest.fixture
def kernels(codecache: Codecache) -> Kernels:
    made = Kernels()
    made.session = Session(say=lambda line: None)
    assert made.install(codecache) == ""
    return made


def counts(kernels: Kernels) -> tuple[int, int]:
    return kernels.session.kernels_loaded, kernels.session.kernels_compiled


def test_outside_of_a_start_up_nothing_changes(codecache: Codecache, kernels: Kernels) -> None:
    assert codecache.load("a").data == b"binary of a"
    assert codecache.compiles == ["a"]
    assert counts(kernels) == (0, 0)


def test_what_is_collected_is_served_and_compiles_nothing(
    codecache: Codecache, kernels: Kernels, tmp_path: Path
) -> None:
    with kernels.collecting() as found:
        codecache.load("a")
        codecache.load("b", device_type="cpu:0")
        codecache.load("a")
    assert counts(kernels) == (0, 2)
    assert sorted(found.values()) == [b"binary of a", b"binary of b"]
    codecache.compiles.clear()
    with kernels.serving(found):
        served = [codecache.load("a"), codecache.load("b", device_type="cpu:0")]
    assert [library.data for library in served] == [b"binary of a", b"binary of b"]
    assert codecache.compiles == []
    assert counts(kernels) == (2, 2)
    for library in served:
        assert not library.__file__.startswith(str(tmp_path))  # private bytes, which are gone again
        assert not Path(library.__file__).parent.exists()


def test_where_to_compile_is_no_part_of_a_kernel(codecache: Codecache, kernels: Kernels) -> None:
    with kernels.collecting() as found:
        codecache.load("a", submit_fn=None)
        codecache.load("a", submit_fn=print)
        codecache.CppPythonBindingsCodeCache.load_async(main_code="a")()
    assert len(found) == 1


def test_after_the_block_nothing_is_served(codecache: Codecache, kernels: Kernels) -> None:
    with kernels.serving({codecache.name("a"): b"stored"}):
        assert codecache.load("a").data == b"stored"
    assert codecache.load("a").data == b"binary of a"
    with pytest.raises(RuntimeError), kernels.serving({codecache.name("a"): b"stored"}):
        raise RuntimeError
    assert codecache.load("a").data == b"binary of a"


def test_a_kernel_that_is_not_served_is_compiled_and_counted(codecache: Codecache, kernels: Kernels) -> None:
    with kernels.serving({codecache.name("a"): b"stored"}):
        assert codecache.load("b").data == b"binary of b"
    assert codecache.compiles == ["b"]
    assert counts(kernels) == (0, 1)


def test_a_kernel_that_does_not_load_is_the_only_one_compiled(codecache: Codecache, kernels: Kernels) -> None:
    stored = {codecache.name("a"): b"broken", codecache.name("b"): b"stored b"}
    with kernels.serving(stored):
        assert codecache.load("a").data == b"binary of a"
        assert codecache.load("a").data == b"binary of a"
        assert codecache.load("b").data == b"stored b"
    assert codecache.compiles == ["a"]
    assert counts(kernels) == (1, 1)
    assert kernels.session.faults == {"a kernel does not load": 1}


def test_no_place_for_verified_bytes_compiles_too(
    codecache: Codecache, kernels: Kernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with kernels.serving({codecache.name("a"): b"stored"}):
        assert codecache.load("a").data == b"binary of a"
    assert kernels.session.faults == {"a kernel does not load": 1}


def test_a_pool_of_threads_loads_each_kernel_once(codecache: Codecache, kernels: Kernels) -> None:
    stored = {codecache.name(code): f"stored {code}".encode() for code in "abcd"}
    start = threading.Barrier(16)
    got: list[tuple[str, Library]] = []

    def work(code: str) -> None:
        start.wait()
        got.append((code, codecache.load(code)))

    with kernels.serving(stored):
        threads = [threading.Thread(target=work, args=(code,)) for code in "abcd" * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(got) == 16
    assert len({id(library) for _, library in got}) == 4
    assert all(library.data == f"stored {code}".encode() for code, library in got)
    assert len(codecache.loads) == 4
    assert counts(kernels) == (4, 0)


def test_two_kernels_load_at_the_same_time(codecache: Codecache, kernels: Kernels) -> None:
    """One lock for each: a kernel that takes long to load does not hold up another."""
    both = threading.Barrier(2, timeout=60)
    original = codecache.CppCodeCache.__dict__["_load_library"].__func__

    def meet(cls: Any, path: str, key: str) -> Library:
        both.wait()
        library: Library = original(cls, path, key)
        return library

    codecache.CppCodeCache._load_library = classmethod(meet)  # type: ignore[method-assign,assignment]
    with kernels.serving({codecache.name(code): code.encode() for code in "ab"}):
        threads = [threading.Thread(target=codecache.load, args=(code,)) for code in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not both.broken
    assert counts(kernels) == (2, 0)


def test_collections_nest(codecache: Codecache, kernels: Kernels) -> None:
    with kernels.collecting() as outer:
        codecache.load("a")
        with kernels.collecting() as inner:
            codecache.load("b")
        codecache.load("c")
    assert list(inner.values()) == [b"binary of b"]
    assert sorted(outer.values()) == [b"binary of a", b"binary of b", b"binary of c"]
    codecache.load("d")
    assert len(outer) == 3


def test_a_collection_sees_what_other_threads_compile(codecache: Codecache, kernels: Kernels) -> None:
    with kernels.collecting() as found:
        thread = threading.Thread(target=codecache.load, args=("a",))
        thread.start()
        thread.join()
    assert list(found.values()) == [b"binary of a"]


def test_a_kernel_whose_file_is_gone_is_used_and_said(codecache: Codecache, kernels: Kernels) -> None:
    with kernels.collecting() as found:
        get = codecache.CppPythonBindingsCodeCache.load_async("a")
        codecache.CppCodeCache._load_library = classmethod(  # type: ignore[method-assign,assignment]
            lambda cls, path, key: SimpleNamespace(__file__=path + ".gone")
        )
        assert get().__file__.endswith(".gone")
    assert found == {}
    assert kernels.session.faults == {"a kernel cannot be read": 1}


def test_a_call_that_cannot_be_described_is_left_alone(codecache: Codecache, kernels: Kernels) -> None:
    with kernels.collecting() as found:
        assert codecache.load("a", extra_flags=(b"bytes",)).data == b"binary of a"
    assert found == {}
    assert list(kernels.session.uncacheable) == ["a kernel"]


def test_an_error_of_the_compiler_is_the_compilers(codecache: Codecache, kernels: Kernels) -> None:
    with kernels.collecting(), pytest.raises(TypeError):
        codecache.load("a", no_such_argument=1)


def test_a_name_tells_everything_that_goes_into_a_kernel(codecache: Codecache) -> None:
    other = type("CppPythonBindingsCodeCache", (codecache.CppPythonBindingsCodeCache,), {"entry_function": "other"})
    flags = type(
        "CppPythonBindingsCodeCache", (codecache.CppPythonBindingsCodeCache,), {"cpp_compile_command_flags": {}}
    )
    base = {"main_code": "a", "device_type": "cpu"}
    found = [
        kernel_name(codecache.CppPythonBindingsCodeCache, base),
        kernel_name(codecache.CppCodeCache, base),
        kernel_name(other, base),
        kernel_name(flags, base),
        *(kernel_name(codecache.CppCodeCache, {**base, **more}) for more in ({"main_code": "b"}, {"device_type": "x"})),
        kernel_name(codecache.CppCodeCache, {**base, "extra_flags": ["-O0"]}),
        kernel_name(codecache.CppCodeCache, {**base, "needs_vec_isa": True}),
    ]
    assert len(set(found)) == len(found)


def test_a_name_does_not_tell_where_torchs_own_header_lies(codecache: Codecache) -> None:
    def named(line: str) -> str:
        code = f"#include <torch/all.h>\n{line}\nextern void kernel();\n"
        return kernel_name(codecache.CppPythonBindingsCodeCache, {"main_code": code})

    digest = "c" + "abcdefghijklmnopqrstuvwxyz234567" + "a" * 19
    other = "c" + "b" + digest[2:]
    assert named(f'#include "/home/a/torchinductor_a/yz/{digest}.h"') == named(f'#include "/b/{digest}.h"')
    different = [
        f'#include "/a/{digest}.h"',
        f'#include "/a/{other}.h"',  # another text of that header
        '#include "/a/own.h"',
        '#include "/b/own.h"',  # somebody's own header, of which nothing but the path is known
        f'#include "/a/{digest[:-1]}.h"',
        f'// #include "/a/{digest}.h"',
        f'// #include "/b/{digest}.h"',
    ]
    assert len({named(line) for line in different}) == len(different)


# Installing


def test_installing_twice_is_once(codecache: Codecache, kernels: Kernels) -> None:
    before = codecache.CppCodeCache.__dict__["load_async"]
    assert kernels.install(codecache) == ""
    assert Kernels().install(codecache) == ""
    assert codecache.CppCodeCache.__dict__["load_async"] is before


def unfit() -> list[Any]:
    class NoLoader:
        load_async = classmethod(lambda cls, main_code, submit_fn=None: None)

    class NotOfTheClass:
        _load_library = None

        @staticmethod
        def load_async(main_code: str, submit_fn: Any = None) -> None: ...

    class OtherArguments:
        _load_library = None

        @classmethod
        def load_async(cls, source: str, submit_fn: Any = None) -> None: ...

    class Inherited(OtherArguments):
        pass

    return [None, NoLoader, NotOfTheClass, OtherArguments, Inherited]


@pytest.mark.parametrize("base", unfit(), ids=lambda base: getattr(base, "__name__", "absent"))
def test_a_torch_that_does_not_fit_is_left_alone(base: Any) -> None:
    codecache = SimpleNamespace(CppCodeCache=base) if base else SimpleNamespace()
    before = dict(vars(base)) if base else {}
    reason = Kernels().install(codecache)
    assert "CppCodeCache" in reason
    assert (dict(vars(base)) if base else {}) == before


# Settings of an engine


class Settings:
    """A torch config module: entries with defaults, and its portable form."""

    def __init__(self, **values: Any) -> None:
        self._config = {
            name: SimpleNamespace(default=default) for name, default in {"a": 1, "b": None, "c": [1]}.items()
        }
        self._values = {"a": 1, "b": None, "c": [1], **values}

    def save_config_portable(self) -> dict[str, Any]:
        return self._values


def test_only_settings_that_were_changed_are_factors() -> None:
    assert changed_settings(Settings()) == {}
    assert changed_settings(Settings(a=2, c=[1, 2])) == {"a": 2, "c": [1, 2]}
    assert changed_settings(Settings(unknown=None)) == {"unknown": None}


class WithIdentity:
    def __init__(self, token: Any) -> None:
        self._token = token

    def uuid(self) -> Any:
        return self._token


def test_identities() -> None:
    assert identity(WithIdentity("token"), "pass") == "token"
    assert identity((WithIdentity(b"x"),), "pass") == identity([WithIdentity(b"x")], "pass")
    assert identity(WithIdentity(b"x"), "pass") != identity(WithIdentity(b"y"), "pass")
    assert identity({"b", "a"}, "set") == ["a", "b"]
    assert identity(Path, "type") == "pathlib.Path"
    assert identity({1: Path}, "dict") == {"1": "pathlib.Path"}


@pytest.mark.parametrize("value", [len, lambda: None, object(), WithIdentity(None), [object()], {"x": print}, b"x"])
def test_what_has_no_identity_is_not_dropped(value: Any) -> None:
    with pytest.raises(FactorError):
        identity(value, "setting")
    with pytest.raises(FactorError):
        changed_settings(Settings(b=value))
