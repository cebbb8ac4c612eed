"""Lowering of grouped_matmul and its gradient, one launch each; and of lora_matmul: three products and their sum."""

from __future__ import annotations

import math
from functools import partial

from rlx.backends.gpu.gemm.choice import FMA_TILES, LONG_SUM, forced, split_for, tile_for, with_terms
from rlx.backends.gpu.gemm.launch import Epilogue, Operand, add_up, mma_choice, mma_constants
from rlx.backends.gpu.gemm.product import Product
from rlx.backends.gpu.program.casts import cast_ref, fits, stores
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg
from rlx.backends.gpu.rules.matmul import has_matrices, kernel_pair, product
from rlx.dtypes import f32
from rlx.ir import Node

MATMUL_GROUPED = declare(
    KernelDecl(
        "matmul_grouped",
        function="grouped_body",
        about=(
            "C (rows, n) = rows of A times their expert's matrix of B, or C (experts, k, n) = sums over each "
            "expert's rows; see grouped.h."
        ),
        grid="a group of 256 for each tile, for tiles of experts that are not full too",
        # a, b, sizes (experts), c, rows, n, k, experts.
        args=(*reads(a="TA", b="TB", sizes="i32"), *writes(c="TA"), *uints("rows", "n", "k", "experts")),
        headers=("prims",),
        variants={"AB": ("f32_f32", "f32_f16", "f32_bf16", "f16_f16", "bf16_bf16"), "TILE": ("s", "l")},
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
            "BY_SUM": False,
        },
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
        about=(
            "C (rows, n) = rows of A times their expert's matrix of B, or C (experts, k, n) = sums over each "
            "expert's rows; see grouped.h."
        ),
        grid="a group of 256 for each tile, for tiles of experts that are not full too",
        # a, b, sizes (experts), c, rows, n, k, experts.
        args=(*reads(a="TA", b="TB", sizes="i32"), *writes(c="TA"), *uints("rows", "n", "k", "experts")),
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
            "TILE": ("s", "m"),
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
            "BY_SUM": False,
        },
        trials=((True, False, 0, 0, True, True, True, False, False, 16, 2, 1, 1, True),),
        unroll=True,
        new_compiler=True,
    )
)
MATMUL_GROUPED64 = declare(
    KernelDecl(
        "matmul_grouped64",
        function="grouped_body",
        about=(
            "C (rows, n) = rows of A times their expert's matrix of B, or C (experts, k, n) = sums over each "
            "expert's rows, in f64."
        ),
        grid="a group of 256 for each tile, for tiles of experts that are not full too",
        # a, b, sizes (experts), c, rows, n, k, experts.
        args=(*reads(a="TA", b="TB", sizes="i32"), *writes(c="TA"), *uints("rows", "n", "k", "experts")),
        headers=("body64",),
        constants={"BY_SUM": False, "B_TRANSPOSED": False},
        trials=((False, True), (True, False)),
    )
)

_SIDE64 = 16  # rows and columns of a tile of f64


def _native(node: Node, features: frozenset[str], doubles: bool = True) -> bool:
    tensors = (*node.inputs, *node.outputs)
    return all(stores(t.dtype, features, doubles) for t in tensors) and fits(*(t.type for t in tensors))


@lowers("grouped_matmul", "grouped_matmul_grad", when=_native)
def lower_grouped(ctx: Lowering, node: Node) -> None:
    """Tiles whose groups find their rows by adding up the sizes: how many are full is known only in the run."""
    y = node.output
    if y.size == 0:
        return
    x, w, sizes = node.inputs
    by_sum = "transpose_w" not in node.attrs
    stored = ctx.storage(y)
    pair = kernel_pair(ctx.storage(x), ctx.storage(w), stored)
    a, b = (Operand(cast_ref(ctx, ctx.ref(t), ctx.storage(t), d, t.size), d)
            for t, d in zip((x, w), pair, strict=True))  # fmt: skip
    c = Operand(ctx.ref(y), stored)
    rows, k, n, experts = x.shape[0], x.shape[1], y.shape[-1], sizes.shape[0]
    transpose_b = not by_sum and node.attrs["transpose_w"]
    args: list[Arg] = [a.ref, b.ref, ctx.ref(sizes), c.ref, rows, n, k, experts]
    if stored.name == "f64":
        kernel = MATMUL_GROUPED64(BY_SUM=by_sum, B_TRANSPOSED=transpose_b)
        ctx.launch(kernel, ctx.groups(_tiles(by_sum, (rows, k, n), experts, (_SIDE64, _SIDE64))), args)
        return
    split = with_terms(split_for(*pair, ctx.precision), *pair)
    if split is not None and (not has_matrices(ctx, split) or forced().way == "fma"):
        split = None
    tiles = mma_choice(split) if split is not None else FMA_TILES
    tiles = {name: tiles[name] for name in (("s", "m") if split is not None else ("s", "l"))}
    if ctx.kind == "software" and forced().tile is None:
        tiles = {"s": tiles["s"]}
    high = k if by_sum else math.ceil(rows / max(experts, 1))
    tile = tile_for(tiles, high, n, max(experts, 1))
    side_m, side_n, _ = tiles[tile]
    across = 4 if split is None else 8
    vectors = a.vectors(k, across), b.vectors(k if transpose_b else n, across)
    constants = {
        "A_TRANSPOSED": by_sum,
        "B_TRANSPOSED": transpose_b,
        "ACTIVATION": 0,
        "BIAS": 0,
        "C_QUADS": c.vectors(n, 4),
        "IN_PARTS": split.exact if split is not None else (rows if by_sum else k) > LONG_SUM,
        "WIDE": False,
        "BY_SUM": by_sum,
    }
    if split is None:
        kernel = MATMUL_GROUPED(
            AB=f"{a.dtype}_{b.dtype}", TILE=tile, **constants, A_QUADS=vectors[0], B_QUADS=vectors[1]
        )
    else:
        kernel = MATMUL_GROUPED_MMA(
            ABM=f"{a.dtype}_{b.dtype}_{split.type}", TILE=tile, **constants, **mma_constants(split, tile),
            A_OCTETS=vectors[0], B_OCTETS=vectors[1],
        )  # fmt: skip
    ctx.launch(kernel, ctx.groups(_tiles(by_sum, (rows, k, n), experts, (side_m, side_n))), args)


def _tiles(by_sum: bool, sizes: tuple[int, int, int], experts: int, sides: tuple[int, int]) -> int:
    """How many tiles there may be. A group that is not full has one more than its share of the rows, and so have the
    rows after the last."""
    rows, k, n = sizes
    slots = experts * math.ceil(k / sides[0]) if by_sum else math.ceil(rows / sides[0]) + experts + 1
    return slots * math.ceil(n / sides[1])


@lowers("lora_matmul", when=partial(_native, doubles=False))
def lower_lora(ctx: Lowering, node: Node) -> None:
    """x @ w and (x @ a) @ b, each as matmul makes it, in f32 workspace; their sum goes through the epilogue."""
    y = node.output
    if y.size == 0:
        return
    given = [Operand(ctx.ref(t), ctx.storage(t)) for t in node.inputs[:4]]
    x, w, a, b = given
    sizes = [t.size for t in node.inputs[:4]]
    k, n = node.inputs[1].shape
    r = node.inputs[2].shape[1]
    rows = y.size // n
    label = node.label or node.op.name
    plain = Epilogue()

    def made(left: Operand, right: Operand, counts: tuple[int, int], inner: int, columns: int) -> Operand:
        out = Operand(ctx.scratch(rows * columns * f32.itemsize), f32)
        p = Product(rows, columns, inner, (), False, False)
        product(ctx, p, left, right, counts, plain, out, label)
        return out

    planes, scales = [made(x, w, (sizes[0], sizes[1]), k, n)], [1.0]
    if r > 0:
        thin = made(x, a, (sizes[0], sizes[2]), k, r)
        planes.append(made(thin, b, (rows * r, sizes[3]), r, n))
        scales.append(node.attrs["scale"])
    end = Epilogue(node.inputs[4] if len(node.inputs) == 5 else None, node.attrs["activation"])
    whole = Product(rows, n, k, (), False, False)
    add_up(ctx, planes, scales, whole, end, Operand(ctx.ref(y), ctx.storage(y)))
