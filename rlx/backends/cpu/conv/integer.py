"""Binds `integer_conv`: as an indirect product of words, each of which holds neighbouring channels of a pixel. The
image is padded with x's zero point."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.conv.bind import beside_image
from rlx.backends.cpu.conv.depthwise import named_operands
from rlx.backends.cpu.conv.images import (
    channels_last,
    from_channels_last,
    room_for_rows,
    to_channels_last,
    window_addresses,
)
from rlx.backends.cpu.conv.integer_depthwise import IntegerDepthwise
from rlx.backends.cpu.gemm.kernel import Operand
from rlx.backends.cpu.gemm.product import (
    Product,
    choose_tile,
    product_steps,
    with_epilogue,
)
from rlx.backends.cpu.integers import (
    Form,
    Weights,
    adjust_rows,
    adjusted,
    form_of,
    pack_words,
    weights,
)
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, address, engine
from rlx.dtypes import as_dtype, i32
from rlx.ir import Expr, Node
from rlx.ir import expr as ex

_FEW_CHANNELS = 8  # a row of the filter with so few channels is one tap of an image padded with zero points


@engine("integer_conv", takes_epilogue=True, images="makes")
def bind_integer_conv(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    (x, w, *zeros), out, following = ins, outs[0], ctx.epilogue
    if w.size == 0 or x.size == 0:
        raise Declined("no elements")
    if not ctx.is_fixed(node.inputs[1]):
        raise Declined("a weight that is computed")
    padded = any(map(any, node.attrs["pads"]))
    form = form_of(node.inputs[0], node.inputs[2:], w.dtype == np.int8, ctx.machine, padded)
    if form.how != "vnni" and not ctx.is_fixed(node.inputs[3]):
        raise Declined("zero points of the weight that are computed")
    steps: list[EngineStep] = []
    weight = weights(w, zeros, form, ctx, steps)
    beside: list[tuple[Array, bool]] = [(a, False) for a in weight.operands()]
    tree = with_epilogue(ex.arg(0, i32) + ex.arg(1, i32) if beside else None, len(beside), following, i32)
    if following is not None:
        beside += [beside_image(a, out) for a in following.operands]
        out = following.out
    last = channels_last(out)
    result = last
    if result is None:
        result = ctx.borrow(out.nbytes).view(out.dtype).reshape(out.shape[0], *out.shape[2:], out.shape[1])
    groups = node.attrs["groups"]
    alone = groups > 1 and groups == w.shape[0] == x.shape[1]
    if alone and any(matrix for _, matrix in beside):
        raise Declined("an image beside a depthwise convolution")
    bind = _depthwise if alone else _dense
    bind(node, x, weight, result, beside, tree, ctx, steps)
    if last is None:
        steps.append(from_channels_last(result, out, ctx))
    return steps


def _image(
    x: Array, zero: Array, form: Form, ctx: EngineContext, steps: list[EngineStep],
    room: Sequence[tuple[int, int]] | None, wide: int,
) -> Array:  # fmt: skip
    """x as (N, *S, C) in the form's dtype, padded by `room`, or else with at least `wide` channels."""
    image, (n, c, *sizes) = channels_last(x), x.shape
    if image is None:
        if not x.flags.c_contiguous:
            raise Declined("strides of the image")
        flat = adjusted(x.reshape(1, -1), zero, form, ctx, steps).reshape(x.shape)
        image = to_channels_last(flat, ctx, steps, room, form.around)
        if room is not None or wide == c:
            return image
        size = form.dtype.itemsize
        as_bytes = image.view(np.uint8).reshape(-1, c * size)
        rows = adjusted(as_bytes, zero, Form("vnni", False, 0), ctx, steps, wide * size).view(form.dtype)
    elif room is not None:
        around = [a + size + b for size, (a, b) in zip(sizes, room, strict=True)]
        count, size = n * math.prod(around) * c, form.dtype.itemsize
        result = ctx.acquire(count * size + 64)[: count * size].view(form.dtype).reshape(n, *around, c)
        result[...] = form.around
        inside = result[(slice(None), *(slice(a, a + m) for m, (a, _) in zip(sizes, room, strict=True)))]
        lines = sizes[0] if len(sizes) > 1 else 1
        for source, target in zip(image, inside, strict=True):
            from_to = (source.reshape(lines, -1), target.reshape(lines, *target.shape[-2:]))
            adjust_rows(*from_to, target.strides[0] if lines > 1 else 0, zero, form, ctx, steps)
        return result
    else:
        rows = adjusted(image.reshape(-1, c), zero, form, ctx, steps, wide)
    return rows.reshape(n, *sizes, wide)


def _dense(
    node: Node, x: Array, weights: Weights, out: Array, beside: Sequence[tuple[Array, bool]], tree: Expr | None,
    ctx: EngineContext, steps: list[EngineStep],
) -> None:  # fmt: skip
    attrs, groups, form, w = node.attrs, node.attrs["groups"], weights.form, weights.w
    kernel, c, (o, inner) = w.shape[2:], x.shape[1], w.shape[:2]
    counts, pads, strides, dilations = out.shape[1:-1], attrs["pads"], attrs["strides"], attrs["dilations"]
    border = np.full(c + 64, form.around, form.dtype)
    if groups == 1 and c <= _FEW_CHANNELS and kernel[-1] > 1 and dilations[-1] == 1 and len(kernel) <= 2:
        image = _image(x, weights.zeros[0], form, ctx, steps, room_for_rows(node, x, kernel, counts), c)
        nothing = [(0, 0)] * len(kernel)
        rows = window_addresses(image, (*kernel[:-1], 1), strides, dilations, nothing, counts, 0)
        taps, terms = math.prod(kernel[:-1]), kernel[-1] * c
    else:
        # The last word of a group may include channels past the group's, whose weights are 0.
        wide = -(-(c - inner % -form.in_word) // form.in_word) * form.in_word
        image = _image(x, weights.zeros[0], form, ctx, steps, None, wide)
        rows = window_addresses(image, kernel, strides, dilations, pads, counts, address(border))
        taps, terms = math.prod(kernel), inner
    tile = choose_tile(ctx.machine, len(rows), o // groups)
    panels = pack_words(weights, groups, taps, terms, tile.vectors * ctx.machine.lanes(), ctx)
    operands = [(a, o * a.itemsize * matrix, o // groups * a.itemsize) for a, matrix in beside]
    result = out.reshape(-1, groups, o // groups).transpose(1, 0, 2)
    product = Product(
        rows, -(-terms // form.in_word), 4, result, inner * form.dtype.itemsize, tree, operands, (border, image),
        form.how,
    )  # fmt: skip
    steps += product_steps(product, panels, tile, ctx, f"integer conv {form.how} {tile.rows}x{tile.vectors}")


def _depthwise(
    node: Node, x: Array, weights: Weights, out: Array, beside: Sequence[tuple[Array, bool]], tree: Expr | None,
    ctx: EngineContext, steps: list[EngineStep],
) -> None:  # fmt: skip
    attrs, form, w, lanes = node.attrs, weights.form, weights.w, ctx.machine.lanes()
    c, kernel = x.shape[1], w.shape[2:]
    image = _image(x, weights.zeros[0], form, ctx, steps, None, c)
    border = np.full(c + 64, form.around, form.dtype)
    counts, taps = out.shape[1:-1], math.prod(kernel)
    geometry = attrs["strides"], attrs["dilations"], attrs["pads"]
    table = np.ascontiguousarray(window_addresses(image, kernel, *geometry, counts, address(border)))
    wide = -(-c // lanes) * lanes
    packed = pack_words(weights, 1, 1, taps, wide, ctx)
    operands = tuple(Operand(as_dtype(a.dtype)) for a, _ in beside)
    spec = IntegerDepthwise(lanes, taps, form.how, c % lanes != 0, operands, tree, as_dtype(out.dtype))
    block = max(1, min(counts[-1], len(table)))
    args = spec.args(
        table=table, w=packed.at, out=out, positions=len(table), channels=c, out_row=c * out.itemsize,
        w_row=packed.step, block=block, **named_operands(a for a, _ in beside),
    )  # fmt: skip
    items = -(-len(table) // block) * (wide // lanes)
    keep = (table, image, out, border, *packed.keep, *(a for a, _ in beside))
    name = f"integer conv depthwise {form.how}"
    steps.append(EngineStep(spec, args, items, 1, keep, packed.prepare, name, block * taps))
