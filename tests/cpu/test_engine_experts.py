"""Grouped products of the compiled engine: few and many rows for each expert, any sizes, for each length of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.backends.cpu.machine import Machine
from rlx.dtypes import as_dtype
from rlx.ir import apply
from rlx.ops.grouped import group_bounds
from tests.cpu.processors import on_machines
from tests.cpu.test_engine_products import bound, floats, packed_rows, run
from tests.full import thinned

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)
Array = npt.NDArray[Any]
KINDS = thinned(["q4_k", "mxfp4", "q8_0", "bf16", "f16", "f32"], {"mxfp4", "bf16"}.__contains__)
# Sizes of groups, and rows: one of each, none, more than there are, rows behind the last group, one group of all.
SIZES = [((1, 0, 1), 2), ((3, -4, 6), 9), ((2, 9, 50), 30), ((5, 0, 0), 8), ((0, 230, 7), 240)]


def product(x: Array, w: Array, sizes: Sequence[int]) -> Array:
    """The definition in f64; w (experts, n, k)."""
    out = np.zeros((len(x), w.shape[1]))
    for e, (start, stop) in enumerate(group_bounds(np.array(sizes), len(x))):
        out[start:stop] = x[start:stop].astype(np.float64) @ w[e].T.astype(np.float64)
    return out


def given(kind: str, experts: int, n: int, k: int) -> tuple[Array, Array]:
    """A weight for each expert as it lies in memory, (experts, n, …), and its elements."""
    dtype = as_dtype(kind)
    if dtype.is_packed:
        packed = packed_rows(kind, experts * n, k)
        return packed.data.reshape(experts, n, -1), packed.dequantize().reshape(experts, n, k)
    raw = floats(experts, n, k).astype(dtype.np)
    return raw, raw.astype(np.float32)


@on_machines
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sizes", "rows"), SIZES)
def test_each_group_meets_its_expert(kind: str, sizes: tuple[int, ...], rows: int, machine: Machine) -> None:
    n, k = 37, 768 if as_dtype(kind).is_packed else 535
    raw, values = given(kind, len(sizes), n, k)
    x, counts = floats(rows, k), np.array(sizes, np.int32)
    graph = rlx.Graph("experts")
    w, groups = graph.input("w", values.shape, as_dtype(kind)), graph.input("s", counts.shape, "i32")
    t = graph.input("x", x.shape)
    packed = as_dtype(kind).is_packed
    y = rlx.grouped_packed_matmul(t, w, groups) if packed else rlx.grouped_matmul(t, w, groups, transpose_w=True)
    made = []
    for pieces in (1, 3):
        out = np.full((rows, n), np.nan, np.float32)
        run(bound(y.node, [x, raw, counts], [out], machine, True), machine, pieces)
        made.append(out)
    wanted = product(x, values, sizes)
    assert ((made[0] - wanted) ** 2).sum() <= 2e-12 * (wanted**2).sum()
    assert not made[0][wanted.any(1) == 0].any()
    assert made[0].tobytes() == made[1].tobytes()


@on_machines
@pytest.mark.parametrize("rows", [7, 60])
def test_a_row_does_not_depend_on_those_beside_it(rows: int, machine: Machine) -> None:
    """The groups of a program change from run to run; a sum has one order in all of them."""
    raw, _ = given("q4_k", 3, 20, 512)
    x = np.repeat(floats(1, 512), rows, 0)
    graph = rlx.Graph("alike")
    y = rlx.grouped_packed_matmul(
        graph.input("x", x.shape), graph.input("w", (3, 20, 512), as_dtype("q4_k")), graph.input("s", (3,), "i32")
    )
    made = []
    for size in (1, 2, 3, rows):
        out = np.full((rows, 20), np.nan, np.float32)
        run(bound(y.node, [x, raw, np.array([0, size, 0], np.int32)], [out], machine, True), machine)
        made += list(out[:size])
    assert all(line.tobytes() == made[0].tobytes() for line in made)


@on_machines
@pytest.mark.parametrize(("kind", "of_x"), [("f32", "f32"), ("bf16", "f16")])
def test_weights_that_lie_term_by_term(kind: str, of_x: str, machine: Machine) -> None:
    x, w = floats(21, 530).astype(as_dtype(of_x).np), floats(2, 530, 45).astype(as_dtype(kind).np)
    graph = rlx.Graph("terms")
    tensors = graph.input("x", x.shape, x.dtype), graph.input("w", w.shape, w.dtype), graph.input("s", (2,), "i32")
    y = rlx.grouped_matmul(*tensors)
    out = np.zeros((21, 45), y.dtype.np)
    run(bound(y.node, [x, w, np.array([4, 13], np.int32)], [out], machine, True), machine, 2)
    wanted = product(x, w.swapaxes(1, 2), (4, 13))
    assert ((out - wanted) ** 2).sum() <= 2e-12 * (wanted**2).sum()


@on_machines
@pytest.mark.parametrize(("columns", "kind"), [(64, "f32"), (45, "f32"), (45, "bf16")])
def test_the_gradient_to_the_weights(columns: int, kind: str, machine: Machine) -> None:
    x, d = floats(1300, 17).astype(as_dtype(kind).np), floats(1300, columns).astype(as_dtype(kind).np)
    counts = np.array([5, 0, 1200, -2, 300], np.int32)
    graph = rlx.Graph("gradient")
    tensors = graph.input("x", x.shape, x.dtype), graph.input("d", d.shape, d.dtype), graph.input("s", (5,), "i32")
    y = apply("grouped_matmul_grad", *tensors)
    made = []
    for pieces in (1, 3):
        out = np.full((5, 17, columns), np.nan).astype(as_dtype(kind).np)
        run(bound(y.node, [x, d, counts], [out], machine, True), machine, pieces)
        made.append(out)
    for e, (start, stop) in enumerate(group_bounds(counts, 1300)):
        wanted = x[start:stop].astype(np.float64).T @ d[start:stop].astype(np.float64)
        limit = 2e-12 if kind == "f32" else 1e-5
        assert ((made[0][e].astype(np.float64) - wanted) ** 2).sum() <= limit * (wanted**2).sum()
    assert made[0].tobytes() == made[1].tobytes()
