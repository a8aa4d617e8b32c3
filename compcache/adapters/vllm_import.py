"""What vLLM's own directory holds (``torch_compile_cache``): ``compcache import --from-vllm DIR``.

None of it can be proven to fit, so all of it is left, each with the reason. A start-up runs without guards, and the
digest that vLLM names it by (``aot_compile_hash_factors``, vllm/compilation/caching.py) has neither the scalars that a
checkpoint puts into the module tree nor the vector ISA, the CPU's features and the thread count: two checkpoints that
differ in one scalar have one name there, so that not even its user can state that it fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compcache import fsio
from compcache.adapters.inductor_import import Left
from compcache.errors import NotStored

START_UP = (
    "a start-up runs without guards, and its name has neither the checkpoint's scalars nor the vector ISA, CPU and"
    " threads; the next start compiles it once, and stores it"
)
GRAPHS = "single graphs of vLLM's are looked up only through their start-up"
_KINDS = (
    ("torch_aot_compile/*/rank_*/model", START_UP),
    ("torch_aot_compile/*/inductor_cache", GRAPHS),
    ("*/rank_*/*/vllm_compile_cache.py", GRAPHS),
    ("*/rank_*/inductor_cache", GRAPHS),
    ("*/rank_*/*/inductor_cache", GRAPHS),
)


def left(directory: Path) -> list[Left]:
    """All that is there, with the reasons. Raises NotStored if the directory is none of vLLM's."""
    root = directory / "torch_compile_cache"
    root = root if root.is_dir() else directory
    found = list(dict.fromkeys(_found(root)))
    if not found:
        raise NotStored(None, f"{directory} is not a directory of vLLM's: it holds no torch_compile_cache")
    fsio.Trust().check(fsio.status(root), str(root))
    return found


def _found(root: Path) -> Iterator[Left]:
    for pattern, why in _KINDS:
        for path in sorted(root.glob(pattern)):
            yield Left(str(path.relative_to(root)), why)
