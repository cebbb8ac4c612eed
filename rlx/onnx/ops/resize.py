"""Resize, Upsample, AffineGrid and GridSample. Modes that rlx.resize lacks (antialiasing, cropping) become a
product along each axis."""

from __future__ import annotations

import math

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32
from rlx.ir import Tensor, apply
from rlx.onnx.ops.arithmetic import as_float, as_integer
from rlx.onnx.ops.fill import checked_shape
from rlx.onnx.ops.movement import axes_of
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.elements import Array, bits_of
from rlx.onnx.reader.table import op
from rlx.records import Record

_MODES = {
    "nearest": "nearest",
    "linear": "linear",
    "cubic": "cubic",
    "bilinear": "linear",
    "bicubic": "cubic",
}


@op("Upsample", since=7, until=9)
def upsample_attribute(c: Call) -> Result:
    return _upsample(c, c.floats("scales"))


@op("Upsample", since=9)
@op("Resize", until=11)
def upsample(c: Call) -> Result:
    return _upsample(c, [float(s) for s in c.known(1).reshape(-1)])


def _upsample(c: Call, scales: list[float]) -> Tensor:
    x = c.x()
    _check_scales(c, scales, x.ndim)
    if (
        c.kind == "Resize" and c.str("mode", "nearest") == "nearest"
    ):  # opset 10 alone rounds sizes up where an axis shrinks
        shrinking = [min(s, 1.0) for s in scales]
        x = _resized(c, x, _scaled(c, x, shrinking), shrinking, "asymmetric", "ceil")
        scales = [max(s, 1.0) for s in scales]
    return _resized(c, x, _scaled(c, x, scales), scales, "asymmetric", "floor")


def _scaled(c: Call, x: Tensor, scales: list[float]) -> tuple[int, ...]:
    return checked_shape(c, [math.floor(n * s) for n, s in zip(x.shape, scales, strict=True)])


def _check_scales(c: Call, scales: list[float], count: int) -> None:
    if len(scales) != count or not all(math.isfinite(s) and s > 0 for s in scales):
        raise c.bad(f"scales are {scales}; expected {count} numbers > 0")


def _resized(
    c: Call, x: Tensor, sizes: tuple[int, ...], scales: list[float], rule: str, rounding: str
) -> Tensor:
    mode = _MODES.get(c.str("mode", "nearest"))
    if mode is None:
        raise c.bad(f"mode is {c.str('mode')!r}; expected nearest, linear or cubic")
    whole = x.dtype.is_int and mode != "nearest"
    wide = as_float(x, c.dtype()) if whole else x
    resized = apply(
        "resize", wide, sizes=tuple(sizes), scales=tuple(scales), mode=mode, coordinates=rule, rounding=rounding,
        cubic_a=c.float("cubic_coeff_a", -0.75), exclude_outside=bool(c.int("exclude_outside", 0)),
    )  # fmt: skip
    return as_integer(o.round(resized), c.dtype()) if whole else resized


@op("Resize", since=11)
def resize(c: Call) -> Result:
    x = c.x()
    listed = c.ints("axes")
    axes = list(range(x.ndim)) if listed is None else axes_of(c, listed, x.ndim)
    sizes, scales = _target(c, x, axes)
    rule = c.str("coordinate_transformation_mode", "half_pixel")
    if rule == "align_corners" and c.has(3) and c.known_ints(3):
        # Last elements are aligned: the scale follows from the sizes, even on an axis whose size came from another's
        # scale.
        corners = [size / n if size and n else 1.0 for size, n in zip(sizes, x.shape, strict=True)]
    else:
        corners = scales
    antialias = bool(c.int("antialias", 0)) and c.str("mode", "nearest") != "nearest"
    if rule != "tf_crop_and_resize" and not antialias:
        return _resized(c, x, sizes, corners, rule, c.str("nearest_mode", "round_prefer_floor"))
    roi = [(0.0, 1.0)] * x.ndim
    if rule == "tf_crop_and_resize":
        values = [float(v) for v in c.known(1).reshape(-1)]
        if len(values) != 2 * len(axes) or not all(math.isfinite(v) for v in values):
            raise c.bad(f"roi is {values}; expected two finite numbers for each of the axes {axes}")
        for k, axis in enumerate(axes):
            roi[axis] = (values[k], values[k + len(axes)])
    return _by_products(c, x, sizes, scales, corners, roi, rule, antialias)


def _target(c: Call, x: Tensor, axes: list[int]) -> tuple[tuple[int, ...], list[float]]:
    """The size and scale of every axis."""
    sizes, scales = list(x.shape), [1.0] * x.ndim
    wanted = c.known_ints(3) if c.has(3) else []
    factors = [float(v) for v in c.known(2).reshape(-1)] if c.has(2) else []
    if bool(wanted) == bool(factors):
        raise c.bad("has both scales and sizes, or neither; expected one of them")
    if factors:
        _check_scales(c, factors, len(axes))
        for axis, s in zip(axes, factors, strict=True):
            scales[axis], sizes[axis] = s, math.floor(x.shape[axis] * s)
        return checked_shape(c, sizes), scales
    if len(wanted) != len(axes) or min(wanted) < 0 or any(x.shape[a] == 0 for a in axes):
        raise c.bad(f"sizes {wanted} for the axes {axes} of {x.shape}")
    from fractions import Fraction  # here, since it imports decimal

    policy = c.str("keep_aspect_ratio_policy", "stretch")
    ratios = [Fraction(n, x.shape[a]) for a, n in zip(axes, wanted, strict=True)]
    if policy == "stretch":
        for axis, n, ratio in zip(axes, wanted, ratios, strict=True):
            sizes[axis], scales[axis] = n, float(ratio) or 1.0
    elif policy in ("not_larger", "not_smaller"):
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        for axis in axes:
            sizes[axis], scales[axis] = math.floor(x.shape[axis] * ratio + Fraction(1, 2)), float(ratio) or 1.0
    else:
        raise c.bad(f"keep_aspect_ratio_policy is {policy!r}")
    return checked_shape(c, sizes), scales


class _Axis(Record):
    """How one axis is resized."""

    n: int
    size: int
    scale: float
    roi: tuple[float, float]
    rule: str

    def source(self, i: Array) -> Array:
        """The input coordinates of output elements i."""
        length = self.scale * self.n
        if self.rule == "tf_crop_and_resize":
            start, end = self.roi
            if self.size > 1:
                return start * (self.n - 1) + i * (end - start) * (self.n - 1) / (self.size - 1)
            return i * 0 + 0.5 * (start + end) * (self.n - 1)
        if self.rule == "align_corners":
            return i * 0.0 if length == 1 else i * (self.n - 1) / (length - 1)
        if self.rule == "asymmetric":
            return i / self.scale
        if self.rule == "pytorch_half_pixel" and self.size <= 1:
            return i * 0.0
        if self.rule == "half_pixel_symmetric":
            return self.n / 2 * (1 - self.size / length) + (i + 0.5) / self.scale - 0.5
        return (i + 0.5) / self.scale - 0.5


def _by_products(
    c: Call, x: Tensor, sizes: tuple[int, ...], scales: list[float], corners: list[float],
    roi: list[tuple[float, float]], rule: str, antialias: bool,
) -> Tensor:  # fmt: skip
    mode = _MODES.get(c.str("mode", "nearest"))
    c.table(*sizes)
    outside = np.zeros(sizes, bool) if rule == "tf_crop_and_resize" else None
    result = x if mode == "nearest" else o.cast(x, f32) if x.dtype.is_half else x
    result = as_float(x, c.dtype()) if x.dtype.is_int and mode != "nearest" else result
    for k, (n, size, scale) in enumerate(zip(x.shape, sizes, scales, strict=True)):
        if n == size and scale == 1.0 and roi[k] == (0.0, 1.0):
            continue
        axis = _Axis(n, size, corners[k], roi[k], rule)
        c.table(2, size, n)
        places = axis.source(np.arange(size))
        index, weight = _weights(c, places, n, scale if antialias else 1.0, mode)
        if outside is not None:
            off = (places < 0) | (places > n - 1)
            outside |= off.reshape([size if a == k else 1 for a in range(len(sizes))])
        if mode == "nearest":
            result = o.gather(result, c.tensor(index.reshape(-1)), k)
            continue
        matrix = np.zeros((size, n))
        np.add.at(matrix, (np.arange(size)[:, None], index), weight)
        column = o.moveaxis(result, k, -1)
        moved = o.matmul(o.reshape(column, (-1, n)), c.tensor(matrix.T.astype(result.dtype.np)))
        result = o.moveaxis(o.reshape(moved, (*column.shape[:-1], size)), -1, k)
    result = as_integer(o.round(result), c.dtype()) if result.dtype != x.dtype and x.dtype.is_int else result
    if outside is not None and outside.any():
        fill = c.tensor(np.float64(c.float("extrapolation_value", 0.0)))
        fill = as_integer(o.round(fill), c.dtype()) if x.dtype.is_int else o.cast(fill, result.dtype)
        result = o.where(c.tensor(outside), fill, result)
    return result


def _weights(c: Call, places: Array, n: int, scale: float, mode: str | None) -> tuple[Array, Array]:
    """(places, taps): neighbours and their weights; a scale below 1 widens the kernel, so that every element
    contributes."""
    if mode == "nearest":
        rule = c.str("nearest_mode", "round_prefer_floor")
        up = {
            "floor": np.floor(places),
            "ceil": np.ceil(places),
            "round_prefer_ceil": np.floor(places + 0.5),
        }
        index = np.clip(up.get(rule, np.ceil(places - 0.5)), 0, n - 1)
        return index.astype(np.int64)[:, None], np.ones((len(places), 1))
    shrink = min(scale, 1.0)
    reach = 1 if mode == "linear" else 2
    far = math.floor(-reach / shrink) + 1
    c.table(8, len(places), 2 - 2 * far)
    index = np.floor(places)[:, None] + np.arange(far, 2 - far)
    weight = _kernel(np.abs((index - places[:, None]) * shrink), mode, c.float("cubic_coeff_a", -0.75))
    if c.int("exclude_outside", 0):
        weight = np.where((index >= 0) & (index < n), weight, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):  # no weight lies inside the image: NaN
        weight = weight / np.sum(weight, 1, keepdims=True)
    return np.clip(index, 0, n - 1).astype(np.int64), weight


def _kernel(t: Array, mode: str | None, a: float) -> Array:
    if mode == "linear":
        return np.maximum(1.0 - t, 0.0)
    near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


@op("AffineGrid")
def affine_grid(c: Call) -> Result:
    """The sampling coordinates of an image of `size` under theta; coordinates go from -1 to 1 along each axis. The only
    one of an axis of length 1 is 0, as in torch, to which the text refers."""
    theta, dims = c.x(0), c.known_ints(1)
    count = len(dims) - 2
    if count not in (2, 3) or theta.shape != (dims[0], count, count + 1):
        raise c.bad(
            f"theta {theta.shape} and size {dims}; expected (N, 2, 3) and 4 numbers, or (N, 3, 4) and 5"
        )
    checked_shape(c, [*dims[2:], count + 1])
    c.table(3, *dims[2:], count + 1)
    corners = c.choice("align_corners", 0, 1)
    ends = [1.0 if corners and n != 1 else 1 - 1 / max(n, 1) for n in dims[2:]]
    lines = [np.linspace(-end, end, n) for end, n in zip(ends, dims[2:], strict=True)]
    places = [
        *reversed(np.meshgrid(*lines, indexing="ij")),
        np.ones(dims[2:]),
    ]  # the last axis of the image is x
    base = c.tensor(np.stack(places, -1).reshape(-1, count + 1).astype(theta.dtype.np))
    return o.reshape(o.matmul(base, theta, transpose_b=True), (dims[0], *dims[2:], count))


@op("GridSample")
def grid_sample(c: Call) -> Result:
    mode = _MODES.get(c.str("mode", "linear"))
    if mode is None:
        raise c.bad(f"mode is {c.str('mode')!r}")
    x, dtype = c.x(0), c.dtype()

    def sampled(t: Tensor) -> Tensor:
        border, corners = c.str("padding_mode", "zeros"), bool(c.int("align_corners", 0))
        return o.grid_sample(t, c.x(1), mode=mode, padding=border, align_corners=corners)

    if not x.dtype.is_int:
        return sampled(x)
    if mode != "nearest" or bits_of(dtype) <= 32:
        return as_integer(sampled(as_float(x, dtype)), dtype)
    # f64 does not hold 64 bits, but it holds both halves of them.
    high, low = (o.cast(sampled(o.cast(t, "f64")), "i64") for t in (o.right_shift(x, 32), o.bitwise_and(x, 0xFFFFFFFF)))
    return o.bitwise_or(o.left_shift(high, 32), low)
