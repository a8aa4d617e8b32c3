"""The line at the end of a vLLM start-up, and what is done once the engine is ready: bookkeeping, limits."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection
from types import FrameType
from typing import TYPE_CHECKING, Any

from compcache.adapters.bookkeeping import Bookkeeping
from compcache.session import explained
from compcache.suspicion import Load

if TYPE_CHECKING:
    from compcache.adapters.vllm import Adapter
    from compcache.factors import Factors


class ReadyReport:
    """Says the line of one process after the worker's last step of start-up, and finishes what can wait until then."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.loads: list[Load] = []
        """Loads whose programs have not run through a start-up yet."""
        self._waiting = False
        self.bookkeeping = Bookkeeping()

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
        self.bookkeeping.keep(list(self.adapter.caches))

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


def _is_running(name: str) -> bool:
    """Whether a function of that name is on this thread's stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame is not None
