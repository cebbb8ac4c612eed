"""Lowering of softmax, layer_norm and rms_norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.backends.gpu import decls
from rlx.backends.gpu.casts import THREADS, cast_ref, fits, quads, stores
from rlx.backends.gpu.lowering import Lowering, lowers
from rlx.backends.gpu.steps import FileKernel, Ref
from rlx.dtypes import DType, f32
from rlx.ir import Node

_MOST_QUADS = 8  # what a thread holds in registers: 32 elements of its row
_WARP = 32
_MANY_ROWS = 2048  # with so many rows, one warp a row fills a device


def _native(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    return all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))


def row_shape(n: int, rows: int, aligned: int) -> tuple[int, int, int]:
    """C0, C1, C2 of the row kernels: threads a row, quads a thread (0: too long for registers), aligned quads."""
    pieces = max(1, -(-n // 4))
    lanes = min(THREADS, 1 << max(0, -(-pieces // 2) - 1).bit_length())  # about two quads a thread
    if rows >= _MANY_ROWS and pieces <= _WARP * _MOST_QUADS:
        lanes = min(lanes, _WARP)  # a warp keeps to itself: on CUDA no barrier at all
    held = -(-pieces // lanes)
    return lanes, held if held <= _MOST_QUADS else 0, aligned


def _eights(
    shape: tuple[int, int, int], n: int, rows: int, places: Sequence[tuple[Ref, DType]]
) -> tuple[int, int, int]:
    """The shape for rows read sixteen bytes at a time: of the 16-bit dtypes, aligned so and held in registers."""
    wide = all(ref.offset % 16 == 0 for ref, _ in places) and places[0][1].itemsize == 2
    if not wide or n % 8 or n > THREADS * 4 * _MOST_QUADS:
        return shape
    pieces = n // 8
    each = _MOST_QUADS // 2 if rows >= _MANY_ROWS else 1  # a thread's loads, all of them under way at once
    lanes = min(THREADS, 1 << max(0, -(-pieces // each) - 1).bit_length())
    return lanes, 2 * -(-pieces // lanes), 2


@lowers("softmax", when=_native)
def lower_softmax(ctx: Lowering, node: Node) -> None:
    """Rows in registers where the axis is the last, else columns of (outer, n, inner)."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    axis = node.attrs["axis"]
    outer, n, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    stored = ctx.storage(y)
    source, target = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size), ctx.ref(y)
    words = (("T", stored.name),)
    if inner == 1:
        aligned = int(n % 4 == 0) and quads(source, target, itemsize=stored.itemsize)
        shape = _eights(row_shape(n, outer, aligned), n, outer, ((source, stored), (target, stored)))
        rows = THREADS // shape[0]
        kernel = FileKernel(decls.SOFTMAX.stem, words, shape)
        ctx.launch(kernel, ctx.groups(math.ceil(outer / rows)), [source, target, outer, n])
    else:
        across = min(32, 1 << (inner - 1).bit_length())
        kernel = FileKernel(decls.SOFTMAX_AXIS.stem, words, (across,))
        groups = ctx.groups(outer * math.ceil(inner / across))
        ctx.launch(kernel, groups, [source, target, outer, n, inner])


@lowers("layer_norm", "rms_norm", when=_native)
def lower_norm(ctx: Lowering, node: Node) -> None:
    """One kernel for both: rows over the last axis. Weights stored in two dtypes are brought to f32, never narrowed."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    n = x.shape[-1]
    rows = x.size // n
    stored = ctx.storage(y)
    source, target = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size), ctx.ref(y)
    kinds = {ctx.storage(t) for t in node.inputs[1:]}
    kept = kinds.pop() if len(kinds) == 1 else f32
    gamma, *rest = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), kept, t.size) for t in node.inputs[1:])
    beta = rest[0] if rest else gamma
    aligned = int(n % 4 == 0) and quads(source, target, itemsize=stored.itemsize)
    aligned = aligned and quads(gamma, beta, itemsize=kept.itemsize)
    places = ((source, stored), (target, stored), (gamma, kept), (beta, kept))
    shape = _eights(row_shape(n, rows, aligned), n, rows, places)
    constants = (*shape, int(node.op.name == "rms_norm"), int(bool(rest)))
    kernel = FileKernel(decls.ROW_NORM.stem, (("T", stored.name), ("W", kept.name)), constants)
    groups = ctx.groups(math.ceil(rows / (THREADS // shape[0])))
    ctx.launch(kernel, groups, [source, gamma, beta, target, rows, n, float(node.attrs["eps"])])
