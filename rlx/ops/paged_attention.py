"""Attention over keys and values in pages, which sequences of many lengths share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, f16, f64, i8, i32
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Op, Tensor, TensorType, apply, register
from rlx.ops.attention.forward import attention_attrs, attention_inputs, check_attention
from rlx.ops.attention.parts import ByToken, attention_cost, softmax_rows, swapped
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, narrowed, tensors
from rlx.ops.numeric import Array, computed
from rlx.ops.packed_attention import BLOCK, dequantized

_ALL = ByToken.Q | ByToken.K | ByToken.V | ByToken.Y


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "paged_attention"
    check_inputs(op, types, 5, 7)
    q, k, v, table, lengths, *scales = types
    if table.dtype != i32 or lengths.dtype != i32:
        raise DTypeError(f"{op}: table {table.dtype}, kv_len {lengths.dtype}; expected i32 (rlx.paged_attention casts)")
    of_heads = q.rank == k.rank == v.rank == 4
    if not of_heads or table.rank != 2 or not table.shape[:1] == q.shape[:1] == lengths.shape:
        raise ShapeError(
            f"{op}: q {q.shape}, k {k.shape}, v {v.shape}, table {table.shape}, kv_len {lengths.shape}; expected "
            "(batch, length, heads, size), (pages, rows, heads, size) twice, (batch, pages of each), (batch,)"
        )
    if k.shape[0] == 0 and 0 not in table.shape:
        raise ShapeError(f"{op}: k {k.shape} has no pages, of which the table {table.shape} names some")
    if scales:
        _check_scales(op, types)
        k, v = (TensorType(t.shape, q.dtype) for t in (k, v))
    keys = [TensorType((q.shape[0], t.shape[2], table.shape[1] * t.shape[1], t.shape[3]), t.dtype) for t in (k, v)]
    if k.shape != v.shape:
        raise ShapeError(f"{op}: k {k.shape}, v {v.shape}; expected the same pages of both")
    check_attention(op, [TensorType(swapped(q.shape), q.dtype), *keys, lengths], attrs)
    return q


def _check_scales(op: str, types: Sequence[TensorType]) -> None:
    q, k, v, _, _, *scales = types
    if [t.dtype for t in (k, v, *scales)] != [i8, i8, f16, f16] or q.dtype == f64:
        raise DTypeError(
            f"{op}: q {q.dtype}, k {k.dtype}, v {v.dtype}, scales {', '.join(str(t.dtype) for t in scales)}; expected "
            "q in f32, f16 or bf16, k and v in i8 with scales in f16 for each (rlx.q8_0_blocks makes these)"
        )
    if k.shape[3] % BLOCK or not scales[0] == scales[1] == TensorType((*k.shape[:3], k.shape[3] // BLOCK), f16):
        raise ShapeError(f"{op}: k {k.shape}, scales {scales[0].shape} and {scales[1].shape}; expected one for each "
                         f"{BLOCK} elements")  # fmt: skip


def _first(dtypes: Sequence[DType]) -> DType:
    return dtypes[0]


def _reference(q: Array, k: Array, v: Array, table: Array, lengths: Array, *scales: Array, **attrs: Any) -> Any:
    if q.size == 0 or k.size == 0 or table.size == 0:
        return np.zeros_like(q)
    if scales:
        k, v = (dequantized(x, by) for x, by in zip((k, v), scales, strict=True))
    pages = np.clip(table, 0, len(k) - 1)
    q, k, v = (np.swapaxes(x, 1, 2) for x in (q, *(t[pages].reshape(len(q), -1, *t.shape[2:]) for t in (k, v))))
    scores, _, keys = softmax_rows(q, k, [lengths], **attrs)
    result = np.matmul(scores, np.where(keys, np.repeat(v, q.shape[1] // v.shape[1], axis=1), 0))
    return np.swapaxes(result, 1, 2)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    q, k, v, table, lengths, *scales = inputs
    if q.size == 0 or k.size == 0 or table.size == 0:
        return apply("expand", q.graph.constant(0, q.dtype), shape=q.shape)
    if scales:
        parts = [paged_rows(t, table) for pair in zip((k, v), scales, strict=True) for t in pair]
        return apply("packed_attention", q, *parts, lengths, **attrs)
    return apply("attention", q, paged_rows(k, table), paged_rows(v, table), lengths, **attrs, tokens=_ALL)


register(
    Op("paged_attention", "paged_attention", _infer, computed(_first)(_reference),
       "scaled_dot_product_attention over each sequence's pages", NOT_DIFFERENTIABLE, kernel="paged_attention",
       decompose=_decompose, contracts=True, rounds_once=True, cost=attention_cost)
)  # fmt: skip


def paged_rows(x: Tensor, table: Tensor) -> Tensor:
    """The rows of each sequence's pages, one after the other, as a copy.

    Shape: x (pages, rows, …), table i32 (batch, n); gives (batch, n · rows, …). Numbers of pages outside 0..pages - 1
    are clamped. Gradient: to x.
    """
    pages = apply("reshape", apply("clip", table, min=0, max=max(x.shape[0] - 1, 0)), shape=(table.size,))
    rows = apply("gather", x, pages, axis=0)
    return apply("reshape", rows, shape=(table.shape[0], table.shape[1] * x.shape[1], *x.shape[2:]))


def paged_attention(
    q: TensorLike,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    kv_len: TensorLike,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """`rlx.attention` over keys and values in pages of one pool, whose axes are those of products: tokens before heads.

    Shape: q (B, Sq, H, D); k and v (P, R, Hkv, D), P pages of R rows; table (B, N), the pages of each sequence in the
    order of its tokens, so that key j is row j mod R of page table[b, j // R]; kv_len (B,); k_scales and v_scales, if
    any, (P, R, Hkv, D / 32), D a multiple of 32; gives q's shape. Several sequences may have a page. Numbers of pages
    outside 0..P - 1 are clamped. Dtype: one float for q, k and v, or, with scales in f16, k and v i8
    (`rlx.q8_0_blocks` makes these); integers for table and kv_len. Gradient: none. Numerics: as `rlx.attention`, with
    scales as `rlx.packed_attention`. Raises: DTypeError, ShapeError. Follows Kwon et al., 2023 (PagedAttention).
    """
    q, k, v, table = tensors("paged_attention", q, k, v, table)
    scales = [t for t in (k_scales, v_scales) if t is not None]
    if scales:
        q, k, v, *scales = tensors("paged_attention", q, k, v, *scales)
    check_float("paged_attention", q.dtype, "query")
    if not table.dtype.is_int:
        raise DTypeError(f"paged_attention: table is {table.dtype}; expected integers, best i32")
    keys = table.shape[1] * k.shape[1] if table.ndim == 2 and k.ndim == 4 else None
    (lengths,) = attention_inputs("paged_attention", q, None, kv_len, keys)
    attrs = attention_attrs(q, scale, causal, window, softcap)
    if not scales:
        k, v = cast_to(k, q.dtype), cast_to(v, q.dtype)
    return apply("paged_attention", q, k, v, narrowed(table, i32), lengths, *scales, **attrs)


__all__ = ["paged_attention", "paged_rows"]
