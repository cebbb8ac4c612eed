"""Movement: reshape, transpose, expand, slice, concat, pad; and slices whose start is known only at run time."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.dtypes import bool_, i64
from rlx.ir import Attrs, Node, Tensor, apply
from rlx.onnx.writer.draft import Draft, Value
from rlx.onnx.writer.table import composes, writes
from rlx.ops.pad import filling, sources
from rlx.ops.windows import window_counts

BEFORE_ALL = -(1 << 63)  # the stop before the first element, for backward slices


@writes("reshape")
def reshape(d: Draft, node: Node, inputs: list[Value]) -> Value:
    return d.reshape(inputs[0], node.attrs["shape"])


@writes("transpose")
def transpose(d: Draft, node: Node, inputs: list[Value]) -> Value:
    return d.transpose(inputs[0], node.attrs["perm"])


@writes("expand")
def expand(d: Draft, node: Node, inputs: list[Value]) -> Value:
    return d.op("Expand", inputs[0], d.ints(node.attrs["shape"]))


@writes("slice")
def cut(d: Draft, node: Node, inputs: list[Value]) -> Value:
    starts, stops, steps = (node.attrs[k] for k in ("starts", "stops", "steps"))
    shape = node.inputs[0].shape
    axes = [i for i, n in enumerate(shape) if (starts[i], stops[i], steps[i]) != (0, n, 1)]
    if not axes:
        return inputs[0]
    ends = [BEFORE_ALL if stops[i] < 0 else stops[i] for i in axes]
    picked = ([starts[i] for i in axes], ends, axes, [steps[i] for i in axes])
    return d.op("Slice", inputs[0], *map(d.ints, picked))


@writes("concat")
def concat(d: Draft, node: Node, inputs: list[Value]) -> Value:
    parts = [v for v, t in zip(inputs, node.inputs, strict=True) if t.size]
    return d.op("Concat", *parts, axis=node.attrs["axis"]) if len(parts) > 1 else parts[0]


@writes("pad")
def pad(d: Draft, node: Node, inputs: list[Value]) -> Value:
    """Constant padding by Pad; the other modes by a gather, since their elements may repeat any number of times."""
    x, pads, mode = inputs[0], node.attrs["pads"], node.attrs["mode"]
    if not any(map(any, pads)):
        return x
    if mode == "constant":
        value = d.const(filling(node.attrs["value"], x.dtype), x.dtype)
        ends = [p[0] for p in pads] + [p[1] for p in pads]
        return d.op("Pad", x, d.ints(ends), value, mode="constant")
    for axis, (n, (before, after)) in enumerate(zip(node.inputs[0].shape, pads, strict=True)):
        if before or after:
            x = d.op("Gather", x, d.ints(sources(n, before, after, mode)), axis=axis)
    return x


# -- windows


def _first(d: Draft, starts: Value, shape: Any, sizes: Any) -> Value:
    """The start of a window, clamped so that all of the window lies inside."""
    room = d.ints(n - size for n, size in zip(shape, sizes, strict=True))
    return d.op("Max", d.op("Min", d.cast(starts, i64), room), d.const(0, i64))


@writes("dynamic_slice")
def dynamic_slice(d: Draft, node: Node, inputs: list[Value]) -> Value:
    sizes = node.attrs["sizes"]
    if not sizes:
        return inputs[0]
    first = _first(d, inputs[1], node.inputs[0].shape, sizes)
    part = d.op("Slice", inputs[0], first, d.op("Add", first, d.ints(sizes)))
    return d.reshape(part, sizes)  # states the shape, which shape inference cannot know


@writes("dynamic_update_slice")
def dynamic_update_slice(d: Draft, node: Node, inputs: list[Value]) -> Value:
    """The update padded to the full shape, and a mask of its place."""
    x, update, starts = inputs
    shape, sizes = node.inputs[0].shape, node.inputs[1].shape
    if not node.inputs[1].size or not shape:
        return update if not shape else x
    first = _first(d, starts, shape, sizes)
    rest = d.op("Sub", d.ints(n - size for n, size in zip(shape, sizes, strict=True)), first)
    pads = d.op("Concat", first, rest, axis=0)
    wide = d.wide(update)
    placed = d.op("Pad", wide, pads, d.like(0, wide))
    # A padded constant is the mask of the update's place.
    ones = d.const(np.ones(sizes, np.int32))
    here = d.cast(d.op("Pad", ones, pads, d.like(0, ones)), bool_)
    return d.reshape(d.where(here, d.narrow(placed, x.dtype), x), shape)


@composes("im2col")
def im2col(inputs: Any, attrs: Attrs) -> Tensor:
    """Axis by axis the elements under each tap at each position: the axis becomes (taps, positions)."""
    (x,) = inputs
    kernel, spatial = attrs["kernel"], x.shape[2:]
    n = len(kernel)
    counts = window_counts("im2col", spatial, kernel, attrs["strides"], attrs["dilations"], attrs["pads"])
    fill: Any = {"b": False, "f": 0.0}.get(x.dtype.kind, 0)
    y = apply("pad", x, pads=((0, 0), (0, 0), *attrs["pads"]), mode="constant", value=fill)
    for axis in range(n):
        taps = np.arange(kernel[axis])[:, None] * attrs["dilations"][axis]
        places = taps + np.arange(counts[axis]) * attrs["strides"][axis]
        y = apply("gather", y, x.graph.constant(places), axis=2 + 2 * axis)
    perm = (0, 1, *range(2, 2 + 2 * n, 2), *range(3, 2 + 2 * n, 2))
    positions = int(np.prod(counts))
    columns = x.shape[1] * int(np.prod(kernel))
    return apply("reshape", apply("transpose", y, perm=perm), shape=(x.shape[0], columns, positions))
