"""splat_blend and splat_blend_grad: the splats of each tile's list blended over its pixels, and the gradient.

Lists are what splat_tiles gives (`tiles.py` says what ids, ranges, places and spans are): ranges ascend from 0 without
a gap, so that the gradient has a row for each place. A pixel begins with a transmittance ("light") of 1. For each splat
alpha = opacity * exp(-q / 2), with q the squared Mahalanobis distance; the pixel adds alpha * light * colour to its
colour and multiplies its light by 1 - alpha.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.autodiff.pullback import pullback
from rlx.dtypes import f32, f64, i32
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ops.base import cast_to, check_inputs
from rlx.ops.matmul import matmul
from rlx.ops.numeric import Array
from rlx.ops.splats.tiles import MAX_PAIRS, TILE_PIXELS, check_size

FIELDS = 9  # a splat's x, y, the inverse covariance's xx, xy and yy, opacity, red, green, blue
MAX_SIDE_PIXELS = 1 << 16
ALPHA_MIN = 1 / 255  # a pixel skips a splat with a smaller alpha
# Not 0.99: two such splats leave a light of exactly STOP, and rounding would decide whether a pixel is finished.
ALPHA_MAX = 127 / 128
FARTHEST = 150.0  # a pixel skips a splat with a larger q: even an opacity of 1e30 gives less than ALPHA_MIN
STOP = 1e-4  # a pixel is finished when its light falls below this


def tiles_of(width: int, height: int) -> tuple[int, int]:
    """The tiles across and down a picture."""
    return -(-width // TILE_PIXELS), -(-height // TILE_PIXELS)


def _picture(op: str, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """The type of the picture. Raises: ShapeError, DTypeError."""
    splats, ids, ranges, places, spans = types
    width, height = (check_size(op, name, attrs[name], 1, MAX_SIDE_PIXELS) for name in ("width", "height"))
    across, down = tiles_of(width, height)
    tiles, shapes = across * down, [t.shape for t in types]
    n, pairs = (t.shape[0] if t.rank else 0 for t in (splats, ids))
    if shapes != [(n, FIELDS), (pairs,), (tiles + 1,), (pairs,), (n, 2)]:
        raise ShapeError(
            f"{op}: splats are {splats}, ids {ids}, ranges {ranges}, places {places}, spans {spans}; expected "
            f"(n, {FIELDS}), (pairs,), {(tiles + 1,)}, (pairs,) and (n, 2), for a picture of {across} x {down} tiles"
        )
    if pairs > MAX_PAIRS:
        raise ShapeError(f"{op}: ids are {ids}; expected at most {MAX_PAIRS:,}")
    if splats.dtype not in (f32, f64) or any(t.dtype != i32 for t in types[1:]):
        raise DTypeError(
            f"{op}: splats are {splats} and the others {', '.join(map(str, types[1:]))}; expected f32 or "
            "f64, and i32"
        )
    return TensorType((height, width, 4), splats.dtype)


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("splat_blend", types, 5)
    return _picture("splat_blend", types, attrs)


def _grad_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "splat_blend_grad"
    check_inputs(op, types, 6)
    if types[0] != _picture(op, types[1:], attrs):
        raise ShapeError(
            f"{op}: d is {types[0]}; expected the type of the picture, {_picture(op, types[1:], attrs)}"
        )
    return types[1]


def listed(ids: Array, ranges: Array, n: int, width: int, height: int) -> Iterator[tuple[Any, Array, Array]]:
    """The tiles with nonempty lists: the tile's slices of the picture, its places in the lists, and the splats
    there."""
    across, _ = tiles_of(width, height)
    bounds = np.clip(ranges, 0, ids.size)
    for tile in np.flatnonzero(bounds[1:] > bounds[:-1]).tolist():
        at = np.arange(bounds[tile], bounds[tile + 1])
        at = at[(ids[at] >= 0) & (ids[at] < n)]
        y, x = tile // across * TILE_PIXELS, tile % across * TILE_PIXELS
        if at.size:
            yield (slice(y, min(y + TILE_PIXELS, height)), slice(x, min(x + TILE_PIXELS, width))), at, ids[at]


def centres(place: Any, dtype: Any) -> tuple[Array, Array]:
    """The coordinates of the centres of a tile's pixels: a row of x, a column of y."""
    y, x = (np.arange(s.start, s.stop).astype(dtype) + dtype(0.5) for s in place)
    return x, y[:, None]


def _alpha(row: Array, x: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    """alpha of each pixel (0 where it skips the splat), the distances along x and y, and exp(-q / 2) (likewise 0)."""
    dx, dy = x - row[0], y - row[1]
    q = row[2] * dx * dx + 2 * row[3] * dx * dy + row[4] * dy * dy
    falls = np.exp(-0.5 * q)
    alpha = np.minimum(row[5] * falls, ALPHA_MAX)
    seen = (q >= 0) & (q <= FARTHEST) & (alpha >= ALPHA_MIN)
    return np.where(seen, alpha, 0), dx, dy, np.where(seen, falls, 0)


def _reference(
    splats: Array, ids: Array, ranges: Array, places: Array, spans: Array, *, width: int, height: int
) -> Array:
    """One splat after the other, over all pixels of its tile."""
    result = np.zeros((height, width, 4), splats.dtype)
    result[..., 3] = 1
    with np.errstate(all="ignore"):
        for place, _, members in listed(ids, ranges, len(splats), width, height):
            x, y = centres(place, splats.dtype.type)
            color, light = result[place][..., :3], result[place][..., 3]
            for row in splats[members]:
                alpha = np.where(light >= STOP, _alpha(row, x, y)[0], 0)
                np.add(color, (alpha * light)[..., None] * row[6:], out=color, where=alpha[..., None] > 0)
                light *= 1 - alpha
    return result


def _grad_reference(
    d: Array,
    splats: Array,
    ids: Array,
    ranges: Array,
    places: Array,
    spans: Array,
    *,
    width: int,
    height: int,
) -> Array:
    """Goes from the last splat to the first: a row of gradients for each place of the lists, then each splat's sum.

    With d the gradient of the picture, `behind` is the sum of d times what each pixel gets from the splats behind, and
    from the light that is left; `shade` is d times the splat's colour, `into` the gradient of alpha, `of_q` that of q.
    """
    rows = np.zeros((ids.size, FIELDS), splats.dtype)
    with np.errstate(all="ignore"):
        for place, at, members in listed(ids, ranges, len(splats), width, height):
            x, y = centres(place, splats.dtype.type)
            light = np.ones(d[place].shape[:2], splats.dtype)
            course = []
            for row in splats[members]:
                alpha, dx, dy, falls = _alpha(row, x, y)
                alpha = np.where(light >= STOP, alpha, 0)
                course.append((alpha, light, dx, dy, falls))
                light = light * (1 - alpha)
            behind = light * d[place][..., 3]
            for row, p, (alpha, light, dx, dy, falls) in zip(
                splats[members][::-1], at[::-1], course[::-1], strict=True
            ):
                shade = d[place][..., :3] @ row[6:]
                into = np.where(alpha > 0, light * shade - behind / (1 - alpha), 0)
                behind = np.where(alpha > 0, behind + alpha * light * shade, behind)
                into = np.where(row[5] * falls < ALPHA_MAX, into, 0)
                of_q = -0.5 * alpha * into
                rows[p, 0] = -np.sum(of_q * (2 * row[2] * dx + 2 * row[3] * dy))
                rows[p, 1] = -np.sum(of_q * (2 * row[3] * dx + 2 * row[4] * dy))
                rows[p, 2] = np.sum(of_q * dx * dx)
                rows[p, 3] = np.sum(of_q * 2 * dx * dy)
                rows[p, 4] = np.sum(of_q * dy * dy)
                rows[p, 5] = np.sum(falls * into)
                rows[p, 6:] = np.einsum("yx,yxc->c", alpha * light, d[place][..., :3])
    return summed(rows, places, spans)


def summed(rows: Array, places: Array, spans: Array) -> Array:
    """The sum of the rows of each span: of rows[places[start]] to rows[places[start + count - 1]]."""
    result = np.zeros((len(spans), FIELDS), rows.dtype)
    kept = (places >= 0) & (places < len(rows))
    moved = np.where(kept[:, None], rows[np.where(kept, places, 0)], 0) if len(rows) else rows
    for i, (start, stop) in enumerate(zip(*bounds_of(spans, len(rows)), strict=True)):
        result[i] = moved[start:stop].sum(axis=0)
    return result


def bounds_of(spans: Array, pairs: int) -> tuple[Array, Array]:
    """Where each span begins and ends, within the pairs."""
    start = np.clip(spans[:, 0].astype(np.int64), 0, pairs)
    return start, start + np.clip(spans[:, 1].astype(np.int64), 0, pairs - start)


def _column(x: Tensor, k: int) -> Tensor:
    return apply("slice", x, starts=(0, k), stops=(x.shape[0], k + 1), steps=(1, 1))


def _dense(rows: Tensor, real: Tensor, ranges: Tensor, width: int, height: int) -> Tensor:
    """The picture from a row of fields for each pair of the list, by comparing every pair with every pixel.

    This is for ONNX, which has no such operator, and for small pictures: memory is pairs times pixels."""
    g, dtype, pairs = rows.graph, rows.dtype, rows.shape[0]
    across, _ = tiles_of(width, height)
    y, x = np.divmod(np.arange(width * height), width)
    tile = y // TILE_PIXELS * across + x // TILE_PIXELS
    begin, end = (
        apply("reshape", apply("gather", ranges, g.constant(tile + k), axis=0), shape=(1, tile.size))
        for k in (0, 1)
    )
    number = g.constant(np.arange(pairs, dtype=np.int32).reshape(-1, 1))
    here = apply("logical_and", apply("logical_and", number >= begin, number < end), real)
    dx, dy = (
        g.constant((c.reshape(1, -1) + 0.5).astype(dtype.np)) - _column(rows, k) for k, c in enumerate((x, y))
    )
    a, b, c, o = (_column(rows, k) for k in range(2, 6))
    q = a * dx * dx + 2.0 * b * dx * dy + c * dy * dy
    alpha = apply("minimum", o * apply("exp", q * -0.5), g.constant(np.asarray(ALPHA_MAX, dtype.np)))
    seen = apply("logical_and", apply("logical_and", q >= 0.0, q <= FARTHEST), alpha >= ALPHA_MIN)
    seen = apply("logical_and", here, seen)
    zero = g.constant(np.zeros((), dtype.np))
    alpha = apply("where", seen, alpha, zero)
    light = apply("cumprod", 1.0 - alpha, axis=0, exclusive=True, reverse=False)
    alpha = apply("where", light >= STOP, alpha, zero)
    colors = apply("slice", rows, starts=(0, 6), stops=(pairs, FIELDS), steps=(1, 1))
    color = matmul(alpha * light, colors, transpose_a=True)
    left = apply("prod", 1.0 - alpha, axes=(0,), keepdims=False)
    image = apply("concat", color, apply("reshape", left, shape=(tile.size, 1)), axis=1)
    return apply("reshape", image, shape=(height, width, 4))


def _gathered(splats: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The fields of each pair's splat, and a mask of the pairs that have one, (pairs, 1)."""
    n, g = splats.shape[0], splats.graph
    real = apply("logical_and", ids >= 0, ids < n)
    safe = apply("where", real, ids, g.constant(np.int32(0)))
    return apply("gather", splats, safe, axis=0), apply("reshape", real, shape=(ids.shape[0], 1))


def _nothing(splats: Tensor, ids: Tensor) -> bool:
    return splats.shape[0] == 0 or ids.shape[0] == 0


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    splats, ids, ranges, _, _ = inputs
    if _nothing(splats, ids):
        empty = np.zeros((attrs["height"], attrs["width"], 4), splats.dtype.np)
        empty[..., 3] = 1
        return splats.graph.constant(empty)
    return _dense(*_gathered(splats, ids), ranges, attrs["width"], attrs["height"])


def _grad_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    d, splats, ids, ranges, places, spans = inputs
    g, pairs = d.graph, ids.shape[0]
    if _nothing(splats, ids):
        return g.constant(np.zeros(splats.shape, splats.dtype.np))
    rows, real = _gathered(splats, ids)
    (gradient,) = pullback([_dense(rows, real, ranges, attrs["width"], attrs["height"])], [d], [rows], stop=True)
    assert gradient is not None
    zero = g.constant(np.int32(0))
    kept = apply("logical_and", places >= 0, places < pairs)
    moved = apply("gather", gradient, apply("where", kept, places, zero), axis=0)
    number = g.constant(np.arange(pairs, dtype=np.int32).reshape(1, -1))
    start = apply("minimum", apply("maximum", _column(spans, 0), zero), g.constant(np.int32(pairs)))
    count = apply("minimum", apply("maximum", _column(spans, 1), zero), g.constant(np.int32(pairs)) - start)
    own = apply("logical_and", number >= start, number < start + count)
    own = apply("logical_and", own, apply("reshape", kept, shape=(1, pairs)))
    return matmul(cast_to(own, splats.dtype), moved)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    return (
        (None,) * 5
        if grads[0] is None
        else (apply("splat_blend_grad", grads[0], *node.inputs, **node.attrs),) + (None,) * 4
    )


register(
    Op("splat_blend", "splats", _infer, _reference, "pixel by pixel, in Python's floats", _vjp,
       kernel="splat_blend", decompose=_decompose)
)  # fmt: skip
register(
    Op("splat_blend_grad", "splats", _grad_infer, _grad_reference, "torch.autograd of the blending of each pixel",
       NOT_DIFFERENTIABLE, kernel="splat_blend_grad", decompose=_grad_decompose)
)  # fmt: skip

__all__: list[str] = []
