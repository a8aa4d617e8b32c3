"""Inductor: every ``torch.compile`` of a process uses the store.

    import compcache.adapters.inductor
    compcache.adapters.inductor.enable()

or, for a script that one cannot edit, ``python -m compcache run script.py ARGS``. Nothing is imported and nothing
opened until torch's compiler is. The hooks are in :mod:`compcache.adapters.inductor_hooks`; each is found by
capability, and if one does not fit, the adapter is off as a whole, with one line.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from compcache import config
from compcache.adapters import inductor_hooks
from compcache.adapters.bookkeeping import Bookkeeping
from compcache.adapters.host import isa_doubt
from compcache.adapters.imports import when_imported
from compcache.adapters.inductor_factors import TAG, HostFactors, Reading, mode_name
from compcache.adapters.inductor_names import UNNAMED, dtype_name, model_name, traced
from compcache.adapters.inductor_programs import Compile, Graphs, Here, own_factors
from compcache.adapters.kernels import Kernels
from compcache.cache import Cache
from compcache.config import Settings
from compcache.errors import ConfigError
from compcache.factors import Factors, JsonValue
from compcache.session import Session, to_stderr

_lock = threading.Lock()
_adapter: Adapter | None = None


class Adapter:
    """The hooks of one process and what they share."""

    def __init__(self, settings: Settings, session: Session | None = None) -> None:
        self.settings = settings
        self.session = session or Session()
        self.kernels = Kernels()
        self.kernels.session = self.session
        self.here = Here()
        self.off = ""
        self.undo: list[Callable[[], object]] = []
        """What takes the hooks out of torch again."""
        self.single: set[str] = set()
        """The kinds of records of which torch keeps one per key."""
        self.free: dict[str, int] = {}
        """By torch's key, the number under which a program of it is stored next."""
        self.graphs = Graphs(self, "graph")
        self._host = HostFactors(settings)
        self._cache: Cache | None = None
        self._bookkeeping = Bookkeeping()
        self._shared: dict[str, dict[str, JsonValue]] = {}
        """By torch's key, the factors at its lookup: what is stored later is stored under those."""
        self._names: dict[Any, tuple[Any, tuple[str, str, str]]] = {}
        self._ranges: dict[Any, str] = {}
        self._isa: str | None = None

    @property
    def cache(self) -> Cache:
        """Made at the first lookup."""
        if self._cache is None:
            self._cache = Cache(self.settings, session=self.session)
            for warning in self.settings.warnings:
                self.session.say(warning)
        return self._cache

    def install(self) -> None:
        for name, hook in inductor_hooks.BY_MODULE.items():
            when_imported(name, functools.partial(self._hook, functools.partial(hook, self)))

    def _hook(self, hook: Callable[[Any], str], module: Any) -> None:
        if self.off:
            return
        try:
            reason = hook(module)
        except (AttributeError, LookupError, TypeError, ValueError, ImportError) as error:
            reason = f"{type(error).__name__}: {error}"
        if reason:
            self.off = reason
            while self.undo:
                self.undo.pop()()
            self.session.say(f"off, this torch does not fit: {reason}")

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Put ``value`` in the place of an attribute of torch's; undone if some hook does not fit."""
        own = vars(owner)
        undo = functools.partial(setattr, owner, name, own[name]) if name in own else None
        setattr(owner, name, value)
        self.undo.append(undo or functools.partial(delattr, owner, name))

    # Factors

    def refresh_tag(self) -> str:
        """Put the factors into torch's key, as they are now; the tag. Empty, and said, if they cannot be read."""
        import torch
        import torch.compiler.config as compiler

        reading = self.cache.guarded("no factors", lambda: self._read(torch), None)
        if reading is None:
            return ""
        entry = compiler._config["cache_key_tag"]
        before = str(entry.env_value_default if isinstance(entry.env_value_default, str) else "")
        own, _, _ = before.partition(TAG)
        if before != own + reading.tag:
            inductor_hooks.preset(compiler, "cache_key_tag", own + reading.tag)
        return reading.tag

    def _read(self, torch: Any) -> Reading:
        return self._host.read(torch)

    def host_factors(self) -> Mapping[str, JsonValue]:
        """What is in no key of torch's: host, toolchain, environment. Raises FactorError."""
        import torch

        return self._read(torch).factors

    def factors(self, key: str, number: int) -> Factors:
        """The factors of a program that torch looks up under ``key``. Raises FactorError."""
        import torch

        shared = self._shared.get(key)
        if shared is None:
            model, dtype, mode = self._named(torch)
            shared = {**self._read(torch).factors, "model": model, "dtype": dtype, "mode": mode}
            self._shared[key] = shared
        return Factors(shared, own_factors(key, number))

    def plain_factors(self, key: str, number: int, kind: str) -> Factors:
        """The factors of what belongs to no model. A profile of shapes fits any host: it says what varies."""
        import torch

        host = self._read(torch)
        shared = dict(host.factors)
        if kind == "profile":
            shared = {name: value for name, value in shared.items() if name in ("python.version", "torch.version")}
        shared["record"] = kind
        return Factors(shared, own_factors(key.replace(host.tag, ""), number))

    def _named(self, torch: Any) -> tuple[str, str, str]:
        """Model, dtype and mode of what is compiled; a backward's are those of its forward."""
        compile_id = torch._guards.CompileContext.current_compile_id()
        code, values = traced(torch)
        known, found = self._names.get(compile_id, (None, None))
        # The first lookup tells: what torch does later, it does without the user's autocast. Outside of Dynamo a
        # backward is compiled, with the id of its forward; and torch._dynamo.reset() begins with the first id again.
        if found is None or compile_id is None or code not in (None, known):
            found = (model_name(torch, code, values), dtype_name(torch, values), mode_name(torch))
            self._names[compile_id] = code, found
        return found

    # For people

    def remember_range(self, shown: str, *, backward: bool) -> str:
        """The range of a graph; a backward's inputs tell less, so it has its forward's."""
        import torch

        compile_id = torch._guards.CompileContext.current_compile_id()
        if not backward or compile_id not in self._ranges:
            self._ranges[compile_id] = shown
        return self._ranges[compile_id]

    def display(self, key: str) -> Mapping[str, JsonValue]:
        import torch

        shared = self._shared.get(key, {})
        compile_id = torch._guards.CompileContext.current_compile_id()
        return {
            "model": shared.get("model", UNNAMED),
            "dtype": shared.get("dtype", UNNAMED),
            "mode": shared.get("mode", ""),
            "range": self._ranges.get(compile_id, "any"),
            **self.toolchain(),
        }

    def toolchain(self) -> dict[str, JsonValue]:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        name = torch.cuda.get_device_name() if device == "cuda" else torch.backends.cpu.get_cpu_capability().lower()
        return {"engine": "torch.compile", "toolchain": f"torch {torch.__version__}", "hardware": f"{device} {name}"}

    # One graph

    @contextlib.contextmanager
    def compiling(self, current: Compile) -> Iterator[None]:
        """One graph, from its lookup to its publication."""
        current.outer, self.here.compile = self.here.compile, current
        self.here.candidate = None
        try:
            with self.kernels.collecting_here() as current.kernels:
                yield
        finally:
            self.here.compile = current.outer
            self.here.plain_key = None
            if current.lease is not None:
                current.lease.release()
        if current.missed is not None:
            self.session.miss(current.missed)
            if not current.stored:
                self.session.compile([], time.perf_counter() - current.began, not_stored=1)

    def isa_is_right(self) -> bool:
        """Whether kernels were built for the ISA that is in the factors; said once if not."""
        if self._isa is None:
            import torch

            self._isa = isa_doubt(torch)
            if self._isa:
                self.session.cannot_cache("graphs with kernels", self._isa)
        return not self._isa

    # Sessions

    @contextlib.contextmanager
    def counting(self) -> Iterator[Session]:
        """A session of what this process does within the block."""
        outer = self.session
        inner = Session(say=outer.say, store=self.cache.store.label)
        self._use(inner)
        try:
            yield inner
        finally:
            self._use(outer)
            outer.absorb(inner)

    def _use(self, session: Session) -> None:
        self.session = self.kernels.session = session
        if self._cache is not None:
            self._cache.session = session

    def forked(self) -> None:
        """A child counts its own, and has a cache of its own: what its parent's threads held is not there."""
        self._cache = None
        self._bookkeeping = Bookkeeping()
        self._use(Session(say=self.session.say))

    def finish(self) -> None:
        """At the end of a process: the one line, last use and limits. Publication waits for nothing of this."""
        session = self.session
        if self._cache is None or not session.active:
            return
        line = session.report()
        if session.missed:
            line += f"; {self.graphs.why(session.missed[0], {entry.program_key for entry in session.compiled})}"
        session.say(line)
        self._bookkeeping.used(self._cache, session.loaded)
        self._bookkeeping.keep([self._cache])


def enable() -> Adapter | None:
    """Make every ``torch.compile`` of this process use the store. Idempotent, cheap, and does not raise.

    None if COMPCACHE_MODE=off or COMPCACHE_INDUCTOR=0.
    """
    global _adapter
    with _lock:
        if _adapter is None:
            try:
                settings = config.load()
            except ConfigError as error:
                to_stderr(f"off: {error}")
                return None
            if settings.mode == "off" or not settings.inductor:
                return None
            _adapter = Adapter(settings)
            _adapter.install()
            _at_exit(_adapter)
        return _adapter


def _at_exit(adapter: Adapter) -> None:
    known = weakref.ref(adapter)
    pid = os.getpid()

    def forked() -> None:
        if (found := known()) is not None:
            found.forked()

    def finish() -> None:
        if os.getpid() == pid or adapter.session.active:
            adapter.finish()

    os.register_at_fork(after_in_child=forked)
    atexit.register(finish)


@contextlib.contextmanager
def session() -> Iterator[Session]:
    """What ``compcache.session()`` gives: Inductor's programs come from the store, and are counted within the block."""
    adapter = enable()
    if adapter is None:
        yield Session()
        return
    with adapter.counting() as counted:
        yield counted
