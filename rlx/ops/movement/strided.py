"""Ops that move data and compute nothing: reshape, transpose, expand, slice, concat."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import promote
from rlx.errors import DTypeError, ShapeError, TracedValueError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.types import as_items, as_shape, broadcast_shapes, is_length, normalize_axis
from rlx.ops import batching, identities, views
from rlx.ops.base import TensorLike, cast_to, check_inputs, tensor, tensors, unbroadcast
from rlx.ops.numeric import Array

Grads = Sequence[Tensor | None]


def _reshape_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("reshape", types, 1)
    shape = as_shape(attrs["shape"], "reshape")
    if math.prod(shape) != types[0].numel:
        raise ShapeError(
            f"reshape: {types[0].shape} has {types[0].numel} elements, {shape} would have {math.prod(shape)}"
        )
    return TensorType(shape, types[0].dtype)


def _reshape_vjp(node: Node, grads: Grads) -> Grads:
    d = grads[0]
    return (None,) if d is None else (reshape(d, node.inputs[0].shape),)


def _reshape_reference(x: Array, *, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


register(
    Op("reshape", "movement", _reshape_infer, _reshape_reference, "numpy.reshape", _reshape_vjp, kernel="copy",
       inplace=(0,), view=views.whole, reshapes=True, moves_data=True, identity=identities.reshape,
       batch=batching.reshape)
)  # fmt: skip


def _transpose_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("transpose", types, 1)
    shape, perm = types[0].shape, attrs["perm"]
    if sorted(perm) != list(range(len(shape))):
        raise ShapeError(f"transpose: perm {perm} is not a permutation of the {len(shape)} axes of {shape}")
    return TensorType(tuple(shape[p] for p in perm), types[0].dtype)


def _transpose_vjp(node: Node, grads: Grads) -> Grads:
    d = grads[0]
    if d is None:
        return (None,)
    perm = node.attrs["perm"]
    return (transpose(d, tuple(perm.index(i) for i in range(len(perm)))),)


def _transpose_reference(x: Array, *, perm: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(np.transpose(x, perm)).reshape(tuple(x.shape[p] for p in perm))


register(
    Op("transpose", "movement", _transpose_infer, _transpose_reference, "numpy.transpose", _transpose_vjp,
       kernel="strided_copy", view=views.transpose, moves_data=True, identity=identities.transpose,
       batch=batching.transpose)
)  # fmt: skip


def _expand_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("expand", types, 1)
    shape = as_shape(attrs["shape"], "expand")
    if broadcast_shapes(types[0].shape, shape, op="expand") != shape:
        raise ShapeError(f"expand: {types[0].shape} does not broadcast to {shape}")
    return TensorType(shape, types[0].dtype)


def _expand_vjp(node: Node, grads: Grads) -> Grads:
    d = grads[0]
    return (None,) if d is None else (unbroadcast(d, node.inputs[0]),)


def _expand_reference(x: Array, *, shape: tuple[int, ...]) -> Array:
    return np.array(np.broadcast_to(x, shape))


register(
    Op("expand", "movement", _expand_infer, _expand_reference, "numpy.broadcast_to", _expand_vjp,
       kernel="strided_copy", view=views.expand, broadcasts=True, moves_data=True, identity=identities.expand,
       batch=batching.reshape)
)  # fmt: skip


def _slice_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("slice", types, 1)
    shape = types[0].shape
    starts, stops, steps = attrs["starts"], attrs["stops"], attrs["steps"]
    if not len(starts) == len(stops) == len(steps) == len(shape):
        raise ShapeError(f"slice: {attrs} needs one entry for each axis of {shape}")
    out = []
    for i, (n, a, b, c) in enumerate(zip(shape, starts, stops, steps, strict=True)):
        fits = c != 0 and ((0 <= a <= b <= n) if c > 0 else (-1 <= b <= a <= n - 1))
        if not fits:
            raise ShapeError(f"slice: axis {i}: {a}:{b}:{c} is not a normalized range of {n} elements")
        out.append(len(range(a, b, c)))
    return TensorType(tuple(out), types[0].dtype)


def _slice_reference(x: Array, *, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Array:
    parts = zip(starts, stops, steps, strict=True)
    return np.array(x[tuple(builtins.slice(a, None if b < 0 else b, c) for a, b, c in parts)])


def _slice_vjp(node: Node, grads: Grads) -> Grads:
    """The gradient is d with zeros for the elements not read.

    Axis by axis, zeros are interleaved for a step and concatenated at the ends.
    """
    d, x = grads[0], node.inputs[0]
    if d is None or not d.dtype.is_float:
        return (None,)
    for axis, n in enumerate(x.shape):
        start, step = node.attrs["starts"][axis], node.attrs["steps"][axis]
        count = d.shape[axis]
        if count == 0:
            return (None,)
        if step < 0:
            d = _reversed(d, axis)
            start, step = start + (count - 1) * step, -step
        if step > 1:
            d = _spread(d, axis, step)
        d = _padded(d, axis, start, n - start - d.shape[axis])
    return (d,)


def _reversed(d: Tensor, axis: int) -> Tensor:
    return index(d, (builtins.slice(None),) * axis + (builtins.slice(None, None, -1),))


def _spread(d: Tensor, axis: int, step: int) -> Tensor:
    """d with step - 1 zeros inserted between neighbours along an axis."""
    head, count, tail = d.shape[:axis], d.shape[axis], d.shape[axis + 1 :]
    d = reshape(d, (*head, count, 1, *tail))
    d = _padded(d, axis + 1, 0, step - 1)
    d = reshape(d, (*head, count * step, *tail))
    return index(d, (builtins.slice(None),) * axis + (builtins.slice(0, (count - 1) * step + 1),))


def _padded(d: Tensor, axis: int, before: int, after: int) -> Tensor:
    def zeros(n: int) -> list[Tensor]:
        shape = (*d.shape[:axis], n, *d.shape[axis + 1 :])
        return [apply("expand", d.graph.constant(0, d.dtype), shape=shape)] if n else []

    parts = [*zeros(before), d, *zeros(after)]
    return d if len(parts) == 1 else apply("concat", *parts, axis=axis)


register(Op("slice", "movement", _slice_infer, _slice_reference, "numpy.ndarray.__getitem__", _slice_vjp,
            kernel="strided_copy", view=views.slice, moves_data=True, identity=identities.slice,
            batch=batching.slices))  # fmt: skip


def _concat_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    if not types:
        raise ShapeError("concat: needs at least one input")
    first = types[0]
    if first.rank == 0:
        raise ShapeError("concat: scalars have no axis to join along; reshape them to (1,) first")
    axis = normalize_axis(attrs["axis"], first.rank, "concat")
    for t in types[1:]:
        if t.dtype != first.dtype:
            raise DTypeError(
                f"concat: inputs of one dtype, got {first.dtype} and {t.dtype}; rlx.concat promotes them"
            )
        if t.rank != first.rank or any(
            p != q for i, (p, q) in enumerate(zip(t.shape, first.shape, strict=True)) if i != axis
        ):
            raise ShapeError(f"concat: shapes {first.shape} and {t.shape} differ beside axis {axis}")
    total = sum(t.shape[axis] for t in types)
    return TensorType((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)


def _concat_reference(*arrays: Array, axis: int) -> Array:
    return np.concatenate(arrays, axis=axis)


def _concat_vjp(node: Node, grads: Grads) -> Grads:
    d, axis = grads[0], node.attrs["axis"]
    if d is None:
        return (None,) * len(node.inputs)
    parts, start = [], 0
    for x in node.inputs:
        stop = start + x.shape[axis]
        parts.append(index(d, (builtins.slice(None),) * axis + (builtins.slice(start, stop),)))
        start = stop
    return tuple(parts)


register(Op("concat", "movement", _concat_infer, _concat_reference, "numpy.concatenate", _concat_vjp,
            kernel="strided_copy", view=views.concat, picks=True, identity=identities.concat,
            batch=batching.along()))  # fmt: skip


def reshape(x: Tensor, shape: Sequence[int] | int) -> Tensor:
    """x's elements, in row-major order, in another shape; one dimension may be -1 and is inferred.

    Dtype: any. Gradient: d in x's shape. Numerics: exact; no device moves data for it.
    """
    x = tensor("reshape", x)
    dims = list(as_items(shape, "reshape: shape"))
    open_places = [i for i, d in enumerate(dims) if is_length(d) and d == -1]
    if len(open_places) > 1:
        raise ShapeError(f"reshape: {tuple(dims)} leaves more than one dimension to be worked out")
    for i in open_places:
        rest = math.prod(as_shape(dims[:i] + dims[i + 1 :], "reshape: dimensions beside -1"))
        if rest == 0 or x.size % rest:
            raise ShapeError(f"reshape: -1 in {tuple(dims)} has no answer for {x.shape} ({x.size} elements)")
        dims[i] = x.size // rest
    return apply("reshape", x, shape=as_shape(dims, "reshape"))


def transpose(x: Tensor, perm: Sequence[int] | None = None) -> Tensor:
    """x with its axes permuted: output axis i is input axis perm[i]; None reverses them.

    Dtype: any. Gradient: d permuted back.
    """
    x = tensor("transpose", x)
    if perm is None:
        axes = tuple(reversed(range(x.ndim)))
    else:
        axes = tuple(normalize_axis(p, x.ndim, "transpose") for p in perm)
    return apply("transpose", x, perm=axes)


def expand(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x broadcast to `shape` as in NumPy.

    Dtype: any. Gradient: d summed over the repeated axes.
    """
    return apply("expand", tensor("expand", x), shape=as_shape(shape, "expand"))


broadcast_to = expand


def _range_of(part: builtins.slice, n: int) -> tuple[int, int, int]:
    """The normalized (start, stop, step) of a Python slice over n elements: equal for slices of the same elements."""
    start, stop, step = part.indices(n)
    count = len(range(start, stop, step))
    if count == 0:
        return 0, 0, 1
    if count == 1:
        return start, start + 1, 1
    return start, stop, step


def slice(
    x: Tensor, starts: Sequence[int], stops: Sequence[int | None], steps: Sequence[int] | None = None
) -> Tensor:
    """x[starts[0]:stops[0]:steps[0], ...], one entry for each axis, with Python's rules.

    A stop of None is the end of the axis. Dtype: any. Gradient: d where x was read, 0 elsewhere.
    """
    x = tensor("slice", x)
    steps = [1] * x.ndim if steps is None else steps
    starts, stops, steps = (as_items(v, "slice") for v in (starts, stops, steps))
    if not len(starts) == len(stops) == len(steps) == x.ndim:
        raise ShapeError(
            f"slice: starts {starts}, stops {stops}, steps {steps} need one entry for each axis of {x.shape}"
        )
    return index(x, tuple(builtins.slice(a, b, c) for a, b, c in zip(starts, stops, steps, strict=True)))


def index(x: Tensor, key: Any) -> Tensor:
    """x[key], where key holds ints, slices, None (a new axis) and Ellipsis."""
    keys = list(key) if isinstance(key, tuple) else [key]
    for k in keys:
        if not (k is None or k is Ellipsis or isinstance(k, builtins.slice | int | np.integer)) or isinstance(
            k, bool
        ):
            raise ShapeError(
                f"index: {k!r} is not an int, slice, None, ... or array of integers; use rlx.where for masks"
            )
    taken = sum(k is not None and k is not Ellipsis for k in keys)
    if sum(k is Ellipsis for k in keys) > 1:
        raise ShapeError("index: more than one ... in the index")
    if taken > x.ndim:
        raise ShapeError(f"index: {taken} indices for shape {x.shape}")
    fill = [builtins.slice(None)] * (x.ndim - taken)
    at = next((i for i, k in enumerate(keys) if k is Ellipsis), None)
    keys = [*keys, *fill] if at is None else [*keys[:at], *fill, *keys[at + 1 :]]
    ranges, shape, axis = [], [], 0
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        n = x.shape[axis]
        if isinstance(k, builtins.slice):
            ranges.append(_slice_part(k, n, axis))
            shape.append(len(range(*ranges[-1])))
        else:
            if not -n <= k < n:
                raise ShapeError(f"index: {int(k)} is out of range for axis {axis} of shape {x.shape}")
            ranges.append((int(k) % n, int(k) % n + 1, 1))
        axis += 1
    out = x
    if any(r != (0, n, 1) for r, n in zip(ranges, x.shape, strict=True)):
        starts, stops, steps = (tuple(part) for part in zip(*ranges, strict=True))
        out = apply("slice", x, starts=starts, stops=stops, steps=steps)
    return out if out.shape == tuple(shape) else apply("reshape", out, shape=tuple(shape))


def _slice_part(part: builtins.slice, n: int, axis: int) -> tuple[int, int, int]:
    try:
        return _range_of(part, n)
    except TracedValueError:
        raise
    except (TypeError, ValueError) as error:
        raise ShapeError(f"index: {part} on axis {axis}: {error}") from None


def concat(xs: Sequence[TensorLike], axis: int | None = 0) -> Tensor:
    """The tensors joined along an existing axis (None: all elements of each, flat).

    Shape: equal except along that axis. Dtype: promoted. Gradient: to each tensor its part of d.
    """
    inputs = tensors("concat", *xs)
    dtype = promote(*(t.dtype for t in inputs))
    if axis is None:
        inputs, axis = tuple(apply("reshape", t, shape=(t.size,)) for t in inputs), 0
    if inputs[0].ndim == 0:
        raise ShapeError("concat: scalars have no axis to join along; use rlx.stack, or axis=None")
    return apply(
        "concat", *(cast_to(t, dtype) for t in inputs), axis=normalize_axis(axis, inputs[0].ndim, "concat")
    )


concatenate = concat


__all__ = ["broadcast_to", "concat", "concatenate", "expand", "reshape", "slice", "transpose"]
