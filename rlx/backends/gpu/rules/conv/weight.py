"""Lowering of the gradient of a convolution to its weights."""

from __future__ import annotations

import math

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.gemm.launch import epilogue_tree
from rlx.backends.gpu.program.casts import THREADS, cast_ref, native
from rlx.backends.gpu.program.images import IMAGES, Maker
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Ref
from rlx.backends.gpu.rules.conv.choice import MATRIX_TILES, Matrices, Problem, Tiles, choose_weight
from rlx.backends.gpu.rules.conv.reading import window_meta
from rlx.backends.gpu.rules.conv.units import multiplied, pixels_in_units
from rlx.backends.gpu.rules.movement import move
from rlx.backends.gpu.rules.reduce import REDUCE
from rlx.dtypes import DType, f32
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
CONV_WEIGHT_MMA = declare(
    KernelDecl(
        "conv_weight_mma",
        about=(
            "y = gradient of a convolution's weights, of its input x and the gradient d of its result, by matrix "
            "instructions, for halves with channels last."
        ),
        grid="a group of 128 for each tile of BM rows x BN columns of each group and split",
        # x, d, meta (bodies/conv_weight_mma.h), y (splits, groups, rows, taps, 8 deep), batch, groups, rows, …
        args=(
            *reads(x="T", d="T", meta="u32"),
            *writes(y="f32"),
            *uints("batch", "groups", "rows", "deep", "high", "chunk", "splits"),
        ),
        headers=("prims", "mma"),
        variants={"T": ("f16", "bf16"), "TILE": ("s", "t", "m")},
        constants={"STAGES": 1},
        trials=((1,), (3,)),
        threads=128,
        resident="2",
        unroll=True,
        new_compiler=True,
    )
)
CONV_WEIGHT_PARTS_MMA = declare(
    KernelDecl(
        "conv_weight_parts_mma",
        function="conv_weight_mma_body",
        about=CONV_WEIGHT_MMA.about.replace("halves", "operands in f32 as sums of PARTS parts in bf16,"),
        grid=CONV_WEIGHT_MMA.grid,
        args=CONV_WEIGHT_MMA.args,
        headers=("prims", "mma"),
        variants={"PARTS": ("2", "3"), "TILE": ("s", "t")},
        constants={"STAGES": 1},
        trials=((1,), (2,)),
        threads=128,
        resident="2",
        unroll=True,
        new_compiler=True,
    )
)
_FEW_PARTS = 10  # up to so many parts one elementwise launch adds up, each thread all parts of an element


def _native(node: Node, features: frozenset[str]) -> bool:
    return native(node, features, with_f64=True)


@lowers("conv_grad_weight", when=_native)
def lower_conv_grad_weight(ctx: Lowering, node: Node) -> None:
    """Tiles over output channels and weights; each sum is cut into parts, which are added up in a fixed order."""
    (x, d), y = node.inputs, node.output
    if y.size == 0:
        return
    groups, batch = node.attrs["groups"], x.shape[0]
    target, stored = ctx.ref(y), ctx.storage(y)
    chosen = choose_weight(ctx.target, _problem(ctx, node))
    if isinstance(chosen, Matrices):
        _by_matrices(ctx, node, chosen)
        return
    a, b = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in (x, d))
    counts = d.shape[2:]
    size = math.prod(x.shape[2:])
    meta = ctx.block(
        [*window_meta(x, counts, node.attrs["kernel"], node), x.shape[1] * size, x.shape[1] // groups * size]
    )
    rows, columns = y.shape[0] // groups, math.prod(y.shape[1:])
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
        _add_up(ctx, partial, target, stored, split_k, y.size)


def _add_up(ctx: Lowering, parts: Ref, target: Ref, stored: DType, count: int, size: int) -> None:
    """Adds up `count` parts of f32, each of `size` elements, in order."""
    if count <= _FEW_PARTS:
        nbytes = size * f32.itemsize
        each = [Ref(parts.segment, parts.offset + i * nbytes, nbytes) for i in range(count)]
        tree = epilogue_tree(f32, None, None, stored, (1.0,) * count)
        launch_tree(ctx, [tree], (size,), [View(ref, f32, (1,)) for ref in each], [View(target, stored, (1,))])
        return
    across, along = 32, THREADS // 32
    reduce = REDUCE(IO=f"f32_{stored}", ACROSS=across, ALONG=along, KIND=0, READS=0, PARTS=0)
    ctx.launch(reduce, ctx.groups(math.ceil(size / across)), [parts, target, 1, count, size, count, 1, 1.0])


def _problem(ctx: Lowering, node: Node) -> Problem:
    (x, d), y = node.inputs, node.output
    groups, stored = node.attrs["groups"], ctx.storage(y)
    half, parts = _multiplied(ctx, node)
    units = -(-y.shape[1] // 8) * math.prod(y.shape[2:])
    rows, columns, terms = y.shape[0] // groups, math.prod(y.shape[1:]), d.shape[0] * math.prod(d.shape[2:])
    half = half if units and terms else None
    split = (parts, x.size + d.size) if parts > 1 and half is not None else (0, 0)
    return Problem(rows, columns, terms, groups, y.size, stored, False, half, units, 0, False, *split)


def _multiplied(ctx: Lowering, node: Node) -> tuple[DType | None, int]:
    """What `multiplied` gives for the node's operands, if all have one dtype; else (None, 1)."""
    stored = ctx.storage(node.output)
    alike = all(ctx.storage(t) == stored for t in node.inputs)
    return multiplied(ctx, (stored, stored), turned=True) if alike else (None, 1)


def _takes_images(ctx: Lowering, node: Node, wished: bool) -> bool:
    """Whether matrix instructions compute a node; then both inputs may have either layout."""
    return node.output.size > 0 and isinstance(choose_weight(ctx.target, _problem(ctx, node)), Matrices)


IMAGES["conv_grad_weight"] = Maker(_takes_images, lambda node: node.inputs)


def _by_matrices(ctx: Lowering, node: Node, chosen: Matrices) -> None:
    """Matrix instructions with channels last; parts of the sums over pixels are added up in order."""
    (x, d), y = node.inputs, node.output
    groups, batch, stored = node.attrs["groups"], x.shape[0], ctx.storage(y)
    half, count = _multiplied(ctx, node)
    assert half is not None
    rows, channels, taps = y.shape[0] // groups, y.shape[1], math.prod(y.shape[2:])
    deep, high = -(-channels // 8), -(-rows // 8)
    pixels, gradient = (pixels_in_units(ctx, t, half, groups, count) for t in (x, d))
    units = (groups * deep, groups * high)
    planes = (t.size // t.shape[1] * n for t, n in zip((x, d), units, strict=True))
    meta = ctx.block([*window_meta(x, d.shape[2:], node.attrs["kernel"], node), *units, *planes])
    size = groups * rows * taps * deep * 8
    parts, whole = ctx.scratch(chosen.split_k * size * f32.itemsize), ctx.scratch(size * stored.itemsize)
    up, across = MATRIX_TILES[chosen.tile][:2]
    tiles = math.ceil(rows / up) * math.ceil(taps * deep * 8 / across) * groups
    if count > 1:
        kernel = CONV_WEIGHT_PARTS_MMA(PARTS=str(count), TILE=chosen.tile, STAGES=chosen.stages)
    else:
        kernel = CONV_WEIGHT_MMA(T=half.name, TILE=chosen.tile, STAGES=chosen.stages)
    ctx.launch(
        kernel, ctx.groups(tiles * chosen.split_k),
        [pixels, gradient, meta, parts, batch, groups, rows, deep, high, chosen.chunk, chosen.split_k],
    )  # fmt: skip
    _add_up(ctx, parts, whole, stored, chosen.split_k, size)
    inner = View(whole, stored, (taps * deep * 8, 1, deep * 8))
    dims = (groups * rows, channels, taps)
    move(ctx, dims, inner, View(ctx.ref(y), stored, contiguous(dims)))
