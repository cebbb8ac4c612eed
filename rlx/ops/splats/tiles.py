"""splat_tiles: for each tile of a picture, the splats that touch it, nearest first; of a fixed capacity.

A pair is a splat and a tile that it touches. Pairs are numbered in the order of the splats' depths, so that those of
one splat are adjacent, and by rows of tiles within a splat. The first `max_pairs` are kept. Inputs: depth (n,), and
rects (n, 4), the first tile across and down that a splat touches and one past the last. Outputs, all i32: `ids`
(max_pairs,), the splat at each place of the lists, which follow each other tile by tile; `ranges` (tiles + 1,), the
place where each tile's list begins; `places` (max_pairs,), the place of each pair; `spans` (n, 2), each splat's first
pair and how many it has; `total`, the number of all pairs, kept or not. ids and places are -1 where there is no pair.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.dtypes import f32, i32, i64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Op, Tensor, TensorType, apply, register
from rlx.ir.types import is_length
from rlx.ops.base import cast_to, check_inputs
from rlx.ops.numeric import Array
from rlx.ops.order import order

TILE_PIXELS = 16  # a tile's side
COUNT_LIMIT = 2**31 - 1  # `total` saturates here
MAX_PAIRS = 1 << 28  # limit on `max_pairs`: the elements of their gradients are counted in 32 bits
_LARGEST_SIDE = 1 << 12  # counted in tiles; the number of a picture's tiles then fits in 31 bits


def check_size(op: str, name: str, value: object, low: int, high: int) -> int:
    """A size among the attributes. Raises: ShapeError."""
    if not is_length(value) or not low <= int(value) <= high:  # type: ignore[call-overload]
        raise ShapeError(f"{op}: {name} is {value!r}; expected an int from {low} to {high}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    op = "splat_tiles"
    check_inputs(op, types, 2)
    depth, rects = types
    if depth.rank != 1 or rects.shape != (*depth.shape, 4):
        raise ShapeError(f"{op}: depth is {depth} beside rects {rects}; expected (n,) and (n, 4)")
    if depth.dtype != f32 or rects.dtype != i32:
        raise DTypeError(f"{op}: depth is {depth} beside rects {rects}; expected f32 and i32")
    across, down = (check_size(op, name, attrs[name], 1, _LARGEST_SIDE) for name in ("across", "down"))
    pairs = check_size(op, "max_pairs", attrs["max_pairs"], 1, MAX_PAIRS)
    n = depth.shape[0]
    shapes: tuple[tuple[int, ...], ...] = ((pairs,), (across * down + 1,), (pairs,), (n, 2), ())
    return tuple(TensorType(shape, i32) for shape in shapes)


def pairs_of(depth: Array, rects: Array, across: int, down: int) -> tuple[Array, Array, Array]:
    """The splats in the order of their depths, the tiles that each covers, and the running numbers of pairs (i64)."""
    inside = np.clip(rects, 0, np.array([across, down, across, down], np.int32)).astype(np.int64)
    sides = np.maximum(inside[:, 2:] - inside[:, :2], 0)
    nearest = order(depth, 0, False)
    return nearest, inside, np.cumsum((sides[:, 0] * sides[:, 1])[nearest], dtype=np.int64)


def _reference(
    depth: Array, rects: Array, *, across: int, down: int, max_pairs: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Pair by pair, in the order of depths: each is appended to its tile's list."""
    nearest, inside, ends = pairs_of(depth, rects, across, down)
    tiles: list[list[tuple[int, int]]] = [[] for _ in range(across * down)]
    spans = np.zeros((len(depth), 2), np.int32)
    j = 0
    for splat, end in zip(nearest.tolist(), ends.tolist(), strict=True):
        x0, y0, x1, y1 = inside[splat].tolist()
        spans[splat] = j, min(end, max_pairs) - j
        for y in range(y0, y1):
            for x in range(x0, x1):
                if j < max_pairs:
                    tiles[y * across + x].append((splat, j))
                    j += 1
    ids, places = np.full(max_pairs, -1, np.int32), np.full(max_pairs, -1, np.int32)
    listed = [pair for tile in tiles for pair in tile]
    for place, (splat, pair) in enumerate(listed):
        ids[place] = splat
        places[pair] = place
    ranges = np.cumsum([0, *(len(tile) for tile in tiles)]).astype(np.int32)
    total = int(ends[-1]) if len(ends) else 0
    return ids, ranges, places, spans, np.asarray(min(total, COUNT_LIMIT), np.int32)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    """The lists by comparing every pair with every splat and tile: for small pictures."""
    depth, rects = inputs
    across, down, pairs = attrs["across"], attrs["down"], attrs["max_pairs"]
    n, tiles = depth.shape[0], across * down
    g = depth.graph
    if n == 0:
        shapes = ((pairs,), (tiles + 1,), (pairs,), (0, 2), ())
        return tuple(g.constant(np.full(s, -1 if s == (pairs,) else 0, np.int32)) for s in shapes)
    nearest = apply("argsort", depth, axis=0, descending=False)
    limits = g.constant(np.array([across, down, across, down], np.int32))
    inside = apply("minimum", apply("maximum", rects, g.constant(np.int32(0))), limits)
    inside = apply("gather", inside, nearest, axis=0)
    x0, y0, x1, y1 = (
        apply("reshape", apply("slice", inside, starts=(0, k), stops=(n, k + 1), steps=(1, 1)), shape=(n,))
        for k in range(4)
    )
    zero = g.constant(np.int32(0))
    width, height = apply("maximum", x1 - x0, zero), apply("maximum", y1 - y0, zero)
    counts = cast_to(width * height, i64)
    ends = apply("cumsum", counts, axis=0, exclusive=False, reverse=False)
    capacity = g.constant(np.int64(pairs))
    ends32 = cast_to(apply("minimum", ends, capacity), i32)
    starts = cast_to(apply("minimum", ends - counts, capacity), i32)
    last = apply("slice", ends, starts=(n - 1,), stops=(n,), steps=(1,))
    total = apply("reshape", cast_to(apply("minimum", last, g.constant(np.int64(COUNT_LIMIT))), i32), shape=())
    # The splat of each pair: its index is the number of splats whose pairs end before it.
    number = g.constant(np.arange(pairs, dtype=np.int32))
    column = apply("reshape", number, shape=(pairs, 1))
    row = apply("reshape", ends32, shape=(1, n))
    which = apply("sum", cast_to(row <= column, i32), axes=(1,), keepdims=False)
    real = which < n
    which = apply("minimum", which, g.constant(np.int32(n - 1)))
    first, x, y, w = (apply("gather", t, which, axis=0) for t in (starts, x0, y0, width))
    w = apply("maximum", w, g.constant(np.int32(1)))
    at = number - first
    down_by = apply("floor_divide", at, w)
    key = (y + down_by) * across + x + (at - down_by * w)
    key = apply("where", real, key, g.constant(np.int32(tiles)))
    by_tile = apply("argsort", key, axis=0, descending=False)
    splat = cast_to(apply("gather", nearest, which, axis=0), i32)
    none = g.constant(np.int32(-1))
    listed = apply("gather", apply("where", real, splat, none), by_tile, axis=0)
    keys = apply("reshape", key, shape=(1, pairs))
    tile = g.constant(np.arange(tiles + 1, dtype=np.int32).reshape(-1, 1))
    ranges = apply("sum", cast_to(keys < tile, i32), axes=(1,), keepdims=False)
    back = cast_to(apply("argsort", by_tile, axis=0, descending=False), i32)
    places = apply("where", real, back, none)
    back_to_splat = apply("argsort", nearest, axis=0, descending=False)
    both = apply("concat", *(apply("reshape", t, shape=(n, 1)) for t in (starts, ends32 - starts)), axis=1)
    return listed, ranges, places, apply("gather", both, back_to_splat, axis=0), total


register(
    Op("splat_tiles", "splats", _infer, _reference, "lists of Python, sorted by depth", NOT_DIFFERENTIABLE,
       kernel="splat_pairs", decompose=_decompose)
)  # fmt: skip

__all__: list[str] = []
