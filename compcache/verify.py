"""Verify: read every file of a store and say what is wrong with it. Read-only; findings are data.

Every entry is parsed, its keys recomputed, its references followed; every blob is read whole, digested, and decoded
once for each way in which an entry refers to it; every start-up is put together and its digest compared. "damage" is
what no sequence of kills can leave behind; "note" is what a kill, or an unfinished publication, does leave: harmless,
and prune removes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import blake3

from compcache.cache import decoded, digest_of
from compcache.contents import Contents, contents, read_entry
from compcache.entry import MAX_ENTRY_BYTES, MAX_RAW_BYTES, BlobRef, Entry
from compcache.errors import CompcacheError, Damaged, FactorError, NotStored, StoreError
from compcache.factors import Factors, key_of
from compcache.store import layout
from compcache.store.protocol import Folder, Found, Store


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with the file ``name``.

    ``kind``: "damaged", "unread", "unknown", "missing blob", "missing program" (damage); "orphan blob", "leftover",
    "quarantined" (notes).
    """

    name: str
    kind: str
    detail: str
    damage: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """What was looked at, and what was found."""

    entries: int
    blobs: int
    bytes: int
    findings: tuple[Finding, ...]

    @property
    def damage(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.damage)

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.damage)


def verify(store: Store, prefix: str = "") -> Report:
    """Look at the whole store, or at what is below a folder; a part that cannot be looked at is a finding."""
    stored, findings = _looked(store, prefix)
    findings.extend(Finding(s.name, s.kind, s.reason) for s in stored.skipped)
    refs: Refs = {}
    findings.extend(_entries(store, stored, refs))
    findings.extend(_blobs(store, stored, refs))
    findings.extend(_references(store, stored, refs))
    for look in (_assemblies, _configs, _modules, _leftovers):
        findings.extend(look(store, stored))
    damaged_entries = sum(1 for s in stored.skipped if layout.parse_entry_name(s.name))
    return Report(
        entries=len(stored.entries) + damaged_entries,
        blobs=len(stored.blobs),
        bytes=stored.bytes,
        findings=tuple(sorted(findings, key=lambda finding: (not finding.damage, finding.name, finding.detail))),
    )


def _looked(store: Store, prefix: str) -> tuple[Contents, list[Finding]]:
    """What is below a folder; where that cannot be looked at as a whole, what its parts hold, as far as they can be."""
    try:
        return contents(store, prefix), []
    except StoreError as error:
        stored, findings = Contents(), list[Finding]()
        parts = _parts(store, prefix)
        if not parts:
            findings.append(Finding(prefix, "unread", error.strerror or str(error)))
    for part in parts:
        below, found = _looked(store, part)
        stored.add(below)
        findings += found
    return stored, findings


def _parts(store: Store, prefix: str) -> list[str]:
    if not prefix:
        return list(layout.FOLDERS)
    if prefix not in layout.DEEP:
        return []
    try:
        return [folder.name for folder in store.folders(prefix) or () if isinstance(folder, Folder)]
    except StoreError:
        return []


Refs = dict[str, tuple[BlobRef, ...]]
"""The blobs of each entry that is one, by its name."""


def _entries(store: Store, stored: Contents, refs: Refs) -> Iterator[Finding]:
    """Parse every entry whole, its keys recomputed; fills ``refs``."""
    for entry in stored.entries:
        try:
            refs[entry.found.name] = read_entry(store, entry.found).blobs
        except NotStored:
            continue  # gone since the scan
        except Damaged as error:
            yield Finding(entry.found.name, "damaged", str(error))
        except StoreError as error:
            yield Finding(entry.found.name, "unread", error.strerror or str(error))


Ways = dict[tuple[str, int, int], tuple[BlobRef, list[str]]]
"""How entries say that one blob is stored, and which entries say so."""


def _blobs(store: Store, stored: Contents, refs: Refs) -> Iterator[Finding]:
    ways: dict[str, Ways] = {}
    for name, blobs in refs.items():
        for ref in blobs:
            way = ways.setdefault(ref.digest, {}).setdefault((ref.encoding, ref.size, ref.raw_size), (ref, []))
            way[1].append(name)
    named = ways.keys() | {digest for entry in stored.entries for digest in entry.digests}
    for digest, found in stored.blobs.items():
        problems = list(_problems_of_blob(store, found, digest, ways.get(digest, {})))
        yield from problems
        if digest not in named and not problems:
            yield Finding(found.name, "orphan blob", "no entry refers to it", damage=False)


def _problems_of_blob(store: Store, found: Found, digest: str, ways: Ways) -> Iterator[Finding]:
    try:
        data = _read(store, found.name, MAX_RAW_BYTES)
        if digest_of(data) != digest:  # looked at twice, as a lookup does
            data = _read(store, found.name, MAX_RAW_BYTES)
        if digest_of(data) != digest:
            raise Damaged("its bytes do not match its digest")
    except NotStored:
        return  # gone since the scan
    except Damaged as error:
        yield Finding(found.name, "damaged", str(error))
        return
    except StoreError as error:
        yield Finding(found.name, "unread", error.strerror or str(error))
        return
    for ref, entries in ways.values():
        try:
            decoded(ref, data)
        except Damaged as error:  # others may say right what this one says wrong: the blob is sound
            yield from (
                Finding(name, "damaged", f"it is wrong about a blob: {error}") for name in dict.fromkeys(entries)
            )


def _read(store: Store, name: str, limit: int) -> bytes:
    """As read; damage of the moment (a torn read on a network mount) is looked at twice."""
    try:
        return store.read(name, limit)
    except Damaged:
        return store.read(name, limit)


def _references(store: Store, stored: Contents, refs: Refs) -> Iterator[Finding]:
    programs = {(entry.configuration_key, entry.program_key) for entry in stored.entries}
    for entry in stored.entries:
        blobs = refs.get(entry.found.name, ())
        missing = {ref.digest: ref for ref in blobs if ref.digest not in stored.blobs}
        for ref in missing.values():
            if _still_missing(store, entry.found.name, layout.blob(ref.digest)):
                yield Finding(
                    entry.found.name, "missing blob", f"{ref.role} {ref.name} {ref.digest}".replace("  ", " ")
                )
        for key in dict.fromkeys(entry.programs):
            wanted = layout.entry(entry.configuration_key, key)
            if (entry.configuration_key, key) not in programs and _still_missing(store, entry.found.name, wanted):
                yield Finding(entry.found.name, "missing program", key)


def _still_missing(store: Store, entry: str, wanted: str) -> bool:
    """Whether a name that the scan did not see is missing, and not just published, or pruned with its entry."""
    return not is_there(store, wanted) and is_there(store, entry)


def is_there(store: Store, name: str) -> bool:
    """Whether something is there, readable or not."""
    try:
        store.read(name, MAX_RAW_BYTES)
    except NotStored as error:
        return not error.gone
    except CompcacheError:
        return True
    return True


def _assemblies(store: Store, stored: Contents) -> Iterator[Finding]:
    """Start-ups whose pieces are all sound but do not make up the file that was stored."""
    for stored_entry in stored.entries:
        if stored_entry.kind != "start-up":
            continue
        try:
            entry = read_entry(store, stored_entry.found)
        except (Damaged, StoreError):
            continue  # a finding already
        try:
            _assemble(store, entry)
        except Damaged as error:
            yield Finding(stored_entry.found.name, "damaged", str(error))
        except StoreError:
            continue  # a blob or program that is missing, or cannot be read, is a finding already


def _assemble(store: Store, entry: Entry) -> None:
    if entry.assembly is None:
        return
    digest, size = blake3.blake3(), 0
    for piece in entry.assembly.pieces:
        if piece.source == "blob":
            ref = entry.blobs[piece.index]
        else:
            ref = _artifact(store, entry, piece.index)
        try:
            data = decoded(ref, store.read(layout.blob(ref.digest), ref.size))
        except Damaged:
            return  # a finding of its own
        digest.update(data)
        size += len(data)
    if (digest.hexdigest(), size) != (entry.assembly.digest, entry.assembly.size):
        raise Damaged("its pieces do not make up the file that was stored")


def _artifact(store: Store, entry: Entry, index: int) -> BlobRef:
    name = layout.entry(entry.configuration_key, entry.programs[index].program_key)
    try:
        artifacts = read_entry(store, Found(name, 0, 0.0)).blobs_with("artifact")
    except Damaged as error:
        raise NotStored(str(error)) from error  # a finding of its own
    if len(artifacts) != 1:
        raise Damaged(f"the program {entry.programs[index].program_key} has {len(artifacts)} artifacts, not one")
    return artifacts[0]


def _configs(store: Store, stored: Contents) -> Iterator[Finding]:
    for key, found in stored.configs.items():
        try:
            shared = json.loads(store.read(found.name, MAX_ENTRY_BYTES))
            if not isinstance(shared, dict) or key_of(shared) != key:
                raise Damaged("its factors are not those of its configuration key")
        except NotStored:
            continue
        except StoreError as error:
            yield Finding(found.name, "unread", error.strerror or str(error))
        except (Damaged, FactorError, ValueError, RecursionError) as error:
            yield Finding(found.name, "damaged", str(error))


def _modules(store: Store, stored: Contents) -> Iterator[Finding]:
    """A list that names other modules than every start-up that is found by it hides them all."""
    for found in stored.modules:
        try:
            modules = json.loads(store.read(found.name, MAX_ENTRY_BYTES))
            if not isinstance(modules, list) or not all(isinstance(name, str) for name in modules):
                raise Damaged("it is not a list of modules")
            variants = list(_variants(store, stored, found.name))
            if variants and modules not in variants:
                raise Damaged("it lists other modules than the start-ups that are found by it")
        except NotStored:
            continue
        except StoreError as error:
            yield Finding(found.name, "unread", error.strerror or str(error))
        except (Damaged, ValueError, RecursionError) as error:
            yield Finding(found.name, "damaged", str(error))


def _variants(store: Store, stored: Contents, modules: str) -> Iterator[list[str]]:
    """What each start-up beside a ``modules.json`` has traced, of those that are found by it."""
    folder = modules.rpartition("/")[0]
    for stored_entry in stored.entries:
        if stored_entry.kind != "start-up" or stored_entry.found.name.rpartition("/")[0] != folder:
            continue
        try:
            entry = read_entry(store, stored_entry.found)
        except CompcacheError:
            continue  # a finding of its own
        if modules == layout.modules(entry.configuration_key, start_up_key(entry)):
            yield traced_modules(entry)


def traced_modules(entry: Entry) -> list[str]:
    """The modules whose sources are factors of a start-up."""
    return sorted(name.removeprefix("source.") for name in entry.factors.own if name.startswith("source."))


def start_up_key(entry: Entry) -> str:
    """The key of a start-up before its sources are known, by which its modules.json is named."""
    own = {name: value for name, value in entry.factors.own.items() if not name.startswith("source.")}
    return Factors(entry.factors.shared, own).program_key


def _leftovers(store: Store, stored: Contents) -> Iterator[Finding]:
    for place in ("tmp", "trash"):
        for found in stored.leftovers[place]:
            yield Finding(found.name, "leftover", "of a process that writes, or was killed", damage=False)
    for found in stored.leftovers["quarantine"]:
        if not found.name.endswith(".reason"):
            yield Finding(found.name, "quarantined", _reason(store, found), damage=False)


def _reason(store: Store, found: Found) -> str:
    try:
        lines = store.read(found.name + ".reason", MAX_ENTRY_BYTES).decode("utf-8", "replace").splitlines()
    except CompcacheError:
        return "no reason was written"
    return ": ".join(lines[:2])
