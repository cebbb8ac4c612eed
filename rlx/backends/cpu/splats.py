"""Gaussian splatting on the CPU: splats of a tile's list are taken some at a time, over all pixels of the tile at once.

What the lists hold is known in a run only, so these kernels allocate memory in each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.kernels import cpu_kernel
from rlx.ir import Node
from rlx.ops.splats.blend import ALPHA_MAX, ALPHA_MIN, FIELDS, STOP, bounds_of, centres, listed
from rlx.ops.splats.tiles import MOST, pairs_of

_TOGETHER = 64  # splats taken at a time: their numbers for a tile's pixels stay in a cache
_NS = 20.0  # for a splat and a pixel, about


@cpu_kernel("splat_tiles")
def bind_splat_tiles(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    across, down, most = (node.attrs[name] for name in ("across", "down", "max_pairs"))
    ids, ranges, places, spans, total = outs

    def run() -> None:
        nearest, inside, ends = pairs_of(ins[0], ins[1], across, down)
        for out in (ids, places):
            out.fill(-1)
        total[...] = min(int(ends[-1]), MOST) if ends.size else 0
        kept = np.minimum(ends, most)
        counts = np.diff(kept, prepend=0)
        starts = kept - counts
        spans[nearest] = np.stack([starts, counts], axis=1)
        which = np.repeat(np.arange(nearest.size), counts)
        splat = nearest[which]
        x0, y0, x1, _ = inside[splat].T
        row, column = np.divmod(np.arange(which.size) - starts[which], np.maximum(x1 - x0, 1))
        tile = (y0 + row) * across + x0 + column
        by_tile = np.argsort(tile, kind="stable")
        ids[: which.size] = splat[by_tile]
        places[by_tile] = np.arange(which.size)
        ranges[0] = 0
        np.cumsum(np.bincount(tile, minlength=across * down), out=ranges[1:])

    return [run]


def _walk(rows: Array, x: Array, y: Array) -> Iterator[tuple[slice, Array, Array, Array]]:
    """Some splats at a time, until every pixel is finished: which, what they cover of each pixel, the light that is
    left before each of them and after the last, and the Gaussians."""
    light = np.ones((1, y.size, x.size), rows.dtype)
    for first in range(0, len(rows), _TOGETHER):
        part = slice(first, first + _TOGETHER)
        a, b, c, o = (rows[part, k, None, None] for k in range(2, 6))
        dx, dy = x - rows[part, 0, None, None], y - rows[part, 1, None, None]
        q = (2 * b * dy) * dx
        q += a * dx * dx
        q += c * dy * dy
        falls = np.exp(q * rows.dtype.type(-0.5))
        alpha = np.minimum(falls * o, ALPHA_MAX)
        alpha *= (q >= 0) & (alpha >= ALPHA_MIN)
        np.copyto(alpha, 0, where=alpha != alpha)
        lights = np.cumprod(np.concatenate([light, 1 - alpha]), axis=0)
        going = lights[:-1] >= STOP
        alpha *= going
        # Light only shrinks: the least that a pixel had is what its last splat left.
        kept = np.concatenate([np.ones_like(going[:1]), going])
        light = np.min(lights, axis=0, where=kept, initial=1, keepdims=True)
        yield part, alpha, np.concatenate([lights[:-1], light]), falls
        if light.max() < STOP:
            return


@cpu_kernel("splat_blend")
def bind_splat_blend(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    splats, ids, ranges = ins[:3]
    made = outs[0]
    height, width, _ = made.shape

    def run() -> None:
        made[...] = (0, 0, 0, 1)
        with np.errstate(all="ignore"):
            for place, _, found in listed(ids, ranges, len(splats), width, height):
                x, y = centres(place, splats.dtype.type)
                rows = splats[found]
                color, left = made[place][..., :3], made[place][..., 3]
                for part, alpha, lights, _ in _walk(rows, x, y):
                    alpha *= lights[:-1]
                    color += np.tensordot(alpha, rows[part, 6:], (0, 0))
                    left[...] = lights[-1]

    return [run]


@cpu_kernel("splat_blend_grad")
def bind_splat_blend_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    d, splats, ids, ranges, places, spans = ins
    height, width, _ = d.shape

    def run() -> None:
        parts = np.zeros((ids.size, FIELDS), splats.dtype)
        with np.errstate(all="ignore"):
            for place, at, found in listed(ids, ranges, len(splats), width, height):
                x, y = centres(place, splats.dtype.type)
                rows, given = splats[found], d[place]
                course = list(_walk(rows, x, y))
                behind = course[-1][2][-1:] * given[..., 3]
                for part, alpha, lights, falls in reversed(course):
                    behind = _into(
                        parts, at[part], rows[part], given, x, y, (alpha, lights[:-1], falls), behind
                    )
        kept = (places >= 0) & (places < ids.size)
        moved = np.where(kept[:, None], parts[np.where(kept, places, 0)], 0) if ids.size else parts
        start, stop = bounds_of(spans, ids.size)
        full = np.flatnonzero(stop > start)
        full = full[np.argsort(start[full], kind="stable")]
        outs[0].fill(0)
        if full.size:
            # `reduceat` sums from each number to the next: every second sum is of what lies between two spans.
            ends = np.stack([start[full], stop[full]], axis=1).ravel()
            padded = np.concatenate([moved, np.zeros((1, FIELDS), moved.dtype)])
            outs[0][full] = np.add.reduceat(padded, ends, axis=0)[::2]

    return [run]


def _into(
    parts: Array, at: Array, rows: Array, given: Array, x: Array, y: Array, seen: Any, behind: Array
) -> Array:
    """Writes the gradients of some splats of a tile. Returns: what each pixel gets from the first of them on."""
    alpha, light, falls = seen
    shade = np.tensordot(rows[:, 6:], given[..., :3], (1, 2))
    weight = alpha * light
    shade_weight = weight * shade
    back = np.cumsum(np.concatenate([shade_weight, behind])[::-1], axis=0)[::-1]
    bends = (alpha > 0) & (falls * rows[:, 5, None, None] < ALPHA_MAX)
    into = np.where(bends, light * shade - back[1:] / (1 - alpha), 0)
    parts[at, 6:] = np.tensordot(weight, given[..., :3], ((1, 2), (0, 1)))
    parts[at, 5] = np.sum(falls * into, axis=(1, 2), where=bends)
    of_q = alpha * into
    of_q *= of_q.dtype.type(-0.5)
    dx, dy = x - rows[:, :1], y[:, 0] - rows[:, 1:2]
    along, down = of_q.sum(axis=1), of_q.sum(axis=2)
    of_x, of_y = np.sum(along * dx, axis=1), np.sum(down * dy, axis=1)
    parts[at, 0] = -2 * (rows[:, 2] * of_x + rows[:, 3] * of_y)
    parts[at, 1] = -2 * (rows[:, 3] * of_x + rows[:, 4] * of_y)
    parts[at, 2] = np.sum(along * dx * dx, axis=1)
    parts[at, 3] = 2 * np.einsum("nyx,ny,nx->n", of_q, dy, dx)
    parts[at, 4] = np.sum(down * dy * dy, axis=1)
    return back[:1]
