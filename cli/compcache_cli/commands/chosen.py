"""The program or configuration that a person means by the beginning of a key."""

from __future__ import annotations

from dataclasses import dataclass

from compcache.errors import NotStored
from compcache.store import layout
from compcache.store.protocol import Found, Store

_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Chosen:
    """Entries: one program, or all of a configuration."""

    configuration_key: str
    programs: tuple[Found, ...]
    program: Found | None = None


def choose(store: Store, key: str) -> Chosen:
    """The one whose key begins so. Raises NotStored, with a message that names the choice, if there is not just one."""
    programs, configurations = _matches(store, key.strip().lower())
    if len(programs) + len(configurations) != 1:
        raise NotStored(None, _no_choice(key, programs, configurations, store))
    if programs:
        name = layout.parse_entry_name(programs[0].name)
        return Chosen(name.configuration_key if name else "", tuple(programs), programs[0])
    configuration_key, entries = configurations.popitem()
    return Chosen(configuration_key, tuple(entries))


def _matches(store: Store, prefix: str) -> tuple[list[Found], dict[str, list[Found]]]:
    programs: list[Found] = []
    configurations: dict[str, list[Found]] = {}
    for found in store.scan("configs"):
        name = layout.parse_entry_name(found.name)
        if name and name.program_key.startswith(prefix):
            programs.append(found)
        if name and name.configuration_key.startswith(prefix):
            configurations.setdefault(name.configuration_key, []).append(found)
    return sorted(programs, key=lambda found: found.name), configurations


def _no_choice(key: str, programs: list[Found], configurations: dict[str, list[Found]], store: Store) -> str:
    if not programs and not configurations:
        return f"no program or configuration at {store.label} has a key that begins with {key!r}"
    names = [f"program {program_key(found)}" for found in programs]
    names += [f"configuration {name}" for name in sorted(configurations)]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{key!r} is ambiguous: it begins the keys of {', '.join(names[:_MOST_NAMED])}{more}"


def program_key(found: Found) -> str:
    name = layout.parse_entry_name(found.name)
    return name.program_key if name else found.name
