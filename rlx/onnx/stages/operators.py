"""Operators on NumPy arrays, for the short nodes behind a cut: index arithmetic, comparisons, selection.

A function takes the node and its inputs, of any lengths, and gives the result of the operator's builder, or
NotImplemented where it does not know the case. An exception means the same: the builder then names the fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, Protocol

import numpy as np

from rlx.onnx.ops.fill import MAX_ELEMENTS, MAX_RANGE
from rlx.onnx.ops.suppression import ranked, suppressed
from rlx.onnx.reader.budget import take
from rlx.onnx.reader.elements import ELEMENTS, Array

_I64 = np.dtype(np.int64)
_NUMBERS = {np.dtype(n) for n in ("f4", "f8", "i4", "i8")}  # dtypes whose arithmetic is NumPy's


class Called(Protocol):
    """What a function needs of a node: `int("axis", 0)` and the like, and the version of its operator."""

    where: str
    version: int
    attrs: dict[str, Any]
    n_outputs: int
    rows: tuple[int | None, ...]  # how many first rows of each output are read; None: all


Function = Callable[..., Any]
FUNCTIONS: dict[str, Function] = {}


def _on(*names: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def _made(c: Called, dims: Any, itemsize: int) -> tuple[int, ...]:
    """The dims of a result that may be larger than the inputs, counted before it is made."""
    shape = tuple(map(int, dims))
    size = math.prod(shape)
    if min(shape, default=0) < 0 or size > MAX_ELEMENTS:
        raise ValueError(shape)
    take(size * itemsize, c.where)
    return shape


# -- elementwise


def _elementwise(function: Any, types: Any = _NUMBERS) -> Function:
    def run(c: Called, *inputs: Array) -> Any:
        dtype = inputs[0].dtype
        if dtype not in types or any(x.dtype != dtype for x in inputs):
            return NotImplemented
        if len(inputs) == 2:
            if c.version < 7:  # `axis` and `broadcast` say there which dims belong together
                return NotImplemented
            a, b = inputs
            if a.ndim and b.ndim and a.shape != b.shape:
                _made(c, np.broadcast_shapes(a.shape, b.shape), dtype.itemsize)
        return function(*inputs)

    return run


_BOOL = {np.dtype(np.bool_)}
_FLOATS = {np.dtype(np.float32), np.dtype(np.float64)}
for _name, _function, _types in (
    ("Add", np.add, _NUMBERS), ("Sub", np.subtract, _NUMBERS), ("Mul", np.multiply, _NUMBERS),
    ("Less", np.less, _NUMBERS), ("LessOrEqual", np.less_equal, _NUMBERS), ("Greater", np.greater, _NUMBERS),
    ("GreaterOrEqual", np.greater_equal, _NUMBERS), ("Equal", np.equal, _NUMBERS | _BOOL),
    ("And", np.logical_and, _BOOL), ("Or", np.logical_or, _BOOL), ("Xor", np.logical_xor, _BOOL),
    ("Not", np.logical_not, _BOOL), ("Neg", np.negative, _NUMBERS), ("Abs", np.abs, _NUMBERS),
    ("Floor", np.floor, _FLOATS), ("Ceil", np.ceil, _FLOATS), ("Exp", np.exp, _FLOATS),
):  # fmt: skip
    FUNCTIONS[_name] = _elementwise(_function, _types)


@_on("Div")
def _div(c: Called, a: Array, b: Array) -> Any:
    if c.version < 7 or a.dtype != b.dtype or a.dtype not in _NUMBERS:
        return NotImplemented
    _made(c, np.broadcast_shapes(a.shape, b.shape), a.dtype.itemsize)
    if a.dtype.kind == "f":
        return np.divide(a, b)
    if (b == 0).any():
        return NotImplemented
    if b.min(initial=1) > 0 and a.min(initial=0) >= 0:
        return a // b
    return (a - np.fmod(a, b)) // b


@_on("Mod")
def _mod(c: Called, a: Array, b: Array) -> Any:
    if a.dtype != b.dtype or a.dtype not in _NUMBERS or a.dtype.kind != "i" or (b == 0).any():
        return NotImplemented
    _made(c, np.broadcast_shapes(a.shape, b.shape), a.dtype.itemsize)
    return np.fmod(a, b) if c.attrs.get("fmod") else np.mod(a, b)


@_on("Max", "Min")
def _extreme(c: Any, *inputs: Array) -> Any:
    dtype = inputs[0].dtype
    if c.version < 8 or any(x.dtype != dtype for x in inputs) or dtype not in _NUMBERS:
        return NotImplemented
    _made(c, np.broadcast_shapes(*(x.shape for x in inputs)), inputs[0].dtype.itemsize)
    return reduce(np.maximum if c.kind == "Max" else np.minimum, inputs)


@_on("Clip")
def _clip(c: Called, x: Array, low: Array | None = None, high: Array | None = None) -> Any:
    if c.version < 11 or x.dtype not in _NUMBERS:
        return NotImplemented
    for bound, function in ((low, np.maximum), (high, np.minimum)):
        if bound is not None:
            if bound.dtype != x.dtype or bound.ndim:
                return NotImplemented
            x = function(x, bound)
    return x


@_on("Where")
def _where(c: Called, condition: Array, a: Array, b: Array) -> Any:
    if a.dtype != b.dtype or condition.dtype != np.bool_:
        return NotImplemented
    _made(c, np.broadcast_shapes(condition.shape, a.shape, b.shape), a.dtype.itemsize)
    return np.where(condition, a, b)


@_on("Cast")
def _cast(c: Called, x: Array) -> Any:
    to = ELEMENTS.get(c.attrs["to"])
    if to == x.dtype:
        return x
    plain = _NUMBERS | _BOOL
    if to not in plain or x.dtype not in plain:
        return NotImplemented
    if x.dtype.kind == "f" and to.kind == "i":  # what else a float becomes is the builder's to say
        least = np.float64(np.iinfo(to).min)
        if not ((x > least) & (x < -least)).all():
            return NotImplemented
    return x.astype(to)


# -- shapes and movement


@_on("Identity")
def _identity(c: Called, x: Any) -> Any:
    return x


@_on("Shape")
def _shape(c: Called, x: Array) -> Any:
    return np.array(x.shape[c.attrs.get("start", 0) : c.attrs.get("end")], np.int64)


@_on("Size")
def _size(c: Called, x: Array) -> Any:
    return np.array(x.size, np.int64)


def _axes(c: Called, from_input: Array | None, rank: int) -> tuple[int, ...] | None:
    listed = from_input if c.version >= 13 else c.attrs.get("axes")
    if listed is None:
        return None
    axes = tuple(int(a) % rank if -rank <= a < rank else rank for a in np.ravel(listed))
    if len(set(axes)) != len(axes) or rank in axes:
        raise ValueError(axes)
    return axes


@_on("Unsqueeze")
def _unsqueeze(c: Called, x: Array, axes: Array | None = None) -> Any:
    listed: Any = axes.tolist() if c.version >= 13 and axes is not None else c.attrs["axes"]
    if listed == [1] and x.ndim == 1:
        return x[:, None]
    rank = x.ndim + len(listed)
    added, lengths = _axes(c, axes, rank) or (), iter(x.shape)
    return x.reshape([1 if k in added else next(lengths) for k in range(rank)])


@_on("Squeeze")
def _squeeze(c: Called, x: Array, axes: Array | None = None) -> Any:
    return np.squeeze(x, _axes(c, axes, x.ndim))


@_on("Reshape")
def _reshape(c: Called, x: Array, shape: Array) -> Any:
    if c.version < 5:
        return NotImplemented
    dims = shape.tolist()
    if not c.attrs.get("allowzero"):
        dims = [x.shape[k] if d == 0 else d for k, d in enumerate(dims)]
    if min(dims, default=0) < -1 or (-1 in dims and 0 in dims):
        return NotImplemented
    return x.reshape(dims)


@_on("Flatten")
def _flatten(c: Called, x: Array) -> Any:
    axis = c.attrs.get("axis", 1)
    if not -x.ndim <= axis <= x.ndim:
        return NotImplemented
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@_on("Transpose")
def _transpose(c: Called, x: Array) -> Any:
    return np.transpose(x, c.attrs.get("perm"))


@_on("Concat")
def _concat(c: Called, *parts: Array) -> Any:
    if any(x.dtype != parts[0].dtype for x in parts):
        return NotImplemented
    take(sum(x.nbytes for x in parts), c.where)
    return np.concatenate(parts, c.attrs["axis"])


@_on("Split")
def _split(c: Called, x: Array, lengths: Array | None = None) -> Any:
    axis = c.attrs.get("axis", 0)
    n = x.shape[axis]
    if lengths is None:
        parts = c.attrs.get("num_outputs") or c.n_outputs
        if c.attrs.get("split") is not None or parts != c.n_outputs or n % parts:
            return NotImplemented
        ends = list(range(n // parts, n, n // parts)) if n else [0] * (parts - 1)
    else:
        if c.version < 13 or lengths.min(initial=0) < 0 or lengths.sum() != n:
            return NotImplemented
        ends = np.cumsum(lengths)[:-1].tolist()
    return tuple(np.split(x, ends, axis))


@_on("Slice")
def _slice(
    c: Called, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Any:
    if c.version < 10 or starts.shape != ends.shape:
        return NotImplemented
    listed = range(len(starts)) if axes is None else axes.tolist()
    strides = [1] * len(starts) if steps is None else steps.tolist()
    key = [slice(None)] * x.ndim
    for axis, start, end, step in zip(listed, starts.tolist(), ends.tolist(), strides, strict=True):
        if step <= 0 or not -x.ndim <= axis < x.ndim or key[axis] != slice(None):
            return NotImplemented
        n = x.shape[axis]
        start, end = (v + n if v < 0 else v for v in (start, end))
        key[axis] = slice(min(max(start, 0), n), min(max(end, 0), n), step)
    return x[tuple(key)]


@_on("Expand")
def _expand(c: Called, x: Array, shape: Array) -> Any:
    dims = np.broadcast_shapes(x.shape, _made(c, shape, 0))
    return np.array(np.broadcast_to(x, _made(c, dims, x.itemsize)))


@_on("Tile")
def _tile(c: Called, x: Array, repeats: Array) -> Any:
    if c.version < 6 or repeats.shape != (x.ndim,) or repeats.min(initial=0) < 0:
        return NotImplemented
    _made(c, (n * int(r) for n, r in zip(x.shape, repeats, strict=True)), x.itemsize)
    return np.tile(x, repeats)


@_on("ConstantOfShape")
def _constant_of_shape(c: Called, shape: Array) -> Any:
    value = c.attrs.get("value")
    value = np.zeros(1, np.float32) if value is None else value
    result = np.empty(_made(c, shape.tolist(), value.itemsize), value.dtype)
    result.fill(value.item())
    return result


@_on("Range")
def _range(c: Called, start: Array, limit: Array, step: Array) -> Any:
    if start.dtype != _I64 or start.size != 1 or limit.size != 1 or step.size != 1 or not step.any():
        return NotImplemented
    count = max(-((start.item() - limit.item()) // step.item()), 0)
    if count > MAX_RANGE:
        return NotImplemented
    _made(c, [count], 16)
    return start.reshape(()) + np.arange(count) * step.reshape(())


# -- reading by index


@_on("Gather")
def _gather(c: Called, x: Array, indices: Array) -> Any:
    axis = c.attrs.get("axis", 0)
    elements = math.prod(x.shape) // max(x.shape[axis], 1) * indices.size
    take(elements * x.itemsize, c.where)
    return x.take(indices, axis)


@_on("GatherND")
def _gather_nd(c: Called, x: Array, indices: Array) -> Any:
    depth = indices.shape[-1]
    if c.attrs.get("batch_dims") or not 0 < depth <= x.ndim:
        return NotImplemented
    take(indices.size // depth * math.prod(x.shape[depth:]) * x.itemsize, c.where)
    if depth == 1:
        return x.take(indices[..., 0], 0)
    return x[tuple(indices[..., k] for k in range(depth))]


@_on("GatherElements")
def _gather_elements(c: Called, x: Array, indices: Array) -> Any:
    axis = c.attrs.get("axis", 0)
    axis = axis + x.ndim if axis < 0 else axis
    # The result has the shape of the indices: NumPy would broadcast them to the longer x, or x to them.
    pairs = enumerate(zip(indices.shape, x.shape, strict=True))
    if not 0 <= axis < x.ndim or any(n > length for k, (n, length) in pairs if k != axis):
        return NotImplemented
    take(indices.size * x.itemsize, c.where)
    part = x[tuple(slice(None) if k == axis else slice(n) for k, n in enumerate(indices.shape))]
    return np.take_along_axis(part, indices, axis)


@_on("NonZero")
def _non_zero(c: Called, x: Array) -> Any:
    take(8 * max(x.ndim, 1) * int(np.count_nonzero(x)), c.where)
    if x.ndim == 1:
        return x.nonzero()[0][None]
    if not x.ndim:
        return np.flatnonzero(x)[None]
    return np.stack(np.unravel_index(np.flatnonzero(x), x.shape))


@_on("TopK")
def _top_k(c: Called, x: Array, k: Array) -> Any:
    count = int(k.item())
    axis = c.attrs.get("axis", -1)
    if (
        c.version < 10
        or x.ndim != 1
        or axis not in (0, -1)
        or x.dtype != np.float32
        or not c.attrs.get("largest", 1)
    ):
        return NotImplemented
    if not 0 <= count <= x.size or np.isnan(x).any():
        return NotImplemented
    order = ranked(x, count)[:count]
    return x[order], order


# -- reductions


@_on("ReduceMin", "ReduceMax", "ReduceSum", "ReduceProd")
def _reduce(c: Any, x: Array, axes: Array | None = None) -> Any:
    since = 13 if c.kind == "ReduceSum" else 18
    listed = axes if c.version >= since else c.attrs.get("axes")
    if (
        x.dtype not in _NUMBERS
        or (x.dtype.kind == "f" and c.kind in ("ReduceSum", "ReduceProd"))
        or not x.size
    ):
        return NotImplemented
    if listed is None or not len(listed):
        if c.attrs.get("noop_with_empty_axes"):
            return NotImplemented
        along = None
    else:
        along = tuple(int(a) for a in listed)
    function: Any = {"ReduceMin": np.min, "ReduceMax": np.max, "ReduceSum": np.sum, "ReduceProd": np.prod}[
        c.kind
    ]
    return function(x, axis=along, keepdims=bool(c.attrs.get("keepdims", 1))).astype(x.dtype)


@_on("NonMaxSuppression")
def _non_max_suppression(
    c: Called, boxes: Array, scores: Array, limit: Array | None = None, overlap: Array | None = None,
    least: Array | None = None,
) -> Any:  # fmt: skip
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[2] != 4 or scores.shape[::2] != boxes.shape[:2]:
        return NotImplemented
    count = 0 if limit is None else int(limit.item())
    if c.rows[0] is not None:  # the first rows over all classes need no more than so many of each
        count = min(count, c.rows[0])
    return suppressed(
        boxes, scores, count, 0.0 if overlap is None else float(overlap.item()),
        None if least is None else float(least.item()), bool(c.attrs.get("center_point_box", 0)),
    )  # fmt: skip
