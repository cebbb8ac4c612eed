"""x[key]: Python's basic indexing, and NumPy's indexing by arrays of integers, which becomes one gather."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from rlx.dtypes import as_dtype, i32, i64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor
from rlx.ir.types import broadcast_shapes, is_index
from rlx.ops.base import cast_to
from rlx.ops.index.gather import check_constants_in_range, clamped, gather, in_range, index_tensor
from rlx.ops.movement import strided as movement

Index = Tensor | np.ndarray[Any, Any]


def getitem(x: Tensor, key: Any) -> Tensor:
    """x[key], as NumPy has it.

    Among ints, slices, None and Ellipsis the key may hold arrays, lists and tensors of integers, which broadcast with
    each other. Where they stand side by side, their axes take their place, else these come first. Out of range:
    ShapeError for what is known now; else clamped, as in rlx.gather. NumPy's masks select as in NumPy. Gradient: added
    where an element was read. Raises: DTypeError for masks that are tensors, whose result has a shape that is known
    only in a run.
    """
    if isinstance(key, Tensor | np.ndarray | list):
        key = (key,)
    if isinstance(key, tuple):
        key = _selected(x, key)
    if not isinstance(key, tuple) or not any(isinstance(k, Tensor | np.ndarray | list) for k in key):
        return movement.index(x, key)
    basic: list[Any] = []
    arrays: list[Index | None] = []
    for k in key:
        array = _index(x, k) if isinstance(k, Tensor | np.ndarray | list) or is_index(k) else None
        arrays += [array] if k is not Ellipsis else []
        basic.append(k if array is None else builtins.slice(None))
    if any(k is Ellipsis for k in key):
        dots = next(i for i, k in enumerate(key) if k is Ellipsis)
        # The first `...` stands for all missing axes; movement.index refuses a second one.
        arrays[dots:dots] = [None] * max(x.ndim - sum(k is not None and k is not Ellipsis for k in key), 0)
    cut = movement.index(x, tuple(basic))
    arrays += [None] * (cut.ndim - len(arrays))
    at = [i for i, a in enumerate(arrays) if a is not None]
    present = [a for a in arrays if a is not None]
    broadcast_shapes(*(a.shape for a in present), op="index")
    if len(at) == 1:
        return gather(cut, present[0], at[0])
    if at != list(range(at[0], at[0] + len(at))):
        cut = movement.transpose(cut, [*at, *(i for i in range(cut.ndim) if i not in at)])
        at = list(range(len(at)))
    first, end = at[0], at[-1] + 1
    sizes = cut.shape[first:end]
    rows = _rows(x, sizes, present)
    return gather(
        movement.reshape(cut, (*cut.shape[:first], math.prod(sizes), *cut.shape[end:])), rows, first
    )


def _mask(key: Any) -> np.ndarray[Any, Any] | None:
    """The key as a mask, if it is one whose values are known now; else None."""
    known = isinstance(key, np.ndarray) or (isinstance(key, list) and all(isinstance(k, bool) for k in key) and key)
    mask = np.asarray(key) if known else None
    return mask if mask is not None and mask.dtype == np.bool_ and mask.ndim else None


def _selected(x: Tensor, key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key with known masks replaced by the indices that they select. Raises: ShapeError for a mask that does not
    fit the axes it indexes."""
    masks = [_mask(k) for k in key]
    if all(mask is None for mask in masks):
        return key
    axes = [0 if k is None or k is Ellipsis else 1 if m is None else m.ndim for k, m in zip(key, masks, strict=True)]
    result: list[Any] = []
    for i, (k, mask) in enumerate(zip(key, masks, strict=True)):
        if mask is None:
            result.append(k)
            continue
        dots = any(before is Ellipsis for before in key[:i])
        first = x.ndim - sum(axes[i:]) if dots else sum(axes[:i])
        own = x.shape[max(first, 0) : max(first, 0) + mask.ndim]
        if own != mask.shape:
            raise ShapeError(f"index: a mask of {mask.shape} for the axes {own} of {x.shape}; expected these lengths")
        result += np.nonzero(mask)
    return tuple(result)


def _index(x: Tensor, key: Any) -> Index:
    index: Any = key.concrete() if isinstance(key, Tensor) else np.asarray(key)
    if not isinstance(index, Tensor) and index.size == 0 and isinstance(key, list):
        index = index.astype(np.int64)
    dtype = as_dtype(index.dtype)
    if dtype.kind == "b":
        raise DTypeError(
            "index: a mask selects a number of elements that is known only in a run, and shapes are static; use "
            "rlx.where(mask, x, 0) to keep the shape, or for a mask that is known now a NumPy array"
        )
    if not dtype.is_int:
        raise DTypeError(f"index: an index of {dtype} into {x.type}; expected integers")
    return index  # type: ignore[no-any-return]


def _rows(x: Tensor, sizes: tuple[int, ...], indices: list[Index]) -> Index:
    """The row-major positions of the elements that indices along several axes select together."""
    wide = i64 if math.prod(sizes) > 2**31 - 1 else i32
    rows: Any = None
    for array, n in zip(indices, sizes, strict=True):
        if isinstance(array, Tensor):
            check_constants_in_range("index", array, n, f"an axis of {n} of {x.shape}")
            held: Any = cast_to(clamped(index_tensor("index", array), n), wide)
        else:
            check_constants_in_range("index", x.graph.constant(array), n, f"an axis of {n} of {x.shape}")
            held = in_range(array, n).astype(wide.np)
        rows = held if rows is None else rows * n + held
    return rows if isinstance(rows, Tensor) else np.asarray(rows).astype(wide.np)
