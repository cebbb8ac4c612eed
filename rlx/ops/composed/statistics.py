"""Statistics, differences, comparisons of whole arrays and convolution under NumPy's names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DTypeLike, as_dtype, f32, f64, i32, i64, promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor, apply
from rlx.ir.types import as_shape, normalize_axes, normalize_axis
from rlx.ops import composite, cumulative, order, reduce
from rlx.ops.base import TensorLike, cast_to, flag, floating, floats, tensor, tensors
from rlx.ops.composed.selecting import searchsorted, sized
from rlx.ops.conv.convolution import conv
from rlx.ops.elementwise import binary, predicates, unary
from rlx.ops.elementwise.floats import isclose
from rlx.ops.elementwise.select import clip, where
from rlx.ops.index.gather import gather, gather_elements, index_tensor
from rlx.ops.matmul import matmul
from rlx.ops.movement import arrange
from rlx.ops.movement import strided as movement
from rlx.ops.reduce import Axis, kept_shape, working_float

# -- comparisons of whole arrays


def allclose(
    a: TensorLike, b: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether all elements are close, as rlx.isclose has it: a scalar. Dtype: any; gives bool."""
    x, y = tensors("allclose", a, b)
    return composite.all(isclose(x, y, rtol, atol, equal_nan))


def array_equal(a1: TensorLike, a2: TensorLike, equal_nan: bool = False) -> Tensor:
    """Whether two arrays have one shape and equal elements: a scalar. Dtype: any; gives bool."""
    a, b = tensors("array_equal", a1, a2)
    if a.shape != b.shape:
        return a.graph.constant(False)
    same = binary.equal(a, b)
    if equal_nan and a.dtype.is_float and b.dtype.is_float:
        same = binary.logical_or(same, binary.logical_and(predicates.isnan(a), predicates.isnan(b)))
    return composite.all(same)


def array_equiv(a1: TensorLike, a2: TensorLike) -> Tensor:
    """Whether two arrays broadcast to one shape and have equal elements there: a scalar. Dtype: any; gives bool."""
    a, b = tensors("array_equiv", a1, a2)
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return a.graph.constant(False)
    return composite.all(binary.equal(a, b))


# -- differences and running sums


def diff(
    a: TensorLike, n: int = 1, axis: int = -1, prepend: TensorLike | None = None, append: TensorLike | None = None
) -> Tensor:
    """The differences of neighbours along an axis, n times: the axis gets n shorter.

    prepend, append: what is joined to x first, a scalar too. Dtype: x's; of bools whether they differ. Gradient: to
    all. Raises: ShapeError for n < 0. Follows numpy.diff.
    """
    x = tensor("diff", a)
    axis = normalize_axis(axis, x.ndim, "diff")
    if n < 0:
        raise ShapeError(f"diff: n is {n}; expected 0 or more")
    if not n:
        return x
    ends: list[Tensor] = []
    for end in (prepend, append):
        if end is not None:
            t = tensors("diff", x, end)[1]
            ends.append(t if t.ndim else movement.expand(t, kept_shape(x.shape, (axis,))))
    if ends:
        x = movement.concat([*ends[: prepend is not None], x, *ends[prepend is not None :]], axis)
    head = (slice(None),) * axis
    for _ in range(n):
        later, sooner = movement.index(x, (*head, slice(1, None))), movement.index(x, (*head, slice(None, -1)))
        x = binary.not_equal(later, sooner) if x.dtype.kind == "b" else later - sooner
    return x


def ediff1d(ary: TensorLike, to_end: TensorLike | None = None, to_begin: TensorLike | None = None) -> Tensor:
    """The differences of neighbours in row-major order, with numbers put in front and behind. Dtype: x's."""
    x = tensor("ediff1d", ary)
    steps = diff(movement.reshape(x, (x.size,)))
    parts = [steps if p is steps else tensors("ediff1d", x, p)[1] for p in (to_begin, steps, to_end) if p is not None]
    return cast_to(movement.concat([movement.reshape(p, (p.size,)) for p in parts]), x.dtype)


def _running(
    op: str, call: Any, identity: int, x: TensorLike, axis: int | None, dtype: DTypeLike | None, include: bool
) -> Tensor:
    x = tensor(op, x)
    x = x if dtype is None else cast_to(x, as_dtype(dtype))
    if axis is None and x.ndim != 1:
        raise ShapeError(f"{op}: axis is None for shape {x.shape}; give the axis, or flatten the tensor first")
    axis = normalize_axis(0 if axis is None else axis, x.ndim, op)
    total = call(x, axis)
    if include:
        first = movement.expand(total.graph.constant(identity, total.dtype), kept_shape(x.shape, (axis,)))
        total = movement.concat([first, total], axis)
    return total if dtype is None else cast_to(total, as_dtype(dtype))


def cumulative_sum(
    x: TensorLike, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Tensor:
    """The running sum along an axis, as rlx.cumsum; with `include_initial` it begins with 0 and is one longer."""
    return _running("cumulative_sum", cumulative.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: TensorLike, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Tensor:
    """The running product along an axis; with `include_initial` it begins with 1. Otherwise rlx.cumprod."""
    return _running("cumulative_prod", cumulative.cumprod, 1, x, axis, dtype, include_initial)


def trapezoid(y: TensorLike, x: TensorLike | None = None, dx: TensorLike = 1.0, axis: int = -1) -> Tensor:
    """The integral of y along an axis by the trapezoidal rule, at points x or at distances dx.

    Dtype: floats keep theirs; integers and bools become f32. Gradient: to all. Follows numpy.trapezoid.
    """
    t = floating(tensor("trapezoid", y))
    axis = normalize_axis(axis, t.ndim, "trapezoid")
    head = (slice(None),) * axis
    width: Any = tensors("trapezoid", t, dx)[1]
    if x is not None:
        places = floating(tensors("trapezoid", t, x)[1])
        width = diff(places, axis=axis if places.ndim == t.ndim else -1)
        if places.ndim == 1:
            width = movement.reshape(width, [width.size if i == axis else 1 for i in range(t.ndim)])
    pairs = movement.index(t, (*head, slice(1, None))) + movement.index(t, (*head, slice(None, -1)))
    return reduce.sum(width * pairs / 2.0, axis)


# -- counts


def count_nonzero(a: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements over the axes are not zero. Dtype: any; gives i64. Gradient: none."""
    return cast_to(reduce.sum(unary.logical_not(unary.logical_not(tensor("count_nonzero", a))), axis, keepdims), i64)


def _bins(x: Any, weights: Any = None, minlength: int = 0, **_: Any) -> int:
    array = np.asarray(x)
    if array.size and array.dtype.kind in "iu" and array.min() < 0:
        raise ShapeError(f"bincount: the least number is {array.min()}; expected none below 0")
    return max(int(array.max()) + 1 if array.size else 0, int(minlength))


@sized(_bins, "length")
def bincount(
    x: TensorLike, weights: TensorLike | None = None, minlength: int = 0, *, length: int | None = None
) -> Tensor:
    """How often each of 0, 1, … occurs in a vector of integers, or the sum of the weights there.

    Shape: (length,); outside a traced function up to the greatest. Numbers beyond are dropped, those below 0 are
    refused where they are known, and count as 0 elsewhere. Dtype: i64, or the weights'. Gradient: to the weights.
    Raises: ShapeError without a length where the numbers are not known. Follows jax.numpy.bincount.
    """
    at = tensor("bincount", x)
    if at.ndim != 1:
        raise ShapeError(f"bincount: x is {at.type}; expected a vector")
    if length is None:
        raise ShapeError(
            "bincount: the greatest number is known only in a run, and shapes are static; give length=, one more"
        )
    (n,) = as_shape(max(length, minlength), "bincount: length")
    at = index_tensor("bincount", at)
    ones = at.graph.constant(np.ones(at.shape, np.int64))
    values = ones if weights is None else tensors("bincount", at, weights)[1]
    if values.shape != at.shape:
        raise ShapeError(f"bincount: weights {values.shape} for numbers {at.shape}; expected one for each")
    if weights is not None:
        values = floating(values)
    return apply("scatter", binary.maximum(at, 0), values, axis=0, length=n, reduction="add")


def histogram_bin_edges(a: TensorLike, bins: Any = 10, range: Sequence[TensorLike] | None = None) -> Tensor:
    """The edges of bins: `bins` of equal width from the least to the greatest element, or over `range`; or as they are.

    Shape: (bins + 1,). Dtype: floats keep theirs; integers and bools become f32. Gradient: to the ends.
    """
    x = floating(tensor("histogram_bin_edges", a))
    if isinstance(bins, str):
        raise ShapeError(f"histogram_bin_edges: bins is {bins!r}, a number that depends on values; expected an int")
    if not isinstance(bins, int | np.integer):
        edges = floats(*tensors("histogram_bin_edges", x, bins))[1]
        if edges.ndim != 1:
            raise ShapeError(f"histogram_bin_edges: bins are {edges.type}; expected an int, or a vector of edges")
        return edges
    (n,) = as_shape(int(bins), "histogram_bin_edges: bins")
    if not n:
        raise ShapeError("histogram_bin_edges: 0 bins; expected one or more")
    if range is not None:
        low, high = (cast_to(t, x.dtype) for t in tensors("histogram_bin_edges", x, *range)[1:])
    elif x.size:
        low, high = reduce.min(x), reduce.max(x)
    else:
        low, high = x.graph.constant(0.0, x.dtype), x.graph.constant(1.0, x.dtype)
    same = binary.equal(low, high)
    low, high = where(same, low - 0.5, low), where(same, high + 0.5, high)
    steps = x.graph.constant(np.arange(n), x.dtype)
    inner = low + steps * ((high - low) / float(n))
    return movement.concat([inner, movement.reshape(high, (1,))])


def histogram(
    a: TensorLike, bins: Any = 10, range: Sequence[TensorLike] | None = None, density: bool = False,
    weights: TensorLike | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """How many elements lie in each bin, and the bins' edges; the last bin holds its upper edge too.

    bins: their number, over `range` or from the least to the greatest element, or ascending edges. `density`: divided
    by the count and the widths. Dtype: i64, or that of the weights; with `density` a float. NaN and what lies outside
    is not counted. Gradient: to the weights. Follows numpy.histogram.
    """
    density = flag("histogram", "density", density)
    x = floating(tensor("histogram", a))
    edges = histogram_bin_edges(x, bins, range)
    n = edges.shape[0] - 1
    flat = movement.reshape(x, (x.size,))
    last = binary.equal(flat, movement.index(edges, -1))
    at = cast_to(searchsorted(edges, flat, "right"), i32) - 1
    at = where(last, n - 1, at)
    at = where(binary.logical_or(binary.less(at, 0), predicates.isnan(flat)), n, at)  # beyond the length: dropped
    values = x.graph.constant(np.ones(x.size, np.int64))
    if weights is not None:
        values = tensors("histogram", x, weights)[1]
        if values.shape != x.shape:
            raise ShapeError(f"histogram: weights {values.shape} for {x.shape}; expected one for each element")
        values = floating(movement.reshape(values, (x.size,)))
    counts = apply("scatter", at, values, axis=0, length=n, reduction="add")
    if density:
        wide = cast_to(counts, edges.dtype)
        counts = wide / diff(edges) / reduce.sum(wide)
    return counts, edges


# -- means and spreads


def ptp(a: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The greatest less the least element over the axes. Dtype: x's. Gradient: to both, shared by equal ones."""
    x = tensor("ptp", a)
    return reduce.max(x, axis, keepdims) - reduce.min(x, axis, keepdims)


def average(
    a: TensorLike, axis: Axis = None, weights: TensorLike | None = None, returned: bool = False, *,
    keepdims: bool = False,
) -> Any:  # fmt: skip
    """The mean over the axes, weighted; `returned`: and the sum of the weights, of the same shape.

    weights: of x's shape, or a vector along the one axis. Dtype: promoted; integers and bools become f32. Gradient: to
    both. Numerics: in f32 for halves. Follows numpy.average.
    """
    x = floating(tensor("average", a))
    axes = normalize_axes(axis, x.ndim, "average")
    if weights is None:
        result = reduce.mean(x, axes, keepdims)
        count = math.prod(x.shape[i] for i in axes)
        return (result, composite.full_like(result, float(count))) if returned else result
    w = floats(*tensors("average", x, weights))[1]
    if w.shape != x.shape:
        if w.ndim != 1 or axis is None or len(axes) != 1 or w.size != x.shape[axes[0]]:
            raise ShapeError(f"average: weights {w.shape} for {x.shape}, axis {axis}; expected x's shape, or a vector")
        w = movement.reshape(w, [w.size if i == axes[0] else 1 for i in range(x.ndim)])
    kind = promote(x.dtype, w.dtype)
    wide = f64 if kind == f64 else f32
    x, w = cast_to(x, wide), movement.expand(cast_to(w, wide), x.shape)
    total = reduce.sum(w, axes, keepdims)
    result = cast_to(reduce.sum(x * w, axes, keepdims) / total, kind)
    return (result, cast_to(total, kind)) if returned else result


def cov(
    m: TensorLike, y: TensorLike | None = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None,
    fweights: TensorLike | None = None, aweights: TensorLike | None = None,
) -> Tensor:  # fmt: skip
    """The covariances of the rows (or, without `rowvar`, the columns) of m and y.

    Sums are divided by n - ddof, ddof 1 by default, 0 with `bias`; fweights say how often each observation counts,
    aweights how much. Dtype: promoted; integers and bools become f32. Gradient: to m, y, aweights. Follows numpy.cov.
    """
    parts = [floating(t) for t in tensors("cov", m, *(() if y is None else (y,)))]
    rows = []
    for t in parts:
        if t.ndim > 2:
            raise ShapeError(f"cov: the input is {t.type}; expected a vector or a matrix")
        t = movement.reshape(t, (1, t.size)) if t.ndim < 2 else t
        rows.append(t if rowvar or t.shape[0] == 1 else movement.transpose(t))
    x = movement.concat(rows, 0) if len(rows) > 1 else rows[0]
    kind, x = x.dtype, cast_to(x, working_float(x))
    n = x.shape[1]
    less = (0 if bias else 1) if ddof is None else ddof
    weights = [cast_to(tensors("cov", x, w)[1], x.dtype) for w in (fweights, aweights) if w is not None]
    if not weights:
        x = x - reduce.mean(x, 1, True)
        result = matmul(x, x, transpose_b=True) * (1.0 / (n - less) if n > less else math.nan)
    else:
        w = weights[0] if len(weights) == 1 else weights[0] * weights[1]
        total = reduce.sum(w)
        by: Any = total - float(less)
        if aweights is not None:
            by = total - float(less) * reduce.sum(w * weights[-1]) / total
        x = x - reduce.sum(x * w, 1, True) / total
        result = matmul(x * w, x, transpose_b=True) / by
    result = cast_to(result, kind)
    return movement.reshape(result, ()) if result.size == 1 else result


def corrcoef(x: TensorLike, y: TensorLike | None = None, rowvar: bool = True) -> Tensor:
    """Pearson's coefficients of correlation of the rows (or columns) of x and y, from -1 to 1. As rlx.cov."""
    c = cov(x, y, rowvar)
    if not c.ndim:
        return c / c
    spread = unary.sqrt(arrange.diagonal(c))
    n = spread.size
    return clip(c / movement.reshape(spread, (n, 1)) / spread, -1.0, 1.0)


# -- quantiles

_CONTINUOUS = {  # the two parameters of Hyndman and Fan (1996)
    "interpolated_inverted_cdf": (0.0, 1.0), "hazen": (0.5, 0.5), "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3), "normal_unbiased": (3 / 8, 3 / 8),
}  # fmt: skip
METHODS = (
    "linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf", "averaged_inverted_cdf",
    "closest_observation", *_CONTINUOUS,
)  # fmt: skip


def _place(method: str, n: Any, q: Any, floor: Callable[[Any], Any], choose: Callable[[Any, Any, Any], Any]) -> Any:
    """Where the quantile lies among n sorted elements: the index below it, and the fraction of the way to the next."""
    if method in _CONTINUOUS:
        a, b = _CONTINUOUS[method]
        at = n * q + (q * (1.0 - a - b) + a) - 1.0
    elif method in ("inverted_cdf", "averaged_inverted_cdf"):
        at = n * q - 1.0
    elif method == "closest_observation":
        at = n * q - 1.5
    else:
        at = q * (n - 1.0)
    below = floor(at)
    part = at - below
    whole = part == 0.0
    if method == "lower":
        part = part * 0.0
    elif method in ("higher", "inverted_cdf"):
        part = choose(whole, 0.0, 1.0)
    elif method == "midpoint":
        part = choose(whole, 0.0, 0.5)
    elif method == "averaged_inverted_cdf":
        part = choose(whole, 0.5, 1.0)
    elif method == "closest_observation":
        odd = below - floor(below * 0.5) * 2.0 == 1.0
        part = choose(whole, choose(odd, 0.0, 1.0), 1.0)
    elif method == "nearest":
        odd = below - floor(below * 0.5) * 2.0 == 1.0
        part = choose(part == 0.5, choose(odd, 1.0, 0.0), choose(part > 0.5, 1.0, 0.0))
    return below, part


def _quantile(
    op: str, a: TensorLike, q: TensorLike, axis: Axis, method: str, keepdims: bool, scale: float = 1.0,
    without_nan: bool = False,
) -> Tensor:  # fmt: skip
    if method not in METHODS:
        raise ShapeError(f"{op}: method is {method!r}; expected one of {', '.join(METHODS)}")
    x = floating(tensor(op, a))
    axes = normalize_axes(axis, x.ndim, op)
    rest = [i for i in range(x.ndim) if i not in axes]
    shape = kept_shape(x.shape, axes) if keepdims else tuple(x.shape[i] for i in rest)
    n = math.prod(x.shape[i] for i in axes)
    lanes = movement.reshape(movement.transpose(x, [*rest, *axes]), (math.prod(x.shape[i] for i in rest), n))
    wide = working_float(x)
    known = not isinstance(q, Tensor)
    asked: Any = np.asarray(q, np.float64) / scale if known else cast_to(q, wide) / scale
    if known and not ((asked >= 0) & (asked <= 1)).all():
        raise ShapeError(f"{op}: q is {q!r}; expected numbers from 0 to {scale:g}")
    result = (*asked.shape, *shape)
    if not n:
        return movement.expand(x.graph.constant(math.nan, x.dtype), result)
    asked = asked.reshape(-1)
    ordered = order.sort(lanes, -1)  # NaN comes last
    nan = predicates.isnan(ordered)
    if known and not without_nan:
        below, part = _place(method, n, asked, np.floor, np.where)
        first = np.clip(below, 0, n - 1).astype(np.int64)
        later = np.clip(below + 1, 0, n - 1).astype(np.int64)
        low, high = gather(ordered, first, 1), gather(ordered, later, 1)  # (lanes, q)
        t = x.graph.constant(np.where(below < 0, 0.0, part), wide)
        lost = movement.index(nan, (slice(None), slice(-1, None)))
    else:
        if known:
            asked = x.graph.constant(asked, wide)
        count: Any = float(n)
        lost = movement.index(nan, (slice(None), slice(-1, None)))
        most: Any = n - 1
        if without_nan:
            there = reduce.sum(unary.logical_not(nan), 1, True)  # (lanes, 1)
            lost, most, count = binary.equal(there, 0), binary.maximum(there - 1, 0), cast_to(there, wide)
            asked = movement.reshape(asked, (1, asked.size))
        below, t = _place(method, count, asked, unary.floor, where)
        t = where(binary.less(below, 0), 0.0, t)
        at = cast_to(below, i32)
        places = [binary.minimum(binary.maximum(at + k, 0), most) for k in (0, 1)]
        places = [movement.expand(p, (lanes.shape[0], asked.size)) for p in places]
        low, high = (gather_elements(ordered, p, 1) for p in places)
    low, high = cast_to(low, wide), cast_to(high, wide)
    gap = high - low
    near = binary.less(t, 0.5)
    between = where(near, low + gap * t, high - gap * (1.0 - t))
    # Between equal infinities the gap is NaN, and so is its product with a part of 0.
    between_or_ends = where(binary.logical_or(binary.equal(t, 0.0), binary.equal(low, high)), low, between)
    between_or_ends = cast_to(where(lost, math.nan, where(binary.equal(t, 1.0), high, between_or_ends)), x.dtype)
    return movement.reshape(movement.transpose(between_or_ends), result)


def quantile(
    a: TensorLike, q: TensorLike, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """The quantiles q, from 0 to 1, over the axes (None: of all): q.shape, then the axes that stay.

    method: any of NumPy's thirteen. Dtype: floats keep theirs; integers and bools become f32. NaN where an element is
    NaN, and for an empty axis. Gradient: to the elements on either side. Raises: ShapeError for numbers outside 0 to 1.
    Follows numpy.quantile; between equal infinities it gives that infinity, where NumPy gives NaN.
    """
    return _quantile("quantile", a, q, axis, method, keepdims)


def percentile(
    a: TensorLike, q: TensorLike, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """The percentiles q, from 0 to 100, over the axes: as rlx.quantile at q / 100."""
    return _quantile("percentile", a, q, axis, method, keepdims, 100.0)


def nanquantile(
    a: TensorLike, q: TensorLike, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """The quantiles of the elements that are not NaN; NaN where there are none. As rlx.quantile.

    Numerics: places are counted in f32 (f64 for f64).
    """
    return _quantile("nanquantile", a, q, axis, method, keepdims, without_nan=True)


def nanpercentile(
    a: TensorLike, q: TensorLike, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """The percentiles of the elements that are not NaN: as rlx.nanquantile at q / 100."""
    return _quantile("nanpercentile", a, q, axis, method, keepdims, 100.0, True)


def nanmedian(a: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The median of the elements that are not NaN; NaN where there are none. As rlx.nanquantile at 0.5."""
    return _quantile("nanmedian", a, 0.5, axis, "linear", keepdims, without_nan=True)


# -- without NaN


def _filled(op: str, a: TensorLike, value: float) -> tuple[Tensor, Tensor]:
    """x with NaN replaced by a value, and a mask of the elements that were not NaN."""
    x = tensor(op, a)
    if not x.dtype.is_float:
        return x, movement.expand(x.graph.constant(True), x.shape)
    nan = predicates.isnan(x)
    return where(nan, value, x), unary.logical_not(nan)


def nansum(a: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The sum of the elements that are not NaN; 0 where there are none. Dtype, numerics: as rlx.sum."""
    return reduce.sum(_filled("nansum", a, 0.0)[0], axis, keepdims)


def nanprod(a: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The product of the elements that are not NaN; 1 where there are none. Dtype, numerics: as rlx.prod."""
    return reduce.prod(_filled("nanprod", a, 1.0)[0], axis, keepdims)


def nancumsum(a: TensorLike, axis: int | None = None) -> Tensor:
    """The running sum with NaN as 0. Otherwise as rlx.cumsum."""
    return cumulative.cumsum(_filled("nancumsum", a, 0.0)[0], axis)


def nancumprod(a: TensorLike, axis: int | None = None) -> Tensor:
    """The running product with NaN as 1. Otherwise as rlx.cumprod."""
    return cumulative.cumprod(_filled("nancumprod", a, 1.0)[0], axis)


def _nan_extreme(op: str, a: TensorLike, axis: Axis, keepdims: bool) -> Tensor:
    least = op == "nanmax"
    x, there = _filled(op, a, -math.inf if least else math.inf)
    extreme = (reduce.max if least else reduce.min)(x, axis, keepdims)
    return where(composite.any(there, axis, keepdims), extreme, math.nan) if x.dtype.is_float else extreme


def nanmax(a: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The greatest of the elements that are not NaN; NaN where there are none. Otherwise as rlx.max."""
    return _nan_extreme("nanmax", a, axis, keepdims)


def nanmin(a: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The least of the elements that are not NaN; NaN where there are none. Otherwise as rlx.min."""
    return _nan_extreme("nanmin", a, axis, keepdims)


def _nan_arg(op: str, a: TensorLike, axis: int | None, keepdims: bool) -> Tensor:
    greatest = op == "nanargmax"
    x, there = _filled(op, a, -math.inf if greatest else math.inf)
    # Elements may equal the infinity that replaces NaN: those that were not NaN take precedence.
    if axis is None:
        x, there, shape = (*(movement.reshape(t, (t.size,)) for t in (x, there)), (1,) * x.ndim)
        index = movement.reshape(_nan_arg_along(x, there, 0, greatest), shape)
        return index if keepdims else movement.reshape(index, ())
    at = normalize_axis(axis, x.ndim, op)
    index = _nan_arg_along(x, there, at, greatest)
    return index if keepdims else composite.squeeze(index, at)


def _nan_arg_along(x: Tensor, there: Tensor, axis: int, greatest: bool) -> Tensor:
    best = (reduce.max if greatest else reduce.min)(x, axis, True)
    hit = binary.logical_and(binary.equal(x, best), there)
    return where(composite.any(there, axis, True), order.argmax(hit, axis, True), -1)


def nanargmax(a: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the greatest element that is not NaN, the first of equal ones; -1 where there is none, as in JAX.

    Dtype: any; gives i64.
    """
    return _nan_arg("nanargmax", a, axis, keepdims)


def nanargmin(a: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the least element that is not NaN. As rlx.nanargmax."""
    return _nan_arg("nanargmin", a, axis, keepdims)


def nanmean(a: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean of the elements that are not NaN; NaN where there are none. Dtype: as rlx.mean."""
    x = floating(tensor("nanmean", a))
    wide = cast_to(x, working_float(x))
    total, there = _filled("nanmean", wide, 0.0)
    count = cast_to(reduce.sum(there, axis, keepdims), wide.dtype)
    return cast_to(reduce.sum(total, axis, keepdims) / count, x.dtype)


def nanvar(a: TensorLike, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    """The variance of the elements that are not NaN, whose squares' sum is divided by their count less `correction`.

    NaN where the count is no more than the correction. Dtype: as rlx.var.
    """
    x = floating(tensor("nanvar", a))
    wide = cast_to(x, working_float(x))
    away, there = _filled("nanvar", wide - nanmean(wide, axis, True), 0.0)
    count = cast_to(reduce.sum(there, axis, keepdims), wide.dtype) - float(correction)
    squares = reduce.sum(away * away, axis, keepdims)
    return cast_to(where(binary.greater(count, 0.0), squares / count, math.nan), x.dtype)


def nanstd(a: TensorLike, axis: Axis = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    """The standard deviation of the elements that are not NaN: the root of rlx.nanvar, with gradient 0 at 0."""
    return composite._root(nanvar(a, axis, keepdims, correction))


# -- convolution


def _convolved(op: str, a: TensorLike, v: TensorLike, mode: str, flip: bool) -> Tensor:
    if mode not in ("full", "same", "valid"):
        raise ShapeError(f"{op}: mode is {mode!r}; expected 'full', 'same' or 'valid'")
    x, w = tensors(op, a, v)
    if x.ndim > 1 or w.ndim > 1 or not x.size or not w.size:
        raise ShapeError(f"{op}: {x.type} and {w.type}; expected two vectors, not empty")
    x, w = (movement.reshape(t, (t.size,)) for t in (x, w))
    back = x.size < w.size
    n, m = max(x.size, w.size), min(x.size, w.size)
    kind = promote(x.dtype, w.dtype)
    if kind.kind == "b":
        raise DTypeError(f"{op}: takes numbers, got bool; cast it first")
    # A cross-correlation of the longer with the flipped shorter one.
    signal, kernel = (w, x) if back else (x, w)
    kernel = arrange.flip(kernel) if flip else kernel
    pad = 0 if mode == "valid" else m - 1
    if kind.is_float:
        result = conv(movement.reshape(signal, (1, 1, n)), movement.reshape(kernel, (1, 1, m)), pads=pad)
        result = cast_to(movement.reshape(result, (result.size,)), kind)
    else:
        zeros = movement.expand(x.graph.constant(0, signal.dtype), (pad,))
        padded = movement.concat([zeros, signal, zeros])
        at = np.arange(n + 2 * pad - m + 1)[:, None] + np.arange(m)
        result = cast_to(matmul(gather(padded, at), kernel), kind)
    if mode == "same":
        result = movement.index(result, slice((m - 1) // 2, (m - 1) // 2 + n))
    return arrange.flip(result) if back and not flip else result


def convolve(a: TensorLike, v: TensorLike, mode: str = "full") -> Tensor:
    """The convolution of two vectors: "full" of n + m - 1 elements, "same" of the longer's, "valid" where both overlap.

    Dtype: promoted; bool is refused. Gradient: to both. Numerics: products and sums, as rlx.conv. Follows
    numpy.convolve; rlx.signal.convolve takes FFTs for long ones.
    """
    return _convolved("convolve", a, v, mode, True)


def correlate(a: TensorLike, v: TensorLike, mode: str = "valid") -> Tensor:
    """The cross-correlation of two vectors: element k is the sum of a[n + k] · v[n]. As rlx.convolve.

    Follows numpy.correlate.
    """
    return _convolved("correlate", a, v, mode, False)


__all__ = [
    "allclose", "array_equal", "array_equiv", "average", "bincount", "convolve", "corrcoef", "correlate",
    "count_nonzero", "cov", "cumulative_prod", "cumulative_sum", "diff", "ediff1d", "histogram", "histogram_bin_edges",
    "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian", "nanmin", "nanpercentile",
    "nanprod", "nanquantile", "nanstd", "nansum", "nanvar", "percentile", "ptp", "quantile", "trapezoid",
]  # fmt: skip
