"""The judge of attention over keys and values of 8 bits: torch's, over numbers made one block after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ops.attention.parts import ByToken
from tests.ops.families import attention
from tests.ops.judging import Array, Judge

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


JUDGES: dict[str, Judge] = {"scaled_dot_product_attention of integers times scales": _attention}
