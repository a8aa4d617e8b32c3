"""A driver that kills a process by SIGKILL at every failpoint, reopens the store, and checks what is there.

    python -m compcache.testing.kills [--store MODULE:CALLABLE] [--kills N] [--seed N] FOLDER

``CALLABLE(folder)`` opens a store that outlives its process; the default is the directory store. First every step of
every scenario is met once, each on a store of its own; then, up to N kills in all, random steps of random scenarios on
one store that is never made anew. After each kill, in a process of its own: nothing is damaged, what was stored before
is still there and right, no read needs a repair, and the next start stores what the killed one did not.

Each kill is of a forked child, so that a thousand take a minute or two; call it from a process without threads.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from compcache import config, prune
from compcache.cache import Cache
from compcache.entry import Entry
from compcache.factors import Factors
from compcache.failpoints import Name, armed
from compcache.session import Session
from compcache.store import layout
from compcache.store.directory import DirectoryStore
from compcache.store.protocol import Store
from compcache.testing.fake_compiler import FakeCompiler, get_or_compile, meaning, parts_of, program_of, run
from compcache.verify import verify

Make = Callable[[Path], Store]
OTHERS = 3
"""Programs that are stored before, and that no kill may lose."""
SIZE = 20_000


class KillFailed(AssertionError):
    """A store did not keep its promise after a kill; the message says at which step of what."""


@dataclass(frozen=True)
class Case:
    """One store in ``folder`` as a process sees it that has just started."""

    folder: Path
    make: Make
    number: int = 0
    """Of the program that the scenario is about."""

    @property
    def compiler(self) -> FakeCompiler:
        return FakeCompiler(self.folder / "journal", size=SIZE)

    def cache(self, said: list[str] | None = None) -> Cache:
        settings = config.load({"HOME": str(self.folder), "COMPCACHE_DIR": str(self.folder / "store")})
        session = Session(say=(lambda line: None) if said is None else said.append)
        return Cache(settings, store=self.make(self.folder / "store"), session=session)

    @property
    def factors(self) -> Factors:
        return factors_of(f"program {self.number}")

    def stored(self) -> Entry:
        """The entry of the program, published if need be."""
        cache = self.cache()
        get_or_compile(cache, self.compiler, self.factors)
        entry = cache.find(self.factors)
        if entry is None:
            raise KillFailed("a program that was just published is not there")
        return entry


def factors_of(name: str) -> Factors:
    return Factors({"model.name": "killed"}, {"range": name})


# Scenarios: what is prepared, and what is then killed


def publish(case: Case) -> None:
    """A cold start: lease, blobs, entry."""
    get_or_compile(case.cache(), case.compiler, case.factors)


def damage_entry(case: Case) -> None:
    entry = case.stored()
    case.cache().store.replace(layout.entry(entry.configuration_key, entry.program_key), b"{")


def damage_blob(case: Case) -> None:
    entry = case.stored()
    case.cache().store.replace(layout.blob(entry.blobs[0].digest), b"bad")


def stored_after_damage(case: Case) -> None:
    """A program that is stored, and what was set aside before."""
    damage_entry(case)
    program_of(case.cache(), case.factors)
    case.stored()


def reuse_blob(case: Case) -> None:
    """A program of other factors is stored whose kernel is the one that will be published."""
    cache = case.cache()
    from compcache.cache import Draft

    cache.publish(Draft("graph", factors_of(f"twin of {case.number}"), parts_of(b"shared" * 1000)))


def publish_reusing(case: Case) -> None:
    from compcache.cache import Draft

    case.cache().publish(Draft("graph", case.factors, parts_of(b"shared" * 1000)))


def pruned(case: Case) -> None:
    """Everything that is neither pinned nor young goes: here, all but the other programs."""
    cache = case.cache()
    planned = prune.plan(cache.store, max_age=0.0, grace=0.0)
    kept = {factors_of(f"other {i}").program_key for i in range(OTHERS)}
    entries = tuple(r for r in planned.entries if r.entry and r.entry.program_key not in kept)
    # As by a plan for these entries alone: the blobs of the others stay, and execution looks again anyway.
    prune.execute(cache.store, prune.Plan(entries, planned.blobs, planned.others, planned.bytes_before, 0))


@dataclass(frozen=True)
class Scenario:
    prepare: Callable[[Case], object]
    act: Callable[[Case], None]
    programs: bool = True
    """Whether what the program holds is the fake compiler's, so that the check can run it."""


SCENARIOS: dict[str, Scenario] = {
    "publish": Scenario(lambda case: None, publish),
    "heal an entry": Scenario(damage_entry, publish),
    "heal a blob": Scenario(damage_blob, publish),
    "publish with a blob that is there": Scenario(reuse_blob, publish_reusing, programs=False),
    "prune": Scenario(stored_after_damage, pruned),
}


# The driver


def every_step(folder: Path, make: Make, scenario: str) -> Counter[str]:
    """Kill at each step of a scenario, on a new store each time; how often each failpoint was met."""
    met: Counter[str] = Counter()
    passed: set[Name] = set()

    def new(name: str) -> Case:
        case = Case(folder / f"{scenario.replace(' ', '-')}-{name}", make)
        case.folder.mkdir(parents=True)
        _in_child(functools.partial(_others, case), f"{scenario}: preparing")
        return case

    for step in range(10_000):
        name = kill(new(str(step)), scenario, step, passed=passed)
        if name is None:
            break
        met[name] += 1
    else:
        raise KillFailed(f"{scenario} does not end")
    # Steps shift by one where a blob's folder is there already, so that one failpoint may have been stepped over.
    for name in sorted(passed - met.keys()):
        if kill(new(name), scenario, 0, only=name) is not None:
            met[name] += 1
    return met


def random_steps(folder: Path, make: Make, kills: int, seed: int) -> Counter[str]:
    """Kill ``kills`` times at random steps of random scenarios, all on one store."""
    chosen, met = random.Random(seed), Counter[str]()
    base = Case(folder / "one-store", make)
    base.folder.mkdir(parents=True)
    _in_child(lambda: _others(base), "preparing")
    number = 0
    while met.total() < kills:
        number += 1
        scenario = chosen.choice(list(SCENARIOS))
        name = kill(Case(base.folder, make, number), scenario, chosen.randrange(60))
        if name is not None:
            met[name] += 1
    return met


def kill(
    case: Case, scenario: str, step: int, *, only: Name | None = None, passed: set[Name] | None = None
) -> Name | None:
    """Prepare, act, kill at that step, check. The failpoint; None if the act ended before. Raises KillFailed.

    Steps are those at the failpoint ``only``, or all. ``passed`` gets the failpoints that were passed.
    """
    what = f"{scenario}, step {step}"
    plan = SCENARIOS[scenario]
    _in_child(lambda: plan.prepare(case), f"{what}: preparing")
    read, write = os.pipe()

    def act() -> None:
        left = step

        def at(name: Name) -> None:
            nonlocal left
            os.write(write, f"{name}\n".encode())
            left -= only is None or name == only
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        with armed(at):
            plan.act(case)

    killed = _in_child(act, what)
    os.close(write)
    with open(read, encoding="ascii") as pipe:
        names: list[Name] = pipe.read().split()  # type: ignore[assignment]
    name = names.pop() if killed else None
    if passed is not None:
        passed.update(names)
    _in_child(lambda: check(case, plan), f"{what}, killed at {name or 'no step'}: checking")
    return name


def _in_child(action: Callable[[], object], what: str) -> bool:
    """Run in a forked child; whether it was killed. Raises KillFailed if it failed."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status > 0:
        raise KillFailed(f"{what} failed (see above)")
    return status < 0


def _others(case: Case) -> None:
    cache = case.cache()
    for i in range(OTHERS):
        get_or_compile(cache, case.compiler, factors_of(f"other {i}"))


def check(case: Case, scenario: Scenario) -> None:
    """What must hold in the first process after a kill. Raises KillFailed."""
    said: list[str] = []
    cache = case.cache(said)
    # A bad file that was prepared may still be there; nothing else may be wrong.
    prepared_damage = scenario.prepare in (damage_entry, damage_blob)
    damage = verify(cache.store).damage
    _require(not damage or prepared_damage, f"damage: {damage}")
    before = case.compiler.compiles
    for i in range(OTHERS):
        found = program_of(cache, factors_of(f"other {i}"))
        _require(found is not None and run(found) == meaning(factors_of(f"other {i}")), "another program was lost")
    if scenario.programs:
        found = program_of(cache, case.factors)
        _require(found is None or run(found) == meaning(case.factors), "wrong bytes")
        _require(run(get_or_compile(cache, case.compiler, case.factors)) == meaning(case.factors), "wrong bytes")
        _require(case.compiler.compiles <= before + 1, "compiled more than once")
        again = program_of(case.cache(), case.factors)
        _require(again is not None and run(again) == meaning(case.factors), "not stored by the start after the kill")
    else:
        scenario.act(case)
        entry = cache.find(case.factors)
        _require(entry is not None, "not stored by the start after the kill")
        assert entry is not None
        for ref in entry.blobs:
            cache.blob(ref)
    _require(not cache.session.faults, f"faults: {cache.session.faults} {said}")
    _require(not any("waiting" in line for line in said), "it waited for the dead")
    damage = verify(cache.store).damage
    _require(not damage, f"damage after the next start: {damage}")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise KillFailed(what)


def _stores(text: str) -> Make:
    module, _, name = text.partition(":")
    make: Make = getattr(importlib.import_module(module), name)
    return make


def runs(folder: Path, make: Make, kills: int, seed: int) -> Iterator[tuple[str, Counter[str]]]:
    """Every step of each scenario, then random ones up to ``kills`` in all."""
    total = 0
    for scenario in SCENARIOS:
        met = every_step(folder, make, scenario)
        total += met.total()
        yield scenario, met
    if total < kills:
        yield "random", random_steps(folder, make, kills - total, seed)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m compcache.testing.kills", description=__doc__.split("\n")[0])
    parser.add_argument("--store", type=_stores, default=DirectoryStore, metavar="MODULE:CALLABLE")
    parser.add_argument("--kills", type=int, default=0, help="at least this many (default: each step once)")
    parser.add_argument("--seed", type=int, default=20261201)
    parser.add_argument("folder", type=Path, help="an empty folder for the stores")
    chosen = parser.parse_args(arguments)
    everywhere: Counter[str] = Counter()
    for name, met in runs(chosen.folder, chosen.store, chosen.kills, chosen.seed):
        print(f"{name}: {met.total()} kills, nothing lost", flush=True)  # noqa: T201
        everywhere += met
    print(f"{everywhere.total()} kills at {len(everywhere)} failpoints: {dict(sorted(everywhere.items()))}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
