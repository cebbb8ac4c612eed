"""rope_update: the queries and keys of tokens are rotated, and their keys and values written into rows of caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import i32, promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Op, Tensor, TensorType, apply, register
from rlx.ir.graph import apply_multi
from rlx.ops.attention.step import rotated
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, check_known, narrowed, tensors
from rlx.ops.numeric import Array, widened

_OP = "rope_update"


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_inputs(_OP, types, 9)
    q, k, v, keys, values, rows, position, cos, sin = types
    if not q.rank == k.rank == keys.rank == 3 or k.shape != v.shape or keys.shape != values.shape:
        raise ShapeError(f"{_OP}: q {q.shape}, k {k.shape}, v {v.shape}, keys {keys.shape}, values {values.shape}; "
                         "expected (tokens, heads, size) three times and (rows, heads, size) twice")  # fmt: skip
    tokens, heads, size = q.shape
    kv_heads = k.shape[1]
    if k.shape != (tokens, kv_heads, size) or keys.shape[1:] != (kv_heads, size) or not kv_heads or heads % kv_heads:
        raise ShapeError(f"{_OP}: q {q.shape}, k {k.shape}, keys {keys.shape}; expected tokens and heads of one size, "
                         "and as many heads of q as of k, or a multiple")  # fmt: skip
    check_float(_OP, q.dtype, "query")
    check_float(_OP, keys.dtype, "cache")
    if not q.dtype == k.dtype == v.dtype or keys.dtype != values.dtype:
        raise DTypeError(f"{_OP}: q {q.dtype}, k {k.dtype}, v {v.dtype}, keys {keys.dtype}, values {values.dtype}; "
                         "expected one dtype for the tokens and one for the caches")  # fmt: skip
    if not rows == position == TensorType((tokens,), i32):
        raise ShapeError(f"{_OP}: rows {rows}, position {position}; expected i32 of ({tokens},), one a token")
    check_float(_OP, cos.dtype, "cos table")
    if cos != sin or cos.rank != 2 or cos.shape[0] == 0 or 2 * cos.shape[1] > size:
        raise ShapeError(f"{_OP}: the tables are {cos} and {sin}; expected both (positions, pairs), of at most "
                         f"{size // 2} pairs")  # fmt: skip
    if not isinstance(attrs["interleaved"], bool):
        raise DTypeError(f"{_OP}: interleaved is {attrs['interleaved']!r}; expected a bool")
    return TensorType(q.shape, keys.dtype), keys, values


def _reference(
    q: Array, k: Array, v: Array, keys: Array, values: Array, rows: Array, position: Array, cos: Array, sin: Array,
    *, interleaved: bool,
) -> tuple[Any, ...]:  # fmt: skip
    at, there = np.maximum(position.astype(np.int64), 0), (rows >= 0) & (rows < len(keys))
    with np.errstate(all="ignore"):
        q, k = (rotated(widened(x), at, (cos, sin), interleaved).astype(keys.dtype) for x in (q, k))
        keys, values = keys.copy(), values.copy()
        keys[rows[there]], values[rows[there]] = k[there], v.astype(values.dtype)[there]
    return q, keys, values


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    """RoPE of q and of k, and a scatter into each cache."""
    q, k, v, keys, values, rows, position, cos, sin = inputs
    places = apply("reshape", position, shape=(position.size, 1))
    length = keys.shape[0]

    def turned(x: Tensor) -> Tensor:
        wide = cast_to(x, promote(x.dtype, keys.dtype))  # rounded once, to the caches' dtype
        wide = apply("reshape", wide, shape=(x.shape[0], 1, *x.shape[1:]))
        how = {"offset": 0, "interleaved": attrs["interleaved"], "sections": 1, "inverse": False}
        wide = apply("rope", wide, cos, sin, places, axis=1, **how)
        return cast_to(apply("reshape", wide, shape=x.shape), keys.dtype)

    known = apply("where", apply("less", rows, 0), length, rows)  # a scatter counts numbers below 0 from the end
    into = {"axis": 0, "length": length, "reduction": "none"}
    keys = apply("scatter", known, turned(k), keys, **into)
    return turned(q), keys, apply("scatter", known, cast_to(v, values.dtype), values, **into)


register(
    Op(_OP, "attention", _infer, _reference, "torch: rotation, index_put", NOT_DIFFERENTIABLE, decompose=_decompose,
       renews=lambda attrs: ((3, 1), (4, 2)), strided=(0, 1, 2))
)  # fmt: skip


def rope_update(
    q: TensorLike, k: TensorLike, v: TensorLike, keys: Tensor, values: Tensor, rows: TensorLike, position: TensorLike,
    cos: TensorLike, sin: TensorLike, *, interleaved: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The queries of some tokens, rotated, and the caches with the tokens' rotated keys and their values in them.

    Shape: q (N, H, D); k and v (N, Hkv, D); keys and values (rows, Hkv, D), the caches of all sequences; rows (N,), the
    row of each token; position (N,); cos, sin (positions, n): the first 2 n elements of q's and k's heads are rotated
    by the angles of `position`, as by `rlx.rope` (`interleaved`). Gives q's shape and the caches' shapes. A row outside
    the caches is not written. The other rows must differ from each other: constant ones are refused by ShapeError, of
    others it is the caller who knows; a row of several tokens gets an element of any of them. Positions outside the
    tables are clamped. Dtype: q, k, v promoted; the caches' own, which is that of all results; integers for rows and
    position. Gradient: none. Numerics: as `rlx.rope`, rounded once to the caches' dtype. As states, the caches are
    written in place. Raises: DTypeError, ShapeError.
    """
    q, k, v, keys, values, rows, position, cos, sin = tensors(_OP, q, k, v, keys, values, rows, position, cos, sin)
    if not (rows.dtype.is_int and position.dtype.is_int):
        raise DTypeError(f"{_OP}: rows are {rows.dtype}, position is {position.dtype}; expected integers, best i32")
    check_known(rows, lambda known: _check_distinct(known, keys.shape[0] if keys.ndim else 0))
    dtype = promote(q.dtype, k.dtype, v.dtype)
    q, k, v = (cast_to(t, dtype) for t in (q, k, v))
    y, keys, values = apply_multi(_OP, q, k, v, keys, values, narrowed(rows, i32), narrowed(position, i32), cos, sin,
                                  interleaved=bool(interleaved))  # fmt: skip
    return y, keys, values


def _check_distinct(rows: Array, length: int) -> None:
    row, count = np.unique(rows[(rows >= 0) & (rows < length)], return_counts=True)
    if (count > 1).any():
        raise ShapeError(f"{_OP}: row {row[count > 1][0]} is that of several tokens; expected a row for each")


__all__ = ["rope_update"]
