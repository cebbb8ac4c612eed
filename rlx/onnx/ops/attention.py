"""Rotary embeddings, and attention where the fused op means the same as onnx's definition; else that is built."""

from __future__ import annotations

from rlx import ops as o
from rlx.ir import Tensor
from rlx.onnx.reader.call import Call, Result, WriteOut
from rlx.onnx.reader.table import op


@op("RotaryEmbedding")
def rotary_embedding(c: Call) -> Result:
    """Pairs rotated by the angles of their position; an input of three dimensions has heads side by side."""
    x, cos, sin, positions = c.x(0), c.x(1), c.x(2), c.opt(3)
    heads, shape = c.int("num_heads", 0), c.x().shape
    if x.ndim == 3:
        if heads < 1 or x.shape[2] % heads:
            raise c.bad(
                f"the input is {x.shape}, num_heads {heads}; expected a divisor of the last dimension"
            )
        x = o.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads))
        sequence = 1
    elif x.ndim == 4:
        sequence = 2
    else:
        raise c.bad(f"the input is {x.shape}; expected three or four dimensions")
    interleaved = bool(c.int("interleaved", 0))
    if positions is None:  # the tables already have a row for each batch and position
        if cos.ndim != 3 or cos.shape[:2] != (x.shape[0], x.shape[sequence]):
            raise c.bad(f"the tables are {cos.shape} without positions; expected a row for each of {x.shape}")
        half = cos.shape[2]
        rows = (x.shape[0], 1, cos.shape[1], half) if sequence == 2 else (*cos.shape[:2], 1, half)
        a, b = o.reshape(cos, rows), o.reshape(sin, rows)
        turned, rest = x[..., : 2 * half], x[..., 2 * half :]
        if interleaved:
            left, right = turned[..., ::2], turned[..., 1::2]
        else:
            left, right = turned[..., :half], turned[..., half:]
        parts = [o.sub(o.mul(left, a), o.mul(right, b)), o.add(o.mul(left, b), o.mul(right, a))]
        if interleaved:
            made = o.reshape(o.stack(parts, left.ndim), turned.shape)
        else:
            made = o.concat(parts, left.ndim - 1)
        made = o.concat([made, rest], made.ndim - 1) if rest.shape[-1] else made
    else:
        made = o.rope(x, cos, sin, positions, axis=sequence, interleaved=interleaved)
    return o.reshape(made, shape)


def _heads(c: Call, t: Tensor, name: str) -> Tensor:
    """(batch, heads, length, size) of three dimensions with the heads side by side, or of four."""
    if t.ndim == 4:
        return t
    count = c.int(name, 0)
    if t.ndim != 3 or count < 1 or t.shape[2] % count:
        raise c.bad(
            f"an input is {t.shape} and {name} is {count}; expected a divisor of the last of three dimensions"
        )
    return o.transpose(o.reshape(t, (*t.shape[:2], count, t.shape[2] // count)), (0, 2, 1, 3))


@op("Attention", since=23)
def attention(c: Call) -> Result:
    """The fused op, where there is no cache and no other output, and causality means the same: onnx aligns the first
    query with the first key, rlx the last with the last."""
    windows = c.int("left_window_size", -1), c.int("right_window_size", -1)
    if (
        c.n_outputs > 1
        or any(c.has(i) for i in (4, 5, 6))
        or windows != (-1, -1)
        or c.int("softmax_precision", 1) != 1
    ):
        raise WriteOut
    flat = c.x(0).ndim == 3
    q = _heads(c, c.x(0), "q_num_heads")
    k, v = (_heads(c, c.x(i), "kv_num_heads") for i in (1, 2))
    causal, cap, mask = bool(c.int("is_causal", 0)), c.float("softcap", 0.0), c.opt(3)
    same = q.dtype == k.dtype == v.dtype and k.shape == v.shape and q.shape[3] == k.shape[3]
    if not same or (causal and q.shape[2] != k.shape[2]) or (cap and mask is not None):
        raise WriteOut
    if mask is not None and (mask.ndim < 2 or mask.shape[-1] != k.shape[2] or mask.dtype.kind not in "fb"):
        raise WriteOut
    made = o.attention(q, k, v, mask, scale=c.float("scale"), causal=causal, softcap=cap or None)
    if flat:
        made = o.transpose(made, (0, 2, 1, 3))
        made = o.reshape(made, (*made.shape[:2], made.shape[2] * made.shape[3]))
    return made
