"""The judge of attention over keys and values of 8 bits: torch's, over numbers made one block after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ops.attention.parts import ByToken
from tests.ops.families import attention
from tests.ops.judging import Array, Judge
from tests.outside import outside

_PLAIN = attention.JUDGES["torch.nn.functional.scaled_dot_product_attention"]


def numbers(x: Array, scales: Array) -> Array:
    """Integers times their blocks' scales, in float64."""
    made = x.astype(np.float64)
    for block in range(scales.shape[-1]):
        made[..., 32 * block : 32 * block + 32] *= scales[..., block : block + 1].astype(np.float64)
    return made


def _attention(
    q: Array, k: Array, k_scales: Array, v: Array, v_scales: Array, *others: Array, **attrs: Any
) -> Array:
    given = q, numbers(k, k_scales), numbers(v, v_scales)
    return np.asarray(_PLAIN(*given, *others, tokens=ByToken.Q | ByToken.K | ByToken.V | ByToken.Y, **attrs))


def _update(x: Array, codes: Array, scales: Array, position: Array) -> list[Array]:
    torch = outside("torch")
    blocks = torch.from_numpy(np.array(x, np.float32)).reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
    by = (blocks.abs().amax(-1) * np.float32(1 / 127)).to(torch.float16)
    wide = by.float()[..., None]
    whole = (blocks / torch.where(wide == 0, torch.ones(()), wide)).round().clamp(-127, 127).nan_to_num(nan=0.0)
    at = torch.arange(len(x)), torch.from_numpy(np.maximum(position, 0) % codes.shape[1]).long()
    made = torch.from_numpy(codes).index_put(at, whole.to(torch.int8).reshape(x.shape))
    return [made.numpy(), torch.from_numpy(scales).to(torch.float16).index_put(at, by).numpy()]


JUDGES: dict[str, Judge] = {
    "scaled_dot_product_attention of integers times scales": _attention,
    "torch: amax, round, index_put": _update,
}
