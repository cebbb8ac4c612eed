"""Reductions, ArgMax, TopK, running sums, softmax and its relatives."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32
from rlx.ir import Tensor
from rlx.onnx.ops.arithmetic import (
    as_f64,
    as_integer,
    divide_u64,
    ordered,
    quotient,
    unordered,
)
from rlx.onnx.ops.movement import axes_given, axis_of
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.elements import U64, ElementType, carrier
from rlx.onnx.reader.table import op

Axes = tuple[int, ...]
_I64 = np.dtype(np.int64)


def _wide(x: Tensor) -> Tensor:
    """f16 and bf16 in f32, so that a composite rounds once."""
    return o.cast(x, f32) if x.dtype.is_half else x


def _sum_square(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    wide = _wide(x)
    return o.sum(o.mul(wide, wide), axes, keep)


_REDUCE: dict[str, tuple[int, Callable[[Tensor, Axes, bool], Tensor]]] = {
    "ReduceSum": (13, o.sum),
    "ReduceMean": (18, o.mean),
    "ReduceProd": (18, o.prod),
    "ReduceL1": (18, lambda x, axes, keep: o.sum(o.abs(_wide(x)), axes, keep)),
    "ReduceL2": (18, lambda x, axes, keep: o.sqrt(_sum_square(x, axes, keep))),
    "ReduceSumSquare": (18, _sum_square),
    "ReduceLogSum": (18, lambda x, axes, keep: o.log(o.sum(_wide(x), axes, keep))),
    "ReduceLogSumExp": (18, lambda x, axes, keep: o.logsumexp(x, axes, keep)),
}  # fmt: skip
_REAL = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")  # results of integers are not integers


def _axes(c: Call, since: int) -> Axes | None:
    """The axes to reduce; None where the operator is the identity."""
    x = c.x()
    axes = axes_given(c, 1, since, x.ndim)
    if axes:
        return tuple(sorted(axes))
    return None if c.int("noop_with_empty_axes", 0) else tuple(range(x.ndim))


def _reduction(since: int, function: Callable[[Tensor, Axes, bool], Tensor]) -> Callable[[Call], Result]:
    """Sums and products of integers wrap; roots and logarithms of them are computed in f64 and rounded toward 0."""

    def build(c: Call) -> Result:
        listed = _axes(c, since)
        axes, keep, x = () if listed is None else listed, bool(c.int("keepdims", 1)), c.x()
        if x.dtype.is_float:
            return function(x, axes, keep)
        if c.kind in _REAL:
            return as_integer(function(as_f64(x, c.dtype()), axes, keep), c.dtype())
        if c.kind == "ReduceMean":
            return _integer_mean(c, axes, keep)
        return o.sum(x, axes, keep) if c.kind == "ReduceL1" and c.dtype() == U64 else function(x, axes, keep)

    return build


def _integer_mean(c: Call, axes: Axes, keep: bool) -> Tensor:
    """The exact mean rounded toward 0. 64-bit integers are divided first, so that no sum overflows."""
    n = math.prod(c.x().shape[a] for a in axes)
    if not n:
        raise c.bad(f"axes {list(axes)} of {c.x().shape} hold no integers, and the mean of none is undefined")
    x = o.cast(c.x(), "i64")
    if c.dtype().itemsize < 8:
        return quotient(o.sum(x, axes, keep), c.tensor(n, _I64))
    unsigned = c.dtype() == U64
    whole, rest = divide_u64(x, c.tensor(n, _I64)) if unsigned else (o.floor_divide(x, n), o.mod(x, n))
    left = o.sum(rest, axes, keep)
    floor = o.add(o.sum(whole, axes, keep), o.floor_divide(left, n))
    if unsigned:
        return floor
    up = o.logical_and(o.less(floor, 0), o.not_equal(o.mod(left, n), 0))
    return o.add(floor, o.cast(up, "i64"))


for _name, (_since, _function) in _REDUCE.items():
    op(_name)(_reduction(_since, _function))


def _lowest(dtype: ElementType, largest: bool) -> int | float | bool:
    """The greatest (or least) element of an empty set, as ONNX defines it: the other end of the type's range."""
    if dtype.kind == "b":
        return largest
    if dtype.kind not in "iu":
        return math.inf if largest else -math.inf
    info = np.iinfo(dtype)
    return int(info.max if largest else info.min)


def _extreme(name: str) -> Callable[[Call], Result]:
    def build(c: Call) -> Result:
        axes = _axes(c, 18)
        if axes is None:
            return c.x()
        x, keep = ordered(c, 0), bool(c.int("keepdims", 1))
        if x.size == 0 and any(x.shape[a] == 0 for a in axes):
            shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keep or a not in axes]
            fill = np.array(_lowest(c.dtype(), name == "ReduceMin")).astype(carrier(c.dtype()).np)
            return o.expand(c.tensor(fill), shape)
        narrow = o.cast(x, "i32") if x.dtype.kind == "b" else x
        extreme = (o.max if name == "ReduceMax" else o.min)(narrow, axes, keep)
        return unordered(extreme, c.dtype())

    return build


op("ReduceMax")(_extreme("ReduceMax"))
op("ReduceMin")(_extreme("ReduceMin"))


@op("ArgMax", "ArgMin")
def arg_extreme(c: Call) -> Result:
    x = ordered(c, 0)
    axis = axis_of(c, c.int("axis", 0), x.ndim)
    function = o.argmax if c.kind == "ArgMax" else o.argmin
    return function(x, axis, bool(c.int("keepdims", 1)), bool(c.int("select_last_index", 0)))


@op("TopK", until=10)
def top_k_attribute(c: Call) -> tuple[Result, ...]:
    return _top_k(c, c.int("k"))


@op("TopK", since=10)
def top_k(c: Call) -> tuple[Result, ...]:
    return _top_k(c, c.known_int(1))


def _top_k(c: Call, k: int) -> tuple[Result, ...]:
    x = ordered(c, 0)
    axis = axis_of(c, c.int("axis", -1), x.ndim)
    if not 0 <= k <= x.shape[axis]:
        raise c.bad(f"k is {k}; expected 0 to {x.shape[axis]}, the length of axis {axis}")
    values, indices = o.top_k(x, k, axis, bool(c.int("largest", 1)), bool(c.int("sorted", 1)))
    return unordered(values, c.dtype()), indices


@op("CumSum", "CumProd")
def running(c: Call) -> Result:
    axis = axis_of(c, c.known_int(1), c.x().ndim)
    function = o.cumsum if c.kind == "CumSum" else o.cumprod
    return function(c.x(), axis, exclusive=bool(c.int("exclusive", 0)), reverse=bool(c.int("reverse", 0)))


def _flattened(c: Call, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Before opset 13: over all axes from `axis` on, as one."""
    x, axis = c.x(), c.int("axis", 1)
    axis = axis_of(c, axis, x.ndim) if axis != x.ndim else axis
    rows = math.prod(x.shape[:axis])
    return o.reshape(function(o.reshape(x, (rows, math.prod(x.shape[axis:])))), x.shape)


def _soft(function: Callable[[Tensor, int], Tensor]) -> Callable[[Call], Result]:
    def build(c: Call) -> Result:
        if c.version < 13:
            return _flattened(c, lambda t: function(t, 1))
        return function(c.x(), axis_of(c, c.int("axis", -1), c.x().ndim))

    return build


def _hardmax(x: Tensor, axis: int) -> Tensor:
    return o.one_hot(o.argmax(x, axis), x.shape[axis], axis, dtype=x.dtype)


op("Softmax")(_soft(o.softmax))
op("LogSoftmax")(_soft(o.log_softmax))
op("Hardmax")(_soft(_hardmax))


@op("LpNormalization")
def lp_normalization(c: Call) -> Result:
    """x divided by its norm along an axis; 0 where the norm is 0."""
    x, p = c.x(), c.int("p", 2)
    axis = axis_of(c, c.int("axis", -1), x.ndim)
    wide = _wide(x)
    if p not in (1, 2):
        raise c.bad(f"p is {p}; expected 1 or 2")
    norm = o.sum(o.abs(wide), axis, True) if p == 1 else o.sqrt(o.sum(o.mul(wide, wide), axis, True))
    return o.where(o.equal(norm, 0), 0, o.div(wide, norm))
