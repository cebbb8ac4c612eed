"""Gradients of convolutions and pools over all kinds of strides, dilations and pads, against sums written out from the
definition in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

import rlx.ops as ops
from rlx.autodiff import gradients
from rlx.conformance.oracle import evaluate
from rlx.errors import ShapeError
from rlx.ir import Graph, Tensor
from rlx.ops.control.steps import cost_of

Array = np.ndarray[Any, np.dtype[Any]]
Ints = tuple[int, ...]


def _meets(short: int, kernel: int, long: int, stride: int, dilation: int, before: int) -> Array:
    """(short, kernel, long): 1 where position i of the short side, through a tap, meets that position of the long
    side."""
    found = np.zeros((short, kernel, long))
    for i, t in product(range(short), range(kernel)):
        at = i * stride + t * dilation - before
        if 0 <= at < long:
            found[i, t, at] = 1.0
    return found


def _moves(rank: int) -> Iterator[tuple[Ints, Ints, tuple[tuple[int, int], ...], Ints]]:
    """(stride, dilation, pads, output_padding) of each axis: all combinations for one axis, mixed ones for more."""
    one = [
        (s, d, (a, b), e)
        for s, d, a, b, e in product((1, 2, 3), (1, 2, 4), (0, 1, 5), (0, 2, 6), (0, 1, 2, 3))
        if e < max(s, d)
    ]
    if rank == 1:
        yield from (((s,), (d,), (p,), (e,)) for s, d, p, e in one)
        return
    rng = np.random.default_rng(rank)
    for _ in range(60):
        chosen = [one[i] for i in rng.integers(0, len(one), rank)]
        s, d, p, e = zip(*chosen, strict=True)
        yield s, d, p, e


def _paths(rank: int) -> str:
    """The subscripts of the indicator tables of each axis: short side i…, taps t…, long side o…."""
    return ",".join(f"{'ijk'[a]}{'tuv'[a]}{'opq'[a]}" for a in range(rank))


def _check(
    build: Any,
    names: tuple[str, str, str],
    groups: int,
    tables: Sequence[Array],
    shapes: Sequence[Ints],
    what: Any,
) -> None:
    """Checks y and its gradients. `names` are the einsum subscripts, within a group, of x, w and y = Σ x·w over the
    paths; each gradient of a weighted sum of y is a contraction of the other two."""
    rng = np.random.default_rng(0)
    x, w, seed = (rng.standard_normal(s) for s in shapes)
    g = Graph()
    leaves = [g.input("x", x.shape, "f64"), g.input("w", w.shape, "f64")]
    y = build(*leaves)
    assert y.shape == seed.shape, what
    found = gradients(y, leaves, g.constant(seed, "f64"))
    values = evaluate(g, {"x": x, "w": w})
    cut = [_grouped(a, name, groups) for a, name in zip((x, w, seed), names, strict=True)]
    made = [values[found[0].id], values[found[1].id], values[y.id]]
    for i, others in enumerate(((1, 2), (0, 2), (0, 1))):
        terms = ",".join(names[o] for o in others)
        path = f"{_paths(len(tables))},{terms}->{names[i]}"
        want = np.einsum(path, *tables, *(cut[o] for o in others), optimize=True)
        np.testing.assert_allclose(
            _grouped(made[i], names[i], groups), want, rtol=1e-12, atol=1e-12, err_msg=what
        )


def _grouped(a: Array, name: str, groups: int) -> Array:
    """The array `a` with its groups as a separate axis, at the position of g in `name`."""
    axis = name.index("g")
    return a.reshape(*a.shape[:axis], groups, a.shape[axis] // groups, *a.shape[axis + 1 :])


@pytest.mark.parametrize("rank, groups", [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)])
def test_conv_transpose(rank: int, groups: int) -> None:
    tried = 0
    inner = "ijk"[:rank], "tuv"[:rank], "opq"[:rank]
    names = f"ngc{inner[0]}", f"gcd{inner[1]}", f"ngd{inner[2]}"
    for strides, dilations, pads, extra in _moves(rank):
        n, kernel = (4, 3, 2)[:rank], (3, 2, 2)[:rank]
        moves = {
            "strides": strides,
            "dilations": dilations,
            "pads": pads,
            "output_padding": extra,
            "groups": groups,
        }
        m = tuple(
            (a - 1) * s + d * (k - 1) + 1 + e - sum(p)
            for a, k, s, d, p, e in zip(n, kernel, strides, dilations, pads, extra, strict=True)
        )
        if min(m) < 1:
            continue
        tables = [
            _meets(a, k, b, s, d, p[0])
            for a, b, k, s, d, p in zip(n, m, kernel, strides, dilations, pads, strict=True)
        ]

        def build(x: Tensor, w: Tensor, moves: dict[str, Any] = moves) -> Tensor:
            return ops.conv_transpose(x, w, **moves)

        shapes = (2, 2 * groups, *n), (2 * groups, 3, *kernel), (2, 3 * groups, *m)
        _check(build, names, groups, tables, shapes, str(moves))
        tried += 1
    assert tried > 15


@pytest.mark.parametrize("rank, groups", [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)])
def test_conv(rank: int, groups: int) -> None:
    """Among them are pads as large as the kernel and larger, strides that do not divide, and pads that differ at the
    two ends."""
    tried = 0
    inner = "opq"[:rank], "tuv"[:rank], "ijk"[:rank]
    names = f"ngc{inner[0]}", f"gdc{inner[1]}", f"ngd{inner[2]}"
    for strides, dilations, pads, _ in _moves(rank):
        m, kernel = (5, 4, 3)[:rank], (3, 2, 2)[:rank]
        room = [a + sum(p) - d * (k - 1) - 1 for a, k, d, p in zip(m, kernel, dilations, pads, strict=True)]
        if min(room) < 0:
            continue
        n = tuple(r // s + 1 for r, s in zip(room, strides, strict=True))
        moves = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups}
        tables = [
            _meets(a, k, b, s, d, p[0])
            for a, b, k, s, d, p in zip(n, m, kernel, strides, dilations, pads, strict=True)
        ]

        def build(x: Tensor, w: Tensor, moves: dict[str, Any] = moves) -> Tensor:
            return ops.conv(x, w, **moves)

        shapes = (2, 2 * groups, *m), (3 * groups, 2, *kernel), (2, 3 * groups, *n)
        _check(build, names, groups, tables, shapes, str(moves))
        tried += 1
    assert tried > 15


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_avg_pool(ceil: bool, counted: bool) -> None:
    """The pool is linear: its gradient is the transpose of its matrix, which unit vectors give."""
    tried = 0
    for n, k, s, a, b in product((3, 5, 6), (1, 2, 4), (1, 2, 3, 5), (0, 1, 3), (0, 1, 3)):
        g = Graph()
        x = g.input("x", (n, 1, n), "f64")
        try:
            y = ops.avg_pool(x, k, strides=s, pads=((a, b),), ceil_mode=ceil, count_include_pad=counted)
        except ShapeError:
            continue
        seed = np.random.default_rng(n).standard_normal(y.shape)
        (d,) = gradients(y, [x], g.constant(seed, "f64"))
        values = evaluate(g, {"x": np.eye(n)[:, None]})
        want = np.einsum("il,nl->ni", values[y.id][:, 0], seed[:, 0])
        np.testing.assert_allclose(
            values[d.id][:, 0], want, rtol=1e-12, atol=1e-12, err_msg=str((n, k, s, a, b))
        )
        tried += 1
    assert tried > 50


def test_what_a_strided_convolution_and_its_gradients_multiply() -> None:
    """Each number of the result goes with a filter of 2 x 3 x 3, and so it does in both gradients."""
    g = Graph("strided")
    x, w = g.input("x", (2, 4, 9, 9)), g.input("w", (6, 2, 3, 3))
    y = ops.conv(x, w, strides=(2, 2), padding=1, groups=2)
    wrong = gradients(ops.sum(y * y), [x, w])
    turned = ops.conv_transpose(y, w, strides=(2, 2), padding=1, groups=2)
    for i, t in enumerate((*wrong, turned)):
        g.output(f"y{i}", t)
    counts = {node.op.name: cost_of(node).multiplications for node in g.nodes if node.op.family == "conv"}
    assert set(counts) == {"conv", "conv_grad_input", "conv_grad_weight", "conv_transpose"}
    assert set(counts.values()) == {2 * 6 * 5 * 5 * 2 * 3 * 3}
