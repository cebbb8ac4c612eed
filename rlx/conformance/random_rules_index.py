"""Rules of random graphs: select, scan and index; indices are often far out of range."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance.random_rules import MAX_ELEMENTS, Made, is_number, rule
from rlx.dtypes import bool_, f32, i8, i32, i64
from rlx.ir import Tensor

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder


def _indices(b: Builder, shape: tuple[int, ...], n: int) -> Tensor:
    """Indices that are known only in the run: near the range, or anywhere."""
    dtype = b.choose((i32, i64))
    name = f"indices{len(b.made.feeds)}"
    value: Any = b.rng.integers(-n - 2, n + 2, shape)
    if b.chance(0.3):
        info = np.iinfo(dtype.np)
        far = np.array([info.min, info.max, info.min + 1, -(2**31), 2**31 - 1, 0, -1, n, -n - 1], np.int64)
        value = np.where(b.rng.random(shape) < 0.5, far[b.rng.integers(0, far.size, shape)], value)
    b.made.feeds[name] = np.asarray(value).astype(dtype.np)
    return b.graph.input(name, shape, dtype)


def _axis(b: Builder, x: Tensor) -> int:
    return b.below(x.ndim)


def _replaced(x: Tensor, axis: int, m: int) -> tuple[int, ...]:
    return (*x.shape[:axis], m, *x.shape[axis + 1 :])


@rule("arg", rough=True)
def _arg(b: Builder) -> Made:
    x = b.ranked(1)
    find = b.choose((ops.argmax, ops.argmin))
    return (find(x, _axis(b, x), keepdims=b.chance(0.5), select_last_index=b.chance(0.3)),)


@rule("sort", rough=True)
def _sort(b: Builder) -> Made:
    x = b.ranked(1)
    order = b.choose((ops.sort, ops.sort, ops.argsort))
    return (order(x, _axis(b, x), descending=b.chance(0.5)),)


@rule("top_k", rough=True)
def _top_k(b: Builder) -> Made:
    x = b.ranked(1)
    axis = _axis(b, x)
    return ops.top_k(x, 1 + b.below(x.shape[axis]), axis, largest=b.chance(0.5))


@rule("scan", rough=True)
def _scan(b: Builder) -> Made:
    x = b.ranked(1, is_number)
    scan = b.choose((ops.cumsum, ops.cumsum, ops.cumprod))
    return (scan(x, _axis(b, x), exclusive=b.chance(0.5), reverse=b.chance(0.5)),)


@rule("log_softmax")
def _log_softmax(b: Builder) -> Made:
    x = b.ranked(1, lambda t: t.dtype.is_float)
    return (ops.log_softmax(x, _axis(b, x)),)


@rule("logsumexp")
def _logsumexp(b: Builder) -> Made:
    x = b.ranked(1, lambda t: t.dtype.is_float)
    axes = [i for i in range(x.ndim) if b.chance(0.6)]
    return (ops.logsumexp(x, axes, keepdims=b.chance(0.5)),)


@rule("gather_wild")
def _gather_wild(b: Builder) -> Made:
    x = b.ranked(1)
    axis, shape = _axis(b, x), b.shape(b.below(3))
    if x.size * max(1, math.prod(shape)) > MAX_ELEMENTS:
        return (x,)
    return (ops.gather(x, _indices(b, shape, x.shape[axis]), axis),)


@rule("gather_elements")
def _gather_elements(b: Builder) -> Made:
    x = b.ranked(1)
    axis, m = _axis(b, x), 1 + b.below(5)
    return (ops.gather_elements(x, _indices(b, _replaced(x, axis, m), x.shape[axis]), axis),)


def _reduction(b: Builder, x: Tensor) -> str:
    found: str = b.choose(("none",) if x.dtype == bool_ else ("none", "none", "add", "mul", "min", "max"))
    return found


@rule("scatter", rough=True)
def _scatter(b: Builder) -> Made:
    x = b.ranked(1)
    axis, m = _axis(b, x), b.below(6)
    indices = _indices(b, (m,), x.shape[axis])
    updates = b.leaf(_replaced(x, axis, m), x.dtype)
    if b.chance(0.3) and is_number(x):
        return (ops.segment_sum(updates, indices, x.shape[axis], axis),)
    return (ops.scatter(x, indices, updates, axis, _reduction(b, x)),)


@rule("scatter_elements", rough=True)
def _scatter_elements(b: Builder) -> Made:
    x = b.ranked(1)
    axis, m = _axis(b, x), 1 + b.below(5)
    shape = _replaced(x, axis, m)
    # x as made by another node, so that it may be overwritten.
    into = ops.concat([x[:1], x[1:]], 0) if b.chance(0.5) else x
    updates = b.leaf(shape, x.dtype)
    return (ops.scatter_elements(into, _indices(b, shape, x.shape[axis]), updates, axis, _reduction(b, x)),)


@rule("nd", rough=True)
def _nd(b: Builder) -> Made:
    x = b.ranked(1)
    q, m = 1 + b.below(x.ndim), 1 + b.below(4)
    indices = _indices(b, (m, q), min(x.shape[:q]))
    if b.chance(0.5) and x.size * m <= MAX_ELEMENTS:
        return (ops.gather_nd(x, indices),)
    return (ops.scatter_nd(x, indices, b.leaf((m, *x.shape[q:]), x.dtype), _reduction(b, x)),)


@rule("dynamic")
def _dynamic(b: Builder) -> Made:
    x = b.ranked(1)
    sizes = tuple(1 + b.below(n) for n in x.shape)
    starts = _indices(b, (x.ndim,), max(x.shape))
    if b.chance(0.5):
        return (ops.dynamic_slice(x, starts, sizes),)
    into = ops.concat([x[:1], x[1:]], 0) if b.chance(0.5) else x
    return (ops.dynamic_update_slice(into, b.leaf(sizes, x.dtype), starts),)


@rule("one_hot", rough=True)
def _one_hot(b: Builder) -> Made:
    depth, shape = 1 + b.below(6), b.shape(b.below(3))
    if math.prod(shape) * depth > MAX_ELEMENTS:
        shape = shape[:1]
    axis, dtype = b.below(len(shape) + 1), b.choose((f32, i32, i8, bool_))
    return (ops.one_hot(_indices(b, shape, depth), depth, axis, dtype=dtype),)
