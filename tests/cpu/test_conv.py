"""Convolutions on the CPU, in every way they are computed, against the float64 definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
import rlx.ops as ops
from tests.cpu.programs import check, data, run_both

# (image, kernel, strides, dilations, pads): as wide as the image, narrower, wider, phases that are not all read.
DEPTHWISE = [
    ((14, 14), (3, 3), 1, 1, 1),
    ((7, 5), (3, 3), 2, 1, 1),
    ((8, 8), (3, 3), 2, 1, 1),
    ((9, 9), (3, 3), 1, 1, 0),
    ((9, 9), (5, 3), (2, 1), 1, (2, 0)),
    ((9, 10), (3, 3), 1, 2, 2),
    ((11, 10), (3, 4), 3, 2, ((2, 1), (0, 3))),
    ((6, 4), (3, 7), 1, 1, (1, 3)),
    ((5, 5), (2, 2), 1, 1, ((0, 3), (3, 1))),
    ((12, 12), (1, 1), 3, 1, 0),
    ((7,), (3,), 1, 1, 1),
    ((13,), (4,), 2, 3, (5,)),
    ((4, 5, 6), (3, 3, 3), 1, 1, 1),
    ((5, 6, 7), (2, 3, 3), (1, 2, 2), 1, (0, 1, 1)),
]


@pytest.mark.parametrize("each", (1, 2))
@pytest.mark.parametrize("geometry", DEPTHWISE)
def test_depthwise_geometry(geometry: Any, each: int) -> None:
    image, kernel, strides, dilations, pads = geometry
    x, w, b = data((2, 5, *image)), data((5 * each, 1, *kernel), seed=1), data((5 * each,), seed=2)

    def build(x: Any, w: Any, b: Any) -> Any:
        return ops.conv(x, w, b, strides=strides, dilations=dilations, pads=pads, groups=5, activation="relu")

    check(build, x, w, b)


def test_depthwise_borders_keep_infinities_where_they_belong() -> None:
    """An infinity at a row's end must not reach the next row."""
    x = data((1, 3, 6, 6))
    x[0, 1, 2, 5], x[0, 2, 3, 0] = np.inf, np.nan
    ((got, want),) = run_both(lambda x, w: ops.conv(x, w, pads=1, groups=3), x, data((3, 1, 3, 3), seed=1))
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    keep = np.isfinite(want)
    np.testing.assert_allclose(got[keep], want[keep], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ("f64", "f16", "bf16"))
def test_depthwise_dtypes(dtype: str) -> None:
    check(
        lambda x, w: ops.conv(x, w, pads=1, groups=4), data((1, 4, 9, 9), dtype), data((4, 1, 3, 3), dtype, 1)
    )


@pytest.mark.parametrize("kernel", (1, 3))
@pytest.mark.parametrize("shape", [(300, 40, 6, 6), (40, 64, 40, 40), (1100, 16, 4, 4), (8, 300, 5, 30)])
def test_products_cut_by_rows_or_places(shape: tuple[int, ...], kernel: int) -> None:
    rows, channels, *image = shape
    x, w = data((1, channels, *image)), data((rows, channels, kernel, kernel), seed=1)
    check(lambda x, w, b: ops.conv(x, w, b, pads=kernel // 2, activation="relu"), x, w, data((rows,), seed=2))


@pytest.mark.parametrize("groups", (1, 4))
@pytest.mark.parametrize("kernel", (1, 3))
def test_any_number_of_threads_gives_the_same_bits(groups: int, kernel: int) -> None:
    x, w = data((1, 64, 28, 28)), data((128, 64 // groups, kernel, kernel), seed=1)

    def build(x: Any, w: Any) -> Any:
        return ops.conv(x, w, pads=kernel // 2, groups=groups, activation="relu")

    ((one, _),), ((three, _),) = (run_both(build, x, w, threads=n) for n in (1, 3))
    assert one.tobytes() == three.tobytes()


def test_products_that_an_epilogue_follows_are_values_too() -> None:
    """`rlx check` reads what a product gives though a step of both would not write it."""
    graph = rlx.Graph("values")
    a, b = (graph.input(n, s) for n, s in (("a", (3, 5)), ("b", (5, 4))))
    graph.output("y", (a @ b) * graph.input("c", (3, 4)) + 1)
    feeds = {n: np.full(t.shape, 0.5, np.float32) for n, t in graph.inputs.items()}
    with rlx.Session("cpu", engine="compiled").compile(graph, planner="bump") as made:
        made.run(feeds)
        (node,) = (n for n in made.program.nodes if n.op.name == "matmul")
        np.testing.assert_allclose(made.value(node.output), 1.25)


def test_values_within_a_program_have_the_order_of_their_shapes() -> None:
    """`rlx check` reads each node's; images between convolutions lie with their channels last."""
    rng = np.random.default_rng(0)
    graph = rlx.Graph("values")
    x, w = (graph.input(n, s) for n, s in (("x", (1, 3, 6, 5)), ("w", (4, 3, 3, 3))))
    inner = rlx.relu(rlx.conv(x, w, pads=((1, 1), (1, 1))))
    graph.output("y", rlx.mean(inner, axis=(2, 3)))
    feeds = {n: rng.standard_normal(t.shape).astype(np.float32) for n, t in graph.inputs.items()}
    with rlx.Session("cpu", engine="compiled").compile(graph, planner="bump") as made:
        y = made.run(feeds)["y"]
        node = next(n for n in made.program.nodes if n.op.name == "conv")
        np.testing.assert_allclose(made.value(node.output).mean((2, 3)), y, rtol=1e-5, atol=1e-6)
