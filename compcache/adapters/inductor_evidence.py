"""What shows that a graph in torch's own directory fits this process; see :mod:`compcache.adapters.inductor_import`.

Of each kernel, which a graph's code holds as source:

* the compiler's command, with flags, vector ISA and the virtual environment's headers: the name of the kernel's binary
  is the digest of its source and that command, made again here as torch makes it (``CppCodeCache.load_async`` and
  ``write``, torch/_inductor/codecache.py).
* the compiler and the CPU that ``-march=native`` stood for: GCC writes its version and the resolved machine options
  into the debug information (DW_AT_producer; Inductor compiles with ``-g1``), and is asked here for its own.
* the thread count: a source has it in its pragma, or torch's key has it (``cpp_runtime_thread_count``, since torch
  2.10), whose lines a record keeps.
* the vector width that the source was generated for, which need not be that of the binary: a graph from torch's remote
  cache is another machine's, while its kernels are compiled here (F11). Loads and loop steps of float kernels say it.

Nothing is unpickled or loaded: text is taken from pickles by their opcodes.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import pickletools
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3

from compcache import fsio
from compcache.adapters.inductor_factors import threads
from compcache.adapters.kernels import SOURCE, kernel_name
from compcache.entry import MAX_RAW_BYTES
from compcache.errors import CompcacheError, FactorError

_WRAPPER = "async_compile = AsyncCompile()"
_THREADS = re.compile(r"\bnum_threads\((\d+)\)")
_KEYED_THREADS = re.compile(r"\[\w+\] cpp_runtime_thread_count: (\d+)")
_LOAD = re.compile(r"\bVectorized<float>::loadu\(.*static_cast<int64_t>\((\d+)L{0,2}\)\)")
_STEP = re.compile(r"\+=\s*static_cast<int64_t>\((\d+)L{0,2}\)")
_PRODUCER = re.compile(rb"GNU C\+\+\d* (\d[\d.]*) ([^\0]*)")
_ELF = (b"\x7fELF\x02\x01", b"\x7fELF\x02\x02")


class Unfit(Exception):
    """Why a graph is left."""


class Unproven(Exception):
    """What nothing shows about a graph that may well fit."""


class _Written(BaseException):
    """Where torch would write a source; ends its call there. No Exception: torch swallows those."""

    def __init__(self, path: str, command: str) -> None:
        self.path = Path(path)
        self.command = command


@dataclass(frozen=True, slots=True)
class _Call:
    """One kernel's load as torch does it: its name in the store, its whole source, its file, the compiler's command."""

    name: str
    source: str
    path: Path
    command: str


class Evidence:
    """What is known of torch's directory and of this host."""

    def __init__(self, directory: Path) -> None:
        import torch
        import torch._inductor.codecache as codecache
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        self._directory = directory
        self._codecache = codecache
        self._threads = threads(torch)
        # Before any command is made: what it finds out by a compile goes through the function that is replaced then.
        isa = pick_vec_isa()
        self._lanes = int(isa.nelements(torch.float32)) if isa else 1
        self._producers: dict[tuple[str, ...], Producer | None] = {}
        self._builds: dict[str, set[str]] = defaultdict(set)
        """By the digest of a source, the files that hold it: one for each command that it was compiled with."""
        for path in sorted(directory.glob("??/*.cpp")):
            with contextlib.suppress(CompcacheError):
                source = fsio.read_file(path, MAX_RAW_BYTES, fsio.Trust())
                self._builds[_source_digest(source)].add(path.name)

    def of(self, content: bytes, *, stated: bool = False) -> tuple[dict[str, bytes], float]:
        """The kernels that a graph loads, by name, and the seconds that it cost; ``stated``: where nothing shows that
        they fit, the user said so. Raises Unfit or Unproven."""
        texts, seconds = _read(content)
        wrappers = [text for text in texts if _WRAPPER in text]
        if len(wrappers) != 1:
            raise Unfit("its code was not found in it (a wrapper in C++, or another torch)")
        keyed = {int(found[1]) for text in texts if (found := _KEYED_THREADS.fullmatch(text))}
        if keyed - {self._threads}:
            raise Unfit(f"it runs {min(keyed)} threads; this process has {self._threads}")
        calls = [_located(self._codecache, *call) for call in _calls(wrappers[0])]
        binaries = [self._binary(call) for call in calls]
        doubts = [self._doubt(call, data, keyed) for call, data in zip(calls, binaries, strict=True)]
        doubts = [doubt for doubt in doubts if doubt]
        if doubts and not stated:
            raise Unproven(doubts[0])
        if doubts and (several := [call for call in calls if len(self._files(call)) > 1]):
            raise Unfit(f"a kernel was compiled by {len(self._files(several[0]))} commands, so not all of it as now")
        return {call.name: data for call, data in zip(calls, binaries, strict=True)}, seconds

    def _files(self, call: _Call) -> set[str]:
        return self._builds[_source_digest(call.source.encode())]

    def _binary(self, call: _Call) -> bytes:
        path = self._directory / call.path.parent.name / call.path.with_suffix(".so").name
        try:
            data = fsio.read_file(path, MAX_RAW_BYTES, fsio.Trust())
        except CompcacheError as error:
            if self._files(call) - {call.path.name}:
                raise Unfit("a kernel was compiled by another command (vector ISA, flags or headers)") from error
            raise Unfit(f"a kernel's binary is missing: {error}") from error
        if not _whole(data):
            raise Unfit("a kernel's binary is cut")
        return data

    def _doubt(self, call: _Call, data: bytes, keyed: set[int]) -> str:
        """What nothing shows about a kernel. Raises Unfit if something shows that it does not fit."""
        baked = {int(count) for count in _THREADS.findall(call.source)}
        if baked - {self._threads}:
            raise Unfit(f"it runs {min(baked)} threads; this process has {self._threads}")
        loads, steps = vector_lanes(call.source)
        if loads and max(loads) > self._lanes:
            raise Unfit(f"a kernel was generated for vectors of {max(loads)} floats; here they have {self._lanes}")
        producer = producer_of(data)
        here = self._producer(tuple(word for word in call.command.split() if word.startswith("-m")))
        if producer and here and producer != here:
            raise Unfit("a kernel was compiled for another CPU, or by another compiler")
        if producer is None or here is None:
            return "a kernel's binary does not tell its CPU and compiler"
        if "at::vec::" in call.source and (not loads or max(loads | steps) != self._lanes):
            return "a kernel's text does not tell the vector width that it was generated for"
        if "#pragma omp parallel" in call.source and not baked | keyed and self._threads != "dynamic":
            return "a kernel does not tell its thread count"
        return ""

    def _producer(self, flags: tuple[str, ...]) -> Producer | None:
        if flags not in self._producers:
            self._producers[flags] = _compiled_here(flags)
        return self._producers[flags]


Producer = tuple[str, frozenset[str]]
"""GCC's version, and the machine options that it compiled with."""


def producer_of(binary: bytes) -> Producer | None:
    """What GCC says in a binary's debug information; None if nothing, or several things, are said."""
    found = {
        (version.decode(), frozenset(word for word in options.decode().split() if word.startswith(("-m", "--param"))))
        for version, options in _PRODUCER.findall(binary)
    }
    return found.pop() if len(found) == 1 else None


def _compiled_here(flags: tuple[str, ...]) -> Producer | None:
    from torch._inductor.cpp_builder import get_cpp_compiler

    with tempfile.TemporaryDirectory(prefix="compcache-") as folder:
        target = Path(folder) / "empty.o"
        command = [get_cpp_compiler(), *flags, "-g1", "-x", "c++", "-c", "-o", str(target), "-"]
        done = subprocess.run(command, input=b"int compcache;", capture_output=True)  # noqa: S603
        return producer_of(target.read_bytes()) if done.returncode == 0 else None


def vector_lanes(source: str) -> tuple[set[int], set[int]]:
    """How many floats a kernel loads at once into a vector, and the steps of its vector loops.

    A load of a loop's rest takes fewer than a whole vector, but the loop's step is still that of a whole one.
    """
    return {int(found) for found in _LOAD.findall(source)}, {int(found) for found in _STEP.findall(source)} - {1}


def _read(content: bytes) -> tuple[list[str], float]:
    """The texts in a pickle, and its ``_time_taken_ns`` in seconds; nothing in it is executed. Raises Unfit."""
    texts, seconds, awaited = [], 0.0, False
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if isinstance(argument, str):
                texts.append(argument)
                awaited = argument == "_time_taken_ns"
            elif awaited and isinstance(argument, int) and opcode.name.startswith(("BININT", "LONG")):
                seconds, awaited = argument / 1e9, False
    except (ValueError, IndexError, EOFError, UnicodeDecodeError) as error:
        raise Unfit(f"it is no pickle: {error}") from error
    return texts, seconds


def _calls(wrapper: str) -> list[tuple[list[str], str]]:
    """The arguments of each ``async_compile.cpp_pybinding`` in a graph's code. Raises Unfit if there are others."""
    try:
        tree = ast.parse(wrapper)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Unfit(f"its code cannot be read: {error}") from error
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "async_compile"):
            continue
        if node.func.attr == "wait":
            continue
        if node.func.attr != "cpp_pybinding" or len(node.args) != 2 or node.keywords:
            raise Unfit(f"it has kernels of another kind ({node.func.attr})")
        types, source = (ast.literal_eval(argument) for argument in node.args)
        found.append((types, source))
    return found


def _located(codecache: Any, types: list[str], source: str) -> _Call:
    """A kernel's load, as far as torch's name for it; nothing is written or loaded. Raises Unfit."""
    function = codecache.CppCodeCache.__dict__["load_async"].__func__
    signature = inspect.signature(function)
    found: list[tuple[str, str]] = []

    def load_async(cls: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(cls, *args, **kwargs).arguments
        found.append((kernel_name(cls, arguments), next(arguments[n] for n in SOURCE if n in arguments)))
        return inspect.unwrap(function)(cls, *args, **kwargs)

    def write(content: Any, extension: str, extra: str = "", **_options: Any) -> Any:
        name = codecache.get_hash(content.strip(), extra, "code")
        raise _Written(codecache.get_path(name, extension)[2], extra)

    with _replaced(codecache.CppCodeCache, "load_async", classmethod(load_async)), _replaced(codecache, "write", write):
        try:
            codecache.CppPythonBindingsCodeCache.load_pybinding_async(types, source)
        except _Written as written:
            return _Call(*found[0], written.path, written.command)
        except (FactorError, RuntimeError, OSError, LookupError) as error:
            raise Unfit(f"its compiler's command cannot be made here: {error}") from error
    raise Unfit("this torch loads kernels in another way")


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _source_digest(source: bytes) -> str:
    return blake3.blake3(source.strip()).hexdigest(length=16)


def _whole(data: bytes) -> bool:
    """Whether an ELF file of 64 bits reaches to the end of its section headers, which linkers write last."""
    if not data.startswith(_ELF) or len(data) < 64:
        return False
    order = "little" if data[5] == 1 else "big"
    start, size, count = (int.from_bytes(data[a:b], order) for a, b in ((40, 48), (58, 60), (60, 62)))  # type: ignore[arg-type]
    return len(data) >= start + size * count
