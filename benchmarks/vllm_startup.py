"""How long vLLM takes to start: cold, by its own cache, and from the store; both modes that run on a CPU.

Every row is a real start in a process of its own, watched in the same way from outside (compcache_cli.demo.starts).
"compile phase" runs from the first call of the model to its first profiling run; "whole" from before the interpreter
starts to when ``LLM`` is ready. vLLM's own restart suffers from a race between threads that probe the vector ISA while
graphs are loaded (on CPUs with AVX-512); a row beside it shows it with that probe called once before.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from compcache_cli.demo import starts, tiny_model
from compcache_cli.demo.starts import Machine, Start
from report import Report, options

ENVIRONMENT = "vllm"


def main(arguments: list[str]) -> int:
    parser = options("Start-up of vLLM: cold, its own restart, and from the store.")
    parser.add_argument("--repeat-cold", metavar="N", type=int, default=1, help="samples of each cold row (default 1)")
    parser.add_argument("--mode", choices=["trace_once", "piecewise"], action="append", help="only this mode")
    chosen = parser.parse_args(arguments)
    report = Report("vllm_startup")
    with tempfile.TemporaryDirectory(prefix="compcache-bench-") as folder:
        place = Path(folder)
        model = tiny_model.make(place / "model")
        python = starts.other_python(place / "other")
        for mode in chosen.mode or ["trace_once", "piecewise"]:
            for i in range(chosen.repeat_cold):
                _one_mode(report, mode, model, place / f"{mode}-{i}", python, chosen.repeat)
    _worst_over_modes(report, "whole_warm_over_eager")
    _worst_over_modes(report, "whole_other_machine_over_eager")
    report.finish(chosen.json)
    return 0


def _one_mode(report: Report, mode: str, model: Path, place: Path, python: str, repeat: int) -> None:
    store = place / "store"
    mine, alone, probed = Machine(place / "mine"), Machine(place / "alone"), Machine(place / "probed")
    cold = starts.start(mine, mode, model, store=store)
    _measure(report, f"{mode} cold", cold)
    _measure(report, f"{mode} own cold", starts.start(alone, mode, model, store=None))
    _measure(report, f"{mode} own restart", starts.start(alone, mode, model, store=None))
    _measure(report, f"{mode} own second restart", starts.start(alone, mode, model, store=None))
    # A directory of its own: a restart that lost the race leaves kernels behind that help the next one.
    starts.start(probed, mode, model, store=None)
    once = starts.start(probed, mode, model, store=None, probe_isa=True)
    _measure(report, f"{mode} own restart, probe called once before", once)
    for i in range(repeat):
        warm = starts.start(mine, mode, model, store=store)
        other = starts.start(Machine(place / f"other-{i}", python, compilers=False), mode, model, store=store)
        # Each beside its peer: a first start under an empty cache root takes vLLM seconds more, compiling or not.
        eager = starts.start(mine, "eager", model, store=None)
        eager_other = starts.start(
            Machine(place / f"other-eager-{i}", python, compilers=False), "eager", model, store=None
        )
        _measure(report, f"{mode} eager", eager)
        _measure(report, f"{mode} eager, other machine", eager_other)
        for name, start in (("warm", warm), ("other machine", other)):
            if start.compiled or start.compilers_run or start.tokens != cold.tokens or not start.loaded:
                raise SystemExit(f"{mode} {name} is no warm start: {start.line} {start.compilers_run}")
            _measure(report, f"{mode} {name}", start)
    _ratios(report, mode)


def _measure(report: Report, row: str, start: Start) -> None:
    if start.compile_phase:
        report.add(f"{row}, compile phase", start.compile_phase)
    report.add(f"{row}, whole", start.whole)
    print(f"{row}: compile phase {start.compile_phase:.2f} s, whole {start.whole:.1f} s  {start.line}", flush=True)


def _ratios(report: Report, mode: str) -> None:
    for part, suffix in (("compile phase", ""), ("whole", "_whole")):
        for name, above, below in (
            ("cold_over_warm", "cold", "warm"),
            ("own_restart_over_warm", "own restart", "warm"),
            ("own_second_restart_over_warm", "own second restart", "warm"),
            ("own_restart_probed_over_warm", "own restart, probe called once before", "warm"),
            ("other_machine_over_warm", "other machine", "warm"),
        ):
            report.ratio(f"{mode}_{name}{suffix}", f"{mode} {above}, {part}", f"{mode} {below}, {part}")
    report.ratio(f"{mode}_whole_warm_over_eager", f"{mode} warm, whole", f"{mode} eager, whole")
    report.ratio(
        f"{mode}_whole_other_machine_over_eager", f"{mode} other machine, whole", f"{mode} eager, other machine, whole"
    )


def _worst_over_modes(report: Report, name: str) -> None:
    report.ratios[name] = max(value for ratio, value in report.ratios.items() if ratio.endswith(f"_{name}"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
