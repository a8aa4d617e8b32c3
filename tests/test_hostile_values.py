"""What somebody may write into a store or its surroundings: a miss, a refusal or a line, and nothing escapes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import filled
import pytest

from compcache import config, fsio, lease
from compcache.adapters import startup, vllm, vllm_plugin
from compcache.cache import Cache, Draft, Part
from compcache.config import load
from compcache.entry import Entry, parse_entry, sealed
from compcache.errors import ConfigError, Damaged, StoreError, Untrusted
from compcache.factors import Factors
from compcache.inventory import inventory
from compcache.prune import plan
from compcache.repair import repair
from compcache.store import layout
from compcache.store.directory import DirectoryStore
from compcache.store.protocol import Store
from compcache.testing.faults import Wrapper
from compcache.testing.filesystems import NoLinks, hostile
from compcache.verify import verify


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def rewritten(root: Path, entry: Entry, **changes: object) -> None:
    """An entry with other fields and a digest that fits, as somebody writes it who knows the format."""
    path = filled.path_of(root, entry)
    document = json.loads(path.read_bytes())
    del document["digest"]
    data = sealed({**document, **{n: v for n, v in changes.items() if not callable(v)}})
    for name, change in changes.items():
        if callable(change):
            data = change(data)
            assert name
    path.write_bytes(data)


@pytest.mark.parametrize("value", [10**400, -1.0, "1", None, True, [1]])
def test_seconds_that_are_none(root: Path, value: object) -> None:
    entry = filled.graph(filled.cache_at(root), "8")
    rewritten(root, entry, compile_seconds=value)
    store = DirectoryStore(root)
    if value is not True:
        with pytest.raises(Damaged):
            parse_entry(filled.path_of(root, entry).read_bytes())
        assert [s.kind for s in inventory(store).skipped] in ([], ["damaged"])
        assert verify(store).damage
    plan(store, max_size=0)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"null", b'{"modules": 1}'])
def test_modules_and_leases_that_are_nested_too_deep(root: Path, content: bytes) -> None:
    cache = filled.cache_at(root)
    entry = filled.graph(cache, "8")
    factors = entry.factors
    cache.store.replace(layout.modules(factors.configuration_key, factors.program_key), content)
    assert startup.find(cache, factors) is None
    cache.store.replace(layout.lease("ab" * 16), content[:4000])
    assert lease.Watch(cache.store, "ab" * 16).holder()


@pytest.mark.parametrize("content", [b"", b"[]", b"1", b"{", b"\xff", b"[" * 9000, b'{"a": "' + b"x" * 9000 + b'"}'])
def test_a_record_of_a_host_that_says_nothing_is_empty(tmp_path: Path, content: bytes) -> None:
    record = tmp_path / "record"
    assert fsio.read_record(record, 4096) == {}
    record.write_bytes(content)
    record.chmod(0o600)
    assert fsio.read_record(record, 4096) == {}
    record.write_bytes(b'{"pid": 1}')
    assert fsio.read_record(record, 4096) == {"pid": 1}
    record.chmod(0o666)
    assert fsio.read_record(record, 4096) == {}, "anybody could have written it"


def test_a_settings_file_that_is_nested_too_deep(tmp_path: Path) -> None:
    path = tmp_path / "compcache.toml"
    path.write_text("a = " + "[" * 50_000)
    assert load({"HOME": str(tmp_path), "COMPCACHE_CONFIG": str(path)}).warnings


def test_an_adapter_that_cannot_be_imported_ends_no_import_of_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "compcache.adapters.vllm", None)
    plugin = vllm_plugin.Plugin({"HOME": str(tmp_path)})
    for name in vllm_plugin.WATCHED:
        plugin.hook(ModuleType(name))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("compcache: off: ")


def test_settings_that_cannot_be_read_turn_the_adapter_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config, "load", lambda environ: {}["no such user"])
    plugin = vllm_plugin.Plugin({})
    for name in vllm_plugin.WATCHED:
        plugin.hook(ModuleType(name))
    assert capsys.readouterr().err.splitlines() == ["compcache: off: 'no such user'"]


@pytest.mark.parametrize("folder", ["v1", "v1/blobs", "v1/configs", "v1/tmp"])
@pytest.mark.parametrize("how", ["symlink", "mode"])
def test_folders_that_others_could_write_are_refused(root: Path, tmp_path: Path, folder: str, how: str) -> None:
    filled.graph(filled.cache_at(root), "8")
    path = root / folder
    if how == "mode":
        path.chmod(0o777)
    else:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Untrusted):
        DirectoryStore(root).check()


def test_a_folder_in_tmpdir_that_somebody_else_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "_can_write", lambda path: False)  # no home
    place = tmp_path / f"compcache-{os.getuid()}"
    place.mkdir(mode=0o700)
    environment = {"HOME": "/proc/none", "TMPDIR": str(tmp_path)}
    assert load(environment).directory == place / "store"
    place.chmod(0o777)
    with pytest.raises(ConfigError, match="COMPCACHE_DIR"):
        load(environment)


def test_what_is_spared_survives_without_hard_links(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """discard looks, moves, looks again and puts back: on a mount without links, too."""
    cache = filled.cache_at(root)
    entry = filled.graph(cache, "8")
    name = layout.blob(entry.blobs[0].digest)
    path = root / "v1" / name
    seen = path.stat().st_mtime
    store = DirectoryStore(root)
    move = __import__("compcache.fsio", fromlist=["move"]).move

    def refreshed_then_moved(source: Path, target: Path) -> None:
        os.utime(source, (seen + 9, seen + 9))
        move(source, target)

    monkeypatch.setattr("compcache.fsio.move", refreshed_then_moved)
    with hostile(root, NoLinks()):
        assert store.discard(name, seen) is False
    assert path.exists(), "what was just used is lost"


class Pruned(Wrapper):
    """A graph is pruned while its start-up is published."""

    def __init__(self, store: Store, victim: str) -> None:
        super().__init__(store)
        self.victim = victim

    def create(self, name: str, data: bytes) -> bool:
        done = self.store.create(name, data)
        if name.startswith("configs/") and b'"kind": "start-up"' in data:
            self.store.remove(self.victim)
        return done


def test_a_start_up_is_not_left_without_its_programs(root: Path) -> None:
    cache: Cache = filled.cache_at(root)
    graphs = [filled.graph(cache, "8")]
    victim = layout.entry(graphs[0].configuration_key, graphs[0].program_key)
    cache.store = Pruned(cache.store, victim)
    with pytest.raises(StoreError, match="is gone"):
        filled.start_up(cache, graphs)
    assert not verify(DirectoryStore(root)).damage


def test_a_program_that_is_published_again_is_in_use(root: Path) -> None:
    cache = filled.cache_at(root)
    entry = filled.graph(cache, "8")
    filled.make_old(root, 9000)
    before = filled.path_of(root, entry).stat().st_mtime
    filled.graph(cache, "8")
    assert filled.path_of(root, entry).stat().st_mtime > before


def test_repair_looks_again_before_it_moves_anything(root: Path) -> None:
    cache = filled.cache_at(root)
    entry = filled.graph(cache, "8")
    path = filled.blob_path(root, entry.blobs[0].digest)
    good = path.read_bytes()
    path.write_bytes(b"bad")
    store = DirectoryStore(root)
    report = verify(store)
    path.write_bytes(good)  # a start has healed it meanwhile
    done = repair(store, report)
    assert {r.done for r in done} == {"mended since"}
    assert path.read_bytes() == good
    assert filled.path_of(root, entry).exists()


def waits_for(made: vllm.Adapter, publish: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Instead of waiting, another process publishes; what ``ready`` said before and after."""
    said: list[bool] = []

    def compile_or_wait(key: str, ready: Callable[[], bool]) -> None:
        said.append(ready())
        publish()
        said.append(ready())

    monkeypatch.setattr(made.cache, "compile_or_wait", compile_or_wait)
    return said


def test_a_bad_start_up_is_healed_by_one_process(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promises 4 and 5: who waits for it loads what the other compiled, and does not compile again."""
    settings = load({"HOME": str(tmp_path), "COMPCACHE_DIR": str(root), "COMPCACHE_STATE": str(tmp_path / "state")})
    made = vllm.Adapter(settings)
    made.session.say = lambda line: None
    current = startup.StartUp(Factors({"model.name": "m"}, {"part": "model"}), {})
    bad = startup.publish_startup(made.cache, current, b"first " * 99, ["compcache.errors"])
    filled.blob_path(root, bad.blobs[0].digest).write_bytes(b"bad")
    other = filled.cache_at(root)

    def heal() -> None:
        startup.publish_startup(other, startup.StartUp(current.factors, {}), b"second " * 99, ["compcache.errors"])

    said = waits_for(made, heal, monkeypatch)
    ready = made._ready_or_healed(current, bad, str(tmp_path / "absent"))
    assert said == [False, True]
    assert ready is not None
    assert ready.data == b"second " * 99


def test_a_draft_of_another_kind_is_still_published(root: Path) -> None:
    entry = filled.cache_at(root).publish(Draft("executable", Factors({"m": 1}, {"n": 1}), (Part("artifact", b"x"),)))
    assert entry.digest == parse_entry(filled.path_of(root, entry).read_bytes()).digest
