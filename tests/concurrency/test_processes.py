"""Several processes at one store: one compiles, the others get what it made; a killed one holds up nobody."""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filled
import pytest
from processes import Processes

from compcache import lease
from compcache.cache import Cache, Draft, Part
from compcache.entry import Entry
from compcache.factors import Factors
from compcache.store import layout
from compcache.store.directory import DirectoryStore
from compcache.store.memory import MemoryStore
from compcache.store.protocol import Store

KEY = "ab" * 16
FACTORS = Factors({"model.name": "m"}, {"range": "8"})

PRELUDE = """
import os, sys, time
from pathlib import Path
import filled
from compcache import lease
from compcache.cache import Draft, Part
from compcache.factors import Factors
from compcache.store.directory import DirectoryStore
root = Path(sys.argv[1])
cache = filled.cache_at(root)
FACTORS = Factors({"model.name": "m"}, {"range": "8"})
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path, PRELUDE)
    yield made
    made.end()


HOLD = """
held = lease.acquire(cache.store, sys.argv[2])
assert held is not None
go()
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_owner_holds_up_nobody(processes: Processes, how: signal.Signals) -> None:
    """F5: the next one takes the lease long before it would be stale."""
    cache = filled.cache_at(processes.root)
    owner = processes.start(HOLD, KEY)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    watch = lease.Watch(cache.store, KEY)
    assert str(owner.pid) in watch.holder()
    owner.send_signal(how)
    held = cache.compile_or_wait(KEY, lambda: False)  # the owner is a zombie: nobody has waited for it
    assert held is not None
    assert cache.budget.left > cache.settings.wait_seconds - lease.STALE_SECONDS
    held.release()


def test_a_waiter_goes_on_when_the_owner_is_killed_meanwhile(processes: Processes) -> None:
    cache = filled.cache_at(processes.root)
    owner = processes.start(HOLD, KEY)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    looks = 0

    def ready() -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            owner.kill()
        return False

    held = cache.compile_or_wait(KEY, ready)
    assert looks >= 3
    assert held is not None
    held.release()


FLIGHT = """
def compiled():
    with open(sys.argv[2], "a") as log:
        log.write(f"{os.getpid()}\\n")
    time.sleep(0.3)
    return os.urandom(2000)  # compiled bytes never repeat

go()
entry = cache.find(FACTORS)
if entry is None:
    held = cache.compile_or_wait(FACTORS.program_key, lambda: cache.find(FACTORS) is not None)
    entry = cache.find(FACTORS)
    if entry is None:
        entry = cache.publish(Draft("graph", FACTORS, (Part("artifact", compiled()),)))
    if held is not None:
        held.release()
print(cache.blob(entry.blobs[0]).hex())
"""


def test_eight_cold_processes_compile_once(processes: Processes, tmp_path: Path) -> None:
    """F8."""
    log = tmp_path / "compiled"
    printed = processes.together([processes.start(FLIGHT, str(log)) for _ in range(8)])
    assert len(log.read_text().splitlines()) == 1
    assert len(printed[0]) == 4001
    assert len(set(printed)) == 1
    assert list((processes.root / "v1" / "leases").iterdir()) == []
    assert list((processes.root / "v1" / "tmp").iterdir()) == []


ALL_AT_ONCE = """
go()
for i in range(20):
    factors = Factors({"model.name": "m"}, {"range": str(i)})
    entry = cache.publish(Draft("graph", factors, (Part("artifact", os.urandom(600)), Part("kernel", b"same"))))
    print(b"".join(cache.blob(ref) for ref in entry.blobs).hex())
"""


def test_the_first_published_wins_and_all_use_it(processes: Processes) -> None:
    printed = processes.together([processes.start(ALL_AT_ONCE) for _ in range(2)])
    assert len(printed[0].splitlines()) == 20
    assert printed[0] == printed[1]
    cache = filled.cache_at(processes.root)
    for i, line in enumerate(printed[0].splitlines()):
        entry = cache.find(Factors({"model.name": "m"}, {"range": str(i)}))
        assert entry is not None
        assert b"".join(cache.blob(ref) for ref in entry.blobs).hex() == line


def program(data: bytes) -> Draft:
    return Draft("graph", FACTORS, (Part("artifact", data),))


class Interrupted(MemoryStore):
    """Runs something once, just before a name of some folder is created."""

    def __init__(self, folder: str, interruption: Callable[[Store], Any]) -> None:
        super().__init__()
        self._folder = folder
        self._interruption: Callable[[Store], Any] | None = interruption

    def create(self, name: str, data: bytes) -> bool:
        if self._interruption is not None and name.startswith(self._folder):
            interruption, self._interruption = self._interruption, None
            interruption(self)
        return super().create(name, data)


@pytest.mark.parametrize("folder", ["blobs", "configs"])
def test_another_publishes_while_we_do(tmp_path: Path, folder: str) -> None:
    def other(store: Store) -> Entry:
        return filled.cache_at(tmp_path, store).publish(program(b"of the other"))

    cache = filled.cache_at(tmp_path, Interrupted(folder, other))
    entry = cache.publish(program(b"ours"))
    assert cache.blob(entry.blobs[0]) == b"of the other"
    assert cache.find(FACTORS) == entry


def test_published_twice_in_a_row(tmp_path: Path) -> None:
    cache, second = filled.cache_at(tmp_path / "store"), filled.cache_at(tmp_path / "store")
    first = cache.publish(program(b"first"))
    assert second.publish(program(b"second")) == first
    assert second.blob(first.blobs[0]) == b"first"
    assert len(list(cache.store.scan("blobs"))) == 1  # what nobody will use is not stored


def test_a_winner_without_its_blob_is_replaced(tmp_path: Path) -> None:
    cache = filled.cache_at(tmp_path / "store")
    first = cache.publish(program(b"first"))
    filled.blob_path(tmp_path / "store", first.blobs[0].digest).unlink()
    second = cache.publish(program(b"second"))
    assert cache.blob(second.blobs[0]) == b"second"
    assert filled.cache_at(tmp_path / "store").find(FACTORS) == second


def test_a_collector_takes_a_blob_while_we_publish(tmp_path: Path) -> None:
    """Between our look at a blob that was there and our entry: the writer looks again, and stores it again."""
    digest = []

    def collect(store: Store) -> None:
        (found,) = store.scan("blobs")
        digest.append(found.name)
        store.remove(found.name)

    store = Interrupted("configs", collect)
    cache = filled.cache_at(tmp_path, store)
    entry = cache.publish(program(b"ours"))
    assert digest == [layout.blob(entry.blobs[0].digest)]
    assert cache.blob(entry.blobs[0]) == b"ours"


# Readers beside writers


REPLACE = """
import hashlib
store = DirectoryStore(root)
go()
i = 0
while not Path(sys.argv[2]).exists():
    body = f"{sys.argv[3]} {i} ".encode() * (500 + i * 37 % 3000)
    store.replace(sys.argv[4], hashlib.sha256(body).hexdigest().encode() + body)
    i += 1
"""


def test_a_reader_beside_two_writers_of_one_name_sees_whole_files(processes: Processes, tmp_path: Path) -> None:
    """F6, for the one name whose content is ever replaced."""
    name, stop, reads = layout.modules("ab" * 16, "cd" * 16), tmp_path / "stop", 10_000
    store = DirectoryStore(processes.root)
    store.replace(name, hashlib.sha256(b"0").hexdigest().encode() + b"0")
    writers = [processes.start(REPLACE, str(stop), str(i), name) for i in range(2)]
    seen: set[bytes] = set()
    bad = 0
    running = threading.Thread(target=processes.together, args=(writers,))
    running.start()
    try:
        # Until it has seen files of both writers.
        while running.is_alive() and (reads > 0 or len({body[:2] for body in seen if body[1:]}) < 2):
            data = store.read(name, 1 << 20)
            digest, body = data[:64], data[64:]
            bad += hashlib.sha256(body).hexdigest().encode() != digest
            seen.add(body[:12])
            reads -= 1
    finally:
        stop.touch()
        running.join()
    assert bad == 0
    assert reads <= 0
    assert list((processes.root / "v1" / "tmp").iterdir()) == []


COME_AND_GO = """
from compcache.store import layout
go()
entry_name = layout.entry(FACTORS.configuration_key, FACTORS.program_key)
while not Path(sys.argv[2]).exists():
    entry = cache.publish(Draft("graph", FACTORS, (Part("artifact", sys.argv[3].encode() * 300),)))
    cache.store.remove(entry_name)
    if sys.argv[3] == "1":
        cache.store.remove(layout.blob(entry.blobs[0].digest))
"""


def test_a_reader_of_a_program_that_comes_and_goes_gets_all_of_it_or_a_miss(
    processes: Processes, tmp_path: Path
) -> None:
    """F6 and F16: two writers publish and remove one program; a read is right, or a miss, and damages nothing."""
    stop = tmp_path / "stop"
    writers = [processes.start(COME_AND_GO, str(stop), str(i)) for i in (1, 2)]
    cache = filled.cache_at(processes.root)
    seen = {"miss": 0, "1": 0, "2": 0}
    running = threading.Thread(target=processes.together, args=(writers,))
    running.start()
    try:
        while running.is_alive() and (sum(seen.values()) < 5000 or min(seen.values()) == 0):
            seen[look(cache)] += 1
    finally:
        stop.touch()
        running.join()
    assert set(seen) == {"miss", "1", "2"}
    assert min(seen.values()) > 0
    assert list((processes.root / "v1" / "quarantine").iterdir()) == []


def look(cache: Cache) -> str:
    entry = cache.find(FACTORS)
    if entry is None:
        return "miss"
    try:
        data = cache.blob(entry.blobs[0])
    except FileNotFoundError:
        return "miss"
    return data.decode() if len(data) != 300 else data[:1].decode()


# Two hosts at one store


ELSEWHERE = """
lease.host_identity = lambda: sys.argv[3]
lease.RENEW_SECONDS = 0.05
deadline = time.monotonic() + 60
go()
while (held := lease.acquire(cache.store, sys.argv[4])) is None:
    assert time.monotonic() < deadline
    lease.Watch(cache.store, sys.argv[4]).holder()
fd = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_EXCL)  # nobody else is in here
time.sleep(0.2)
os.unlink(sys.argv[2])
held.release()
print("had it")
"""


def test_processes_of_four_hosts_have_a_live_lease_one_after_another(processes: Processes, tmp_path: Path) -> None:
    inside = str(tmp_path / "inside")
    started = [processes.start(ELSEWHERE, inside, f"host {i}", KEY) for i in range(4)]
    assert processes.together(started) == ["had it\n"] * 4
