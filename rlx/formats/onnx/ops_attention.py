"""Rotary embeddings. Attention itself is written out by onnx's own definition unless rlx's fused op says the same."""

from __future__ import annotations

from rlx import ops as o
from rlx.formats.onnx.call import Call, Result
from rlx.formats.onnx.table import op


@op("RotaryEmbedding")
def rotary_embedding(c: Call) -> Result:
    """Pairs turned by the angles of their position; three dimensions are heads side by side."""
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
    if positions is None:  # the tables are rows for each batch and place already
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
