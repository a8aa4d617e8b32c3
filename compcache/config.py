"""Settings: the only reader of ``COMPCACHE_*`` variables and of ``compcache.toml``.

Order, the first that says something wins: the environment, then the file. The file is ``COMPCACHE_CONFIG`` or
``$XDG_CONFIG_HOME/compcache/compcache.toml`` (default ``~/.config``). What cannot be understood is never guessed at:
it becomes a warning in :attr:`Settings.warnings`, and the default is used; a value that decides about trust or mode
raises instead, and the adapters then switch the cache off with one line.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from compcache.errors import ConfigError
from compcache.fsio import Trust

MODES = ("rw", "ro", "off", "require")
PREFIX = "COMPCACHE_"
_SIZES = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12}
_SIZES |= {"tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-zA-Z]*)")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a store may hold; None is no limit. They are kept after each publication (compcache.limits)."""

    max_bytes: int | None = 20 * 10**9
    """COMPCACHE_MAX_SIZE: bytes of all files, like "20GB"; "none" for no limit."""
    max_files: int | None = 100_000
    """COMPCACHE_MAX_FILES: how many files; "none" for no limit."""
    max_age: float | None = None
    """COMPCACHE_MAX_AGE: seconds since the last use, like "30d"; default "none"."""

    @property
    def any(self) -> bool:
        return self != Limits(None, None, None)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user can set. Each field names its variable; in ``compcache.toml`` the same word in lower case."""

    directory: Path
    """COMPCACHE_DIR: the store. Default ``$XDG_CACHE_HOME/compcache/store``."""
    state: Path
    """COMPCACHE_STATE: this host's own records. Default ``$XDG_CACHE_HOME/compcache/state``."""
    mode: str = "rw"
    """COMPCACHE_MODE: rw (load and store), ro (load only), off, require (a miss is an error)."""
    trust: Trust = field(default_factory=Trust)
    """COMPCACHE_TRUST_OWNER: ``uid`` or ``:gid`` whose files are used besides one's own."""
    wait_seconds: float = 240.0
    """COMPCACHE_WAIT: seconds that one start may wait, in all, for programs that other processes compile."""
    store_seconds: float = 60.0
    """COMPCACHE_STORE_SECONDS: seconds that one start may spend in the store, in all; then it is left alone."""
    limits: Limits = field(default_factory=Limits)
    """COMPCACHE_MAX_SIZE, COMPCACHE_MAX_FILES, COMPCACHE_MAX_AGE."""
    key_ignore: tuple[str, ...] = ()
    """COMPCACHE_KEY_IGNORE: comma-separated environment variables left out of keys; recorded in entries."""
    key_extra: str = ""
    """COMPCACHE_KEY_EXTRA: any text; becomes a factor."""
    inductor: bool = True
    """COMPCACHE_INDUCTOR: 0 keeps the Inductor adapter off, whoever asks for it."""
    warnings: tuple[str, ...] = ()
    """What could not be understood, one line each."""


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process. ``environ`` defaults to ``os.environ``.

    Raises ConfigError for a mode or trusted owner that cannot be understood: neither may be guessed.
    """
    environment = os.environ if environ is None else environ
    warnings: list[str] = []
    values = _file_values(environment, warnings)
    for name, value in environment.items():
        if not name.startswith(PREFIX) or name in ("COMPCACHE_CONFIG",) or name.startswith("COMPCACHE_TEST_"):
            continue
        if name in _VARIABLES:
            values[_VARIABLES[name]] = value
        else:
            warnings.append(f"unknown variable {name}; known: {', '.join(sorted(_VARIABLES))}")
    return _settings(values, environment, warnings)


_VARIABLES = {
    "COMPCACHE_DIR": "dir",
    "COMPCACHE_STATE": "state",
    "COMPCACHE_MODE": "mode",
    "COMPCACHE_TRUST_OWNER": "trust_owner",
    "COMPCACHE_WAIT": "wait",
    "COMPCACHE_STORE_SECONDS": "store_seconds",
    "COMPCACHE_MAX_SIZE": "max_size",
    "COMPCACHE_MAX_FILES": "max_files",
    "COMPCACHE_MAX_AGE": "max_age",
    "COMPCACHE_KEY_IGNORE": "key_ignore",
    "COMPCACHE_KEY_EXTRA": "key_extra",
    "COMPCACHE_INDUCTOR": "inductor",
}


def _file_values(environment: Mapping[str, str], warnings: list[str]) -> dict[str, Any]:
    path = _config_path(environment)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8")) if path else {}
    except (FileNotFoundError, NotADirectoryError):
        if "COMPCACHE_CONFIG" in environment:
            warnings.append(f"{path} does not exist")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        # A home that this user may not even enter (HOME=/root in a pod) holds no settings of theirs.
        foreign = path is not None and isinstance(error, PermissionError) and not os.access(path.parent, os.X_OK)
        if not foreign or "COMPCACHE_CONFIG" in environment:
            warnings.append(f"{path} is not used: {' '.join(str(error).split())}")
        return {}
    known = set(_VARIABLES.values())
    for name in sorted(data.keys() - known):
        warnings.append(f"unknown setting {name} in {path}")
    return {name: value for name, value in data.items() if name in known}


def _config_path(environment: Mapping[str, str]) -> Path | None:
    if chosen := environment.get("COMPCACHE_CONFIG"):
        return Path(chosen)
    if base := environment.get("XDG_CONFIG_HOME"):
        return Path(base) / "compcache" / "compcache.toml"
    home = _home(environment)
    return home / ".config" / "compcache" / "compcache.toml" if home else None


def _settings(values: dict[str, Any], environment: Mapping[str, str], warnings: list[str]) -> Settings:
    def read(name: str, parse: Callable[[Any], Any], default: Any) -> Any:
        if name not in values:
            return default
        try:
            return parse(values[name])
        except ConfigError as error:
            warnings.append(f"setting {name}: {error}; using {default}")
            return default

    root = _cache_root(environment, warnings if "dir" not in values or "state" not in values else [])
    mode = _mode(values.get("mode", "rw"))
    trust = _trust(values.get("trust_owner", ""))
    usual = Limits()
    settings = {
        "directory": read("dir", directory, root / "store"),
        "state": read("state", directory, root / "state"),
        "wait_seconds": read("wait", _seconds, 240.0),
        "store_seconds": read("store_seconds", _seconds, 60.0),
        "limits": Limits(
            read("max_size", _limit(parse_size), usual.max_bytes),
            read("max_files", _limit(_count), usual.max_files),
            read("max_age", _limit(parse_age), usual.max_age),
        ),
        "key_ignore": read("key_ignore", _names, ()),
        "key_extra": read("key_extra", _text, ""),
        "inductor": read("inductor", _switch, True),
    }
    return Settings(mode=mode, trust=trust, warnings=tuple(warnings), **settings)


def _home(environment: Mapping[str, str]) -> Path | None:
    """HOME, or the user database's; None for a uid without a name and without HOME (OpenShift runs pods so)."""
    if home := environment.get("HOME"):
        return Path(home)
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def _cache_root(environment: Mapping[str, str], warnings: list[str]) -> Path:
    """The first of XDG_CACHE_HOME, ``~/.cache`` and a per-user folder in TMPDIR that can be written."""
    home = _home(environment)
    candidates = [Path(environment["XDG_CACHE_HOME"])] if environment.get("XDG_CACHE_HOME") else []
    if home is not None:
        candidates.append(home / ".cache")
    for candidate in candidates:
        if _can_write(candidate):
            return candidate / "compcache"
    # A name per user; nothing in it is used unless this user owns it.
    fallback = Path(environment.get("TMPDIR") or "/tmp") / f"compcache-{os.getuid()}"  # noqa: S108
    _refuse_foreign(fallback)
    warnings.append(f"no writable home; using {fallback} (set COMPCACHE_DIR to choose)")
    return fallback


def _refuse_foreign(fallback: Path) -> None:
    """Anybody may have made a folder of that name in TMPDIR. Raises ConfigError unless it is this user's alone."""
    try:
        info = os.lstat(fallback)
    except OSError:
        return
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022:
        raise ConfigError(f"no writable home, and {fallback} is not this user's alone: set COMPCACHE_DIR")


def _can_write(path: Path) -> bool:
    # os.path, not Path: Path.exists raises where a parent may not be searched (another user's home).
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def _mode(value: Any) -> str:
    mode = str(value).strip().lower()
    if mode not in MODES:
        raise ConfigError(f"COMPCACHE_MODE is {value!r}; it must be one of {', '.join(MODES)}")
    return mode


def _trust(value: Any) -> Trust:
    text = str(value).strip()
    if not text:
        return Trust()
    match = re.fullmatch(r"(:?)([0-9]+)", text)
    if not match:
        raise ConfigError(f"COMPCACHE_TRUST_OWNER is {value!r}; it must be a uid, or :gid")
    number = int(match[2])
    return Trust(gid=number) if match[1] else Trust(uid=number)


def directory(value: Any) -> Path:
    """The path that was written, "~" expanded. Raises ConfigError."""
    if not _text(value).strip() or "\0" in value:
        raise ConfigError(f"{value!r} is not a path")
    try:
        return Path(value).expanduser()
    except RuntimeError as error:  # "~" for a user that has no home
        raise ConfigError(f"{value!r}: {error}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is not text")
    return value


def _switch(value: Any) -> bool:
    """ "1" or "0"; the file may hold true or false."""
    text = str(value).strip().lower()
    if text not in ("0", "1", "true", "false"):
        raise ConfigError(f"{value!r} is not 1 or 0")
    return text in ("1", "true")


def _seconds(value: Any) -> float:
    try:
        seconds = float("true" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        raise ConfigError(f"{value!r} is not a number of seconds") from None
    if not 0 <= seconds <= 86400:
        raise ConfigError(f"{value!r} is not 0 to 86400 seconds")
    return seconds


def parse_size(text: str) -> int:
    """Bytes in "20GB", "500MiB", "1.5g" or "1000". Raises ConfigError that says what a size looks like."""
    match = _AMOUNT.fullmatch(text.strip())
    if not match or match[2].lower() not in _SIZES:
        raise ConfigError(f"{text!r} is not a size; write it like 20GB, 500MiB or 1000000")
    return int(float(match[1]) * _SIZES[match[2].lower()])


def parse_age(text: str) -> float:
    """Seconds in "30d", "12h", "90m", "45s" or "2w". Raises ConfigError that says what an age looks like."""
    match = _AMOUNT.fullmatch(text.strip())
    if not match or match[2].lower() not in _AGES:
        raise ConfigError(f"{text!r} is not an age; write it like 30d, 12h or 90m")
    return float(match[1]) * _AGES[match[2].lower()]


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}", text.strip()):
        raise ConfigError(f"{text!r} is not a count; write it like 100000")
    return int(text)


T = TypeVar("T")


def _limit(parse: Callable[[str], T]) -> Callable[[Any], T | None]:
    """A setting that may also be "none"; the file may hold a bare number."""

    def read(value: Any) -> T | None:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value)
        return None if text.strip().lower() == "none" else parse(text)

    return read


def _names(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list) else _text(value).split(",")
    return tuple(sorted({_text(item).strip() for item in items} - {""}))


def variables() -> list[str]:
    """The names of all variables that are read."""
    return [*sorted(_VARIABLES), "COMPCACHE_CONFIG"]
