"""Lowering of data movement: copies where the bytes are contiguous, else strided trees that change no bit.

Elements move as integers of their width, so that a NaN keeps its payload and dtypes of one width share a kernel. Eight
bytes on a device without 64-bit integers move as pairs of four.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from rlx.backends.gpu.elementwise.strided import (
    MAX_INDEX,
    View,
    collapse,
    contiguous,
    launch_tree,
    strides_of,
)
from rlx.backends.gpu.elementwise.tree import RAW16
from rlx.backends.gpu.program.columns import read_in_place
from rlx.backends.gpu.program.images import IMAGES, Mover, last_shape, last_strides
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Ref
from rlx.dtypes import DType, i32, i64, u8
from rlx.ir import Node, Tensor
from rlx.ir import expr as ex

TRANSPOSE = declare(
    KernelDecl(
        "transpose",
        about=(
            "y[b, r, c] = x[b, c, r]: matrices of `rows` by `cols` in y; x's rows lie `pitch`, its matrices "
            "`batch` elements apart."
        ),
        grid="a group for each of `tiles` = matrices * ceil(rows / 32) * ceil(cols / 32)",
        args=(*reads(x="U"), *writes(y="U"), *uints("tiles", "rows", "cols", "pitch", "batch")),
        variants={"U": ("b1", "b2", "b4", "b8")},
    )
)
TRANSPOSE_PAIRS = declare(
    KernelDecl(
        "transpose_pairs",
        about=(
            "y[b, r, c] = x[b, c, r] of two-byte elements, in words of two: 2 `rows` by 2 `cols` in y; x's "
            "rows lie `pitch` words apart."
        ),
        grid="a group for each of `tiles` = matrices * ceil(rows / 32) * ceil(cols / 32)",
        # x, y, tiles, rows, cols, pitch, batch (words from one matrix of x to the next).
        args=(*reads(x="b4"), *writes(y="b4"), *uints("tiles", "rows", "cols", "pitch", "batch")),
    )
)
TRANSPOSE_WIDE = declare(
    KernelDecl(
        "transpose_wide",
        about=(
            "y[b, r, c] = x[b, c, r], sixteen bytes at a time: `rows` by `cols` elements in y; x's rows lie "
            "`pitch` of sixteen bytes apart."
        ),
        grid="a group for each of `tiles` = matrices * ceil(rows / 64) * ceil(cols / (256 / element bytes))",
        # x, y, tiles, rows, cols, pitch, batch (sixteen bytes from one matrix of x to the next).
        args=(*reads(x="b16"), *writes(y="b16"), *uints("tiles", "rows", "cols", "pitch", "batch")),
        variants={"U": ("b2", "b4")},
    )
)

_TILE = 32
_WIDE_LEAST = 48  # the least rows and columns for tiles of sixteen-byte accesses, which smaller matrices fill badly
_LAUNCHES = 16  # the most launches of the transposition kernel, one per index of the further dimensions
_NEEDS = {1: "8bit_storage", 2: "16bit_storage"}


def moves_natively(node: Node, features: frozenset[str]) -> bool:
    """Whether the device reads and writes elements of the width of a node's output."""
    need = _NEEDS.get(node.outputs[0].dtype.itemsize)
    return need is None or need in features


def move(ctx: Lowering, shape: Sequence[int], source: View, target: View) -> None:
    """Moves the elements of `shape` between two views of one element size."""
    if 0 in shape:
        return
    size = source.storage.itemsize
    assert target.storage.itemsize == size
    dims, (a, b) = collapse(shape, [source, target])
    if a.strides == b.strides == contiguous(dims):
        ctx.copy(a.ref(dims), b.ref(dims))
        return
    if _transposes(ctx, dims, a, b) or _transposes_pairs(ctx, dims, a, b):
        return
    if size == 8 and "i64" not in ctx.target.features:
        a, b = (View(v.slot, i32, (*(2 * s for s in v.strides), 1), 2 * v.start) for v in (a, b))
        dims, raw = (*dims, 2), i32
    else:
        raw = {1: u8, 2: RAW16, 4: i32, 8: i64}[size]
        a, b = (View(v.slot, raw, v.strides, v.start) for v in (a, b))
        dims, a, b = _in_words(dims, a, b)
        raw = a.storage
    launch_tree(ctx, (ex.arg(0, raw),), dims, [a], [b])


def _in_words(dims: tuple[int, ...], a: View, b: View) -> tuple[tuple[int, ...], View, View]:
    """The same movement in words of four bytes, if elements are smaller and adjacent within words in both views: then
    each thread has more bytes in flight."""
    many = 4 // a.storage.itemsize
    if many < 2 or not dims or any(v.strides[-1] != 1 for v in (a, b)):
        return dims, a, b
    for v in (a, b):
        if v.slot.offset % 4 or any(n % many for n in (dims[-1], v.start, *v.strides[:-1])):
            return dims, a, b
    wide = [View(v.slot, i32, (*(s // many for s in v.strides[:-1]), 1), v.start // many) for v in (a, b)]
    return (*dims[:-1], dims[-1] // many), wide[0], wide[1]


def to_last(ctx: Lowering, shape: Sequence[int], dtype: DType, source: Ref, target: Ref) -> None:
    """Copies a tensor of shape (N, C, *S) into a channels-last layout."""
    turned = last_shape(shape)
    source_view = View(source, dtype, last_strides(contiguous(shape)))
    move(ctx, turned, source_view, View(target, dtype, contiguous(turned)))


def from_last(ctx: Lowering, shape: Sequence[int], dtype: DType, source: Ref, target: Ref) -> None:
    """Copies a tensor of shape (N, C, *S) from a channels-last layout to that of its shape."""
    n, c, *sizes = shape
    inner = contiguous((n, *sizes, c))
    move(ctx, shape, View(source, dtype, (inner[0], 1, *inner[1:-1])), View(target, dtype, contiguous(shape)))


def _transposes(ctx: Lowering, dims: Sequence[int], source: View, target: View) -> bool:
    """Transposes by tiles if the two innermost dimensions change places; returns whether it did. Reading down the
    columns of a large matrix would waste most of every memory access."""
    if len(dims) < 2 or target.strides != contiguous(dims) or min(dims[-2:]) < _TILE // 2:
        return False
    *outer, step, pitch = source.strides
    low, high = source.span(dims)
    if step != 1 or pitch < 1 or any(s < 0 for s in outer) or high - low >= MAX_INDEX:
        return False
    matrices, lead = (1, ()) if len(dims) == 2 else (dims[-3], tuple(dims[:-3]))
    if math.prod(lead) > _LAUNCHES or math.prod(dims) >= MAX_INDEX:
        return False
    rows, cols = dims[-2:]
    size, batch = source.storage.itemsize, outer[-1] if outer else 0
    across = down = _TILE
    kernel = TRANSPOSE(U=f"b{size}")

    def aligned(unit: int) -> bool:
        """Whether rows, columns and matrices of source and target begin at multiples of `unit` bytes."""
        starts = all((v.slot.offset + size * v.start) % unit == 0 for v in (source, target))
        return starts and all(n * size % unit == 0 for n in (rows, cols, pitch, *outer))

    if size in (2, 4) and aligned(16) and min(rows, cols) >= _WIDE_LEAST:
        kernel = TRANSPOSE_WIDE(U=f"b{size}")
        pitch, batch = pitch * size // 16, batch * size // 16
        across, down = 256 // size, 64
    elif size == 2 and aligned(4):
        kernel = TRANSPOSE_PAIRS()
        rows, cols, pitch, batch = rows // 2, cols // 2, pitch // 2, batch // 2
    tiles = matrices * math.ceil(rows / down) * math.ceil(cols / across)
    for at in itertools.product(*(range(n) for n in lead)):
        parts = []
        for v in (source, target):
            start = v.start + sum(i * s for i, s in zip(at, v.strides, strict=False))
            parts.append(replace(v, strides=v.strides[len(lead) :], start=start).ref(dims[len(lead) :]))
        ctx.launch(kernel, ctx.groups(tiles), [*parts, tiles, rows, cols, pitch, batch])
    return True


def _transposes_pairs(ctx: Lowering, dims: Sequence[int], source: View, target: View) -> bool:
    """As `_transposes`, for matrices of complex numbers: two neighbouring elements of four bytes move as one of
    eight."""
    if len(dims) < 3 or dims[-1] != 2 or source.storage.itemsize != 4:
        return False
    wide = []
    for v in (source, target):
        start = v.slot.offset + 4 * v.start
        if v.strides[-1] != 1 or start % 8 or v.start % 2 or any(s % 2 for s in v.strides[:-1]):
            return False
        wide.append(View(v.slot, i64, tuple(s // 2 for s in v.strides[:-1]), v.start // 2))
    return _transposes(ctx, dims[:-1], *wide)


def _view(ctx: Lowering, tensor: Tensor, strides: Sequence[int], start: int = 0) -> View:
    return View(ctx.ref(tensor), ctx.storage(tensor), tuple(strides), start)


def _moves(ctx: Lowering, shape: Sequence[int], source: View, y: Tensor, start: int = 0) -> None:
    """Moves elements of `shape` into y, from its element `start` on, in y's memory order."""
    target = _view(ctx, y, strides_of(ctx, y), start)
    if ctx.lies_last(y):
        source, target = (replace(v, strides=last_strides(v.strides)) for v in (source, target))
        shape = last_shape(shape)
    move(ctx, shape, source, target)


IMAGES.update(dict.fromkeys(("transpose", "expand", "slice", "concat"), Mover()))


@lowers("reshape", when=moves_natively)
def lower_reshape(ctx: Lowering, node: Node) -> None:
    """A copy, where the planner could not make the output a view."""
    x, y = node.inputs[0], node.output
    n = math.prod(y.shape)
    move(ctx, (n,), _view(ctx, x, (1,)), _view(ctx, y, (1,)))


@lowers("transpose", when=moves_natively)
def lower_transpose(ctx: Lowering, node: Node) -> None:
    """Output axis i has the stride of input axis perm[i]. Where no element moves in memory, x is computed in place of
    y."""
    x, y = node.inputs[0], node.output
    own = strides_of(ctx, x)
    turned = [own[p] for p in node.attrs["perm"]]
    pairs = zip(y.shape, turned, strides_of(ctx, y), strict=True)
    if all(n == 1 or a == b for n, a, b in pairs) and ctx.storage(x) == ctx.storage(y) and ctx.make_at(x, ctx.ref(y)):
        return
    _moves(ctx, y.shape, _view(ctx, x, [own[p] for p in node.attrs["perm"]]), y)


@lowers("expand", when=moves_natively)
def lower_expand(ctx: Lowering, node: Node) -> None:
    """Repeated axes have stride 0."""
    x, y = node.inputs[0], node.output
    own = [0 if n == 1 else s for n, s in zip(x.shape, strides_of(ctx, x), strict=True)]
    strides = [0] * (y.ndim - x.ndim) + own
    _moves(ctx, y.shape, _view(ctx, x, strides), y)


@lowers("slice", when=moves_natively)
def lower_slice(ctx: Lowering, node: Node) -> None:
    """The input's strides times the steps, from the element at `starts`; nothing where all that read these columns read
    them in the input."""
    x, y = node.inputs[0], node.output
    if read_in_place(ctx, y):
        return
    own = strides_of(ctx, x)
    strides = [s * step for s, step in zip(own, node.attrs["steps"], strict=True)]
    start = sum(s * a for s, a in zip(own, node.attrs["starts"], strict=True))
    _moves(ctx, y.shape, _view(ctx, x, strides, start), y)


@lowers("concat", when=moves_natively)
def lower_concat(ctx: Lowering, node: Node) -> None:
    """Copies each input into its part of the output."""
    y, axis = node.output, node.attrs["axis"]
    strides, done = strides_of(ctx, y), 0
    for x in node.inputs:
        _moves(ctx, x.shape, _view(ctx, x, strides_of(ctx, x)), y, done * strides[axis])
        done += x.shape[axis]
