"""The judge of attention over pages: torch's, over the pages of each sequence, copied one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ops.attention.parts import ByToken
from tests.ops.families import attention
from tests.ops.families.packed_attention import numbers
from tests.ops.judging import Array, Judge

_PLAIN = attention.JUDGES["torch.nn.functional.scaled_dot_product_attention"]


def copied(pool: Array, table: Array) -> Array:
    """The rows of each sequence's pages."""
    made = np.zeros((len(table), table.shape[1] * pool.shape[1], *pool.shape[2:]), pool.dtype)
    for b, pages in enumerate(table):
        for n, page in enumerate(pages):
            made[b, n * pool.shape[1] : (n + 1) * pool.shape[1]] = pool[min(max(int(page), 0), len(pool) - 1)]
    return made


def _attention(q: Array, k: Array, v: Array, table: Array, lengths: Array, *scales: Array, **attrs: Any) -> Array:
    tokens = ByToken.Q | ByToken.K | ByToken.V | ByToken.Y
    keys, values = (copied(t, table) for t in (k, v))
    if scales:
        keys, values = (numbers(t, copied(by, table)) for t, by in zip((keys, values), scales, strict=True))
    return np.asarray(_PLAIN(q, keys, values, lengths, tokens=tokens, **attrs))


JUDGES: dict[str, Judge] = {"scaled_dot_product_attention over each sequence's pages": _attention}
