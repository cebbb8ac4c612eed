"""Lowering of the gradient of a convolution to its weights."""

from __future__ import annotations

import math

from rlx.backends.gpu.program.casts import THREADS, cast_ref, native
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.rules.conv.choice import Problem, Tiles, choose_weight
from rlx.backends.gpu.rules.conv.reading import window_meta
from rlx.backends.gpu.rules.reduce import REDUCE
from rlx.dtypes import f32
from rlx.ir import Node

CONV_WEIGHT = declare(
    KernelDecl(
        "conv_weight",
        about="y = gradient of a convolution's weights, of its input x and the gradient d of its result.",
        grid="a group of 256 for each tile of BM rows x BN columns of each group and split",
        # x, d, meta (bodies/conv_weight.h), y, batch, groups, rows, columns, chunk, splits.
        args=(
            *reads(x="TI", d="TI", meta="u32"),
            *writes(y="TO"),
            *uints("batch", "groups", "rows", "columns", "chunk", "splits"),
        ),
        variants={"IO": ("f32_f32", "f16_f16", "bf16_bf16", "f16_f32", "bf16_f32")},
        constants={"BM": 64, "BN": 64},
        trials=((64, 128), (128, 64)),
    )
)
CONV_WEIGHT_DIRECT = declare(
    KernelDecl(
        "conv_weight_direct",
        about=(
            "y = gradient of a convolution's weights, of its input x and the gradient d of its result, for "
            "small groups."
        ),
        grid="a group of 256 for each element of y",
        # x, d, meta (bodies/conv_weight.h), y, batch, groups, rows, columns.
        args=(*reads(x="T", d="T", meta="u32"), *writes(y="T"), *uints("batch", "groups", "rows", "columns")),
        headers=("body64",),
        variants={"T": ("f32", "f64", "f16", "bf16")},
    )
)


def _native(node: Node, features: frozenset[str]) -> bool:
    return native(node, features, with_f64=True)


@lowers("conv_grad_weight", when=_native)
def lower_conv_grad_weight(ctx: Lowering, node: Node) -> None:
    """Tiles over output channels and weights; the terms are cut into parts, which are added up in a fixed order."""
    (x, d), y = node.inputs, node.output
    if y.size == 0:
        return
    groups, batch = node.attrs["groups"], x.shape[0]
    target, stored = ctx.ref(y), ctx.storage(y)
    a, b = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in (x, d))
    counts = d.shape[2:]
    size = math.prod(x.shape[2:])
    meta = ctx.block(
        [*window_meta(x, counts, node.attrs["kernel"], node), x.shape[1] * size, x.shape[1] // groups * size]
    )
    rows, columns = y.shape[0] // groups, math.prod(y.shape[1:])
    problem = Problem(rows, columns, batch * math.prod(counts), groups, y.size, stored)
    chosen = choose_weight(ctx.target, problem)
    sizes = [batch, groups, rows, columns]
    if not isinstance(chosen, Tiles):
        ctx.launch(CONV_WEIGHT_DIRECT(T=stored.name), ctx.groups(y.size), [a, b, meta, target, *sizes])
        return
    split_k = chosen.split_k
    tiles = math.ceil(rows / chosen.tile_m) * math.ceil(columns / chosen.tile_n) * groups
    partial = target if split_k == 1 else ctx.scratch(split_k * y.size * 4)
    kernel = CONV_WEIGHT(IO=f"{stored}_{stored if split_k == 1 else f32}", BM=chosen.tile_m, BN=chosen.tile_n)
    ctx.launch(kernel, ctx.groups(tiles * split_k), [a, b, meta, partial, *sizes, chosen.chunk, split_k])
    if split_k > 1:
        across, along = 32, THREADS // 32
        reduce = REDUCE(IO=f"f32_{stored}", ACROSS=across, ALONG=along, KIND=0, READS=0, PARTS=0)
        ctx.launch(
            reduce, ctx.groups(math.ceil(y.size / across)), [partial, target, 1, split_k, y.size, split_k, 1, 1.0]
        )
