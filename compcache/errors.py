"""Every error that compcache raises. Each is also the builtin that a caller would expect, where there is one.

Inside an engine none of them gets past the one boundary (:func:`compcache.cache.Cache.guard`): there they become
a miss, are counted, and are said once.
"""

from __future__ import annotations

import errno


class CompcacheError(Exception):
    """Base of every error raised by compcache."""


class FactorError(CompcacheError, ValueError):
    """A factor has no name, or a value that is not plain JSON, or could not be read from its source."""


class ConfigError(CompcacheError, ValueError):
    """A setting, a ``compcache.toml`` or a ``COMPCACHE_*`` variable cannot be understood."""


class StoreError(CompcacheError, OSError):
    """The store could not do what it was asked: full, read-only, unreachable, not a store."""


class NotStored(StoreError, FileNotFoundError):
    """There is nothing under that name. The ordinary miss."""

    @property
    def gone(self) -> bool:
        """Whether nothing is there for sure: an error of the moment (ESTALE, EBUSY) is a miss that tells less."""
        return self.errno in (None, errno.ENOENT, errno.ENOTDIR)


class Untrusted(StoreError, PermissionError):
    """The store, or a file in it, belongs to somebody, or is writable by somebody, who is not trusted."""


class UnknownFormat(StoreError):
    """The store holds only formats that this version does not read; it is left alone."""


class Damaged(CompcacheError, ValueError):
    """Bytes that are there are not the bytes that were stored: a digest, size, schema or key does not match."""


class RequiredMiss(CompcacheError, RuntimeError):
    """COMPCACHE_MODE=require, and a program is not in the store. The one error that gets into an engine, as asked."""
