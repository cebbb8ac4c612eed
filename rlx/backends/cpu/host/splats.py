"""Gaussian splatting on the CPU: the splats of a tile's list are processed some at a time, for all pixels of the tile
at once.

The lists' contents are known only in a run, so these kernels allocate memory in each run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.ir import Node
from rlx.ops.splats.blend import ALPHA_MAX, ALPHA_MIN, FARTHEST, FIELDS, STOP, bounds_of, centres, listed
from rlx.ops.splats.tiles import COUNT_LIMIT, pairs_of

_SPLATS_AT_ONCE = 64  # their numbers for a tile's pixels stay in a cache


@cpu_kernel("splat_tiles")
def bind_splat_tiles(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    across, down, capacity = (node.attrs[name] for name in ("across", "down", "max_pairs"))
    ids, ranges, places, spans, total = outs

    def run() -> None:
        nearest, inside, ends = pairs_of(ins[0], ins[1], across, down)
        for out in (ids, places):
            out.fill(-1)
        total[...] = min(int(ends[-1]), COUNT_LIMIT) if ends.size else 0
        kept = np.minimum(ends, capacity)
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


def _running(join: np.ufunc, first: Array, terms: Array) -> Array:
    """`first`, then its running combination with the terms: NumPy's `accumulate` takes twice as long."""
    result = np.empty((len(terms) + 1, *terms.shape[1:]), terms.dtype)
    result[0] = first
    for i, term in enumerate(terms):
        join(result[i], term, result[i + 1])
    return result


def _pixels(place: Any, dtype: Any) -> tuple[Array, Array]:
    """The centres of a tile's pixels, one after the other."""
    x, y = centres(place, dtype)
    return np.tile(x, y.size), np.repeat(y, x.size)


def _walk(rows: Array, x: Array, y: Array) -> Iterator[tuple[slice, Array, Array, Array]]:
    """Some splats at a time, until every pixel is finished. Yields which splats, their coverage of each pixel, the
    transmittance before each and after the last, and the Gaussians.

    Masks are multiplied in: NumPy's `where` takes ten times as long.
    """
    dtype = rows.dtype.type
    light = np.ones(x.size, dtype)
    for first in range(0, len(rows), _SPLATS_AT_ONCE):
        part = slice(first, first + _SPLATS_AT_ONCE)
        a, b, c, o = (rows[part, k, None] for k in range(2, 6))
        dx, dy = x - rows[part, 0, None], y - rows[part, 1, None]
        q = a * dx
        q += (2 * b) * dy
        q *= dx
        dy *= dy
        dy *= c
        q += dy
        seen = (q >= 0) & (q <= FARTHEST)
        np.clip(q, 0, FARTHEST, out=q)  # exp of more would give subnormal numbers, which are slow
        q *= dtype(-0.5)
        falls = np.exp(q, out=q)
        alpha = np.minimum(falls * o, dtype(ALPHA_MAX))
        seen &= alpha >= ALPHA_MIN
        alpha *= seen
        if np.isnan(alpha.sum()):
            np.copyto(alpha, 0, where=~seen)
            np.copyto(falls, 0, where=~seen)
        lights = _running(np.multiply, light, 1 - alpha)
        going = lights[:-1] >= STOP
        alpha *= going
        # Transmittance only falls, so a finished pixel keeps the value after its last splat.
        last = np.add.reduce(going, axis=0, dtype=np.intp, keepdims=True)
        lights[-1] = light = np.take_along_axis(lights, last, axis=0)[0]
        yield part, alpha, lights, falls
        if light.max() < STOP:
            return


def _colours(weights: Array, colours: Array) -> Array:
    """The colour that each pixel gets from these splats. A splat whose colour is not finite counts only where its
    weight is not 0."""
    finite = np.isfinite(colours).all(axis=1)
    result: Array = weights[finite].T @ colours[finite]
    for k in np.flatnonzero(~finite):
        seen = weights[k] > 0
        result[seen] += weights[k, seen, None] * colours[k]
    return result


@cpu_kernel("splat_blend")
def bind_splat_blend(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    splats, ids, ranges = ins[:3]
    image = outs[0]
    height, width, _ = image.shape

    def run() -> None:
        image[...] = (0, 0, 0, 1)
        with np.errstate(all="ignore"):
            for place, _, members in listed(ids, ranges, len(splats), width, height):
                rows = splats[members]
                tile = image[place]
                for part, alpha, lights, _ in _walk(rows, *_pixels(place, splats.dtype.type)):
                    alpha *= lights[:-1]
                    tile[..., :3] += _colours(alpha, rows[part, 6:]).reshape(*tile.shape[:2], 3)
                    tile[..., 3] = lights[-1].reshape(tile.shape[:2])

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
            for place, at, members in listed(ids, ranges, len(splats), width, height):
                x, y = _pixels(place, splats.dtype.type)
                rows, gradient = splats[members], d[place].reshape(x.size, 4)
                course = list(_walk(rows, x, y))
                behind = course[-1][2][-1] * gradient[:, 3]
                for part, alpha, lights, falls in reversed(course):
                    behind = _into(
                        parts, at[part], rows[part], gradient, x, y, (alpha, lights[:-1], falls), behind
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
    parts: Array, at: Array, rows: Array, gradient: Array, x: Array, y: Array, seen: Any, behind: Array
) -> Array:
    """Writes the gradients of some splats of a tile. Returns for each pixel the product of the image's gradient and the
    colour from these and later splats."""
    alpha, light, falls = seen
    shade = rows[:, 6:] @ gradient[:, :3].T
    weight = alpha * light
    if not np.isfinite(rows[:, 6:]).all():  # pixels that skip a splat get nothing of its colour
        shade[alpha == 0] = 0
    back = _running(np.add, behind, (weight * shade)[::-1])[::-1]
    into = back[1:] / (alpha - 1)
    into += light * shade
    known = (alpha > 0) & (falls * rows[:, 5:6] < ALPHA_MAX)
    into *= known
    if np.isnan(into.sum()):  # a later splat's NaN must not reach splats that the pixel skips
        np.copyto(into, 0, where=~known)
    parts[at, 6:] = weight @ gradient[:, :3]
    parts[at, 5] = _sums(falls, into)
    dx, dy = x - rows[:, :1], y - rows[:, 1:2]
    of_q = alpha * into
    of_q *= of_q.dtype.type(-0.5)
    along, down = of_q * dx, of_q * dy
    of_x, of_y = along.sum(axis=1), down.sum(axis=1)
    parts[at, 0] = -2 * (rows[:, 2] * of_x + rows[:, 3] * of_y)
    parts[at, 1] = -2 * (rows[:, 3] * of_x + rows[:, 4] * of_y)
    parts[at, 2], parts[at, 3], parts[at, 4] = _sums(along, dx), 2 * _sums(along, dy), _sums(down, dy)
    result: Array = back[0]
    return result


def _sums(a: Array, b: Array) -> Array:
    """The sum of the products of each row."""
    return np.asarray(np.einsum("np,np->n", a, b))
