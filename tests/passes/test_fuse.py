"""Fusion groups and epilogues: which nodes fuse, which must not, and that 16-bit values round where they did before."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx import ops
from rlx.dtypes import bf16, f16, f32, i8
from rlx.ir import Graph, Node, Tensor, expr, verify
from rlx.ir.expr import linearize
from rlx.passes import fuse_epilogues, fuse_groups, optimize
from rlx.passes.fusion_groups import MAX_COST, MAX_INPUTS, MAX_SPREAD, MAX_TENSORS
from rlx.passes.trees import explicit, spread
from tests.passes.values import differences, names, results


def fused(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op.name == "fused"]


def check(graph: Graph, feeds: dict[str, Any]) -> Graph:
    """The fused graph, after checking that its results are those of the given one."""
    after = fuse_groups(graph)
    verify(after)
    assert differences(graph, results(graph, feeds), results(after, feeds)) == []
    return after


def data(graph: Graph, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    leaves = {**graph.inputs, **graph.params, **graph.states}
    return {n: rng.standard_normal(t.shape).astype(t.dtype.np) for n, t in leaves.items()}


def test_a_chain_is_one_node() -> None:
    g = Graph("chain")
    x, b = g.input("x", (4, 8)), g.param("b", (8,))
    g.output("y", ops.tanh(ops.exp(x + b) * 2 - 1))
    after = check(g, data(g))
    assert names(after) == ["fused"]
    assert [t.shape for t in fused(after)[0].inputs] == [(4, 8), (8,)]


def test_values_needed_outside_are_further_outputs() -> None:
    g = Graph("several")
    x = g.input("x", (4, 8))
    a = ops.exp(x)
    b = ops.sin(a)
    g.output("a", a)
    g.output("s", ops.sum(b, -1))
    g.output("y", a + b)
    after = check(g, data(g))
    assert names(after) == ["fused", "sum"]
    assert len(fused(after)[0].outputs) == 3


def test_a_region_does_not_leave_and_return() -> None:
    g = Graph("softmax")
    x = g.input("x", (4, 8))
    e = ops.exp(x)
    g.output("y", e / ops.sum(e, -1, keepdims=True))
    after = check(g, data(g))
    assert names(after) == ["exp", "sum", "div"]


def test_two_regions_do_not_wait_for_each_other() -> None:
    """a1 → b1 and b2 → a2: of the groups {a1, a2} and {b1, b2} neither could run first."""
    g = Graph("cross")
    x, y = g.input("x", (4,)), g.input("y", (4,))
    a1, b2 = ops.exp(x), ops.sin(y)
    ra, rb = ops.sum(a1, 0, keepdims=True), ops.sum(b2, 0, keepdims=True)
    b1, a2 = b2 * ra, a1 * rb
    g.output("a", ops.tanh(a1) + a2)
    g.output("b", ops.tanh(b2) + b1)
    check(g, data(g))


@pytest.mark.parametrize("seed", range(12))
def test_many_regions_in_a_tangle(seed: int) -> None:
    """Hundreds of small fusion groups that depend on each other through row sums: none may depend on itself."""
    rng = np.random.default_rng(seed)
    g = Graph("tangle")
    pool = [g.input("x", (2, 4))]
    while len(g.nodes) < 400:
        a, b = (pool[-1 - int(rng.integers(min(len(pool), n)))] for n in (8, 30))
        kind = int(rng.integers(6))
        if kind < 4:
            pool.append((ops.maximum(a, b), ops.sub(a, b), ops.tanh(a), ops.relu(a))[kind])
        else:
            pool.append(ops.softmax(a) if kind == 4 else ops.maximum(ops.mean(a, -1, keepdims=True), b))
    g.output("y", pool[-1])
    g.output("z", pool[-5])
    after = check(g, data(g))
    assert len(after.nodes) < len(g.nodes)


def test_a_cheap_small_value_is_computed_again() -> None:
    g = Graph("cheap")
    x, w = g.input("x", (4, 8)), g.param("w", (8,), bf16)
    g.output("y", ops.sin(x) * (ops.cast(w, f32) + 1))
    assert names(check(g, data(g))) == ["fused"]


def test_a_costly_small_value_is_not() -> None:
    g = Graph("costly")
    x, w = g.input("x", (4, 8)), g.param("w", (8,))
    g.output("y", ops.sin(x) * ops.exp(w))
    assert sorted(names(check(g, data(g)))) == ["exp", "fused"]


def test_a_small_value_needed_elsewhere_is_not() -> None:
    g = Graph("shared")
    x, w = g.input("x", (4, 8)), g.param("w", (8,))
    v = w + 1
    g.output("v", v)
    g.output("y", ops.sin(x) * v)
    after = check(g, data(g))
    assert sorted(names(after)) == ["add", "fused"]


def test_broadcasts_are_read_through() -> None:
    g = Graph("expand")
    x, w = g.input("x", (4, 8)), g.param("w", (1, 8))
    g.output("y", ops.sin(x) * ops.expand(ops.neg(w), (4, 8)))
    g.output("z", ops.exp(ops.expand(w, (4, 8))))
    after = check(g, data(g))
    assert names(after).count("expand") == 0


def test_an_expanded_result_stays() -> None:
    g = Graph("expand")
    x, w = g.input("x", (4, 8)), g.param("w", (8,))
    e = ops.expand(ops.neg(w), (4, 8))
    g.output("e", e)
    g.output("y", ops.sin(x) * e)
    assert "expand" in names(check(g, data(g)))


def test_movement_is_not_fused() -> None:
    g = Graph("movement")
    x = g.input("x", (4, 8))
    g.output("y", ops.exp(ops.transpose(ops.sin(x))))
    assert names(check(g, data(g))) == ["sin", "transpose", "exp"]


def test_limits() -> None:
    g = Graph("wide")
    xs = [g.input(f"x{i}", (4,)) for i in range(30)]
    total = xs[0]
    for i, x in enumerate(xs[1:]):
        total = ops.sin(total + x)
        if i % 2:
            g.output(f"y{i}", total)
    g.output("y", total)
    after = check(g, data(g))
    for node in fused(after):
        assert len(node.inputs) <= MAX_INPUTS
        assert len(node.inputs) + len(node.outputs) <= MAX_TENSORS
        assert len(linearize(node.attrs["trees"])) <= MAX_COST + MAX_INPUTS + 64
    assert len(fused(after)) < 29


def test_trees_that_share_a_lot_stay_small_when_written_out() -> None:
    g = Graph("squares")
    y = g.input("x", (4,))
    for _ in range(60):
        y = y * y
    g.output("y", y)
    after = fuse_groups(g)
    verify(after)
    assert len(after.nodes) < 10
    for node in fused(after):
        assert all(spread(t)[0] <= MAX_SPREAD for t in node.attrs["trees"])
    assert len(str(after)) < 200_000


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_halves_round_where_they_were_stored(dtype: Any) -> None:
    g = Graph("halves")
    x, y = g.input("x", (64, 64), dtype), g.input("y", (64, 64), dtype)
    g.output("z", (x + y) * x - ops.cast(ops.cast(y, f32) * 3, dtype))
    feeds = data(g)
    after = fuse_groups(g)
    assert names(after) == ["fused"]
    want, got = results(g, feeds)["output", "z"], results(after, feeds)["output", "z"]
    assert want.tobytes() == got.tobytes()


def test_small_integers_wrap() -> None:
    g = Graph("wrap")
    x = g.input("x", (256,), i8)
    g.output("y", (x + x) * 3 - x)
    feeds = {"x": np.arange(-128, 128, dtype=np.int8)}
    after = fuse_groups(g)
    assert names(after) == ["fused"]
    assert results(g, feeds)["output", "y"].tobytes() == results(after, feeds)["output", "y"].tobytes()


def test_zeros_of_both_signs_are_two_literals() -> None:
    g = Graph("zeros")
    x = g.input("x", (3,))
    g.output("y", (x + 0.0) * g.constant(-0.0, f32))
    feeds = {"x": np.array([1.0, -1.0, -0.0], np.float32)}
    after = fuse_groups(g)
    assert names(after) == ["fused"]
    assert results(g, feeds)["output", "y"].tobytes() == results(after, feeds)["output", "y"].tobytes()
    assert expr.lit(-0.0, f32) != expr.lit(0.0, f32)


def test_infinite_constants_stay_in_memory() -> None:
    g = Graph("infinite")
    x = g.input("x", (3,))
    g.output("y", ops.maximum(ops.sin(x), g.constant(-math.inf)))
    assert len(fused(check(g, data(g)))[0].inputs) == 2


def test_rounding_written_out() -> None:
    a = expr.arg(0, bf16)
    (tree,) = explicit([expr.call("mul", expr.call("add", a, 1.0), a)])
    assert tree.dtype == bf16 and tree.prim == "cast"
    assert all(e.dtype == f32 for e in linearize([tree]) if e.prim not in ("arg", "cast"))
    assert explicit([a]) == (a,)


def test_what_the_device_lacks_is_not_fused() -> None:
    g = Graph("host")
    x = g.input("x", (3,))
    g.output("y", ops.exp(ops.sin(x)))
    assert names(fuse_groups(g, lambda n: "host" if n.op.name == "fused" else "native")) == ["sin", "exp"]
    assert names(fuse_groups(g, lambda n: "host" if n.op.name == "sin" else "native")) == ["sin", "exp"]


# -- epilogues


def product(g: Graph, m: int = 4, k: int = 3, n: int = 5, dtype: Any = f32) -> Tensor:
    return ops.matmul(g.input("x", (m, k), dtype), g.param("w", (k, n), dtype))


ACTIVATIONS = {
    "relu": ops.relu,
    "gelu": ops.gelu,
    "gelu_tanh": lambda x: ops.gelu(x, "tanh"),
    "silu": ops.silu,
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [None, (5,), (1, 5), "first"])
def test_bias_and_activation_go_into_the_product(activation: str, bias: Any) -> None:
    g = Graph("epilogue")
    y = product(g)
    if bias is not None:
        b = g.param("b", (5,) if bias == "first" else bias)
        y = b + y if bias == "first" else y + b
    g.output("y", ACTIVATIONS[activation](y))
    after = fuse_epilogues(g)
    (node,) = (n for n in after.nodes if n.op.name == "matmul")
    assert node.attrs["activation"] == activation and len(node.inputs) == (2 if bias is None else 3)
    assert set(names(after)) <= {"matmul", "reshape"}
    feeds = data(g)
    assert differences(g, results(g, feeds), results(after, feeds)) == []


def convolution(g: Graph, channels: int = 5) -> Tensor:
    return ops.conv(g.input("x", (2, 3, 6, 6)), g.param("w", (channels, 3, 3, 3)), pads=1)


@pytest.mark.parametrize("bias", [(5, 1, 1), (1, 5, 1, 1)])
def test_bias_and_activation_go_into_the_convolution(bias: tuple[int, ...]) -> None:
    g = Graph("epilogue")
    g.output("y", ops.relu(convolution(g) + g.param("b", bias)))
    after = fuse_epilogues(g)
    assert set(names(after)) <= {"conv", "reshape"}
    feeds = data(g)
    assert differences(g, results(g, feeds), results(after, feeds)) == []


def test_what_is_no_bias_of_a_convolution_stays() -> None:
    for channels, shape in ((6, (6,)), (6, (6, 1)), (5, (2, 1, 1, 1)), (5, (5, 6, 1)), (5, (1, 1, 1))):
        g = Graph("no bias")
        g.output("y", convolution(g, channels) + g.param("b", shape))
        assert names(fuse_epilogues(g)) == ["conv", "add"]


def test_a_product_needed_elsewhere_keeps_its_bias_apart() -> None:
    g = Graph("shared")
    y = product(g)
    g.output("product", y)
    g.output("y", ops.relu(y + g.param("b", (5,))))
    assert names(fuse_epilogues(g)) == ["matmul", "add", "relu"]


def test_what_is_no_bias_stays() -> None:
    for shape in ((4, 5), (4, 1), (2, 4, 5), (1,)):
        g = Graph("no bias")
        g.output("y", product(g) + g.param("b", shape))
        assert names(fuse_epilogues(g)) == ["matmul", "add"]


def test_a_wider_bias_stays() -> None:
    g = Graph("wider")
    g.output("y", product(g, dtype=f16) + g.param("b", (5,)))
    assert names(fuse_epilogues(g)) == ["matmul", "add"]


def test_an_integer_bias_of_floats_stays() -> None:
    g = Graph("integer")
    g.output("y", product(g) + g.param("b", (5,), i8))
    assert names(fuse_epilogues(g)) == ["matmul", "add"]


def test_one_epilogue_only() -> None:
    g = Graph("twice")
    y = ops.relu(product(g) + g.param("b", (5,)))
    g.output("y", ops.tanh(y) + g.param("c", (5,)))
    assert names(optimize(g)[0]) == ["matmul", "fused"]


def test_labels_are_kept() -> None:
    g = Graph("labels")
    x = g.input("x", (4,))
    a = g.add("exp", (x,), {}, "first")[0]
    g.output("y", g.add("sin", (a,), {}, "second")[0])
    assert fused(fuse_groups(g))[0].label == "first+second"


def test_bfloat16_weights_are_read_as_they_are() -> None:
    g = Graph("half")
    x, w = g.input("x", (4, 8)), g.param("w", (8,), bf16)
    g.output("y", ops.sin(x) * ops.cast(w, f32))
    node = fused(check(g, {"x": np.ones((4, 8), np.float32), "w": np.ones(8, ml_dtypes.bfloat16)}))[0]
    assert [t.dtype for t in node.inputs] == [f32, bf16]


def test_a_node_joins_those_that_read_it_rather_than_what_is_in_memory_anyway() -> None:
    """An update reads a gradient that a check of all gradients reads too, and the choice of old or new waits for the
    check: the update and the choice are one, and the update is never in memory."""
    g = Graph()
    a, b, old = (g.input(n, (4, 5)) for n in ("a", "b", "old"))
    gradient = a + b
    new = old - gradient * 0.1
    g.output("kept", ops.where(ops.all_finite(gradient), new, old))
    after = check(g, data(g))
    assert names(after) == ["add", "all_finite", "fused"]
