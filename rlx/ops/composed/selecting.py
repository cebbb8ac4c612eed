"""Choosing elements under NumPy's names: take, nonzero and unique with a size, searches in sorted arrays, sets.

Shapes are static, so functions whose number of results depends on values take a `size`, as in JAX: further results are
cut off, and `fill_value` stands for missing ones. Where the values are known, outside a traced function, `size` may be
left out.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from rlx.dtypes import bool_, i32, i64, promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor, apply
from rlx.ir.types import as_items, as_shape, normalize_axis
from rlx.ops import composite, order
from rlx.ops.base import TensorLike, cast_to, floats, tensor, tensors
from rlx.ops.cumulative import cumsum
from rlx.ops.elementwise import binary, predicates, unary
from rlx.ops.elementwise.select import clip, where
from rlx.ops.index.gather import gather, gather_elements, index_tensor, integers
from rlx.ops.movement import strided as movement

Found = tuple[Tensor, ...]
F = TypeVar("F", bound=Callable[..., Any])


def sized(count: Callable[..., int], name: str = "size") -> Callable[[F], F]:
    """Decorates a function with an argument for its result's size; `count` computes it if all arguments are known."""

    def decorated(function: F) -> F:
        def sizes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
            if kwargs.get(name) is not None or not args or any(isinstance(x, Tensor) for x in args):
                return kwargs
            return {**kwargs, name: int(count(*args, **{k: v for k, v in kwargs.items() if k != name}))}

        function.sizes = sizes  # type: ignore[attr-defined]
        return function

    return decorated


def _size(op: str, size: int | None) -> int:
    if size is None:
        raise ShapeError(
            f"{op}: how many elements there are is known only in a run, and shapes are static; give size=, the most "
            "that there can be: the rest is fill_value"
        )
    return as_shape(size, f"{op}: size")[0]


def _numbers(n: int, like: Tensor) -> Tensor:
    return like.graph.constant(np.arange(n, dtype=np.int32))


def _places(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The indices of the nonzero elements of a flat x, i32 of length `size`, and a mask of those that are valid."""
    mask = cast_to(x, bool_)
    rank = cumsum(mask, 0)  # i32, since the mask is bool
    total = movement.index(rank, slice(-1, None)) if x.size else x.graph.constant(np.zeros(1, np.int32))
    at = where(mask, rank - 1, size)  # the scatter drops indices of `size` and above
    positions = apply("scatter", at, _numbers(x.size, x), axis=0, length=size, reduction="none")
    return positions, binary.less(_numbers(size, x), total)


def _count_nonzero(x: Any, *_: Any, **__: Any) -> int:
    return int(np.count_nonzero(np.asarray(x)))


@sized(_count_nonzero)
def nonzero(a: TensorLike, *, size: int | None = None, fill_value: Any = None) -> Found:
    """The indices of the elements that are not zero, in row-major order: for each axis a vector of `size`, i64.

    fill_value: 0 by default; one for each axis, or one for all. Raises: ShapeError without a size where the values are
    not known. Follows jax.numpy.nonzero.
    """
    x = tensor("nonzero", a)
    if not x.ndim:
        raise ShapeError("nonzero: the input is a scalar, which has no axes; expected one axis or more")
    n = _size("nonzero", size)
    fills = as_items(0 if fill_value is None else fill_value, "nonzero: fill_value")
    fills = fills * x.ndim if len(fills) == 1 else fills
    flat, there = _places(movement.reshape(x, (x.size,)), n)
    indices = []
    for axis, fill in zip(range(x.ndim), fills, strict=True):
        step = math.prod(x.shape[axis + 1 :])
        part = flat // step % x.shape[axis] if x.size else flat
        indices.append(cast_to(where(there, part, int(fill)), i64))
    return tuple(indices)


@sized(_count_nonzero)
def argwhere(a: TensorLike, *, size: int | None = None, fill_value: Any = None) -> Tensor:
    """The indices of the elements that are not zero, a row for each: (size, rank), i64. As rlx.nonzero."""
    return composite.stack(nonzero(a, size=_size("argwhere", size), fill_value=fill_value), 1)


@sized(_count_nonzero)
def flatnonzero(a: TensorLike, *, size: int | None = None, fill_value: int | None = None) -> Tensor:
    """The row-major numbers of the elements that are not zero: (size,), i64. As rlx.nonzero."""
    x = tensor("flatnonzero", a)
    return nonzero(movement.reshape(x, (x.size,)), size=_size("flatnonzero", size), fill_value=fill_value)[0]


@sized(lambda condition, *_, **__: _count_nonzero(condition))
def extract(condition: TensorLike, arr: TensorLike, *, size: int | None = None, fill_value: Any = 0) -> Tensor:
    """The elements of x where the condition, of as many elements, is not zero: (size,). Dtype: x's. Gradient: to x."""
    mask, x = tensors("extract", condition, arr)
    return compress(movement.reshape(mask, (mask.size,)), x, size=_size("extract", size), fill_value=fill_value)


@sized(lambda condition, *_, **__: _count_nonzero(condition))
def compress(
    condition: TensorLike, a: TensorLike, axis: int | None = None, *, size: int | None = None, fill_value: Any = 0
) -> Tensor:
    """The slices of x along an axis (None: its elements) where a vector is not zero: `size` of them, then fill_value.

    Dtype: x's. Gradient: to x. Raises: ShapeError for a vector longer than the axis. Follows jax.numpy.compress.
    """
    mask, x = tensors("compress", condition, a)
    if axis is None:
        x, axis = movement.reshape(x, (x.size,)), 0
    axis = normalize_axis(axis, x.ndim, "compress")
    if mask.ndim != 1 or mask.size > x.shape[axis]:
        raise ShapeError(f"compress: a condition of {mask.shape} for axis {axis} of {x.shape}; expected a vector")
    n = _size("compress", size)
    places, there = _places(mask, n)
    kept = movement.reshape(there, [n if i == axis else 1 for i in range(x.ndim)])
    if not x.shape[axis]:
        return movement.expand(x.graph.constant(fill_value, x.dtype), (*x.shape[:axis], n, *x.shape[axis + 1 :]))
    return where(kept, gather(x, places, axis), x.graph.constant(fill_value, x.dtype))


def take(a: TensorLike, indices: TensorLike, axis: int | None = None, mode: str = "raise") -> Tensor:
    """The slices of x at the indices along an axis (None: of its elements in row-major order).

    Shape: x.shape with the axis replaced by indices.shape. mode: "raise" is rlx.gather's rule, which refuses indices
    out of range that are known, and clamps others; "clip" clamps, negative ones to 0; "wrap" counts around. Dtype: x
    any; indices integers. Gradient: each slice's is added where it was read. Follows numpy.take.
    """
    if mode not in ("raise", "clip", "wrap"):
        raise ShapeError(f"take: mode is {mode!r}; expected 'raise', 'clip' or 'wrap'")
    x, at = tensors("take", a, integers(indices))
    if axis is None:
        x, axis = movement.reshape(x, (x.size,)), 0
    n = x.shape[normalize_axis(axis, x.ndim, "take")]
    if mode != "raise" and n:
        at = index_tensor("take", at)
        at = clip(at, 0, n - 1) if mode == "clip" else at % n
    return gather(x, at, axis)


# -- sets


class UniqueAll(NamedTuple):
    """What rlx.unique_all gives, under the array API's names."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What rlx.unique_counts gives, under the array API's names."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What rlx.unique_inverse gives, under the array API's names."""

    values: Tensor
    inverse_indices: Tensor


def _count_unique(x: Any, *_: Any, equal_nan: bool = True, **__: Any) -> int:
    return int(np.unique(np.asarray(x), equal_nan=equal_nan).size)


def _unique(op: str, x: TensorLike, size: int | None, fill_value: Any, equal_nan: bool) -> UniqueAll:
    x = tensor(op, x)
    n, length = x.size, _size(op, size)
    flat = movement.reshape(x, (n,))
    if not n:
        none = x.graph.constant(np.zeros(length, np.int64))
        values = movement.expand(x.graph.constant(0 if fill_value is None else fill_value, x.dtype), (length,))
        return UniqueAll(values, none, movement.reshape(x.graph.constant(np.zeros(0, np.int64)), x.shape), none)
    at = order.argsort(flat)
    ordered = gather(flat, at)
    after, before = movement.index(ordered, slice(1, None)), movement.index(ordered, slice(None, -1))
    other = binary.not_equal(after, before)
    if equal_nan and x.dtype.is_float:
        other = binary.logical_and(other, unary.logical_not(predicates.isnan(before)))  # NaN is sorted last
    first = movement.concat([x.graph.constant(np.ones(1, np.bool_)), other])
    rank = cumsum(first, 0) - 1
    slot = where(first, rank, length)
    where_from = apply("scatter", slot, at, axis=0, length=length, reduction="none")
    there = binary.less(_numbers(length, x), movement.index(rank, slice(-1, None)) + 1)
    where_from = where(there, where_from, movement.index(at, slice(0, 1)))
    values = gather(flat, where_from)
    if fill_value is not None:
        values = where(there, values, x.graph.constant(fill_value, x.dtype))
    inverse = apply("scatter", at, cast_to(rank, i64), axis=0, length=n, reduction="none")
    ones = x.graph.constant(np.ones(n, np.int64))
    counts = apply("scatter", rank, ones, axis=0, length=length, reduction="add")
    return UniqueAll(values, where_from, movement.reshape(inverse, x.shape), counts)


@sized(lambda ar, *_, **options: _count_unique(ar, equal_nan=options.get("equal_nan", True)))
def unique(
    ar: TensorLike, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
    axis: None = None, *, equal_nan: bool = True, size: int | None = None, fill_value: Any = None,
) -> Any:  # fmt: skip
    """The different elements, in order, and what is asked for of them.

    Shape: (size,); with `return_index` the index of each one's first, with `return_inverse` each element's number among
    them, of x's shape, with `return_counts` how many there are of each, all i64.
    fill_value: the least element by default; what stands in for missing ones has a count of 0. NaN is one element
    unless `equal_nan` is False. Gradient: to the first of each. Raises: ShapeError without a size where the values are
    not known, and for an axis, by which whole slices would be compared. Follows jax.numpy.unique.
    """
    if axis is not None:
        raise ShapeError(f"unique: axis is {axis!r}; rlx compares single elements: expected None")
    results = _unique("unique", ar, size, fill_value, equal_nan)
    asked = (True, return_index, return_inverse, return_counts)
    parts = tuple(part for part, wanted in zip(results, asked, strict=True) if wanted)
    return parts if len(parts) > 1 else parts[0]


_distinct = functools.partial(_count_unique, equal_nan=False)


@sized(_distinct)
def unique_all(x: TensorLike, *, size: int | None = None, fill_value: Any = None) -> UniqueAll:
    """The different elements, the index of each one's first, each element's number among them, and their counts.

    As rlx.unique, with each NaN an element of its own. Follows the array API.
    """
    return _unique("unique_all", x, size, fill_value, False)


@sized(_distinct)
def unique_counts(x: TensorLike, *, size: int | None = None, fill_value: Any = None) -> UniqueCounts:
    """The different elements and their counts. As rlx.unique_all."""
    results = _unique("unique_counts", x, size, fill_value, False)
    return UniqueCounts(results.values, results.counts)


@sized(_distinct)
def unique_inverse(x: TensorLike, *, size: int | None = None, fill_value: Any = None) -> UniqueInverse:
    """The different elements and the number of each element among them. As rlx.unique_all."""
    results = _unique("unique_inverse", x, size, fill_value, False)
    return UniqueInverse(results.values, results.inverse_indices)


@sized(_distinct)
def unique_values(x: TensorLike, *, size: int | None = None, fill_value: Any = None) -> Tensor:
    """The different elements, in order. As rlx.unique_all."""
    return _unique("unique_values", x, size, fill_value, False).values


def _flat(op: str, *xs: TensorLike) -> list[Tensor]:
    return [movement.reshape(t, (t.size,)) for t in tensors(op, *xs)]


@sized(lambda a, b, **_: np.union1d(np.asarray(a), np.asarray(b)).size)
def union1d(ar1: TensorLike, ar2: TensorLike, *, size: int | None = None, fill_value: Any = None) -> Tensor:
    """The different elements of two arrays together, in order. Dtype: promoted. As rlx.unique."""
    return _unique("union1d", movement.concat(_flat("union1d", ar1, ar2)), size, fill_value, True).values


@sized(lambda a, b, **_: np.setdiff1d(np.asarray(a), np.asarray(b)).size)
def setdiff1d(ar1: TensorLike, ar2: TensorLike, *, size: int | None = None, fill_value: Any = None) -> Tensor:
    """The different elements of the first array that the second lacks, in order; fill_value is 0 by default."""
    a, b = _flat("setdiff1d", ar1, ar2)
    n = _size("setdiff1d", size)
    values, _, _, counts = _unique("setdiff1d", a, a.size, None, True)
    kept = binary.logical_and(binary.greater(counts, 0), isin(values, b, invert=True))
    return compress(kept, values, size=n, fill_value=0 if fill_value is None else fill_value)


def isin(element: TensorLike, test_elements: TensorLike, *, invert: bool = False) -> Tensor:
    """Whether each element is equal to any of the others; `invert`: to none.

    Shape: the first's. Dtype: promoted; gives bool; NaN is equal to none. Gradient: none.
    """
    x, among = tensors("isin", element, test_elements)
    if not among.size:
        return movement.expand(x.graph.constant(bool(invert)), x.shape)
    ordered = order.sort(movement.reshape(among, (among.size,)))
    at = clip(searchsorted(ordered, x), 0, among.size - 1)
    equal = binary.equal(gather(ordered, at), x)
    return unary.logical_not(equal) if invert else equal


# -- sorted arrays


def _before(a: Tensor, b: Tensor) -> Tensor:
    """Whether a comes before b where NaN is the greatest."""
    less = binary.less(a, b)
    if b.dtype.is_float:
        less = binary.logical_or(less, binary.logical_and(predicates.isnan(b), unary.logical_not(predicates.isnan(a))))
    return less


def searchsorted(a: TensorLike, v: TensorLike, side: str = "left", sorter: TensorLike | None = None) -> Tensor:
    """Where in a sorted vector elements would go to keep it sorted: before equal ones, or behind them ("right").

    Shape: v's. Dtype: any; gives i64. `sorter`: the indices that sort a. NaN is the greatest. Gradient: none.
    log₂(n) rounds of whole arrays. Raises: ShapeError where a is no vector. Follows numpy.searchsorted.
    """
    if side not in ("left", "right"):
        raise ShapeError(f"searchsorted: side is {side!r}; expected 'left' or 'right'")
    x, v = tensors("searchsorted", a, v)
    if x.ndim != 1:
        raise ShapeError(f"searchsorted: a is {x.type}; expected a sorted vector")
    if sorter is not None:
        x = gather(x, sorter)
    n = x.shape[0]
    low = movement.expand(x.graph.constant(0, i32), v.shape)
    if not n:
        return cast_to(low, i64)
    high = movement.expand(x.graph.constant(n, i32), v.shape)
    for _ in range(n.bit_length()):
        middle = (low + high) // 2
        there = gather(x, clip(middle, 0, n - 1))
        ahead = _before(there, v) if side == "left" else unary.logical_not(_before(v, there))
        going = binary.less(low, high)
        low = where(binary.logical_and(going, ahead), middle + 1, low)
        high = where(binary.logical_and(going, unary.logical_not(ahead)), middle, high)
    return cast_to(low, i64)


def digitize(x: TensorLike, bins: TensorLike, right: bool = False) -> Tensor:
    """The number of the bin of each element: i where bins[i - 1] ≤ x < bins[i], with `right` < x ≤; bins may descend.

    Shape: x's. Dtype: any; gives i64. Gradient: none. Follows numpy.digitize.
    """
    x, edges = tensors("digitize", x, bins)
    side = "left" if right else "right"
    up = searchsorted(edges, x, side)
    n = edges.shape[0]
    if n < 2:
        return up
    back = movement.index(edges, slice(None, None, -1))
    down = n - searchsorted(back, x, side)
    return where(binary.greater(movement.index(edges, 0), movement.index(edges, -1)), down, up)


def interp(
    x: TensorLike, xp: TensorLike, fp: TensorLike, left: TensorLike | None = None, right: TensorLike | None = None,
    period: float | None = None,
) -> Tensor:  # fmt: skip
    """The values at x of the broken line through the points (xp, fp), xp ascending.

    left, right: the values before and behind the points, fp's first and last by default; `period` repeats the points.
    Shape: x's. Dtype: promoted of all; integers and bools become f32. Gradient: to x, xp and fp. Raises: ShapeError for
    points that are no vectors of one length. Follows numpy.interp.
    """
    t, xs, ys = floats(*tensors("interp", x, xp, fp))
    t, xs, ys = (cast_to(part, promote(t.dtype, xs.dtype, ys.dtype)) for part in (t, xs, ys))
    if xs.ndim != 1 or xs.shape != ys.shape or not xs.size:
        raise ShapeError(f"interp: points xp {xs.shape} and fp {ys.shape}; expected vectors of one length, not empty")
    if period is not None:
        if not period:
            raise ShapeError("interp: the period is 0; expected another number")
        length = builtins.abs(float(period))
        t, xs = t % length, xs % length
        at = order.argsort(xs)
        xs, ys = gather(xs, at), gather(ys, at)
        ends = slice(-1, None), slice(0, 1)
        xs = movement.concat([movement.index(xs, ends[0]) - length, xs, movement.index(xs, ends[1]) + length])
        ys = movement.concat([movement.index(ys, ends[0]), ys, movement.index(ys, ends[1])])
        left = right = None
    n = xs.shape[0]
    first, last = (movement.index(ys, i) for i in (0, -1))
    result = movement.expand(first, t.shape)
    if n > 1:
        j = clip(searchsorted(xs, t, "right") - 1, 0, n - 2)
        x0, x1, y0, y1 = (gather(line, i) for line in (xs, ys) for i in (j, j + 1))
        width = x1 - x0
        flat = binary.equal(width, 0)
        slope = (y1 - y0) / where(flat, 1.0, width)
        result = where(flat, y0, slope * (t - x0) + y0)
    result = where(binary.less(t, movement.index(xs, 0)), first if left is None else left, result)
    result = where(binary.greater(t, movement.index(xs, -1)), last if right is None else right, result)
    result = where(binary.equal(t, movement.index(xs, -1)), last, result)
    return where(predicates.isnan(t), t, result)


def partition(a: TensorLike, kth: Any, axis: int = -1) -> Tensor:
    """x sorted along an axis: a partition at every kth, as rlx.sort. Dtype: any."""
    return order.sort(tensor("partition", a), axis)


def argpartition(a: TensorLike, kth: Any, axis: int = -1) -> Tensor:
    """The indices that sort x along an axis: a partition at every kth, as rlx.argsort. Dtype: any; gives i64."""
    return order.argsort(tensor("argpartition", a), axis)


def lexsort(keys: Any, axis: int = -1) -> Tensor:
    """The indices that sort by the last key, equal ones by the one before, and so on. Dtype: any; gives i64."""
    parts = [tensor("lexsort", k) for k in (keys if isinstance(keys, tuple | list) else composite.split(
        tensor("lexsort", keys), tensor("lexsort", keys).shape[0]))]  # fmt: skip
    if not isinstance(keys, tuple | list):
        parts = [composite.squeeze(p, 0) for p in parts]
    if not parts:
        raise ShapeError("lexsort: no keys; expected one or more")
    axis = normalize_axis(axis, parts[0].ndim, "lexsort")
    result = order.argsort(parts[0], axis)
    for key in parts[1:]:
        result = gather_elements(result, order.argsort(gather_elements(key, result, axis), axis), axis)
    return result


# -- choices


def select(condlist: Sequence[TensorLike], choicelist: Sequence[TensorLike], default: TensorLike = 0) -> Tensor:
    """Each element from the choice whose condition is the first that holds there, or the default.

    Shape: broadcast of all. Dtype: promoted. Gradient: to what was chosen. Follows numpy.select.
    """
    if len(condlist) != len(choicelist) or not condlist:
        raise ShapeError(f"select: {len(condlist)} conditions, {len(choicelist)} choices; expected as many, and some")
    *choices, result = tensors("select", *choicelist, default)
    for condition, choice in reversed(list(zip(condlist, choices, strict=True))):
        result = where(condition, choice, result)
    return result


def piecewise(
    x: TensorLike, condlist: Sequence[TensorLike], funclist: Sequence[Any], *args: Any, **kw: Any
) -> Tensor:
    """Each element by the function, or the number, of the last condition that holds there.

    Where none holds, by one more function, or 0. Every function is given the whole x, and args and kw. Shape: x's,
    which conditions have. Dtype: x's. Gradient: to what was chosen. Raises: ShapeError for another number of functions.
    Follows jax.numpy.piecewise.
    """
    x = tensor("piecewise", x)
    if len(funclist) not in (len(condlist), len(condlist) + 1) or not condlist:
        raise ShapeError(
            f"piecewise: {len(condlist)} conditions and {len(funclist)} functions; expected as many, or one more, "
            "which serves where no condition holds"
        )
    values = list(tensors("piecewise", x, *(f(x, *args, **kw) if callable(f) else f for f in funclist)))[1:]
    default = values.pop() if len(values) > len(condlist) else 0
    return cast_to(select([*condlist][::-1], values[::-1], default), x.dtype)


def choose(a: TensorLike, choices: Sequence[TensorLike], mode: str = "raise") -> Tensor:
    """Each element from the choice whose number it is. mode: "raise" and "clip" clamp, "wrap" counts around.

    Shape: broadcast of all. Dtype: promoted. Gradient: to what was chosen. Follows numpy.choose.
    """
    if mode not in ("raise", "clip", "wrap"):
        raise ShapeError(f"choose: mode is {mode!r}; expected 'raise', 'clip' or 'wrap'")
    at, *options = tensors("choose", integers(a), *choices)
    at = index_tensor("choose", at)
    at = at % len(options) if mode == "wrap" else clip(at, 0, len(options) - 1)
    chosen = options[0]
    for i, t in enumerate(options[1:], 1):
        chosen = where(binary.equal(at, i), t, chosen)
    return movement.expand(chosen, np.broadcast_shapes(at.shape, *(t.shape for t in options)))


def unravel_index(indices: TensorLike, shape: int | Sequence[int]) -> Found:
    """The index along each axis of a shape of elements that are named by their row-major numbers. Dtype: i64."""
    dims = as_shape(shape, "unravel_index: shape")
    (at,) = tensors("unravel_index", integers(indices))
    if not at.dtype.is_int:
        raise DTypeError(f"unravel_index: the indices are {at.dtype}; expected integers")
    flat = cast_to(at, i64)
    return tuple(flat // math.prod(dims[i + 1 :]) % max(n, 1) for i, n in enumerate(dims))


__all__ = [
    "argpartition", "argwhere", "choose", "compress", "digitize", "extract", "flatnonzero", "interp", "isin", "lexsort",
    "nonzero", "partition", "piecewise", "searchsorted", "select", "setdiff1d", "take", "union1d", "unique",
    "unique_all", "unique_counts", "unique_inverse", "unique_values", "unravel_index",
]  # fmt: skip
