"""Differences, polynomials, phases and functions of neighbouring numbers under NumPy's, JAX's and SciPy's names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.dtypes import DTypeLike, f32, f64, promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor
from rlx.ir.types import is_index, normalize_axes, normalize_axis
from rlx.ops import composite, cumulative, reduce
from rlx.ops.base import TensorLike, cast_to, floating, tensor, tensors
from rlx.ops.composed.arranging import atleast_1d
from rlx.ops.composed.products import vander
from rlx.ops.composed.statistics import diff
from rlx.ops.creation import Created, _known
from rlx.ops.elementwise import binary, predicates, unary
from rlx.ops.elementwise.division import mod
from rlx.ops.elementwise.floats import copysign
from rlx.ops.elementwise.powers import trunc
from rlx.ops.elementwise.select import where
from rlx.ops.movement import strided as movement
from rlx.ops.random.choices import inverse_erfc
from rlx.ops.reduce import working_float

# -- numbers known now


def geomspace(start: float, stop: float, count: int = 50, endpoint: bool = True, dtype: DTypeLike = f32) -> Created:
    """`count` numbers of equal ratios from start to stop. Otherwise as rlx.linspace. Follows numpy.geomspace."""
    return _known(np.geomspace(start, stop, count, endpoint), dtype)


def logspace(
    start: float, stop: float, count: int = 50, endpoint: bool = True, base: float = 10.0, dtype: DTypeLike = f32
) -> Created:
    """base to the power of rlx.linspace(start, stop, count). Follows numpy.logspace."""
    return _known(np.logspace(start, stop, count, endpoint, base), dtype)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Created, ...]:
    """The rows and columns of the elements on and below the k-th diagonal of an (n, m) matrix; i64, known now.

    Follows numpy.tril_indices."""
    return tuple(_known(a, "i64") for a in np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Created, ...]:
    """As tril_indices, on and above the diagonal. Follows numpy.triu_indices."""
    return tuple(_known(a, "i64") for a in np.triu_indices(n, k, m))


# -- differences and phases


def gradient(f: TensorLike, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Central differences along each axis, or along `axis`, and one-sided ones at the ends; of several axes a tuple.

    varargs: the distance of the points, one for all axes or one for each: a number, or the places of the points along
    the axis. edge_order 2 takes three points at the ends. (The gradient of a function is rlx.grad.) Dtype: floats;
    integers become f32. Raises: ShapeError for too few points, and for places that do not fit. Follows numpy.gradient.
    """
    x = floating(tensor("gradient", f))
    axes = normalize_axes(axis, x.ndim, "gradient")
    if edge_order not in (1, 2):
        raise ShapeError(f"gradient: edge_order is {edge_order!r}; expected 1 or 2")
    if len(varargs) not in (0, 1, len(axes)):
        raise ShapeError(f"gradient: {len(varargs)} distances for {len(axes)} axes; expected one for each, or one")
    steps = varargs * len(axes) if len(varargs) == 1 else varargs or (1.0,) * len(axes)
    slopes = [_along(x, a, step, edge_order) for a, step in zip(axes, steps, strict=True)]
    return slopes[0] if len(slopes) == 1 else tuple(slopes)


def _along(x: Tensor, axis: int, step: Any, edge_order: int) -> Tensor:
    n = x.shape[axis]
    if n < edge_order + 1:
        raise ShapeError(f"gradient: axis {axis} of {x.type} has {n} points; expected at least {edge_order + 1}")
    x = composite.moveaxis(x, axis, -1)
    gaps: Any = step
    if np.ndim(step) == 1 or getattr(step, "ndim", 0) == 1:
        _, places = tensors("gradient", x, step)
        if places.shape != (n,):
            raise ShapeError(f"gradient: places of {places.type} for the {n} points of axis {axis}")
        gaps = cast_to(diff(places), x.dtype)
    if isinstance(gaps, Tensor) and gaps.ndim:
        a, b = gaps[:-1], gaps[1:]
        inner = -b / (a * (a + b)) * x[..., :-2] + (b - a) / (a * b) * x[..., 1:-1] + a / (b * (a + b)) * x[..., 2:]
        first, second, last, before = gaps[:1], gaps[1:2], gaps[-1:], gaps[-2:-1]
    else:
        inner = (x[..., 2:] - x[..., :-2]) / (2.0 * gaps)
        first = second = last = before = gaps
    if edge_order == 1:
        start = (x[..., 1:2] - x[..., :1]) / first
        end = (x[..., -1:] - x[..., -2:-1]) / last
    else:
        start = _edge(first, second, x[..., :1], x[..., 1:2], x[..., 2:3])
        end = -_edge(last, before, x[..., -1:], x[..., -2:-1], x[..., -3:-2])
    return composite.moveaxis(movement.concat([start, inner, end], -1), -1, axis)


def _edge(near: Any, far: Any, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The slope at the first of three points, of the parabola through them."""
    whole: Any = near + far
    slope: Tensor = a * (-(2.0 * near + far) / (near * whole)) + b * (whole / (near * far)) - c * (near / (far * whole))
    return slope


def unwrap(p: TensorLike, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi) -> Tensor:
    """Angles without jumps: neighbours that differ by more than `discont` become nearer by whole periods.

    discont: half a period by default, and at least. Dtype: floats; integers become f32. Follows numpy.unwrap.
    """
    x = floating(tensor("unwrap", p))
    axis = normalize_axis(axis, x.ndim, "unwrap")
    steps, half = diff(x, axis=axis), period / 2
    wrapped = mod(steps + half, period) - half
    wrapped = where(binary.logical_and(wrapped == -half, steps > 0), half, wrapped)
    limit = half if discont is None else max(discont, half)
    moved = cumulative.cumsum(where(unary.abs(steps) < limit, 0.0, wrapped - steps), axis)
    first = movement.index(x, (*(slice(None),) * axis, slice(0, 1)))
    return x + movement.concat([first * 0.0, moved], axis)


# -- polynomials


def polyval(p: TensorLike, x: TensorLike) -> Tensor:
    """The polynomial with coefficients p (..., n), the highest power first, at x. Follows numpy.polyval."""
    coefficients, at = tensors("polyval", p, x)
    if coefficients.ndim != 1:
        raise ShapeError(f"polyval: p is {coefficients.type}; expected a vector of coefficients")
    dtype = promote(coefficients.dtype, at.dtype)
    coefficients, at = cast_to(coefficients, dtype), cast_to(at, dtype)
    result = at * 0
    for i in range(coefficients.size):
        result = result * at + coefficients[i]
    return result


def polyfit(
    x: TensorLike, y: TensorLike, deg: int, rcond: float | None = None, *, w: TensorLike | None = None
) -> Tensor:
    """The coefficients, the highest power first, of the polynomial of a degree that is nearest to points.

    By least squares, with weights w. Shape: x (m,), y (m,) or (m, k). Dtype: f64 where one is, else f32. Gradient: to
    x and y. Follows numpy.polyfit.
    """
    from rlx.ops.linalg.functions import lstsq

    xs, ys = tensors("polyfit", x, y)
    if not is_index(deg) or deg < 0 or xs.ndim != 1 or ys.ndim not in (1, 2) or ys.shape[0] != xs.size:
        raise ShapeError(
            f"polyfit: x is {xs.type}, y {ys.type} and deg {deg!r}; expected (m,), (m,) or (m, k), and 0 or more"
        )
    work = f64 if f64 in (xs.dtype, ys.dtype) else f32
    left, right = vander(cast_to(xs, work), deg + 1), cast_to(ys, work)
    if w is not None:
        (weights,) = (cast_to(tensors("polyfit", xs, w)[1], work),)
        left = left * movement.reshape(weights, (xs.size, 1))
        right = right * (weights if right.ndim == 1 else movement.reshape(weights, (xs.size, 1)))
    scale = unary.sqrt(reduce.sum(left * left, 0))
    cut = xs.size * float(np.finfo(work.np).eps) if rcond is None else rcond
    coefficients = lstsq(left / scale, right, cut)[0]
    return coefficients / (scale if right.ndim == 1 else movement.reshape(scale, (deg + 1, 1)))


# -- elementwise


def float_power(x1: TensorLike, x2: TensorLike) -> Tensor:
    """x1 to the power of x2 in f64. Follows numpy.float_power."""
    a, b = tensors("float_power", x1, x2)
    return cast_to(a, f64) ** cast_to(b, f64)


def modf(x: TensorLike) -> tuple[Tensor, Tensor]:
    """The fractional and the integral part, both with the sign of x. Follows numpy.modf."""
    t = floating(tensor("modf", x))
    whole = trunc(t)
    return copysign(where(predicates.isinf(t), 0.0, t - whole), t), whole


def xlogy(x: TensorLike, y: TensorLike) -> Tensor:
    """x log(y), 0 where x is 0 (NaN where y is NaN). Gradient: finite at x = 0 too. Follows scipy.special.xlogy."""
    a, b = (floating(t) for t in tensors("xlogy", x, y))
    nothing = binary.logical_and(a == 0.0, unary.logical_not(predicates.isnan(b)))
    return where(nothing, 0.0, a * unary.log(where(nothing, 1.0, b)))


def erfinv(x: TensorLike) -> Tensor:
    """The number whose erf is x: infinite at 1 and -1, NaN beyond.

    Dtype: floats, halves in f32. Numerics: the inverse of erfc at 1 - |x|, below 1/2 with two steps of Halley's method
    on erf. Follows scipy.special.erfinv.
    """
    t = floating(tensor("erfinv", x))
    own = t.dtype
    t = cast_to(t, working_float(t))
    size = unary.abs(t)
    inside = size < 1.0
    part = where(inside, size, 0.5)
    far = inverse_erfc(where(part < 0.5, 0.5, 1.0 - part))
    near = where(part < 0.5, part, 0.0) * (0.5 * math.sqrt(math.pi))
    near = near + near * near * near / 3.0
    for _ in range(2):
        step = (unary.erf(near) - part) * (0.5 * math.sqrt(math.pi)) * unary.exp(near * near)
        near = near - step / (1.0 + near * step)
    y = where(part < 0.5, near, far)
    y = where(inside, y, where(size == 1.0, math.inf, math.nan))
    return cast_to(copysign(y, t), own)


erf_inv = erfinv


def nextafter(x1: TensorLike, x2: TensorLike) -> Tensor:
    """The number of the dtype that is next to x1 in the direction of x2; x2 where they are equal.

    Dtype: floats. Gradient: none. Numerics: exact, but for subnormal numbers on devices that have none. Follows
    numpy.nextafter; Rump, Zimmermann, Boldo and Melquiond, Computing predecessor and successor, 2009.
    """
    a, b = tensors("nextafter", x1, x2)
    dtype = promote(a.dtype, b.dtype)
    if not dtype.is_float:
        raise DTypeError(f"nextafter: the inputs are {a.type} and {b.type}; expected floats")
    limits: Any = np.finfo(dtype.np) if dtype.name != "bf16" else _Bf16
    unit, least = float(limits.eps) / 2, float(limits.smallest_subnormal)
    work = working_float(cast_to(a, dtype))
    c, to = cast_to(cast_to(a, dtype), work), cast_to(cast_to(b, dtype), work)
    by = unit * (1.0 + 2.0 * unit)
    up = cast_to(where(to > c, 1.0, -1.0), work)
    size = unary.abs(c)
    tiny = size < least / unit
    scaled = c / unit  # below 1 / unit² least it is exact and no infinity
    middle = cast_to(cast_to(scaled + up * (by * unary.abs(scaled)), dtype), work) * unit
    moved = where(tiny, c + up * least, where(size < least / unit / unit, middle, c + up * (by * size)))
    moved = where(predicates.isinf(c), copysign(float(limits.max), c), moved)
    moved = where(moved == 0.0, copysign(moved, c), moved)
    result = where(c == to, to, where(binary.logical_or(predicates.isnan(c), predicates.isnan(to)), math.nan, moved))
    return unary.stop_gradient(cast_to(result, dtype))


class _Bf16:
    eps, smallest_subnormal, max = 2.0**-7, 2.0**-133, (2.0 - 2.0**-7) * 2.0**127


# -- arrays of arrays


def block(arrays: Any) -> Tensor:
    """One array of nested lists of arrays: the innermost are joined along the last axis, the others before it.

    Follows numpy.block."""

    def depth(x: Any) -> int:
        return 1 + max((depth(v) for v in x), default=0) if isinstance(x, list) else 0

    def joined(x: Any, axis: int) -> Tensor:
        if not isinstance(x, list):
            return widened(x)
        if not x:
            raise ShapeError("block: a list is empty; expected arrays in it")
        return movement.concat([joined(v, axis + 1) for v in x], axis)

    def widened(x: TensorLike) -> Tensor:
        t: Tensor = atleast_1d(x)
        return movement.reshape(t, (*(1,) * (levels - t.ndim), *t.shape)) if t.ndim < levels else t

    levels = depth(arrays)
    return joined(arrays, -levels) if levels else widened(arrays)


def standardize(x: TensorLike, axis: Any = -1, epsilon: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) along axes. Follows jax.nn.standardize."""
    t = floating(tensor("standardize", x))
    rest = t - reduce.mean(t, axis, True)
    return rest / unary.sqrt(reduce.mean(rest * rest, axis, True) + epsilon)


__all__ = [
    "block", "erf_inv", "erfinv", "float_power", "geomspace", "gradient", "logspace", "modf", "nextafter", "polyfit",
    "polyval", "standardize", "tril_indices", "triu_indices", "unwrap", "xlogy",
]  # fmt: skip
