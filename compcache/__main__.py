"""``python -m compcache run script.py ARGS``: a Python script whose ``torch.compile`` uses the store.

``COMPCACHE_INDUCTOR=0`` runs it as it is. Verbs on a store are those of the command ``compcache``.
"""

from __future__ import annotations

import os
import runpy
import sys

USAGE = "usage: python -m compcache run SCRIPT [ARGUMENT ...], or python -m compcache run -m MODULE [ARGUMENT ...]"


def main(arguments: list[str]) -> int:
    rest = arguments[1:]
    if arguments[:1] != ["run"] or not rest or rest == ["-m"]:
        print(USAGE, file=sys.stderr)  # noqa: T201
        return 2
    from compcache.adapters import inductor

    inductor.enable()
    if rest[0] == "-m":
        sys.argv = rest[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = rest
        sys.path[0] = os.path.dirname(os.path.abspath(rest[0]))  # as Python itself does for a script
        runpy.run_path(rest[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
