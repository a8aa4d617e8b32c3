"""A process of another user than that of the tests, and places that it can reach; for tests that run as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import PATHS


def python_as(user: int, *arguments: str, group: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python as a user without a name, other groups, USER or a writable HOME."""
    command = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", sys.executable, *arguments]
    return subprocess.run(
        command,
        env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": PATHS, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def place_for(user: int) -> Iterator[Path]:
    """A directory that any user can enter (tmp_path is for its own user only). Skips if none can be made."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    if python_as(user, "-c", "import compcache.cache, filled").returncode != 0:
        pytest.skip("another user cannot read this checkout or this Python")
    place = Path(tempfile.mkdtemp(prefix="compcache-test-"))
    try:
        place.chmod(0o1777)
        yield place
    finally:
        shutil.rmtree(place)
