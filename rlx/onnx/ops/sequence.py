"""Sequences and optionals, which the builder keeps as lists. Their structure is part of the program, as shapes are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx import ops as o
from rlx.onnx.ops.movement import axis_of
from rlx.onnx.reader.call import AnyValue, Call, Maybe, Result, Series, Value
from rlx.onnx.reader.elements import NAMES, element
from rlx.onnx.reader.infos import MAX_ITEMS
from rlx.onnx.reader.structure import kind_of
from rlx.onnx.reader.table import op

MAX_PARTS = 1 << 12


def _series(c: Call, items: Sequence[AnyValue], kind: str) -> Series:
    if len(items) > MAX_ITEMS:
        raise c.unsupported(f"makes a sequence of {len(items)} items; at most {MAX_ITEMS} are supported")
    return Series(tuple(items), kind)


def _count(c: Call, parts: int) -> None:
    """Raises: UnsupportedOp where splitting makes too many parts in all: each is a node of the graph."""
    c.known_values.parts += parts
    if c.known_values.parts > MAX_PARTS:
        raise c.unsupported(f"splits into {parts} parts; at most {MAX_PARTS} in all are supported")


def _position(c: Call, i: int, count: int, default: int, last: int) -> int:
    """A position in a sequence of `count` items, counted from the front; at most `last`."""
    at = c.known_int(i) if c.has(i) else default
    if not -count <= at <= last:
        raise c.bad(f"position {at} is out of range for a sequence of {count} items")
    return at + count if at < 0 else at


@op("SequenceConstruct")
def construct(c: Call) -> Result:
    items = [c.value(i) for i in range(len(c.inputs))]
    return _series(c, items, items[0].kind)


@op("SequenceEmpty")
def empty(c: Call) -> Result:
    return Series((), NAMES[element(c.int("dtype", 1), c.where)])


@op("SequenceInsert")
def insert(c: Call) -> Result:
    xs, x = c.series(0), c.value(1)
    if x.kind != xs.element:
        raise c.bad(f"the tensor is {x.kind}; the sequence holds {xs.element}")
    n = len(xs.items)
    at = _position(c, 2, n, n, n)
    return _series(c, (*xs.items[:at], x, *xs.items[at:]), xs.element)


@op("SequenceErase")
def erase(c: Call) -> Result:
    xs = c.series(0)
    n = len(xs.items)
    at = _position(c, 1, n, -1, n - 1)
    return Series(xs.items[:at] + xs.items[at + 1 :], xs.element)


@op("SequenceAt")
def at(c: Call) -> Result:
    xs = c.series(0)
    n = len(xs.items)
    return xs.items[_position(c, 1, n, 0, n - 1)]


@op("SequenceLength")
def length(c: Call) -> Result:
    return c.tensor(len(c.series(0).items), np.dtype(np.int64))


@op("SplitToSequence")
def split_to_sequence(c: Call) -> Result:
    """Parts of one length each, of the lengths given, or single slices, whose axis `keepdims` may drop."""
    x = c.value(0)
    t = x.tensor
    axis = axis_of(c, c.int("axis", 0), t.ndim)
    n = t.shape[axis]
    split = c.known(1) if c.has(1) else np.array(1)
    if split.ndim == 0:
        size = int(split)
        if size <= 0:
            raise c.bad(f"cuts {n} into parts of {size}; expected a positive length")
        _count(c, -(-n // size))
        lengths = [min(size, n - k) for k in range(0, n, size)]
    else:
        _count(c, split.size)
        lengths = [int(v) for v in split.reshape(-1)]
    if any(v < 0 for v in lengths) or sum(lengths) != n:
        raise c.bad(f"split {lengths[:9]} does not add up to {n}, the length of axis {axis} of {t.shape}")
    parts = list(o.split(t, lengths, axis)) if lengths else []
    if not c.has(1) and not c.int("keepdims", 1):
        parts = [o.squeeze(p, (axis,)) for p in parts]
    return _series(c, [Value(p, x.dtype) for p in parts], x.kind)


@op("ConcatFromSequence")
def concat_from_sequence(c: Call) -> Result:
    items = [c.as_value(v, f"item {k}") for k, v in enumerate(c.series(0).items)]
    if not items:
        raise c.bad("the sequence is empty, and nothing says how its concatenation would look")
    new = c.int("new_axis", 0)
    axis = axis_of(c, c.int("axis"), items[0].tensor.ndim + (1 if new else 0))
    tensors = [v.tensor for v in items]
    return Value(o.stack(tensors, axis) if new else o.concat(tensors, axis), items[0].dtype)


def sequence_map(c: Call, body: Any, run: Callable[[Any, Sequence[AnyValue | None]], list[AnyValue]]) -> list[AnyValue]:
    """`body` applied to every item, with the items of further sequences, and tensors that are the same for all."""
    counts = {len(v.items) for v in c.inputs if isinstance(v, Series)}
    if len(counts) != 1:
        raise c.bad(f"the sequences have {sorted(counts)} items; expected one length")
    columns: list[list[AnyValue]] = [[] for _ in body.output]
    for k in range(len(c.series(0).items)):
        results = run(body, [v.items[k] if isinstance(v, Series) else v for v in c.inputs])
        for kept, result in zip(columns, results, strict=True):
            kept.append(result)
    return [
        Series(tuple(kept), kept[0].kind if kept else kind_of(info.type) or "tensor(float)")
        for kept, info in zip(columns, body.output, strict=True)
    ]


@op("Optional")
def optional(c: Call) -> Result:
    if c.has(0):
        return Maybe(c.held(0), c.held(0).kind)
    if c.attrs.get("type") is None:
        raise c.bad("has neither an input nor a type")
    return Maybe(None, c.attrs["type"])


@op("OptionalHasElement")
def has_element(c: Call) -> Result:
    value = c.inputs[0] if c.inputs else None
    return c.tensor(value is not None and not (isinstance(value, Maybe) and value.item is None))


@op("OptionalGetElement")
def get_element(c: Call) -> Result:
    result = c.held(0)
    if not isinstance(result, Maybe):
        return result
    if result.item is None:
        raise c.bad("the optional is empty")
    return result.item


@op("Identity")
def identity(c: Call) -> Result:
    return c.held(0)
