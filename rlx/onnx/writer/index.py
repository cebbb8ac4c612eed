"""Reading and writing by index: gather, gather_elements, one_hot, scatter, scatter_elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.dtypes import i64
from rlx.ir import Node, Tensor
from rlx.onnx.writer.draft import Draft, Value
from rlx.onnx.writer.scalar import convert
from rlx.onnx.writer.table import writes


def _known_inside(indices: Tensor, n: int) -> bool:
    """Whether the indices are a constant within -n..n-1."""
    if not indices.node.op.is_constant:
        return False
    value = indices.node.attrs["value"]
    return not value.size or (-n <= int(value.min()) and int(value.max()) < n)


def _clamped(d: Draft, indices: Value, t: Tensor, n: int) -> Value:
    """Indices clamped to the axis: in rlx an index out of range reads the nearest end, in ONNX it is an error."""
    if _known_inside(t, n):
        return indices
    return d.op("Clip", indices, d.like(-n, indices), d.like(n - 1, indices))


@writes("gather", "gather_elements")
def gather(d: Draft, node: Node, inputs: list[Value]) -> Value:
    kind = "Gather" if node.op.name == "gather" else "GatherElements"
    axis = node.attrs["axis"]
    indices = _clamped(d, inputs[1], node.inputs[1], node.inputs[0].shape[axis])
    return d.op(kind, inputs[0], indices, axis=axis)


@writes("one_hot")
def one_hot(d: Draft, node: Node, inputs: list[Value]) -> Value:
    """A comparison of positions with the index, since runtimes support OneHot for few combinations of dtypes."""
    a, t = node.attrs, node.inputs[0]
    depth, axis, dtype = a["depth"], a["axis"], a["dtype"]
    index = d.cast(inputs[0], i64)
    shape = (*t.shape[:axis], 1, *t.shape[axis:])
    if not _known_inside(t, depth) or (t.size and int(t.node.attrs["value"].min()) < 0):
        below = d.compare("Less", index, d.const(0, i64))
        index = d.where(below, d.op("Add", index, d.const(depth, i64)), index)
    places = np.arange(depth).reshape([depth if i == axis else 1 for i in range(len(shape))])
    hit = d.compare("Equal", d.reshape(index, shape), d.const(places, i64))
    on, off = (d.wide(convert(d, d.const(np.asarray(a[k])), dtype)) for k in ("on", "off"))
    return d.narrow(d.where(hit, on, off), dtype)


@writes("scatter", "scatter_elements")
def scatter(d: Draft, node: Node, inputs: list[Value]) -> Value | Sequence[Value]:
    """ScatterElements. Updates out of range, which ONNX forbids, go to an extra element that is cut off afterwards."""
    a, out = node.attrs, node.outputs[0]
    indices, updates = node.inputs[0], node.inputs[1]
    axis, length = a["axis"], a["length"]
    shared = node.op.name == "scatter"
    if shared:
        head, tail = updates.shape[:axis], updates.shape[axis + indices.ndim :]
        shape: tuple[int, ...] = (*head, indices.size, *tail)
    else:
        shape = updates.shape
    wide = d.wide(inputs[1])
    full = (*shape[:axis], length, *shape[axis + 1 :])
    if not updates.size or not length:
        return inputs[2] if len(inputs) == 3 else d.const(np.zeros(out.shape, out.dtype.np), out.dtype)
    into = d.wide(inputs[2]) if len(inputs) == 3 else d.const(np.zeros(full, wide.dtype.np), wide.dtype)
    safe = _known_inside(indices, length)
    index = d.cast(inputs[0], i64)
    if not safe:
        index = _or_beyond(d, index, length)
        ends = [0] * len(full) + [int(i == axis) for i in range(len(full))]
        into = d.op("Pad", into, d.ints(ends), d.like(0, into))
    if shared:
        column = [indices.size if i == axis else 1 for i in range(len(shape))]
        index = d.op("Expand", d.reshape(index, column), d.ints(shape))
        wide = d.reshape(wide, shape)
    result = d.op("ScatterElements", into, index, wide, axis=axis, reduction=a["reduction"])
    if not safe:
        result = d.op("Slice", result, d.ints([0]), d.ints([length]), d.ints([axis]))
    return d.narrow(result, out.dtype)


def _or_beyond(d: Draft, index: Value, n: int) -> Value:
    """Indices counted from the front; n for those out of range."""
    zero, many = d.const(0, i64), d.const(n, i64)
    counted = d.where(d.compare("Less", index, zero), d.op("Add", index, many), index)
    good = d.op("And", d.compare("GreaterOrEqual", counted, zero), d.compare("Less", counted, many))
    return d.where(good, counted, many)
