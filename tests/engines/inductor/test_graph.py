"""The identity of a graph: equal layers give one digest, and everything that matters gives another."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compcache.adapters import graph
from compcache.errors import FactorError

torch = pytest.importorskip("torch")


def traced(function: Callable[..., object]) -> object:
    return torch.fx.symbolic_trace(function)


def test_names_do_not_matter() -> None:
    one = traced(lambda x, y: torch.relu(x) + y)
    other = traced(lambda first, second: torch.relu(first) + second)
    assert graph.graph_digest(one) == graph.graph_digest(other)


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: torch.relu(y) + x,
        lambda x, y: torch.relu(x) - y,
        lambda x, y: torch.relu(x) + y + 1,
        lambda x, y: torch.relu(x) + y * 1.0,
        lambda x, y: torch.sigmoid(x) + y,
    ],
)
def test_another_graph_has_another_digest(other: Callable[..., object]) -> None:
    assert graph.graph_digest(traced(other)) != graph.graph_digest(traced(lambda x, y: torch.relu(x) + y))


def test_numbers_of_other_types_are_other_graphs() -> None:
    digests = {graph.graph_digest(traced(lambda x, n=n: x * n)) for n in (1, 1.0, True, 2)}
    assert len(digests) == 4


def test_slices_and_ellipsis() -> None:
    one = graph.graph_digest(traced(lambda x: x[..., :4]))
    assert one == graph.graph_digest(traced(lambda z: z[..., :4]))
    assert one != graph.graph_digest(traced(lambda x: x[..., :5]))


def test_constant_tensors_count_by_value() -> None:
    def holding(value: float) -> object:
        class Holder(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("c", torch.full((3,), value))

            def forward(self, x: object) -> object:
                return x + self.c

        return traced(Holder())

    assert graph.graph_digest(holding(1.0)) == graph.graph_digest(holding(1.0))
    assert graph.graph_digest(holding(1.0)) != graph.graph_digest(holding(1.5))


def test_dtype_and_shape_of_values_count() -> None:
    def with_value(value: object) -> object:
        made = traced(lambda x: torch.relu(x))
        for node in made.graph.nodes:
            node.meta["example_value"] = value
        return made

    values = [torch.empty(2, 3), torch.empty(2, 3, dtype=torch.bfloat16), torch.empty(3, 2), torch.empty(3, 2).t()]
    assert len({graph.graph_digest(with_value(v)) for v in values}) == 4


def test_a_function_without_a_stable_name_has_no_identity() -> None:
    made = torch.fx.Graph()
    x = made.placeholder("x")
    made.output(made.call_function(lambda v: v, (x,)))
    with pytest.raises(FactorError):
        graph.graph_digest(torch.fx.GraphModule(torch.nn.Module(), made))
