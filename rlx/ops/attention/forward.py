"""Scaled dot-product attention with grouped heads, masks, windows, soft caps and partly filled key-value caches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.autodiff.pullback import pullback
from rlx.dtypes import DType, bool_, i32, promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.graph import apply_multi
from rlx.ir.types import broadcast_shapes
from rlx.ops import batching
from rlx.ops.attention.parts import (
    NO_TOKENS,
    ByToken,
    attention_cost,
    grouped,
    heads_first,
    rest,
    seen_keys,
    softmax_rows,
    swapped,
    tensor_probabilities,
    wide,
)
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, narrowed, tensors, unbroadcast
from rlx.ops.numeric import F32_MAX, Array, computed


def check_attention(op: str, types: Sequence[TensorType], attrs: Attrs) -> None:
    """Checks q, k, v[, mask][, kv_len] and the attributes, for the op and its gradient.

    Raises: DTypeError, ShapeError.
    """
    q, k, v = types[:3]
    if not q.rank == k.rank == v.rank == 4:
        raise ShapeError(
            f"{op}: q {q.shape}, k {k.shape}, v {v.shape}; expected (batch, heads, length, size)"
        )
    check_float(op, q.dtype, "query")
    if not q.dtype == k.dtype == v.dtype:
        raise DTypeError(
            f"{op}: q {q.dtype}, k {k.dtype}, v {v.dtype}; expected one dtype (rlx.attention casts)"
        )
    if k.shape != v.shape or (k.shape[0], k.shape[3]) != (q.shape[0], q.shape[3]):
        raise ShapeError(
            f"{op}: q {q.shape}, k {k.shape}, v {v.shape}: k and v must agree, batch and size with q"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ShapeError(f"{op}: {q.shape[1]} query heads are not a multiple of {k.shape[1]} key heads")
    _check_attrs(op, attrs)
    mask, lengths = rest(op, types[3:])
    if mask is not None:
        scores = (*q.shape[:3], k.shape[2])
        if broadcast_shapes(mask.shape, scores, op=f"{op} (mask)") != scores:
            raise ShapeError(f"{op}: mask {mask.shape} does not broadcast to the scores {scores}")
    if lengths is not None and lengths.shape not in ((), (q.shape[0],)):
        raise ShapeError(
            f"{op}: kv_len is {lengths.shape}; expected a scalar or ({q.shape[0]},), one a batch"
        )


def _check_attrs(op: str, attrs: Attrs) -> None:
    if not isinstance(attrs["scale"], float) or not isinstance(attrs["causal"], bool):
        raise DTypeError(
            f"{op}: scale {attrs['scale']!r}, causal {attrs['causal']!r}; expected a float, a bool"
        )
    if not abs(attrs["scale"]) <= F32_MAX:
        raise ShapeError(f"{op}: scale is {attrs['scale']}; expected a number that f32 holds")
    window, softcap = attrs.get("window"), attrs.get("softcap")
    if window is not None and (not isinstance(window, int) or isinstance(window, bool)):
        raise DTypeError(f"{op}: window is {window!r}; expected None or a whole number of keys")
    if window is not None and window < 0:
        raise ShapeError(f"{op}: window is {window}; expected 0 or more: 0 leaves a query its own key")
    if softcap is not None and not isinstance(softcap, float):
        raise DTypeError(f"{op}: softcap is {softcap!r}; expected None or a float")
    if not isinstance(attrs.get("tokens", NO_TOKENS), ByToken):
        raise DTypeError(f"{op}: tokens is {attrs['tokens']!r}; expected a ByToken, such as ByToken.Q | ByToken.Y")
    if softcap is not None and not 0 < softcap <= F32_MAX:
        raise ShapeError(f"{op}: softcap is {softcap}; expected a finite number above 0, or None for none")


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("attention", types, 3, 5)
    _check_attrs("attention", attrs)
    tokens: ByToken = attrs.get("tokens", NO_TOKENS)
    by_head = [_turned(t) if one in tokens else t for one, t in zip(ByToken, types[:3], strict=False)]
    check_attention("attention", [*by_head, *types[3:]], attrs)
    return _turned(by_head[0]) if ByToken.Y in tokens else by_head[0]


def _turned(t: TensorType) -> TensorType:
    return TensorType(swapped(t.shape), t.dtype)


def _first(dtypes: Sequence[DType]) -> DType:
    return dtypes[0]


def _reference(*inputs: Array, tokens: ByToken = NO_TOKENS, **attrs: Any) -> Any:
    q, k, v, *others = heads_first(inputs, tokens)
    if q.size == 0 or k.size == 0:
        result = np.zeros_like(q)
    else:
        scores, _, keys = softmax_rows(q, k, others, **attrs)
        result = np.matmul(scores, np.where(keys, np.repeat(v, q.shape[1] // v.shape[1], axis=1), 0))
    return np.swapaxes(result, 1, 2) if ByToken.Y in tokens else result


def _matmul(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    return apply("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b, activation=None)


def _by_heads(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The same attention with explicit transposes instead of the attribute `tokens`."""
    tokens: ByToken = attrs["tokens"]
    by_head = [_transposed(t) if one in tokens else t for one, t in zip(ByToken, inputs[:3], strict=False)]
    result = apply("attention", *by_head, *inputs[3:], **{**attrs, "tokens": NO_TOKENS})
    return _transposed(result) if ByToken.Y in tokens else result


def _transposed(x: Tensor) -> Tensor:
    return apply("transpose", x, perm=(0, 2, 1, 3))


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    if attrs.get("tokens"):
        return _by_heads(inputs, attrs)
    q, k, v = inputs[:3]
    if q.size == 0 or k.size == 0:
        return apply("expand", q.graph.constant(0, q.dtype), shape=q.shape)
    p, _ = tensor_probabilities(inputs, attrs)
    out = _matmul(p, seen_keys(v, inputs))
    return cast_to(apply("reshape", out, shape=q.shape), q.dtype)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    if node.attrs.get("tokens"):
        return pullback([_by_heads(node.inputs, node.attrs)], grads, node.inputs, stop=True)
    d = grads[0]
    q, k, _ = node.inputs[:3]
    nothing: tuple[Tensor | None, ...] = (None,) * len(node.inputs)
    if d is None or q.size == 0 or k.size == 0:
        return nothing
    attrs = {name: value for name, value in node.attrs.items() if name != "tokens"}
    input_grads: list[Tensor | None] = list(apply_multi("attention_grad", d, *node.inputs, **attrs))
    mask, _ = rest("attention", node.inputs[3:])
    if mask is not None:
        input_grads.append(_mask_gradient(d, mask, node) if mask.dtype.is_float else None)
    return (*input_grads, *nothing[len(input_grads) :])


def _mask_gradient(d: Tensor, mask: Tensor, node: Node) -> Tensor | None:
    """The gradient of an additive mask, which is that of the scores. Only this stores all scores at once."""
    q, k, v = node.inputs[:3]
    p, _ = tensor_probabilities(node.inputs, node.attrs)
    dp = _matmul(grouped(wide(d), k.shape[1]), seen_keys(v, node.inputs), transpose_b=True)
    ds = p * (dp - apply("sum", dp * p, axes=(4,), keepdims=True))
    return unbroadcast(apply("reshape", ds, shape=(*q.shape[:3], k.shape[2])), mask)


register(
    Op("attention", "attention", _infer, computed(_first)(_reference),
       "torch.nn.functional.scaled_dot_product_attention", _vjp, kernel="attention", decompose=_decompose,
       contracts=True, rounds_once=True, heads=(0, 1, 2), mask=3, cost=attention_cost,
       batch=batching.folded(beside=3))
)  # fmt: skip


def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    mask: TensorLike | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    kv_len: TensorLike | None = None,
) -> Tensor:
    """softmax(q·kᵀ·scale + mask)·v, head by head; scale is 1/√D unless given.

    Shape: q (B, H, Sq, D); k and v (B, Hkv, Sk, D), each of the Hkv heads serving H / Hkv query heads; mask broadcasts
    to (B, H, Sq, Sk); kv_len () or (B,); gives q's shape.
    mask: bool (True keeps a key) or float (added to the scores; integers count as `!= 0`).
    kv_len: how many keys of k and v are valid, a whole number or an integer tensor, clamped to 0..Sk on the device (a
    constant out of range is a ShapeError); keys from there on are ignored, whatever they hold. L below is kv_len or Sk.
    Query i has the position of key i + L - Sq, so the last query has that of the last valid key.
    causal: a query sees no key after its own position. window: it sees that many keys before its position and, unless
    causal, after it (a "sliding window" that counts the query's own key is one more). softcap c: scores become
    c·tanh(score / c) before the mask is applied. Dtype: q, k, v promoted. Gradient: to q, k, v and a float mask.
    Numerics: in f32 for halves; devices with matrix instructions round the softmax weights, each at most 1, to the
    dtype before they multiply v, which costs at most half an ULP of the largest value, and in the gradient also the
    gradients of the scores, at most half an ULP of each term of its sums. A query that sees no key gives zeros.
    Follows Vaswani et al., 2017; grouped heads Ainslie et al., 2023; windows Beltagy et al., 2020; soft caps Gemma 2.
    """
    q, k, v = tensors("attention", q, k, v)
    dtype = promote(q.dtype, k.dtype, v.dtype)
    check_float("attention", dtype, "query")
    inputs = [cast_to(t, dtype) for t in (q, k, v)]
    inputs += attention_inputs("attention", q, mask, kv_len, inputs[1].shape[2] if inputs[1].ndim == 4 else None)
    return apply("attention", *inputs, **attention_attrs(q, scale, causal, window, softcap))


def attention_attrs(
    q: Tensor, scale: float | None, causal: bool, window: int | None, softcap: float | None
) -> dict[str, Any]:
    """The attributes of an attention from a public function's arguments."""
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[-1]) if q.ndim and q.shape[-1] else 1.0
    cap = None if softcap is None else float(softcap)
    return {"scale": float(scale), "causal": bool(causal), "window": window, "softcap": cap}


def attention_inputs(
    op: str, q: Tensor, mask: TensorLike | None, kv_len: TensorLike | None, keys: int | None
) -> list[Tensor]:
    """The inputs of an attention after q, k and v: mask and kv_len, for `keys` keys. Raises: DTypeError, ShapeError."""
    masks = []
    if mask is not None:
        m = mask if isinstance(mask, Tensor) else q.graph.constant(mask)
        masks.append(m if m.dtype.is_float else cast_to(m, bool_))
    return masks if kv_len is None else [*masks, _lengths(op, kv_len, q, keys)]


def _lengths(op: str, kv_len: TensorLike, q: Tensor, keys: int | None) -> Tensor:
    """kv_len as an i32 tensor. Raises: DTypeError for no integer, ShapeError for a constant outside 0..Sk."""
    if isinstance(kv_len, Tensor):
        if not kv_len.dtype.is_int:
            raise DTypeError(f"{op}: kv_len is {kv_len.dtype}; expected whole numbers, best i32")
        return narrowed(kv_len, i32)
    value = np.asarray(kv_len)
    if value.dtype.kind not in "iu":
        raise DTypeError(f"{op}: kv_len is {kv_len!r}; expected a whole number, or a tensor of them")
    if keys is not None and value.size and not 0 <= value.min() <= value.max() <= keys:
        raise ShapeError(f"{op}: kv_len {kv_len!r} is outside 0..{keys}, the keys there are")
    return q.graph.constant(np.clip(value, 0, np.iinfo(np.int32).max).astype(np.int32))


__all__ = ["attention"]
