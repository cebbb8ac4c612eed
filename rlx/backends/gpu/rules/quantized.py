"""Lowering of packed weights: dequantize, and products that read the packed blocks themselves.

Products of few rows never write a dequantized weight. Those of more rows, and those with the weight not transposed,
decode it tile by tile into workspace of bounded size.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.gemm.choice import FMA_TILES, LONG_SUM
from rlx.backends.gpu.gemm.launch import product
from rlx.backends.gpu.gemm.operands import Epilogue, Operand, ProductCall, never_written
from rlx.backends.gpu.gemm.packed import (
    DecodedTiles,
    PackedDigits,
    PackedDirect,
    PackedFew,
    PackedLine,
    PackedMatrix,
    PackedPanel,
    PackedProblem,
    PackedRows,
    PackedVector,
    choose_packed,
    scale_groups,
)
from rlx.backends.gpu.gemm.packed_kernels import (
    HALF_TERMS,
    PACKED_DIRECT,
    PACKED_FEW,
    PACKED_MATRIX,
    PACKED_MMA,
    PACKED_PANEL,
    PACKED_ROWS,
    PACKED_VECTOR,
    Weight,
    scales_of,
    steps_of,
)
from rlx.backends.gpu.gemm.packed_row import RowCall, row_launch
from rlx.backends.gpu.gemm.product import Product
from rlx.backends.gpu.program.casts import THREADS, convert, fits, quads, stores
from rlx.backends.gpu.program.kernel import FLOATS
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg, Ref
from rlx.backends.gpu.rules.grouped import MATMUL_GROUPED
from rlx.dtypes import DType, bf16, f16, f32
from rlx.ir import Node, expr

_TILE_BYTES = 64 << 20  # bytes of a tile of the weight, decoded into workspace
_HALF_TILE_BYTES = 256 << 20  # the same for tiles of halves, whose products need many columns to fill a device
_MOST_DECODED = 1 << 30  # the most bytes of decoded expert weights, for a product with the weights not transposed


def _native(node: Node, features: frozenset[str]) -> bool:
    plain = [t for t in (*node.inputs, *node.outputs) if not t.dtype.is_packed]
    return all(stores(t.dtype, features) for t in plain) and fits(*(t.type for t in plain))


def _native_grouped(node: Node, features: frozenset[str]) -> bool:
    # All experts are decoded at once, since which rows belong to which expert is known only at run time.
    decoded = node.inputs[1].size * f32.itemsize
    # The only candidate for experts needs 16-bit storage (gemm/packed.py).
    fits_all = "16bit_storage" in features if node.attrs["transpose_q"] else decoded <= _MOST_DECODED
    return _native(node, features) and fits_all


def _decodable(node: Node, features: frozenset[str]) -> bool:
    return stores(node.output.dtype, features, True) and fits(node.output.type)


@lowers("dequantize", when=_decodable)
def lower_dequantize(ctx: Lowering, node: Node) -> None:
    """Decodes every element in one launch; f64 results are converted from f32, which holds every value exactly."""
    y, stored = node.output, ctx.storage(node.output)
    if y.size == 0:
        return
    w = Weight(ctx, node.inputs[0])
    if stored.name in FLOATS:
        w.decoded(ctx, 0, w.rows, ctx.ref(y), stored)
        return
    decoded = ctx.scratch(y.size * f32.itemsize)
    w.decoded(ctx, 0, w.rows, decoded, f32)
    convert(ctx, decoded, f32, ctx.ref(y), stored, y.size)


@lowers("packed_matmul", when=_native)
def lower_packed_matmul(ctx: Lowering, node: Node) -> None:
    """Few rows: one launch that reads the packed weight. Many rows: decodes the weight tile by tile and multiplies by
    each."""
    y = node.output
    if y.size == 0:
        return
    w = Weight(ctx, node.inputs[1])
    m = y.size // y.shape[-1]
    if node.attrs["transpose_q"]:
        _product(ctx, node, w, m, m)
    else:
        _the_other_way(ctx, node, w, m)


@lowers("grouped_packed_matmul", when=_native_grouped)
def lower_grouped(ctx: Lowering, node: Node) -> None:
    """One launch, whose workgroups find their rows by adding up the sizes. If the weights are not transposed, all are
    decoded to f32 and a grouped product follows."""
    y = node.output
    if y.size == 0:
        return
    x, q, sizes = node.inputs
    w, m, experts = Weight(ctx, q), y.shape[0], q.shape[0]
    if node.attrs["transpose_q"]:
        _product(ctx, node, w, m, math.ceil(m / max(experts, 1)))
        return
    n, k = q.shape[1:]
    b = Operand(ctx.scratch(q.size * f32.itemsize), f32)
    w.decoded(ctx, 0, w.rows, b.ref, f32)
    a, stored = Operand.of(ctx, x).stored(ctx, f32), ctx.storage(y)
    c = Operand(ctx.ref(y) if stored == f32 else ctx.scratch(y.size * f32.itemsize), f32)
    kernel = MATMUL_GROUPED(
        AB="f32_f32", TILE="s", A_TRANSPOSED=False, B_TRANSPOSED=False, ACTIVATION=0, BIAS=0, A_QUADS=a.vectors(n, 4),
        B_QUADS=b.vectors(k, 4), C_QUADS=c.vectors(k, 4), IN_PARTS=n > LONG_SUM, WIDE=False, BY_SUM=False,
    )  # fmt: skip
    high, across, _ = FMA_TILES["s"]
    tiles = (math.ceil(m / high) + experts + 1) * math.ceil(k / across)
    ctx.launch(kernel, ctx.groups(tiles), [a.ref, b.ref, ctx.ref(sizes), c.ref, m, k, n, experts])
    if stored != f32:
        convert(ctx, c.ref, f32, ctx.ref(y), stored, y.size)


def _product(ctx: Lowering, node: Node, w: Weight, m: int, each: int) -> None:
    """The chosen product for m rows of x, `each` of them for an expert."""
    y, grouped = node.output, len(node.inputs) == 3
    stored = ctx.storage(y)
    in_fours = quads(ctx.ref(node.inputs[0]), itemsize=stored.itemsize)
    wide = w.constants["ALIGN"] == 16 and w.constants["RUNS"] > 0 and bool(in_fours)
    eights = ctx.ref(node.inputs[0]).offset % (8 * stored.itemsize) == 0
    chosen = choose_packed(
        ctx.target,
        PackedProblem(
            each, y.shape[-1], w.columns, stored, w.dtype, w.blocks * w.units, wide, grouped, eights
        ),
    )
    if isinstance(chosen, DecodedTiles):
        _wide(ctx, node, w, m, chosen.type)
        return
    x, n, experts = ctx.ref(node.inputs[0]), y.shape[-1], node.inputs[1].shape[0] if grouped else 0
    sizes = ctx.ref(node.inputs[2]) if grouped else x
    sides = (m, n, w.blocks, w.pitch, experts)
    if isinstance(chosen, PackedRows):
        rows, columns = chosen.rows, THREADS // chosen.across
        kernel = PACKED_ROWS(
            T=stored.name, ROWS=str(rows), **w.constants, ACROSS=chosen.across,
            X_QUADS=quads(x, itemsize=stored.itemsize), GROUPED=grouped,
        )  # fmt: skip
        args: list[Arg] = [x, w.ref, w.book, sizes, ctx.ref(y), *sides]
    elif isinstance(chosen, PackedLine | PackedDigits):
        row_launch(ctx, chosen, RowCall(x, stored, m, w, ctx.ref(y), kept=never_written(node.inputs[1])))
        return
    elif isinstance(chosen, PackedVector):
        rows, columns = 1, 32
        kernel = PACKED_VECTOR(
            T=stored.name,
            **w.constants,
            SLAB=chosen.slab,
            SUBNORMALS="denorm_preserve" in ctx.target.features,
        )
        args = [x, w.ref, ctx.ref(y), m, n, w.blocks, w.pitch]
    elif isinstance(chosen, PackedFew):
        rows, columns = 4, 4 * THREADS // chosen.across
        kernel = PACKED_FEW(
            T=stored.name,
            **w.constants,
            ACROSS=chosen.across,
            SUBNORMALS="denorm_preserve" in ctx.target.features,
        )
        args = [x, w.ref, ctx.ref(y), m, n, w.blocks, w.pitch]
    elif isinstance(chosen, PackedPanel):
        rows, columns = 16, 256 // chosen.parts // chosen.cluster
        kernel = PACKED_PANEL(
            T=stored.name, COLS="8" if chosen.held <= 8 else "16", **w.constants, HELD=chosen.held, PARTS=chosen.parts,
            STAGES=chosen.stages, EARLY=never_written(node.inputs[1]), BLOCKS=w.blocks, PITCH=w.pitch,
            CLUSTER=chosen.cluster,
        )  # fmt: skip
        args = [x, w.ref, ctx.ref(y), m, n]
    elif isinstance(chosen, PackedMatrix):
        rows, columns = chosen.rows // chosen.terms, 64 * chosen.tall // chosen.parts
        scales = x
        if stored != f16:
            x, scales = _halves(ctx, x, stored, m, w.columns, chosen.terms)
        steps = steps_of(w.dtype, chosen.span)
        kernel = PACKED_MATRIX(
            T="f16", DEPTH="16" if steps["IN_PAIRS"] else "8", **w.constants, **steps, PARTS=chosen.parts,
            X_ROWS=chosen.rows, TERMS=chosen.terms, Y_TYPE=(f16, bf16, f32).index(stored), TALL=chosen.tall,
        )  # fmt: skip
        args = [x, w.ref, scales, ctx.ref(y), m, n, w.blocks, w.pitch]
    else:
        scales = x
        if chosen.terms == 2:
            x, scales = _halves(ctx, x, stored, m, w.columns, 2)
        if isinstance(chosen, PackedDirect):
            rows = chosen.columns // scale_groups(w.dtype) // chosen.terms
            columns = 128 * chosen.tiles // chosen.parts
            kernel = PACKED_DIRECT(
                T=chosen.type.name, COLS=str(chosen.columns), **w.constants, PARTS=chosen.parts, TILES=chosen.tiles,
                TERMS=chosen.terms, GROUPED=grouped, RESIDENT=chosen.resident,
                ALONE=m * chosen.terms == 1 and not grouped, EARLY=never_written(node.inputs[1]),
            )  # fmt: skip
        else:
            rows, columns = chosen.columns // chosen.terms, 128 * chosen.tiles // chosen.parts
            kernel = PACKED_MMA(
                T=chosen.type.name, COLS=str(chosen.columns), **w.constants, **scales_of(w.dtype), PARTS=chosen.parts,
                TILES=chosen.tiles, TERMS=chosen.terms, GROUPED=grouped, RESIDENT=chosen.resident,
            )  # fmt: skip
        args = [x, w.ref, sizes, scales, ctx.ref(y), *sides]
    # Each expert may have one partly filled block of rows, and so may the rows after the last expert's.
    shares = math.ceil(m / rows) + (experts + 1 if grouped else 0)
    ctx.launch(kernel, ctx.groups(math.ceil(n / columns) * shares), args)


def _halves(ctx: Lowering, x: Ref, stored: DType, m: int, k: int, terms: int) -> tuple[Ref, Ref]:
    """x in f32 or bf16 converted to halves, and the power of two that each row is scaled by."""
    halves, scales = ctx.scratch(m * k * terms * f16.itemsize), ctx.scratch(m * f32.itemsize)
    ctx.launch(HALF_TERMS(T=stored.name), ctx.groups(m), [x, halves, scales, m, k])
    return halves, scales


def _tiles(w: Weight, kind: DType = f32) -> list[tuple[int, int]]:
    """The first row and the number of rows of each tile, all but the last of equal size."""
    most = _HALF_TILE_BYTES if kind.is_half else _TILE_BYTES
    rows = max(1, most // max(w.columns * kind.itemsize, 1))
    return [(first, min(rows, w.rows - first)) for first in range(0, w.rows, rows)]


def _wide(ctx: Lowering, node: Node, w: Weight, m: int, kind: DType) -> None:
    """x @ qᵀ: decodes tiles of the weight's rows, which are columns of the result, into `kind`, and multiplies by
    each."""
    y, n = node.output, w.rows
    stored, out = ctx.storage(y), ctx.ref(y)
    x = Operand.of(ctx, node.inputs[0]).stored(ctx, kind)
    tiles = _tiles(w, kind)
    tile = ctx.scratch(tiles[0][1] * w.columns * kind.itemsize)
    alone = len(tiles) == 1 and stored == kind
    padded = out if alone else ctx.scratch(m * tiles[0][1] * kind.itemsize)
    for first, rows in tiles:
        part = Ref(tile.segment, tile.offset, rows * w.columns * kind.itemsize)
        w.decoded(ctx, first, rows, part, kind)
        c = Operand(Ref(padded.segment, padded.offset, m * rows * kind.itemsize), kind)
        p = Product(m, rows, w.columns, (), False, True)
        product(ctx, ProductCall(p, x, Operand(part, kind), c, Epilogue(), node.label or node.op.name))
        if not alone:
            launch_tree(ctx, [expr.cast(expr.arg(0, kind), stored)], (m, rows), [View(c.ref, kind, (rows, 1))],
                        [View(out, stored, (n, 1), first)])  # fmt: skip


def _the_other_way(ctx: Lowering, node: Node, w: Weight, m: int) -> None:
    """x @ q: tiles of the weight's rows are parts of the sum, which are added up in f32."""
    y = node.output
    x, stored = Operand.of(ctx, node.inputs[0]), ctx.storage(y)
    tiles = _tiles(w) or [(0, 0)]  # a product with no rows of the weight is zeros
    tile = ctx.scratch(tiles[0][1] * w.columns * f32.itemsize)
    padded = ctx.scratch(m * tiles[0][1] * f32.itemsize)
    shape = (m, w.columns)
    total = ctx.ref(y) if stored == f32 else ctx.scratch(math.prod(shape) * f32.itemsize)
    part = ctx.scratch(math.prod(shape) * f32.itemsize) if len(tiles) > 1 else total
    for first, rows in tiles:
        weight = Ref(tile.segment, tile.offset, rows * w.columns * f32.itemsize)
        a = Ref(padded.segment, padded.offset, m * rows * f32.itemsize)
        if rows:
            w.decoded(ctx, first, rows, weight, f32)
            launch_tree(ctx, [expr.cast(expr.arg(0, x.dtype), f32)], (m, rows),
                        [View(x.ref, x.dtype, (w.rows, 1), first)], [View(a, f32, (rows, 1))])  # fmt: skip
        c = total if first == 0 else part
        p = Product(m, w.columns, rows, (), False, False)
        call = ProductCall(p, Operand(a, f32), Operand(weight, f32), Operand(c, f32), Epilogue())
        product(ctx, replace(call, label=node.label or node.op.name))
        if first:
            views = [View(r, f32, contiguous(shape)) for r in (total, part)]
            launch_tree(ctx, [expr.arg(0, f32) + expr.arg(1, f32)], shape, views, views[:1])
    if stored != f32:
        convert(ctx, total, f32, ctx.ref(y), stored, y.size)
