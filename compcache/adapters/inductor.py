"""The kernels of Inductor's C++ backend: binaries that a graph loads, kept with the graph.

The seam is one class method, ``torch._inductor.codecache.CppCodeCache.load_async`` (torch 2.13; called as
``CppPythonBindingsCodeCache`` and others): every C++ kernel is loaded through it. While a start-up is loaded, kernels
are served from its verified bytes, so that no compiler and no vector-ISA probe is started; while one is compiled, the
kernels that it loads are collected.

A kernel's name is the digest of everything that goes into that call: the cache class with its flags and entry
function, both source texts, device, extra flags and ISA needs. What else shapes the binary (Inductor's ``cpp``
configuration, the toolchain, the ISA) are factors of the program that it belongs to, and kernels are served only
while that program is being loaded.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import blake3

from compcache import fsio
from compcache.errors import FactorError
from compcache.factors import canonical, plain
from compcache.session import Session

SUBMIT = "submit_fn"
"""The parameter of ``load_async`` that says where to compile; no part of a kernel."""


class Kernels:
    """The seam of one process. :meth:`install` is idempotent."""

    def __init__(self) -> None:
        self.session = Session()
        self._served: dict[str, _Served] = {}
        self._collected: dict[str, bytes] | None = None
        self._lock = threading.Lock()

    def install(self, codecache: Any) -> str:
        """Put the seam into ``torch._inductor.codecache``; a reason if this torch's does not fit, else empty."""
        base: Any = getattr(codecache, "CppCodeCache", None)
        original = getattr(base, "__dict__", {}).get("load_async")
        if not isinstance(original, classmethod) or not hasattr(base, "_load_library"):
            return "torch has no CppCodeCache.load_async"
        function = original.__func__
        if getattr(function, "_compcache", False):
            return ""
        signature = inspect.signature(function)
        if not {"main_code", SUBMIT} <= signature.parameters.keys():
            return "torch's CppCodeCache.load_async takes other arguments"

        @functools.wraps(function)
        def load_async(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._served and self._collected is None:
                return function(cls, *args, **kwargs)
            return self._load(cls, signature, function, args, kwargs)

        load_async._compcache = True  # type: ignore[attr-defined]
        base.load_async = classmethod(load_async)
        return ""

    @contextlib.contextmanager
    def serving(self, kernels: Mapping[str, bytes]) -> Iterator[None]:
        """Serve these kernels (verified bytes by name) to every thread for the length of the block."""
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

    def _load(self, cls: Any, signature: inspect.Signature, function: Any, args: Any, kwargs: Any) -> Any:
        def compiled() -> Any:
            return function(cls, *args, **kwargs)

        try:
            name = kernel_name(cls, signature.bind(cls, *args, **kwargs).arguments)
        except (FactorError, TypeError) as error:
            self.session.cannot_cache("a kernel", str(error))
            return compiled()
        served = self._served.get(name)
        if served is not None:
            return lambda: served.library(cls, compiled)
        collected = self._collected
        get = compiled()
        if collected is None:
            self.session.kernel(loaded=False)
            return get
        return lambda: self._collect(collected, name, get())

    def _collect(self, collected: dict[str, bytes], name: str, library: Any) -> Any:
        if name not in collected:
            path = getattr(library, "__file__", None) or getattr(library, "_name", None)
            try:
                with open(str(path), "rb") as file:
                    collected[name] = file.read()
                self.session.kernel(loaded=False)
            except OSError as error:
                # The graph is then stored without this kernel, and a load compiles that one.
                self.session.fault("a kernel cannot be read", error)
        return library


class _Served:
    """One kernel to be loaded from verified bytes, once, by whichever thread is first."""

    def __init__(self, name: str, data: bytes, session: Session) -> None:
        self._name = name
        self._data: bytes | None = data
        self._session = session
        self._lock = threading.Lock()
        self._library: Any = None

    def library(self, cls: Any, compiled: Callable[[], Any]) -> Any:
        with self._lock:
            if self._library is None:
                self._library = self._load(cls) or compiled()()
                self._data = None
            return self._library

    def _load(self, cls: Any) -> Any:
        """The loaded library, or None if it cannot be: then this one kernel is compiled."""
        try:
            # A fresh random path for each: dlopen gives back an already loaded library for a path it has seen.
            with fsio.private_file(self._data or b"", ".so") as path:
                library = cls._load_library(str(path), self._name)
        except (OSError, ImportError) as error:
            self._session.fault("a kernel does not load", error)
            self._session.kernel(loaded=False)
            return None
        self._session.kernel(loaded=True)
        return library


def kernel_name(cls: Any, arguments: Mapping[str, Any]) -> str:
    """64 hexadecimal digits. Raises FactorError if an argument is not a plain value."""
    inputs = {name: value for name, value in arguments.items() if name not in ("cls", SUBMIT)}
    described = {
        "class": f"{cls.__module__}.{cls.__qualname__}",
        "flags": getattr(cls, "cpp_compile_command_flags", {}),
        "entry": getattr(cls, "entry_function", ""),
        "call": inputs,
    }
    return blake3.blake3(canonical(plain(described, "kernel"))).hexdigest()


def changed_settings(module: Any) -> dict[str, Any]:
    """The settings of a torch config module (``torch._inductor.config``, ...) that are not at their default.

    The portable form (``save_config_portable``): no caches, workers or debugging. Defaults belong to the torch
    version, which is a factor. Raises FactorError for a value that has no stable identity.
    """
    entries = getattr(module, "_config", {})
    result = {}
    for name, value in module.save_config_portable().items():
        default = getattr(entries.get(name), "default", _ABSENT)
        if default is _ABSENT or (value is not default and value != default):
            result[name] = identity(value, name)
    return result


_PLACE = re.compile(r"(^|[._])(dir|root|path|home)$")


def settings_digest(module: Any) -> str:
    """Digest over all portable settings of a torch config module, at their default or not.

    :func:`changed_settings` names what differs, but torch takes an environment variable's value, as it is when torch is
    imported, for the default (``_ConfigEntry.default``, torch/utils/_config_module.py).
    """
    found = {}
    for name, value in module.save_config_portable().items():
        if _PLACE.search(name):
            continue  # dynamo.base_dir, dynamo.debug_dir_root: the virtual environment and the working directory
        try:
            found[name] = identity(_without_folder(value) if name == "cpp.cxx" else value, name)
        except FactorError:
            # A default that is a function: it belongs to the torch version. A changed one is refused above.
            found[name] = f"{type(value).__module__}.{type(value).__qualname__}"
    return blake3.blake3(canonical(found)).hexdigest(length=16)


def _without_folder(compilers: Any) -> list[str]:
    """The compilers that may be used, by name: where they are is no part of a program."""
    return [os.path.basename(str(compiler)) for compiler in compilers]


_ABSENT = object()


def identity(value: Any, name: str) -> Any:
    """A plain value for an engine's setting: itself, a ``uuid()``, or a class or dtype by its name.

    Raises FactorError for functions and objects, whose behaviour their name does not tell.
    """
    uuid = getattr(value, "uuid", None)
    if callable(uuid) and not isinstance(value, type):
        token = uuid()
        if token is None:
            raise FactorError(f"{name} has no identity (its uuid() is None)")
        return token if isinstance(token, (str, int)) else blake3.blake3(repr(token).encode()).hexdigest(length=16)
    if isinstance(value, (list, tuple)):
        return [identity(item, name) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((identity(item, name) for item in value), key=canonical)
    if isinstance(value, Mapping):
        return {str(key): identity(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if type(value).__module__ == "torch":
        return str(value)
    return plain(value, name)
