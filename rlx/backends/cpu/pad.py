"""Cuts the output of pad into boxes, each a strided copy of a part of the input or filled with the pad value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rlx.backends.cpu.context import Array
from rlx.ir import Node
from rlx.ops.pad import filling, sources

_MAX_BOXES = 256  # a short axis that is mirrored many times has more


def boxes(node: Node, x: Array, out: Array) -> list[tuple[Array, Array]] | None:
    """Pairs of an array and the part of the output that it is copied into; None where there are too many."""
    pads, mode = node.attrs["pads"], node.attrs["mode"]
    if mode == "constant":
        return _constant(x, out, pads, filling(node.attrs["value"], node.output.dtype))
    tables = [sources(n, a, b, mode) for n, (a, b) in zip(x.shape, pads, strict=True)]
    runs = [_runs(t) for t in tables]
    if math.prod(map(len, runs)) > _MAX_BOXES:
        return None
    pairs = []
    for box in itertools.product(*runs):
        target = out[tuple(slice(at, at + n) for at, n, _, _ in box)]
        source = x[tuple(_cut(first, step, n) for _, n, first, step in box)]
        pairs.append((np.broadcast_to(source, target.shape), target))
    return pairs


def _constant(
    x: Array, out: Array, pads: Sequence[tuple[int, int]], value: Array
) -> list[tuple[Array, Array]]:
    """The pad value with each slab of the border, two for each axis, and x with the inner box."""
    pairs = []
    rest = out
    for axis, ((before, _), n) in enumerate(zip(pads, x.shape, strict=True)):
        head = (slice(None),) * axis
        for part in (slice(0, before), slice(before + n, None)):
            slab = rest[(*head, part)]
            if slab.size:
                pairs.append((np.broadcast_to(value.astype(out.dtype, copy=False), slab.shape), slab))
        rest = rest[(*head, slice(before, before + n))]
    return [*pairs, (x, rest)] if x.size else pairs


def _runs(table: npt.NDArray[np.int64]) -> list[tuple[int, int, int, int]]:
    """An axis of the output as runs that read the input at a constant step: (start, length, first element, step), where
    step is -1, 0 or 1."""
    result: list[tuple[int, int, int, int]] = []
    at = 0
    while at < len(table):
        end, step = at + 1, 1
        if end < len(table) and abs(int(table[end] - table[at])) <= 1:
            step = int(table[end] - table[at])
            while end < len(table) and int(table[end] - table[end - 1]) == step:
                end += 1
        result.append((at, end - at, int(table[at]), step))
        at = end
    return result


def _cut(first: int, step: int, n: int) -> slice:
    if step == 0:
        return slice(first, first + 1)
    stop = first + step * n
    return slice(first, None if stop < 0 else stop, step)
