"""pad: elements added at the ends of axes, a constant or copies of the tensor's own elements."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, as_dtype, rounded
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.types import as_items, is_index
from rlx.ops import batching
from rlx.ops.base import TensorLike, check_inputs, tensor
from rlx.ops.movement.strided import index
from rlx.ops.numeric import Array

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")
Pads = tuple[tuple[int, int], ...]


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("pad", types, 1)
    x, pads, mode = types[0], attrs["pads"], attrs["mode"]
    if not isinstance(pads, tuple) or len(pads) != x.rank or not all(_is_pair(p) for p in pads):
        raise ShapeError(
            f"pad: pads is {pads!r} for {x}; expected a tuple of {x.rank} pairs (before, after) of ints ≥ 0"
        )
    if mode not in MODES:
        raise ShapeError(f"pad: mode is {mode!r}; expected one of {', '.join(MODES)}")
    for axis, (n, pair) in enumerate(zip(x.shape, pads, strict=True)):
        if mode != "constant" and n == 0 and any(pair):
            raise ShapeError(f"pad: mode {mode}: axis {axis} of {x} has no element to repeat")
    _check_value(attrs["value"], x.dtype)
    return TensorType(tuple(a + n + b for n, (a, b) in zip(x.shape, pads, strict=True)), x.dtype)


def _is_pair(p: Any) -> bool:
    return isinstance(p, tuple) and len(p) == 2 and all(type(n) is int and n >= 0 for n in p)


def _check_value(value: Any, dtype: DType) -> None:
    wanted = {"b": "bool", "i": "int", "u": "int", "f": "float"}[dtype.kind]
    if type(value).__name__ != wanted:
        raise DTypeError(f"pad: value is {value!r} for {dtype}; expected {wanted}")
    if dtype.is_int:
        info = np.iinfo(dtype.np)
        if not info.min <= value <= info.max:
            raise DTypeError(f"pad: value {value} does not fit {dtype}; expected {info.min} to {info.max}")


def sources(n: int, before: int, after: int, mode: str) -> npt.NDArray[np.int64]:
    """The index of the input element at each position of a padded axis; -1 where the constant goes."""
    at = np.arange(-before, n + after)
    if mode == "constant":
        return np.where((at >= 0) & (at < n), at, -1)
    if mode == "edge":
        return np.clip(at, 0, builtins.max(n - 1, 0))
    if mode == "wrap":
        return at % builtins.max(n, 1)
    # Reflections at both ends give a periodic sequence of indices; "reflect" does not repeat the end elements.
    period = builtins.max(2 * n - 2 if mode == "reflect" else 2 * n, 1)
    at = at % period
    return np.where(at < n, at, (period if mode == "reflect" else period - 1) - at)


def filling(value: Any, dtype: DType) -> Array:
    """The padding value as an element of `dtype`; infinite where it exceeds a float dtype's range."""
    with np.errstate(all="ignore"):
        return rounded(np.asarray(value), dtype.np)


def _reference(x: Array, *, pads: Pads, mode: str, value: Any) -> Array:
    x = np.asarray(x)
    if mode == "constant":
        shape = [a + n + b for n, (a, b) in zip(x.shape, pads, strict=True)]
        full = np.full(shape, filling(value, as_dtype(x.dtype)))
        full[tuple(builtins.slice(a, a + n) for n, (a, _) in zip(x.shape, pads, strict=True))] = x
        return full
    for axis, pair in enumerate(pads):
        if any(pair):
            x = np.take(x, sources(x.shape[axis], pair[0], pair[1], mode), axis=axis)
    return x


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradient of an element is the sum of d over its copies, computed axis by axis."""
    x, d = node.inputs[0], grads[0]
    if d is None or not d.dtype.is_float:
        return (None,)
    pads = node.attrs["pads"]
    if node.attrs["mode"] != "constant":
        for axis, (n, pair) in enumerate(zip(x.shape, pads, strict=True)):
            if any(pair):
                d = _gathered(d, axis, n, sources(n, pair[0], pair[1], node.attrs["mode"]))
        return (d,)
    return (index(d, tuple(builtins.slice(a, a + n) for n, (a, _) in zip(x.shape, pads, strict=True))),)


def _gathered(d: Tensor, axis: int, n: int, places: npt.NDArray[np.int64]) -> Tensor:
    from rlx.ops.scatter import scatter  # here, since the package imports both modules

    shape = (*d.shape[:axis], n, *d.shape[axis + 1 :])
    zeros = apply("expand", d.graph.constant(0, d.dtype), shape=shape)
    return scatter(zeros, d.graph.constant(places), d, axis, "add")


register(Op("pad", "pad", _infer, _reference, "numpy.pad", _vjp, kernel="pad", batch=batching.pad))


def pad(x: TensorLike, pads: Any, mode: str = "constant", value: Any = 0) -> Tensor:
    """x with elements added before and after it along its axes; negative pads remove elements.

    Shape: pads is one number for all ends, one pair (before, after) for all axes, or a pair for each axis. mode:
    "constant" (the value), "edge" (the end element), "reflect" (mirrored without the end element), "symmetric"
    (mirrored with it), "wrap" (from the other end); the last three continue periodically where a pad is longer than the
    axis. Negative pads remove elements before any are added. Dtype: any; the value is converted. Gradient: for each
    element the sum of d over its copies. Numerics: exact. Follows numpy.pad.
    """
    x = tensor("pad", x)
    pairs = _pairs(x, pads)
    if any(n < 0 for pair in pairs for n in pair):
        kept = []
        for axis, (n, (a, b)) in enumerate(zip(x.shape, pairs, strict=True)):
            start, stop = builtins.max(-a, 0), n - builtins.max(-b, 0)
            if start > stop:
                raise ShapeError(f"pad: pads {(a, b)} take more than the {n} elements of axis {axis} of {x.type}")
            kept.append(builtins.slice(start, stop))
        x = index(x, tuple(kept))
        pairs = tuple((builtins.max(a, 0), builtins.max(b, 0)) for a, b in pairs)
    if mode in MODES and not any(n for pair in pairs for n in pair):
        return tensor("pad", x)
    return apply("pad", x, pads=pairs, mode=mode, value=_value(value, x.dtype))


def _pairs(x: Tensor, pads: Any) -> Pads:
    if is_index(pads):
        return ((int(pads), int(pads)),) * x.ndim
    listed = as_items(pads, "pad: pads")
    if len(listed) == 2 and all(map(is_index, listed)):
        return ((int(listed[0]), int(listed[1])),) * x.ndim
    try:
        pairs = tuple((int(a), int(b)) for a, b in listed)
    except (TypeError, ValueError):
        raise ShapeError(f"pad: pads is {pads!r}; expected a number, a pair, or a pair for each axis") from None
    if len(pairs) != x.ndim:
        raise ShapeError(f"pad: {len(pairs)} pairs of pads for {x.type}; expected {x.ndim}, one for each axis")
    return pairs


def _value(value: Any, dtype: DType) -> Any:
    if isinstance(value, Tensor) or np.ndim(value) != 0:
        raise DTypeError(f"pad: value is {value!r}; expected a number (for tensors: rlx.where or rlx.concat)")
    number = np.asarray(value).item()
    if dtype.kind == "b":
        return bool(number)
    if dtype.is_float:
        return float(number)
    if isinstance(number, float) and (not math.isfinite(number) or number != int(number)):
        raise DTypeError(f"pad: value {number} for {dtype}; expected a whole number")
    return int(number)


__all__ = ["pad"]
