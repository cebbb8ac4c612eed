"""Columns of a matrix that kernels read where they are: no launch copies them, and the results are those of copies."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx import ops
from rlx.backends.gpu.program.executable import lower_graph
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import FileKernel, Launch
from rlx.driver.memory.planner import plan
from rlx.ir import Graph
from rlx.passes import optimize
from tests.gpu import cuda_host
from tests.gpu.lowered import Array, carried_out, target

_BACKENDS = [
    pytest.param("vulkan", marks=pytest.mark.vulkan),
    pytest.param("cuda", marks=pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")),
]
_BF16 = ml_dtypes.bfloat16


def kernels(graph: Graph, inputs: list[Array], backend: str) -> tuple[list[str], dict[str, Array]]:
    """The kernels that a graph is lowered to, and its outputs."""
    graph, _ = optimize(graph)
    planned = plan(graph, planner="reuse")
    lowering: Lowering = lower_graph(graph, planned, target(backend), "f32", batches=False)[0]
    launched = [step.kernel for step in lowering.steps if isinstance(step, Launch)]
    names = [kernel.stem if isinstance(kernel, FileKernel) else "tree" for kernel in launched]
    return names, carried_out(graph, planned, lowering, inputs, backend)


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize(("width", "dtype"), [(16, np.float32), (6, np.float32), (16, _BF16)])
def test_a_gate_reads_both_halves_of_a_product(width: int, dtype: Any, backend: str) -> None:
    x = np.random.default_rng(width).standard_normal((5, 2 * width)).astype(dtype)
    g = Graph("gate")
    t = ops.neg(g.input("x", x.shape, x.dtype))
    g.output("y", ops.silu(t[:, :width]) * t[:, width:])
    names, made = kernels(g, [x], backend)
    assert names == ["tree", "tree"]
    gate, up = (-x.astype(np.float64)[:, part] for part in (slice(width), slice(width, None)))
    limit = 1e-2 if dtype == _BF16 else 1e-5
    assert np.allclose(made["y"].astype(np.float64), gate / (1 + np.exp(-gate)) * up, rtol=limit, atol=limit / 10)


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("shape", [(2, 8), (8, 2)])
def test_columns_with_other_rows_are_copied(shape: tuple[int, int], backend: str) -> None:
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    g = Graph("rows")
    t = ops.neg(g.input("x", x.shape, x.dtype))
    g.output("y", ops.exp(ops.reshape(t[:, :4], shape)) * ops.reshape(t[:, 4:], shape))
    _, made = kernels(g, [x], backend)
    left, right = (-x.astype(np.float64)[:, part].reshape(shape) for part in (slice(4), slice(4, None)))
    assert np.allclose(made["y"], np.exp(left) * right, rtol=1e-5)


def test_columns_that_are_a_result_are_written() -> None:
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    g = Graph("parts")
    t = ops.neg(g.input("x", x.shape, x.dtype))
    g.output("y", ops.exp(t[:, :4]) * t[:, 4:])
    g.output("part", t[:, 4:])
    names, made = kernels(g, [x], "cuda") if cuda_host.compiler() else kernels(g, [x], "vulkan")
    assert len(names) == 3 and np.array_equal(made["part"], -x[:, 4:])
    assert np.allclose(made["y"], np.exp(-x[:, :4].astype(np.float64)) * -x[:, 4:], rtol=1e-5)


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("op", ["attention_step", "rope_update"])
def test_heads_are_read_from_one_matrix(op: str, backend: str) -> None:
    """Of two key heads and six queries, beside their copies."""
    rng, tokens, size = np.random.default_rng(3), 3, 16
    x = rng.standard_normal((tokens, 10 * size)).astype(np.float32)
    angles = rng.random((12, size // 2)) * 6
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    caches = [rng.standard_normal((tokens, 9, 2, size)).astype(np.float32) for _ in range(2)]
    at = np.array([4, 0, 7], np.int32)

    def graph(apart: bool) -> Graph:
        g = Graph("heads")
        t = ops.neg(g.input("x", x.shape, x.dtype))
        keys, values = (g.input(n, c.shape, c.dtype) for n, c in zip(("keys", "values"), caches, strict=True))
        place = g.input("at", at.shape, at.dtype)
        tables = [g.constant(cos), g.constant(sin)]
        ends = ((0, 6, 6), (6, 8, 2), (8, 10, 2))
        heads = [ops.reshape(t[:, a * size : b * size], (tokens, n, size)) for a, b, n in ends]
        if apart:
            heads = [h + 0.0 for h in heads]
        if op == "attention_step":
            made = ops.attention_step(*heads, keys, values, place, *tables, checked=False)
        else:
            flat = [ops.reshape(c, (tokens * 9, 2, size)) for c in (keys, values)]
            first = g.constant(np.arange(tokens, dtype=np.int32) * 9)
            made = ops.rope_update(*heads, *flat, place + first, place, *tables)
        for name, one in zip(("y", "k", "v"), made, strict=True):
            g.output(name, one)
        return g

    inputs = [x, *caches, at]
    (names, made), (copied, want) = (kernels(graph(apart), inputs, backend) for apart in (False, True))
    assert op in names and len(names) < len(copied)
    for name, value in want.items():
        assert np.array_equal(made[name], value), name


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("rows", [2, 4])
def test_heads_of_other_rows_and_those_that_are_caches_too_are_copied(rows: int, backend: str) -> None:
    """Of 4 tokens in a matrix of 2 rows; or of 4, whose keys and values the caches held before."""
    tokens, size = 4, 16
    width = 6 * size * tokens // rows
    x = np.random.default_rng(4).standard_normal((rows, width)).astype(np.float32)
    g = Graph("heads")
    t = ops.neg(g.input("x", x.shape, x.dtype))
    ends = [0, width * 2 // 3, width * 5 // 6, width]
    parts = [slice(a, b) for a, b in itertools.pairwise(ends)]
    q, k, v = (ops.reshape(t[:, part], (tokens, -1, size)) for part in parts)
    keys, values = (k, v) if rows == tokens else (g.input(n, (9, 1, size), np.float32) for n in ("keys", "values"))
    caches = [] if rows == tokens else [np.ones((9, 1, size), np.float32)] * 2
    at = np.array([2, -1, 0, 1], np.int32)
    still = [g.constant(f(np.zeros((1, size // 2), np.float32))) for f in (np.cos, np.sin)]
    made = ops.rope_update(q, k, v, keys, values, g.input("at", at.shape, at.dtype), at, still[0], still[1])
    for name, one in zip(("y", "k", "v"), made, strict=True):
        g.output(name, one)
    _, found = kernels(g, [x, *caches, at], backend)
    heads = [-x[:, part].reshape(tokens, -1, size) for part in parts]
    assert np.array_equal(found["y"], heads[0])
    for name, fresh in zip(("k", "v"), heads[1:], strict=True):
        want = fresh.copy() if rows == tokens else caches[0].copy()
        want[at[at >= 0]] = fresh[at >= 0]
        assert np.array_equal(found[name], want), name
