"""Products of one x by several narrow matrices, and their gradients, are one product each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.ir import Graph, Node, Tensor, verify
from rlx.passes.join_narrow import join_narrow
from rlx.passes.simplify import simplify
from tests.devices import session_here
from tests.passes.values import results

ROWS, WIDTH, RANK = 96, 64, 4


def corrected(outputs: Sequence[int], ranks: Sequence[int], rows: int = ROWS, scale: float = 1.0) -> Graph:
    """The gradients of a loss to a normed x, and to the A and B of corrections of products of x."""
    g = Graph("corrected")
    x = g.input("x", (rows, WIDTH))
    wanted: list[Tensor] = [x]
    shapes = [(("w", (n, WIDTH)), ("a", (r, WIDTH)), ("b", (n, r))) for n, r in zip(outputs, ranks, strict=True)]
    modules = [[g.param(f"{name}{k}", shape) for name, shape in own] for k, own in enumerate(shapes)]
    normed = rlx.rms_norm(x, g.param("norm", (WIDTH,)))
    loss = g.constant(0.0)
    for weight, a, b in modules:
        y = rlx.linear(normed, weight) + rlx.linear(rlx.linear(normed, a * scale), b)
        loss = loss + rlx.mean(rlx.sigmoid(y))
        wanted += [a, b]
    g.output("loss", loss)
    for k, t in enumerate(gradients(loss, wanted)):
        assert t is not None
        g.output(f"d{k}", t)
    return simplify(g)


def numbers(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    given = {**graph.inputs, **graph.params}
    return {name: rng.standard_normal(t.shape).astype(np.float32) for name, t in given.items()}


def products(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op.name == "matmul"]


@pytest.mark.parametrize(("outputs", "ranks"), [((64, 16, 16), (4, 4, 4)), ((80, 80), (2, 4))])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_corrections_of_products_of_one_x_are_joined(
    outputs: Sequence[int], ranks: Sequence[int], scale: float
) -> None:
    before = corrected(outputs, ranks, scale=scale)
    after = join_narrow(before)
    verify(after)
    left = 3 * (len(outputs) - 1)  # of x Aᵀ, of the gradients of A, and of what x's gradient has of them
    assert len(products(before)) - len(products(after)) == left
    given = numbers(before)
    exact, found = results(before, given, upcast=True), results(after, given, upcast=True)
    assert exact.keys() == found.keys()
    for name, value in exact.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-13 * np.abs(value).max(), err_msg=str(name))


def test_products_of_two_inputs_or_of_few_rows_stay() -> None:
    for graph in (corrected((64,), (RANK,)), corrected((64, 16), (RANK, RANK), rows=8 * RANK)):
        assert join_narrow(graph) is graph


@pytest.mark.parametrize(
    "device",
    [pytest.param("vulkan", marks=pytest.mark.vulkan), pytest.param("cuda", marks=pytest.mark.cuda)],
)
def test_devices_give_the_gradients_of_joined_products(device: str) -> None:
    graph = corrected((64, 16, 16), (RANK, RANK, RANK), scale=0.5)
    given = numbers(graph)
    exact = results(graph, given, upcast=True)
    with session_here(device).compile(graph) as program:
        program.set_params({name: given[name] for name in graph.params})
        found = program.run({"x": given["x"]})
        assert "concat" in str(program.report())
    for name, value in found.items():
        wanted = exact["output", name]
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max(), err_msg=name)
