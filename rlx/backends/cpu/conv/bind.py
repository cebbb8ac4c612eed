"""Binds `conv`: dense and grouped convolutions as indirect products, depthwise ones by a kernel of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.conv.depthwise import named_operands
from rlx.backends.cpu.conv.depthwise_rows import DepthwiseRows, positions_at_once, vectors_at_once
from rlx.backends.cpu.conv.images import (
    channels_last,
    from_channels_last,
    room_for_rows,
    to_channels_last,
    window_addresses,
)
from rlx.backends.cpu.gemm.kernel import Operand
from rlx.backends.cpu.gemm.product import (
    Product,
    choose_tile,
    narrow_float,
    pack_each_run,
    pack_fixed,
    product_steps,
    widened,
    with_epilogue,
)
from rlx.backends.cpu.host.matmul.dense import epilogue_of
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, address, engine
from rlx.backends.cpu.trees import class_of
from rlx.dtypes import as_dtype, f32, f64
from rlx.ir import Expr, Node

_FEW_CHANNELS = 8  # a row of the filter with so few channels is one tap of a zero-padded image


@engine("conv", takes_epilogue=True, images="makes")
def bind_conv(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, w, out = ins[0], ins[1], outs[0]
    wide = x.dtype == w.dtype == out.dtype == np.float64
    if not wide and any(not narrow_float(a.dtype) for a in (*ins, out)):
        raise Declined(f"{x.dtype} with {w.dtype}")
    if w.size == 0 or x.size == 0:
        raise Declined("no elements")
    following = ctx.epilogue
    tree = with_epilogue(epilogue_of(node), len(ins) - 2, following, f64 if wide else f32)
    beside: list[tuple[Array, bool]] = [(a, False) for a in ins[2:]]
    if following is not None:
        beside += [beside_image(a, out) for a in following.operands]
        out = following.out
    steps: list[EngineStep] = []
    if x.itemsize == 2:
        x = widened(x, ctx, steps)
    last = channels_last(out)
    result = last
    if result is None:
        result = ctx.borrow(out.nbytes).view(out.dtype).reshape(out.shape[0], *out.shape[2:], out.shape[1])
    groups = node.attrs["groups"]
    if groups > 1 and groups == w.shape[0] == x.shape[1] and ctx.is_fixed(node.inputs[1]):
        _depthwise(node, x, w, result, beside, tree, ctx, steps)
    else:
        _dense(node, x, w, result, beside, tree, ctx, steps)
    if last is None:
        steps.append(from_channels_last(result, out, ctx))
    return steps


def beside_image(x: Array, out: Array) -> tuple[Array, bool]:
    """An operand of the following node as an epilogue's operand, and whether it is a (channels-last) image; otherwise
    it is one number for each channel."""
    if x.shape == out.shape and channels_last(x) is not None:
        return x, True
    c, spatial = out.shape[1], out.ndim - 2
    if x.size == c and x.ndim > spatial and x.shape[-1 - spatial] == c:
        return x, False
    raise Declined(f"{x.shape} beside {out.shape}")


def _dense(
    node: Node,
    x: Array,
    w: Array,
    out: Array,
    beside: Sequence[tuple[Array, bool]],
    tree: Expr | None,
    ctx: EngineContext,
    steps: list[EngineStep],
) -> None:
    attrs, groups = node.attrs, node.attrs["groups"]
    kernel, c, (o, inner) = w.shape[2:], x.shape[1], w.shape[:2]
    counts, pads, strides, dilations = out.shape[1:-1], attrs["pads"], attrs["strides"], attrs["dilations"]
    few = groups == 1 and c <= _FEW_CHANNELS and kernel[-1] > 1 and dilations[-1] == 1 and len(kernel) <= 2
    zero, outside, size = np.zeros(0, x.dtype), 0, x.itemsize
    if few and x.flags.c_contiguous:
        image = to_channels_last(x, ctx, steps, room_for_rows(node, x, kernel, counts))
        rows = window_addresses(
            image, (*kernel[:-1], 1), strides, dilations, [(0, 0)] * len(kernel), counts, 0
        )
        terms = kernel[-1] * c
    else:
        nhwc = channels_last(x)
        image = to_channels_last(x, ctx, steps) if nhwc is None else nhwc
        zero = np.zeros(max(c, 64), x.dtype)
        outside = address(zero)
        rows = window_addresses(image, kernel, strides, dilations, pads, counts, outside)
        terms = inner
    operands = [(a, o * a.itemsize * matrix, o // groups * a.itemsize) for a, matrix in beside]
    result = out.reshape(-1, groups, o // groups).transpose(1, 0, 2)
    streamed = w.nbytes if groups == 1 and ctx.is_fixed(node.inputs[1]) else 0
    tile = choose_tile(ctx.machine, len(rows), o // groups, streamed, 8 * size)
    how = "fma64" if size == 8 else "fma"
    product = Product(rows, terms, size, result, inner * size, tree, operands, (zero, image), how, outside=outside)
    width = tile.vectors * ctx.machine.lanes(8 * size)
    filters = _as_matrices(w, groups)
    if ctx.is_fixed(node.inputs[1]):
        panels = pack_fixed(filters, width, ctx)
    else:
        panels = pack_each_run(filters, width, ctx)
    steps += product_steps(product, panels, tile, ctx, f"conv {tile.rows}x{tile.vectors}")


def _as_matrices(w: Array, groups: int) -> Array:
    """A filter (O, C, *K), contiguous, as (groups, taps, C, O / groups)."""
    o, inner, *kernel = w.shape
    return w.reshape(groups, o // groups, inner, math.prod(kernel)).transpose(0, 3, 2, 1)


def _depthwise(
    node: Node,
    x: Array,
    w: Array,
    out: Array,
    beside: Sequence[tuple[Array, bool]],
    tree: Expr | None,
    ctx: EngineContext,
    steps: list[EngineStep],
) -> None:
    if any(matrix for _, matrix in beside):
        raise Declined("an image beside a depthwise convolution")
    attrs, c, kernel, machine = node.attrs, x.shape[1], w.shape[2:], ctx.machine
    nhwc = channels_last(x)
    image = to_channels_last(x, ctx, steps) if nhwc is None else nhwc
    zero = np.zeros(max(c, 64), x.dtype)
    element = class_of(as_dtype(x.dtype))
    counts, taps, lanes = out.shape[1:-1], math.prod(kernel), machine.lanes(element.bits)
    weights = ctx.acquire(taps * c * element.size).view(x.dtype).reshape(*kernel, c)

    def prepare() -> None:
        weights[...] = np.moveaxis(w[:, 0], 0, -1)

    operands = tuple(Operand(as_dtype(a.dtype)) for a, _ in beside)
    out_type, strides, dilations = as_dtype(out.dtype), attrs["strides"], attrs["dilations"]
    # The table has an address for each row of the filter and each pixel that a row of the result reads.
    width, vectors = counts[-1], vectors_at_once(machine, taps, c, lanes)
    across = positions_at_once(machine, taps, kernel[-1], vectors, width)
    span = (width - 1) * strides[-1] + (kernel[-1] - 1) * dilations[-1] + 1
    rows = math.prod(kernel[:-1])
    found_at = window_addresses(
        image, (*kernel[:-1], 1), (*strides[:-1], 1), dilations, attrs["pads"], (*counts[:-1], span), address(zero)
    )
    table = np.ascontiguousarray(found_at.reshape(-1, span, rows).swapaxes(1, 2))
    whole = width // across * across
    spec = DepthwiseRows(
        lanes, vectors, rows, kernel[-1], strides[-1], dilations[-1], across, width - whole,
        c % (vectors * lanes) != 0, operands, tree, out_type, element,
    )  # fmt: skip
    args = spec.args(
        table=table, w=weights, out=out, span=span, whole=whole, width=width, channels=c, out_row=c * out.itemsize,
        w_row=c * element.size, **named_operands(a for a, _ in beside),
    )  # fmt: skip
    items = len(table) * -(-c // (vectors * lanes))
    keep = (table, weights, w, image, out, zero, *(a for a, _ in beside))
    cost = width * (taps * vectors / 2.0 + 4)
    steps.append(EngineStep(spec, args, items, 1, keep, prepare, "conv depthwise", cost))
