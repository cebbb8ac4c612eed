"""Rewrites of one node that keep every bit of the result: the `identity` of the op records, named after the ops.

A rule's docstring says what it rewrites, and under which condition.

There are no rules for these, since a bit could change: x + 0.0 (-0.0 + 0.0 is 0.0), x * 0 (NaN, infinity, -0.0), x - x,
x / x, pow(x, 0.5). A NaN stays a NaN, but its payload may change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType
from rlx.ir import Attrs, Node, Tensor
from rlx.ir.op import Identity

Emit = Callable[[str, Sequence[Tensor], Attrs], Tensor]
Array = npt.NDArray[Any]
_ROW_BYTES = 64  # a concat of shorter rows does not become a gather, which also reads an index for each row
_MOST_ROWS = 1 << 16


def _uniform(t: Tensor) -> Any:
    """The one value that every element of a constant has (also under expand and reshape), else None."""
    while t.node.op.broadcasts or t.node.op.reshapes:
        t = t.node.inputs[0]
    if not t.node.op.is_constant or t.size == 0:
        return None
    value = t.node.attrs["value"].reshape(-1)
    raw = value.view(np.uint8).reshape(value.size, -1)
    return value[0] if value.size == 1 or bool((raw == raw[0]).all()) else None


def _is(t: Tensor, number: float, *, negative_zero: bool | None = None) -> bool:
    value = _uniform(t)
    if value is None or float(value) != number:
        return False
    return negative_zero is None or (math.copysign(1.0, float(value)) < 0) == negative_zero


def _same(node: Node, x: Tensor) -> bool:
    return x.type == node.outputs[0].type


def add(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    """x + 0 is x for integers; x + -0.0 is x for every float."""
    for x, zero in (inputs, inputs[::-1]):
        if _same(node, x) and _is(zero, 0.0, negative_zero=True if x.dtype.is_float else None):
            return x
    return None


def sub(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    """x - 0 is x for integers; x - 0.0 (the positive zero) is x for every float."""
    x, zero = inputs
    return x if _same(node, x) and _is(zero, 0.0, negative_zero=False) else None


def mul(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    """x * 1 is x."""
    for x, one in (inputs, inputs[::-1]):
        if _same(node, x) and _is(one, 1.0):
            return x
    return None


def div(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    """x / 1 is x."""
    x, one = inputs
    return x if _same(node, x) and _is(one, 1.0) else None


def pow(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    """x ** 1 is x; x ** 2 is x * x, which is correctly rounded and so lies within the tolerance of pow."""
    x, exponent = inputs
    if not _same(node, x):
        return None
    if _is(exponent, 1.0):
        return x
    return emit("mul", (x, x), {}) if _is(exponent, 2.0) else None


def logical(neutral: bool) -> Identity:
    def rule(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
        for x, other in (inputs, inputs[::-1]):
            if _same(node, x) and _is(other, float(neutral)):
                return x
        return None

    return rule


def where(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    """The branch that a uniform constant condition selects; the branch itself where both are the same tensor."""
    cond, a, b = inputs
    known = _uniform(cond)
    if known is not None:
        taken = a if known else b
        return taken if _same(node, taken) else None
    return a if a is b and _same(node, a) else None


def undone(by: str) -> Identity:
    """The rule f(f(x)) = x of an op that undoes itself."""

    def rule(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
        inner = inputs[0].node
        return inner.inputs[0] if inner.op.name == by and inner.inputs[0].dtype == node.outputs[0].dtype else None

    return rule


def idempotent(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    """The rule f(f(x)) = f(x)."""
    return inputs[0] if inputs[0].node.op.name == node.op.name else None


def copy(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    """A copy is its source, since values never change. The last pass, isolate_results, inserts the copies needed."""
    return inputs[0]


def clip(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    return inputs[0] if node.attrs["min"] is None and node.attrs["max"] is None else None


def exact(source: DType, target: DType) -> bool:
    """Whether every value of `source` is a value of `target`, so that a cast back restores it."""
    if source == target or source.kind == "b":
        return True
    if source.is_float:
        return target.is_float and (target.itemsize > source.itemsize)
    if target.is_float:
        bits = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}[target.name]
        return bits >= source.itemsize * 8 - (source.kind == "i")
    if target.kind == "u":
        return source.kind == "u" and target.itemsize >= source.itemsize
    return target.kind == "i" and target.itemsize >= source.itemsize + (source.kind == "u")


def cast(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    """A cast to x's own dtype is x; a cast of an exact cast is one cast of the original value."""
    x, to = inputs[0], node.attrs["dtype"]
    if x.dtype == to:
        return x
    inner = x.node
    if inner.op.name == "cast" and exact(inner.inputs[0].dtype, x.dtype):
        start = inner.inputs[0]
        return start if start.dtype == to else emit("cast", (start,), {"dtype": to})
    return None


def reshape(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    x, shape = inputs[0], node.attrs["shape"]
    if x.shape == tuple(shape):
        return x
    if x.node.op.name == "reshape":
        return emit("reshape", (x.node.inputs[0],), {"shape": shape})
    return None


def transpose(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    x, perm = inputs[0], tuple(node.attrs["perm"])
    if perm == tuple(range(x.ndim)):
        return x
    if x.node.op.name == "transpose":
        inner = x.node.attrs["perm"]
        return emit("transpose", (x.node.inputs[0],), {"perm": tuple(inner[p] for p in perm)})
    moved = [axis for axis in perm if x.shape[axis] != 1]
    if moved == sorted(moved):
        return emit("reshape", (x,), {"shape": node.outputs[0].shape})
    return None


def expand(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    x, shape = inputs[0], tuple(node.attrs["shape"])
    if x.shape == shape:
        return x
    if x.node.op.name == "expand":
        return emit("expand", (x.node.inputs[0],), {"shape": shape})
    return emit("reshape", (x,), {"shape": shape}) if x.size == math.prod(shape) else None


def slice(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    x, attrs = inputs[0], node.attrs
    if x.shape == node.outputs[0].shape and all(step == 1 for step in attrs["steps"]):
        return x
    inner = x.node
    if inner.op.name != "slice" or 0 in node.outputs[0].shape:
        return None
    starts, stops, steps = [], [], []
    for axis, n in enumerate(node.outputs[0].shape):
        a, step = inner.attrs["starts"][axis], inner.attrs["steps"][axis]
        first, by = a + attrs["starts"][axis] * step, attrs["steps"][axis] * step
        last = first + (n - 1) * by
        starts.append(first)
        steps.append(by if n > 1 else 1)
        stops.append(last + 1 if steps[-1] > 0 else last - 1)
    joined = {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}
    return emit("slice", (inner.inputs[0],), joined)


def concat(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    """Inputs without elements are left out; a concat of one input is that input. Parts of one tensor, as from `roll`,
    become one gather if each index stands for at least 64 bytes."""
    axis = node.attrs["axis"]
    filled = [x for x in inputs if x.shape[axis] != 0] or list(inputs[:1])
    if len(filled) == 1:
        return filled[0]
    rows = _rows_of_one(filled, axis)
    if rows is not None:
        return emit("gather", (rows[0], emit("constant", (), {"value": rows[1]})), {"axis": axis})
    return None if len(filled) == len(inputs) else emit("concat", filled, node.attrs)


def _rows_of_one(parts: Sequence[Tensor], axis: int) -> tuple[Tensor, Array] | None:
    """The tensor that all parts are slices of along this axis alone, and the indices of their rows in it; else None."""
    source = parts[0].node.inputs[0] if parts[0].node.op.name == "slice" else parts[0]
    count = sum(part.shape[axis] for part in parts)
    inner = math.prod(source.shape[axis + 1 :]) * source.dtype.itemsize
    if source.dtype.is_packed or inner < _ROW_BYTES or count > _MOST_ROWS:
        return None
    places = []
    for part in parts:
        attrs = part.node.attrs
        if part is source:
            places.append(range(part.shape[axis]))
        elif part.node.op.name != "slice" or part.node.inputs[0] is not source:
            return None
        else:
            places.append(range(attrs["starts"][axis], attrs["stops"][axis], attrs["steps"][axis]))
        others = [n for k, n in enumerate(part.shape) if k != axis]
        if others != [n for k, n in enumerate(source.shape) if k != axis]:
            return None
        if part is not source and any(s != 1 for k, s in enumerate(attrs["steps"]) if k != axis):
            return None
    return source, _frozen(np.concatenate([np.array(p, np.int64) for p in places]))


def _frozen(value: Array) -> Array:
    value.flags.writeable = False
    return value


def gather(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    """A gather with constant indices at equal distances becomes a slice, which reads no indices and may be a view. Two
    gathers with constant indices along adjacent axes become one along both."""
    x, indices = inputs
    axis, shape = node.attrs["axis"], node.outputs[0].shape
    places = _places(indices, x.shape[axis])
    if places is None or x.dtype.is_packed:
        return None
    step = int(places[1] - places[0]) if places.size > 1 else 1
    if step and (np.diff(places) == step).all():
        starts, stops, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
        starts[axis], stops[axis], steps[axis] = int(places[0]), int(places[-1]) + (1 if step > 0 else -1), step
        part = emit("slice", (x,), {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)})
        return part if part.shape == shape else emit("reshape", (part,), {"shape": shape})
    return _of_both(x, axis, places, shape, emit) if indices.ndim == 1 else None


def _of_both(x: Tensor, axis: int, places: Array, shape: Sequence[int], emit: Emit) -> Tensor | None:
    """A gather of x, itself a gather along an adjacent axis, as one gather along the two axes joined; else None."""
    inner = x.node
    if inner.op.name != "gather" or inner.inputs[1].ndim != 1:
        return None
    source, beside = inner.inputs[0], inner.attrs["axis"]
    first = _places(inner.inputs[1], source.shape[beside])
    if first is None or abs(axis - beside) != 1 or first.size * places.size > _MOST_ROWS:
        return None
    low = min(axis, beside)
    outer, within = (first, places) if beside == low else (places, first)
    rows = _frozen(np.ravel(outer[:, None] * source.shape[low + 1] + within))
    joined = (*source.shape[:low], source.shape[low] * source.shape[low + 1], *source.shape[low + 2 :])
    flat = emit("reshape", (source,), {"shape": joined})
    taken = emit("gather", (flat, emit("constant", (), {"value": rows})), {"axis": low})
    return emit("reshape", (taken,), {"shape": shape})


def _places(indices: Tensor, n: int) -> Array | None:
    """Constant indices as a flat array of numbers from 0 to n - 1, by gather's rule; None if they are not constant or
    empty."""
    if not indices.node.op.is_constant or not indices.size:
        return None
    wanted = np.ravel(indices.node.attrs["value"]).astype(np.int64)
    return np.clip(np.where(wanted < 0, wanted + n, wanted), 0, n - 1)


def matmul(node: Node, inputs: Sequence[Tensor], emit: Emit) -> Tensor | None:
    """A transposition of a factor's last two axes becomes transpose_a or transpose_b."""
    factors, attrs = list(inputs), dict(node.attrs)
    for k, flag in enumerate(("transpose_a", "transpose_b")):
        inner = factors[k].node
        if inner.op.name == "transpose" and factors[k].ndim >= 2:
            rank = factors[k].ndim
            if tuple(inner.attrs["perm"]) == (*range(rank - 2), rank - 1, rank - 2):
                factors[k] = inner.inputs[0]
                attrs[flag] = not attrs[flag]
    return emit("matmul", factors, attrs) if attrs != dict(node.attrs) else None
