"""The line at the end of a vLLM start-up, and what is done once the engine is ready: bookkeeping, limits."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

from compcache.index import Index
from compcache.records import Use
from compcache.session import explained, size_text
from compcache.suspicion import Load

if TYPE_CHECKING:
    from compcache.adapters.vllm import Adapter
    from compcache.cache import Cache
    from compcache.entry import Entry
    from compcache.factors import Factors


class ReadyReport:
    """Says the line of one process after the worker's last step of start-up, and finishes what can wait until then."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.loads: list[Load] = []
        """Loads whose programs have not run through a start-up yet."""
        self._waiting = False
        self._uses: list[tuple[Cache, list[Entry]]] = []

    def when_ready(self) -> None:
        """Report after the worker's last step, or now if that cannot be hooked."""
        if self._waiting:
            return
        owners = [
            value
            for name, module in list(sys.modules.items())
            if name.startswith("vllm.v1.worker.") and module is not None
            for value in list(vars(module).values())
            if isinstance(value, type) and "compile_or_warm_up_model" in vars(value) and value.__module__ == name
        ]
        if not owners or _is_running("compile_or_warm_up_model"):
            self.report()
            return
        self._waiting = True
        for owner in owners:
            self._hook(owner)

    def _hook(self, owner: Any) -> None:
        original = owner.compile_or_warm_up_model

        @functools.wraps(original)
        def compile_or_warm_up_model(worker: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(worker, *args, **kwargs)
            self.report()
            return result

        owner.compile_or_warm_up_model = compile_or_warm_up_model

    def report(self) -> None:
        """The one line, with why a start missed; then what else is due. Runs after the engine is ready."""
        cache = self.adapter.shared_cache
        while self.loads:
            self.loads.pop().succeeded()
        cache.guarded("no report", self._say, None)
        cache.guarded("no bookkeeping", self._count, None)
        for one in self.adapter.caches:
            cache.guarded("limits are not kept", functools.partial(self._keep_limits, one), None)

    def _say(self) -> None:
        session, cache = self.adapter.session, self.adapter.shared_cache
        line = session.report()
        mine = {entry.program_key for entry in session.compiled}
        for factors in session.missed:
            line += f"; {cache.guarded('no explanation', functools.partial(self._why, factors, mine), 'missed')}"
        session.say(line)
        session.missed.clear()

    def _why(self, factors: Factors, mine: Collection[str]) -> str:
        return explained(self.adapter.shared_cache.nearest(factors, "start-up", mine))

    def used(self, cache: Cache, entries: Iterable[Entry]) -> None:
        """These were loaded from the store of that cache; it is written down once the engine is ready."""
        self._uses.append((cache, list(entries)))

    def _count(self) -> None:
        """Each loaded program once, however often a process reports."""
        session = self.adapter.session
        uses, self._uses = self._uses, []
        saved = session.saved_seconds / max(1, len(session.loaded))
        self._index.record(
            Use(entry.program_key, cache.store.label, saved, cache.clock()) for cache, used in uses for entry in used
        )
        # Last: it lists folders of the store, and one that cannot be listed must not cost the statistics.
        for cache, used in uses:
            cache.mark_used(used)

    def _keep_limits(self, cache: Cache) -> None:
        from compcache import limits  # only here: the engine waits for the imports of this module

        swept = limits.keep(cache, self._index)
        if swept is not None and swept.outcome.removed:
            self.adapter.session.say(
                f"pruned {swept.files_before - swept.files_after} files to keep {cache.store.label} within its limits:"
                f" {size_text(swept.bytes_before)} before, {size_text(swept.bytes_after)} now"
            )

    @property
    def _index(self) -> Index:
        return Index(self.adapter.settings.state / "index")


def _is_running(name: str) -> bool:
    """Whether a function of that name is on this thread's stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame is not None
