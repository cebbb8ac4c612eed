"""max_pool and avg_pool over one to three spatial axes, for images with their channels first or last."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.gemm.transpose import transpose_step
from rlx.backends.cpu.ir import I64, Kernel, Value, Variable, pointers, sizes
from rlx.backends.cpu.rowwise import LOADED, computed, larger, load_wide, name_of, room, store_wide
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.ir import Node
from rlx.ops.pool import divisors
from rlx.records import Record

_MAX_ROW_ELEMENTS = 1 << 13  # a row with its padding is held on the stack

_ARGS = pointers("x", "y", "down", "right", "by") + sizes(
    "height", "width", "channels", "rows", "columns", "row_step", "column_step", "before"
)


class PoolLast(Record):
    """Images (N, H, W, C): an item is a row of the result. The tables `down` and `right` have each window's first
    element and number of taps along H and W; `by` are the divisors."""

    join: str
    dtype: str
    lanes: int
    args = _ARGS

    def ir(self) -> str:
        k, lanes, dtype = Kernel("kernel", self.args), self.lanes, self.dtype
        x, y, down, right, by = k.args("x", "y", "down", "right", "by")
        height, width, channels, rows, columns = k.args("height", "width", "channels", "rows", "columns")
        row_step, column_step = k.args("row_step", "column_step")
        element = computed(dtype)
        neutral = k.const(element.of(lanes), -math.inf if self.join == "max" else 0.0)

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
                            v = v / k.load(element, k.at(by, oy * columns + ox, element))
                        store_wide(k, v, y, dtype, target + c + u * lanes, mask)

                whole = channels & -(4 * lanes)
                with k.loop(0, whole, 4 * lanes) as c:
                    window(c, 4, None)
                with k.loop(whole, channels, lanes) as c:
                    window(c, 1, k.tail(channels - c, lanes))
        return k.text()


class PoolFirst(Record):
    """Planes (N·C, H, W): an item is a row of the result. The rows under its windows are first reduced to one row,
    which is padded, by `before` on the left; then windows of that row are reduced. `room` is its greatest length."""

    join: str
    dtype: str
    stride: int
    taps: int
    room: int
    lanes: int
    args = _ARGS

    def ir(self) -> str:
        k, lanes, dtype = Kernel("kernel", self.args), self.lanes, self.dtype
        x, y, down, by = k.args("x", "y", "down", "by")
        height, width, rows, columns = k.args("height", "width", "rows", "columns")
        row_step, column_step, before = k.args("row_step", "column_step", "before")
        element = computed(dtype)
        neutral = k.const(element.of(lanes), -math.inf if self.join == "max" else 0.0)
        padded = room(k, element.size * (self.room + 8 * lanes))
        with k.loop(0, self.room + 8 * lanes, lanes) as i:
            k.store(neutral, k.at(padded, i, element))
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
                k.store(held.value, k.at(padded, before + i, element), mask)

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
                        k.load(element.of(lanes), k.at(padded, start + i * lanes, element))
                        for i in range(self.stride)
                    ]
                    self._join(k, held, _every(k, parts, self.stride))
                left = columns - ox
                mask = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
                v = held.value
                if self.join == "add":
                    v = v / k.load(element.of(lanes), k.at(by, oy * columns + ox, element), mask)
                store_wide(k, v, y, dtype, item * columns + ox, mask)
        return k.text()

    def _join(self, k: Kernel, held: Variable, v: Value) -> None:
        held.value = held.value + v if self.join == "add" else larger(k, held.value, v)


def _every(k: Kernel, parts: list[Value], stride: int) -> Value:
    """Every stride-th element of consecutive vectors, as one vector."""
    lanes = parts[0].type.lanes
    result = parts[0]
    if stride == 1:
        return result
    done = -(-lanes // stride)  # lanes of the result that the vectors so far have filled
    result = k.shuffle(parts[0], None, [min(i * stride, lanes - 1) for i in range(lanes)])
    for number, part in enumerate(parts[1:], 1):
        order = list(range(lanes))
        while done < lanes and done * stride < (number + 1) * lanes:
            order[done] = lanes + done * stride - number * lanes
            done += 1
        result = k.shuffle(result, part, order)
    return result


class _Axis(Record):
    """The geometry of one spatial axis."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int  # padding
    count: int  # elements of the result


_POINT = _Axis(1, 1, 1, 1, 0, 1)


@engine("max_pool", "avg_pool", images="follows")
def bind_pool(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    """An image whose layout differs from its result's is pooled in its own layout. Volumes are pooled slice by slice,
    and then along the first axis."""
    attrs, x, y = node.attrs, ins[0], outs[0]
    spatial = x.ndim - 2
    if name_of(x) not in LOADED or not 1 <= spatial <= 3 or x.size == 0:
        return None
    steps: list[EngineStep] = []
    if x.flags.c_contiguous != y.flags.c_contiguous and not (_is_last(x) and _is_last(y)):
        if x.itemsize < 4:
            return None
        image = ctx.borrow(x.nbytes).view(x.dtype)
        if x.flags.c_contiguous:
            lies = image.reshape(x.shape[0], *x.shape[2:], x.shape[1])
            steps.append(_turn(x.reshape(*x.shape[:2], -1), lies.reshape(len(x), -1, x.shape[1]), ctx))
            x = np.moveaxis(lies, -1, 1)
        else:
            lies, image = np.moveaxis(x, 1, -1), image.reshape(x.shape)
            steps.append(_turn(lies.reshape(len(x), -1, x.shape[1]), image.reshape(*x.shape[:2], -1), ctx))
            x = image
    last = not (x.flags.c_contiguous and y.flags.c_contiguous)
    if last and not (_is_last(x) and _is_last(y)):
        return None
    dilations = attrs.get("dilations", (1,) * spatial)
    geometry = zip(x.shape[2:], attrs["kernel"], attrs["strides"], dilations, attrs["pads"], y.shape[2:], strict=True)
    axes = [_Axis(n, k, s, d, before, count) for n, k, s, d, (before, _), count in geometry]
    axes = [_POINT] * (2 - spatial) + axes
    join = "max" if node.op.joins == "max" else "add"
    wide = np.float64 if x.itemsize == 8 else np.float32
    by = np.ones(1, wide)
    if join == "add":
        held = np.broadcast_to(divisors(x.shape, attrs), (1, 1, *y.shape[2:]))
        by = np.ascontiguousarray(held.reshape(-1), wide)
    pooled: list[EngineStep | None]
    if spatial < 3:
        pooled = [_pooled(join, x, y, x.shape[0], x.shape[1], axes, by, last, ctx)]
    else:
        if join == "add" and x.dtype != wide:
            return None  # the sums of slices would be rounded
        (depth, *flat), (n, c) = axes, x.shape[:2]
        place = flat[0].count * flat[1].count
        line = _Axis(place, 1, 1, 1, 0, place)
        between = ctx.borrow(n * c * depth.size * place * x.itemsize).view(x.dtype)
        ones = np.ones(place if join == "add" else 1, wide)
        lead = (n * depth.size, c) if last else (n, c * depth.size)
        pooled = [
            _pooled(join, x, between, *lead, flat, ones, last, ctx),
            _pooled(join, between, y, n, c, [depth, line], by, last, ctx),
        ]
    made_steps = [step for step in pooled if step is not None]
    return [*steps, *made_steps] if len(made_steps) == len(pooled) else None


def _turn(x: Array, out: Array, ctx: EngineContext) -> EngineStep:
    """out[n, j, i] = x[n, i, j], both contiguous."""
    n, rows, columns = x.shape
    return transpose_step(x, out, ctx, rows, columns, x.strides[1], out.strides[1], n, (1, 0, x.strides[0]),
                          (0, out.strides[0]))  # fmt: skip


def _pooled(
    join: str, x: Array, y: Array, n: int, channels: int, axes: Sequence[_Axis], by: Array, last: bool,
    ctx: EngineContext,
) -> EngineStep | None:  # fmt: skip
    """x (n, channels, *sizes) pooled over two axes; it is channels last in memory (`last`), or has the order of its
    shape."""
    dtype, (down, right) = name_of(x), axes
    lanes = ctx.machine.lanes(computed(dtype).bits)
    tables = [windows(a.size, a.kernel, a.stride, a.dilation, a.before, a.count) for a in axes]
    args = _ARGS(
        x=x, y=y, down=tables[0], right=tables[1], by=by, height=down.size, width=right.size, channels=channels,
        rows=down.count, columns=right.count, row_step=down.dilation, column_step=right.dilation, before=right.before,
    )  # fmt: skip
    keep = (x, y, by, *tables)
    cost = right.count * down.kernel * right.kernel * 0.3
    if last:
        spec = PoolLast(join, dtype, lanes)
        return EngineStep(spec, args, n * down.count, 1, keep, cost_ns=cost * channels)
    needed = right.size + right.before + right.stride * lanes + right.kernel * right.dilation
    needed = max(needed, (right.count - 1) * right.stride + right.dilation * right.kernel)
    if needed > _MAX_ROW_ELEMENTS or right.stride > 4:
        return None
    size = 1 << max(8, (needed - 1).bit_length())
    first = PoolFirst(join, dtype, right.stride, right.kernel, size, lanes)
    return EngineStep(first, args, n * channels * down.count, max(1, int(10_000 / cost)), keep, cost_ns=cost)


def windows(
    size: int, kernel: int, stride: int, dilation: int, before: int, count: int
) -> npt.NDArray[np.int64]:
    """The first element and the number of elements of each window along an axis, without those in the padding."""
    start = np.arange(count) * stride - before
    skipped = np.maximum(0, -(start // dilation))
    taps = np.minimum(kernel, -(-(size - start) // dilation)) - skipped
    return np.stack([start + skipped * dilation, np.maximum(taps, 0)], 1).astype(np.int64)


def _is_last(x: Array) -> bool:
    """Whether an image is channels last in memory."""
    return np.moveaxis(x, 1, -1).flags.c_contiguous
