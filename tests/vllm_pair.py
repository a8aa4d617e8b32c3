"""What tests of real vLLM starts share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compcache_cli.demo.starts import Start

MODES = ("trace_once", "piecewise")


@dataclass(frozen=True)
class Pair:
    """A cold start that filled a store, and a warm one on what looks like another machine without a compiler."""

    mode: str
    store: Path
    cold: Start
    warm: Start
