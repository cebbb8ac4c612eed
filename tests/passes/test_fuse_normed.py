"""A row's norm, its product and gate become one op; anything else that reads a value in between keeps them apart."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import rlx.ops as ops
from rlx.dtypes import PACKED, bf16, f32
from rlx.ir import Graph
from rlx.ops.interpret import evaluate
from rlx.passes import fuse_normed, optimize
from rlx.runtime.quantize import quantize


def _graph(rows: int = 1, gated: bool = True, twice: bool = False, whole: int = 6) -> Graph:
    g = Graph("row")
    x, gamma = g.input("x", (rows, 8), f32), g.param("gamma", (8,), f32)
    normed = ops.rms_norm(x, gamma, eps=0.1)
    y = ops.matmul(normed, g.param("w", (whole, 8), bf16), transpose_b=True)
    g.output("y", ops.mul(y[:, 3:6], ops.silu(y[:, :3])) if gated else y)
    if twice:
        g.output("normed", normed)
    return g


@pytest.mark.parametrize(
    "words, left",
    [
        ({}, {"normed_linear": 1}),
        ({"gated": False}, {"normed_linear": 1}),
        ({"whole": 7}, {"normed_linear": 1, "slice": 2, "silu": 1, "mul": 1}),  # the slices are not its halves
        ({"rows": 2}, {"rms_norm": 1, "matmul": 1, "slice": 2, "silu": 1, "mul": 1}),
        ({"twice": True}, {"rms_norm": 1, "matmul": 1, "slice": 2, "silu": 1, "mul": 1}),
    ],
)
def test_what_is_fused(words: dict[str, int], left: dict[str, int]) -> None:
    graph = _graph(**words)  # type: ignore[arg-type]
    made = fuse_normed(graph)
    ran = Counter(n.op.name for n in made.nodes if not n.op.leaf and n.op.name not in ("cast", "reshape"))
    assert ran == left
    rng = np.random.default_rng(0)
    shapes = {"x": graph.inputs["x"], **graph.params}
    feeds = {name: rng.standard_normal(t.shape).astype(t.dtype.np) for name, t in shapes.items()}
    got, want = (evaluate(g, feeds)[g.outputs["y"].id] for g in (made, graph))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def _packed(rows: int = 1, normed: bool = True, end: str = "gate", twice: bool = False) -> Graph:
    g = Graph("packed row")
    x = g.input("x", (rows, 64), f32)
    y = ops.rms_norm(x, g.param("gamma", (64,), f32), eps=0.1) if normed else x
    made = ops.packed_matmul(y, g.param("w", (6, 64), PACKED["q8_0"]))
    if twice:
        g.output("made", made)
    if end == "gate":
        made = ops.silu(made[:, :3]) * made[:, 3:]
    elif end == "sum":
        made = g.input("rest", (rows, 6), f32) + made
    g.output("y", made)
    return g


@pytest.mark.parametrize(
    "words, left",
    [
        ({}, {"packed_linear": 1}),
        ({"end": "sum"}, {"packed_linear": 1}),
        ({"end": ""}, {"packed_linear": 1}),
        ({"normed": False}, {"packed_linear": 1}),
        ({"normed": False, "end": "sum"}, {"packed_linear": 1}),
        ({"normed": False, "end": ""}, {"packed_matmul": 1}),
        ({"rows": 2, "end": "sum"}, {"rms_norm": 1, "packed_matmul": 1, "add": 1}),
        ({"twice": True, "end": "sum"}, {"packed_linear": 1, "add": 1}),
    ],
)
def test_what_is_fused_of_a_packed_weight(words: dict[str, object], left: dict[str, int]) -> None:
    graph = _packed(**words)  # type: ignore[arg-type]
    made = fuse_normed(graph)
    ran = Counter(n.op.name for n in made.nodes if not n.op.leaf and n.op.name not in ("cast", "reshape"))
    assert ran == left
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(t.shape).astype(np.float32) for name, t in graph.inputs.items()}
    feeds |= {name: rng.standard_normal(t.shape).astype(np.float32) for name, t in graph.params.items() if name != "w"}
    feeds["w"] = quantize(rng.standard_normal((6, 64)).astype(np.float32), "q8_0").data
    got, want = (evaluate(g, feeds)[g.outputs["y"].id] for g in (made, graph))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_device_without_launches_keeps_norm_and_product() -> None:
    made, _ = optimize(_graph(), launches=False)
    assert {"rms_norm", "matmul"} <= {n.op.name for n in made.nodes}
