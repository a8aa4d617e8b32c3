"""A store in a directory: local disk, NFS, Lustre, GPFS or FUSE.

No locks, no database, no reliance on access times or on immediate visibility. Nothing is touched at construction;
the tree is made by the first write.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from compcache import fsio
from compcache.errors import Damaged, NotStored, StoreError, UnknownFormat, Untrusted
from compcache.failpoints import reached
from compcache.fsio import Trust
from compcache.store import layout
from compcache.store.protocol import Folder, Found

_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This file is a cache directory tag created by compcache.\n"
    b"# For information about cache directory tags see https://bford.info/cachedir/\n"
)


class DirectoryStore:
    """A tree of files below ``root`` (made with mode 0700 by the first write if it does not exist).

    ``trust`` says whose files are used. ``read_only`` refuses every write with StoreError.
    """

    def __init__(self, root: Path | str, *, trust: Trust | None = None, read_only: bool = False) -> None:
        self.root = Path(os.path.abspath(os.path.expanduser(root)))
        self.trust = trust or Trust()
        self.read_only = read_only
        self._base = self.root / layout.VERSION_FOLDER
        self._base_text = str(self._base)
        self._looked = False
        self._ready = False
        self._mode = 0o700

    @property
    def label(self) -> str:
        return str(self.root)

    def check(self) -> None:
        """Raise if this is no store that can be read: NotStored if nothing is there, UnknownFormat if only newer
        formats are, Untrusted by owner or mode, StoreError if it is not a directory or cannot be reached."""
        try:
            info = fsio.status(self.root)
        except OSError as error:
            raise fsio.translated(error, f"no store at {self.root}") from error
        if not stat.S_ISDIR(info.st_mode):
            raise StoreError(errno.ENOTDIR, f"{self.root} is not a directory")
        self.trust.check(info, str(self.root))
        self._check_folders()
        if not os.path.isdir(self._base):
            names: list[str] = []
            with contextlib.suppress(OSError):  # around the listing alone: UnknownFormat is an OSError too
                names = os.listdir(self.root)
            newer = sorted(n for n in names if n.startswith("v") and n[1:].isdigit())
            if layout.VERSION_FOLDER in newer:
                return  # made between the two looks, by the first writer
            if newer:
                raise UnknownFormat(f"{self.root} is a store of format {newer[-1]}, which this version cannot read")
            raise NotStored(errno.ENOENT, f"no store at {self.root}")

    def _check_folders(self) -> None:
        """The tree's own folders: real ones, whose owner and mode are trusted. Raises Untrusted."""
        for folder in (self._base, *(self._base / name for name in layout.FOLDERS)):
            try:
                info = os.lstat(folder)
            except OSError:
                continue
            if not stat.S_ISDIR(info.st_mode):
                raise Untrusted(errno.EACCES, f"{folder} is not a directory")
            self.trust.check(info, str(folder))

    def read(self, name: str, limit: int) -> bytes:
        path = f"{self._base_text}/{_checked(name)}"
        if not self._looked:
            # Files are checked one by one; who may write the root decides which of them are there at all.
            self.check()
            self._looked = True
        return fsio.read_file(path, limit, self.trust)

    def create(self, name: str, data: bytes) -> bool:
        target = self._writable(name)
        with _translating(f"cannot write to {self.root}"):
            if os.path.lexists(target):
                return False
            fsio.make_directory(target.parent, self._mode)
            return fsio.publish_new(self._temporary(data), target)

    def replace(self, name: str, data: bytes) -> None:
        target = self._writable(name)
        with _translating(f"cannot write to {self.root}"):
            fsio.make_directory(target.parent, self._mode)
            fsio.publish_over(self._temporary(data), target)

    def refresh(self, name: str) -> None:
        if not self.read_only:
            with contextlib.suppress(OSError):
                os.utime(self._path(name), follow_symlinks=False)

    def remove(self, name: str) -> bool:
        path = self._writable(name)
        with _translating(f"cannot remove from {self.root}"):
            try:
                fsio.remove(path)
            except FileNotFoundError:
                return False
            except IsADirectoryError:
                return False
            return True

    def discard(self, name: str, mtime: float) -> bool:
        path = self._writable(name)
        with _translating(f"cannot remove from {self.root}"):
            # As in take. A refresh goes by the name: once that is gone, the mtime in trash/ is the last one there was,
            # and a writer that looks for its blob from then on sees that it is missing.
            aside = self._base / "trash" / fsio.random_name()
            if _mtime(path) != mtime:
                return False
            try:
                fsio.move(path, aside)
            except FileNotFoundError:
                return False
            if _mtime(aside) != mtime:
                fsio.put_back(aside, path)
                return False
            fsio.remove(aside)
            return True

    def take(self, name: str, expected: bytes) -> bool:
        path = self._writable(name)
        with _translating(f"cannot remove from {self.root}"):
            # Look, rename, look again: between a look and an unlink, another process could put a new file there. The
            # first look only keeps a file that is not meant from vanishing for a moment.
            aside = self._base / "trash" / fsio.random_name()
            if not self._holds(path, expected):
                return False
            try:
                fsio.move(path, aside)
            except FileNotFoundError:
                return False
            if not self._holds(aside, expected):
                fsio.put_back(aside, path)
                return False
            fsio.remove(aside)
            return True

    def _holds(self, path: Path, expected: bytes) -> bool:
        try:
            return fsio.read_file(path, len(expected), self.trust) == expected
        except (StoreError, Damaged):
            return False

    def quarantine(self, name: str, reason: str) -> bool:
        try:
            path = self._writable(name)
            if os.lstat(path).st_uid != os.geteuid():
                return False
            aside = self._base / "quarantine" / f"{path.name}.{fsio.random_name()[:8]}"
            fsio.move(path, aside)
        except OSError:
            return False
        reached("quarantine.moved")
        with contextlib.suppress(OSError):
            fsio.publish_new(self._temporary(f"{name}\n{reason}\n".encode()), aside.with_name(aside.name + ".reason"))
        reached("quarantine.explained")
        return True

    def scan(self, prefix: str) -> Iterator[Found]:
        pending = [self._folder(prefix)]
        while pending:
            for item in self._listed(pending.pop()):
                try:
                    info = None if item.is_dir(follow_symlinks=False) else item.stat(follow_symlinks=False)
                except OSError:  # of the moment, perhaps: looked at again
                    info = self._looked_at(item.path)
                    if info is None:
                        continue
                if info is None or stat.S_ISDIR(info.st_mode):
                    pending.append(item.path)
                else:
                    yield self._found(item.path, info)

    def folders(self, prefix: str) -> Iterator[Folder | Found]:
        base = len(self._base_text) + 1
        pending = [self._folder(place) for place in ([prefix] if prefix else layout.DEEP)]
        while pending:
            path = pending.pop()
            info = self._looked_at(path)
            if info is None:
                continue
            if not stat.S_ISDIR(info.st_mode):
                yield self._found(path, info)
            elif path.count("/", base) < layout.DEEP.get(path[base:].split("/", 1)[0], 0):
                pending += [item.path for item in self._listed(path)]
            else:
                yield Folder(path[base:], info.st_mtime)

    def _looked_at(self, path: str) -> os.stat_result | None:
        """The status of a file or folder itself; None if it has vanished.

        Any other error is one of the whole look: left out, an entry would seem to be gone, and its blobs nobody's.
        """
        try:
            return fsio.status(path, follow=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise fsio.translated(error, f"cannot look at {path}") from error

    def _found(self, path: str, info: os.stat_result) -> Found:
        return Found(path[len(self._base_text) + 1 :], info.st_size, info.st_mtime)

    def _folder(self, prefix: str) -> str:
        return f"{self._base_text}/{prefix}" if prefix else self._base_text

    def _listed(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as found:
                return list(found)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise fsio.translated(error, f"cannot list {folder}") from error

    def _path(self, name: str) -> Path:
        return self._base / _checked(name)

    def _writable(self, name: str) -> Path:
        if self.read_only:
            raise StoreError(errno.EROFS, f"{self.root} is opened read-only")
        path = self._path(name)
        if not self._ready:
            self._make()
        return path

    def _temporary(self, data: bytes) -> Path:
        try:
            return fsio.write_temporary(self._base / "tmp", data, self._mode & 0o666)
        except FileNotFoundError:  # the whole store was deleted while this process uses it: begin again
            self._make()
            return fsio.write_temporary(self._base / "tmp", data, self._mode & 0o666)

    def _make(self) -> None:
        """Make what is missing of the tree. A root that is there must be trusted; its mode is the mode of the rest."""
        with _translating(f"cannot write to {self.root}"):
            try:
                info = fsio.status(self.root)
            except FileNotFoundError:
                fsio.make_directory(self.root, 0o700)
                info = fsio.status(self.root)
            if not stat.S_ISDIR(info.st_mode):
                raise StoreError(errno.ENOTDIR, f"{self.root} is not a directory")
            self.trust.check(info, str(self.root))
            self._mode = stat.S_IMODE(info.st_mode) & 0o2777
            with contextlib.suppress(NotStored):  # a store of a newer format only is left alone: UnknownFormat goes on
                self.check()
            for folder in layout.FOLDERS:
                fsio.make_directory(self._base / folder, self._mode)
            tag = self.root / "CACHEDIR.TAG"
            if not os.path.lexists(tag):
                fsio.publish_new(self._temporary(_TAG), tag)
        self._ready = True


def _checked(name: str) -> str:
    if not layout.is_name(name):
        raise StoreError(errno.EINVAL, f"{name!r} is not a name in a store")
    return name


def _mtime(path: Path) -> float | None:
    """The mtime of a file (a link's own); None if there is none, or a directory."""
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if stat.S_ISDIR(info.st_mode) else info.st_mtime


@contextlib.contextmanager
def _translating(what: str) -> Iterator[None]:
    try:
        yield
    except Untrusted:
        raise
    except OSError as error:
        raise fsio.translated(error, what) from error
