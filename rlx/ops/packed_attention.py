"""Attention over keys and values of 8 bits: blocks of 32 integers with a scale each, as GGUF's Q8_0 has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, f16, f32, f64, i8, i32
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Op, Tensor, TensorType, apply, register
from rlx.ir.checks import check_writes
from rlx.ir.graph import apply_multi
from rlx.ops.attention.forward import attention_attrs, attention_inputs, check_attention
from rlx.ops.attention.parts import ByToken, attention_cost, softmax_rows, swapped, with_row
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, narrowed, tensors
from rlx.ops.numeric import Array, computed

BLOCK = 32  # elements that share a scale
_ALL = ByToken.Q | ByToken.K | ByToken.V | ByToken.Y


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "packed_attention"
    check_inputs(op, types, 5, 7)
    q, k, k_scales, v, v_scales = types[:5]
    if q.dtype == f64 or (k.dtype, v.dtype, k_scales.dtype, v_scales.dtype) != (i8, i8, f16, f16):
        raise DTypeError(
            f"{op}: q {q.dtype}, k {k.dtype} with scales {k_scales.dtype}, v {v.dtype} with scales {v_scales.dtype}; "
            "expected q in f32, f16 or bf16, i8 and scales in f16 (rlx.q8_0_blocks makes these)"
        )
    of_heads = q.rank == k.rank == v.rank == 4
    if of_heads:
        check_attention(op, [TensorType(swapped(t.shape), q.dtype) for t in (q, k, v)] + list(types[5:]), attrs)
    if not of_heads or k.shape[-1] % BLOCK or not k_scales.shape == v_scales.shape == _scales(k.shape):
        raise ShapeError(
            f"{op}: q {q.shape}, k {k.shape}, v {v.shape}, scales {k_scales.shape} and {v_scales.shape}; expected "
            f"(batch, length, heads, size) and a scale for each {BLOCK} elements"
        )
    return q


def _scales(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] // BLOCK)


def _first(dtypes: Sequence[DType]) -> DType:
    return dtypes[0]


def dequantized(x: Array, scales: Array) -> Array:
    """The numbers of integers and scales, in the dtype of the scales; those of f16 scales are exact in f32."""
    return (x.reshape(*scales.shape, BLOCK) * scales[..., None]).reshape(x.shape)


def _reference(q: Array, k: Array, k_scales: Array, v: Array, v_scales: Array, *others: Array, **attrs: Any) -> Any:
    if q.size == 0 or k.size == 0:
        return np.zeros_like(q)
    q, k, v = (np.swapaxes(x, 1, 2) for x in (q, dequantized(k, k_scales), dequantized(v, v_scales)))
    scores, _, keys = softmax_rows(q, k, others, **attrs)
    result = np.matmul(scores, np.where(keys, np.repeat(v, q.shape[1] // v.shape[1], axis=1), 0))
    return np.swapaxes(result, 1, 2)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    q, k, k_scales, v, v_scales = inputs[:5]
    keys, values = q8_0_numbers(k, k_scales), q8_0_numbers(v, v_scales)
    result = apply("attention", cast_to(q, f32), keys, values, *inputs[5:], **attrs, tokens=_ALL)
    return cast_to(result, q.dtype)


register(
    Op("packed_attention", "packed_attention", _infer, computed(_first)(_reference),
       "scaled_dot_product_attention of integers times scales", NOT_DIFFERENTIABLE, kernel="packed_attention",
       decompose=_decompose, contracts=True, rounds_once=True, mask=5, cost=attention_cost)
)  # fmt: skip


def packed_attention(
    q: TensorLike,
    k: Tensor,
    k_scales: Tensor,
    v: Tensor,
    v_scales: Tensor,
    mask: TensorLike | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    kv_len: TensorLike | None = None,
) -> Tensor:
    """`rlx.attention` over keys and values of 8 bits, whose axes are those of products: tokens before heads.

    Shape: q (B, Sq, H, D); k and v (B, Sk, Hkv, D), D a multiple of 32; k_scales and v_scales (B, Sk, Hkv, D / 32);
    mask broadcasts to (B, H, Sq, Sk); gives q's shape. Dtype: q f32, f16 or bf16, k and v i8, scales f16
    (`rlx.q8_0_blocks` makes these). Gradient: none. Numerics: the numbers i8 · f16 are exact in f32; else as
    `rlx.attention`, in f32. Where there are few queries, kernels read k and v as they are.
    Raises: DTypeError, ShapeError. Blocks as in GGUF's Q8_0.
    """
    q, k, k_scales, v, v_scales = tensors("packed_attention", q, k, k_scales, v, v_scales)
    check_float("packed_attention", q.dtype, "query")
    others = attention_inputs("packed_attention", q, mask, kv_len, k.shape[1] if k.ndim == 4 else None)
    attrs = attention_attrs(q, scale, causal, window, softcap)
    return apply("packed_attention", q, k, k_scales, v, v_scales, *others, **attrs)


def q8_0_blocks(x: TensorLike) -> tuple[Tensor, Tensor]:
    """Numbers as integers from -127 to 127 and a scale for each 32 of the last axis, as in GGUF's Q8_0.

    Shape: x (…, D), D a multiple of 32; gives i8 (…, D) and f16 (…, D / 32). A scale is the largest magnitude of its
    block over 127, rounded to f16, and a number becomes the nearest multiple of it (ties to even). Numbers above 8.3e6,
    whose scales f16 does not hold, get the scale infinity. Gradient: from the scales to each block's largest magnitude;
    from the integers none. Raises: DTypeError, ShapeError.
    """
    (x,) = tensors("q8_0_blocks", x)
    check_float("q8_0_blocks", x.dtype, "x")
    if x.ndim == 0 or x.shape[-1] % BLOCK:
        raise ShapeError(f"q8_0_blocks: x is {x.shape}; expected a last axis of whole blocks of {BLOCK}")
    blocks = apply("reshape", cast_to(x, f32), shape=(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK))
    top = apply("max", apply("abs", blocks), axes=(blocks.ndim - 1,), keepdims=True) if x.size else blocks
    scales = cast_to(apply("mul", top, x.graph.constant(np.float32(1 / 127))), f16)
    wide = cast_to(scales, f32)
    ones = apply("equal", wide, x.graph.constant(np.float32(0)))
    whole = apply("round", apply("div", blocks, apply("where", ones, x.graph.constant(np.float32(1)), wide)))
    codes = cast_to(apply("clip", whole, min=-127, max=127), i8)
    shape = (*x.shape[:-1], x.shape[-1] // BLOCK)
    return apply("reshape", codes, shape=x.shape), apply("reshape", scales, shape=shape)


def q8_0_numbers(x: Tensor, scales: Tensor) -> Tensor:
    """The numbers of integers and scales of `q8_0_blocks`, in f32: exactly integer · scale.

    Shape: x (…, D), scales (…, D / 32); gives x's shape. Gradient: to the scales.
    """
    wide = apply("reshape", cast_to(x, f32), shape=(*scales.shape, BLOCK))
    by = apply("reshape", cast_to(scales, f32), shape=(*scales.shape, 1))
    return apply("reshape", apply("mul", wide, by), shape=x.shape)


def _infer_update(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    op = "q8_0_update"
    check_inputs(op, types, 4)
    x, codes, scales, position = types
    check_float(op, x.dtype, "x")
    if (codes.dtype, scales.dtype) != (i8, f16):
        raise DTypeError(f"{op}: a cache of {codes.dtype} and scales {scales.dtype}; expected i8 and f16")
    fits = x.rank == 3 and codes.rank == 4 and (codes.shape[0], *codes.shape[2:]) == x.shape and codes.shape[1] > 0
    if not fits or x.shape[2] % BLOCK or scales.shape != _scales(codes.shape):
        raise ShapeError(
            f"{op}: x {x.shape}, a cache of {codes.shape}, scales {scales.shape}; expected (batch, heads, size), "
            f"(batch, rows, heads, size) of at least a row, and a scale for each {BLOCK} elements"
        )
    if position != TensorType(x.shape[:1], i32):
        raise ShapeError(f"{op}: position is {position}; expected i32 of {x.shape[:1]}, one a sequence")
    return codes, scales


def _update(x: Array, codes: Array, scales: Array, position: Array) -> tuple[Array, Array]:
    # The definition is in f32: in another precision a scale, and then its integers, may be the neighbouring one.
    with np.errstate(all="ignore"):
        blocks = x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK)
        by = (np.max(np.abs(blocks), axis=-1, initial=0) * np.float32(1 / 127)).astype(np.float16)
        wide = by.astype(np.float32)[..., None]
        whole = np.clip(np.rint(blocks / np.where(wide == 0, np.float32(1), wide)), -127, 127)
        fresh = np.where(np.isnan(whole), 0, whole).astype(np.int8).reshape(x.shape)
    updated, factors = codes.copy(), scales.copy()
    at = np.arange(len(x)), np.maximum(position, 0) % codes.shape[1]
    updated[at], factors[at] = fresh, by
    return updated, factors


def _decompose_update(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    x, codes, scales, position = inputs
    place = apply("maximum", position, 0) % codes.shape[1]
    fresh, by = q8_0_blocks(x)
    return with_row(codes, fresh, place), with_row(scales, by, place)


register(
    Op("q8_0_update", "packed_attention", _infer_update, _update, "torch: amax, round, index_put", NOT_DIFFERENTIABLE,
       decompose=_decompose_update, renews=lambda attrs: ((1, 0), (2, 1)))
)  # fmt: skip


def q8_0_update(
    x: TensorLike, codes: Tensor, scales: Tensor, position: TensorLike, *, checked: bool = True
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A cache of blocks of 8 bits in which each sequence has one more row, that of its new token.

    Shape: x (B, H, D), D a multiple of 32; codes (B, rows, H, D) and scales (B, rows, H, D / 32), the cache; position
    (B,), the token's from 0 on, whose row is position modulo rows; gives the cache's shapes. A position below 0 is
    refused, as by `rlx.attention_step`; with `checked=False` it counts as 0. Dtype: x a
    float, codes i8, scales f16; integers: position becomes i32. Numerics: bits of `rlx.q8_0_blocks`. Gradient: none. As
    states, both are written in place. Raises: DTypeError, ShapeError.
    """
    x, codes, scales, position = tensors("q8_0_update", x, codes, scales, position)
    if not position.dtype.is_int:
        raise DTypeError(f"q8_0_update: position is {position.dtype}; expected whole numbers, best i32")
    if checked:
        check_writes("q8_0_update", position, 1, None)
    codes, scales = apply_multi("q8_0_update", x, codes, scales, narrowed(position, i32))
    return codes, scales


__all__ = ["packed_attention", "q8_0_blocks", "q8_0_numbers", "q8_0_update"]
