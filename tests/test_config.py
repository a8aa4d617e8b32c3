"""Settings: what is understood, what is said, and what may not be guessed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from another_user import place_for, python_as

from compcache import config
from compcache.config import Limits, Settings, load
from compcache.errors import ConfigError
from compcache.fsio import Trust


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    """Settings with a HOME of its own, a ``compcache.toml`` if there is a text for one, and variables."""

    def settings(text: str | bytes | None = None, **environment: str) -> Settings:
        folder = tmp_path / ".config" / "compcache"
        folder.mkdir(parents=True, exist_ok=True)
        if text is not None:
            (folder / "compcache.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return load({"HOME": str(tmp_path), **environment})

    return settings


def test_without_settings_there_are_defaults_and_nothing_to_say(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    found = settings()
    assert found.directory == tmp_path / ".cache" / "compcache" / "store"
    assert found.state == tmp_path / ".cache" / "compcache" / "state"
    assert (found.mode, found.trust, found.wait_seconds, found.key_ignore) == ("rw", Trust(), 240.0, ())
    assert found.warnings == ()
    assert not (tmp_path / ".cache").exists()


def test_the_environment_goes_before_the_file(settings: Callable[..., Settings]) -> None:
    text = 'mode = "ro"\nwait = 5\ndir = "/from/file"\nkey_ignore = ["B", "A"]\ntrust_owner = 7\nkey_extra = "x"'
    found = settings(text, COMPCACHE_MODE="off", COMPCACHE_DIR="/from/environment")
    assert (found.mode, found.directory, found.wait_seconds) == ("off", Path("/from/environment"), 5.0)
    assert (found.key_ignore, found.trust, found.key_extra) == (("A", "B"), Trust(uid=7), "x")
    assert found.warnings == ()


@pytest.mark.parametrize(
    "text",
    ["mode = ", "[", "mode = 'rw'\nmode = 'ro'", b"\xff\xfe\x00", b"\x00", "dir = 1979-99-99"],
    ids=lambda text: repr(text)[:20],
)
def test_a_broken_file_is_said_once_and_not_used(settings: Callable[..., Settings], text: str | bytes) -> None:
    found = settings(text)
    assert len(found.warnings) == 1
    assert "compcache.toml is not used" in found.warnings[0]
    assert "\n" not in found.warnings[0]
    assert found.mode == "rw"


def test_a_broken_file_leaves_the_environment_as_it_is(settings: Callable[..., Settings]) -> None:
    assert settings("[", COMPCACHE_MODE="ro").mode == "ro"


def test_a_file_that_is_a_folder_is_said(settings: Callable[..., Settings], tmp_path: Path) -> None:
    (tmp_path / ".config" / "compcache" / "compcache.toml").mkdir(parents=True)
    assert "is not used" in settings().warnings[0]


def test_a_chosen_file_that_is_absent_is_said(settings: Callable[..., Settings], tmp_path: Path) -> None:
    found = settings(COMPCACHE_CONFIG=str(tmp_path / "absent.toml"))
    assert found.warnings == (f"{tmp_path / 'absent.toml'} does not exist",)


def test_a_chosen_file_is_the_only_one(settings: Callable[..., Settings], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("wait = 3")
    found = settings('mode = "off"', COMPCACHE_CONFIG=str(tmp_path / "mine.toml"))
    assert (found.mode, found.wait_seconds, found.warnings) == ("rw", 3.0, ())


def test_xdg_places(settings: Callable[..., Settings], tmp_path: Path) -> None:
    (tmp_path / "etc" / "compcache").mkdir(parents=True)
    (tmp_path / "etc" / "compcache" / "compcache.toml").write_text("wait = 4")
    found = settings("wait = 9", XDG_CONFIG_HOME=str(tmp_path / "etc"), XDG_CACHE_HOME=str(tmp_path / "var"))
    assert found.wait_seconds == 4.0
    assert found.directory == tmp_path / "var" / "compcache" / "store"


def test_an_unknown_variable_is_said_with_the_known_ones(settings: Callable[..., Settings]) -> None:
    found = settings(COMPCACHE_MOD="ro", COMPCACHE_TEST_SOMETHING="1")
    assert len(found.warnings) == 1
    assert "unknown variable COMPCACHE_MOD;" in found.warnings[0]
    assert "COMPCACHE_MODE" in found.warnings[0]
    assert found.mode == "rw"


def test_an_unknown_setting_is_said(settings: Callable[..., Settings]) -> None:
    found = settings("size = 3\nwait = 1")
    assert "unknown setting size" in found.warnings[0]
    assert found.wait_seconds == 1.0


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("COMPCACHE_WAIT", "soon", "wait_seconds"),
        ("COMPCACHE_WAIT", "-1", "wait_seconds"),
        ("COMPCACHE_WAIT", "nan", "wait_seconds"),
        ("COMPCACHE_WAIT", "inf", "wait_seconds"),
        ("COMPCACHE_WAIT", "1e9", "wait_seconds"),
        ("COMPCACHE_WAIT", "", "wait_seconds"),
        ("COMPCACHE_DIR", "", "directory"),
        ("COMPCACHE_DIR", "  ", "directory"),
        ("COMPCACHE_DIR", "a\0b", "directory"),
        ("COMPCACHE_DIR", "~nobody-of-that-name/x", "directory"),
        ("COMPCACHE_STATE", "", "state"),
    ],
)
def test_a_bad_value_is_said_and_the_default_used(
    settings: Callable[..., Settings], name: str, value: str, field: str
) -> None:
    found = settings(**{name: value})
    assert getattr(found, field) == getattr(settings(), field)
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith(f"setting {name.removeprefix('COMPCACHE_').lower()}: ")


@pytest.mark.parametrize(
    "text", ["wait = true", "wait = []", "dir = 3", "key_ignore = 1", "key_ignore = [1]", "key_extra = 1"]
)
def test_a_bad_value_in_the_file_too(settings: Callable[..., Settings], text: str) -> None:
    found = settings(text)
    assert [warning.split(":")[0] for warning in found.warnings] == [f"setting {text.split()[0]}"]
    assert found.wait_seconds == 240.0
    assert (found.key_ignore, found.key_extra) == ((), "")


@pytest.mark.parametrize("value", ["", "readonly", "rw ro", "1"])
def test_a_mode_is_never_guessed(settings: Callable[..., Settings], value: str) -> None:
    with pytest.raises(ConfigError, match="COMPCACHE_MODE"):
        settings(COMPCACHE_MODE=value)
    with pytest.raises(ConfigError, match="COMPCACHE_MODE"):
        settings(f'mode = "{value}"')


@pytest.mark.parametrize("value", ["root", "-1", "1000:1000", "::1", "1.5", "all", "\u0661"])
def test_a_trusted_owner_is_never_guessed(settings: Callable[..., Settings], value: str) -> None:
    with pytest.raises(ConfigError, match="COMPCACHE_TRUST_OWNER"):
        settings(COMPCACHE_TRUST_OWNER=value)


def test_modes_and_owners(settings: Callable[..., Settings]) -> None:
    assert [settings(COMPCACHE_MODE=mode).mode for mode in (" RW ", "ro", "Off", "require")] == list(config.MODES)
    assert settings(COMPCACHE_TRUST_OWNER="1000").trust == Trust(uid=1000)
    assert settings(COMPCACHE_TRUST_OWNER=" :2000").trust == Trust(gid=2000)
    assert settings(COMPCACHE_TRUST_OWNER="").trust == Trust()


def test_names_are_a_set(settings: Callable[..., Settings]) -> None:
    assert settings(COMPCACHE_KEY_IGNORE=" B,A,,A ,").key_ignore == ("A", "B")


def test_a_home_sign_is_expanded(settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert settings(COMPCACHE_DIR="~/store").directory == Path("/somewhere/store")


def test_every_variable_is_known(settings: Callable[..., Settings]) -> None:
    names = config.variables()
    values = {
        "COMPCACHE_MODE": "ro",
        "COMPCACHE_TRUST_OWNER": "5",
        "COMPCACHE_WAIT": "3",
        "COMPCACHE_STORE_SECONDS": "4",
        "COMPCACHE_MAX_SIZE": "5kB",
        "COMPCACHE_MAX_FILES": "6",
        "COMPCACHE_MAX_AGE": "7d",
        "COMPCACHE_INDUCTOR": "0",
        "COMPCACHE_CONFIG": os.devnull,
    }
    found = settings(**{name: values.get(name, "/x") for name in names})
    assert found.warnings == ()
    limits = Limits(5000, 6, 7 * 86400.0)
    assert found == Settings(Path("/x"), Path("/x"), "ro", Trust(uid=5), 3.0, 4.0, limits, ("/x",), "/x", False)
    for name in names:
        assert name in (config.__doc__ or "") + Path(config.__file__).read_text()


# No home


def test_no_home_and_no_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    found = load({"TMPDIR": str(tmp_path)})
    assert found.directory == tmp_path / f"compcache-{os.getuid()}" / "store"
    assert found.state == tmp_path / f"compcache-{os.getuid()}" / "state"
    assert len(found.warnings) == 1
    assert "COMPCACHE_DIR" in found.warnings[0]


def test_two_users_without_homes_do_not_meet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "_home", lambda environment: None)
    places = set()
    for uid in (1, 2):
        monkeypatch.setattr(os, "getuid", lambda uid=uid: uid)
        places.add(load({"TMPDIR": str(tmp_path)}).directory)
    assert len(places) == 2


def test_a_home_that_cannot_be_written_is_not_needed_where_places_are_given(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    home = str(tmp_path / "file")
    chosen = {"COMPCACHE_DIR": str(tmp_path / "a"), "COMPCACHE_STATE": str(tmp_path / "b")}
    assert load({"HOME": home, **chosen}).warnings == ()
    assert len(load({"HOME": home, "TMPDIR": str(tmp_path)}).warnings) == 1


NAMELESS = """
import sys
from compcache.cache import Cache, Draft, Part
from compcache.config import load
from compcache.factors import Factors
from compcache.session import Session
settings = load()
print("warnings", len(settings.warnings), settings.warnings)
cache = Cache(settings, session=Session(say=print))
factors = Factors({"m": 1}, {"r": 1})
entry = cache.publish(Draft("graph", factors, (Part("artifact", b"program"),)))
print("stored", cache.find(factors) == entry, cache.blob(entry.blobs[0]) == b"program")
print("below", settings.directory)
"""
UID = 1002700000


def test_a_uid_without_a_name_has_a_working_default(tmp_path: Path) -> None:
    """F4: OpenShift runs pods so."""
    for place in place_for(UID):
        for home in ({}, {"HOME": "/"}, {"HOME": str(tmp_path)}, {"HOME": str(tmp_path / "absent")}):
            done = python_as(UID, "-c", NAMELESS, TMPDIR=str(place), **home)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith("warnings 1 ")
            assert "stored True True" in done.stdout
            assert f"below {place / f'compcache-{UID}'}" in done.stdout


# Sizes, counts and ages


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("1000", 1000), ("20GB", 20 * 10**9), ("500MiB", 500 << 20), ("1.5 kB", 1500), (" 2g ", 2 * 10**9)],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert config.parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("30d", 2592000.0), ("12h", 43200.0), ("1.5m", 90.0), ("2w", 1209600.0)]
)
def test_ages_are_read(text: str, expected: float) -> None:
    assert config.parse_age(text) == expected


@pytest.mark.parametrize("text", ["", "x", "20 GBB", "-1", "1e9", "nan", "1h", "GB"])
def test_what_is_no_size_is_said(settings: Callable[..., Settings], text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        config.parse_size(text)
    found = settings(COMPCACHE_MAX_SIZE=text)
    assert found.limits == Limits()
    assert len(found.warnings) == 1


@pytest.mark.parametrize("text", ["none", " None "])
def test_a_limit_may_be_none(settings: Callable[..., Settings], text: str) -> None:
    found = settings(COMPCACHE_MAX_SIZE=text, COMPCACHE_MAX_FILES=text, COMPCACHE_MAX_AGE=text)
    assert found.limits == Limits(None, None, None)
    assert not found.limits.any
    assert not found.warnings


def test_limits_in_the_file_may_be_numbers_or_text(settings: Callable[..., Settings]) -> None:
    found = settings('max_size = 1000\nmax_files = "7"\nmax_age = "2w"\n')
    assert found.limits == Limits(1000, 7, 14 * 86400.0)
    assert len(settings("max_size = true\nmax_files = 1.5\nmax_age = []\n").warnings) == 3
