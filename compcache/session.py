"""What one process loaded, compiled and saved, and the one line that says so."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from compcache.entry import Entry
from compcache.factors import Difference, Factors


def to_stderr(line: str) -> None:
    """The default way to say something. Never raises: a closed stderr must not stop an engine."""
    with contextlib.suppress(OSError, ValueError):
        print(f"compcache: {line}", file=sys.stderr, flush=True)  # noqa: T201


@dataclass
class Session:
    """Counts of one process. All times are seconds. Thread-safe."""

    say: Callable[[str], None] = to_stderr
    store: str = ""
    loaded: list[Entry] = field(default_factory=list)
    compiled: list[Entry] = field(default_factory=list)
    not_stored: int = 0
    """Programs that were compiled but could not be stored."""
    load_seconds: float = 0.0
    compile_seconds: float = 0.0
    saved_seconds: float = 0.0
    kernels_loaded: int = 0
    kernels_compiled: int = 0
    missed: list[Factors] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    uncacheable: dict[str, str] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self, entries: Iterable[Entry], seconds: float, saved: float) -> None:
        """Programs were loaded: it took ``seconds`` and stood for ``saved`` seconds of compiling."""
        with self._lock:
            self.loaded.extend(entries)
            self.load_seconds += seconds
            self.saved_seconds += max(0.0, saved - seconds)

    def compile(self, entries: Iterable[Entry], seconds: float, *, not_stored: int = 0) -> None:
        """Programs were compiled, in ``seconds``: those of ``entries``, and some that are not stored."""
        with self._lock:
            self.compiled.extend(entries)
            self.not_stored += not_stored
            self.compile_seconds += seconds

    def kernel(self, *, loaded: bool) -> None:
        with self._lock:
            if loaded:
                self.kernels_loaded += 1
            else:
                self.kernels_compiled += 1

    def absorb(self, other: Session) -> None:
        """Add what ``other`` counted: the session of a part of this one's time."""
        with self._lock:
            for name in ("loaded", "compiled", "missed"):
                getattr(self, name).extend(getattr(other, name))
            for name in ("not_stored", "kernels_loaded", "kernels_compiled"):
                setattr(self, name, getattr(self, name) + getattr(other, name))
            for name in ("load_seconds", "compile_seconds", "saved_seconds"):
                setattr(self, name, getattr(self, name) + getattr(other, name))
            for what, count in other.faults.items():
                self.faults[what] = self.faults.get(what, 0) + count
            self.uncacheable.update(other.uncacheable)
            self._said |= other._said

    def miss(self, factors: Factors) -> None:
        with self._lock:
            self.missed.append(factors)

    def fault(self, what: str, error: BaseException) -> None:
        """A fault of the cache became a miss: counted always, said the first time."""
        with self._lock:
            self.faults[what] = self.faults.get(what, 0) + 1
            text = " ".join(str(error).split()) or type(error).__name__  # one line, whatever the error's text is
            # One cause has many effects: a store of a newer format is met by every lookup and every publication.
            first = self.faults[what] == 1 and text not in self._said
            self._said.add(text)
        if first:
            self.say(f"{what}: {text}; going on without")

    def cannot_cache(self, what: str, reason: str) -> None:
        """A program is uncacheable: said once per reason."""
        with self._lock:
            first = self.uncacheable.get(what) != reason
            self.uncacheable[what] = reason
        if first:
            self.say(f"not caching {what}: {reason}")

    @property
    def active(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.loaded or self.compiled or self.not_stored or self.faults or self.missed)

    def report(self) -> str:
        """The one line: programs loaded and compiled, seconds they took and saved, kernels, faults, the store."""
        parts = [
            f"{len(self.loaded)} programs loaded in {self.load_seconds:.2f} s",
            f"{len(self.compiled) + self.not_stored} compiled in {self.compile_seconds:.1f} s",
            f"{self.saved_seconds:.1f} s saved",
            f"kernels: {self.kernels_loaded} loaded, {self.kernels_compiled} compiled",
        ]
        if self.faults:
            parts.append(f"faults: {sum(self.faults.values())}")
        return f"{'; '.join(parts)}; store {self.store or 'none'}"


def explained(differences: list[Difference] | None, most: int = 3) -> str:
    """Why a start missed, for one line: at most ``most`` factors with both values."""
    if differences is None:
        return "missed: nothing like it is stored yet"
    if not differences:
        return "missed: the stored program has equal factors but could not be used"
    named = "; ".join(str(d) for d in differences[:most])
    more = f"; and {len(differences) - most} more" if len(differences) > most else ""
    return f"missed: differs from the nearest entry in {named}{more}"


def size_text(count: int) -> str:
    """Bytes for a line of text, in powers of 1000."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB"):  # noqa: B007 - used after the loop
        value /= 1000
        if value < 999.95:
            break
    return f"{value:.1f} {unit}"
