"""Transposed convolutions with few outputs: one matrix product computes every tap at every position, a second step adds
the taps up.

Vector lanes are positions there, since so few outputs would leave most lanes empty. Row (output, tap) of the product
holds what each position of x adds to one element of the result; the elements of a phase, which are a stride apart, add
up the same taps of neighbouring positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.gemm.product import (
    Product,
    choose_tile,
    in_place,
    pack_each_run,
    product_steps,
    widened,
)
from rlx.backends.cpu.gemm.transpose import transpose_step
from rlx.backends.cpu.ir import F32, I64, Arguments, Kernel, Value, pointers, sizes
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, address
from rlx.dtypes import DType, as_dtype, f32
from rlx.ir import Expr
from rlx.ir import expr as ex
from rlx.records import Record

_MOST_PHASES = 8  # most phases of the last axis, whose vectors are interleaved
_MOST_TAPS = 64  # most taps of the last axis: each is a load in the kernel's code
_PRODUCT_BYTES = 8 << 20  # the products of small images are computed together, up to this size

Taps = tuple[tuple[int, int], ...]
_OF_AXIS = ("size", "out_size", "taps", "stride", "dilation", "padding")


def axis_names(count: int) -> tuple[str, ...]:
    """The arguments of the axes before the last."""
    return tuple(f"{what}{a}" for a in range(count) for what in _OF_AXIS)


class AddTapsKernel(Record):
    """An item is a row of the result. `phases` has for each phase of the last axis its taps (of `inner`) and the
    position in x that its first element reads for each; `outer` is the number of axes before. Of each axis there are
    its size in x and in the result; of each outer axis `_OF_AXIS`."""

    lanes: int
    phases: tuple[Taps, ...]
    inner: int
    outer: int
    tree: Expr | None = None  # the epilogue: argument 0 is the sum, argument 1 the bias if any
    bias: DType | None = None
    out: DType = f32

    @property
    def args(self) -> Arguments:
        numbers = sizes("places", "outputs", "taps", "size", "out_size", *axis_names(self.outer))
        return pointers("products", "out", "bias") + numbers

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        products, out, bias = k.args("products", "out", "bias")
        places, outputs, taps, size, out_size = k.args("places", "outputs", "taps", "size", "out_size")
        axes = [k.args(*(f"{what}{a}" for what in _OF_AXIS)) for a in range(self.outer)]
        vector, stride = F32.of(lanes), len(self.phases)
        numbers = k.lanes(I64, range(lanes))
        with k.loop(k.first, k.last) as item:
            left, at_axes = item, list[Value]()
            for axis in reversed(axes):
                rest = k.binary("udiv", left, axis[1])
                at_axes.insert(0, left - rest * axis[1])
                left = rest
            channel = left - k.binary("udiv", left, outputs) * outputs
            base = k.at(products, left * taps * places, F32)
            row = k.at(out, item * out_size * self.out.itemsize)
            beside = []
            if self.bias is not None:
                one = trees.load(k, self.bias, k.at(bias, channel * self.bias.itemsize), 1)
                beside = [k.splat(one, lanes)]
            with k.loop(0, k.binary("udiv", out_size + (stride - 1), k.const(I64, stride)), lanes) as q:
                sums = [k.variable(k.const(vector, 0)) for _ in self.phases]
                with ExitStack() as inside:
                    tap, place = k.const(I64, 0), k.const(I64, 0)
                    for here, (there, _, count, step, dilation, pad) in zip(at_axes, axes, strict=True):
                        number = inside.enter_context(k.loop(0, count))
                        distance = here + pad - number * dilation
                        position = k.binary("sdiv", distance, step)
                        # Whether the tap falls on an element of x: inside x and not between two elements; the quotient
                        # is rounded towards zero.
                        fits = k.cmp("eq", position * step, distance) & k.cmp("ult", position, there)
                        inside.enter_context(k.when(fits))
                        tap, place = tap * count + number, place * there + position
                    start = k.at(base, tap * self.inner * places + place * size, F32)
                    for total, phase in zip(sums, self.phases, strict=True):
                        for number_of, offset in phase:
                            mask = k.cmp("ult", numbers + k.splat(q + offset, lanes), k.splat(size, lanes))
                            at = k.at(start, places * number_of + (q + offset), F32)
                            total.value = total.value + k.load(vector, at, mask)
                totals = [total.value for total in sums]
                if self.tree is not None:
                    totals = [trees.print_trees(k, [self.tree], [total, *beside])[0] for total in totals]
                for n, part in enumerate(_interleaved(k, totals)):
                    first = q * stride + n * lanes
                    mask = k.tail(k.min(k.max(out_size - first, 0), lanes), lanes)
                    trees.store(k, part, self.out, k.at(row, first * self.out.itemsize), mask)
        return k.text()


def _interleaved(k: Kernel, parts: Sequence[Value]) -> list[Value]:
    """The vectors interleaved: lane 0 of each, then lane 1 of each, and so on."""
    count, lanes = len(parts), parts[0].type.lanes
    if count == 1:
        return [*parts]
    padded = [*parts, *[parts[0]] * ((1 << (count - 1).bit_length()) - count)]
    whole = k.joined(padded)
    order = [i % count * lanes + i // count for i in range(count * lanes)]
    return [k.shuffle(whole, None, order[n * lanes : (n + 1) * lanes]) for n in range(count)]


def few_output_steps(
    x: Array, w: Array, bias: Array | None, out: Array, phases: Sequence[Taps], axes: Sequence[Sequence[int]],
    tree: Expr | None, ctx: EngineContext,
) -> list[EngineStep]:  # fmt: skip
    """x (N, C, *S) in f32, w (C, O, *K), out (N, O, *T). `phases` are those of the last axis, as in AddTapsKernel;
    `axes` has the numbers of each axis before it."""
    (n, c, *shape), (_, o, *kernel) = x.shape, w.shape
    if len(phases) > _MOST_PHASES or kernel[-1] > _MOST_TAPS:
        raise Declined(f"{o} outputs with strides of {len(phases)}")
    taps, places = math.prod(kernel), math.prod(shape)
    steps: list[EngineStep] = []
    if w.dtype != np.float32:
        w = widened(w, ctx, steps)
    rows = o * taps
    turned = ctx.borrow(w.nbytes).view(np.float32).reshape(rows, c)
    steps.append(transpose_step(w, turned, ctx, c, rows, w.strides[0], turned.strides[0], 1, (1, 0, 0), (0, 0)))
    each = min(n, max(1, _PRODUCT_BYTES // (4 * rows * places)))
    products = ctx.borrow(4 * each * rows * places).view(np.float32).reshape(each, rows, places)
    tile = choose_tile(ctx.machine, rows, places)
    width = tile.vectors * ctx.machine.lanes()
    flat = np.moveaxis(x, 1, -1).reshape(n, places, c).swapaxes(1, 2)
    if not np.may_share_memory(flat, x):
        raise Declined(f"strides of x: {x.strides}")
    table = (address(turned) + np.arange(rows, dtype=np.int64) * turned.strides[0])[:, None]
    result = out
    if not out.flags.c_contiguous:
        result = ctx.borrow(out.nbytes).view(out.dtype).reshape(out.shape)
    spec = AddTapsKernel(
        ctx.machine.lanes(), tuple(phases), kernel[-1], len(axes), tree,
        None if bias is None else as_dtype(bias.dtype), as_dtype(out.dtype),
    )  # fmt: skip
    numbers = {"places": places, "outputs": o, "taps": taps, "size": shape[-1], "out_size": out.shape[-1]}
    numbers.update(zip(axis_names(len(axes)), (number for axis in axes for number in axis), strict=True))
    for first in range(0, n, each):
        images, part = flat[first : first + each], result[first : first + each]
        panels = in_place(images, width) if flat.strides[2] == 4 else pack_each_run(images[:, None], width, ctx)
        product = Product(table, c, 4, products[: len(images)], 0, keep=(turned, x))
        steps += product_steps(product, panels, tile, ctx, f"conv {tile.rows}x{tile.vectors}")
        args = spec.args(products=products, out=part, bias=bias, **numbers)
        items, cost = part.size // out.shape[-1], out.shape[-1] * taps / len(phases) / 8.0
        steps.append(EngineStep(spec, args, items, 1, (products, result, bias), name="conv taps", cost_ns=cost))
    if result is not out:
        copy = tree_step([ex.arg(0, as_dtype(out.dtype))], [result], [out], ctx)
        assert copy is not None
        steps.append(copy)
    return steps
