"""Lowering of softmax, layer_norm and rms_norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

from rlx.backends.gpu.program.casts import THREADS, cast_ref, fits, quads, stores
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, floats, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Ref
from rlx.dtypes import DType, f32
from rlx.ir import Node

SOFTMAX = declare(
    KernelDecl(
        "softmax",
        about="Softmax over the last axis of x (rows, n).",
        grid="a group of 256 for each 256 / LANES rows",
        # x, y (may be x), rows, n.
        args=(*reads(x="T"), *writes(y="T"), *uints("rows", "n")),
        headers=("rounding", "prims"),
        variants={"T": FLOATS},
        constants={"LANES": 32, "QUADS_HELD": 1, "VECTORS": 0},
        trials=((32, 3, 1), (128, 8, 2), (256, 0, 0)),
        subgroups=True,
    )
)
SOFTMAX_AXIS = declare(
    KernelDecl(
        "softmax_axis",
        about="Softmax over the middle axis of x (outer, n, inner).",
        grid="a group of 256 for each ACROSS places of inner, for each of outer",
        # x, y (may be x), outer, n, inner.
        args=(*reads(x="T"), *writes(y="T"), *uints("outer", "n", "inner")),
        headers=("prims",),
        variants={"T": FLOATS},
        constants={"ACROSS": 32},
        trials=((32,),),
    )
)
ROW_NORM = declare(
    KernelDecl(
        "row_norm",
        about=(
            "Layer norm or RMS norm (RMS) over the last axis of x (rows, n), with beta when HAS_BETA = 1."
        ),
        grid="a group of 256 for each 256 / LANES rows",
        # x, gamma (n), beta (n), y (may be x), rows, n, eps.
        args=(*reads(x="T", gamma="W", beta="W"), *writes(y="T"), *uints("rows", "n"), *floats("eps")),
        headers=("rounding", "prims"),
        variants={"T": FLOATS, "W": FLOATS},
        constants={"LANES": 32, "QUADS_HELD": 1, "VECTORS": 0, "RMS": False, "HAS_BETA": False},
        trials=((32, 3, 1, False, True), (128, 8, 2, False, True), (256, 0, 0, True, False)),
        subgroups=True,
    )
)

_MOST_QUADS = 8  # what a thread holds in registers: 32 elements of its row
_WARP = 32
_MANY_ROWS = 2048  # with so many rows, one warp a row fills a device


def _native(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    return all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))


class RowShape(TypedDict):
    """Constants of every row kernel: threads a row, quads that a thread holds (0: the row is too long for registers),
    and what is read at once: 0 single elements, 1 quads, 2 eights of 16 bits."""

    LANES: int
    QUADS_HELD: int
    VECTORS: int


def row_shape(n: int, rows: int, aligned: int) -> RowShape:
    """How threads share rows of n elements."""
    pieces = max(1, -(-n // 4))
    lanes = min(THREADS, 1 << max(0, -(-pieces // 2) - 1).bit_length())  # about two quads a thread
    if rows >= _MANY_ROWS and pieces <= _WARP * _MOST_QUADS:
        lanes = min(lanes, _WARP)  # a warp keeps to itself: on CUDA no barrier at all
    held = -(-pieces // lanes)
    return RowShape(LANES=lanes, QUADS_HELD=held if held <= _MOST_QUADS else 0, VECTORS=aligned)


def _eights(shape: RowShape, n: int, rows: int, places: Sequence[tuple[Ref, DType]]) -> RowShape:
    """The shape for rows read sixteen bytes at a time: of the 16-bit dtypes, aligned so and held in registers."""
    wide = all(ref.offset % 16 == 0 for ref, _ in places) and places[0][1].itemsize == 2
    if not wide or n % 8 or n > THREADS * 4 * _MOST_QUADS:
        return shape
    pieces = n // 8
    each = _MOST_QUADS // 2 if rows >= _MANY_ROWS else 1  # a thread's loads, all of them under way at once
    lanes = min(THREADS, 1 << max(0, -(-pieces // each) - 1).bit_length())
    return RowShape(LANES=lanes, QUADS_HELD=2 * -(-pieces // lanes), VECTORS=2)


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
    if inner == 1:
        aligned = int(n % 4 == 0) and quads(source, target, itemsize=stored.itemsize)
        shape = _eights(row_shape(n, outer, aligned), n, outer, ((source, stored), (target, stored)))
        rows = THREADS // shape["LANES"]
        kernel = SOFTMAX(T=stored.name, **shape)
        ctx.launch(kernel, ctx.groups(math.ceil(outer / rows)), [source, target, outer, n])
    else:
        across = min(32, 1 << (inner - 1).bit_length())
        kernel = SOFTMAX_AXIS(T=stored.name, ACROSS=across)
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
    kernel = ROW_NORM(T=stored.name, W=kept.name, **shape, RMS=not node.op.centres, HAS_BETA=bool(rest))
    groups = ctx.groups(math.ceil(rows / (THREADS // shape["LANES"])))
    ctx.launch(kernel, groups, [source, gamma, beta, target, rows, n, float(node.attrs["eps"])])
