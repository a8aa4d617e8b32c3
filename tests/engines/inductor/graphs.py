"""Small graphs, each a case that a process of its own compiles or loads: ``graphs.py CASE``; prints JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from compcache.adapters import inductor

adapter = inductor.enable()
import torch  # noqa: E402

Values = dict[str, Any]
CASES: dict[str, Callable[[], Values]] = {}


def case(function: Callable[[], Values]) -> Callable[[], Values]:
    CASES[function.__name__] = function
    return function


def bits(*tensors: torch.Tensor) -> list[Any]:
    """Every bit of some tensors."""
    return [t.detach().float().flatten().view(torch.int32).tolist() for t in tensors]


def activate(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x * 2 + 1).sum(-1)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(int(os.environ.get("SEED", "0")))
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = torch.nn.functional.silu(self.first(x))
        out: torch.Tensor = self.second(hidden) + 1
        return out


def data(size: int, width: int = 8) -> torch.Tensor:
    return torch.linspace(-2, 2, size * width).reshape(size, width)


@case
def simple() -> Values:
    x = torch.ones(64, 64)
    found = torch.compile(activate)(x)
    return {"bits": bits(found), "first": round(float(found[0]), 2), "eager": round(float(activate(x)[0]), 2)}


@case
def threads_of_torch() -> Values:
    torch.set_num_threads(int(os.environ["THREADS"]))
    return {"bits": bits(torch.compile(activate)(torch.linspace(-3, 3, 512 * 512).reshape(512, 512)))}


@case
def model() -> Values:
    net = Net()
    with torch.no_grad():
        return {"bits": bits(torch.compile(net)(data(3)))}


@case
def bf16() -> Values:
    net = Net().bfloat16()
    with torch.no_grad():
        return {"bits": bits(torch.compile(net)(data(3).bfloat16()))}


@case
def autocast() -> Values:
    net = Net()
    dtype = getattr(torch, os.environ.get("AUTOCAST", "bfloat16"))
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        found = torch.compile(net)(data(3))
    return {"bits": bits(found), "dtype": str(found.dtype)}


@case
def training() -> Values:
    net = Net()
    step = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        step(data(3)).square().sum().backward()
        optimizer.step()
    return {"bits": bits(*net.parameters())}


@case
def sizes() -> Values:
    function = torch.compile(activate, dynamic=False)
    return {"bits": bits(function(data(3)), function(data(5)))}


@case
def wide() -> Values:
    """Rows of whole vectors, whatever the ISA."""
    function = torch.compile(activate, dynamic=False)
    return {"bits": bits(function(data(3, 64)), function(data(5, 64)))}


@case
def bf16_alone() -> Values:
    return {"bits": bits(torch.compile(lambda x: x * 2 + 1)(data(4, 64).bfloat16()))}


@case
def dynamic() -> Values:
    function = torch.compile(activate, dynamic=True)
    return {"bits": bits(function(data(3)), function(data(5)))}


@case
def automatic() -> Values:
    function = torch.compile(activate)
    return {"bits": bits(function(data(3)), function(data(5)), function(data(9)))}


@case
def marked() -> Values:
    x = data(6)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=512)
    return {"bits": bits(torch.compile(activate)(x))}


@case
def guarded() -> Values:
    """Two programs under one key of torch's: the graph's text is the same, the guards of its symbols are not."""

    def branching(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (0, 1)) * 2 if x.shape[0] > 4 else x * 2

    function = torch.compile(branching, dynamic=True)
    wanted = json.loads(os.environ.get("SIZES", "[3, 7]"))
    return {"bits": bits(*(function(data(size)) for size in wanted))}


@case
def tuned() -> Values:
    net = Net()
    with torch.no_grad():
        return {"bits": bits(torch.compile(net, mode="max-autotune")(data(3)))}


@case
def reduced() -> Values:
    with torch.no_grad():
        return {"bits": bits(torch.compile(Net(), mode="reduce-overhead")(data(3)))}


@case
def frozen() -> Values:
    net = Net().eval()
    with torch.no_grad():
        found = torch.compile(net, options={"freezing": True})(data(3))
        return {"bits": bits(found), "right": bool(torch.allclose(found, net(data(3)), atol=1e-5))}


@case
def wrapped_in_cpp() -> Values:
    with torch.no_grad():
        return {"bits": bits(torch.compile(activate, options={"cpp_wrapper": True})(data(3)))}


@case
def in_threads() -> Values:
    """Three threads compile three graphs at once; a thread has settings of its own in torch."""
    found: dict[int, torch.Tensor] = {}

    def work(scale: int) -> None:
        def scaled(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gelu(x * scale).sum(-1)

        found[scale] = torch.compile(scaled, dynamic=False)(data(3))

    workers = [threading.Thread(target=work, args=(scale,)) for scale in (2, 3, 4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {"bits": bits(*(found[scale] for scale in sorted(found)))}


@case
def in_a_child() -> Values:
    """A forked child loads or compiles; its parent has looked into the store before."""
    torch.compile(activate)(data(3))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        net = Net()
        with torch.no_grad():
            values = bits(torch.compile(net)(data(3)))
        assert adapter is not None
        session = adapter.session
        counts = [len(session.loaded), len(session.compiled), session.kernels_loaded]
        os.write(write, json.dumps([values, counts]).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    values, counts = json.loads(os.read(read, 1 << 16))
    return {"bits": values, "child": counts}


class NoIdentity:
    def __call__(self, graph: torch.fx.Graph) -> None:
        pass


@case
def unknown_pass() -> Values:
    return {"bits": bits(torch.compile(activate, options={"post_grad_custom_post_pass": NoIdentity()})(data(3)))}


@case
def known_pass() -> Values:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Pass(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            pass

        def uuid(self) -> Any:
            return os.environ.get("PASS", "one")

    return {"bits": bits(torch.compile(activate, options={"post_grad_custom_post_pass": Pass()})(data(3)))}


@case
def other_backend() -> Values:
    return {"bits": bits(torch.compile(activate, backend=lambda graph, inputs: graph.forward)(data(3)))}


@case
def resets() -> Values:
    """What a test suite does between tests: torch numbers its frames anew."""
    first = torch.compile(activate)(data(3))
    torch._dynamo.reset()
    with torch.no_grad():
        return {"bits": bits(first, torch.compile(Net())(data(3)))}


@case
def no_cache_at_all() -> Values:
    with torch.compiler.config.patch(force_disable_caches=True):
        return {"bits": bits(torch.compile(activate)(data(3)))}


@case
def in_a_session() -> Values:
    import compcache

    with compcache.session() as one:
        torch.compile(activate)(data(3))
    with compcache.session() as other, torch.no_grad():
        torch.compile(Net())(data(3))
    return {"counts": [len(s.loaded) + len(s.compiled) for s in (one, other)], "report": other.report()}


@case
def packaged() -> Values:
    from compcache.adapters import packages

    net = Net().eval()
    path = os.path.join(os.environ["TMPDIR"], "net.pt2")
    with torch.no_grad():
        found = packages.compile_package(torch.export.export(net, (data(3),)), path)
        runner = torch._inductor.aoti_load_package(str(found))
        return {"bits": bits(runner(data(3))), "right": bool(torch.allclose(runner(data(3)), net(data(3)), atol=1e-5))}


def main(name: str) -> None:
    values = CASES[name]()
    session = adapter.session if adapter is not None else None
    if session is not None:
        values |= {
            "loaded": len(session.loaded),
            "compiled": len(session.compiled),
            "not_stored": session.not_stored,
            "kernels": [session.kernels_loaded, session.kernels_compiled],
            "faults": session.faults,
            "uncacheable": session.uncacheable,
            "saved": session.saved_seconds,
            "shown": [dict(e.display) for e in [*session.loaded, *session.compiled]],
        }
    print("RESULT " + json.dumps(values))


if __name__ == "__main__":
    main(sys.argv[1])
