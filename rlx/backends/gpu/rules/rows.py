"""Lines of elements along one axis: how the threads of kernels share them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

from rlx.backends.gpu.program.casts import THREADS
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Ref
from rlx.dtypes import DType
from rlx.ir import Tensor

_MAX_QUADS = 8  # the most quads that a thread holds in registers: 32 elements of its row
_WARP = 32
_MANY_ROWS = 2048  # with so many rows, one warp a row fills a device


def power(n: int) -> int:
    """The least power of two that is at least n, and at least 1."""
    return 1 << max(0, n - 1).bit_length()


def lines_of(x: Tensor, axis: int) -> tuple[int, int, int]:
    """x as (outer, n, inner)."""
    return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])


class RowShape(TypedDict):
    """Constants of every row kernel: the threads of a row, the quads that a thread holds (0: the row is too long for
    registers), and the elements read at once: 0 for one, 1 for four, 2 for eight of 16 bits."""

    LANES: int
    QUADS_HELD: int
    VECTORS: int


def row_shape(n: int, rows: int, aligned: int) -> RowShape:
    """How threads share rows of n elements."""
    pieces = max(1, -(-n // 4))
    lanes = min(THREADS, 1 << max(0, -(-pieces // 2) - 1).bit_length())  # about two quads a thread
    if rows >= _MANY_ROWS and pieces <= _WARP * _MAX_QUADS:
        lanes = min(lanes, _WARP)  # rows within a warp need no barrier on CUDA
    held = -(-pieces // lanes)
    return RowShape(LANES=lanes, QUADS_HELD=held if held <= _MAX_QUADS else 0, VECTORS=aligned)


def eights(shape: RowShape, n: int, rows: int, places: Sequence[tuple[Ref, DType]]) -> RowShape:
    """The shape for rows read sixteen bytes at a time, where they are of a 16-bit dtype, aligned to sixteen bytes and
    short enough for registers; else the given shape."""
    wide = all(ref.offset % 16 == 0 for ref, _ in places) and places[0][1].itemsize == 2
    if not wide or n % 8 or n > THREADS * 4 * _MAX_QUADS:
        return shape
    pieces = n // 8
    each = _MAX_QUADS // 2 if rows >= _MANY_ROWS else 1  # a thread's loads, all in flight at once
    lanes = min(THREADS, 1 << max(0, -(-pieces // each) - 1).bit_length())
    return RowShape(LANES=lanes, QUADS_HELD=2 * -(-pieces // lanes), VECTORS=2)


def row_groups(ctx: Lowering, rows: int, shape: RowShape) -> tuple[int, int, int]:
    """The grid of a kernel over rows, with the shape's number of threads for each row."""
    return ctx.groups(math.ceil(rows / (THREADS // shape["LANES"])))
