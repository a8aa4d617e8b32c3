"""``compcache import`` is killed at each of its steps: what it stored is whole, and the next import stores the rest."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import filled
import pytest

from compcache.adapters.inductor import Adapter
from compcache.adapters.inductor_import import Adopted, Fitting, Plan, adopt
from compcache.cache import Cache
from compcache.errors import StoreError
from compcache.factors import Factors, JsonValue
from compcache.failpoints import Name, armed
from compcache.store.directory import DirectoryStore
from compcache.verify import verify

SHARED = b"\x7fELF a kernel of two graphs" * 400
GRAPHS = (
    Fitting("key one", b"record of the first graph" * 99, {"shared": SHARED}, 1.5),
    Fitting("key one", b"record of another under the same key" * 99, {"shared": SHARED, "own": b"\x7fELF own" * 99}, 2),
    Fitting("key two", b"record of the third graph" * 99, {}, 0.5, "bfloat16 kernels do not tell their width"),
)
MOST = 400


@dataclass
class FakeAdapter:
    """What an import needs of the Inductor adapter, without torch."""

    cache: Cache

    def plain_factors(self, key: str, number: int, kind: str) -> Factors:
        return Factors({"torch.version": "2.13.0", "record": kind}, {"torch.key": key, "torch.variant": number})

    def toolchain(self) -> Mapping[str, JsonValue]:
        return {"engine": "torch.compile", "toolchain": "torch 2.13.0", "hardware": "cpu avx2"}


def imported(root: Path) -> Adopted:
    adapter = FakeAdapter(filled.cache_at(root / "store"))
    return adopt(cast(Adapter, adapter), Plan(list(GRAPHS)))


def killed_at(root: Path, number: int) -> bool:
    """Whether a child that imports into a new store was killed at that step; False if it has fewer steps."""
    left = number

    def die(_: Name) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            with armed(die):
                imported(root)
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def whole(root: Path) -> int:
    """How many of the graphs are stored and right; nothing may be damaged."""
    report = verify(DirectoryStore(root / "store"))
    assert not report.damage
    cache = filled.cache_at(root / "store")
    adapter = FakeAdapter(cache)
    count = 0
    for number, graph in ((0, GRAPHS[0]), (1, GRAPHS[1]), (0, GRAPHS[2])):
        entry = cache.find(adapter.plain_factors(f"pt2:fx-graph-v1::{graph.key}:c1", number, "adopted"))
        if entry is not None:
            assert cache.blob(entry.blobs_with("artifact")[0]) == graph.content
            assert {ref.name: cache.blob(ref) for ref in entry.blobs_with("kernel")} == graph.kernels
            count += 1
    return count


def test_an_import_killed_at_any_step_is_finished_by_the_next(tmp_path: Path) -> None:
    seen = set()
    for step in range(MOST):
        root = tmp_path / str(step)
        root.mkdir()
        if not killed_at(root, step):
            break
        stored = whole(root) if (root / "store").exists() else 0
        seen.add(stored)
        again = imported(root)
        assert (again.programs, again.already_stored, again.left) == (3 - stored, stored, ())
        assert whole(root) == 3
    else:
        pytest.fail("an import has no end")
    assert seen == {0, 1, 2, 3}


def test_a_store_that_fails_half_way_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    def fails(name: Name) -> None:
        if name == "publish.entry" and whole(tmp_path) == 2:
            raise StoreError(28, "the disk is full")

    with armed(fails), pytest.raises(StoreError, match="full"):
        imported(tmp_path)
    stored = whole(tmp_path)
    again = imported(tmp_path)
    assert (again.programs, again.already_stored) == (3 - stored, stored)
