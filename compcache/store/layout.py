"""Where things are in a store of format 1: names only, no input or output.

::

    CACHEDIR.TAG
    v1/configs/<ab>/<configuration key>/config.json            shared factors, for display only
    v1/configs/<ab>/<configuration key>/<program key>.json     an entry
    v1/configs/<ab>/<configuration key>/<start-up key>.modules.json
    v1/blobs/<ab>/<blake3>
    v1/pins/  v1/tmp/  v1/leases/  v1/quarantine/  v1/trash/

Names here are relative to ``v1/``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

VERSION_FOLDER = "v1"
FOLDERS = ("configs", "blobs", "pins", "tmp", "leases", "quarantine", "trash")
DEEP = {"configs": 2, "blobs": 1}
"""How many folders down, below these, files are; elsewhere they lie in the folder itself."""
_ENTRY = re.compile(r"configs/([0-9a-f]{2})/([0-9a-f]{32})/([0-9a-f]{32})\.json\Z")
_MODULES = re.compile(r"configs/([0-9a-f]{2})/([0-9a-f]{32})/([0-9a-f]{32})\.modules\.json\Z")
_BLOB = re.compile(r"blobs/([0-9a-f]{2})/([0-9a-f]{64})\Z")
NAME = re.compile(r"[a-z]+(/[0-9a-zA-Z._-]+)+\Z")


def is_name(name: str) -> bool:
    """Whether a string is a well-formed name in a store (no absolute path, no ``..``)."""
    return bool(NAME.match(name)) and ".." not in name and name.split("/", 1)[0] in FOLDERS


def configuration(configuration_key: str) -> str:
    return f"configs/{configuration_key[:2]}/{configuration_key}"


def shared_factors(configuration_key: str) -> str:
    return f"{configuration(configuration_key)}/config.json"


def entry(configuration_key: str, program_key: str) -> str:
    return f"{configuration(configuration_key)}/{program_key}.json"


def modules(configuration_key: str, startup_key: str) -> str:
    return f"{configuration(configuration_key)}/{startup_key}.modules.json"


def blob(digest: str) -> str:
    return f"blobs/{digest[:2]}/{digest}"


def lease(key: str) -> str:
    return f"leases/{key}.json"


def pin(key: str) -> str:
    return f"pins/{key}"


class EntryName(NamedTuple):
    configuration_key: str
    program_key: str


def parse_entry_name(name: str) -> EntryName | None:
    """The keys in the name of an entry; None for any other name."""
    match = _ENTRY.match(name)
    return EntryName(match[2], match[3]) if match and match[2].startswith(match[1]) else None


def program_key(name: str) -> str:
    """The program key in the name of an entry, which is known to be one."""
    return name[-37:-5]


def is_modules_name(name: str) -> bool:
    return bool(_MODULES.match(name))


def parse_blob_name(name: str) -> str | None:
    """The digest in the name of a blob; None for any other name."""
    match = _BLOB.match(name)
    return match[2] if match and match[2].startswith(match[1]) else None
