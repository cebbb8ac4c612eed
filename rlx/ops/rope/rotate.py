"""Rotary position embedding: `rope`, by tables of cosines and sines, and `axial_rope`, for two axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rlx.dtypes import f32, f64, i32, i64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.types import normalize_axis
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, floats, narrowed, tensors
from rlx.ops.norm.channels import first_dtype
from rlx.ops.numeric import Array, computed
from rlx.ops.reduce import working_float
from rlx.ops.rope.table import axial_rope_table

MAX_POSITIONS = 1 << 30


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("rope", types, 3, 4)
    x, cos, sin = types[:3]
    for what, t in zip(("input", "cos table", "sin table"), types, strict=False):
        check_float("rope", t.dtype, what)
    if x.rank < 2:
        raise ShapeError(f"rope: the input is {x.shape}; expected (…, sequence, …, size)")
    if cos.rank != 2 or cos.shape != sin.shape:
        raise ShapeError(f"rope: the tables are {cos.shape} and {sin.shape}; expected (positions, width / 2), both")
    axis, sections, offset = attrs["axis"], attrs["sections"], attrs["offset"]
    if not isinstance(axis, int) or not 0 <= axis < x.rank - 1:
        raise ShapeError(f"rope: axis {axis!r} of {x.shape} is not the sequence; expected 0 to {x.rank - 2}")
    half = cos.shape[1]
    if 2 * half > x.shape[-1]:
        raise ShapeError(f"rope: the tables rotate {2 * half} elements; the input {x.shape} has {x.shape[-1]}")
    if not isinstance(sections, int) or sections < 1 or half % sections:
        raise ShapeError(f"rope: {half} pairs do not fall into {sections!r} sections")
    for name in ("interleaved", "inverse"):
        if not isinstance(attrs[name], bool):
            raise DTypeError(f"rope: {name} is {attrs[name]!r}; expected a bool")
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < MAX_POSITIONS:
        raise ShapeError(f"rope: offset is {offset!r}; expected an int from 0")
    # With given positions several elements may share a row, so the table may be short.
    n = min(x.shape[axis], 1) if len(types) == 4 and types[3].rank else x.shape[axis]
    if cos.shape[0] > MAX_POSITIONS or cos.shape[0] < offset + n:
        raise ShapeError(
            f"rope: the tables hold {cos.shape[0]} positions; the sequence of {n} from position {offset} needs "
            f"{offset + n} (at most 2^30). Make longer tables with rlx.rope_table"
        )
    if len(types) == 4:
        _check_positions(types[3], x, axis)
    return x


def _check_positions(t: TensorType, x: TensorType, axis: int) -> None:
    if t.dtype != i32:
        raise DTypeError(f"rope: the positions are {t.dtype}; expected i32 (rlx.rope takes i64 too)")
    n = x.shape[axis]
    allowed = [(), (n,)] + ([(x.shape[0], n)] if axis > 0 else [])
    if t.shape not in allowed:
        raise ShapeError(
            f"rope: the positions are {t.shape} for the input {x.shape}; expected one of "
            f"{', '.join(map(str, allowed))}: the first position, one a place, one a batch and place"
        )


def positions_of(shape: Sequence[int], axis: int, offset: int, rows: int, positions: Sequence[Array]) -> Array:
    """The row of the tables for each position of the sequence, clamped to the tables: (n,) or (batch, n)."""
    first = np.arange(shape[axis], dtype=np.int64) + offset
    if positions:
        p = positions[0].astype(np.int64)
        first = first + p if p.ndim == 0 else p + offset
    return np.asarray(np.clip(first, 0, max(rows - 1, 0)))


def halves(x: Array, half: int, interleaved: bool, sections: int) -> tuple[Array, Array]:
    """Views of the first and the second elements of all pairs, each (…, sections, pairs of a section)."""
    rotated = x[..., : 2 * half]
    per = half // sections
    if interleaved:
        split = rotated.reshape(*x.shape[:-1], sections, per, 2)
        return split[..., 0], split[..., 1]
    split = rotated.reshape(*x.shape[:-1], sections, 2, per)
    return split[..., 0, :], split[..., 1, :]


def _reference(
    x: Array, cos: Array, sin: Array, *positions: Array,
    axis: int, offset: int, interleaved: bool, sections: int, inverse: bool,
) -> Any:  # fmt: skip
    half = cos.shape[1]
    out = x.copy()
    if x.size == 0 or half == 0:
        return out
    at = positions_of(x.shape, axis, offset, cos.shape[0], positions)
    lead = (x.shape[0], *(1,) * (axis - 1)) if at.ndim == 2 else (1,) * axis
    shape = (*lead, x.shape[axis], *(1,) * (x.ndim - axis - 2), sections, half // sections)
    c, s = (t.astype(x.dtype)[at].reshape(shape) for t in (cos, sin))
    if inverse:
        s = -s
    a, b = halves(x, half, interleaved, sections)
    rotated = np.empty((*x.shape[:-1], 2 * half), x.dtype)
    first, second = halves(rotated, half, interleaved, sections)
    first[...] = a * c - b * s
    second[...] = b * c + a * s
    out[..., : 2 * half] = rotated
    return out


def _pairs(x: Tensor, half: int, attrs: Attrs) -> tuple[Tensor, Tensor]:
    """`halves` for tensors, each (…, half)."""
    sections = attrs["sections"]
    per, rank = half // sections, x.ndim - 1
    split = (half, 2) if attrs["interleaved"] else (sections, 2, per)
    x = apply("reshape", _cut(x, rank, 0, 2 * half), shape=(*x.shape[:-1], *split))
    parts = (_cut(x, rank + 1, k, k + 1) for k in (0, 1))
    a, b = (apply("reshape", t, shape=(*x.shape[:rank], half)) for t in parts)
    return a, b


def _cut(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    if (start, stop) == (0, x.shape[axis]):
        return x
    starts = tuple(start if i == axis else 0 for i in range(x.ndim))
    stops = tuple(stop if i == axis else n for i, n in enumerate(x.shape))
    return apply("slice", x, starts=starts, stops=stops, steps=(1,) * x.ndim)


def _rows(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor | None:
    """The tables' row for each position, clamped to the tables; None if the rows simply start at the attribute
    `offset`."""
    if len(inputs) == 3:
        return None
    x, cos, _, p = inputs
    # Positions are clamped before the offset is added, so that the sum cannot wrap.
    p = apply("clip", p, min=-MAX_POSITIONS, max=MAX_POSITIONS) + attrs["offset"]
    if p.ndim == 0:
        p = p + x.graph.constant(np.arange(x.shape[attrs["axis"]], dtype=np.int32))
    return apply("clip", p, min=0, max=cos.shape[0] - 1)


def _table(table: Tensor, rows: Tensor | None, x: Tensor, attrs: Attrs) -> Tensor:
    """The table's rows, reshaped to broadcast with the pairs, in the working dtype."""
    axis, offset = attrs["axis"], attrs["offset"]
    n = x.shape[axis]
    taken = _cut(table, 0, offset, offset + n) if rows is None else apply("gather", table, rows, axis=0)
    batch = x.shape[:1] if taken.ndim == 3 else ()
    shape = (*batch, *(1,) * (axis - len(batch)), n, *(1,) * (x.ndim - axis - 2), table.shape[1])
    return cast_to(apply("reshape", taken, shape=shape), working_float(x))


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    x, cos, sin = inputs[:3]
    half = cos.shape[1]
    if x.size == 0 or half == 0:
        return apply("copy", x)
    rows = _rows(inputs, attrs)
    c, s = (_table(t, rows, x, attrs) for t in (cos, sin))
    if attrs["inverse"]:
        s = -s
    wide = cast_to(x, working_float(x))
    a, b = _pairs(wide, half, attrs)
    per = half // attrs["sections"]
    split = (half, 1) if attrs["interleaved"] else (attrs["sections"], 1, per)
    parts = [apply("reshape", t, shape=(*x.shape[:-1], *split)) for t in (a * c - b * s, b * c + a * s)]
    turned = apply("concat", *parts, axis=x.ndim)
    turned = cast_to(apply("reshape", turned, shape=(*x.shape[:-1], 2 * half)), x.dtype)
    if 2 * half == x.shape[-1]:
        return turned
    return apply("concat", turned, _cut(x, x.ndim - 1, 2 * half, x.shape[-1]), axis=x.ndim - 1)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d = grads[0]
    if d is None:
        return (None,) * len(node.inputs)
    inverse = not node.attrs["inverse"]
    dx = apply("rope", d, *node.inputs[1:], **{**node.attrs, "inverse": inverse})
    x, cos, sin = node.inputs[:3]
    input_grads: list[Tensor | None] = [dx, None, None]
    if x.size and cos.size and not all(t.node.op.name == "constant" for t in (cos, sin)):
        input_grads[1:] = _table_gradients(node, d)
    return (*input_grads, *(None for _ in node.inputs[3:]))


def _table_gradients(node: Node, d: Tensor) -> list[Tensor]:
    """The gradients of cos and sin: for each row the sum of the terms of all positions that read it."""
    x, cos, sin = node.inputs[:3]
    attrs, half, work = node.attrs, cos.shape[1], working_float(x)
    (a, b), (da, db) = (_pairs(cast_to(t, work), half, attrs) for t in (x, d))
    terms = [da * a + db * b, db * a - da * b]
    if attrs["inverse"]:
        terms[1] = -terms[1]
    rows = _rows(node.inputs, attrs)
    kept = (0, attrs["axis"]) if rows is not None and rows.ndim == 2 else (attrs["axis"],)
    axes = tuple(i for i in range(x.ndim - 1) if i not in kept)
    result = []
    for table, term in zip((cos, sin), terms, strict=True):
        total = apply("sum", term, axes=axes, keepdims=False)
        total = apply("reshape", total, shape=(total.size // half, half))
        n = table.shape[0]
        if rows is None:
            before, after = attrs["offset"], n - attrs["offset"] - total.shape[0]
            edges = [x.graph.constant(np.zeros((k, half), work.np)) for k in (before, after)]
            total = apply("concat", edges[0], total, edges[1], axis=0)
        else:
            number = x.graph.constant(np.arange(n, dtype=np.int32)[:, None])
            hot = cast_to(apply("equal", number, apply("reshape", rows, shape=(1, rows.size))), work)
            total = apply("matmul", hot, total, transpose_a=False, transpose_b=False, activation=None)
        result.append(cast_to(total, table.dtype))
    return result


def _batch(node: Node, inputs: Sequence[Tensor], flags: batching.Flags, size: int) -> Sequence[Tensor]:
    """Examples in front; positions of a batch and place stand beside axis 0, so there the batch takes the examples."""
    by_batch = len(inputs) == 4 and node.inputs[3].ndim == 2
    rule = batching.folded(1, 2) if by_batch else batching.along(1, 2, 3)
    return rule(node, inputs, flags, size)


register(
    Op("rope", "rope", _infer, computed(first_dtype)(_reference), "complex numbers turned place by place", _vjp,
       kernel="rope", decompose=_decompose, inplace=(0,), batch=_batch)
)  # fmt: skip


def rope(
    x: TensorLike,
    cos: TensorLike,
    sin: TensorLike,
    positions: TensorLike | None = None,
    *,
    offset: int = 0,
    axis: int = -2,
    interleaved: bool = False,
    sections: int = 1,
    inverse: bool = False,
) -> Tensor:
    """Rotary position embedding: pairs of elements of the last axis, rotated by the angles of their position.

    Shape: x (…, sequence, …, size) with the sequence on `axis`; cos and sin (positions, width / 2), width ≤ size;
    elements beyond `width` are not rotated. Pairs are (i, i + width / 2), or with `interleaved` (2i, 2i + 1). With
    `sections` the width is divided into that many parts, each split into halves by itself. Element i of the sequence
    has position offset + i; with `positions` of shape () positions + offset + i; of shape (sequence,) or (batch,
    sequence) positions + offset. `inverse` rotates by the negative angles. Dtype: x's; positions i32 or i64.
    Gradient: to x and the tables. Numerics: in f32 for halves. Tables shorter than offset + sequence are refused, or
    than offset + 1 where each element has its position; positions outside the tables are an error where they are
    constant, else they are clamped to the tables.
    Follows Su et al., RoFormer, 2021. Raises: ShapeError, DTypeError.
    """
    arguments = [t if isinstance(t, Tensor) else np.asarray(t) for t in (x, cos, sin)]
    if positions is not None:
        arguments.append(positions.concrete() if isinstance(positions, Tensor) else np.asarray(positions))
    inputs = list(tensors("rope", *arguments))
    inputs[:3] = floats(*inputs[:3])
    axis = normalize_axis(axis, inputs[0].ndim, "rope")
    if len(inputs) == 4:
        inputs[3] = _narrowed(inputs[3], int(offset), inputs[1].shape, inputs[0].shape, axis)
    return apply("rope", *inputs, axis=axis, offset=int(offset), interleaved=bool(interleaved), sections=int(sections),
                 inverse=bool(inverse))  # fmt: skip


def _narrowed(p: Tensor, offset: int, table: tuple[int, ...], shape: tuple[int, ...], axis: int) -> Tensor:
    """Positions as i32, saturated. Raises: DTypeError for no integers, ShapeError for constants outside the tables."""
    if p.dtype not in (i32, i64):
        raise DTypeError(f"rope: the positions are {p.dtype}; expected i32 or i64")
    if p.node.op.name == "constant" and p.size and len(table) == 2 and shape:
        value = np.asarray(p.node.attrs["value"])
        low, high = int(value.min()) + offset, int(value.max()) + offset
        if p.ndim == 0:
            high += max(shape[axis] - 1, 0)
        if low < 0 or high >= table[0]:
            raise ShapeError(f"rope: positions {low} to {high} lie outside the tables of {table[0]} positions")
    return narrowed(p, i32)


def axial_rope(
    x: TensorLike,
    rows: int,
    columns: int,
    *,
    base: float = 10000.0,
    interleaved: bool = True,
    order: Literal["xy", "yx"] = "xy",
    axis: int = -2,
) -> Tensor:
    """Rotary position embedding on a grid: half of the size rotates with the column (x), half with the row (y).

    Shape: x (…, rows · columns, …, size), with the grid's positions on `axis`, row by row; size a multiple of 4. Pairs
    are (2i, 2i + 1), or without `interleaved` (i, i + size / 4) within each half. `order` says which half comes first.
    Dtype, Gradient, Numerics: as rlx.rope. Follows Heo et al., Rotary Position Embedding for Vision Transformer, 2024.
    Raises: ShapeError, DTypeError.
    """
    (x,) = tensors("axial_rope", x)
    axis = normalize_axis(axis, x.ndim, "axial_rope")
    if axis == x.ndim - 1 or x.shape[axis] != rows * columns:
        raise ShapeError(
            f"axial_rope: axis {axis} of {x.shape} does not hold the {math.prod((rows, columns))} places of a grid of "
            f"{rows} by {columns}"
        )
    dtype = f64 if x.dtype == f64 else f32
    cos, sin = axial_rope_table(rows, columns, x.shape[-1], base=base, order=order, dtype=dtype)
    return rope(x, cos, sin, axis=axis, interleaved=interleaved, sections=1 if interleaved else 2)


__all__ = ["axial_rope", "rope"]
