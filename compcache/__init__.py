"""compcache keeps what a compiler produced, so that a program is compiled once per configuration.

``import compcache`` imports no engine and opens nothing. Start at :class:`compcache.cache.Cache`, or, for
``torch.compile``, with::

    with compcache.session() as s:
        ...
    print(s.report())
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from compcache.session import Session

__version__ = "0.1.0"


def session() -> AbstractContextManager[Session]:
    """A block in which every ``torch.compile`` uses the store; gives what was loaded, compiled and saved in it.

    The adapter stays on afterwards: what was compiled in the block may be recompiled outside of it.
    """
    from compcache.adapters import inductor

    return inductor.session()


class _Package(ModuleType):
    """Keeps the function's name: importing the submodule ``compcache.session`` would put the module in its place."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "session":
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
