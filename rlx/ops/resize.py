"""Resizing along any axes: nearest, linear and cubic, with the coordinate rules of ONNX Resize."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.types import as_items
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_inputs, floating, tensor, written
from rlx.ops.numeric import Array, computed
from rlx.ops.reduce import working_float
from rlx.ops.windows import per_axis
from rlx.records import Record

if TYPE_CHECKING:
    from fractions import Fraction

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn",
)  # fmt: skip
ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
_ACCESSES = {"nearest": 1, "linear": 4, "cubic": 8}


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "resize"
    check_inputs(op, types, 1)
    x = types[0]
    sizes, scales = attrs["sizes"], attrs["scales"]
    if (
        not isinstance(sizes, tuple)
        or len(sizes) != x.rank
        or not all(type(n) is int and n >= 0 for n in sizes)
    ):
        raise ShapeError(
            f"{op}: sizes is {sizes!r}; expected a tuple of {x.rank} ints ≥ 0, one for each axis of {x}"
        )
    good = isinstance(scales, tuple) and len(scales) == x.rank
    if not good or not all(isinstance(s, float) and math.isfinite(s) and s > 0 for s in scales):
        raise ShapeError(
            f"{op}: scales is {scales!r}; expected a tuple of {x.rank} floats > 0, one for each axis"
        )
    for axis, (n, size) in enumerate(zip(x.shape, sizes, strict=True)):
        if size and not n:
            raise ShapeError(f"{op}: axis {axis} of {x} is empty and cannot become {size} long")
    for name, allowed in (("mode", MODES), ("coordinates", COORDINATES), ("rounding", ROUNDING)):
        if attrs[name] not in allowed:
            raise ShapeError(f"{op}: {name} is {attrs[name]!r}; expected one of {', '.join(allowed)}")
    if not isinstance(attrs["cubic_a"], float) or not isinstance(attrs["exclude_outside"], bool):
        a, exclude = attrs["cubic_a"], attrs["exclude_outside"]
        raise DTypeError(f"{op}: cubic_a {a!r}, exclude_outside {exclude!r}; expected a float, a bool")
    if attrs["mode"] != "nearest" and not x.dtype.is_float:
        raise DTypeError(f"{op}: mode {attrs['mode']} of {x.dtype}; expected a float (rlx.resize casts)")
    return TensorType(sizes, x.dtype)


class AxisTable(Record):
    """The input elements that each element of a resized axis reads, and their weights: both (new length, taps)."""

    axis: int
    index: npt.NDArray[np.int32]
    weight: npt.NDArray[np.float64]

    @property
    def taps(self) -> int:
        return int(self.index.shape[1])

    def matrix(self, n: int) -> npt.NDArray[np.float64]:
        """The table as a matrix (new length, n) that an axis of length n is multiplied by."""
        result = np.zeros((len(self.index), n))
        np.add.at(result, (np.arange(len(self.index))[:, None], self.index), self.weight)
        return result


def tables(shape: Sequence[int], attrs: Attrs) -> list[AxisTable]:
    """A table for each axis that is resized; the other axes have none."""
    from fractions import Fraction  # imported late: it imports decimal, which nothing else of rlx needs

    # A scale that equals new length / old length of some axis is taken as that exact ratio, not as the float nearest to
    # it; else ties could round wrongly. Every axis is tried, since a kept aspect ratio gives all axes one axis's scale.
    exact = {size / n: Fraction(size, n) for n, size in zip(shape, attrs["sizes"], strict=True) if size and n}
    result = []
    for axis, (n, size, scale) in enumerate(zip(shape, attrs["sizes"], attrs["scales"], strict=True)):
        if n == size and scale == 1.0:
            continue
        result.append(_table(axis, n, size, exact.get(scale, Fraction(scale)), attrs))
    return result


def _table(axis: int, n: int, size: int, ratio: Fraction, attrs: Attrs) -> AxisTable:
    # In every rule positions are evenly spaced: element i is at (first + i · step) / below, three whole numbers.
    start, second = (_source(i, n, size, ratio, attrs["coordinates"]) for i in (0, 1))
    below = math.lcm(start.denominator, second.denominator)
    first, step = int(start * below), int((second - start) * below)
    narrow = (abs(first) + size * abs(step) + below) * 4 < 1 << 53
    at = first + np.arange(size).astype(np.int64 if narrow else object) * step
    mode = attrs["mode"]
    taps = _TAPS[mode]
    if mode == "nearest":
        index, weight = _rounded(at, below, attrs["rounding"])[:, None], np.ones((size, 1))
    else:
        low = at // below
        part = ((at - low * below) / below).astype(np.float64)
        index = low[:, None] + np.arange(taps) - (taps // 2 - 1)
        parts = (1 - part, part) if mode == "linear" else _cubic(part, attrs["cubic_a"])
        weight = np.stack(parts, 1)
    if attrs["exclude_outside"]:
        weight = np.where((index < 0) | (index >= n), 0.0, weight)
        with np.errstate(divide="ignore", invalid="ignore"):  # NaN where all neighbours are outside
            weight = weight / np.sum(weight, axis=1, keepdims=True)
    return AxisTable(axis, np.clip(index, 0, max(n - 1, 0)).astype(np.int32), weight)


def _source(i: int, n: int, size: int, ratio: Fraction, rule: str) -> Fraction:
    """The exact position, along an input axis, of element i of the output axis."""
    from fractions import Fraction

    half = Fraction(1, 2)
    if rule == "asymmetric":
        return i / ratio
    if rule == "align_corners":
        length = ratio * n
        return Fraction(0) if length == 1 else i * (n - 1) / (length - 1)
    if rule == "tf_half_pixel_for_nn":
        return (i + half) / ratio
    if rule == "pytorch_half_pixel" and size <= 1:
        return Fraction(0)
    if rule == "half_pixel_symmetric":
        # Where n · scale is no whole number, the output is centred in the extent n · scale.
        adjust = size / (ratio * n)
        centre = Fraction(n, 2)
        return centre * (1 - adjust) + (i + half) / ratio - half
    return (i + half) / ratio - half


def _rounded(at: Array, below: int, rule: str) -> Array:
    """The quotients `at` / `below` rounded to whole numbers by the rule."""
    if rule in ("floor", "ceil"):
        return at // below if rule == "floor" else -(-at // below)
    half = 2 * below
    return -((below - 2 * at) // half) if rule == "round_prefer_floor" else (2 * at + below) // half


def _cubic(t: Array, a: float) -> tuple[Array, Array, Array, Array]:
    """Keys' weights of the four neighbours of a position, which lies t past the second of them."""
    return (
        ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1,
        ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a,
    )


def _resize(x: Array, **attrs: Any) -> Array:
    if 0 in attrs["sizes"]:
        return np.zeros(attrs["sizes"], x.dtype)
    for t in tables(x.shape, attrs):
        if attrs["mode"] == "nearest":
            x = np.take(x, t.index[:, 0], axis=t.axis)
            continue
        column = (-1,) + (1,) * (x.ndim - 1 - t.axis)
        parts = (
            np.take(x, t.index[:, k], axis=t.axis) * t.weight[:, k].astype(x.dtype).reshape(column)
            for k in range(t.taps)
        )
        total = next(parts)
        for part in parts:
            total = total + part
        x = total
    return x


def _first(dtypes: Sequence[DType]) -> DType:
    return dtypes[0]


def _reference(x: Array, **attrs: Any) -> Any:
    if attrs["mode"] == "nearest":
        return _resize(np.asarray(x), **attrs)
    return _computed(x, **attrs)


_computed = computed(_first)(_resize)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Multiplies by the transposed matrices of the tables, since resizing an axis multiplies by its table's matrix."""
    x, d = node.inputs[0], grads[0]
    if d is None or not d.dtype.is_float or d.size == 0:
        return (None,)
    d = cast_to(d, working_float(d))
    for t in reversed(tables(x.shape, node.attrs)):
        matrix = d.graph.constant(t.matrix(x.shape[t.axis]).astype(d.dtype.np))
        perm = (*(i for i in range(d.ndim) if i != t.axis), t.axis)
        back = tuple(perm.index(i) for i in range(d.ndim))
        d = apply("transpose", d, perm=perm)
        if d.ndim == 1:
            d = apply("reshape", d, shape=(1, *d.shape))
        d = apply("matmul", d, matrix, transpose_a=False, transpose_b=False, activation=None)
        if x.ndim == 1:
            d = apply("reshape", d, shape=d.shape[1:])
        d = apply("transpose", d, perm=back)
    return (cast_to(d, x.dtype),)


def _cost(node: Node) -> Cost:
    """The cost of a node: accesses for each element, whose number depends on the mode, and the axes' tables."""
    rows = sum(node.attrs["sizes"])
    terms = 64 * node.outputs[0].size if node.inputs[0].shape else 0
    return Cost(_ACCESSES[node.attrs["mode"]] * written(node) + 256 * rows, tables=192 * rows, terms=terms)


register(Op("resize", "resize", _infer, _reference, "onnx.reference Resize", _vjp, kernel="resize", cost=_cost,
            batch=batching.folded()))


def resize(
    x: TensorLike,
    sizes: Any = None,
    *,
    scales: Any = None,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "round_prefer_floor",
    cubic_a: float = -0.75,
    exclude_outside: bool = False,
) -> Tensor:
    """x with its last axes resized, by interpolation.

    Shape: exactly one of sizes and scales is given, with one entry for each of the last axes; an axis of length n
    scaled by s becomes ⌊n·s⌋ long. mode: "nearest", "linear" or "cubic" (Keys, 1981, with coefficient cubic_a).
    coordinates: the rule for the position of an output element in the input: "half_pixel", "half_pixel_symmetric",
    "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn". With "align_corners" the last output
    element is at the last input element whatever the scale, as in torch and ONNX Runtime; in ONNX files, where n·s is
    not a whole number, it lies the missing fraction of an output element before that, as in the ONNX reference.
    rounding ("nearest" only): "round_prefer_floor", "round_prefer_ceil", "floor", "ceil". exclude_outside: neighbours
    beyond the edge get the weight 0 and the others are scaled up; else the edge is repeated. Dtype: any for "nearest";
    else float, and integers become f32. Gradient: to each input element through its weights. Numerics: positions are
    computed exactly; weights in f32, in f64 for f64. Follows ONNX Resize.
    """
    x = tensor("resize", x)
    if (sizes is None) == (scales is None):
        raise ShapeError("resize: expected sizes or scales, exactly one of them")
    if sizes is not None:
        ends = as_items(sizes, "resize: sizes")
        keep = _kept(x, len(ends))
        full = (*x.shape[:keep], *per_axis("resize", "sizes", ends, len(ends)))
    else:
        listed = (scales,) if isinstance(scales, int | float) else tuple(scales)
        keep = _kept(x, len(listed))
        factors = (*(1.0,) * keep, *(float(s) for s in listed))
        if not all(math.isfinite(s) and s > 0 for s in factors):
            raise ShapeError(f"resize: scales is {scales!r}; expected numbers > 0")
        full = tuple(math.floor(n * s) for n, s in zip(x.shape, factors, strict=True))
    if sizes is not None or coordinates == "align_corners":
        factors = tuple(float(size / n) if n and size else 1.0 for n, size in zip(x.shape, full, strict=True))
    if mode != "nearest":
        x = floating(x)
    return apply(
        "resize", x, sizes=full, scales=factors, mode=mode, coordinates=coordinates, rounding=rounding,
        cubic_a=float(cubic_a), exclude_outside=bool(exclude_outside),
    )  # fmt: skip


def _kept(x: Tensor, named: int) -> int:
    if named > x.ndim:
        raise ShapeError(f"resize: {named} sizes or scales for {x.type}; expected at most {x.ndim}")
    return x.ndim - named


def upsample2x(x: TensorLike) -> Tensor:
    """x with every element repeated twice along each spatial axis: `resize` with mode nearest and scale 2.

    Shape: (N, C, *S) gives (N, C, *2S).
    """
    x = tensor("upsample2x", x)
    if x.ndim < 3:
        raise ShapeError(
            f"upsample2x: the input is {x.type}; expected (N, C, …) with at least one spatial axis"
        )
    return resize(x, scales=(2.0,) * (x.ndim - 2), coordinates="asymmetric", rounding="floor")


__all__ = ["resize", "upsample2x"]
