"""Small elementwise nodes move before reshapes that add or remove axes of one element, and join what made their
operands; a batch norm inverts the deviation of its batch once a channel."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.ir import Graph, verify
from rlx.passes.pipeline import optimize
from rlx.passes.sink_reshapes import sink_reshapes
from tests.passes.values import differences, results


def fused(graph: Graph) -> int:
    return sum(node.op.name == "fused" for node in optimize(graph, verify=True)[0].nodes)


def reshaped(shape: tuple[int, ...], size: int = 6, two: bool = False) -> Graph:
    """exp(x) reshaped, and what is computed of it."""
    g = Graph("reshaped")
    x = g.input("x", (size,))
    y = rlx.exp(x).reshape(shape)
    g.output("y", rlx.tanh(y + rlx.sigmoid(x).reshape(shape)) if two else rlx.tanh(y) * 2.0)
    return g


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6)])
def test_what_is_reshaped_is_computed_before(shape: tuple[int, ...], two: bool) -> None:
    g = reshaped(shape, two=two)
    after = sink_reshapes(g)
    verify(after)
    feeds = {"x": np.linspace(-2, 2, 6, dtype=np.float32)}
    assert not differences(g, results(g, feeds), results(after, feeds))
    assert after.outputs["y"].node.op.name == "reshape"
    assert fused(g) == 1


@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6)])
def test_leaves_and_functions_of_leaves_take_the_shape_of_what_is_computed(shape: tuple[int, ...]) -> None:
    g = Graph("leaves")
    x, w, v = g.input("x", (1, 6, 1)), g.input("w", (6,)), g.input("v", (6,))
    y = rlx.exp(-x).reshape(shape) * rlx.sigmoid(w.reshape(shape))
    g.output("y", rlx.tanh(y + v.reshape(shape)))
    feeds = {n: np.linspace(-2, 2, 6, dtype=np.float32).reshape(t.shape) for n, t in g.inputs.items()}
    after = sink_reshapes(g)
    verify(after)
    assert not differences(g, results(g, feeds), results(after, feeds))
    assert sum(node.op.elementwise for node in optimize(g, verify=True)[0].nodes) == 1


def test_other_reshapes_and_large_tensors_stay() -> None:
    for g in (reshaped((2, 3)), reshaped((1 << 16, 1), 1 << 16)):
        assert [n.op.name for n in sink_reshapes(g).nodes] == [n.op.name for n in g.nodes]


def test_a_batch_norm_of_its_own_statistics_inverts_the_deviation_once_a_channel() -> None:
    g = Graph("norm")
    x, scale, shift = g.input("x", (4, 8, 5, 5)), g.input("s", (8,)), g.input("t", (8,))
    y = rlx.batch_norm(x, scale, shift, rlx.mean(x, axis=(0, 2, 3)), rlx.var(x, axis=(0, 2, 3)))
    g.output("y", y)
    for i, slope in enumerate(gradients(rlx.sum(y * y * y), [x, scale])):
        g.output(f"d{i}", slope)
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(t.shape).astype(np.float32) for n, t in g.inputs.items()}
    after, _ = optimize(g, verify=True)
    assert not differences(g, results(g, feeds, upcast=True), results(after, feeds))
    wide = [n for n in after.nodes if n.op.name in ("batch_norm", "fused") and n.outputs[0].size == x.size]
    assert wide and all("sqrt" not in str(n.attrs) and n.op.name == "fused" for n in wide)


def test_a_batch_norm_of_given_statistics_stays_one_node() -> None:
    g = Graph("norm")
    x, *statistics = g.input("x", (2, 8, 5, 5)), *(g.input(f"s{i}", (8,)) for i in range(4))
    g.output("y", rlx.batch_norm(x, *statistics))
    assert fused(g) + sum(n.op.name == "batch_norm" for n in optimize(g)[0].nodes) == 1
