"""Hypothesis drives a store and a plain dict side by side: put, get, touch, pin, prune, damage, crash, clock jumps."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import filled
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compcache import prune
from compcache.cache import Cache, Draft, Part
from compcache.factors import Factors
from compcache.failpoints import Name, armed
from compcache.repair import repair
from compcache.store import layout
from compcache.store.directory import DirectoryStore
from compcache.store.memory import MemoryStore
from compcache.store.protocol import Store
from compcache.testing.fake_compiler import program_of
from compcache.verify import verify

NUMBERS = st.integers(0, 5)
DAY = 86400.0


class Crash(BaseException):
    """A process ends here: nothing of it runs afterwards, and nothing catches it on the way."""


class StoreMachine(RuleBasedStateMachine):
    """``model`` holds what must be there; ``maybe`` what a crash or damage may have taken or left."""

    kind: ClassVar[str] = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="compcache-machine-"))
        self.now = 1_000_000_000.0
        self.memory = MemoryStore(clock=lambda: self.now)
        self.model: dict[int, bytes] = {}
        self.maybe: dict[int, bytes] = {}
        self.pinned: set[int] = set()
        self.damaged = False
        self.start()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def store(self) -> Store:
        return self.memory if self.kind == "memory" else DirectoryStore(self.folder / "store")

    def start(self) -> None:
        """A new process."""
        self.cache: Cache = filled.cache_at(self.folder / "store", self.store())
        self.cache.clock = lambda: self.now

    # What a program is

    @staticmethod
    def factors(number: int) -> Factors:
        return Factors({"model.name": str(number % 2)}, {"range": str(number)})

    @staticmethod
    def parts(number: int) -> tuple[Part, ...]:
        # Kernels are shared by programs: blobs with several references.
        return Part("artifact", b"program %d" % number), Part("kernel", b"\x7fELF %d" % (number % 3) * 99, "k")

    def draft(self, number: int) -> Draft:
        return Draft("graph", self.factors(number), self.parts(number))

    def entry_name(self, number: int) -> str:
        factors = self.factors(number)
        return layout.entry(factors.configuration_key, factors.program_key)

    # Rules

    @rule(number=NUMBERS)
    def put(self, number: int) -> None:
        self.cache.publish(self.draft(number))
        self.model[number] = b"program %d" % number
        self.maybe.pop(number, None)

    @rule(number=NUMBERS)
    def get(self, number: int) -> None:
        found = program_of(self.cache, self.factors(number))
        if number in self.model:
            assert found == self.model[number]
        elif number in self.maybe:
            assert found in (None, self.maybe[number])
        else:
            assert found is None

    @rule(number=NUMBERS)
    def touch(self, number: int) -> None:
        self.cache.store.refresh(self.entry_name(number))

    @rule(number=NUMBERS)
    def pin(self, number: int) -> None:
        self.cache.store.create(layout.pin(self.factors(number).program_key), b"")
        self.pinned.add(number)

    @rule(number=NUMBERS)
    def unpin(self, number: int) -> None:
        self.cache.store.remove(layout.pin(self.factors(number).program_key))
        self.pinned.discard(number)

    @rule(share=st.floats(0, 1), grace=st.sampled_from([0.0, 3600.0]))
    def prune_to_a_size(self, share: float, grace: float) -> None:
        total = sum(found.size for found in self.cache.store.scan(""))
        self._prune(prune.plan(self.cache.store, max_size=int(total * share), grace=grace, clock=lambda: self.now))

    @rule(days=st.integers(0, 3))
    def prune_by_age(self, days: int) -> None:
        plan = prune.plan(self.cache.store, max_age=days * DAY, grace=0.0, clock=lambda: self.now)
        if days == 0 and self.kind == "memory":
            gone = {removal.entry.program_key for removal in plan.entries if removal.entry}
            for number in self.pinned:
                assert self.factors(number).program_key not in gone
        self._prune(plan)

    def _prune(self, plan: prune.Plan) -> None:
        outcome = prune.execute(self.cache.store, plan)
        gone = {removal.name for removal in outcome.removed}
        for number in list(self.model):
            if self.entry_name(number) in gone:
                assert number not in self.pinned
                del self.model[number]
        for number in list(self.maybe):
            if self.entry_name(number) in gone:
                del self.maybe[number]

    @rule(
        number=NUMBERS, which=st.sampled_from(["entry", "artifact", "kernel"]), how=st.sampled_from(["", "cut", "flip"])
    )
    @precondition(lambda self: self.model)
    def damage(self, number: int, which: str, how: str) -> None:
        if number not in self.model:
            return
        entry = self.cache.find(self.factors(number))
        assert entry is not None
        name = self.entry_name(number) if which == "entry" else layout.blob(entry.blobs_with(which)[0].digest)
        data = self.cache.store.read(name, 1 << 20)
        bad = {"": b"", "cut": data[: len(data) // 2], "flip": data[:-2] + bytes([data[-2] ^ 4]) + data[-1:]}[how]
        self.cache.store.replace(name, bad)
        self.damaged = True
        for other in list(self.model):
            same = other == number or (which == "kernel" and other % 3 == number % 3)
            if same:
                self.maybe[other] = self.model.pop(other)

    @rule(number=NUMBERS, step=st.integers(0, 40))
    def crash(self, number: int, step: int) -> None:
        """A publication ends at some step; a new process goes on."""
        left = step

        def at(name: Name) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash

        try:
            with armed(at):
                self.cache.publish(self.draft(number))
        except Crash:
            if number not in self.model:
                self.maybe[number] = b"program %d" % number
        else:
            self.model[number] = b"program %d" % number
            self.maybe.pop(number, None)
        self.start()

    @rule(days=st.sampled_from([0.01, 1.0, 40.0, -2.0]))
    def clock_jumps(self, days: float) -> None:
        self.now += days * DAY

    @rule()
    def restart(self) -> None:
        self.start()

    @rule()
    def mend(self) -> None:
        repair(self.cache.store, verify(self.cache.store))
        assert not verify(self.cache.store).damage
        self.damaged = False

    @rule()
    def verify_finds_nothing_else(self) -> None:
        report = verify(self.cache.store)
        assert self.damaged or not report.damage, report.damage

    # Always

    @invariant()
    def nothing_was_a_fault(self) -> None:
        assert not self.cache.session.faults


class DirectoryMachine(StoreMachine):
    kind = "directory"


LIMITS = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
TestMemory = pytest.mark.timeout(300)(StoreMachine.TestCase)
TestDirectory = pytest.mark.timeout(300)(DirectoryMachine.TestCase)
StoreMachine.TestCase.settings = LIMITS
DirectoryMachine.TestCase.settings = settings(LIMITS, max_examples=25)
