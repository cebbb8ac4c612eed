"""Launches of the product kernels: constants from the operands, a launch for three batch axes, parts and their sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.gemm.choice import (
    FMA_TILES,
    LONG_SUM,
    MMA_TILES,
    UNITS,
    Split,
    forced,
    parts_for,
    tile_for,
)
from rlx.backends.gpu.gemm.product import Product, outer
from rlx.backends.gpu.program.casts import cast_ref, quads
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import FileKernel, Ref
from rlx.dtypes import DType, f32, promote
from rlx.ir import Node, Tensor, expr, get_op
from rlx.ops.matmul import ACTIVATIONS

# Two inner axes of the batch, and strides of A and B along all three.
PLACES = ("d1", "d2", "a0", "a1", "a2", "b0", "b1", "b2")
MATMUL = declare(
    KernelDecl(
        "matmul",
        about=(
            "C (batch, m, n) = activation(op(A) op(B) + bias), batch = d0 * d1 * d2 matrices of strides a0 a1 "
            "a2, b0 b1 b2."
        ),
        grid="a group of 256 for each tile of each matrix, for each of `parts` parts of the sum",
        # a, b, bias (n, f32), c (parts of it one after the other), m, n, k, batch, parts, d1, d2, a0, a1, a2, b0,
        # b1, b2 (in elements), bias_step (in words of 4 bytes).
        args=(
            *reads(a="TA", b="TB", bias="f32"),
            *writes(c="TA"),
            *uints("m", "n", "k", "batch", "parts", *PLACES, "bias_step"),
        ),
        headers=("prims",),
        variants={
            "AB": ("f32_f32", "f32_f16", "f32_bf16", "f16_f16", "bf16_bf16"),
            "TILE": ("s", "t", "w", "l"),
        },
        constants={
            "A_TRANSPOSED": False,
            "B_TRANSPOSED": False,
            "ACTIVATION": 0,
            "BIAS": 0,
            "A_QUADS": False,
            "B_QUADS": False,
            "C_QUADS": False,
            "IN_PARTS": False,
            "WIDE": False,
        },
        trials=(
            (False, True, 2, 1, True, True, True, False, False),
            (True, False, 0, 0, False, False, False, True, True),
        ),
        unroll=True,
    )
)
MATMUL_ROWS = declare(
    KernelDecl(
        "matmul_rows",
        about=(
            "C (batch, m, n) = activation(A op(B) + bias) for few rows, batch = d0 * d1 * d2 matrices of "
            "strides a0 a1 a2, b0 b1 b2."
        ),
        grid=(
            "a group of 256 for each 256 / ACROSS / PARTS (B transposed) or 4 * ACROSS columns of each ROWS "
            "rows of each matrix"
        ),
        # a, b, bias (n, f32), c, m, n, k, batch, d1, d2, a0, a1, a2, b0, b1, b2 (strides in elements), bias_step
        # (in words of 4 bytes).
        args=(
            *reads(a="TA", b="TB", bias="f32"),
            *writes(c="TA"),
            *uints("m", "n", "k", "batch", *PLACES, "bias_step"),
        ),
        headers=("prims",),
        variants={
            "AB": ("f32_f32", "f32_f16", "f32_bf16", "f16_f16", "bf16_bf16"),
            "ROWS": ("1", "4", "8", "16"),
        },
        constants={
            "B_TRANSPOSED": False,
            "ACTIVATION": 0,
            "BIAS": 0,
            "A_QUADS": False,
            "B_QUADS": False,
            "ACROSS": 16,
            "PARTS": 1,
        },
        trials=(
            (False, 2, 1, True, True, 16, 1),
            (True, 0, 0, False, False, 8, 4),
            (True, 1, 1, True, True, 32, 1),
        ),
        unroll=True,
    )
)
MATMUL_MMA = declare(
    KernelDecl(
        "matmul_mma",
        function="matmul_body",
        about=(
            "C (batch, m, n) = activation(op(A) op(B) + bias), batch = d0 * d1 * d2 matrices of strides a0 a1 "
            "a2, b0 b1 b2."
        ),
        grid="a group of 256 for each tile of each matrix, for each of `parts` parts of the sum",
        # a, b, bias (n, f32), c (parts of it one after the other), m, n, k, batch, parts, d1, d2, a0, a1, a2, b0,
        # b1, b2 (in elements), bias_step (in words of 4 bytes).
        args=(
            *reads(a="TA", b="TB", bias="f32"),
            *writes(c="TA"),
            *uints("m", "n", "k", "batch", "parts", *PLACES, "bias_step"),
        ),
        headers=("prims", "mma"),
        variants={
            "ABM": (
                "f32_f32_f16",
                "f32_f32_bf16",
                "f32_f16_f16",
                "f32_f16_bf16",
                "f32_bf16_bf16",
                "f16_f16_f16",
                "bf16_bf16_bf16",
            ),
            "TILE": ("s", "m", "l"),
        },
        constants={
            "A_TRANSPOSED": False,
            "B_TRANSPOSED": False,
            "ACTIVATION": 0,
            "BIAS": 0,
            "A_OCTETS": False,
            "B_OCTETS": False,
            "C_QUADS": False,
            "IN_PARTS": False,
            "WIDE": False,
            "BK": 32,
            "SIDES": 1,
            "TERMS_A": 1,
            "TERMS_B": 1,
        },
        trials=((False, True, 2, 1, True, True, True, False, False, 16, 2, 1, 1),),
        unroll=True,
        new_compiler=True,
    )
)

CODE = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "tanh": 5, "sigmoid": 6}
_THREADS = 256
_FEW_TILES = 1 << 14  # with fewer columns than this, a group of the few-rows kernel makes fewer of them


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix of a product in memory."""

    ref: Ref
    dtype: DType

    def vectors(self, pitch: int, count: int) -> int:
        """1 when `count` neighbours may be read at once: rows and start are multiples of them (at most 16 bytes)."""
        return int(pitch % count == 0) and quads(self.ref, itemsize=min(self.dtype.itemsize * count // 4, 4))


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What a result goes through: a bias of n elements, an activation. `step`: how many elements further the next
    matrix of a batch has its bias; 0 where all share one."""

    bias: Tensor | None = None
    activation: str | None = None
    step: int = 0

    @staticmethod
    def of(node: Node) -> Epilogue:
        return Epilogue(node.inputs[2] if len(node.inputs) == 3 else None, node.attrs["activation"])

    @property
    def plain(self) -> bool:
        return self.bias is None and self.activation is None


def fma_tiles(ctx: Lowering, p: Product, a: Operand, b: Operand, end: Epilogue, c: Operand) -> None:
    """Tiles of fused multiply-adds."""
    tiles = {"s": FMA_TILES["s"]} if ctx.kind == "software" and forced().tile is None else FMA_TILES
    tile = tile_for(tiles, p.m, p.n, p.count)
    rows, columns, _ = FMA_TILES[tile]
    groups = math.ceil(p.m / rows) * math.ceil(p.n / columns)
    (pitch_a, pitch_b) = p.pitches
    chosen: dict[str, str | int] = {"AB": f"{a.dtype}_{b.dtype}", "TILE": tile}
    vectors = {"A_QUADS": a.vectors(pitch_a, 4), "B_QUADS": b.vectors(pitch_b, 4)}
    _tiles(ctx, MATMUL, {**chosen, **vectors}, p, a, b, end, c, groups, p.k > LONG_SUM)


def mma_tiles(
    ctx: Lowering, p: Product, a: Operand, b: Operand, split: Split, end: Epilogue, c: Operand
) -> None:
    """Tiles of matrix instructions. Sums of products that count as f32 are added up in f32 after every slice of k."""
    tiles = mma_choice(split)
    tile = tile_for(tiles, p.m, p.n, p.count)
    rows, columns, _ = tiles[tile]
    groups = math.ceil(p.m / rows) * math.ceil(p.n / columns)
    (pitch_a, pitch_b) = p.pitches
    chosen: dict[str, str | int] = {"ABM": f"{a.dtype}_{b.dtype}_{split.type}", "TILE": tile}
    vectors = {"A_OCTETS": a.vectors(pitch_a, 8), "B_OCTETS": b.vectors(pitch_b, 8)}
    _tiles(
        ctx,
        MATMUL_MMA,
        {**chosen, **vectors, **mma_constants(split, tile)},
        p,
        a,
        b,
        end,
        c,
        groups,
        split.exact,
    )


def mma_choice(split: Split) -> dict[str, tuple[int, int, float]]:
    """The tiles that a split may use: the largest has no registers to spare for sums of sums."""
    return {name: tile for name, tile in MMA_TILES.items() if not (split.exact and name == "l")}


def mma_constants(split: Split, tile: str) -> dict[str, int]:
    """Depth of a slice, sides, terms; as much as 48 KiB of shared memory hold."""
    wanted = forced()
    deep = split.exact and tile == "m"
    depth = wanted.depth or (16 if deep else 32)
    one = (split.exact and (split.terms_a + split.terms_b > 4 or depth > 16)) or (tile == "l" and depth > 16)
    sides = wanted.buffers or (1 if one else 2)
    return {"BK": depth, "SIDES": sides, "TERMS_A": split.terms_a, "TERMS_B": split.terms_b}


def _tiles(
    ctx: Lowering,
    decl: KernelDecl,
    chosen: dict[str, str | int],
    p: Product,
    a: Operand,
    b: Operand,
    end: Epilogue,
    c: Operand,
    groups: int,
    in_parts: bool,
) -> None:
    """Tiles over the whole sum with the epilogue; where they are few, over parts of it that one more launch adds."""
    parts = parts_for(groups * p.count, p.k)
    if ctx.kind == "software" and forced().parts is None:
        parts = 1
    size = p.count * p.m * p.n
    alone = parts == 1
    made = c if alone else Operand(ctx.scratch(parts * size * f32.itemsize), f32)
    bias, kind, apart = biases(ctx, end, p.count, a.dtype) if alone else (None, 0, 0)
    kernel = decl(
        **chosen,
        A_TRANSPOSED=p.transpose_a,
        B_TRANSPOSED=p.transpose_b,
        ACTIVATION=CODE[end.activation] if alone else 0,
        BIAS=kind,
        C_QUADS=made.vectors(p.n, 4),
        IN_PARTS=in_parts,
        WIDE=made.dtype == f32 and a.dtype != f32,
    )
    launch(ctx, kernel, p, a, b, bias, made, groups, parts, (apart,))
    if not alone:
        finish(ctx, made.ref, parts, p, end, c)


def few_rows(ctx: Lowering, p: Product, a: Operand, b: Operand, end: Epilogue, c: Operand) -> None:
    """The kernel for few rows, which reads B once for each 16 of them. C is stored as A is."""
    (pitch_a, pitch_b) = p.pitches
    bias, kind, apart = biases(ctx, end, p.count, a.dtype)
    rows = next((r for r in (1, 4, 8) if p.m <= r), 16)
    blocks = math.ceil(p.m / rows) * p.count
    across, parts = rows_shape(p, rows, blocks, ctx.kind == "software")
    kernel = MATMUL_ROWS(
        AB=f"{a.dtype}_{b.dtype}",
        ROWS=str(rows),
        B_TRANSPOSED=p.transpose_b,
        ACTIVATION=CODE[end.activation],
        BIAS=kind,
        A_QUADS=a.vectors(pitch_a, 4),
        B_QUADS=b.vectors(pitch_b, 4),
        ACROSS=across,
        PARTS=parts,
    )
    columns = _THREADS // (across * parts) if p.transpose_b else 4 * across
    launch(ctx, kernel, p, a, b, bias, c, math.ceil(p.n / columns) * math.ceil(p.m / rows), more=(apart,))


def rows_shape(p: Product, rows: int, blocks: int, software: bool) -> tuple[int, int]:
    """ACROSS and PARTS of the kernel for few rows.

    Where B is transposed: with many rows a group reads B little for what it reads of A, so that several columns share a
    read of A; the sums are cut where there are few columns. On a processor what threads pass to one another costs the
    most.
    """
    if not p.transpose_b:
        columns = p.n * p.count
        return 16 if columns >= _FEW_TILES else 4 if columns >= 16 * UNITS else 2, 1
    wanted = forced()
    across = wanted.across or (32 if rows <= 4 else 4 if software else 8)
    most = min(_THREADS // across, 8)
    if wanted.cuts is not None or software:
        return across, min(wanted.cuts or 1, most)
    cuts = (n for n in (1, 2, 4, 8) if p.n * blocks * n * across >= UNITS * _THREADS or 4 * across * n >= p.k)
    return across, min(next(cuts, most), most)


def launch(
    ctx: Lowering,
    kernel: FileKernel,
    p: Product,
    a: Operand,
    b: Operand,
    bias: Ref | None,
    c: Operand,
    groups: int,
    parts: int | None = None,
    more: tuple[int, ...] = (),
) -> None:
    """`groups` for each matrix (and part); one launch for three batch axes, more axes, more launches. `more`: arguments
    after the strides."""
    members, inner = outer(p, 3)
    if parts is not None and parts > 1 and len(members) > 1:
        raise ValueError("a product in parts has at most three batch axes")
    dims = [(1, 0, 0)] * (3 - len(inner)) + list(inner)
    count = math.prod(d for d, _, _ in dims)
    size = count * p.m * p.n * c.dtype.itemsize * (parts or 1)
    for number, at_a, at_b in members:
        pa = from_(a.ref, at_a * a.dtype.itemsize)
        pb = from_(b.ref, at_b * b.dtype.itemsize)
        pc = Ref(c.ref.segment, c.ref.offset + number * size, size)
        ctx.launch(
            kernel,
            ctx.groups(groups * count * (parts or 1)),
            [pa, pb, bias or pa, pc, p.m, p.n, p.k, count, *([] if parts is None else [parts]), dims[1][0],
             dims[2][0], *(sa for _, sa, _ in dims), *(sb for _, _, sb in dims), *more],
        )  # fmt: skip


def from_(ref: Ref, offset: int) -> Ref:
    """The rest of a range."""
    return Ref(ref.segment, ref.offset + offset, ref.nbytes - offset)


def bias_ref(ctx: Lowering, bias: Tensor | None, dtype: DType = f32) -> Ref | None:
    """The bias as the kernels take it."""
    return None if bias is None else cast_ref(ctx, ctx.ref(bias), ctx.storage(bias), dtype, bias.size)


def biases(ctx: Lowering, end: Epilogue, count: int, a: DType) -> tuple[Ref | None, int, int]:
    """What the kernels read of biases, their constant (1 for f32, 2 for the storage of A), and how many words of four
    bytes apart they lie. Those that lie apart are stored in one of these, and at places of whole words."""
    if end.bias is None:
        return None, 0, 0
    first, kind = ctx.ref(end.bias), ctx.storage(end.bias)
    if kind not in (f32, a):
        return bias_ref(ctx, end.bias), 1, 0
    apart = end.step * kind.itemsize
    whole = Ref(first.segment, first.offset, (count - 1) * apart + first.nbytes)
    return whole, 1 if kind == f32 else 2, apart // 4


def epilogue_tree(
    dtype: DType, bias: DType | None, activation: str | None, out: DType, scales: Sequence[float] = (1.0,)
) -> expr.Expr:
    """activation(sum of scales[i] · input i + the bias), the inputs added in order, as the ops themselves write it."""
    wide = promote(dtype, f32)
    x: expr.Expr | None = None
    for i, scale in enumerate(scales):
        term = expr.cast(expr.arg(i, dtype), wide)
        term = term if scale == 1.0 else term * expr.lit(scale, wide)
        x = term if x is None else x + term
    assert x is not None
    if bias is not None:
        x = x + expr.cast(expr.arg(len(scales), bias), x.dtype)
    if activation is not None:
        name, attrs = ACTIVATIONS[activation]
        rule = get_op(name).expr
        assert rule is not None
        x = rule([x], attrs)
    return expr.cast(x, out)


def finish(
    ctx: Lowering, made: Ref, parts: int, p: Product, end: Epilogue, c: Operand, dtype: DType = f32
) -> None:
    """Adds up the parts of a product, one after the other; then bias and activation."""
    planes = [Operand(from_(made, i * p.count * p.m * p.n * dtype.itemsize), dtype) for i in range(parts)]
    add_up(ctx, planes, (1.0,) * parts, p, end, c)


def add_up(
    ctx: Lowering, planes: Sequence[Operand], scales: Sequence[float], p: Product, end: Epilogue, c: Operand
) -> None:
    """activation(sum of scales[i] · planes[i] + bias) of matrices like C."""
    shape = (p.count, p.m, p.n)
    kind = ctx.storage(end.bias) if end.bias is not None else None
    inputs = [View(plane.ref, plane.dtype, contiguous(shape)) for plane in planes]
    if end.bias is not None and kind is not None:
        inputs.append(View(ctx.ref(end.bias), kind, (end.step, 0, 1)))
    tree = epilogue_tree(planes[0].dtype, kind, end.activation, c.dtype, scales)
    outputs = [View(c.ref, c.dtype, contiguous(shape))]
    launch_tree(ctx, [tree], shape, inputs, outputs, short=c.dtype.is_half)
