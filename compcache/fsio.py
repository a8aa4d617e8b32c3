"""File operations whose order matters. The only caller of rename, link, fsync and O_EXCL in the project.

Everything here is safe against a kill at any instruction: a name appears with all of its bytes or not at all, and
what a kill leaves behind is a file under ``tmp/`` that nothing reads. Reads take a regular file of a trusted owner,
never a symlink's target, a FIFO, or a file that somebody else could write.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from compcache.errors import CompcacheError, Damaged, NotStored, StoreError, Untrusted
from compcache.failpoints import reached

T = TypeVar("T")
TRANSIENT = frozenset({errno.ESTALE, errno.EBUSY, errno.EINTR, errno.EAGAIN})
RETRIES = 3
RETRY_SECONDS = 0.02
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_AT_ONCE = 1 << 26
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose files may be used: those of this process's user, of root, and of ``uid`` or group ``gid`` if given.

    A file that its group may write is refused unless the group is ``gid``; one that everybody may write, always.
    """

    uid: int | None = None
    gid: int | None = None

    def check(self, info: os.stat_result, what: str) -> None:
        """Raise Untrusted, naming the way out, if a file with that status must not be used."""
        if info.st_uid == os.geteuid() and not info.st_mode & 0o022:
            return
        group = self.gid is not None and info.st_gid == self.gid
        if not group and info.st_uid not in (os.geteuid(), 0, self.uid):
            raise Untrusted(
                f"{what} belongs to uid {info.st_uid}; trust it with COMPCACHE_TRUST_OWNER={info.st_uid}"
                f" or, by group, COMPCACHE_TRUST_OWNER=:{info.st_gid}"
            )
        if info.st_mode & stat.S_IWOTH or (info.st_mode & stat.S_IWGRP and not group):
            who = "everybody" if info.st_mode & stat.S_IWOTH else f"group {info.st_gid}"
            hint = "" if info.st_mode & stat.S_IWOTH else f"; trust it with COMPCACHE_TRUST_OWNER=:{info.st_gid}"
            raise Untrusted(f"{what} is writable by {who}{hint}")


def translated(error: OSError, what: str) -> StoreError:
    """The compcache error for an OSError."""
    if isinstance(error, StoreError):
        return error
    if error.errno in (errno.ENOENT, errno.ENOTDIR, *TRANSIENT):
        return NotStored(error.errno, f"{what}: {os.strerror(error.errno or 0)}")
    return StoreError(error.errno, f"{what}: {error.strerror or error}")


def read_file(path: Path | str, limit: int, trust: Trust) -> bytes:
    """All bytes of a regular file.

    Raises NotStored if it is not there, Untrusted by its owner or mode, Damaged if it is no regular file or larger
    than ``limit`` bytes, StoreError for anything else.
    """
    try:
        try:
            return _read_once(os.fspath(path), limit, trust)
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
        time.sleep(RETRY_SECONDS)
        return _retried(_read_once, os.fspath(path), limit, trust)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise Damaged(f"{_name(os.fspath(path))} is not a regular file") from error
        raise translated(error, f"cannot read {path}") from error


def read_record(path: Path, limit: int) -> dict[str, Any]:
    """The JSON object in a file of this user's own; empty if there is none that can be read, trusted or understood."""
    try:
        record = json.loads(read_file(path, limit, Trust()))
    except (CompcacheError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _retried(call: Callable[..., T], *arguments: Any) -> T:
    """Call once more, a few times, where a network mount answers with an error of the moment."""
    for _ in range(RETRIES):
        try:
            return call(*arguments)
        except StoreError:
            raise
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
        time.sleep(RETRY_SECONDS)
    return call(*arguments)


def _read_once(path: str, limit: int, trust: Trust) -> bytes:
    # O_NONBLOCK: opening a FIFO that was planted must not wait for a writer.
    fd = os.open(path, _READ)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise Damaged(f"{_name(path)} is not a regular file")
        trust.check(info, path)
        if info.st_size > limit:
            raise Damaged(f"{_name(path)} has {info.st_size} bytes; the limit is {limit}")
        data = os.read(fd, min(info.st_size + 1, _AT_ONCE))
        if len(data) == info.st_size:  # a regular file that gives less than was asked for has ended
            return data
        chunks = [data]
        left = limit + 1 - len(data)
        while left > 0 and (chunk := os.read(fd, min(left, _AT_ONCE))):
            chunks.append(chunk)
            left -= len(chunk)
    finally:
        os.close(fd)
    if left <= 0:
        raise Damaged(f"{_name(path)} grew beyond {limit} bytes")
    return b"".join(chunks)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def status(path: Path | str, *, follow: bool = True) -> os.stat_result:
    """Of a file or directory, a link's target (or its own); an error of the moment is looked at again."""
    return _retried(os.stat if follow else os.lstat, path)


def random_name() -> str:
    """A name that no other process on any host will choose."""
    return secrets.token_hex(16)


def new_file(path: Path, mode: int) -> int:
    """A descriptor, for writing, of a file that was not there before. Raises FileExistsError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor: int = _retried(os.open, path, flags, mode)
    return descriptor


def write_unsynced(path: Path, data: bytes) -> None:
    """A new file of this user alone, for records that a power loss may take. Nothing waits for the disk."""
    with open(new_file(path, 0o600), "wb", buffering=0) as file:
        file.write(data)


def write_temporary(directory: Path, data: bytes, mode: int) -> Path:
    """A new fsynced file with ``data`` in ``directory``; removed again if anything fails on the way."""
    path = directory / random_name()
    fd = new_file(path, mode)
    try:
        with open(fd, "wb", buffering=0) as file:
            reached("temporary.created")
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            reached("temporary.written")
            os.fchmod(fd, mode)  # the mode of the store, whatever the umask is
            os.fsync(fd)
            reached("temporary.synced")
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return path


def publish_new(temporary: Path, target: Path) -> bool:
    """Give ``temporary`` its final name unless that is taken; True if this call did. The temporary name goes."""
    try:
        try:
            _retried(os.link, temporary, target)
            reached("name.linked")
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # No hard links here (some FUSE and SMB mounts). Two writers can then both see no file; the later rename
            # wins, which is sound because both hold the same program, whole.
            if os.path.lexists(target):
                return False
            _retried(os.rename, temporary, target)
            reached("name.linked")
            sync_directory(target.parent)
            return True
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    else:
        sync_directory(target.parent)
        return True
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        reached("temporary.removed")


def publish_over(temporary: Path, target: Path) -> None:
    """Give ``temporary`` its final name, replacing what is there."""
    try:
        _retried(os.replace, temporary, target)
        reached("name.replaced")
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(target.parent)


def sync_directory(path: Path) -> None:
    """fsync a directory, so that a name made in it survives a power loss; no error where that is not supported."""
    fd = _retried(os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
        reached("name.synced")
    finally:
        os.close(fd)


def make_directory(path: Path, mode: int, *, durable: bool = True) -> None:
    """Make a directory and its missing parents, each with ``mode`` whatever the umask is.

    Not ``durable`` is for records that a power loss may take: nothing waits for the disk.
    """
    if os.path.isdir(path):
        return
    make_directory(path.parent, mode, durable=durable)
    with contextlib.suppress(FileExistsError):
        _retried(os.mkdir, path, mode)
        reached("directory.made")
        _retried(os.chmod, path, mode)
        if durable:
            sync_directory(path.parent)


def move(source: Path, target: Path) -> None:
    """Rename within the store (to quarantine or trash)."""
    _retried(os.rename, source, target)
    reached("file.moved")


def remove(path: Path) -> None:
    """Unlink a file."""
    _retried(os.unlink, path)
    reached("file.removed")


def put_back(source: Path, target: Path) -> None:
    """Undo a :func:`move` unless a new file has the name by now. A file that cannot be put back stays where it is."""
    try:
        _retried(os.link, source, target)
        reached("file.put_back")
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno in _NO_LINKS and not os.path.lexists(target):
            with contextlib.suppress(OSError):
                _retried(os.rename, source, target)
                reached("file.put_back")
        return
    with contextlib.suppress(OSError):
        os.unlink(source)


@contextlib.contextmanager
def private_file(data: bytes, suffix: str = "") -> Iterator[Path]:
    """A file with ``data`` that only this user can reach, removed at the end of the block.

    In a fresh 0700 directory under TMPDIR: what an engine maps or unpickles is then the verified bytes, never the
    shared file again. Raises StoreError if no such place can be written.
    """
    import tempfile

    with contextlib.ExitStack() as stack:
        try:
            made = tempfile.TemporaryDirectory(prefix="compcache-", ignore_cleanup_errors=True)
            path = Path(stack.enter_context(made)) / f"{random_name()}{suffix}"
            fd = new_file(path, 0o600)
            with open(fd, "wb") as file:
                file.write(data)
        except OSError as error:
            raise StoreError(error.errno, f"no private place for verified bytes: {error}") from error
        yield path  # outside the try: an error of the block is the block's own
