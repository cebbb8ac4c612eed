"""Channels-last images: how to recognize and make them, and the addresses that windows read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.gemm.product import Addresses
from rlx.backends.cpu.gemm.transpose import transpose_step
from rlx.backends.cpu.step import EngineContext, EngineStep, address
from rlx.ir import Node

Ints = Sequence[int]
_BEHIND = 64


def channels_last(x: Array) -> Array | None:
    """x (N, C, *S) as (N, *S, C) if its elements lie in this order, else None. Axes of one element lie anywhere."""
    moved = np.moveaxis(x, 1, -1)
    step = x.itemsize
    for n, stride in zip(reversed(moved.shape), reversed(moved.strides), strict=True):
        if n != 1 and stride != step:
            return None
        step *= n
    return moved


def to_channels_last(
    x: Array,
    ctx: EngineContext,
    steps: list[EngineStep],
    pads: Sequence[tuple[int, int]] | None = None,
    around: int = 0,
) -> Array:
    """x (N, C, *S), C-contiguous, as (N, *S, C): a copy that each run makes, padded by `pads` with the number `around`.
    A vector's bytes may be read past its end."""
    n, c, *sizes = x.shape
    margins = pads or [(0, 0)] * len(sizes)
    room = [a + s + b for s, (a, b) in zip(sizes, margins, strict=True)]
    nbytes = n * math.prod(room) * c * x.itemsize
    memory = (ctx.borrow if pads is None else ctx.acquire)(nbytes + _BEHIND)
    result = memory[:nbytes].view(x.dtype).reshape(n, *room, c)
    if pads is not None:  # the padding is written once, and stays
        result[...] = around
    inside = result[(slice(None), *(slice(a, a + s) for s, (a, _) in zip(sizes, margins, strict=True)))]
    if pads is None:
        positions = math.prod(sizes)
        steps.append(
            transpose_step(x, result, ctx, c, positions, x.strides[1], result.itemsize * c, n, (1, 0, x.strides[0]),
                       (0, result.strides[0]))
        )  # fmt: skip
        return result
    # Row by row, since the padded image has longer rows.
    height, width = (1, sizes[0]) if len(sizes) == 1 else sizes
    down_x, down = (0, 0) if len(sizes) == 1 else (x.strides[2], inside.strides[1])
    steps.append(
        transpose_step(x, inside, ctx, c, width, x.strides[1], result.itemsize * c, n * height,
                   (height, down_x, x.strides[0]), (down, inside.strides[0]))
    )  # fmt: skip
    return result


def room_for_rows(node: Node, x: Array, kernel: Ints, counts: Ints) -> list[tuple[int, int]]:
    """How far windows reach into the padding before and after the image."""
    attrs = node.attrs
    geometry = zip(
        x.shape[2:], attrs["pads"], counts, attrs["strides"], attrs["dilations"], kernel, strict=True
    )
    return [(a, max(b, (m - 1) * s + d * (k - 1) + 1 - a - size)) for size, (a, b), m, s, d, k in geometry]


def from_channels_last(image: Array, out: Array, ctx: EngineContext) -> EngineStep:
    """The step that copies (N, *S, C) to (N, C, *S), both contiguous."""
    n, c, *sizes = out.shape
    return transpose_step(image, out, ctx, math.prod(sizes), c, image.itemsize * c, out.strides[1], n,
                      (1, 0, image.strides[0]), (0, out.strides[0]))  # fmt: skip


def window_addresses(
    image: Array,
    kernel: Ints,
    strides: Ints,
    dilations: Ints,
    pads: Sequence[tuple[int, int]],
    counts: Ints,
    zero: int,
) -> Addresses:
    """(positions, taps): the address of the pixel under each tap of the window at each output position of an image
    (N, *S, C); `zero` for those in the padding."""
    n, *sizes, _ = image.shape
    at = (np.arange(n) * image.strides[0]).reshape(n, *(1,) * (2 * len(sizes)))
    inside = np.ones((1,) * at.ndim, bool)
    rank = len(sizes)
    for axis in range(rank):
        place = (
            np.arange(counts[axis])[:, None] * strides[axis]
            - pads[axis][0]
            + np.arange(kernel[axis])[None, :] * dilations[axis]
        )
        shape = [1] * at.ndim
        shape[1 + axis], shape[1 + rank + axis] = counts[axis], kernel[axis]
        at = at + (place * image.strides[1 + axis]).reshape(shape)
        inside = inside & ((place >= 0) & (place < sizes[axis])).reshape(shape)
    addresses = np.where(inside, at + address(image), zero)
    return addresses.reshape(n * math.prod(counts), math.prod(kernel)).astype(np.int64, copy=False)
