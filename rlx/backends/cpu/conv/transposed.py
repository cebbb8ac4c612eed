"""Binds `conv_transpose` and `conv_grad_input`: a product, or a depthwise convolution, for each phase of the strides.

    out[t] = sum over taps k with p · stride = t + pad - k · dilation of x[p] · w[k]

Elements of out whose positions are equal modulo the stride, a phase, have the same taps, which read neighbouring
elements of x: a phase is a convolution with stride 1. Phases are computed side by side and then interleaved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.conv.depthwise import DepthwiseKernel, named_operands
from rlx.backends.cpu.conv.edges import Edges
from rlx.backends.cpu.conv.few_outputs import few_output_steps
from rlx.backends.cpu.conv.images import (
    channels_last,
    from_channels_last,
    to_channels_last,
    window_addresses,
)
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.gemm.kernel import Operand
from rlx.backends.cpu.gemm.product import (
    Panels,
    Product,
    Tile,
    choose_tile,
    in_place,
    narrow_float,
    pack_each_run,
    pack_fixed_parts,
    product_steps,
    widened,
    with_epilogue,
)
from rlx.backends.cpu.gemm.transpose import transpose_step
from rlx.backends.cpu.host.matmul.dense import epilogue_of
from rlx.backends.cpu.rowwise import contiguous
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, address, engine
from rlx.dtypes import as_dtype
from rlx.ir import Expr, Node
from rlx.ir import expr as ex
from rlx.records import Record

_MAX_PHASES = 256  # the steps of more phases would cost more than their work
_FEW_OUTPUTS = 4


class Phase(Record):
    """The `count` elements first, first + stride, … of the result along one axis. Element q reads x at q + offset for
    the first of the taps, and `step` further for each following one."""

    first: int
    count: int
    taps: slice
    number: int
    offset: int
    step: int


def phases(size: int, kernel: int, stride: int, dilation: int, pad: int) -> list[Phase]:
    """The phases of an axis of `size` elements of the result; `pad` is what lies before it."""
    result = []
    apart = stride // math.gcd(stride, dilation)  # taps of a phase
    for first in range(min(stride, size)):
        taps = [k for k in range(kernel) if not (first + pad - k * dilation) % stride]
        begin = taps[0] if taps else 0
        offset = (first + pad - begin * dilation) // stride
        chosen = slice(begin, taps[-1] + 1 if taps else begin, apart)
        result.append(
            Phase(first, -(-(size - first) // stride), chosen, len(taps), offset, -(dilation * apart // stride))
        )
    return result


@engine("conv_transpose", "conv_grad_input", images="makes")
def bind_transposed(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, w, out = ins[0], ins[1], outs[0]
    if any(not narrow_float(a.dtype) for a in (*ins, out)):
        raise Declined(f"{x.dtype} with {w.dtype}")
    if w.size == 0 or x.size == 0:
        raise Declined("no elements")
    if not w.flags.c_contiguous:
        raise Declined("strides of the weight")
    attrs = node.attrs
    strides, dilations = attrs["strides"], attrs["dilations"]
    geometry = zip(out.shape[2:], w.shape[2:], strides, dilations, attrs["pads"], strict=True)
    axes = [phases(n, k, s, d, before) for n, k, s, d, (before, _) in geometry]
    if math.prod(map(len, axes)) > _MAX_PHASES:
        raise Declined(f"strides of {strides}")
    steps: list[EngineStep] = []
    if x.dtype != np.float32:
        x = widened(x, ctx, steps)
    if attrs["groups"] == 1 and w.shape[1] < _FEW_OUTPUTS:
        tree = with_epilogue(epilogue_of(node), len(ins) - 2, None)
        bias = ins[2] if len(ins) == 3 else None
        taps = [
            tuple((p.taps.start + i * p.taps.step, p.offset + i * p.step) for i in range(p.number))
            for p in axes[-1]
        ]
        outer = [
            (x.shape[2 + d], out.shape[2 + d], w.shape[2 + d], strides[d], dilations[d], attrs["pads"][d][0])
            for d in range(len(axes) - 1)
        ]
        return [*steps, *few_output_steps(x, w, bias, out, taps, outer, tree, ctx)]
    if _is_product(node, x, out, ins[2:], w):
        return [*steps, *_product(x, w, out, ctx)]
    nhwc = channels_last(x)
    image = to_channels_last(x, ctx, steps) if nhwc is None else nhwc
    last = channels_last(out)
    result = last
    if result is None:
        result = ctx.borrow(out.nbytes).view(out.dtype).reshape(out.shape[0], *out.shape[2:], out.shape[1])
    tree, fixed = with_epilogue(epilogue_of(node), len(ins) - 2, None), ctx.is_fixed(node.inputs[1])
    edges = Edges(w, attrs["groups"], tuple(ins[2:]), tree, fixed, ctx)
    spread = _Phases(image, w, attrs["groups"], ins[2:], tree, fixed, edges, ctx)
    every = list(product(*axes))
    for phase, panels in zip(every, spread.packed(every), strict=True):
        part = result[(slice(None), *(slice(p.first, None, s) for p, s in zip(phase, strides, strict=True)))]
        if part.flags.c_contiguous:
            steps += spread.steps(phase, part, panels)
            continue
        apart = ctx.borrow(part.nbytes).view(part.dtype).reshape(part.shape)
        steps += spread.steps(phase, apart, panels)
        copy = tree_step([ex.arg(0, as_dtype(part.dtype))], [apart], [part], ctx)
        assert copy is not None
        steps.append(copy)
    if last is None:
        steps.append(from_channels_last(result, out, ctx))
    return steps


def _at(phase: Sequence[Phase]) -> Any:
    """The index of a phase's taps in the weight (C, O / groups, *K)."""
    return (slice(None), slice(None), *(p.taps for p in phase))


def _is_product(node: Node, x: Array, out: Array, bias: Sequence[Array], w: Array) -> bool:
    """Whether this is one matrix product for each image, with x and out contiguous in the order of their shapes."""
    single = set(w.shape[2:]) == {1} and x.shape[2:] == out.shape[2:] and set(node.attrs["strides"]) == {1}
    return single and not bias and w.dtype == x.dtype == out.dtype and node.attrs["groups"] == 1 and contiguous(x, out)


def _product(x: Array, w: Array, out: Array, ctx: EngineContext) -> list[EngineStep]:
    """out = wᵀ · x for each image; the columns are positions, which are contiguous."""
    (n, c), o, places = x.shape[:2], w.shape[1], math.prod(x.shape[2:])
    turned = ctx.borrow(w.nbytes).view(w.dtype).reshape(o, c)  # terms far apart would share few cache sets
    first = transpose_step(w, turned, ctx, c, o, w.strides[0], turned.strides[0], 1, (1, 0, 0), (0, 0))
    rows = (address(turned) + np.arange(o, dtype=np.int64) * turned.strides[0])[:, None]
    tile = choose_tile(ctx.machine, o, places)
    panels = in_place(x.reshape(n, c, places), tile.vectors * ctx.machine.lanes())
    product = Product(rows, c, w.itemsize, out.reshape(n, o, places), 0, keep=(turned,))
    return [first, *product_steps(product, panels, tile, ctx, f"conv {tile.rows}x{tile.vectors}")]


class _Phases(Record):
    """What all phases share: the image (N, *S, C) and the weight (C, O / groups, *K)."""

    image: Array
    w: Array
    groups: int
    bias: Sequence[Array]
    tree: Expr | None
    fixed: bool
    edges: Edges
    ctx: EngineContext

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.w.shape[:2] == (self.groups, 1)

    def packed(self, every: Sequence[Sequence[Phase]]) -> Sequence[Panels | None]:
        """The packed panels of each phase's part of the weight; None for phases whose panels are packed in each run."""
        taps = sum(math.prod(p.number for p in phase) for phase in every)
        # Taps that no element uses are in no phase: then the panels lack them and cannot replace the weight.
        if not self.fixed or self.depthwise or taps != math.prod(self.w.shape[2:]):
            return [None] * len(every)
        parts = [(self._matrices(self.w[_at(phase)]), self._width(phase)) for phase in every]
        taps_of = tuple((p.taps.start, p.taps.stop, p.taps.step) for phase in every for p in phase)
        order = "phases", self.groups, taps_of, tuple(width for _, width in parts)
        return pack_fixed_parts(self.w, parts, order, self.ctx)

    def steps(self, phase: Sequence[Phase], out: Array, panels: Panels | None) -> list[EngineStep]:
        """The steps that write a phase of the result, (N, *counts, O), contiguous."""
        c = len(self.w)
        zero = np.zeros(max(c, 64), np.float32)
        # A window of stride 1 whose position 0 is `offset` elements after the image's first.
        table = window_addresses(
            self.image, [p.number for p in phase], [1] * len(phase), [p.step for p in phase],
            [(-p.offset, 0) for p in phase], [p.count for p in phase], address(zero),
        )  # fmt: skip
        w, taps = self.w[_at(phase)], math.prod(p.number for p in phase)
        if self.depthwise and taps:
            steps = self._depthwise(table, w, taps, out, zero)
        else:
            steps = self._dense(table, w, self._tile(phase), out, zero, panels)
        return steps + self.edges.steps(table, address(zero), w, out)

    def _tile(self, phase: Sequence[Phase]) -> Tile:
        positions = len(self.image) * math.prod(p.count for p in phase)
        return choose_tile(self.ctx.machine, positions, self.w.shape[1])

    def _width(self, phase: Sequence[Phase]) -> int:
        return self._tile(phase).vectors * self.ctx.machine.lanes()

    def _matrices(self, w: Array) -> Array:
        """A part of the weight as (groups, *taps, rows, columns)."""
        c, inner, *kernel = w.shape
        return np.moveaxis(w.reshape(self.groups, c // self.groups, inner, *kernel), (1, 2), (-2, -1))

    def _dense(
        self, table: Any, w: Array, tile: Tile, out: Array, zero: Array, panels: Panels | None
    ) -> list[EngineStep]:
        ctx, groups, (c, inner, *_) = self.ctx, self.groups, w.shape
        rows, width = c // groups, tile.vectors * ctx.machine.lanes()
        result = out.reshape(-1, groups, inner).transpose(1, 0, 2)
        operands = [(b, 0, inner * b.itemsize) for b in self.bias]
        product = Product(table, rows, 4, result, rows * 4, self.tree, operands, (zero, self.image))
        each, steps = self._matrices(w), list[EngineStep]()
        if panels is None and w.shape == self.w.shape:
            panels = pack_each_run(each, width, ctx)
        elif panels is None:
            panels = in_place(self._laid(each, steps).reshape(groups, -1, inner), width)
        return [*steps, *product_steps(product, panels, tile, ctx, f"conv {tile.rows}x{tile.vectors}")]

    def _laid(self, w: Array, steps: list[EngineStep]) -> Array:
        """A contiguous copy of the weight that each run makes."""
        result = self.ctx.borrow(max(w.nbytes, 1))[: w.nbytes].view(w.dtype).reshape(w.shape)
        if w.size:
            copy = tree_step([ex.arg(0, as_dtype(w.dtype))], [w], [result], self.ctx)
            assert copy is not None
            steps.append(copy)
        return result

    def _depthwise(self, table: Any, w: Array, taps: int, out: Array, zero: Array) -> list[EngineStep]:
        ctx, machine, c = self.ctx, self.ctx.machine, len(w)
        filters = np.moveaxis(w[:, 0], 0, -1)
        steps: list[EngineStep] = []
        if w.dtype != np.float32 and not self.fixed:
            raise Declined(f"a depthwise convolution with {w.dtype}")
        prepare = None
        if self.fixed:
            weights = ctx.acquire(filters.size * 4).view(np.float32).reshape(filters.shape)

            def prepare() -> None:
                weights[...] = filters
        else:
            weights = self._laid(filters, steps)
        lanes = machine.lanes()
        vectors = 2 if machine.registers == 32 and taps <= 12 and c > lanes else 1
        spec = DepthwiseKernel(
            lanes, vectors, taps, c % (vectors * lanes) != 0, machine.registers,
            tuple(Operand(as_dtype(b.dtype)) for b in self.bias), self.tree, as_dtype(out.dtype),
        )  # fmt: skip
        table = np.ascontiguousarray(table)
        block = max(1, min(out.shape[-2], len(table)))
        args = spec.args(
            table=table, w=weights, out=out, positions=len(table), channels=c, out_row=c * out.itemsize, w_row=c * 4,
            block=block, **named_operands(self.bias),
        )  # fmt: skip
        items = -(-len(table) // block) * -(-c // (vectors * lanes))
        keep = (table, weights, self.w, self.image, out, zero, *self.bias)
        cost = block * taps * vectors / 2.0
        return [*steps, EngineStep(spec, args, items, 1, keep, prepare, "conv depthwise", cost)]
