"""One process of the benchmark: the model's first calls. ``child.py inference|training compcache|torch [options]``."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

SIZES = (4, 8, 16)
LAYERS = 9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("who")
    parser.add_argument("--save-mega-cache", type=Path)
    parser.add_argument("--load-mega-cache", type=Path)
    chosen = parser.parse_args()
    adapter = None
    if chosen.who == "compcache":
        from compcache.adapters import inductor

        adapter = inductor.enable()
    import torch

    model, compiled = _model(torch)
    began = time.perf_counter()
    if chosen.load_mega_cache:
        torch.compiler.load_cache_artifacts(chosen.load_mega_cache.read_bytes())
    outputs = (_train if chosen.what == "training" else _infer)(torch, model, compiled)
    seconds = time.perf_counter() - began
    if chosen.save_mega_cache:
        artifacts = torch.compiler.save_cache_artifacts()
        chosen.save_mega_cache.write_bytes(artifacts[0])
    found: dict[str, Any] = {"seconds": seconds, "bits": [o.detach().view(torch.int32).tolist() for o in outputs]}
    if adapter is not None:
        s = adapter.session
        found |= {"loaded": len(s.loaded), "compiled": len(s.compiled), "kernels_compiled": s.kernels_compiled}
    print(json.dumps(found))


def _model(torch: Any) -> tuple[Any, Any]:
    class Layers(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(64 + i, 65 + i) for i in range(LAYERS))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = torch.nn.functional.gelu(layer(x)) + 1
            return x.sum(-1)

    torch.manual_seed(0)
    model = Layers()
    return model, torch.compile(model, mode="max-autotune", dynamic=False)


def _infer(torch: Any, model: Any, compiled: Any) -> list[Any]:
    with torch.no_grad():
        return [compiled(torch.ones(size, 64)) for size in SIZES]


def _train(torch: Any, model: Any, compiled: Any) -> list[Any]:
    compiled(torch.ones(SIZES[0], 64)).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


if __name__ == "__main__":
    main()
