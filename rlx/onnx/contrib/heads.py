"""Code that the attention operators of com.microsoft share: heads, integer masks, the attention itself."""

from __future__ import annotations

import numpy as np

from rlx import ops as o
from rlx.ir import Tensor
from rlx.onnx.reader.call import Call

_LOWEST = float(np.finfo(np.float32).min)


def flag(c: Call, name: str, default: int = 0) -> bool:
    """An attribute that is 0 or 1. Raises: ModelFormatError for another number."""
    value = c.int(name, default)
    if value not in (0, 1):
        raise c.bad(f"{name} is {value}; expected 0 or 1")
    return bool(value)


def heads(c: Call, x: Tensor, count: int, what: str) -> Tensor:
    """(batch, heads, length, size) of (batch, length, heads · size)."""
    if x.ndim != 3 or count < 1 or x.shape[2] % count:
        raise c.bad(f"the {what} is {x.shape}; expected (batch, length, a multiple of {count} heads)")
    return o.transpose(o.reshape(x, (*x.shape[:2], count, x.shape[2] // count)), (0, 2, 1, 3))


def joined(x: Tensor) -> Tensor:
    """(batch, length, heads · size) of (batch, heads, length, size)."""
    batch, count, length, size = x.shape
    return o.reshape(o.transpose(x, (0, 2, 1, 3)), (batch, length, count * size))


def grown(c: Call, past: Tensor | None, x: Tensor, what: str) -> Tensor:
    """The past and then the new elements, both (batch, heads, length, size)."""
    if past is None:
        return x
    if past.ndim != 4 or (*past.shape[:2], past.shape[3]) != (*x.shape[:2], x.shape[3]):
        raise c.bad(f"the {what} is {past.shape}; expected (batch, heads, past, size) as {x.shape}")
    return o.concat([past, x], 2) if past.shape[2] else x


def filtered(c: Call, mask: Tensor, batch: int, n_q: int, n_k: int, causal: bool) -> tuple[Tensor, bool]:
    """0 and `mask_filter_value`, to be added to the scores, and whether the caller must still apply causality.

    The mask is (batch, keys) or (batch, queries, keys) of zeros and ones; or (batch,), the number of keys of each row;
    or (2 · batch,), these and then each row's first key; or (3 · batch + 2,), these and the row offsets of a packed
    form. A finite filter value leaves a fully masked row its own scores.
    """
    if mask.shape == (batch, n_k) or mask.shape == (batch, n_q, n_k):
        seen = o.greater(mask, 0)
    elif mask.shape in ((batch,), (2 * batch,), (3 * batch + 2,)):
        key = np.arange(n_k, dtype=np.int32)
        seen = o.greater(o.reshape(mask[:batch], (batch, 1)), key)
        if mask.shape == (2 * batch,):
            seen = o.logical_and(seen, o.less_equal(o.reshape(mask[batch:], (batch, 1)), key))
    else:
        raise c.unsupported(
            f"a mask of {mask.shape} for {batch} rows, {n_q} queries, {n_k} keys is not supported"
        )
    value = c.float("mask_filter_value", -10000.0)
    rows = n_q if mask.ndim == 3 else 1
    added = o.reshape(o.where(seen, np.float32(0), np.float32(value)), (batch, 1, rows, n_k))
    if not causal or value > _LOWEST / 2:
        return added, causal
    # Later keys get the lowest score too: in a row whose other keys are all masked, all keys have the same weight.
    past = np.arange(n_k) <= n_k - n_q + np.arange(n_q)[:, None]
    return o.where(past, added, np.float32(_LOWEST)), False


def scored(c: Call, bias: Tensor | None, mask: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """The bias of the scores, (batch or 1, heads or 1, queries, keys), plus the mask."""
    if bias is None:
        return mask
    fits = bias.ndim == 4 and all(n in (1, m) for n, m in zip(bias.shape[:2], shape[:2], strict=True))
    if not fits or bias.shape[2:] != shape[2:]:
        raise c.bad(
            f"the attention_bias is {bias.shape}; expected it to broadcast to {shape} by batch and heads"
        )
    return bias if mask is None else o.add(bias, mask)


def attend(
    c: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False,
    window: int | None = None, softcap: float | None = None, kv_len: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention with the node's scale; sizes of keys and values may differ."""
    size, wide = q.shape[3], v.shape[3]
    scale = c.float("scale", 0.0) or 1.0 / max(size, 1) ** 0.5
    most = max(size, wide)
    q, k, v = (_padded(t, most) for t in (q, k, v))
    result = o.attention(
        q, k, v, mask, scale=scale, causal=causal, window=window, softcap=softcap, kv_len=kv_len
    )
    return result if most == wide else result[..., :wide]


def _padded(x: Tensor, size: int) -> Tensor:
    """Zeros after the last axis: they add nothing to a score, and the caller cuts their results off."""
    more = size - x.shape[-1]
    return o.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)]) if more else x
