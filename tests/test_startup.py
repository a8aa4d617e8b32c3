"""Start-ups: found by their sources, whole or not used at all, and healed by the next compile."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filled
import pytest

from compcache.adapters import startup
from compcache.adapters.startup import (
    GraphRecord,
    StartUp,
    find,
    publish_graphs,
    publish_startup,
    ready,
)
from compcache.cache import Cache, digest_of
from compcache.entry import Entry
from compcache.errors import Damaged, FactorError
from compcache.factors import Factors
from compcache.store import layout

MODULE = "compcache_traced_module"
OTHER = "compcache_other_module"
ARTIFACTS = {"(1, 2048)": b"artifact of the symbolic range " * 30, "(8, 8)": b"artifact of size 8 " * 40}


class Case:
    """A store in a directory, and the modules that a start-up traced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "store"
        self.cache: Cache = filled.cache_at(self.root)
        self.factors = Factors({"model": "m"}, {"part": "backbone"})
        self.absent = str(folder / "absent")

    def install(self, text: str, name: str = MODULE) -> None:
        (self.folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    def start_up(self) -> StartUp:
        return StartUp(factors=self.factors, display=filled.DISPLAY, seconds=9.0)

    def compiled(self, salt: bytes = b"") -> tuple[StartUp, Any, dict[str, int]]:
        """A start-up of which each graph was compiled for each range, as vLLM hands it over."""
        current = self.start_up()
        tables = SimpleNamespace(submodule_bytes={}, submodule_bytes_store={})
        for compiled_range, data in ARTIFACTS.items():
            record = GraphRecord(
                "ab" * 16, ["bf16"], f"key {compiled_range}", 2.0, {"k" + compiled_range: b"kernel" + salt}
            )
            current.graphs[0, compiled_range] = record
            token = hashlib.sha256(data + salt).hexdigest()
            tables.submodule_bytes[f"submod_0_{compiled_range}"] = token
            tables.submodule_bytes_store[token] = data + salt
        return current, tables, {"submod_0": 0}

    def publish(
        self, salt: bytes = b"", modules: tuple[str, ...] = (MODULE,), cache: Cache | None = None
    ) -> tuple[Entry, bytes]:
        """Publish a whole start-up; its entry, and its file as vLLM would write it."""
        current, tables, indices = self.compiled(salt)
        cache = cache or self.cache
        publish_graphs(cache, current, tables, indices)
        data = b"head" + salt + b"".join(tables.submodule_bytes_store.values()) + b"tail"
        return publish_startup(cache, current, data, list(modules)), data

    def path(self, entry: Entry) -> Path:
        return filled.path_of(self.root, entry)

    def quarantined(self) -> list[str]:
        return [p.name.split(".")[0] for p in (self.root / "v1" / "quarantine").iterdir() if p.suffix != ".reason"]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Case(tmp_path)
    made.install("x = 1")
    made.install("y = 1", OTHER)
    return made


# Finding


def test_a_start_up_comes_back(case: Case) -> None:
    entry, data = case.publish()
    reader = filled.cache_at(case.root)
    found = find(reader, case.factors)
    assert found == entry
    made = ready(reader, entry, case.absent)
    assert made.data == data
    assert made.kernels == {"k(1, 2048)": b"kernel", "k(8, 8)": b"kernel"}
    assert sorted(g.display["range"] for g in made.graphs) == ["8", "symbolic 1..2048"]
    assert made.compile_seconds == pytest.approx(9.0)


def test_nothing_stored_is_a_miss(case: Case) -> None:
    assert find(case.cache, case.factors) is None


def test_an_edited_source_is_a_miss_and_back_again_a_hit(case: Case) -> None:
    entry, _ = case.publish()
    case.install("x = 2")
    assert find(case.cache, case.factors) is None
    case.install("x = 1")
    assert find(case.cache, case.factors) == entry


def test_two_variants_both_keep_hitting(case: Case) -> None:
    """Two checkouts that share a store: neither pushes the other out."""
    one, data_one = case.publish(b"1")
    case.install("x = 2")
    two, data_two = case.publish(b"2")
    assert one.program_key != two.program_key
    for _ in range(2):
        case.install("x = 1")
        assert find(case.cache, case.factors) == one
        case.install("x = 2")
        assert find(case.cache, case.factors) == two
    assert ready(case.cache, one, case.absent).data == data_one
    assert ready(case.cache, two, case.absent).data == data_two


def test_a_variant_that_traced_more_modules_costs_the_other_a_miss_at_most(case: Case) -> None:
    case.publish()
    case.install("x = 2")
    two, _ = case.publish(modules=(OTHER, MODULE))
    assert find(case.cache, case.factors) == two
    case.install("x = 1")
    assert find(case.cache, case.factors) is None


def test_a_module_that_is_gone_is_a_miss(case: Case) -> None:
    case.publish(modules=(MODULE, OTHER))
    (case.folder / f"{OTHER}.py").unlink()
    importlib.invalidate_caches()
    assert find(case.cache, case.factors) is None


def test_a_start_up_whose_sources_cannot_be_read_is_not_stored(case: Case) -> None:
    with pytest.raises(FactorError):
        case.publish(modules=(MODULE, "no_such_module_at_all"))
    assert find(case.cache, case.factors) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"{}", b"[1]", b'"x"', b"null", b"[[]]", b'["no_such_module_at_all"]', b"\xff"]
)
def test_a_table_of_modules_that_says_nothing_is_a_miss(case: Case, content: bytes) -> None:
    case.publish()
    name = layout.modules(case.factors.configuration_key, case.factors.program_key)
    case.cache.store.replace(name, content)
    assert find(case.cache, case.factors) is None


def test_other_factors_are_a_miss(case: Case) -> None:
    case.publish()
    assert find(case.cache, Factors({"model": "m"}, {"part": "eagle_head"})) is None
    assert find(case.cache, Factors({"model": "n"}, {"part": "backbone"})) is None


# Ready


@pytest.mark.parametrize("which", range(5))
def test_a_missing_blob_is_damage_and_the_next_compile_heals_it(case: Case, which: int) -> None:
    entry, _ = case.publish()
    graphs = ready(case.cache, entry, case.absent).graphs
    refs = {ref.digest: ref for program in (entry, *graphs) for ref in program.blobs}
    assert len(refs) == 5  # head, tail, two artifacts, and the kernel that both graphs load
    filled.blob_path(case.root, list(refs)[which]).unlink()
    with pytest.raises(Damaged):
        ready(case.cache, entry, case.absent)
    assert find(case.cache, case.factors) is None
    assert case.quarantined() == [entry.program_key]
    entry, data = case.publish(b"compiled again")
    assert find(case.cache, case.factors) == entry
    assert ready(case.cache, entry, case.absent).data == data


def test_a_missing_graph_too(case: Case) -> None:
    entry, data = case.publish()
    graph = ready(case.cache, entry, case.absent).graphs[0]
    case.path(graph).unlink()
    with pytest.raises(Damaged):
        ready(case.cache, entry, case.absent)
    assert case.quarantined() == [entry.program_key]
    entry, _ = case.publish()
    assert ready(case.cache, entry, case.absent).data == data


def test_a_flipped_bit_too(case: Case) -> None:
    entry, data = case.publish()
    path = filled.blob_path(case.root, entry.blobs[0].digest)
    stored = path.read_bytes()
    path.write_bytes(stored[:-1] + bytes([stored[-1] ^ 1]))
    with pytest.raises(Damaged):
        ready(case.cache, entry, case.absent)
    entry, _ = case.publish()
    assert ready(case.cache, entry, case.absent).data == data


def test_a_graph_that_was_compiled_again_does_not_fit(case: Case) -> None:
    """Its bytes are sound, but not those that this start-up was made of."""
    entry, _ = case.publish()
    for graph in ready(case.cache, entry, case.absent).graphs:
        case.path(graph).unlink()
    case.publish(b"again")
    with pytest.raises(Damaged):
        ready(case.cache, entry, case.absent)


def test_a_graph_of_another_configuration_does_not_fit(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, _ = case.publish()
    other = Case(case.folder)
    other.factors = Factors({"model": "other"}, {"part": "backbone"})
    foreign, _ = other.publish()
    graph = ready(case.cache, foreign, case.absent).graphs[0]
    monkeypatch.setattr(Cache, "entry_of", lambda self, configuration, program: graph)
    with pytest.raises(Damaged, match="another configuration"):
        ready(case.cache, entry, case.absent)


def test_a_reader_without_the_right_to_write_moves_nothing(case: Case) -> None:
    entry, _ = case.publish()
    filled.blob_path(case.root, entry.blobs[0].digest).unlink()
    before = filled.snapshot(case.root)
    reader = Cache(filled.load({"COMPCACHE_DIR": str(case.root), "COMPCACHE_MODE": "ro", "HOME": str(case.folder)}))
    with pytest.raises(Damaged):
        ready(reader, entry, case.absent)
    assert filled.snapshot(case.root) == before


# Vouching


def test_vllms_own_file_serves_if_the_entry_vouches_for_it(case: Case) -> None:
    entry, data = case.publish()
    own = case.folder / "own"
    own.write_bytes(data)
    filled.blob_path(case.root, entry.blobs[0].digest).unlink()
    made = ready(case.cache, entry, str(own))
    assert made.data == data
    assert case.quarantined() == []
    assert find(case.cache, case.factors) == entry


@pytest.mark.parametrize("change", ["cut", "longer", "other", "empty"])
def test_another_file_does_not(case: Case, change: str) -> None:
    entry, data = case.publish()
    own = case.folder / "own"
    own.write_bytes({"cut": data[:-1], "longer": data + b"x", "other": data[:-1] + b"?", "empty": b""}[change])
    assert ready(case.cache, entry, str(own)).data == data  # the store's bytes, while it has them
    filled.blob_path(case.root, entry.blobs[0].digest).unlink()
    with pytest.raises(Damaged):
        ready(case.cache, entry, str(own))
    assert case.quarantined() == [entry.program_key]


# Publishing


def test_bytes_that_were_published_first_take_the_place_of_ours(case: Case) -> None:
    case.publish(b"first")
    current, tables, indices = case.compiled(b"second")
    publish_graphs(case.cache, current, tables, indices)
    wanted = {f"submod_0_{r}": data + b"first" for r, data in ARTIFACTS.items()}
    assert {name: tables.submodule_bytes_store[token] for name, token in tables.submodule_bytes.items()} == wanted
    assert all(hashlib.sha256(data).hexdigest() == token for token, data in tables.submodule_bytes_store.items())
    assert sorted(tables.submodule_bytes_store.values()) == sorted(wanted.values())  # and ours are gone
    assert sorted(current.artifacts.values()) == sorted(wanted.values())
    assert {name: data for entry in current.published for name, data in kernels(case.cache, entry).items()} == {
        "k(1, 2048)": b"kernelfirst",
        "k(8, 8)": b"kernelfirst",
    }


def kernels(cache: Cache, entry: Entry) -> dict[str, bytes]:
    return {ref.name: cache.blob(ref) for ref in entry.blobs_with("kernel")}


def test_what_we_published_first_stays_as_it_is(case: Case) -> None:
    current, tables, indices = case.compiled(b"ours")
    before = dict(tables.submodule_bytes), dict(tables.submodule_bytes_store)
    publish_graphs(case.cache, current, tables, indices)
    assert (tables.submodule_bytes, tables.submodule_bytes_store) == before


def test_two_start_ups_that_share_a_first_artifact_both_load(case: Case) -> None:
    one, data_one = case.publish(b"1")
    case.install("x = 2")
    two, data_two = case.publish(b"2")
    assert [ref.program_key for ref in one.programs] == [ref.program_key for ref in two.programs]
    assert data_one != data_two
    assert ready(case.cache, two, case.absent).data == data_two


def test_equal_graphs_of_one_start_up_are_one_program(case: Case) -> None:
    """Layers that are alike: compiled once, and what the others cost belongs to the first."""
    current, tables, indices = case.compiled()
    for compiled_range in ARTIFACTS:
        same = current.graphs[0, compiled_range]
        current.graphs[1, compiled_range] = GraphRecord(same.digest, same.inputs, same.engine_key, 0.5, {"more": b"m"})
        tables.submodule_bytes[f"submod_2_{compiled_range}"] = tables.submodule_bytes[f"submod_0_{compiled_range}"]
    publish_graphs(case.cache, current, tables, {**indices, "submod_2": 1})
    assert len(current.published) == len(ARTIFACTS)
    for entry in current.published:
        assert entry.display["graphs"] == ["submod_0", "submod_2"]
        assert entry.compile_seconds == 2.5
        assert "more" in kernels(case.cache, entry)


@pytest.mark.parametrize("unknown", ["digest", "engine_key", "absent"])
def test_a_graph_without_an_identity_stays_inside(case: Case, unknown: str) -> None:
    current, tables, indices = case.compiled()
    if unknown == "absent":
        del current.graphs[0, "(8, 8)"]
    else:
        setattr(current.graphs[0, "(8, 8)"], unknown, "")
    publish_graphs(case.cache, current, tables, indices)
    assert [entry.display["range"] for entry in current.published] == ["symbolic 1..2048"]
    assert list(case.cache.session.uncacheable) == ["graph submod_0"]
    data = b"head" + b"".join(tables.submodule_bytes_store.values())
    entry = publish_startup(case.cache, current, data, [MODULE])
    assert len(entry.programs) == 1
    assert ready(case.cache, entry, case.absent).data == data


@pytest.mark.parametrize("change", ["digest", "inputs", "engine_key", "range", "part", "shared"])
def test_each_of_a_graphs_factors_makes_another_program(case: Case, change: str) -> None:
    current, tables, indices = case.compiled()
    publish_graphs(case.cache, current, tables, indices)
    later, tables, indices = case.compiled()
    del later.graphs[0, "(1, 2048)"], tables.submodule_bytes["submod_0_(1, 2048)"]
    if change == "range":
        later.graphs[0, "(4, 4)"] = later.graphs.pop((0, "(8, 8)"))
        tables.submodule_bytes["submod_0_(4, 4)"] = tables.submodule_bytes.pop("submod_0_(8, 8)")
    elif change == "part":
        later.factors = Factors(later.factors.shared, {"part": "eagle_head"})
    elif change == "shared":
        later.factors = Factors({"model": "other"}, later.factors.own)
    else:
        setattr(later.graphs[0, "(8, 8)"], change, "another")
    publish_graphs(case.cache, later, tables, indices)
    assert later.published[0].program_key not in {entry.program_key for entry in current.published}


def test_one_graph_that_is_not_split(case: Case) -> None:
    current = case.start_up()
    current.whole, current.kernels = GraphRecord("cd" * 16, ["bf16"]), {"k": b"kernel"}
    artifact = b"whole artifact " * 50
    assert startup.publish_whole(case.cache, current, artifact) == artifact
    entry = publish_startup(case.cache, current, b"<" + artifact + b">", [MODULE])
    made = ready(case.cache, entry, case.absent)
    assert (made.data, made.kernels) == (b"<" + artifact + b">", {"k": b"kernel"})
    assert made.graphs[0].display["range"] == "symbolic"
    assert (entry.compile_seconds, made.compile_seconds) == (0.0, 9.0)
    again = case.start_up()
    again.whole = GraphRecord("cd" * 16, ["bf16"])
    assert startup.publish_whole(case.cache, again, b"compiled again") == artifact


def test_one_graph_without_an_identity(case: Case) -> None:
    for whole in (None, GraphRecord("", [])):
        current = case.start_up()
        current.whole = whole
        assert startup.publish_whole(case.cache, current, b"bytes") == b"bytes"
        assert current.published == []


def test_the_stored_digest_is_that_of_the_file(case: Case) -> None:
    entry, data = case.publish()
    assert entry.assembly is not None
    assert (entry.assembly.digest, entry.assembly.size) == (digest_of(data), len(data))
    assert all(ref.size < len(data) // 2 for ref in entry.blobs)  # artifacts are programs, not part of the shell
