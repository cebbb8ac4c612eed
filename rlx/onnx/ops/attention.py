"""Rotary embeddings, and attention where the fused op means the same as onnx's definition; else that is built."""

from __future__ import annotations

import math

import numpy as np

from rlx import ops as o
from rlx.ir import Tensor
from rlx.onnx.reader.call import Call, Result, Value, WriteOut
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
    interleaved, asked = bool(c.int("interleaved", 0)), c.int("rotary_embedding_dim", 0)
    width, size = 2 * (cos.shape[-1] if cos.ndim else 0), x.shape[-1]
    if width != (asked or size) or width > size:
        raise c.bad(
            f"the tables are {cos.shape} for heads of {size} numbers and rotary_embedding_dim {asked}; expected rows "
            "of half the numbers that are turned"
        )
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
            rotated = o.reshape(o.stack(parts, left.ndim), turned.shape)
        else:
            rotated = o.concat(parts, left.ndim - 1)
        rotated = o.concat([rotated, rest], rotated.ndim - 1) if rest.shape[-1] else rotated
    else:
        c.limited(positions, "position_ids", cos.shape[0] - 1)
        rotated = o.rope(x, cos, sin, positions, axis=sequence, interleaved=interleaved)
    return o.reshape(rotated, shape)


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


def _check_attention(c: Call, heads: tuple[int, int], shape: tuple[int, int, int, int]) -> None:
    """Checks attributes and the mask against the text; `heads` are those of queries and of keys, `shape` that of the
    scores. Raises: ModelFormatError."""
    numbers = c.float("scale", 1.0), c.float("softcap", 0.0)
    if not all(map(math.isfinite, numbers)):
        raise c.bad(f"scale is {numbers[0]}, softcap {numbers[1]}; expected finite numbers")
    if not heads[1] or heads[0] % heads[1]:
        raise c.bad(f"has {heads[0]} heads of queries and {heads[1]} of keys; expected a multiple")
    c.choice("is_causal", 0, 1)
    if "qk_matmul_output_mode" in c.attrs:
        c.choice("qk_matmul_output_mode", 0, 1, 2, 3)
    if "softmax_precision" in c.attrs:
        c.choice("softmax_precision", 1, 10, 11, 16)
    windows = c.int("left_window_size", -1), c.int("right_window_size", -1)
    if min(windows) < -1:
        raise c.bad(f"windows are {windows}; expected -1, which is none, or a number of positions")
    if not c.has(3):
        return
    mask = c.x(3).shape
    wide = (*(1,) * (4 - len(mask)), *mask)
    # A last dimension of 1 could be broadcast or padded: the text says both.
    if (
        not 1 <= len(mask) <= 4
        or any(n not in (1, m) for n, m in zip(wide[:3], shape[:3], strict=True))
        or wide[3] > shape[3]
        or (wide[3] == 1 < shape[3])
    ):
        raise c.bad(
            f"attn_mask is {mask}; expected a shape that broadcasts to {shape}, whose last dimension may be shorter"
        )


def _scaled(c: Call, size: int) -> WriteOut:
    """onnx's function, which takes the root of the scale in f32: of a negative one the queries bear the sign, and
    in f64 the queries, of heads of `size` numbers, are scaled before."""
    q, scale = c.x(0), c.float("scale")
    if c.dtype() == np.float64:
        by = size**-0.5 if scale is None else scale
        return WriteOut({0: Value(o.mul(q, by), c.dtype())}, {"scale": 1.0})
    if scale is None or scale >= 0:
        return WriteOut()
    return WriteOut({0: Value(o.neg(q), c.dtype())}, {"scale": -scale})


@op("FlexAttention", domain="ai.onnx.preview")
def flex_attention(c: Call) -> Result:
    """onnx's function for it."""
    if not math.isfinite(c.float("scale", 1.0)):
        raise c.bad(f"scale is {c.float('scale')}; expected a finite number")
    raise _scaled(c, max(c.x(0).shape[-1:], default=1))


@op("Attention", since=23)
def attention(c: Call) -> Result:
    """The fused op, where there is no cache and no other output, and causality means the same: onnx aligns the first
    query with the first key, rlx the last with the last."""
    windows = c.int("left_window_size", -1), c.int("right_window_size", -1)
    q = _heads(c, c.x(0), "q_num_heads")
    k, v = (_heads(c, c.x(i), "kv_num_heads") for i in (1, 2))
    length = k.shape[2] + (c.x(4).shape[2] if c.has(4) else 0)
    _check_attention(c, (q.shape[1], k.shape[1]), (q.shape[0], q.shape[1], q.shape[2], length))
    scale, cap, mask = c.float("scale"), abs(c.float("softcap", 0.0)), c.opt(3)
    # onnx's function takes a negative cap for none; the text's tanh is odd.
    write_out = _scaled(c, q.shape[3])
    if cap:
        write_out.attributes["softcap"] = cap
    if c.dtype() == np.float64:  # onnx's function would compute its softmax in f32
        write_out.attributes["softmax_precision"] = c.int("softmax_precision", 11)
    if (
        c.n_outputs > 1
        or any(c.has(i) for i in (4, 5, 6))
        or windows != (-1, -1)
        or c.int("softmax_precision", 1) != 1
    ):
        raise write_out
    causal = bool(c.int("is_causal", 0))
    same = q.dtype == k.dtype == v.dtype and k.shape == v.shape and q.shape[3] == k.shape[3]
    if not same or (causal and q.shape[2] != k.shape[2]) or (cap and mask is not None):
        raise write_out
    if mask is not None and (mask.ndim < 2 or mask.shape[-1] != k.shape[2] or mask.dtype.kind not in "fb"):
        raise write_out
    result = o.attention(q, k, v, mask, scale=scale, causal=causal, softcap=cap or None)
    if c.x(0).ndim == 3:
        result = o.transpose(result, (0, 2, 1, 3))
        result = o.reshape(result, (*result.shape[:2], result.shape[2] * result.shape[3]))
    return result


@op("LinearAttention")
def linear_attention(c: Call) -> Result:
    """onnx's function for it, if heads, gates and attributes are as the text says."""
    rule = c.choice("update_rule", "linear", "gated", "delta", "gated_delta")
    heads, groups, scale = c.int("q_num_heads"), c.int("kv_num_heads"), c.float("scale", 0.0)
    q, k, v = (c.x(i).shape[-1] for i in range(3))
    if min(heads, groups) < 1 or heads % groups or q % heads or k % groups or v % groups:
        raise c.bad(f"heads are {heads} and {groups} for widths of {q}, {k} and {v}; expected divisors of them")
    if q // heads != k // groups:
        raise c.bad(f"heads of queries have {q // heads} numbers, of keys {k // groups}; expected one number")
    if not math.isfinite(scale):
        raise c.bad(f"scale is {scale}; expected a finite number")
    for i, name, wanted, widths in (
        (4, "decay", ("gated", "gated_delta"), (k, groups)),
        (5, "beta", ("delta", "gated_delta"), (groups, 1)),
    ):
        if rule in wanted and not c.has(i):
            raise c.bad(f"update_rule {rule!r} needs {name}, which is left out")
        if c.has(i) and c.x(i).shape[-1] not in widths:
            raise c.bad(f"{name} is {c.x(i).shape}; expected a last dimension of {widths[0]} or {widths[1]}")
    if c.has(3) and c.x(3).shape[1:] != (groups, k // groups, v // groups):
        raise c.bad(
            f"past_state is {c.x(3).shape}; expected {(groups, k // groups, v // groups)} behind the batch"
        )
    raise WriteOut


@op("CausalConvWithState")
def causal_conv(c: Call) -> Result:
    """onnx's function for it, if the activation is one that the text names."""
    c.choice("activation", "none", "silu", "swish")
    raise WriteOut
