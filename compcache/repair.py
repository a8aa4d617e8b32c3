"""Repair: what can be mended of what :mod:`compcache.verify` found. Nothing is lost that a start could use.

Files that no start could use are set aside (quarantine keeps them for a look): damaged ones, and entries that name a
blob or program that is not there; the next compile stores them again. ``config.json`` and ``modules.json`` are written
again from the entries beside them. Everything else is left, and said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from compcache.cache import decoded, digest_of
from compcache.contents import Contents, contents, read_entry
from compcache.entry import MAX_RAW_BYTES
from compcache.errors import CompcacheError, Damaged, NotStored, StoreError
from compcache.factors import canonical
from compcache.store import layout
from compcache.store.protocol import Found, Store
from compcache.verify import Finding, Report, start_up_key, traced_modules, verify

_SET_ASIDE = ("damaged", "missing blob", "missing program")


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done about a finding: "written again", "set aside", or why it was left ("")."""

    finding: Finding
    done: str
    left: str = ""


def repair(store: Store, report: Report) -> tuple[Repair, ...]:
    """Mend what can be mended. Raises StoreError only if the store cannot be listed."""
    repairs: list[Repair] = []
    findings = list(report.damage)
    while findings:
        stored = contents(store)
        repairs += [_mended(store, stored, finding) for finding in findings]
        # An entry whose blob was just set aside is one with a missing blob now: look until nothing new is found.
        seen = {(r.finding.name, r.finding.kind) for r in repairs}
        findings = [f for f in verify(store).damage if (f.name, f.kind) not in seen and f.kind in _SET_ASIDE]
    return tuple(repairs)


def _mended(store: Store, stored: Contents, finding: Finding) -> Repair:
    try:
        content = _content(store, stored, finding.name)
        if content is not None:
            store.replace(finding.name, content)
            return Repair(finding, "written again")
        if finding.kind not in _SET_ASIDE:
            return Repair(finding, "", "not for compcache to remove: look at it")
        if not _still(store, finding):
            return Repair(finding, "mended since", "")
        if store.quarantine(finding.name, finding.detail):
            return Repair(finding, "set aside")
        return Repair(finding, "", "it could not be moved: it belongs to another user, or is gone")
    except StoreError as error:
        return Repair(finding, "", error.strerror or str(error))


def _still(store: Store, finding: Finding) -> bool:
    """Whether a finding holds at this moment: looking at a large store takes minutes, and starts heal it meanwhile."""
    if digest := layout.parse_blob_name(finding.name):
        try:
            return digest_of(store.read(finding.name, MAX_RAW_BYTES)) != digest
        except NotStored:
            return False
        except Damaged:
            return True
    folder = finding.name.rpartition("/")[0]
    now = verify(store, folder).damage
    return any(f.name == finding.name and f.kind == finding.kind for f in now) or _lies(store, finding.name)


def _lies(store: Store, name: str) -> bool:
    """Whether an entry is wrong about a blob."""
    try:
        for ref in read_entry(store, Found(name, 0, 0.0)).blobs:
            decoded(ref, store.read(layout.blob(ref.digest), MAX_RAW_BYTES))
    except Damaged:
        return True
    except StoreError:
        return False
    return False


def _content(store: Store, stored: Contents, name: str) -> bytes | None:
    """What a damaged ``config.json`` or ``modules.json`` should hold, by the entries beside it; None for others."""
    is_modules = layout.is_modules_name(name)
    if not is_modules and not name.endswith("/config.json"):
        return None
    folder = name.rpartition("/")[0]
    beside = [found.found for found in stored.entries if found.found.name.rpartition("/")[0] == folder]
    for found in sorted(beside, key=lambda found: -found.mtime):
        try:
            entry = read_entry(store, found)
        except CompcacheError:
            continue
        if not is_modules:
            return canonical(dict(entry.factors.shared)) + b"\n"
        modules = traced_modules(entry)
        if modules and name == layout.modules(entry.configuration_key, start_up_key(entry)):
            return json.dumps(modules, indent=0).encode()
    return None


def left(repairs: Iterable[Repair]) -> tuple[Repair, ...]:
    """Those that could not be mended."""
    return tuple(repair for repair in repairs if not repair.done)
