"""max_pool and avg_pool over one or two spatial axes, for images with their channels first or last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.engine.ir import F32, I64, PTR, Kernel, Value, Variable
from rlx.backends.cpu.engine.rowwise import STORED, larger, load_wide, name_of, room, store_wide
from rlx.backends.cpu.engine.step import EngineContext, EngineStep, address, engine
from rlx.ir import Node
from rlx.ops.pool import divisors

_WIDEST = 1 << 13  # elements of a row with its padding, which lie on the stack


@dataclass(frozen=True, slots=True)
class PoolLast:
    """Images (N, H, W, C): an item is a row of the result. Words: x, y, tables (row, column) of each window's first
    element, first tap and number of taps, divisors, height, width, channels, rows and columns of the result, row and
    column dilation in elements of their axis."""

    join: str
    dtype: str
    lanes: int

    def ir(self) -> str:
        k, lanes, dtype = Kernel("kernel"), self.lanes, self.dtype
        x, y, down, right, by = (k.word(i, PTR) for i in range(5))
        height, width, channels, rows, columns, row_step, column_step = (k.word(i) for i in range(5, 12))
        neutral = k.const(F32.of(lanes), -math.inf if self.join == "max" else 0.0)

        def entry(table: Value, i: Value, part: int) -> Value:
            return k.load(I64, k.at(table, i * 2 + part, I64))

        with k.loop(k.first, k.last) as item:
            n = k.binary("udiv", item, rows)
            oy = item - n * rows
            top, down_count = entry(down, oy, 0), entry(down, oy, 1)
            with k.loop(0, columns) as ox:
                left, right_count = entry(right, ox, 0), entry(right, ox, 1)
                corner = ((n * height + top) * width + left) * channels
                target = (item * columns + ox) * channels

                def window(
                    c: Value, vectors: int, mask: Value | None, corner: Value = corner, target: Value = target,
                    down_count: Value = down_count, right_count: Value = right_count, oy: Value = oy, ox: Value = ox,
                ) -> None:  # fmt: skip
                    held = [k.variable(neutral) for _ in range(vectors)]
                    with k.loop(0, down_count) as ky, k.loop(0, right_count) as kx:
                        at = corner + c + (ky * row_step * width + kx * column_step) * channels
                        for u, one in enumerate(held):
                            v = load_wide(k, x, dtype, at + u * lanes, lanes, mask)
                            one.value = one.value + v if self.join == "add" else larger(k, one.value, v)
                    for u, one in enumerate(held):
                        v = one.value
                        if self.join == "add":
                            v = v / k.load(F32, k.at(by, oy * columns + ox, F32))
                        store_wide(k, v, y, dtype, target + c + u * lanes, mask)

                whole = channels & -(4 * lanes)
                with k.loop(0, whole, 4 * lanes) as c:
                    window(c, 4, None)
                with k.loop(whole, channels, lanes) as c:
                    window(c, 1, k.tail(channels - c, lanes))
        return k.text()


@dataclass(frozen=True, slots=True)
class PoolFirst:
    """Planes (N·C, H, W): an item is a row of the result. The rows under it are joined first, then elements of that
    row, which has its padding around it. Words: as PoolLast's, and the padding on the left; `room` is its length at
    most."""

    join: str
    dtype: str
    stride: int
    taps: int
    room: int
    lanes: int

    def ir(self) -> str:
        k, lanes, dtype = Kernel("kernel"), self.lanes, self.dtype
        x, y, down, by = k.word(0, PTR), k.word(1, PTR), k.word(2, PTR), k.word(4, PTR)
        height, width, rows, columns, row_step, column_step = (k.word(i) for i in (5, 6, 8, 9, 10, 11))
        before = k.word(12)
        neutral = k.const(F32.of(lanes), -math.inf if self.join == "max" else 0.0)
        padded = room(k, 4 * (self.room + 8 * lanes))
        with k.loop(0, self.room + 8 * lanes, lanes) as i:
            k.store(neutral, k.at(padded, i, F32))
        with k.loop(k.first, k.last) as item:
            plane = k.binary("udiv", item, rows)
            oy = item - plane * rows
            top, count = (k.load(I64, k.at(down, oy * 2 + part, I64)) for part in (0, 1))
            base = (plane * height + top) * width

            def column(i: Value, mask: Value | None, base: Value = base, count: Value = count) -> None:
                held = k.variable(neutral)
                with k.loop(0, count) as ky:
                    v = load_wide(k, x, dtype, base + ky * row_step * width + i, lanes, mask)
                    self._join(k, held, v)
                k.store(held.value, k.at(padded, before + i, F32), mask)

            whole = width & -lanes
            with k.loop(0, whole, lanes) as i:
                column(i, None)
            with k.when(k.cmp("slt", whole, width)):
                column(whole, k.tail(width - whole, lanes))
            with k.loop(0, columns, lanes) as ox:
                held = k.variable(neutral)
                with k.loop(0, self.taps) as kx:
                    start = ox * self.stride + kx * column_step
                    parts = [
                        k.load(F32.of(lanes), k.at(padded, start + i * lanes, F32))
                        for i in range(self.stride)
                    ]
                    self._join(k, held, _every(k, parts, self.stride))
                left = columns - ox
                mask = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
                v = held.value
                if self.join == "add":
                    v = v / k.load(F32.of(lanes), k.at(by, oy * columns + ox, F32), mask)
                store_wide(k, v, y, dtype, item * columns + ox, mask)
        return k.text()

    def _join(self, k: Kernel, held: Variable, v: Value) -> None:
        held.value = held.value + v if self.join == "add" else larger(k, held.value, v)


def _every(k: Kernel, parts: list[Value], stride: int) -> Value:
    """Every stride-th element of consecutive vectors, as one vector."""
    lanes = parts[0].type.lanes
    made = parts[0]
    if stride == 1:
        return made
    done = -(-lanes // stride)  # lanes of `made` that are in place, from the vectors before
    made = k.shuffle(parts[0], None, [min(i * stride, lanes - 1) for i in range(lanes)])
    for number, part in enumerate(parts[1:], 1):
        order = list(range(lanes))
        while done < lanes and done * stride < (number + 1) * lanes:
            order[done] = lanes + done * stride - number * lanes
            done += 1
        made = k.shuffle(made, part, order)
    return made


@engine("max_pool", "avg_pool", images="follows")
def bind_pool(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    attrs, x, y = node.attrs, ins[0], outs[0]
    dtype, spatial = name_of(x), x.ndim - 2
    if dtype not in STORED or spatial not in (1, 2) or x.size == 0:
        return None
    kernel, strides = ([1] * (2 - spatial) + list(attrs[name]) for name in ("kernel", "strides"))
    dilations = [1] * (2 - spatial) + list(attrs.get("dilations", (1,) * spatial))
    pads = [(0, 0)] * (2 - spatial) + list(attrs["pads"])
    sizes, counts = ([1] * (2 - spatial) + list(a.shape[2:]) for a in (x, y))
    tables = [
        _windows(*geometry)
        for geometry in zip(sizes, kernel, strides, dilations, (p[0] for p in pads), counts, strict=True)
    ]
    join = "max" if node.op.joins == "max" else "add"
    by = np.ones(1, np.float32)
    if join == "add":
        held = np.broadcast_to(divisors(x.shape, attrs), (1, 1, *y.shape[2:]))
        by = np.ascontiguousarray(held.reshape(-1), np.float32)
    words = [
        *map(address, (x, y, *tables, by)), *sizes, x.shape[1], *counts, *dilations, pads[1][0],
    ]  # fmt: skip
    keep = (x, y, by, *tables)
    cost = counts[1] * math.prod(kernel) * 0.3
    if not (x.flags.c_contiguous and y.flags.c_contiguous):
        if not (_is_last(x) and _is_last(y)):
            return None
        last = PoolLast(join, dtype, ctx.machine.lanes())
        return [EngineStep(last, words, x.shape[0] * counts[0], 1, keep, cost_ns=cost * x.shape[1])]
    needed = sizes[1] + pads[1][0] + strides[1] * ctx.machine.lanes() + kernel[1] * dilations[1]
    needed = max(needed, (counts[1] - 1) * strides[1] + dilations[1] * kernel[1])
    if needed > _WIDEST or strides[1] > 4:
        return None
    size = 1 << max(8, (needed - 1).bit_length())
    first = PoolFirst(join, dtype, strides[1], kernel[1], size, ctx.machine.lanes())
    items = x.shape[0] * x.shape[1] * counts[0]
    return [EngineStep(first, words, items, max(1, int(10_000 / cost)), keep, cost_ns=cost)]


def _windows(
    size: int, kernel: int, stride: int, dilation: int, before: int, count: int
) -> npt.NDArray[np.int64]:
    """The first element and the number of elements of each window along an axis, those in the padding left out."""
    start = np.arange(count) * stride - before
    skipped = np.maximum(0, -(start // dilation))
    taps = np.minimum(kernel, -(-(size - start) // dilation)) - skipped
    return np.stack([start + skipped * dilation, np.maximum(taps, 0)], 1).astype(np.int64)


def _is_last(x: Array) -> bool:
    """Whether an image lies in memory with its channels last."""
    return np.moveaxis(x, 1, -1).flags.c_contiguous
