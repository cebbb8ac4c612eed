"""frame and overlap_add: a signal cut into frames, which may overlap, and the sum of frames at their positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.types import is_length, normalize_axis
from rlx.ops import batching
from rlx.ops.base import TensorLike, check_float, check_inputs, floating, tensor, unbroadcast, written
from rlx.ops.composite import moveaxis
from rlx.ops.numeric import Array, computed
from rlx.ops.windows import MAX_STEP

Grads = Sequence[Tensor | None]


def check_steps(op: str, attrs: Attrs, *names: str) -> None:
    for name in names:
        if type(attrs[name]) is not int or not 1 <= attrs[name] <= MAX_STEP:
            raise ShapeError(f"{op}: {name} is {attrs[name]!r}; expected an int from 1 to {MAX_STEP}")


def frame_count(n: int, length: int, hop: int) -> int:
    """The number of whole frames in n samples."""
    return (n - length) // hop + 1 if n >= length else 0


def places(count: int, length: int, hop: int) -> Array:
    """The index of the sample that each element of each frame reads, (count, length)."""
    return np.arange(count)[:, None] * hop + np.arange(length)


# -- frame


def _frame_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("frame", types, 1)
    check_steps("frame", attrs, "length", "hop")
    shape, length = types[0].shape, attrs["length"]
    if not shape or shape[-1] < length:
        raise ShapeError(
            f"frame: the signal is {types[0]}; expected at least {length} samples along its last axis, the length of a "
            "frame; use shorter frames or pad the signal"
        )
    return TensorType((*shape[:-1], frame_count(shape[-1], length, attrs["hop"]), length), types[0].dtype)


def _frame_reference(x: Array, *, length: int, hop: int) -> Array:
    return x[..., places(frame_count(x.shape[-1], length, hop), length, hop)]


def _frame_vjp(node: Node, grads: Grads) -> Grads:
    d = grads[0]
    if d is None or not d.dtype.is_float:
        return (None,)
    return (apply("overlap_add", d, hop=node.attrs["hop"], size=node.inputs[0].shape[-1]),)


def _frame_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """A gather of samples by a table of their indices."""
    (x,), length, hop = inputs, attrs["length"], attrs["hop"]
    where = places(frame_count(x.shape[-1], length, hop), length, hop)
    return apply("gather", x, x.graph.constant(where), axis=x.ndim - 1)


register(
    Op("frame", "signal", _frame_infer, _frame_reference, "numpy.lib.stride_tricks.sliding_window_view", _frame_vjp,
       kernel="frame", decompose=_frame_decompose, moves_data=True, cost=lambda node: Cost(2 * written(node)),
       batch=batching.along())
)  # fmt: skip


# -- windowed_frames: frame times a window, without storing the frames


def _windowed_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "windowed_frames"
    check_inputs(op, types, 2)
    x, window = types
    check_float(op, x.dtype)
    if window.rank != 1 or window.dtype != x.dtype or window.shape[0] == 0:
        raise ShapeError(f"{op}: the window is {window}; expected one axis of {x.dtype}, as long as a frame")
    return _frame_infer((x,), {"length": window.shape[0], "hop": attrs["hop"]})


def _windowed_reference(x: Array, window: Array, *, hop: int) -> Array:
    return np.asarray(_frame_reference(x, length=len(window), hop=hop) * window)


def _windowed_vjp(node: Node, grads: Grads) -> Grads:
    (x, window), d, hop = node.inputs, grads[0], node.attrs["hop"]
    if d is None:
        return (None, None)
    frames = apply("frame", x, length=window.shape[0], hop=hop)
    return apply("overlap_add", d * window, hop=hop, size=x.shape[-1]), unbroadcast(d * frames, window)


def _windowed_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    x, window = inputs
    return apply("mul", apply("frame", x, length=window.shape[0], hop=attrs["hop"]), window)


register(
    Op("windowed_frames", "signal", _windowed_infer, computed()(_windowed_reference),
       "NumPy's windows of views, times the window", _windowed_vjp, kernel="windowed_frames",
       decompose=_windowed_decompose, cost=lambda node: Cost(2 * written(node)), batch=batching.along(1))
)  # fmt: skip


# -- overlap_add


def _add_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("overlap_add", types, 1)
    check_float("overlap_add", types[0].dtype, "frames")
    check_steps("overlap_add", attrs, "hop")
    shape, size = types[0].shape, attrs["size"]
    if len(shape) < 2:
        raise ShapeError(f"overlap_add: the frames are {types[0]}; expected (..., frames, samples of a frame)")
    needed = (shape[-2] - 1) * attrs["hop"] + shape[-1] if shape[-2] and shape[-1] else 0
    if type(size) is not int or size < needed:
        raise ShapeError(
            f"overlap_add: size is {size!r}; expected an int ≥ {needed}, so that {shape[-2]} frames of {shape[-1]} "
            f"samples, {attrs['hop']} apart, fit"
        )
    return TensorType((*shape[:-2], size), types[0].dtype)


def _add_reference(x: Array, *, hop: int, size: int) -> Array:
    count, length = x.shape[-2:]
    result = np.zeros((*x.shape[:-2], size), x.dtype)
    for i in range(count if length else 0):
        result[..., i * hop : i * hop + length] += x[..., i, :]
    return result


def _add_vjp(node: Node, grads: Grads) -> Grads:
    x, d, hop = node.inputs[0], grads[0], node.attrs["hop"]
    count, length = x.shape[-2:]
    if d is None or x.size == 0:
        return (None,)
    used = (count - 1) * hop + length
    return (apply("frame", d if used == d.shape[-1] else d[..., :used], length=length, hop=hop),)


def _add_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """A scatter-add of every element at its position, in the order of the frames."""
    (x,) = inputs
    count, length = x.shape[-2:]
    where = x.graph.constant(places(count, length, attrs["hop"]))
    return apply("scatter", where, x, axis=x.ndim - 2, length=attrs["size"], reduction="add")


register(
    Op("overlap_add", "signal", _add_infer, computed()(_add_reference), "torch.nn.functional.fold", _add_vjp,
       kernel="overlap_add", decompose=_add_decompose,
       cost=lambda node: Cost(node.inputs[0].type.nbytes + written(node)), batch=batching.along())
)  # fmt: skip


# -- functions


def whole(op: str, what: str, value: object, least: int = 1) -> int:
    """An argument that is an int. Raises: ShapeError for anything else, or a smaller one."""
    if not is_length(value) or int(value) < least:  # type: ignore[call-overload]
        raise ShapeError(f"{op}: {what} is {value!r}; expected an int ≥ {least}")
    return int(value)  # type: ignore[call-overload,no-any-return]


def frame(x: TensorLike, frame_length: int, hop_length: int, axis: int = -1) -> Tensor:
    """The whole frames of `frame_length` samples along an axis, each `hop_length` samples after the one before.

    Shape: the axis becomes two, (frames, frame_length), with (n - frame_length) // hop_length + 1 frames; samples after
    the last whole frame are dropped. Dtype: any. Gradient: the sum over the frames that hold a sample, in their order.
    Numerics: exact. Raises: ShapeError where not one frame fits. As `Tensor.unfold` of torch.
    """
    x = tensor("frame", x)
    axis = normalize_axis(axis, x.ndim, "frame")
    length, hop = whole("frame", "frame_length", frame_length), whole("frame", "hop_length", hop_length)
    result = apply("frame", moveaxis(x, axis, -1) if axis != x.ndim - 1 else x, length=length, hop=hop)
    if axis == x.ndim - 1:
        return result
    return moveaxis(moveaxis(result, -1, axis), -1, axis)


def overlap_add(frames: TensorLike, hop_length: int, axis: int = -1, size: int | None = None) -> Tensor:
    """The sum of frames, each `hop_length` samples after the one before: frame's transpose, not its inverse.

    Shape: `axis` is that of a frame's samples, the one before counts the frames; both become one axis of
    (frames - 1)·hop_length + frame_length samples, or of `size`, with zeros at its end. Dtype: float; integers become
    f32. Gradient: the frames of d. Numerics: sums in f32 for halves, in the order of the frames, on every device.
    Raises: ShapeError for fewer than two axes, or a size that is too small.
    """
    x = floating(tensor("overlap_add", frames))
    if x.ndim < 2:
        raise ShapeError(f"overlap_add: the frames are {x.type}; expected (..., frames, samples of a frame)")
    axis = normalize_axis(axis, x.ndim, "overlap_add")
    if axis == 0:
        raise ShapeError("overlap_add: axis is 0; expected that of a frame's samples, behind the one of the frames")
    hop = whole("overlap_add", "hop_length", hop_length)
    count, length = x.shape[axis - 1], x.shape[axis]
    needed = (count - 1) * hop + length if count and length else 0
    total = needed if size is None else whole("overlap_add", "size", size, 0)
    last = axis == x.ndim - 1
    signal = apply("overlap_add", x if last else moveaxis(moveaxis(x, axis, -1), axis - 1, -2), hop=hop, size=total)
    return signal if last else moveaxis(signal, -1, axis - 1)
