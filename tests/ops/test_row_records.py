"""Row programs: each record beside an outside formula (SciPy, or NumPy in long doubles), values and gradients.

Reference, decomposition and the CPU's kernel all follow from one record, so that a fault in it would be alike in all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.special

import rlx
from rlx.conformance.oracle import evaluate
from rlx.dtypes import as_dtype, f64
from rlx.ir import REGISTRY, Graph, Tensor, node_of
from rlx.ir.graph import apply_multi
from rlx.ops.row_programs import decompose_of

Array = npt.NDArray[Any]
EPS = 1e-3
ROW_OPS = sorted(name for name, op in REGISTRY.items() if op.rows is not None)


def _norm(x: Array, *weights: Array, axes: tuple[int, ...] = (-1,), centre: bool = True) -> Array:
    x = x.astype(np.longdouble)
    if centre:
        x = x - x.mean(axes, keepdims=True)
    y = x / np.sqrt((x * x).mean(axes, keepdims=True) + EPS)
    for combine, weight in zip((np.multiply, np.add), weights, strict=False):
        y = combine(y, weight)
    return y


def _channels(x: Array, gamma: Array, beta: Array, groups: int = 0) -> Array:
    if not groups:
        return np.moveaxis(_norm(np.moveaxis(x, 1, -1), gamma, beta), -1, 1)
    y = _norm(x.reshape(x.shape[0], groups, -1)).reshape(x.shape)
    return y * gamma[:, None] + beta[:, None]


def _added(x: Array, residual: Array, *weights: Array, centre: bool) -> list[Array]:
    return [x + residual, _norm(x + residual, *weights, centre=centre)]


def _softmax_grad(d: Array, y: Array) -> Array:
    """The product with softmax's Jacobian."""
    rows = np.moveaxis(y, 1, -1)
    jacobian = rows[..., :, None] * np.eye(y.shape[1]) - rows[..., :, None] * rows[..., None, :]
    return np.moveaxis(np.einsum("...i,...ij->...j", np.moveaxis(d, 1, -1), jacobian), -1, 1)


def _entropy(x: Array, labels: Array) -> Array:
    inside = np.clip(labels, 0, x.shape[-1] - 1)
    losses = -np.take_along_axis(scipy.special.log_softmax(x, -1), inside[..., None], -1)[..., 0]
    return np.where(labels == 2, 0.0, losses)


def _entropy_grad(d: Array, x: Array, labels: Array) -> Array:
    hot = np.eye(x.shape[-1])[np.clip(labels, 0, x.shape[-1] - 1)]
    return np.where((labels == 2)[..., None], 0.0, (scipy.special.softmax(x, -1) - hot) * d[..., None])


def _norm_grad(d: Array, x: Array, gamma: Array, centre: bool = True) -> Array:
    """The product with the norm's Jacobian, of rows along the last axis; gamma is d's factor."""
    n = x.shape[-1]
    centring = np.eye(n) - (1 / n if centre else 0)
    c = x @ centring
    root = np.sqrt((c * c).mean(-1) + EPS)[..., None, None]
    y = _norm(x, centre=centre)
    jacobian = (centring - y[..., :, None] * y[..., None, :] / n) / root
    return np.einsum("...i,...ij->...j", d * gamma, jacobian)


def _norm_grads(d: Array, x: Array, gamma: Array, centre: bool = True) -> list[Array]:
    sums = [(d * _norm(x, centre=centre)).sum((0, 1)), d.sum((0, 1))]
    return [_norm_grad(d, x, gamma, centre), *(sums if centre else sums[:1])]


def _group_grads(d: Array, x: Array, gamma: Array) -> list[Array]:
    flat = (x.shape[0], 2, -1)
    dx = _norm_grad((d * gamma[:, None]).reshape(flat), x.reshape(flat), np.ones(1)).reshape(x.shape)
    y = _norm(x.reshape(flat)).reshape(x.shape)
    return [dx, (d * y).sum((0, 2)), d.sum((0, 2))]


RNG = np.random.default_rng(5)
X, Y = RNG.standard_normal((2, 3, 6, 5))
G, B = RNG.standard_normal((2, 6)), RNG.standard_normal((2, 5))
LABELS = np.array([[0, 4, 2, 9, -3, 1]] * 3, np.int32)  # one is ignored, two are none of the classes
Judge = Callable[..., Any]
# The inputs of each op, its attributes and its formula.
JUDGES: dict[str, tuple[list[Array], dict[str, Any], Judge]] = {
    "softmax": ([X], {"axis": 1}, lambda x: scipy.special.softmax(x, 1)),
    "log_softmax": ([X], {"axis": 1}, lambda x: scipy.special.log_softmax(x, 1)),
    "logsumexp": ([X], {"axis": 1}, lambda x: scipy.special.logsumexp(x, 1, keepdims=True)),
    "softmax_grad": ([X, scipy.special.softmax(Y, 1)], {"axis": 1}, _softmax_grad),
    "layer_norm": ([X, B[0], B[1]], {"eps": EPS}, _norm),
    "rms_norm": ([X, B[0], B[1]], {"eps": EPS}, lambda *a: _norm(*a, centre=False)),
    "add_layer_norm": ([X, Y, B[0], B[1]], {"eps": EPS, "keep_sum": True}, lambda *a: _added(*a, centre=True)),
    "add_rms_norm": ([X, Y, B[0]], {"eps": EPS, "keep_sum": True}, lambda *a: _added(*a, centre=False)),
    "group_norm": ([X, G[0], G[1]], {"eps": EPS, "groups": 2}, lambda *a: _channels(*a, groups=2)),
    "layer_norm_channels": ([X, G[0], G[1]], {"eps": EPS}, _channels),
    "layer_norm_grad": ([Y, X, B[0]], {"eps": EPS, "beta": f64}, _norm_grads),
    "rms_norm_grad": ([Y, X, B[0]], {"eps": EPS, "beta": None}, lambda *a: _norm_grads(*a, centre=False)),
    "group_norm_grad": ([Y, X, G[0]], {"eps": EPS, "groups": 2, "beta": f64}, _group_grads),
    "cross_entropy": ([X, LABELS], {"ignore_index": 2}, _entropy),
    "cross_entropy_grad": ([X[:, :, 0], Y, LABELS], {"ignore_index": 2}, _entropy_grad),
}


def _outputs(judge: Judge, arrays: list[Array]) -> list[Array]:
    made = judge(*arrays)
    return [np.asarray(a) for a in (made if isinstance(made, list) else [made])]


def test_every_row_program_has_an_outside_judge() -> None:
    assert set(ROW_OPS) == set(JUDGES)


@pytest.mark.parametrize("op", ROW_OPS)
def test_a_record_is_the_outside_formula(op: str) -> None:
    arrays, attrs, judge = JUDGES[op]
    wanted = _outputs(judge, arrays)
    record = REGISTRY[op]
    assert record.rows is not None
    made = record.reference(*arrays, **attrs)
    graph = Graph("decomposed")
    ins = [graph.input(f"x{i}", a.shape, as_dtype(a.dtype)) for i, a in enumerate(arrays)]
    parts = decompose_of(record.rows)(ins, attrs)
    values = evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)})
    for got, part, want in zip(made if isinstance(made, tuple) else (made,), parts, wanted, strict=True):
        np.testing.assert_allclose(got, want, 1e-11, 1e-13)
        np.testing.assert_allclose(values[part.id], want, 1e-11, 1e-13)


@pytest.mark.parametrize("op", ROW_OPS)
def test_a_gradient_is_the_slope_of_the_outside_formula(op: str) -> None:
    """In a random direction of all inputs, of a random combination of all outputs."""
    arrays, attrs, judge = JUDGES[op]
    rng = np.random.default_rng(7)
    ways = [rng.standard_normal(a.shape) if a.dtype.kind == "f" else None for a in arrays]
    graph = Graph("gradient")
    ins = [graph.input(f"x{i}", a.shape, as_dtype(a.dtype)) for i, a in enumerate(arrays)]
    outs = apply_multi(op, *ins, **attrs)
    weights = [rng.standard_normal(t.shape) for t in outs]
    terms: list[Tensor] = [rlx.sum(t * w) for t, w in zip(outs, weights, strict=True)]
    total = functools.reduce(lambda a, b: a + b, terms)
    moving = [i for i, way in enumerate(ways) if way is not None]
    slopes = rlx.gradients(total, [ins[i] for i in moving])
    values = evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)})
    got = math.fsum(float(np.sum(values[d.id] * ways[i])) for d, i in zip(slopes, moving, strict=True))

    def along(step: float) -> Any:
        moved = [a if way is None else a + step * way for a, way in zip(arrays, ways, strict=True)]
        return sum(np.sum(o * w) for o, w in zip(_outputs(judge, moved), weights, strict=True))

    h = 1e-3  # an error of the order of h⁴
    want = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
    assert got == pytest.approx(float(want), rel=1e-7, abs=1e-8)


def test_rows_without_elements() -> None:
    softmax, total = REGISTRY["softmax"], REGISTRY["logsumexp"]
    nothing = np.zeros((2, 0))
    assert softmax.reference(nothing, axis=1).shape == (2, 0)
    assert (total.reference(nothing, axis=1) == -np.inf).all()
    graph = Graph("empty")
    x = graph.input("x", (2, 0), f64)
    (made,) = decompose_of(total.rows)([x], {"axis": 1}) if total.rows else ()
    assert (evaluate(graph, {"x": nothing})[made.id] == np.full((2, 1), -np.inf)).all()
    assert node_of(softmax, [x.type], {"axis": 1}).outputs[0].shape == (2, 0)
