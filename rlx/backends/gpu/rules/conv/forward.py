"""Lowering of convolution, transposed convolution and the gradient of a convolution to its input.

One launch computes all phases of a transposed convolution (`reading`).
"""

from __future__ import annotations

import math

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.gemm.choice import stored_pair
from rlx.backends.gpu.gemm.launch import epilogue_tree
from rlx.backends.gpu.program.casts import cast_ref, groups_for, native, quads
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Gemm, Ref
from rlx.backends.gpu.rules.conv.choice import Direct, Library, Problem, choose
from rlx.backends.gpu.rules.conv.reading import Reading, backward_reading, forward_reading
from rlx.dtypes import DType, f32, promote
from rlx.ir import Node
from rlx.ir import expr as ex

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

_CODE = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "tanh": 5, "sigmoid": 6}


def _native(node: Node, features: frozenset[str]) -> bool:
    return native(node, features, with_f64=True)


@lowers("conv", when=_native)
def lower_conv(ctx: Lowering, node: Node) -> None:
    """The product of the weights and columns that are read out of x directly; with a window of one element it is a GEMM
    of the vendor's library."""
    x, w, y = node.inputs[0], node.inputs[1], node.output
    if y.size:
        _convolve(ctx, node, forward_reading(x.shape, w.shape, y.shape, node), w.size > 0 and _pointwise(node))


def _pointwise(node: Node) -> bool:
    """Whether every output element is a product of the weights and the channels of one input element."""
    attrs = node.attrs
    plain = attrs["groups"] == 1 and set(attrs["strides"]) == {1} and not any(map(any, attrs["pads"]))
    return plain and math.prod(node.inputs[1].shape[2:]) == 1


def _library(ctx: Lowering, node: Node, dtype: DType) -> None:
    """w (O, C) times each image (C, P); for images of one element, one product of (N, C) and wᵀ. Then the epilogue."""
    x, w, y = node.inputs[0], node.inputs[1], node.output
    a, b = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), dtype, t.size) for t in (w, x))
    target, stored = ctx.ref(y), ctx.storage(y)
    bias = _bias(ctx, node, stored)
    plain = bias is None and node.attrs["activation"] is None
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
    if not plain:
        _join(ctx, node, product, wide, 1, bias, target, stored)


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
    alike = pointwise and pair[0] == pair[1]
    chosen = choose(ctx.target, Problem(rows, columns, reading.terms, products, y.size, pair[0], alike))
    if isinstance(chosen, Library):
        _library(ctx, node, pair[0])
        return
    a, b = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), d, t.size) for t, d in zip((x, w), pair, strict=True))
    bias, activation = _bias(ctx, node, stored), _CODE[node.attrs.get("activation")]
    taps = ctx.block(reading.taps.reshape(-1))
    places = ctx.block(reading.places) if reading.places is not None else taps
    meta = ctx.block([*reading.meta, *(v for p in reading.phases for v in p)])
    split_k = 1 if isinstance(chosen, Direct) else chosen.split_k
    doubles = stored.name == "f64"  # a tree applies bias and activation, since trees compute in f64
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
        _join(ctx, node, partial, pair[0], split_k, bias, target, stored)


def _bias(ctx: Lowering, node: Node, stored: DType) -> Ref | None:
    """The bias in the dtype in which results of dtype `stored` are computed."""
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
    bias: Ref | None,
    target: Ref,
    stored: DType,
) -> None:
    """Adds up the parts in order, with bias and activation, in one pass."""
    y, wide = node.output, promote(stored, f32)
    shape = (y.shape[0], y.shape[1], math.prod(y.shape[2:]))
    nbytes = y.size * kept.itemsize
    inputs = [
        View(Ref(parts.segment, parts.offset + i * nbytes, nbytes), kept, contiguous(shape))
        for i in range(splits)
    ]
    total = ex.arg(0, kept)
    for i in range(1, splits):
        total = total + ex.arg(i, kept)
    arguments = [total]
    if bias is not None:
        arguments.append(ex.arg(splits, wide))
        inputs.append(View(bias, wide, (0, 1, 0)))
    plain = epilogue_tree(kept, wide if bias is not None else None, node.attrs.get("activation"), stored)
    tree = ex.substitute(plain, arguments)
    launch_tree(ctx, [tree], shape, inputs, [View(target, stored, contiguous(shape))])
