"""grid_sample: an image sampled at the coordinates of a grid, by interpolation between its elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from rlx.autodiff.pullback import pullback
from rlx.dtypes import DType, i32
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Expr, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.expr import call
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_inputs, floats, tensors
from rlx.ops.numeric import Array, computed
from rlx.ops.reduce import working_float
from rlx.ops.windows import check_floats

MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")
CUBIC_A = -0.75
# Coordinates are clipped to this many elements from 0: from 2**23 on, f32 holds no fractions of an element.
FAR = 2.0**22


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "grid_sample"
    check_inputs(op, types, 2)
    check_floats(op, types, ("input", "grid"))
    x, grid = types
    n = x.rank - 2
    if n not in (2, 3):
        raise ShapeError(f"{op}: the input is {x}; expected (N, C, H, W) or (N, C, D, H, W)")
    if grid.rank != x.rank or grid.shape[-1] != n or grid.shape[0] != x.shape[0]:
        raise ShapeError(
            f"{op}: the grid is {grid} for an input {x}; expected ({x.shape[0]}, …{n} output sizes…, {n})"
        )
    for name, allowed in (("mode", MODES), ("padding", PADDINGS)):
        if attrs[name] not in allowed:
            raise ShapeError(f"{op}: {name} is {attrs[name]!r}; expected one of {', '.join(allowed)}")
    if not isinstance(attrs["align_corners"], bool):
        raise DTypeError(f"{op}: align_corners is {attrs['align_corners']!r}; expected a bool")
    if attrs["mode"] == "cubic" and n == 3:
        raise ShapeError(f"{op}: mode cubic of {x}; expected two spatial axes (use linear for three)")
    if 0 in x.shape[2:]:
        raise ShapeError(f"{op}: the input is {x}; expected at least one element along every spatial axis")
    return TensorType((*x.shape[:2], *grid.shape[1:-1]), x.dtype)


class Arrays:
    """The functions that `axis_taps` calls, on NumPy arrays."""

    floor, round, where, equal, absolute = np.floor, np.rint, np.where, np.equal, np.abs

    @staticmethod
    def clip(x: Array, low: float, high: float) -> Any:
        return np.clip(x, low, high)

    @staticmethod
    def within(x: Array, low: float, high: float) -> Any:
        return np.logical_and(x >= low, x <= high)


class Tensors:
    """The functions that `axis_taps` calls, on tensors of a graph."""

    @staticmethod
    def floor(x: Tensor) -> Tensor:
        return apply("floor", x)

    @staticmethod
    def round(x: Tensor) -> Tensor:
        return apply("round", x)

    @staticmethod
    def absolute(x: Tensor) -> Tensor:
        return apply("abs", x)

    @staticmethod
    def where(condition: Tensor, a: Any, b: Any) -> Tensor:
        return apply("where", condition, a, b)

    @staticmethod
    def equal(a: Tensor, b: Any) -> Tensor:
        return apply("equal", a, b)

    @staticmethod
    def clip(x: Tensor, low: float, high: float) -> Tensor:
        return apply("clip", x, min=float(low), max=float(high))

    @staticmethod
    def within(x: Tensor, low: float, high: float) -> Tensor:
        return apply("logical_and", apply("greater_equal", x, low), apply("less_equal", x, high))


class Exprs:
    """The functions that `axis_taps` calls, on scalar expressions."""

    @staticmethod
    def floor(x: Expr) -> Expr:
        return call("floor", x)

    @staticmethod
    def round(x: Expr) -> Expr:
        return call("round", x)

    @staticmethod
    def absolute(x: Expr) -> Expr:
        return call("abs", x)

    @staticmethod
    def where(condition: Expr, a: Any, b: Any) -> Expr:
        return call("select", condition, a, b)

    @staticmethod
    def equal(a: Expr, b: Any) -> Expr:
        return call("eq", a, b)

    @staticmethod
    def clip(x: Expr, low: float, high: float) -> Expr:
        return call("min", call("max", x, float(low)), float(high))

    @staticmethod
    def within(x: Expr, low: float, high: float) -> Expr:
        return call("and", call("ge", x, float(low)), call("le", x, float(high)))


def _reflected(xp: Any, c: Any, size: int, align: bool) -> Any:
    """Coordinates reflected at the centres of the outer elements (`align`) or at their outer edges."""
    low = 0.0 if align else -0.5
    span = float(size - 1 if align else size)
    if span == 0:
        return c * 0.0
    away = xp.absolute(c - low)
    flips = xp.floor(away / span)
    rest = away - flips * span
    even = xp.equal(flips - xp.floor(flips * 0.5) * 2.0, 0.0)
    return xp.clip(xp.where(even, rest, span - rest) + low, 0, size - 1)


def _padded(xp: Any, c: Any, size: int, attrs: Attrs) -> Any:
    """A coordinate after the padding rule: "border" clips it, "reflection" reflects it, "zeros" leaves it outside."""
    if attrs["padding"] == "border":
        return xp.clip(c, 0, size - 1)
    return _reflected(xp, c, size, attrs["align_corners"]) if attrs["padding"] == "reflection" else c


def axis_taps(xp: Any, g: Any, size: int, attrs: Attrs) -> list[tuple[Any, Any, Any]]:
    """(place, weight, inside) of each neighbour along an axis.

    Places are whole numbers within the axis. A weight of None is 1; `inside` None: the neighbour always counts.
    """
    g = xp.where(xp.equal(g, g), g, -1.0)
    c = (g + 1.0) * (0.5 * (size - 1)) if attrs["align_corners"] else ((g + 1.0) * float(size) - 1.0) * 0.5
    c = xp.clip(c, -FAR, FAR)
    mode = attrs["mode"]
    if mode != "cubic":
        c = _padded(xp, c, size, attrs)
    if mode == "nearest":
        corners = [(xp.round(c), None)]
    else:
        base = xp.floor(c)
        t = c - base
        if mode == "linear":
            corners = [(base, 1.0 - t), (base + 1.0, t)]
        else:
            a = CUBIC_A
            s = 1.0 - t
            corners = [
                (base - 1.0, (((t + 1.0) * a - 5.0 * a) * (t + 1.0) + 8.0 * a) * (t + 1.0) - 4.0 * a),
                (base, ((t * (a + 2.0) - (a + 3.0)) * t) * t + 1.0),
                (base + 1.0, ((s * (a + 2.0) - (a + 3.0)) * s) * s + 1.0),
                (base + 2.0, (((s + 1.0) * a - 5.0 * a) * (s + 1.0) + 8.0 * a) * (s + 1.0) - 4.0 * a),
            ]
    taps = []
    for place, weight in corners:
        if mode == "cubic":
            place = _padded(xp, place, size, attrs)
        inside = xp.within(place, 0, size - 1) if attrs["padding"] == "zeros" else None
        taps.append((xp.clip(place, 0, size - 1), weight, inside))
    return taps


def _grid_sample(x: Array, grid: Array, **attrs: Any) -> Any:
    sizes = x.shape[2:]
    n, c = x.shape[:2]
    flat = x.reshape(n, c, math.prod(sizes))
    out = grid.shape[1:-1]
    total = np.zeros((n, c, math.prod(out)), x.dtype)
    g = grid.astype(x.dtype, copy=False).reshape(n, math.prod(out), len(sizes))
    axes = [axis_taps(Arrays, g[..., len(sizes) - 1 - i], size, attrs) for i, size in enumerate(sizes)]
    for corner in product(*axes):
        place: Any = 0
        weight: Any = np.ones((), x.dtype)
        inside: Any = True
        for size, (p, w, good) in zip(sizes, corner, strict=True):
            place = place * size + p.astype(np.int64)
            weight = weight if w is None else weight * w
            inside = inside if good is None else inside & good
        value = np.take_along_axis(flat, np.broadcast_to(place[:, None], total.shape), axis=2)
        product_ = value * np.broadcast_to(weight, place.shape)[:, None]
        total = total + np.where(np.broadcast_to(inside, place.shape)[:, None], product_, 0)
    return total.reshape(n, c, *out)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The op as gathers of the neighbours, whose weighted values are summed."""
    x, grid = inputs
    dtype = working_float(x)
    sizes, (n, c) = x.shape[2:], x.shape[:2]
    out = grid.shape[1:-1]
    count = math.prod(out)
    if 0 in (n, c, count):
        return apply("expand", x.graph.constant(0, x.dtype), shape=(n, c, *out))
    if x.size > np.iinfo(np.int32).max:
        raise ShapeError(
            f"grid_sample: x has {x.size:,} elements; expected fewer than 2^31 where the device has no kernel for "
            "these sizes: split the batch"
        )
    flat = apply("reshape", cast_to(x, dtype), shape=(x.size,))
    g = apply("reshape", cast_to(grid, dtype), shape=(n, 1, count, len(sizes)))
    base = np.arange(n * c, dtype=np.int32).reshape(n, c, 1) * np.int32(math.prod(sizes))
    axes = []
    for i, size in enumerate(sizes):
        last = len(sizes) - 1 - i
        part = apply("slice", g, starts=(0, 0, 0, last), stops=(n, 1, count, last + 1), steps=(1,) * 4)
        axes.append(axis_taps(Tensors, apply("reshape", part, shape=(n, 1, count)), size, attrs))
    total: Any = None
    for corner in product(*axes):
        place: Any = None
        weight: Any = None
        inside: Any = None
        for size, (p, w, good) in zip(sizes, corner, strict=True):
            whole = apply("cast", p, dtype=i32)
            place = whole if place is None else place * size + whole
            weight = w if weight is None else (weight if w is None else weight * w)
            inside = good if inside is None else apply("logical_and", inside, good)
        value = apply("gather", flat, apply("add", place, x.graph.constant(base)), axis=0)
        term = value if weight is None else value * weight
        term = term if inside is None else apply("where", inside, term, 0)
        total = term if total is None else total + term
    return cast_to(apply("reshape", total, shape=(n, c, *out)), x.dtype)


def _first(dtypes: Sequence[DType]) -> DType:
    return dtypes[0]


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradient through the decomposition: to x where each neighbour was read, to the grid through the weights."""
    d = grads[0]
    if d is None or node.output.size == 0:
        return (None, None)
    return pullback([_decompose(node.inputs, node.attrs)], [d], node.inputs, stop=True)


register(
    Op("grid_sample", "grid_sample", _infer, computed(_first)(_grid_sample), "torch.nn.functional.grid_sample", _vjp,
       kernel="grid_sample", decompose=_decompose, batch=batching.folded())
)  # fmt: skip


def grid_sample(
    x: TensorLike,
    grid: TensorLike,
    *,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """x sampled at the coordinates that a grid gives, by interpolation between its elements.

    Shape: x (N, C, H, W), grid (N, H', W', 2) gives (N, C, H', W'); or x (N, C, D, H, W), grid (N, D', H', W', 3). The
    grid's last axis is (x, y[, z]): -1 and 1 are the outer elements' centres (align_corners) or their outer edges.
    mode: "linear", "nearest" (ties to even) or, in two dimensions, "cubic" (coefficient -0.75). padding: coordinates
    outside read "zeros", the "border" or the "reflection". A NaN coordinate counts as -1; those beyond ±2²² elements
    are clipped to that. Dtype: x's; integers become f32. Gradient: to x and the grid (none through the rounding of
    "nearest"). Numerics: coordinates and sums in f32. Follows torch.nn.functional.grid_sample and ONNX GridSample.
    """
    x, grid = floats(*tensors("grid_sample", x, grid))
    return apply("grid_sample", x, grid, mode=mode, padding=padding, align_corners=bool(align_corners))


__all__ = ["grid_sample"]
