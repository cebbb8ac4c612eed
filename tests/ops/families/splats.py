"""Judges (loops over pixels, and torch's gradients of blending) and gradient cases of Gaussian splatting."""

from __future__ import annotations

import numpy as np

from rlx import ops
from rlx.ir import Tensor, apply
from rlx.ops.splats.blend import TILE_PIXELS, tiles_of
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge
from tests.ops.plain_splats import blended
from tests.outside import outside


def _tiles(depth: Array, rects: Array, *, across: int, down: int, max_pairs: int) -> list[Array]:
    """All pairs in the order of the depths, NaN last, cut at the capacity, and then sorted by tile."""
    keys = [(d != d, 0.0 if d != d else d + 0.0, i) for i, d in enumerate(depth.tolist())]
    pairs, total, spans = [], 0, np.zeros((len(keys), 2), np.int32)
    for _, _, i in sorted(keys):
        x0, y0, x1, y1 = rects[i].tolist()
        own = [
            (y * across + x, i)
            for y in range(max(y0, 0), min(y1, down))
            for x in range(max(x0, 0), min(x1, across))
        ]
        total += len(own)
        spans[i] = len(pairs), len(own[: max_pairs - len(pairs)])
        pairs += own[: max_pairs - len(pairs)]
    by_tile = sorted(range(len(pairs)), key=lambda j: pairs[j][0])
    none = [-1] * (max_pairs - len(pairs))
    ids = [pairs[j][1] for j in by_tile] + none
    places = np.argsort(by_tile).tolist() + none
    ranges = [sum(tile < t for tile, _ in pairs) for t in range(across * down + 1)]
    return [np.array(t, np.int32) for t in (ids, ranges, places)] + [spans, np.array(total, np.int32)]


def _list_of(tile: int, ids: Array, ranges: Array, n: int) -> list[tuple[int, int]]:
    return [(p, i) for p, i in enumerate(ids.tolist()) if ranges[tile] <= p < ranges[tile + 1] and 0 <= i < n]


def _picture(
    splats: Array, ids: Array, ranges: Array, places: Array, spans: Array, *, width: int, height: int
) -> Array:
    made = np.zeros((height, width, 4))
    across, down = tiles_of(width, height)
    fields = [
        [splats[i].tolist() for _, i in _list_of(t, ids, ranges, len(splats))] for t in range(across * down)
    ]
    for y, x in np.ndindex(height, width):
        color, light = blended(fields[y // TILE_PIXELS * across + x // TILE_PIXELS], x + 0.5, y + 0.5)
        made[y, x] = *color, light
    return made


def _picture_back(
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
    torch = outside("torch")
    rows = torch.zeros((ids.size, 9), dtype=torch.float64)
    kept = (ids >= 0) & (ids < len(splats))
    if len(splats):
        rows[kept] = torch.from_numpy(splats[ids[kept]])
    rows.requires_grad_()
    across, down = tiles_of(width, height)
    value = torch.zeros((), dtype=torch.float64) + 0.0 * rows.sum()
    for tile in range(across * down):
        y0, x0 = tile // across * TILE_PIXELS, tile % across * TILE_PIXELS
        given = torch.from_numpy(d[y0 : y0 + TILE_PIXELS, x0 : x0 + TILE_PIXELS].copy())
        y, x = (torch.arange(k, dtype=torch.float64) + 0.5 for k in given.shape[:2])
        y, x = y[:, None] + y0, x + x0
        light = torch.ones(given.shape[:2], dtype=torch.float64)
        for p, _ in _list_of(tile, ids, ranges, len(splats)):
            u, v, a, b, c, opacity, *rgb = rows[p]
            q = a * (x - u) ** 2 + 2 * b * (x - u) * (y - v) + c * (y - v) ** 2
            alpha = torch.clamp(opacity * torch.exp(-q / 2), max=127 / 128)
            alpha = torch.where((q >= 0) & (alpha >= 1 / 255) & (light >= 1e-4), alpha, 0.0)
            value = value + sum((alpha * light * t * given[..., k]).sum() for k, t in enumerate(rgb))
            light = light * (1 - alpha)
        value = value + (light * given[..., 3]).sum()
    (back,) = torch.autograd.grad(value, rows)
    made = np.zeros(splats.shape)
    for i, (start, count) in enumerate(spans.tolist()):
        first = max(start, 0)
        for j in range(first, min(first + max(count, 0), ids.size)):
            if 0 <= places[j] < ids.size:
                made[i] += back[places[j]].numpy()
    return made


def _blend(z: Tensor) -> Tensor:
    """Splats that every pixel of two tiles sees, far from the jumps."""
    n, kind = z.shape[0], z.dtype.np
    place, bend, rest = (z[:, i:j] for i, j in ((0, 2), (2, 5), (5, 9)))
    place = ops.tanh(place) * 4.0 + np.array([16.0, 2.0], kind)
    bend = ops.tanh(bend) * np.array([0.004, 0.003, 0.02], kind) + np.array([0.008, 0.0, 0.04], kind)
    splats = ops.concat([place, bend, ops.sigmoid(rest[:, :1]) * 0.5 + 0.2, rest[:, 1:]], axis=1)
    count = 2 * n
    lists = [np.arange(count) % n, [0, n, count], (np.arange(n)[:, None] + [0, n]).ravel(),
             np.stack([2 * np.arange(n), np.full(n, 2)], 1)]  # fmt: skip
    tensors = [z.graph.constant(np.array(t, np.int32)) for t in lists]
    return apply("splat_blend", splats, *tensors, width=32, height=4)


JUDGES: dict[str, Judge] = {
    "lists of Python, sorted by depth": _tiles,
    "pixel by pixel, in Python's floats": _picture,
    "torch.autograd of the blending of each pixel": _picture_back,
}
GRADIENTS: Gradients = {
    "splat_blend": [(_blend, [(1, 9)], None), (_blend, [(4, 9)], None)],
}
