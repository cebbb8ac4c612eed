"""3-D Gaussians seen by a camera: their ellipses in a picture, and colours from spherical harmonics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.dtypes import bool_, f32, i32, promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor, apply
from rlx.ops.base import TensorLike, cast_to, tensors
from rlx.ops.elementwise.select import where
from rlx.ops.splats.blend import ALPHA_MIN, MAX_SIDE_PIXELS, tiles_of
from rlx.ops.splats.tiles import TILE_PIXELS, check_size

_FAR = 1e9  # larger numbers are invalid: computations with their squares would overflow f32
_LEAST_FOCAL = 1e-9  # pixels; a picture's size divided by less leaves the range of f32 in gradients
_LEAST_NEAR = 1e-9  # numbers divided by the square of a smaller depth leave the range of f32 in gradients
_SKEW = 0.01  # how far dot products of a rotation's rows may be from 0 and 1: the rounding error of bf16
_WIDEST = 1e4  # limit on the width of a splat, as a multiple of its distance from the camera
_SHORTEST = 1e-12  # the least squared length of a quaternion
_BLUR = 0.3  # square pixels added to each variance
_BESIDE = 0.15  # the projection is linear around a splat's center up to this far outside the picture, in picture sizes


class Projected(NamedTuple):
    """Splats in a picture.

    `splats` (n, 9): x and y in pixels, the inverse covariance's xx, xy and yy, opacity, and the colour. `depth` (n,) is
    f32. `rects` (n, 4), i32: the first tile across and down that a splat touches, and those behind the last; a splat
    that is not drawn touches none.
    """

    splats: Tensor
    depth: Tensor
    rects: Tensor


_GIVEN = ("means", "scales", "rotations", "opacities", "colors", "view")
_NUMBERS = ("fx", "fy", "cx", "cy")


def _rows(x: Tensor) -> list[Tensor]:
    """The columns of x (n, k) as k contiguous tensors (1, n)."""
    n, k = x.shape
    turned = apply("transpose", x, perm=(1, 0))
    return [apply("slice", turned, starts=(i, 0), stops=(i + 1, n), steps=(1, 1)) for i in range(k)]


def _entry(x: Tensor, i: int, j: int) -> Tensor:
    return apply("slice", x, starts=(i, j), stops=(i + 1, j + 1), steps=(1, 1))


def _sane(x: Tensor) -> Tensor:
    """A mask of where x is not NaN and at most _FAR in magnitude."""
    return apply("abs", x) <= _FAR


def _all_of(*tests: Tensor) -> Tensor:
    result = tests[0]
    for test in tests[1:]:
        result = apply("logical_and", result, test)
    return result


def _sum(terms: Sequence[Any]) -> Any:
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def _basis(count: int, x: Any = 0.0, y: Any = 0.0, z: Any = 0.0) -> list[Any]:
    """The real spherical harmonics of degree 0 to 3 at a unit vector, with the Condon-Shortley phase, in the order of
    their degrees and of m = -l to l."""
    root = [math.sqrt(k / math.pi) for k in (1, 3, 15, 5, 35, 105, 21, 7)]
    r1, r3, r15, r5, r35, r105, r21, r7 = root
    xx, yy, zz = x * x, y * y, z * z
    result = [0.5 * r1]
    if count > 1:
        result += [-0.5 * r3 * y, 0.5 * r3 * z, -0.5 * r3 * x]
    if count > 4:
        result += [
            0.5 * r15 * (x * y), -0.5 * r15 * (y * z), 0.25 * r5 * (2.0 * zz - xx - yy), -0.5 * r15 * (x * z),
            0.25 * r15 * (xx - yy),
        ]  # fmt: skip
    if count > 9:
        a, b = 0.25 * math.sqrt(0.5) * r35, 0.25 * math.sqrt(0.5) * r21
        result += [
            -a * (y * (3.0 * xx - yy)), 0.5 * r105 * (x * y * z), -b * (y * (4.0 * zz - xx - yy)),
            0.25 * r7 * (z * (2.0 * zz - 3.0 * xx - 3.0 * yy)), -b * (x * (4.0 * zz - xx - yy)),
            0.25 * r105 * (z * (xx - yy)), -a * (x * (xx - 3.0 * yy)),
        ]  # fmt: skip
    return result


def project(
    means: TensorLike,
    scales: TensorLike,
    rotations: TensorLike,
    opacities: TensorLike,
    colors: TensorLike,
    view: TensorLike,
    *,
    fx: Any,
    fy: Any,
    cx: Any,
    cy: Any,
    width: int,
    height: int,
    near: float = 0.01,
) -> Projected:
    """The ellipses and colours of 3-D Gaussians in the picture of a camera.

    Shape, Raises: as `rlx.splats.render`, which also says which splats are not drawn. Of a camera with a NaN, an
    infinity or a number beyond 1e9, known in a run only, no splat is drawn. Dtype: f32, or f64 where an input is.
    Gradient: to every input and to the camera, by those of elementwise ops; splats that are not drawn get zeros.
    The covariance in the picture is J W Σ Wᵀ Jᵀ + 0.3 I, with J the projection's derivative at the mean, or, for means
    more than 15 % of the picture beside it, at its edge there. Its determinant is a sum of squares, so that no shape
    makes it singular.
    Follows Zwicker et al., "EWA Splatting", 2002; Kerbl et al., "3D Gaussian Splatting for Real-Time Radiance Field
    Rendering", 2023.
    """
    splats = (means, scales, rotations, opacities, colors, view)
    return seen_by("splats.project", splats, (fx, fy, cx, cy), width, height, near).projected


class Seen(NamedTuple):
    """What `render` needs of a projection: `ahead` (n, 1) are the depths, with gradients, and 1 for a splat that is not
    drawn; `usable` (1, 1) says whether the camera is valid, as known in a run."""

    projected: Projected
    ahead: Tensor
    usable: Tensor


def seen_by(
    op: str, splats: Sequence[TensorLike], camera: Sequence[Any], width: int, height: int, near: Any
) -> Seen:
    """The projection for the public function `op`."""
    width, height = (check_size(op, k, v, 1, MAX_SIDE_PIXELS) for k, v in (("width", width), ("height", height)))
    for name, value in zip((*_GIVEN, *_NUMBERS), (*splats, *camera), strict=True):
        if value is None or isinstance(value, str | dict | complex):
            raise DTypeError(f"{op}: {name} is {value!r:.60}; expected {_expected(name)}")
    tensor_of = dict(zip((*_GIVEN, *_NUMBERS), tensors(op, *splats, *camera), strict=True))
    _check(op, {k: tensor_of[k] for k in _GIVEN}, {k: tensor_of[k] for k in _NUMBERS})
    number = isinstance(near, int | float | np.integer | np.floating) and not isinstance(near, bool)
    if not number or not _LEAST_NEAR <= near < math.inf:
        raise ShapeError(f"{op}: near is {near!r}; expected a distance from 1e-9")
    near = float(near)
    dtype = promote(f32, *(tensor_of[k].dtype for k in _GIVEN))
    dtype = f32 if dtype.is_half else dtype
    means, scales, rotations, opacities, colors, view = (cast_to(tensor_of[k], dtype) for k in _GIVEN)
    n = means.shape[0]

    fx, fy, cx, cy = (cast_to(tensor_of[k], dtype) for k in _NUMBERS)
    entries = [[_entry(view, i, j) for j in range(4)] for i in range(3)]
    usable = _all_of(
        *(_sane(t) for row in entries for t in row), *(_sane(t) for t in (fx, fy, cx, cy)),
        fx >= _LEAST_FOCAL, fy >= _LEAST_FOCAL,
    )  # fmt: skip
    rotation = [[where(usable, t, 0.0) for t in row[:3]] for row in entries]
    shift = [where(usable, row[3], 0.0) for row in entries]
    fx, fy, cx, cy = (where(usable, t, other) for t, other in ((fx, 1.0), (fy, 1.0), (cx, 0.0), (cy, 0.0)))

    # Invalid numbers are replaced before they are used: zero times infinity would be NaN in gradients.
    world, sizes, turns = _rows(means), _rows(scales), _rows(rotations)
    (opacity,) = _rows(apply("reshape", opacities, shape=(n, 1)))
    opacity_sane = _all_of(_sane(opacity), opacity >= ALPHA_MIN)
    drawn = _all_of(usable, *(_sane(t) for t in (*world, *sizes, *turns)), opacity_sane)
    world, sizes = ([where(_sane(t), t, 0.0) for t in ts] for ts in (world, sizes))
    turns = [where(_sane(t), t, 0.0) for t in turns]
    opacity = where(opacity_sane, opacity, 1.0)
    squared = _sum([t * t for t in turns])
    drawn = _all_of(drawn, squared >= _SHORTEST)
    squared = where(squared >= _SHORTEST, squared, 1.0)

    x, y, z = (_sum([rotation[i][j] * world[j] for j in range(3)]) + shift[i] for i in range(3))
    widest = apply(
        "maximum", apply("maximum", apply("abs", sizes[0]), apply("abs", sizes[1])), apply("abs", sizes[2])
    )
    drawn = _all_of(drawn, _sane(x), _sane(y), _sane(z), z > near, widest <= z * _WIDEST)
    depth = z
    x, y, z = where(drawn, x, 0.0), where(drawn, y, 0.0), where(drawn, z, 1.0)
    sizes = [where(drawn, s, 0.0) for s in sizes]

    # W R: the axes of each splat as the camera sees them.
    w, i, j, k = turns
    twice = 2.0 / squared
    axes = [
        [1.0 - twice * (j * j + k * k), twice * (i * j - w * k), twice * (i * k + w * j)],
        [twice * (i * j + w * k), 1.0 - twice * (i * i + k * k), twice * (j * k - w * i)],
        [twice * (i * k - w * j), twice * (j * k + w * i), 1.0 - twice * (i * i + j * j)],
    ]
    seen = [[_sum([rotation[r][m] * axes[m][c] for m in range(3)]) for c in range(3)] for r in range(3)]
    right, down = x / z, y / z

    def linear(t: Any, f: Any, c: Any, side: int) -> Any:
        low, high = (-_BESIDE * side - c) / f, ((1 + _BESIDE) * side - c) / f
        return apply("minimum", apply("maximum", t, low), high)

    along, across = linear(right, fx, cx, width), linear(down, fy, cy, height)
    first = [fx / z * (seen[0][c] - along * seen[2][c]) * sizes[c] for c in range(3)]
    second = [fy / z * (seen[1][c] - across * seen[2][c]) * sizes[c] for c in range(3)]
    xx, xy, yy = (
        _sum([a * b for a, b in zip(p, q, strict=True)])
        for p, q in ((first, first), (first, second), (second, second))
    )
    minors = [first[a] * second[b] - first[b] * second[a] for a, b in ((0, 1), (0, 2), (1, 2))]
    determinant = _sum([m * m for m in minors]) + _BLUR * (xx + yy) + _BLUR * _BLUR
    xx, yy = xx + _BLUR, yy + _BLUR
    place = (fx * right + cx, fy * down + cy)
    inverse = (yy / determinant, -xy / determinant, xx / determinant)

    color, color_sane = _colors(colors, world, rotation, shift)
    drawn = _all_of(drawn, color_sane, *(_sane(t) for t in (*place, xx, yy)), determinant <= np.float32(1e37))
    columns = [where(drawn, t, 0.0) for t in (*place, *inverse, opacity, color)]
    fields = apply("transpose", apply("concat", *columns, axis=0), perm=(1, 0))
    # A pixel takes alpha ≥ 1/255 where the exponent is below `power`; a hundredth of a pixel more is for rounding.
    power = 2.0 * apply("log", opacity * (1 / ALPHA_MIN))
    power = apply("maximum", power, power * 0.0)
    rects = _tiles(
        place, [apply("sqrt", power * v) * 1.0001 + 0.01 for v in (xx, yy)], (width, height), drawn
    )
    projected = Projected(fields, apply("reshape", cast_to(depth, f32), shape=(n,)), rects)
    return Seen(projected, apply("reshape", z, shape=(n, 1)), usable)


def _tiles(place: Sequence[Any], reach: Sequence[Any], sides: tuple[int, int], drawn: Tensor) -> Tensor:
    """The first tile across and down with a pixel centre within reach, and one past the last."""
    first: list[Any] = []
    last: list[Any] = []
    for at, by, count in zip(place, reach, tiles_of(*sides), strict=True):
        low = apply("floor", apply("ceil", at - by - 0.5) / float(TILE_PIXELS))
        high = apply("floor", apply("floor", at + by - 0.5) / float(TILE_PIXELS)) + 1.0
        for bounds, edge in ((first, low), (last, high)):
            limited = apply("minimum", apply("maximum", edge, edge * 0.0), edge * 0.0 + float(count))
            bounds.append(cast_to(where(drawn, limited, 0.0), i32))
    return apply("transpose", apply("concat", *first, *last, axis=0), perm=(1, 0))


def _colors(
    colors: Tensor, world: Sequence[Any], rotation: Sequence[Sequence[Any]], shift: Sequence[Any]
) -> tuple[Any, Tensor]:
    """The colours (3, n) seen from the camera, at least 0, and a mask of the valid ones (1, n)."""
    if colors.ndim == 2:
        turned = apply("transpose", colors, perm=(1, 0))
        sane = _all_sane(turned, (0,))
        return where(_sane(turned), turned, 0.0), sane
    count = colors.shape[1]
    turned = apply("transpose", colors, perm=(1, 2, 0))
    sane = _all_sane(turned, (0, 1))
    turned = where(_sane(turned), turned, 0.0)
    parts: Any = _basis(1)[0] * turned
    if count > 1:
        centre = [-_sum([rotation[m][c] * shift[m] for m in range(3)]) for c in range(3)]
        away = [world[c] - centre[c] for c in range(3)]
        length = _sum([t * t for t in away])
        shorter = apply("rsqrt", where(length >= _SHORTEST, length, 1.0))
        first, *others = _basis(count, *(t * shorter for t in away))
        basis = apply("concat", away[0] * 0.0 + first, *others, axis=0)
        # One product and one sum over all coefficients: slices of single ones would each have a gradient of the full
        # size.
        parts = apply("reshape", basis, shape=(count, 1, colors.shape[0])) * turned
    shifted = apply("sum", parts, axes=(0,), keepdims=False) + 0.5
    return apply("relu", shifted), sane


def _all_sane(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A mask (1, n) of where all numbers along these axes (all but the last) are valid by `_sane`."""
    ends = (apply(op, x, axes=axes, keepdims=False) for op in ("max", "min"))
    return apply("reshape", _all_of(*(_sane(t) for t in ends)), shape=(1, x.shape[-1]))


def _check(op: str, splats: dict[str, Tensor], numbers: dict[str, Tensor]) -> None:
    n = splats["means"].shape[0] if splats["means"].ndim else 0
    expected: dict[str, tuple[int, ...]] = {
        "means": (n, 3), "scales": (n, 3), "rotations": (n, 4), "opacities": (n,), "view": (4, 4),
    }  # fmt: skip
    for name, shape in expected.items():
        if splats[name].shape != shape:
            beside = "" if name in ("means", "view") else f" beside means {splats['means'].type}"
            wanted = "(n, 3), the places of n splats" if name == "means" else shape
            raise ShapeError(f"{op}: {name} is {splats[name].type}{beside}; expected {wanted}")
    colors = splats["colors"].shape
    if colors not in ((n, 3), *((n, (degree + 1) ** 2, 3) for degree in range(4))):
        raise ShapeError(
            f"{op}: colors is {splats['colors'].type}; expected {(n, 3)}, or {(n, 'k', 3)} with k of 1, 4, 9 or 16 "
            "coefficients of spherical harmonics"
        )
    for name, t in (splats | numbers).items():
        if t.dtype == bool_ or (name in splats and not t.dtype.is_float):
            raise DTypeError(f"{op}: {name} is {t.type}; expected floats")
    for name, t in numbers.items():
        if t.ndim:
            raise ShapeError(f"{op}: {name} is {t.type}; expected one number")
        _check_number(op, name, t)
    _check_view(op, splats["view"])


def _expected(name: str) -> str:
    return "a number of pixels, or a Tensor of one" if name in _NUMBERS else "an array or a Tensor"


def _check_number(op: str, name: str, t: Tensor) -> None:
    """Checks one of the camera's numbers, if it is known now. Raises: ShapeError."""
    if not t.node.op.is_constant:
        return
    value = float(t.node.attrs["value"])
    low, expected = (
        (_LEAST_FOCAL, "a focal length in pixels, from 1e-9 to 1e9; to mirror a picture negate a row of view")
        if name in ("fx", "fy")
        else (-_FAR, "a place in pixels, from -1e9 to 1e9")
    )
    if not low <= value <= _FAR:
        raise ShapeError(f"{op}: {name} is {value:g}; expected {expected}")


def _check_view(op: str, view: Tensor) -> None:
    """Raises: ShapeError for a known matrix with invalid numbers, or whose rows are not orthonormal."""
    if not view.node.op.is_constant:
        return
    rows = np.asarray(view.node.attrs["value"]).astype(np.float64)[:3]
    if not (np.abs(rows) <= _FAR).all():
        raise ShapeError(f"{op}: view has NaN, infinity or numbers beyond 1e9; expected a rotation and a translation")
    off = np.abs(rows[:, :3] @ rows[:, :3].T - np.eye(3)).max()
    if off > _SKEW:
        raise ShapeError(
            f"{op}: view's upper 3 x 3 part is no rotation: products of its rows are {off:.2g} from 1 with themselves, "
            "or from 0 with each other; expected a matrix that takes points to the camera's coordinates and scales "
            "nothing (scale means and scales instead)"
        )


__all__: list[str] = []
