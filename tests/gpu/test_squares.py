"""The variance of a batch's channels: a sum that computes the squared distances itself."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.lowering import Lowering, kernel_name
from rlx.driver.memory.planner import plan
from rlx.ir import Graph
from rlx.passes.pipeline import optimize
from tests.gpu import lowered
from tests.gpu.lowered import carried_out, close


def _lowered(
    shape: tuple[int, ...], dtype: str, backend: str, planner: str = "reuse", near: tuple[int, ...] | None = None
) -> tuple[Graph, Any, Lowering]:
    """A mean of squared distances over all pixels of an image that lies with its channels last, from numbers of shape
    `near`, one for each channel where it is None."""
    load_rules()
    graph = Graph("squares")
    x = graph.input("x", shape, dtype)
    centers = graph.input("m", near or (1, shape[1], *(1,) * (len(shape) - 2)))
    far = rlx.cast(x, "f32") - rlx.exp(centers)
    graph.output("y", rlx.mean(far * far, axis=tuple(i for i in range(len(shape)) if i != 1), keepdims=True))
    passed, _ = optimize(graph)
    planned = plan(passed, planner=planner)
    lowering = Lowering(passed, planned, lowered.target(backend), "f32")
    image = next(iter(passed.inputs.values()))
    lowering.last = frozenset(t.id for n in passed.nodes for t in n.outputs if t.shape == image.shape)
    for node in passed.nodes:
        if node.op.leaf is None:
            lowering.lower(node)
    return passed, planned, lowering


@pytest.mark.vulkan
@pytest.mark.parametrize("backend", ["vulkan", "cuda"])
@pytest.mark.parametrize(
    "shape, dtype", [((3, 10, 5, 7), "bf16"), ((2, 7, 9), "f16"), ((40, 64, 16, 16), "bf16"), ((2, 33, 40), "f32")]
)
@pytest.mark.sample(4, vulkan=2)
def test_squared_distances_are_summed_where_they_are_computed(shape: Any, dtype: str, backend: str) -> None:
    graph, planned, lowering = _lowered(shape, dtype, backend)
    assert "reduce_squares" in {kernel_name(s).split("-")[0] for s in lowering.steps}
    rng = np.random.default_rng(0)
    kind = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}[dtype]
    x = (rng.standard_normal(shape) + 3).astype(kind)
    m = rng.standard_normal((1, shape[1], *(1,) * (len(shape) - 2))).astype(np.float32)
    got = carried_out(graph, planned, lowering, [np.moveaxis(x, 1, -1), m], backend)["y"]
    far = x.astype(np.float64) - np.exp(m.astype(np.float64))
    close(got, np.mean(far * far, axis=tuple(i for i in range(len(shape)) if i != 1), keepdims=True), worst=1e-5)


@pytest.mark.parametrize(
    "shape, dtype, near",
    [((2, 8, 5, 8), "f32", (8,)), ((2, 8, 8, 5), "f32", (8, 1)), ((3, 1, 16, 16), "bf16", (1, 1, 1, 1)),
     ((2, 6, 5, 3), "i32", (1, 6, 1, 1))],
)  # fmt: skip
def test_other_distances_are_written(shape: Any, dtype: str, near: tuple[int, ...]) -> None:
    """Those from numbers along another axis that is as long as the channels, of one channel, and of integers."""
    graph, planned, lowering = _lowered(shape, dtype, "cuda", near=near)
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) * 3).astype({"bf16": ml_dtypes.bfloat16, "f32": "f4", "i32": "i4"}[dtype])
    m = rng.standard_normal(near).astype(np.float32)
    got = carried_out(graph, planned, lowering, [np.moveaxis(x, 1, -1), m], "cuda")["y"]
    far = x.astype(np.float64) - np.exp(m.astype(np.float64))
    close(got, np.mean(far * far, axis=tuple(i for i in range(len(shape)) if i != 1), keepdims=True), worst=1e-5)


def test_distances_that_something_else_reads_are_written() -> None:
    load_rules()
    graph = Graph("both")
    x, centers = graph.input("x", (2, 8, 5, 5), "bf16"), graph.input("m", (1, 8, 1, 1))
    far = rlx.cast(x, "f32") - centers
    graph.output("square", far * far)
    graph.output("y", rlx.mean(far * far, axis=(0, 2, 3), keepdims=True))
    passed, _ = optimize(graph)
    lowering = Lowering(passed, plan(passed), lowered.target("cuda"), "f32")
    lowering.last = frozenset(t.id for n in passed.nodes for t in n.outputs if t.shape == x.shape)
    for node in passed.nodes:
        if node.op.leaf is None:
            lowering.lower(node)
    assert not any("squares" in kernel_name(s) for s in lowering.steps)
