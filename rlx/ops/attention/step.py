"""One step of attention while text is generated: a token's query sees a cache and its own key and value, which are
written into the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from rlx.autodiff.pullback import pullback
from rlx.dtypes import i32, promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.checks import between, check_limits, check_writes
from rlx.ir.graph import apply_multi
from rlx.ops.attention.parts import seen_keys, softmax_rows, tensor_probabilities, with_row
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, narrowed, tensors, written
from rlx.ops.numeric import F32_MAX, Array, widened

T = TypeVar("T")
_OP = "attention_step"
_LAST = np.iinfo(np.int32).max
_GIVEN = 6  # q, k, v, keys, values, position; then optionally RoPE's two tables, and sinks


def parts(inputs: Sequence[T]) -> tuple[Sequence[T], T | None]:
    """RoPE's tables (two or none) and the sinks among a node's inputs."""
    more = inputs[_GIVEN:]
    return (more[:-1], more[-1]) if len(more) % 2 else (more, None)


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_inputs(_OP, types, _GIVEN, _GIVEN + 3)
    q, k, v, keys, values, position = types[:_GIVEN]
    tables, sinks = parts(types)
    if not (q.rank == k.rank == 3 and keys.rank == 4):
        raise ShapeError(f"{_OP}: q {q.shape}, k {k.shape}, keys {keys.shape}; expected (batch, heads, size), twice, "
                         "and (batch, rows, heads, size)")  # fmt: skip
    batch, heads, size = q.shape
    kv_heads = k.shape[1]
    if kv_heads == 0 or heads % kv_heads:
        raise ShapeError(f"{_OP}: {heads} query heads are not a multiple of {kv_heads} key heads")
    fits = k.shape == v.shape == (batch, kv_heads, size) and keys.shape == values.shape
    if not fits or (keys.shape[0], *keys.shape[2:]) != k.shape or keys.shape[1] == 0:
        raise ShapeError(f"{_OP}: q {q.shape}, k {k.shape}, v {v.shape}, keys {keys.shape}, values {values.shape}; "
                         f"expected k and v of {(batch, kv_heads, size)}, and caches of rows of that")  # fmt: skip
    check_float(_OP, q.dtype, "query")
    check_float(_OP, keys.dtype, "cache")
    if not q.dtype == k.dtype == v.dtype or keys.dtype != values.dtype:
        raise DTypeError(f"{_OP}: q {q.dtype}, k {k.dtype}, v {v.dtype}, keys {keys.dtype}, values {values.dtype}; "
                         "expected one dtype for the token and one for the caches")  # fmt: skip
    if position != TensorType((batch,), i32):
        raise ShapeError(f"{_OP}: position is {position}; expected i32 of ({batch},), one a sequence")
    if tables:
        cos, sin = tables
        check_float(_OP, cos.dtype, "cos table")
        if cos != sin or cos.rank != 2 or cos.shape[0] == 0 or 2 * cos.shape[1] > size:
            raise ShapeError(f"{_OP}: the tables are {cos} and {sin}; expected both (positions, pairs), of at most "
                             f"{size // 2} pairs")  # fmt: skip
    if sinks is not None:
        check_float(_OP, sinks.dtype, "sinks")
        if sinks.shape != (heads,):
            raise ShapeError(f"{_OP}: sinks are {sinks}; expected ({heads},), one a head")
    _check_attrs(attrs, keys.shape[1])
    return q, keys, values


def _check_attrs(attrs: Attrs, rows: int) -> None:
    scale, window, cap = attrs["scale"], attrs["window"], attrs["softcap"]
    if not isinstance(scale, float) or not abs(scale) <= F32_MAX:
        raise ShapeError(f"{_OP}: scale is {scale!r}; expected a float that f32 holds")
    if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 0):
        raise ShapeError(f"{_OP}: window is {window!r}; expected None or a number of keys from 0")
    if cap is not None and not (isinstance(cap, float) and 0 < cap <= F32_MAX):
        raise ShapeError(f"{_OP}: softcap is {cap!r}; expected None or a finite float above 0")
    for name in ("interleaved", "ring"):
        if not isinstance(attrs[name], bool):
            raise DTypeError(f"{_OP}: {name} is {attrs[name]!r}; expected a bool")
    if attrs["ring"] and (window is None or window >= rows):
        raise ShapeError(f"{_OP}: window is {window} beside a ring of {rows} rows, which holds {rows - 1} keys before "
                         "the token's own; expected a window of at most those")  # fmt: skip


def _reference(
    q: Array, k: Array, v: Array, keys: Array, values: Array, position: Array, *more: Array,
    scale: float, window: int | None, softcap: float | None, interleaved: bool, ring: bool,
) -> tuple[Any, ...]:  # fmt: skip
    batch, rows = keys.shape[:2]
    at = np.clip(position.astype(np.int64), 0, None if ring else rows - 1)
    row = at % rows
    tables, sinks = parts((q, k, v, keys, values, position, *more))
    with np.errstate(all="ignore"):
        turned = [rotated(widened(x), at, tables, interleaved).astype(keys.dtype) for x in (q, k)]
        keys, values = keys.copy(), values.copy()
        keys[np.arange(batch), row], values[np.arange(batch), row] = turned[1], v.astype(values.dtype)
        operands = [np.swapaxes(widened(t), 1, 2) for t in (turned[0][:, None], keys, values)]
        others: list[Array] = [np.minimum(at, rows - 1) + 1]
        if ring:
            behind = (row[:, None] - np.arange(rows)) % rows
            others.insert(0, (behind <= np.minimum(at, window or 0)[:, None]).reshape(batch, 1, 1, rows))
            window = None
        p, _, seen = softmax_rows(operands[0], operands[1], others, scale=scale, causal=not ring, window=window,
                                  softcap=softcap, sinks=sinks)  # fmt: skip
        group = q.shape[1] // k.shape[1]
        y = np.matmul(p, np.where(seen, np.repeat(operands[2], group, axis=1), 0))
        return y[:, :, 0].astype(keys.dtype).astype(q.dtype), keys, values


def rotated(x: Array, at: Array, tables: Sequence[Array], interleaved: bool) -> Array:
    """The pairs of each head's row rotated by the angles of its position."""
    if not tables:
        return x
    cos, sin = (widened(t)[np.minimum(at, len(t) - 1)][:, None].astype(x.dtype) for t in tables)
    n, y = cos.shape[-1], x.copy()
    first, second = (np.s_[..., : 2 * n : 2], np.s_[..., 1 : 2 * n : 2]) if interleaved else (
        np.s_[..., :n], np.s_[..., n : 2 * n])  # fmt: skip
    y[first], y[second] = x[first] * cos - x[second] * sin, x[second] * cos + x[first] * sin
    return y


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    """The step as separate nodes: RoPE, the writes of both rows, and attention."""
    q, k, v, keys, values, position = inputs[:_GIVEN]
    tables, sinks = parts(inputs)
    (batch, heads, size), (_, rows, kv_heads, _) = q.shape, keys.shape
    at = apply("clip", position, min=0, max=_LAST if attrs["ring"] else rows - 1)
    if batch == 1:
        at = apply("reshape", at, shape=())
    place = at % rows if attrs["ring"] else at

    def turned(x: Tensor, heads: int) -> Tensor:
        x = apply("reshape", x, shape=(batch, 1, heads, size))
        if not tables:
            return x
        x = cast_to(x, promote(x.dtype, keys.dtype))  # rounded once, to the caches' dtype
        places = at if batch == 1 else apply("reshape", at, shape=(batch, 1))
        how = {"offset": 0, "interleaved": attrs["interleaved"], "sections": 1, "inverse": False}
        return apply("rope", x, *tables, places, axis=1, **how)

    keys = with_row(keys, turned(k, kv_heads), place)
    values = with_row(values, v, place)
    query = cast_to(apply("reshape", turned(q, heads), shape=(batch, heads, 1, size)), keys.dtype)
    operands = [query, *(apply("transpose", t, perm=(0, 2, 1, 3)) for t in (keys, values))]
    how = {name: attrs[name] for name in ("scale", "window", "softcap")}
    how["causal"] = attrs["window"] is not None
    if attrs["ring"]:
        operands += [_in_ring(at, place, rows, attrs["window"]), apply("minimum", at, rows - 1) + 1]
        how |= {"window": None, "causal": False}
    else:
        operands.append(at + 1)
    if sinks is None:
        result = apply("attention", *operands, **how)
    else:
        p, _ = tensor_probabilities(operands, how, sinks)
        result = apply("matmul", p, seen_keys(operands[2], operands), transpose_a=False, transpose_b=False,
                     activation=None)  # fmt: skip
        result = cast_to(result, keys.dtype)
    return cast_to(apply("reshape", result, shape=q.shape), q.dtype), keys, values


def _in_ring(at: Tensor, place: Tensor, rows: int, window: int) -> Tensor:
    """Which rows of a ring a token at position `at`, in row `place`, sees: bool (batch, 1, 1, rows)."""
    numbers = at.graph.constant(np.arange(rows, dtype=np.int32))
    shape = (at.size, 1, 1, 1)
    behind = (apply("reshape", place, shape=shape) - numbers + rows) % rows
    return apply("less_equal", behind, apply("reshape", apply("minimum", at, window), shape=shape))


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    return pullback(_decompose(node.inputs, node.attrs), grads, node.inputs, stop=True)


def _cost(node: Node) -> Cost:
    scores = math.prod(node.inputs[0].shape[:2]) * node.inputs[3].shape[1]
    return Cost(written(node) + 4 * scores, terms=16 * scores + 4 * node.inputs[3].size)


register(
    Op(_OP, "attention", _infer, _reference, "torch: rotation, index_put, softmax", _vjp,
       kernel="attention_step", decompose=_decompose, contracts=True, cost=_cost,
       renews=lambda attrs: ((3, 1), (4, 2)), strided=(0, 1, 2))
)  # fmt: skip


def attention_step(
    q: TensorLike, k: TensorLike, v: TensorLike, keys: TensorLike, values: TensorLike, position: TensorLike,
    cos: TensorLike | None = None, sin: TensorLike | None = None, sinks: TensorLike | None = None, *,
    scale: float | None = None, window: int | None = None, softcap: float | None = None, interleaved: bool = False,
    ring: bool = False, checked: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Attention of one new token of each sequence to those before it: y, and both caches with the token's row.

    Shape: q (B, H, D); k and v (B, Hkv, D); keys and values (B, rows, Hkv, D), the caches; position (B,), the token's
    row; gives y (B, H, D) and the caches' shapes. A query sees the rows up to its own; the other rows may hold
    anything. With `ring` the caches are ring buffers: position counts all tokens from 0, a token's row is position
    modulo rows, and a query sees the `window` keys before its own, which must be fewer than the rows. cos, sin
    (positions, n): the first 2 n elements of q's and k's heads are rotated by the angles of `position`, as by rlx.rope
    (`interleaved`). sinks (H,): for each head the score of a further key without a value, which its softmax includes
    and softcap does not change. scale, window, softcap: as in rlx.attention. A position outside the rows (in a ring one
    below 0) or outside the tables is refused: a constant by ShapeError, any other fails the run with CapacityExceeded.
    With `checked=False`, for callers who check it themselves, it is clamped. Dtype: q, k, v promoted, which is y's; the
    caches' own. Integers: position becomes i32. Gradient: to all but the position. Numerics: the rotated query, the new
    rows and y are rounded to the caches' dtype. As states, the caches are written in place: a step costs the rows that
    it reads and one that it writes.
    """
    operands = [q, k, v, keys, values, position, *(t for t in (cos, sin, sinks) if t is not None)]
    if (cos is None) != (sin is None):
        raise ShapeError(f"{_OP}: got one table of cos and sin; expected both or none (rlx.rope_table makes them)")
    q, k, v, keys, values, position, *more = tensors(_OP, *operands)
    if not position.dtype.is_int:
        raise DTypeError(f"{_OP}: position is {position.dtype}; expected whole numbers, best i32")
    if checked and keys.ndim == 4:
        check_writes(_OP, position, 1, None if ring else keys.shape[1])
        _check_tables(position, more[0].shape if cos is not None else (), _LAST if ring else keys.shape[1])
    dtype = promote(q.dtype, k.dtype, v.dtype)
    q, k, v = (cast_to(t, dtype) for t in (q, k, v))
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[-1]) if q.ndim and q.shape[-1] else 1.0
    y, keys, values = apply_multi(
        _OP, q, k, v, keys, values, narrowed(position, i32), *more, scale=float(scale), window=window,
        softcap=None if softcap is None else float(softcap), interleaved=bool(interleaved), ring=bool(ring),
    )  # fmt: skip
    return y, keys, values


def _check_tables(position: Tensor, table: tuple[int, ...], rows: int) -> None:
    """Adds a check of the position against the tables, if these have fewer positions than the cache has rows."""
    if len(table) == 2 and 0 < table[0] < rows:
        check_limits(f"{_OP} in tables of {table[0]} positions", position, between(0, table[0] - 1))


__all__ = ["attention_step"]
