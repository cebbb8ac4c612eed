"""Binds `conv_grad_weight`: a matrix product whose terms are the positions of the result, in parts that stay in a
cache.

    dw[o, c, k] = sum over images n and places t of d[n, o, t] · x[n, c, t · stride + k · dilation - pad]

The rows of the product are pairs of a channel and a tap, which read the zero-padded x along its last axis; the columns
are outputs, so d is channels last. Each part's sums are added to those of the parts before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.conv.images import (
    channels_last,
    room_for_rows,
    to_channels_last,
    window_addresses,
)
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.gemm.product import (
    Panels,
    Product,
    choose_tile,
    in_place,
    narrow_float,
    product_steps,
    widened,
)
from rlx.backends.cpu.gemm.transpose import panels_step, transpose_step
from rlx.backends.cpu.ir import F32, I64, PTR, Kernel, pointers, sizes
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, address, engine
from rlx.dtypes import as_dtype, f32
from rlx.ir import Node
from rlx.ir import expr as ex
from rlx.records import Record, replace

_PLACES_PER_PART = 1 << 11  # makes a panel of d about a quarter of a megabyte
_MAX_ADDRESSES = 1 << 23
_MAX_TAPS = 49  # each tap of a depthwise convolution has sums of its own


@engine("conv_grad_weight")
def bind_grad_weight(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, d, out = ins[0], ins[1], outs[0]
    if not all(narrow_float(a.dtype) for a in (x, d, out)) or not out.flags.c_contiguous:
        raise Declined(f"{x.dtype} and {d.dtype}")
    if x.size == 0 or d.size == 0 or out.size == 0:
        raise Declined("no elements")
    steps: list[EngineStep] = []
    x, d = (a if a.dtype == np.float32 else widened(a, ctx, steps) for a in (x, d))
    if out.dtype == np.float32:
        return steps + _gradient(node, x, d, out, ctx)
    wide = ctx.borrow(4 * out.size).view(np.float32).reshape(out.shape)
    rounded = tree_step([ex.cast(ex.arg(0, f32), as_dtype(out.dtype))], [wide], [out], ctx)
    assert rounded is not None
    return [*steps, *_gradient(node, x, d, wide, ctx), rounded]


def _gradient(node: Node, x: Array, d: Array, out: Array, ctx: EngineContext) -> list[EngineStep]:
    attrs, groups = node.attrs, node.attrs["groups"]
    kernel, n = attrs["kernel"], len(x)
    if groups > 1 and x.shape[1] == d.shape[1] == groups:
        return _depthwise(node, x, d, out, ctx)
    steps: list[EngineStep] = []
    image = _with_zeros(x, room_for_rows(node, x, kernel, d.shape[2:]), ctx, steps)
    strides, dilations = attrs["strides"], attrs["dilations"]
    if math.prod(kernel) == 1 and image.shape == (*x.shape[:2], *d.shape[2:]) and d.flags.c_contiguous:
        image, d = (a.reshape(*a.shape[:2], -1) for a in (image, d))  # adjacent lines are joined into one
        kernel, strides, dilations = (1,), (1,), (1,)
    counts = d.shape[2:]
    inner, outputs, taps = x.shape[1] // groups, d.shape[1] // groups, math.prod(kernel)
    lines = n * math.prod(counts[:-1])
    if inner * taps * lines > _MAX_ADDRESSES:
        raise Declined(f"{inner * taps} rows of {lines} pieces")
    rows = _addresses(image, inner, kernel, strides, dilations, counts)
    m, line = len(rows), counts[-1]
    sums = ctx.borrow(groups * m * outputs * 4).view(np.float32).reshape(groups, m, outputs)
    tile = choose_tile(ctx.machine, m, outputs)
    width = tile.vectors * ctx.machine.lanes()
    panels = _panels(d, groups, width, ctx, steps)
    step_a, batch_a = strides[-1] * image.itemsize, inner * image.strides[1]
    for first, last in _parts(lines, line):
        onto = [(sums, sums.strides[1], sums.strides[0])] if first else []
        tree = ex.arg(0, f32) + ex.arg(1, f32) if first else None
        for start, stop in _pieces(line) if last - first == 1 else [(0, line)]:
            if start and not onto:
                onto, tree = [(sums, sums.strides[1], sums.strides[0])], ex.arg(0, f32) + ex.arg(1, f32)
            table = rows[:, first:last] + start * step_a
            part = replace(panels, at=panels.at + (first * line + start) * panels.step)
            product = Product(table, stop - start, step_a, sums, batch_a, tree, onto, (image,))
            steps += product_steps(product, part, tile, ctx, f"conv {tile.rows}x{tile.vectors}")
    steps.append(
        transpose_step(sums, out, ctx, m, outputs, sums.strides[1], m * 4, groups, (1, 0, sums.strides[0]),
                       (0, outputs * m * 4))
    )  # fmt: skip
    return steps


def _panels(d: Array, groups: int, width: int, ctx: EngineContext, steps: list[EngineStep]) -> Panels:
    """d (N, O, *T) as panels of outputs for each group, with a row for each position. A single group is copied panel by
    panel, since rows a power of two apart share few cache sets."""
    (n, o), places, last = d.shape[:2], math.prod(d.shape[2:]), channels_last(d)
    if groups > 1 or last is not None:
        channels = to_channels_last(d, ctx, steps) if last is None else last
        return in_place(channels.reshape(-1, groups, o // groups).transpose(1, 0, 2), width)
    count, step = -(-o // width), width * 4
    panels = ctx.borrow(count * n * places * step)
    for i, image in enumerate(d.reshape(n, o, places)):
        steps.append(panels_step(image, panels, i * places * step, n * places * step, width, ctx))
    return Panels(address(panels), f32, step, n * places * step, 0, keep=(panels,))


class DepthwiseGradient(Record):
    """sums (taps, C) = sum over places of d (places, C) · the pixel under each tap; an item is a vector of channels.
    `table` has addresses (places, taps)."""

    taps: int
    lanes: int
    args = pointers("table", "d", "sums") + sizes("places", "channels")

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        table, d, sums, places, channels = k.args("table", "d", "sums", "places", "channels")
        vector = F32.of(lanes)
        with k.loop(k.first, k.last) as item:
            channel = item * lanes
            mask = k.tail(k.min(channels - channel, lanes), lanes)
            whole = [k.variable(k.const(vector, 0.0)) for _ in range(self.taps)]
            with k.loop(0, places, _PLACES_PER_PART) as first:
                parts = [k.variable(k.const(vector, 0.0)) for _ in range(self.taps)]
                with k.loop(first, k.min(first + _PLACES_PER_PART, places)) as place:
                    gradient = k.load(vector, k.at(d, place * channels + channel, F32), mask)
                    for tap, part in enumerate(parts):
                        at = k.load(PTR, k.at(table, place * self.taps + tap, I64))
                        part.value = k.fma(gradient, k.load(vector, k.at(at, channel, F32), mask), part.value)
                for total, part in zip(whole, parts, strict=True):
                    total.value = total.value + part.value
            for tap, total in enumerate(whole):
                k.store(total.value, k.at(sums, channels * tap + channel, F32), mask)
        return k.text()


def _depthwise(node: Node, x: Array, d: Array, out: Array, ctx: EngineContext) -> list[EngineStep]:
    """The case of one channel and one output a group."""
    attrs, c, taps, lanes = node.attrs, x.shape[1], math.prod(node.attrs["kernel"]), ctx.machine.lanes()
    if taps > _MAX_TAPS:
        raise Declined(f"{taps} taps of each channel")
    steps: list[EngineStep] = []
    image, gradient = (to_channels_last(a, ctx, steps) if (nhwc := channels_last(a)) is None else nhwc for a in (x, d))
    zero = np.zeros(c + 64, np.float32)
    table = np.ascontiguousarray(
        window_addresses(
            image, attrs["kernel"], attrs["strides"], attrs["dilations"], attrs["pads"], d.shape[2:], address(zero)
        )
    )
    sums = ctx.borrow(taps * c * 4).view(np.float32).reshape(taps, c)
    keep = (table, image, gradient, sums, zero)
    spec, cost = DepthwiseGradient(taps, lanes), len(table) * taps * 0.6
    args = spec.args(table=table, d=gradient, sums=sums, places=len(table), channels=c)
    steps.append(EngineStep(spec, args, -(-c // lanes), 1, keep, name="conv depthwise", cost_ns=cost))
    steps.append(transpose_step(sums, out, ctx, taps, c, c * 4, taps * 4, 1, (1, 0, 0), (0, 0)))
    return steps


def _parts(lines: int, line: int) -> list[tuple[int, int]]:
    """Lines first … last - 1 of each part."""
    each = max(1, _PLACES_PER_PART // line)
    return [(i, min(i + each, lines)) for i in range(0, lines, each)]


def _pieces(line: int) -> list[tuple[int, int]]:
    """Places first … last - 1 of each part of a line that is a part by itself."""
    return [(i, min(i + 2 * _PLACES_PER_PART, line)) for i in range(0, line, 2 * _PLACES_PER_PART)]


def _with_zeros(
    x: Array, pads: Sequence[tuple[int, int]], ctx: EngineContext, steps: list[EngineStep]
) -> Array:
    """x (N, C, *S) zero-padded: where there is padding, a copy that each run makes in shared scratch memory."""
    if x.flags.c_contiguous and not any(a or b for a, b in pads):
        return x
    shape = (*x.shape[:2], *(a + s + b for s, (a, b) in zip(x.shape[2:], pads, strict=True)))
    result = ctx.borrow(math.prod(shape) * 4).view(np.float32).reshape(shape)
    inside = result[(slice(None), slice(None), *(slice(a, a + s) for s, (a, _) in zip(x.shape[2:], pads, strict=True)))]
    for tree, sources, target in ((ex.lit(0.0, f32), [], result), (ex.arg(0, as_dtype(x.dtype)), [x], inside)):
        step = tree_step([tree], sources, [target], ctx)
        assert step is not None
        steps.append(step)
    return result


def _addresses(
    image: Array, inner: int, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    counts: Sequence[int],
) -> Array:  # fmt: skip
    """(inner · taps, lines): the address from which each channel and tap of the first group reads each line of the
    result's positions."""
    at = np.full((1, 1), address(image), np.int64)
    channel = np.arange(inner)[:, None] * image.strides[1]
    at = (at + channel).reshape(-1, 1)
    for size, dilation, stride in zip(kernel, dilations, image.strides[2:], strict=True):
        at = (at[:, None, :] + (np.arange(size) * dilation * stride)[None, :, None]).reshape(-1, 1)
    lines = (np.arange(len(image)) * image.strides[0]).reshape(-1)
    for count, step, stride in zip(counts[:-1], strides[:-1], image.strides[2:-1], strict=True):
        lines = (lines[:, None] + np.arange(count) * step * stride).reshape(-1)
    return at + lines
