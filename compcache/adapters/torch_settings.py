"""The settings of torch's config modules (``torch._inductor.config`` and its like) as factors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import blake3

from compcache.errors import FactorError
from compcache.factors import canonical, plain


def changed_settings(module: Any) -> dict[str, Any]:
    """The settings of a torch config module (``torch._inductor.config``, ...) that are not at their default.

    The portable form (``save_config_portable``): no caches, workers or debugging. Defaults belong to the torch
    version, which is a factor. Raises FactorError for a value that has no stable identity.
    """
    entries = getattr(module, "_config", {})
    result = {}
    for name, value in module.save_config_portable().items():
        default = getattr(entries.get(name), "default", _ABSENT)
        if default is _ABSENT or (value is not default and value != default):
            result[name] = identity(value, name)
    return result


_PLACE = re.compile(r"(^|[._])(dir|root|path|home)$")


def settings_digest(module: Any) -> str:
    """Digest over all portable settings of a torch config module, at their default or not.

    :func:`changed_settings` names what differs, but torch takes an environment variable's value, as it is when torch is
    imported, for the default (``_ConfigEntry.default``, torch/utils/_config_module.py).
    """
    found = {}
    for name, value in module.save_config_portable().items():
        if _PLACE.search(name):
            continue  # dynamo.base_dir, dynamo.debug_dir_root: the virtual environment and the working directory
        try:
            found[name] = identity(_without_folder(value) if name == "cpp.cxx" else value, name)
        except FactorError:
            # A default that is a function: it belongs to the torch version. A changed one is refused above.
            found[name] = f"{type(value).__module__}.{type(value).__qualname__}"
    return blake3.blake3(canonical(found)).hexdigest(length=16)


def _without_folder(compilers: Any) -> list[str]:
    """The compilers that may be used, by name: where they are is no part of a program."""
    return [os.path.basename(str(compiler)) for compiler in compilers]


_ABSENT = object()


def identity(value: Any, name: str) -> Any:
    """A plain value for an engine's setting: itself, a ``uuid()``, or a class or dtype by its name.

    Raises FactorError for functions and objects, whose behaviour their name does not tell.
    """
    uuid = getattr(value, "uuid", None)
    if callable(uuid) and not isinstance(value, type):
        token = uuid()
        if token is None:
            raise FactorError(f"{name} has no identity (its uuid() is None)")
        return token if isinstance(token, (str, int)) else blake3.blake3(repr(token).encode()).hexdigest(length=16)
    if isinstance(value, (list, tuple)):
        return [identity(item, name) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((identity(item, name) for item in value), key=canonical)
    if isinstance(value, Mapping):
        return {str(key): identity(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if type(value).__module__ == "torch":
        return str(value)
    return plain(value, name)
