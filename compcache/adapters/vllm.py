"""vLLM: its start-ups come from the store, and go into it.

Made by :mod:`compcache.adapters.vllm_plugin` in the processes that import vLLM's compiler modules. Each hook is found
by capability (tests/engines/vllm/test_hooks.py takes each away); if one does not fit, the adapter is off as a whole,
with one line, and vLLM starts as without compcache.

The hooks themselves are in :mod:`compcache.adapters.vllm_hooks`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from compcache import fsio, suspicion
from compcache.adapters import graph, startup, vllm_factors, vllm_hooks
from compcache.adapters.host import isa_doubt
from compcache.adapters.imports import when_imported
from compcache.adapters.kernels import Kernels
from compcache.adapters.own_file import vouch, vouched
from compcache.adapters.startup import GraphRecord, Ready, StartUp
from compcache.adapters.vllm_gaps import finalize_loading, force_aot_load, plain_backend_name, traced
from compcache.adapters.vllm_report import ReadyReport
from compcache.cache import Cache
from compcache.config import Settings
from compcache.entry import Entry
from compcache.errors import Damaged, FactorError, NotStored, RequiredMiss
from compcache.session import Session, explained


class Adapter:
    """The hooks of one process and what they share."""

    def __init__(
        self, settings: Settings, session: Session | None = None, inherited: Mapping[str, str] | None = None
    ) -> None:
        """``inherited`` is the environment that the process was started with; the default is what it is now."""
        self.settings = settings
        self.inherited = dict(os.environ if inherited is None else inherited)
        self.session = session or Session()
        self.kernels = Kernels()
        self.kernels.session = self.session
        self.off = ""
        self._missing = set(vllm_hooks.BY_MODULE)
        self._cache: Cache | None = None
        self.current: StartUp | None = None
        self._shared: tuple[Any, dict[str, Any]] | None = None
        self._own: Cache | None = None
        self._healing = False
        self.report = ReadyReport(self)

    @property
    def cache(self) -> Cache:
        """Made at the first start-up; vLLM forks before that.

        While a start-up is at work whose stored programs are suspected, this host's own one (compcache.suspicion).
        """
        return self.own_cache if self._healing else self.shared_cache

    @property
    def shared_cache(self) -> Cache:
        """The one that the settings name."""
        if self._cache is None:
            self._cache = Cache(self.settings, session=self.session)
            for warning in self.settings.warnings:
                self.session.say(warning)
        return self._cache

    @property
    def own_cache(self) -> Cache:
        """This host's own one, for start-ups whose stored programs are suspected (compcache.suspicion)."""
        if self._own is None:
            healed = suspicion.healed(self.settings.state)
            settings = dataclasses.replace(self.settings, directory=healed, trust=fsio.Trust())
            label = self.session.store
            self._own = Cache(settings, session=self.session)
            self.session.store = label
            self._own.budget = self.shared_cache.budget  # a start's waits share one budget
        return self._own

    @property
    def caches(self) -> Iterator[Cache]:
        """Those whose stores are there: the own one is made by the first suspicion, and may be of an earlier start."""
        yield self.shared_cache
        if self._own is not None or os.path.isdir(suspicion.healed(self.settings.state)):
            yield self.own_cache

    # Installation

    def install(self) -> None:
        """The hooks outside vLLM. Its own modules are watched by the plugin, which gives each to ``hook``."""
        outside: dict[str, Callable[[Any], str]] = {
            "torch._inductor.codecache": self.kernels.install,
            "torch._dynamo.aot_compile": functools.partial(vllm_hooks.hook_serialize, self),
        }
        for name, hook in outside.items():
            self._missing.add(name)
            when_imported(name, self._fits(name, hook))

    def hook(self, module: Any) -> None:
        """Put the hooks into one of vLLM's modules, just imported."""
        name = module.__name__
        self._fits(name, functools.partial(vllm_hooks.BY_MODULE[name], self))(module)

    def _fits(self, name: str, hook: Callable[[Any], str]) -> Callable[[Any], None]:
        """A hook gives the reason why it does not fit, or an empty text; then the adapter is off."""

        def install(module: Any) -> None:
            try:
                reason = hook(module)
            except (AttributeError, LookupError, TypeError, ValueError, ImportError) as error:
                reason = f"{type(error).__name__}: {error}"
            self._missing.discard(name)
            self._does_not_fit(reason)

        return install

    def _does_not_fit(self, reason: str) -> None:
        if reason and not self.off:
            self.off = reason
            self.session.say(f"off, this vLLM or torch does not fit: {reason}")

    def check_hooks(self) -> None:
        """At the first start-up: a module that is not imported by then has moved, and without its hook nothing fits."""
        if self._missing:
            self._does_not_fit(f"{', '.join(sorted(self._missing))} is not imported at a start-up")

    # A start

    def load(self, original: Any, model: Any, own_file: str, arguments: tuple[Any, Any] | None) -> Any:
        if self.leaves_alone(model.vllm_config):
            return original(model, own_file)
        began = startup.now()
        self._finish()
        current = self.cache.guarded("no factors", lambda: self._begin(model, arguments), None)
        if current is None:  # uncacheable, and that is said: vLLM goes on with a file of its own
            self._required("its factors cannot be read")
            return original(model, own_file)
        loaded = self.cache.guarded(
            "nothing is loaded", lambda: self._from_store(original, model, own_file, current, began), None
        )
        if loaded is None:
            self.current = current
            loaded = self._miss(original, model, current, own_file)
        return loaded

    def leaves_alone(self, vllm_config: Any) -> bool:
        """Whether vLLM goes on as without compcache; said once."""
        parallel = vllm_config.parallel_config
        if not self.off and (parallel.world_size > 1 or parallel.data_parallel_size > 1):
            self.off = "groups of more than one rank are not supported yet"
            self.session.say(f"off: {self.off}")
        if self.off:
            self._required(self.off)
        # Nothing is compiled, and vLLM looks for a function again at each step.
        return bool(self.off) or vllm_config.compilation_config.backend == "eager"

    def _required(self, why: str) -> None:
        if self.settings.mode == "require":
            raise RequiredMiss(f"COMPCACHE_MODE=require: {why}")

    def shared_factors(self, vllm_config: Any) -> dict[str, Any]:
        """The configuration's factors, read once for vLLM's directory and the start-up that follows."""
        if self._shared is None or self._shared[0] is not vllm_config:
            self._shared = (vllm_config, vllm_factors.shared_factors(vllm_config, self.settings, self.inherited))
        return self._shared[1]

    def _begin(self, model: Any, arguments: tuple[Any, Any] | None) -> StartUp | None:
        try:
            shared = self.shared_factors(model.vllm_config)
            self._shared = None
            factors = vllm_factors.startup_factors(model, arguments, shared)
        except FactorError as error:
            self.session.cannot_cache("this model", str(error))
            return None
        return StartUp(factors, vllm_factors.display(model))

    def _from_store(self, original: Any, model: Any, own_file: str, current: StartUp, began: float) -> Any:
        entry = self._find_or_wait(current)
        if entry is not None and self._is_suspected(entry):
            current.release()
            self._healing = True
            entry = self._find_or_wait(current)
            if entry is not None and self._is_suspected(entry):
                current.doubt = "what this host compiled in its place is suspected, too"
                return None
        if entry is None:
            return None
        found = self._ready_or_healed(current, entry, own_file)
        if found is None:
            return None
        entry = found.entry
        load = suspicion.watched(self.settings.state, entry)
        with fsio.private_file(found.data) as private, self.kernels.serving(found.kernels), finalize_loading():
            loaded = original(model, str(private))
        if loaded is None:
            if load is not None:
                load.abandoned()
            self.session.fault("vLLM did not load a stored start-up", Damaged("see vLLM's warning above"))
            current.doubt = "vLLM could not load what is stored for these factors"
            return None
        current.release()
        self.report.bookkeeping.used(self.cache, [entry, *found.graphs])
        self._healing = False
        self.session.load([entry, *found.graphs], startup.now() - began, found.compile_seconds)
        if load is not None:
            self.report.loads.append(load)
        self.report.when_ready()
        return loaded

    def _ready_or_healed(self, current: StartUp, entry: Entry, own_file: str) -> Ready | None:
        """The start-up's verified parts. A bad one is compiled again by one process; others wait for another entry."""
        try:
            return startup.ready(self.cache, entry, own_file)
        except (NotStored, Damaged) as error:
            self.session.fault("a stored start-up is bad", error)
        bad = entry.digest

        def healed() -> Entry | None:
            found = startup.find(self.cache, current.factors)
            return found if found is not None and found.digest != bad else None

        if current.lease is None:
            current.lease = self.cache.compile_or_wait(current.key, lambda: healed() is not None)
        if (other := healed()) is None:
            return None
        try:
            return startup.ready(self.cache, other, own_file)
        except (NotStored, Damaged):
            return None

    def _find_or_wait(self, current: StartUp) -> Entry | None:
        """The start-up's entry; None if this process is to compile it, with the lease if there is one to be had."""
        entry = startup.find(self.cache, current.factors)
        if entry is None:
            current.lease = self.cache.compile_or_wait(
                current.key, lambda: startup.find(self.cache, current.factors) is not None
            )
            # Also with the lease: who held it before may have published between our look and its release.
            entry = startup.find(self.cache, current.factors)
        return entry

    def _is_suspected(self, entry: Entry) -> bool:
        why = suspicion.suspected(self.settings.state, entry)
        if why:
            self.session.say(f"not loading start-up {entry.program_key[:12]}: {why}; compiling it again for this host")
        return bool(why)

    def _miss(self, original: Any, model: Any, current: StartUp, own_file: str) -> Any:
        """Load what vLLM has in its own directory, if this host vouches for it; else set it aside, and compile."""
        self.session.miss(current.factors)
        if self.settings.mode == "require":
            nearest = self.cache.guarded("no explanation", lambda: self._nearest(current), "missed")
            self._required(nearest)
        if force_aot_load():
            self._finish()
            return original(model, own_file)  # it raises, as the user asked
        if not current.doubt:
            loaded = self.cache.guarded(
                "vLLM's own file is not loaded", lambda: self._from_own_file(original, model, current, own_file), None
            )
            if loaded is not None:
                return loaded
        with contextlib.suppress(OSError):
            fsio.move(Path(own_file), Path(own_file + ".set-aside"))
        return None

    def _nearest(self, current: StartUp) -> str:
        return explained(self.cache.nearest(current.factors, "start-up"))

    def _from_own_file(self, original: Any, model: Any, current: StartUp, own_file: str) -> Any:
        data = vouched(self.settings.state, current.factors, own_file)
        if data is None:
            return None
        with fsio.private_file(data) as private, finalize_loading():
            loaded = original(model, str(private))
        if loaded is not None:
            self.session.say("loaded vLLM's own file, which this host vouches for: the store has nothing")
            self._finish()
            self.report.when_ready()
        return loaded

    def compile(self, action: Callable[[], Any]) -> Any:
        current = self.current
        if current is None:
            return action()
        began = startup.now()
        try:
            with self.kernels.collecting() as current.kernels:
                current.compiled = action()
        except BaseException:
            self._finish()
            raise
        current.seconds = startup.now() - began
        if current.kernels:
            self.cache.guarded("the vector ISA is unknown", lambda: self._check_isa(current), None)
        return current.compiled

    def _check_isa(self, current: StartUp) -> None:
        """The ISA in the factors was predicted without a compiler; now that there was one, it must be the same."""
        import torch

        current.doubt = isa_doubt(torch) or current.doubt
        if current.doubt:
            self.session.cannot_cache("this start-up", current.doubt)

    def compile_graph(self, manager: Any, call: dict[str, Any], action: Callable[[], Any]) -> Any:
        current = self.current
        assert current is not None
        record = self.cache.guarded("a graph has no identity", lambda: self._observe(current, call), None)
        began = startup.now()
        with self.kernels.collecting() as kernels:
            result = action()
        if record is not None:
            record.seconds = startup.now() - began
            record.kernels = kernels
            # The key that torch gave this graph is kept by vLLM next to what it compiled.
            keys = [str(key) for key, value in manager.loaded_artifacts.items() if value is result]
            record.engine_key = keys[0] if keys else ""
        return result

    def _observe(self, current: StartUp, call: dict[str, Any]) -> GraphRecord:
        index, compiled_range = int(call["graph_index"]), str(call["compile_range"])
        known = next((r for (i, _), r in current.graphs.items() if i == index), None)
        # Only the first range sees the graph as it was: later ones may see what passes left.
        digest = known.digest if known is not None else graph.graph_digest(call["graph"])
        record = GraphRecord(digest, graph.inputs(list(call["example_inputs"])))
        current.graphs[index, compiled_range] = record
        return record

    def observe_whole(self, current: StartUp, gm: Any) -> None:
        def observe() -> None:
            values = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
            current.whole = GraphRecord(graph.graph_digest(gm), graph.inputs(values))
            current.symbolic = graph.is_symbolic(values)

        if current.whole is None:
            self.cache.guarded("a graph has no identity", observe, None)

    def publish_graphs(self, current: StartUp, backend: Any, artifacts: Any) -> None:
        indices = {}
        for name, _ in backend.split_gm.named_children():
            child = getattr(backend.split_gm, name)
            child = getattr(child, "runnable", child)
            index = getattr(child, "piecewise_compile_index", None)
            if index is not None:
                indices[name] = int(index)
        startup.publish_graphs(self.cache, current, artifacts, indices)

    def save(self, current: StartUp, fn: Any, action: Callable[[], Any]) -> Any:
        try:
            with plain_backend_name(fn):
                result = action()
            if not current.holds_graphs and not current.doubt:
                # VLLM_USE_MEGA_AOT_ARTIFACT=0: a load would compile its graphs, and that is not what "loaded" means.
                current.doubt = "its file does not hold its graphs"
                self.session.cannot_cache("this start-up", current.doubt)
            if self.stores(current):
                entry = self.cache.guarded(
                    "the start-up is not stored",
                    lambda: startup.publish_startup(self.cache, current, result.serialized_data, traced(fn)),
                    None,
                )
                entries = [*current.published, *([entry] if entry else [])]
            else:
                entries, entry = [], None
            if entry is None and not current.doubt:
                self.cache.guarded(
                    "vLLM's own file is not vouched for",
                    lambda: vouch(self.settings.state, current, result.serialized_data, traced(fn)),
                    None,
                )
            self.session.compile(entries, current.seconds, not_stored=max(0, current.programs - len(entries)))
            return result
        finally:
            self._finish()
            self.report.when_ready()

    def stores(self, current: StartUp) -> bool:
        """Whether what this start-up compiles may be published."""
        return self.cache.writes and not current.doubt

    def _finish(self) -> None:
        """Forget the current start-up; its lease is given up before any further engine call."""
        current, self.current = self.current, None
        if current is not None:
            current.release()
        self._healing = False
