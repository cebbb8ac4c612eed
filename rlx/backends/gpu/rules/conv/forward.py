"""Lowering of convolution, transposed convolution and the gradient of a convolution to its input.

One launch computes all phases of a transposed convolution (`reading`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.gemm.choice import stored_pair
from rlx.backends.gpu.gemm.launch import epilogue_tree
from rlx.backends.gpu.program.casts import cast_ref, groups_for, native, quads
from rlx.backends.gpu.program.images import IMAGES, Maker, last_shape
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Gemm, Ref
from rlx.backends.gpu.rules.conv.choice import (
    MATRIX_TILES,
    PANEL_TILES,
    Depthwise,
    Direct,
    Library,
    Matrices,
    Problem,
    choose,
)
from rlx.backends.gpu.rules.conv.reading import Reading, backward_reading, forward_reading, window_meta
from rlx.backends.gpu.rules.conv.units import (
    in_parts,
    in_units,
    lies_last,
    multiplied,
    pixels_in_units,
    unit_of,
)
from rlx.backends.gpu.rules.movement import from_last
from rlx.dtypes import DType, bf16, f16, f32, promote
from rlx.ir import Node, Tensor, get_op
from rlx.ir import expr as ex
from rlx.passes.trees import explicit, node_trees

CONV = declare(
    KernelDecl(
        "conv",
        about=(
            "y = act(product of weights w and columns read out of x + bias): convolution, transposed "
            "convolution, its gradient to x."
        ),
        grid="a group of 256 for each tile of BM rows x BN columns of each group, phase and split",
        # x, w, bias (f32), taps, places, meta (bodies/conv.h), y, batch, groups, rows, phases, columns, chunk,
        # splits.
        args=(
            *reads(x="TA", w="TB", bias="f32", taps="b16", places="u32", meta="u32"),
            *writes(y="TA"),
            *uints("batch", "groups", "rows", "phases", "columns", "chunk", "splits"),
        ),
        variants={"AB": ("f32_f32", "f32_f16", "f32_bf16", "f16_f16", "bf16_bf16")},
        constants={
            "BM": 64,
            "BN": 64,
            "SPARSE": False,
            "HAS_BIAS": False,
            "ACTIVATION": 0,
            "W_QUADS": False,
            "Y_QUADS": False,
        },
        trials=((64, 64, False, True, 1, True, True), (128, 128, True, False, 0, False, False)),
    )
)
CONV_DIRECT = declare(
    KernelDecl(
        "conv_direct",
        about=(
            "y = act(weights w times what they lie on in x + bias), a thread for each element: convolutions "
            "of few rows a group."
        ),
        grid="a thread for each row, phase and column of each group, in groups of 256",
        # x, w, bias (f32), taps, places, meta (bodies/conv.h), y, batch, groups, rows, phases, columns.
        args=(
            *reads(x="TA", w="TB", bias="f32", taps="b16", places="u32", meta="u32"),
            *writes(y="TA"),
            *uints("batch", "groups", "rows", "phases", "columns"),
        ),
        headers=("body64",),
        variants={"AB": ("f32_f32", "f64_f64", "f32_f16", "f32_bf16", "f16_f16", "bf16_bf16")},
        constants={"SPARSE": False, "HAS_BIAS": False, "ACTIVATION": 0},
        trials=((False, True, 2), (True, False, 0)),
    )
)

_MMA_ABOUT = (
    "y = act(product of weights w and pixels of x + bias) by matrix instructions, for halves with channels last: "
    "convolution, transposed convolution, its gradient to x."
)
_MMA_GRID = "a group for each tile of BM pixels x BN channels of each group, phase and split"
# x, w, bias (f32), other, taps, meta (bodies/conv_mma.h), y, batch, groups, rows, phases, columns, deep, chunk, splits.
_MMA_ARGS = (
    *reads(x="T", w="T", bias="f32", other="T", taps="b16", meta="u32"),
    *writes(y="T"),
    *uints("batch", "groups", "rows", "phases", "columns", "deep", "chunk", "splits"),
)
_MMA_CONSTANTS = {
    "STAGES": 1, "PLACED": False, "ACTIVATION": 0, "BIAS": 0, "RESIDUAL": 0, "C_QUADS": False, "WIDE": False,
}  # fmt: skip
CONV_MMA = declare(
    KernelDecl(
        "conv_mma",
        about=_MMA_ABOUT,
        grid=_MMA_GRID,
        args=_MMA_ARGS,
        headers=("prims", "mma"),
        variants={"T": ("f16", "bf16"), "TILE": ("s", "t", "m")},
        constants=_MMA_CONSTANTS,
        trials=((1, True, 2, 1, 0, True, False), (3, False, 0, 0, 0, False, True), (1, False, 0, 2, 2, True, False)),
        threads=128,
        resident="2",
        unroll=True,
        new_compiler=True,
    )
)

CONV_WGMMA = declare(
    KernelDecl(
        "conv_wgmma",
        function="conv_mma_body",
        about=_MMA_ABOUT,
        grid=_MMA_GRID,
        args=_MMA_ARGS,
        headers=("prims", "mma"),
        variants={"T": ("f16", "bf16"), "TILE": ("t", "m", "l")},
        constants={**_MMA_CONSTANTS, "STAGES": 3, "WARPGROUPS": 1},
        trials=((3, True, 2, 1, 0, True, False, 1), (4, False, 0, 2, 2, True, False, 1)),
        threads=256,
        resident="BM > 128u ? 1 : 2",
        specific=("WARPGROUPS", 1),
        cuda_only=True,
    )
)
_PARTS_ABOUT = _MMA_ABOUT.replace("halves", "operands in f32 as sums of PARTS parts in bf16,")
CONV_PARTS_MMA = declare(
    KernelDecl(
        "conv_parts_mma",
        function="conv_mma_body",
        about=_PARTS_ABOUT,
        grid=_MMA_GRID,
        args=_MMA_ARGS,
        headers=("prims", "mma"),
        variants={"PARTS": ("2", "3"), "TILE": ("s", "t")},
        constants=_MMA_CONSTANTS,
        trials=((1, True, 2, 1, 0, True, True), (2, False, 0, 1, 2, False, True)),
        threads=128,
        resident="2",
        unroll=True,
        new_compiler=True,
    )
)
CONV_PARTS_WGMMA = declare(
    KernelDecl(
        "conv_parts_wgmma",
        function="conv_mma_body",
        about=_PARTS_ABOUT,
        grid=_MMA_GRID,
        args=_MMA_ARGS,
        headers=("prims", "mma"),
        variants={"PARTS": ("3",), "TILE": ("t", "m")},
        constants={**_MMA_CONSTANTS, "STAGES": 2, "WARPGROUPS": 1},
        trials=((2, True, 2, 1, 0, True, True, 1), (3, False, 0, 1, 2, True, True, 1)),
        threads=256,
        specific=("WARPGROUPS", 1),
        cuda_only=True,
    )
)
_TF32_ABOUT = _MMA_ABOUT.replace("halves", "operands in f32 rounded to tf32,")
CONV_TF32_MMA = declare(
    KernelDecl(
        "conv_tf32_mma",
        function="conv_mma_body",
        about=_TF32_ABOUT,
        grid=_MMA_GRID,
        args=_MMA_ARGS,
        headers=("prims", "mma"),
        variants={"TILE": ("s", "t", "m")},
        constants=_MMA_CONSTANTS,
        trials=((1, True, 2, 1, 0, True, True), (3, False, 0, 1, 2, False, True)),
        threads=128,
        resident="2",
        cuda_only=True,
    )
)
CONV_TF32_WGMMA = declare(
    KernelDecl(
        "conv_tf32_wgmma",
        function="conv_mma_body",
        about=_TF32_ABOUT,
        grid=_MMA_GRID,
        args=_MMA_ARGS,
        headers=("prims", "mma"),
        variants={"TILE": ("t", "m", "l")},
        constants={**_MMA_CONSTANTS, "STAGES": 3, "WARPGROUPS": 1},
        trials=((3, True, 2, 1, 0, True, True, 1), (4, False, 0, 1, 2, True, True, 1)),
        threads=256,
        resident="BM > 128u ? 1 : 2",
        specific=("WARPGROUPS", 1),
        cuda_only=True,
    )
)

CONV_DEPTHWISE = declare(
    KernelDecl(
        "conv_depthwise",
        about="y = act(weights w of each channel times what they lie on in x + bias), for halves with channels last.",
        grid="a thread for eight channels of four neighbours, in groups of 256",
        args=(*reads(x="T", w="T", bias="f32", meta="u32"), *writes(y="T"), *uints("batch", "deep")),
        headers=("rounding", "prims"),
        variants={"T": ("f16", "bf16")},
        constants={"ACTIVATION": 0, "BIAS": 0, "ROW": 0},
        trials=((2, 1, 0), (0, 0, 7), (1, 2, 3)),
    )
)

_PIXELS = 4  # neighbouring outputs that a thread of the depthwise kernel computes
_MOST_ROW = 7  # the most taps along the last axis that a thread holds at once
_CODE = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "tanh": 5, "sigmoid": 6}


def _native(node: Node, features: frozenset[str]) -> bool:
    return native(node, features, with_f64=True)


@lowers("conv", when=_native)
def lower_conv(ctx: Lowering, node: Node) -> None:
    """By the chosen candidate: an implicit GEMM of the weights and columns gathered from x or, for a window of one
    element, a GEMM of the vendor's library."""
    x, w, y = node.inputs[0], node.inputs[1], node.output
    if y.size:
        _convolve(ctx, node, forward_reading(x.shape, w.shape, y.shape, node), w.size > 0 and _pointwise(node))


def _pointwise(node: Node) -> bool:
    """Whether every output element is a product of the weights and the channels of one input element."""
    attrs = node.attrs
    plain = attrs["groups"] == 1 and set(attrs["strides"]) == {1} and not any(map(any, attrs["pads"]))
    return plain and math.prod(node.inputs[1].shape[2:]) == 1


def _library(ctx: Lowering, node: Node, dtype: DType) -> None:
    """w (O, C) times each image (C, P) or, if images have one pixel, a single product of x (N, C) and wᵀ; then the
    epilogue."""
    x, w, y = node.inputs[0], node.inputs[1], node.output
    a, b = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), dtype, t.size) for t in (w, x))
    target, stored = ctx.ref(y), ctx.storage(y)
    plain = len(node.inputs) < 3 and node.attrs["activation"] is None
    wide = stored if plain or not dtype.is_half else f32
    product = target if wide == stored else ctx.scratch(y.size * wide.itemsize)
    batch, inner, rows, size = x.shape[0], x.shape[1], w.shape[0], math.prod(x.shape[2:])
    precision = ctx.precision if dtype == f32 else dtype.name
    label = node.label or node.op.name
    kinds = (dtype, dtype, wide)
    if size == 1:
        ctx.emit(Gemm(b, a, product, batch, rows, inner, *kinds, False, True, 1, 0, 0, 0, precision, label))
    else:
        strides = (0, inner * size, rows * size)
        ctx.emit(Gemm(a, b, product, rows, size, inner, *kinds, False, False, batch, *strides, precision, label))
    if not plain and not (wide == stored and _join_later(ctx, node)):
        _join(ctx, node, product, wide, 1, target, stored)


@lowers("conv_transpose", "conv_grad_input", when=_native)
def lower_conv_transpose(ctx: Lowering, node: Node) -> None:
    """The kernel of convolution, for each phase of the output."""
    x, w, y = node.inputs[0], node.inputs[1], node.output
    if y.size:
        _convolve(ctx, node, backward_reading(x.shape, w.shape, y.shape, node))


def _convolve(ctx: Lowering, node: Node, reading: Reading, pointwise: bool = False) -> None:
    x, w, y = node.inputs[0], node.inputs[1], node.output
    target, stored = ctx.ref(y), ctx.storage(y)
    pair = stored_pair(ctx.storage(x), ctx.storage(w), stored)
    batch, rows, groups, phases = y.shape[0], reading.rows, reading.groups, len(reading.phases)
    columns, products = reading.columns(batch), groups * phases
    chosen = choose(ctx.target, _problem(ctx, node, reading, pointwise), ctx.chosen)
    if isinstance(chosen, Matrices):
        if not _put_off(ctx, node, reading, chosen):
            _by_matrices(ctx, node, reading, chosen)
        return
    if isinstance(chosen, Depthwise):
        _depthwise(ctx, node)
        return
    if isinstance(chosen, Library):
        _library(ctx, node, pair[0])
        return
    a, b = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), d, t.size) for t, d in zip((x, w), pair, strict=True))
    bias, activation = _bias(ctx, node, stored), _CODE[node.attrs.get("activation")]
    taps = ctx.block(reading.taps.reshape(-1))
    places = ctx.block(reading.places) if reading.places is not None else taps
    meta = ctx.block([*reading.meta, *(v for p in reading.phases for v in p)])
    split_k = 1 if isinstance(chosen, Direct) else chosen.split_k
    doubles = stored.name == "f64"  # then a tree kernel, which computes in f64, does the epilogue
    fused = split_k == 1 and not doubles
    joined = split_k > 1 or (doubles and (bias is not None or activation != 0))
    partial = ctx.scratch(split_k * y.size * pair[0].itemsize) if joined else target
    sparse = reading.places is not None
    constants: dict[str, str | int] = {
        "AB": f"{pair[0]}_{pair[1]}",
        "SPARSE": sparse,
        "HAS_BIAS": fused and bias is not None,
        "ACTIVATION": activation if fused else 0,
    }
    pointers = [a, b, meta if doubles or bias is None else bias, taps, places, meta, partial]
    sizes = [batch, groups, rows, phases, columns]
    if isinstance(chosen, Direct):
        ctx.launch(CONV_DIRECT(**constants), groups_for(ctx, columns * rows * products), [*pointers, *sizes])
    else:
        tiles = math.ceil(rows / chosen.tile_m) * math.ceil(columns / chosen.tile_n) * products
        kernel = CONV(
            **constants,
            BM=chosen.tile_m,
            BN=chosen.tile_n,
            W_QUADS=not sparse and reading.terms % 4 == 0 and quads(b, itemsize=pair[1].itemsize),
            Y_QUADS=not sparse and reading.meta[8] % 4 == 0 and quads(partial, itemsize=pair[0].itemsize),
        )
        ctx.launch(kernel, ctx.groups(tiles * split_k), [*pointers, *sizes, chosen.chunk, split_k])
    if joined:
        _join(ctx, node, partial, pair[0], split_k, target, stored)


def _problem(ctx: Lowering, node: Node, reading: Reading, pointwise: bool, wished: bool = False) -> Problem:
    """The record on which the choice depends; `wished`: assume that x and y have channels last."""
    x, w, y = node.inputs[0], node.inputs[1], node.output
    pair = stored_pair(ctx.storage(x), ctx.storage(w), ctx.storage(y))
    columns, products = reading.columns(y.shape[0]), reading.groups * len(reading.phases)
    half, parts = multiplied(ctx, pair)
    channels = x.shape[1] // reading.groups
    unit = unit_of(half or f32)
    units = reading.terms // channels * -(-channels // unit) if channels else 0
    alike = pointwise and pair[0] == pair[1]
    alone = channels == reading.rows == 1 and reading.places is None and reading.groups % 8 == 0
    whole = alone or channels % unit == 0  # whether units are contiguous in memory
    moved = 0 if (whole or parts > 1) and (wished or lies_last(ctx, x)) else x.size
    moved += 0 if wished or lies_last(ctx, y) else y.size
    split = (parts, x.size + w.size) if parts > 1 and units else (0, 0)
    return Problem(
        reading.rows, columns, reading.terms, products, y.size, pair[0], alike, half if units else None, units, moved,
        alone, *split,
    )  # fmt: skip


def _takes_images(ctx: Lowering, node: Node, wished: bool, forward: bool) -> bool:
    """Whether matrix instructions compute a node; then x and y may have either layout."""
    x, w, y = node.inputs[0], node.inputs[1], node.output
    if not y.size or not w.size:
        return False
    reading = (forward_reading if forward else backward_reading)(x.shape, w.shape, y.shape, node)
    problem = _problem(ctx, node, reading, forward and _pointwise(node), wished)
    return isinstance(choose(ctx.target, problem, ctx.chosen), Matrices | Depthwise)


IMAGES["conv"] = Maker(partial(_takes_images, forward=True))
IMAGES.update(dict.fromkeys(("conv_transpose", "conv_grad_input"), Maker(partial(_takes_images, forward=False))))


def _depthwise(ctx: Lowering, node: Node) -> None:
    """Depthwise convolution with channels last in x and y; the weights are first rearranged into units."""
    x, w, y = node.inputs[0], node.inputs[1], node.output
    half, channels, taps = ctx.storage(y), x.shape[1], math.prod(w.shape[2:])
    weights = in_units(ctx, ctx.ref(w), half, (1, taps, 1, channels), (0, 1, 0, taps))
    bias, kind = _narrow_bias(ctx, node, half)
    meta = ctx.block(window_meta(x, y.shape[2:], w.shape[2:], node))
    lines = math.prod(y.shape[:-1]) // channels
    near = node.attrs["strides"][-1] == node.attrs["dilations"][-1] == 1
    row = w.shape[-1] if near and w.shape[-1] <= _MOST_ROW else 0
    kernel = CONV_DEPTHWISE(T=half.name, ACTIVATION=_CODE[node.attrs["activation"]], BIAS=kind, ROW=row)
    threads = lines * -(-y.shape[-1] // _PIXELS) * (channels // 8)
    pointers = [ctx.ref(x), weights, meta if bias is None else bias, meta, ctx.ref(y)]
    ctx.launch(kernel, groups_for(ctx, threads), [*pointers, x.shape[0], channels // 8])


def _narrow_bias(ctx: Lowering, node: Node, half: DType) -> tuple[Ref | None, int]:
    """The bias in a dtype that the 16-bit kernels read, and their constant BIAS."""
    if len(node.inputs) < 3:
        return None, 0
    if ctx.storage(node.inputs[2]) == half:
        return ctx.ref(node.inputs[2]), 2
    return _bias(ctx, node, half), 1


def _sum_of(ctx: Lowering, node: Node) -> tuple[int, Node, Tensor, int] | None:
    """The only reader of a convolution, if that adds another tensor of its shape, optionally followed by relu, and is
    not lowered otherwise: its number, the node, the other tensor, and the kernel's constant RESIDUAL."""
    y = node.output
    readers = ctx.readers.get(y.id, [])
    if len(readers) != 1 or readers[0] == len(ctx.graph.nodes):
        return None
    end = ctx.graph.nodes[readers[0]]
    kind = _sums(end, y.dtype)
    if kind is None or end.output.id in ctx.instead or y.shape != end.output.shape:
        return None
    other = next((t for t in end.inputs if t.id != y.id), y)
    return None if other is y or other.shape != y.shape else (readers[0], end, other, kind)


def _overwritten(ctx: Lowering, tensors: Sequence[Tensor], node: Node, last: int) -> bool:
    """Whether a step from the one after a node to node number `last` writes over one of the tensors."""
    later = ctx.graph.nodes[ctx.graph.nodes.index(node) + 1 : last + 1]
    written = [ctx.ref(t) for n in later for t in n.outputs if t.id in ctx.plan.slots]
    return any(ref.overlaps(ctx.ref(t)) for ref in written for t in tensors)


def _join_later(ctx: Lowering, node: Node) -> bool:
    """Defers the epilogue of a product in f32, which lies in the result's place, to its only reader if that adds a
    tensor, optionally followed by relu, and no step in between overwrites the bias; returns whether it did."""
    y, reader = node.output, _sum_of(ctx, node)
    if reader is None:
        return False
    last, end, other, kind = reader
    images = (y, other, end.output)
    if {ctx.storage(t) for t in images} != {f32} or not ctx.last.isdisjoint(t.id for t in images):
        return False
    if _overwritten(ctx, node.inputs[2:], node, last):
        return False

    def both(ctx: Lowering, end: Node) -> None:
        _join(ctx, node, ctx.ref(y), f32, 1, ctx.ref(end.output), f32, sums=(other, kind))

    ctx.instead[end.output.id] = both
    return True


def _put_off(ctx: Lowering, node: Node, reading: Reading, chosen: Matrices) -> bool:
    """Defers a convolution to its only reader if that adds a tensor, optionally followed by relu, so that one launch
    does both; returns whether it did. It does not if a step in between overwrites the convolution's inputs."""
    y, reader = node.output, _sum_of(ctx, node)
    if reader is None or chosen.split_k > 1 or not ctx.lies_last(y):
        return False
    last, end, other, kind = reader
    result = ctx.ref(end.output)
    if {other.id, end.output.id} - ctx.last:
        return False
    if result.overlaps(ctx.ref(other)) and result != ctx.ref(other):
        return False
    if _overwritten(ctx, node.inputs, node, last):
        return False

    def both(ctx: Lowering, end: Node) -> None:
        _by_matrices(ctx, node, reading, chosen, (end.output, other, kind))

    ctx.instead[end.output.id] = both
    ctx.within[y.id] = end.name
    return True


def _sums(node: Node, dtype: DType) -> int | None:
    """1 if a node adds two tensors of the dtype, 2 if it also applies relu to the sum; else None."""
    if not node.op.elementwise or len(node.inputs) != 2 or len(node.outputs) != 1:
        return None
    if any(t.dtype != dtype for t in (*node.inputs, *node.outputs)):
        return None
    trees = node_trees(node)  # those of a fusion group are explicit
    return _SUM_TREES.get(trees if "trees" in node.attrs else explicit(trees))


def _relu(x: ex.Expr) -> ex.Expr:
    rule = get_op("relu").expr
    assert rule is not None
    return rule([x], {})


def _sum_trees(dtype: DType) -> dict[tuple[ex.Expr, ...], int]:
    """The trees that `_sums` recognizes, with the arguments in either order; a sum is rounded before relu."""
    sums = [ex.arg(i, dtype) + ex.arg(1 - i, dtype) for i in (0, 1)]
    return {explicit((t,)): 1 for t in sums} | {
        explicit((ex.cast(_relu(ex.Expr("cast", (t,), dtype)), dtype),)): 2 for t in sums
    }


_SUM_TREES = {**_sum_trees(f16), **_sum_trees(bf16), **_sum_trees(f32)}


def _by_matrices(
    ctx: Lowering,
    node: Node,
    reading: Reading,
    chosen: Matrices,
    sums: tuple[Tensor, Tensor, int] | None = None,
) -> None:
    """Matrix instructions with channels last in x, weights and y. `sums`: the result, the tensor that is added, and the
    kernel's constant RESIDUAL."""
    x, w, y = node.inputs[0], node.inputs[1], node.output if sums is None else sums[0]
    stored = ctx.storage(y)
    half, parts = multiplied(ctx, stored_pair(ctx.storage(x), ctx.storage(w), stored))
    assert half is not None
    groups, rows, batch = reading.groups, reading.rows, y.shape[0]
    channels, taps = x.shape[1] // groups, math.prod(w.shape[2:])
    deep = -(-channels // unit_of(half))
    pixels = pixels_in_units(ctx, x, half, groups, parts)
    if reading.places is None:  # (groups, rows, channels, taps)
        strides = (rows * channels * taps, channels * taps, 1, taps)
    else:  # (groups, channels, rows, taps)
        strides = (channels * rows * taps, taps, 1, rows * taps)
    dims = (groups, rows, taps, channels)
    weights = cast_ref(ctx, ctx.ref(w), ctx.storage(w), half if parts == 1 else f32, w.size)
    if parts > 1:
        weights = in_parts(ctx, weights, parts, dims, strides)
    else:
        weights = in_units(ctx, weights, half, dims, strides, rounded=chosen.warpgroups and half == f32)
    block, table = reading.by_pixel(channels, groups * deep, taps * deep, groups * rows, x.size // channels * deep)
    activation = _CODE[node.attrs.get("activation")]
    bias, kind = _narrow_bias(ctx, node, half)
    alone, last = chosen.split_k == 1, lies_last(ctx, y)
    wide = stored if alone else f32
    whole = ctx.ref(y) if alone and last else ctx.scratch(chosen.split_k * y.size * wide.itemsize)
    high, across = (PANEL_TILES if chosen.warpgroups else MATRIX_TILES)[chosen.tile][:2]
    columns = reading.columns(batch)
    tiles = math.ceil(columns / high) * math.ceil(rows / across) * groups * len(reading.phases)
    words: dict[str, str | int] = {"WARPGROUPS": 1} if chosen.warpgroups else {}
    if parts > 1:
        decl, words["PARTS"] = CONV_PARTS_WGMMA if chosen.warpgroups else CONV_PARTS_MMA, str(parts)
    elif half == f32:
        decl = CONV_TF32_WGMMA if chosen.warpgroups else CONV_TF32_MMA
    else:
        decl, words["T"] = CONV_WGMMA if chosen.warpgroups else CONV_MMA, half.name
    kernel = decl(
        **words,
        TILE=chosen.tile,
        STAGES=chosen.stages,
        PLACED=not reading.dense,
        ACTIVATION=activation if alone else 0,
        BIAS=kind if alone else 0,
        RESIDUAL=0 if sums is None else sums[2],
        C_QUADS=rows % 4 == 0 and quads(whole, itemsize=wide.itemsize),
        WIDE=wide == f32,
    )
    meta = ctx.block(block)
    other = meta if sums is None else ctx.ref(sums[1])
    pointers = [pixels, weights, meta if bias is None else bias, other, ctx.block(table.reshape(-1)), meta, whole]
    sizes = [batch, groups, rows, len(reading.phases), columns, deep, chosen.chunk, chosen.split_k]
    ctx.launch(kernel, ctx.groups(tiles * chosen.split_k), [*pointers, *sizes])
    if not alone:
        apart, whole = whole, ctx.ref(y) if last else ctx.scratch(y.size * stored.itemsize)
        _join(ctx, node, apart, wide, chosen.split_k, whole, stored, last_shape(y.shape))
    if not last:
        from_last(ctx, y.shape, stored, whole, ctx.ref(y))


def _bias(ctx: Lowering, node: Node, stored: DType) -> Ref | None:
    """The bias, cast to the dtype in which results stored as `stored` are computed."""
    if len(node.inputs) < 3:
        return None
    bias = node.inputs[2]
    return cast_ref(ctx, ctx.ref(bias), ctx.storage(bias), promote(stored, f32), bias.size)


def _join(
    ctx: Lowering,
    node: Node,
    parts: Ref,
    kept: DType,
    splits: int,
    target: Ref,
    stored: DType,
    last: Sequence[int] = (),
    sums: tuple[Tensor, int] | None = None,
) -> None:
    """Adds up the parts in order, with bias and activation, in one pass; `last`: the shape whose channels lie last.
    `sums`: a tensor of the result's order and dtype that is added to it, and 2 if relu follows."""
    y = node.output
    shape = last or (y.shape[0], y.shape[1], math.prod(y.shape[2:]))
    nbytes = y.size * kept.itemsize
    inputs = [
        View(Ref(parts.segment, parts.offset + i * nbytes, nbytes), kept, contiguous(shape))
        for i in range(splits)
    ]
    kind = None
    if len(node.inputs) > 2:
        bias, kind = node.inputs[2], ctx.storage(node.inputs[2])
        inputs.append(View(ctx.ref(bias), kind, (*[0] * (len(last) - 1), 1) if last else (0, 1, 0)))
    tree = epilogue_tree(kept, kind, node.attrs.get("activation"), stored, (1.0,) * splits)
    if sums is not None:
        tree = tree + ex.arg(len(inputs), stored)
        tree = _relu(tree) if sums[1] == 2 else tree
        inputs.append(View(ctx.ref(sums[0]), stored, contiguous(shape)))
    launch_tree(ctx, [tree], shape, inputs, [View(target, stored, contiguous(shape))])
