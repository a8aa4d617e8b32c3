"""The plumbing of benchmarks: medians, ratios of medians, JSON without paths."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_report", BENCHMARKS / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["bench_report"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_ratios_are_of_medians(report: ModuleType) -> None:
    made = report.Report("x")
    for sample in (1.0, 9.0, 2.0):
        made.add("slow", sample)
    made.add("fast", 0.5)
    made.ratio("slow_over_fast", "slow", "fast")
    assert made.ratios == {"slow_over_fast": 4.0}


def test_a_row_that_was_not_measured_has_no_ratio(report: ModuleType) -> None:
    made = report.Report("x")
    made.add("slow", 1.0)
    made.add("nothing", 0.0)
    made.ratio("a", "slow", "absent")
    made.ratio("b", "slow", "nothing")
    assert made.ratios == {}


def test_the_json_has_rows_spreads_and_ratios(
    report: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = report.Report("x")
    made.add("row", 2.0)
    made.add("row", 4.0)
    made.add("other", 1.0)
    made.ratio("row_over_other", "row", "other")
    made.finish(tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["rows"]["row"] == {"median": 3.0, "min": 2.0, "max": 4.0, "samples": [2.0, 4.0]}
    assert found["ratios"] == {"row_over_other": 3.0}
    assert str(tmp_path) not in (tmp_path / "out.json").read_text()
    assert "row_over_other" in capsys.readouterr().out


def test_every_benchmark_names_its_environment() -> None:
    for script in BENCHMARKS.glob("*.py"):
        if script.stem == "report":
            continue
        names = [
            ast.literal_eval(node.value)
            for node in ast.parse(script.read_text()).body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "ENVIRONMENT"
        ]
        assert names in (["vllm"], ["core"], ["jax"], ["torch"]), script.name
