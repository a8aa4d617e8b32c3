"""The kernels of Inductor's C++ backend: binaries that a graph loads, kept with the graph.

The seam is one class method, ``torch._inductor.codecache.CppCodeCache.load_async`` (torch 2.13; called as
``CppPythonBindingsCodeCache`` and others): every C++ kernel is loaded through it. While a program is loaded, kernels
are served from its verified bytes, so that no compiler and no vector-ISA probe is started; while one is compiled, the
kernels that it loads are collected. A start-up of vLLM loads its graphs in pools of threads, so its scopes are the
process's; any other graph is compiled, and loaded, by one thread (torch/_inductor/async_compile.py hands only the
compiler's run to a pool), so its scopes are that thread's.

A kernel's name is the digest of everything that goes into that call: the cache class with its flags and entry
function, both source texts, device, extra flags and ISA needs. What else shapes the binary (Inductor's ``cpp``
configuration, the toolchain, the ISA) are factors of the program that it belongs to, and kernels are served only
while that program is being loaded.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import blake3

from compcache import fsio
from compcache.errors import CompcacheError, FactorError
from compcache.factors import canonical, plain
from compcache.session import Session

SOURCE = {"main_code", "source_code"}
"""The names that the first parameter of ``load_async``, the kernel's text, has had (the second in torch 2.7)."""
SUBMIT = "submit_fn"
"""The parameter of ``load_async`` that says where to compile; no part of a kernel."""
TRIAL = "CppCodeCache"
"""The class by which max-autotune loads the candidates that it times (torch/_inductor/autotune_process.py); what a
graph itself loads comes by its subclasses (torch/_inductor/async_compile.py)."""

_HEADER = re.compile(r'(?m)^#include "[^"\n]*/(c[a-z2-7]{51}\.h)"')
"""torch 2.7 includes its own header by a path in its cache directory (``cpp_prefix``, torch/_inductor/codecache.py),
under a name that is a digest of the header: another machine's path is another one, and means the same."""

Source = bytes | Callable[[], bytes]
"""Verified bytes, or what reads and verifies them when they are needed."""


class Kernels:
    """The seam of one adapter. :meth:`install` is idempotent; several adapters share one hook."""

    def __init__(self) -> None:
        self.session = Session()
        self._served: dict[str, _Served] = {}
        self._collected: dict[str, bytes] | None = None
        self._lock = threading.Lock()
        self._here = threading.local()

    def install(self, codecache: Any) -> str:
        """Put the seam into ``torch._inductor.codecache``; a reason if this torch's does not fit, else empty."""
        base: Any = getattr(codecache, "CppCodeCache", None)
        original = getattr(base, "__dict__", {}).get("load_async")
        if not isinstance(original, classmethod) or not hasattr(base, "_load_library"):
            return "torch has no CppCodeCache.load_async"
        function = original.__func__
        sharing: list[Kernels] | None = getattr(function, "_compcache", None)
        if sharing is not None:
            if self not in sharing:
                sharing.append(self)
            return ""
        signature = inspect.signature(function)
        if not SOURCE & signature.parameters.keys() or SUBMIT not in signature.parameters:
            return "torch's CppCodeCache.load_async takes other arguments"
        seams = [self]

        @functools.wraps(function)
        def load_async(cls: Any, *args: Any, **kwargs: Any) -> Any:
            for seam in seams:
                if seam._active:
                    return seam._load(cls, signature, function, args, kwargs)
            return function(cls, *args, **kwargs)

        load_async._compcache = seams  # type: ignore[attr-defined]
        base.load_async = classmethod(load_async)
        return ""

    def uninstall(self, codecache: Any) -> None:
        """Have nothing more to do with torch's kernels."""
        sharing: list[Kernels] = getattr(codecache.CppCodeCache.__dict__["load_async"].__func__, "_compcache", [])
        if self in sharing:
            sharing.remove(self)

    @property
    def _active(self) -> bool:
        return bool(self._served) or self._collected is not None or self._scope is not None

    @property
    def _scope(self) -> _Scope | None:
        """What this thread is at; None outside of :meth:`serving_here` and :meth:`collecting_here`."""
        scope: _Scope | None = getattr(self._here, "scope", None)
        return scope

    @contextlib.contextmanager
    def serving(self, kernels: Mapping[str, Source]) -> Iterator[None]:
        """Serve these kernels (by name) to every thread for the length of the block."""
        with self._lock:
            self._served = {name: _Served(name, data, self.session) for name, data in kernels.items()}
        try:
            yield
        finally:
            with self._lock:
                self._served = {}

    @contextlib.contextmanager
    def collecting(self) -> Iterator[dict[str, bytes]]:
        """Collect the kernels that any thread compiles or loads within the block: bytes by name."""
        with self._lock:
            before, self._collected = self._collected, {}
            mine = self._collected
        try:
            yield mine
        finally:
            with self._lock:
                self._collected = before
                if before is not None:
                    before.update(mine)

    @contextlib.contextmanager
    def serving_here(self, kernels: Mapping[str, Source]) -> Iterator[dict[str, bytes]]:
        """Serve these kernels to this thread alone; gives those that had to be compiled in the place of one of them."""
        served = {name: _Served(name, data, self.session) for name, data in kernels.items()}
        with self._scoped(_Scope(served)) as scope:
            yield scope.collected

    @contextlib.contextmanager
    def collecting_here(self) -> Iterator[dict[str, bytes]]:
        """Collect the kernels that this thread's graph loads within the block; of nested blocks, only the inner's."""
        with self._scoped(_Scope({})) as scope:
            yield scope.collected

    @contextlib.contextmanager
    def _scoped(self, scope: _Scope) -> Iterator[_Scope]:
        before = self._scope
        self._here.scope = scope
        try:
            yield scope
        finally:
            self._here.scope = before

    def _load(self, cls: Any, signature: inspect.Signature, function: Any, args: Any, kwargs: Any) -> Any:
        def compiled() -> Any:
            return function(cls, *args, **kwargs)

        scope, collected = self._scope, self._collected
        if scope is not None:
            collected = None if cls.__name__ == TRIAL else scope.collected
        try:
            name = kernel_name(cls, signature.bind(cls, *args, **kwargs).arguments)
        except (FactorError, TypeError) as error:
            self.session.cannot_cache("a kernel", str(error))
            return compiled()
        served = (scope.served if scope is not None else self._served).get(name)
        if served is not None:
            return lambda: served.library(cls, compiled, lambda library: self._keep(collected, name, library))
        get = compiled()
        if collected is None:
            if scope is None:
                self.session.kernel(loaded=False)
            return get
        return lambda: self._collect(collected, name, get())

    def _collect(self, collected: dict[str, bytes], name: str, library: Any) -> Any:
        if name not in collected and self._keep(collected, name, library):
            self.session.kernel(loaded=False)
        return library

    def _keep(self, collected: dict[str, bytes] | None, name: str, library: Any) -> bool:
        """Keep the bytes of a kernel that was compiled; whether they are kept."""
        if collected is None:
            return False
        path = getattr(library, "__file__", None) or getattr(library, "_name", None)
        try:
            with open(str(path), "rb") as file:
                collected[name] = file.read()
        except OSError as error:
            # The graph is then stored without this kernel, and a load compiles that one.
            self.session.fault("a kernel cannot be read", error)
            return False
        return True


class _Scope:
    """What one thread is at: the kernels served to it, and those it compiled."""

    def __init__(self, served: dict[str, _Served]) -> None:
        self.served = served
        self.collected: dict[str, bytes] = {}


class _Served:
    """One kernel to be loaded from verified bytes, once, by whichever thread is first."""

    def __init__(self, name: str, source: Source, session: Session) -> None:
        self._name = name
        self._source: Source | None = source
        self._session = session
        self._lock = threading.Lock()
        self._library: Any = None

    def library(self, cls: Any, compiled: Callable[[], Any], keep: Callable[[Any], object]) -> Any:
        with self._lock:
            if self._library is None:
                self._library = self._load(cls)
                self._source = None
            if self._library is None:
                self._library = compiled()()
                keep(self._library)
            return self._library

    def _load(self, cls: Any) -> Any:
        """The loaded library, or None if it cannot be: then this one kernel is compiled."""
        try:
            source = self._source or b""
            data = source if isinstance(source, bytes) else source()
            # A fresh random path for each: dlopen gives back an already loaded library for a path it has seen. And a
            # key for these very bytes: torch gives back the module that it has loaded under a key.
            key = self._name[:32] + blake3.blake3(data).hexdigest(length=16)
            with fsio.private_file(data, ".so") as path:
                library = cls._load_library(str(path), key)
        except (OSError, ImportError, CompcacheError) as error:
            self._session.fault("a kernel does not load", error)
            self._session.kernel(loaded=False)
            return None
        self._session.kernel(loaded=True)
        return library


def kernel_name(cls: Any, arguments: Mapping[str, Any]) -> str:
    """64 hexadecimal digits. Raises FactorError if an argument is not a plain value."""
    inputs = {
        name: _HEADER.sub(r'#include "\1"', value) if isinstance(value, str) else value
        for name, value in arguments.items()
        if name not in ("cls", SUBMIT)
    }
    described = {
        "class": f"{cls.__module__}.{cls.__qualname__}",
        "flags": getattr(cls, "cpp_compile_command_flags", {}),
        "entry": getattr(cls, "entry_function", ""),
        "call": inputs,
    }
    return blake3.blake3(canonical(plain(described, "kernel"))).hexdigest()
