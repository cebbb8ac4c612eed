"""Lowering of grouped_matmul and its gradient, one launch each, and of lora_matmul, three products and a sum."""

from __future__ import annotations

import math
from functools import partial

from rlx.backends.gpu.gemm.choice import (
    FMA_TILES,
    LONG_SUM,
    MMA_TILES,
    FmaTiles,
    MmaTiles,
    Problem,
    choose,
    stored_pair,
)
from rlx.backends.gpu.gemm.kernels import MMA_CONSTANTS, PAIRS, TILE_CONSTANTS, TRIPLES
from rlx.backends.gpu.gemm.launch import add_up, product, slice_constants
from rlx.backends.gpu.gemm.operands import Epilogue, Operand, ProductCall
from rlx.backends.gpu.gemm.product import Product
from rlx.backends.gpu.program.casts import native
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg
from rlx.dtypes import f32
from rlx.ir import Node

_ABOUT = "C (rows, n) = rows of A times their expert's matrix of B, or C (experts, k, n) = sums over each "
_GRID = "a group of 256 for each tile, for tiles of experts that are not full too"
_ARGS = (*reads(a="TA", b="TB", sizes="i32"), *writes(c="TA"), *uints("rows", "n", "k", "experts"))
MATMUL_GROUPED = declare(
    KernelDecl(
        "matmul_grouped",
        function="grouped_body",
        about=f"{_ABOUT}expert's rows; see grouped.h.",
        grid=_GRID,
        args=_ARGS,
        headers=("prims",),
        variants={"AB": PAIRS, "TILE": ("s", "l")},
        constants={**TILE_CONSTANTS, "BY_SUM": False},
        trials=(
            (False, True, 0, 0, True, True, True, False, False, False),
            (True, False, 0, 0, False, False, False, True, False, True),
        ),
        unroll=True,
    )
)
MATMUL_GROUPED_MMA = declare(
    KernelDecl(
        "matmul_grouped_mma",
        function="grouped_body",
        about=f"{_ABOUT}expert's rows; see grouped.h.",
        grid=_GRID,
        args=_ARGS,
        headers=("prims", "mma"),
        variants={"ABM": TRIPLES, "TILE": ("s", "m")},
        constants={**MMA_CONSTANTS, "BY_SUM": False},
        trials=((True, False, 0, 0, True, True, True, False, False, 16, 2, 1, 1, True),),
        unroll=True,
        new_compiler=True,
    )
)
MATMUL_GROUPED64 = declare(
    KernelDecl(
        "matmul_grouped64",
        function="grouped_body",
        about=f"{_ABOUT}expert's rows, in f64.",
        grid=_GRID,
        args=_ARGS,
        headers=("body64",),
        constants={"BY_SUM": False, "B_TRANSPOSED": False},
        trials=((False, True), (True, False)),
    )
)

_SIDE64 = 16  # rows and columns of a tile of f64


@lowers("grouped_matmul", "grouped_matmul_grad", when=partial(native, with_f64=True))
def lower_grouped(ctx: Lowering, node: Node) -> None:
    """Tiles whose workgroups find their rows by adding up `sizes`: only the run tells how many rows an expert has."""
    y = node.output
    if y.size == 0:
        return
    x, w, sizes = node.inputs
    by_sum = "transpose_w" not in node.attrs
    stored = ctx.storage(y)
    pair = stored_pair(ctx.storage(x), ctx.storage(w), stored)
    a, b = (Operand.of(ctx, t).stored(ctx, d) for t, d in zip((x, w), pair, strict=True))
    c = Operand(ctx.ref(y), stored)
    rows, k, n, experts = x.shape[0], x.shape[1], y.shape[-1], sizes.shape[0]
    transpose_b = not by_sum and node.attrs["transpose_w"]
    args: list[Arg] = [a.ref, b.ref, ctx.ref(sizes), c.ref, rows, n, k, experts]
    if stored.name == "f64":
        kernel = MATMUL_GROUPED64(BY_SUM=by_sum, B_TRANSPOSED=transpose_b)
        ctx.launch(kernel, ctx.groups(_tiles(by_sum, (rows, k, n), experts, (_SIDE64, _SIDE64))), args)
        return
    each = math.ceil(rows / max(experts, 1))
    high, deep = (k, each) if by_sum else (each, k)
    one = Product(high, n, deep, ((max(experts, 1), 0, 0),), by_sum, transpose_b)
    chosen = choose(ctx.target, Problem(one, *pair, stored, ctx.precision, grouped=True))
    constants = {
        "A_TRANSPOSED": by_sum,
        "B_TRANSPOSED": transpose_b,
        "ACTIVATION": 0,
        "BIAS": 0,
        "C_QUADS": c.vectors(n, 4),
        "WIDE": False,
        "BY_SUM": by_sum,
    }
    pitch_b = k if transpose_b else n
    if isinstance(chosen, MmaTiles):
        side_m, side_n, _ = MMA_TILES[chosen.tile]
        kernel = MATMUL_GROUPED_MMA(
            ABM=f"{a.dtype}_{b.dtype}_{chosen.split.type}", TILE=chosen.tile, **constants, **slice_constants(chosen),
            A_OCTETS=a.vectors(k, 8), B_OCTETS=b.vectors(pitch_b, 8), IN_PARTS=chosen.split.exact,
        )  # fmt: skip
    else:
        assert isinstance(chosen, FmaTiles)
        side_m, side_n, _ = FMA_TILES[chosen.tile]
        kernel = MATMUL_GROUPED(
            AB=f"{a.dtype}_{b.dtype}", TILE=chosen.tile, **constants,
            A_QUADS=a.vectors(k, 4), B_QUADS=b.vectors(pitch_b, 4), IN_PARTS=(rows if by_sum else k) > LONG_SUM,
        )  # fmt: skip
    ctx.launch(kernel, ctx.groups(_tiles(by_sum, (rows, k, n), experts, (side_m, side_n))), args)


def _tiles(by_sum: bool, sizes: tuple[int, int, int], experts: int, sides: tuple[int, int]) -> int:
    """The largest possible number of tiles: those of all rows, plus one partly filled tile for each expert and one for
    the rows after the last expert's."""
    rows, k, n = sizes
    slots = experts * math.ceil(k / sides[0]) if by_sum else math.ceil(rows / sides[0]) + experts + 1
    return slots * math.ceil(n / sides[1])


@lowers("lora_matmul", when=native)
def lower_lora(ctx: Lowering, node: Node) -> None:
    """x @ w and (x @ a) @ b, each computed as a matmul into f32 workspace; their sum goes through the epilogue."""
    y = node.output
    if y.size == 0:
        return
    x, w, a, b = (Operand.of(ctx, t) for t in node.inputs[:4])
    k, n = node.inputs[1].shape
    r = node.inputs[2].shape[1]
    rows = y.size // n
    label = node.label or node.op.name

    def multiplied(left: Operand, right: Operand, inner: int, columns: int) -> Operand:
        out = Operand(ctx.scratch(rows * columns * f32.itemsize), f32)
        p = Product(rows, columns, inner, (), False, False)
        product(ctx, ProductCall(p, left, right, out, Epilogue(), label))
        return out

    planes, scales = [multiplied(x, w, k, n)], [1.0]
    if r > 0:
        planes.append(multiplied(multiplied(x, a, k, r), b, r, n))
        scales.append(node.attrs["scale"])
    end = Epilogue(node.inputs[4] if len(node.inputs) == 5 else None, node.attrs["activation"])
    whole = Product(rows, n, k, (), False, False)
    add_up(ctx, ProductCall(whole, x, w, Operand.of(ctx, y), end), planes, scales)
