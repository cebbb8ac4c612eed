"""x.at[key]: new arrays in which the elements of a key are replaced, added to and so on, by JAX's names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.dtypes import as_dtype, i32, i64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor
from rlx.ir.types import broadcast_shapes, is_index
from rlx.ops.base import cast_to, tensors
from rlx.ops.elementwise import binary, select
from rlx.ops.index.arrays import getitem
from rlx.ops.index.dynamic import dynamic_update_slice
from rlx.ops.index.gather import check_in_range
from rlx.ops.movement import strided as movement
from rlx.ops.public import public
from rlx.ops.scatter import scatter

_COMBINES: dict[str, Callable[[Any, Any], Tensor]] = {
    "none": lambda old, new: new, "add": binary.add, "mul": binary.mul, "min": binary.minimum,
    "max": binary.maximum,
}  # fmt: skip


def _updated(x: Tensor, key: tuple[Any, ...], values: Any, reduction: str) -> Tensor:
    """x with the elements of a key replaced by, or combined with, the values, which broadcast to them."""
    x, new = tensors("at", x, values)
    x = x.concrete()
    if new.dtype.is_float and not x.dtype.is_float:
        raise DTypeError(f"at: the values are {new.type} and the array is {x.type}; cast one to the other's dtype")
    new = cast_to(new, x.dtype)
    if len(key) == 1 and _is_mask(key[0]):
        return _masked(x, key[0], new, reduction)
    parts = _whole(x, key)
    arrays = [k for k in parts if _is_array(k)]
    if not arrays and all(k is None or k.step in (None, 1) for k in parts):
        return _window(x, parts, new, reduction)
    if len(arrays) == 1 and all(_is_array(k) or k == slice(None) for k in parts):
        axis = next(i for i, k in enumerate(parts) if _is_array(k))
        shape = (*x.shape[:axis], *arrays[0].shape, *x.shape[axis + 1 :])
        return scatter(x, arrays[0], _fitting(new, shape), axis, reduction)
    places = _places(x, parts)
    flat, rows = movement.reshape(x, (x.size,)), movement.reshape(places, (places.size,))
    result = scatter(flat, rows, movement.reshape(_fitting(new, places.shape), (places.size,)), 0, reduction)
    return movement.reshape(result, x.shape)


_updated.__name__ = "updated"
updated = public("rlx.ops", "updated", _updated)


def _is_array(k: Any) -> bool:
    return isinstance(k, Tensor | np.ndarray)


def _is_mask(k: Any) -> bool:
    return isinstance(k, Tensor) and k.dtype.kind == "b"


def _fitting(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    if broadcast_shapes(values.shape, shape, op="at") != shape:
        raise ShapeError(f"at: the key selects {shape}, and the values are {values.type}; expected one that fits")
    return movement.broadcast_to(values, shape)


def _masked(x: Tensor, mask: Tensor, new: Tensor, reduction: str) -> Tensor:
    if mask.shape != x.shape or new.ndim:
        raise ShapeError(
            f"at: a mask of {mask.type} for {x.type}, and values of {new.type}; how many elements a mask selects is "
            "known only in a run: give one of the array's shape and a single number, or use rlx.where"
        )
    return select.where(mask, _COMBINES[reduction](x, new), x)


def _whole(x: Tensor, key: tuple[Any, ...]) -> list[Any]:
    """The parts of a key with Ellipsis expanded: each part is None (a new axis) or indexes one axis."""
    used = sum(k is not None and k is not Ellipsis for k in key)
    dots = [i for i, k in enumerate(key) if k is Ellipsis]
    if len(dots) > 1 or used > x.ndim:
        raise ShapeError(f"at: {used} indices and {len(dots)} Ellipsis for {x.type}; expected one for each axis")
    at = dots[0] if dots else len(key)
    # Arrays that a call outside a trace builds in arrive as numbers and lists.
    known: list[Any] = [np.asarray(k) if is_index(k) or isinstance(k, list) else k for k in key]
    parts = [*known[:at], *[slice(None)] * (x.ndim - used), *known[at + 1 :]]
    for k in parts:
        if not (k is None or isinstance(k, slice) or _is_array(k)) or (_is_array(k) and not as_dtype(k.dtype).is_int):
            raise DTypeError(f"at: an index is {k!r}; expected integers, slices, None, Ellipsis and arrays of integers")
    return parts


def _window(x: Tensor, parts: list[Any], new: Tensor, reduction: str) -> Tensor:
    """The update for a key of slices without steps, whose elements are a window of x."""
    ends = [k.indices(n)[:2] for k, n in zip([k for k in parts if k is not None], x.shape, strict=True)]
    shape = tuple(max(b - a, 0) for a, b in ends)
    seen = iter(shape)
    new = _fitting(new, tuple(1 if k is None else next(seen) for k in parts))
    if not math.prod(shape):
        return x
    new = movement.reshape(new, shape)
    old = movement.index(x, tuple(slice(a, b) for a, b in ends))
    return dynamic_update_slice(x, _COMBINES[reduction](old, new), [a for a, _ in ends])


def _places(x: Tensor, parts: list[Any]) -> Tensor:
    """The row-major position of each element that the key selects; x.size, which no element has, for an index out of
    range."""
    wide = i64 if x.size >= 2**31 else i32
    numbers = np.arange(x.size, dtype=wide.np).reshape(x.shape)
    key: list[Any] = []
    axis = 0
    for k in parts:
        if k is None:
            key.append(None)
            continue
        n = x.shape[axis]
        if isinstance(k, Tensor):
            pads = [(0, int(i == axis)) for i in range(numbers.ndim)]
            numbers = np.pad(numbers, pads, constant_values=x.size)
            k = cast_to(k.concrete(), wide)
            inside = binary.logical_and(binary.greater_equal(k, -n), binary.less(k, n))
            k = select.where(inside, select.where(binary.less(k, 0), k + n, k), n)
        elif isinstance(k, slice):
            k = slice(*k.indices(n)) if k.step is None or k.step > 0 else k
        else:
            check_in_range("at", k, n, f"axis {axis} of {x.shape}")
            k = np.where(k < 0, k + n, k)
        key.append(k)
        axis += 1
    if any(isinstance(k, Tensor) for k in key):
        return getitem(x.graph.constant(numbers), tuple(key))
    return x.graph.constant(numbers[tuple(key)])


class At:
    """x.at: `x.at[key]` stands for the elements of a key, as x[key] has them. See `Place`."""

    __slots__ = ("_of",)

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getitem__(self, key: Any) -> Place:
        return Place(self._of, key)


class Place:
    """The elements of an array that a key selects. Each method gives a new array: `set(values)`, `add`, `subtract`,
    `multiply`, `divide`, `min`, `max`, `power`, `apply(function)`; `get()` gives the elements.

    Shape: values broadcast to what x[key] is. Dtype: values are cast to the array's; floats are refused for integers.
    Indices out of range: ShapeError for what is known now; in a run nothing is updated there. If an index comes twice,
    `set` keeps the last value, and the others apply all values; `power` and `apply` use the element as it was before. A
    mask that is known only in a run needs a single number as value. Gradient: to the array and the values. As
    jax.numpy's.
    """

    __slots__ = ("_key", "_of")

    def __init__(self, of: Any, key: Any) -> None:
        self._of = of
        self._key = _known(of, key)

    def get(self) -> Any:
        """x[key]."""
        return self._of[self._key]

    def set(self, values: Any) -> Any:
        return updated(self._of, self._key, values, "none")

    def add(self, values: Any) -> Any:
        return updated(self._of, self._key, values, "add")

    def subtract(self, values: Any) -> Any:
        return updated(self._of, self._key, -values if not isinstance(values, list) else -np.asarray(values), "add")

    def multiply(self, values: Any) -> Any:
        return updated(self._of, self._key, values, "mul")

    def divide(self, values: Any) -> Any:
        from rlx import ops

        return self._of / updated(ops.ones_like(self._of), self._key, values, "mul")

    def min(self, values: Any) -> Any:
        return updated(self._of, self._key, values, "min")

    def max(self, values: Any) -> Any:
        return updated(self._of, self._key, values, "max")

    def power(self, values: Any) -> Any:
        return self.set(self.get() ** values)

    def apply(self, function: Callable[[Any], Any]) -> Any:
        """A new array with the elements replaced by function(elements)."""
        return self.set(function(self.get()))

    mul, sub = multiply, subtract

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"x.at[key] has no {name!r}; it has set, add, subtract, multiply, divide, min, max, power, apply and get"
        )


def _known(of: Any, key: Any) -> tuple[Any, ...]:
    """The key as a tuple of slices, None, Ellipsis, arrays and tensors; known masks become indices."""
    parts: list[Any] = []
    for k in key if isinstance(key, tuple) else (key,):
        if isinstance(k, Tensor) or (hasattr(k, "device") and hasattr(k, "numpy") and str(k.dtype) != "bool"):
            parts.append(k)
            continue
        if k is None or k is Ellipsis or isinstance(k, slice):
            parts.append(k)
            continue
        if isinstance(k, bool | np.bool_) or not (is_index(k) or isinstance(k, list) or hasattr(k, "dtype")):
            raise DTypeError(f"at: an index is {k!r}; expected integers, slices, None, Ellipsis, arrays or masks")
        value = np.asarray(k)
        if value.dtype == bool:
            axis = sum(p is not None for p in parts)
            if Ellipsis in parts or value.shape != tuple(of.shape[axis : axis + value.ndim]):
                raise ShapeError(f"at: a mask of shape {value.shape} for the axes from {axis} of {tuple(of.shape)}")
            parts += value.nonzero()
            continue
        parts.append(value.astype(np.int64) if not value.size and isinstance(k, list) else value)
    used = sum(p is not None and p is not Ellipsis for p in parts)
    axis = 0
    for p in parts:
        if p is Ellipsis:
            axis += len(of.shape) - used
        elif p is not None:
            if isinstance(p, np.ndarray) and axis < len(of.shape) and p.dtype.kind in "iu":
                check_in_range("at", p, of.shape[axis], f"axis {axis} of {tuple(of.shape)}")
            axis += 1
    return tuple(parts)
