"""Kimi's delta attention in chunks beside its recurrence, token by token in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.models.language.kda import CHUNK, delta_rule
from tests.models.language.families import LIMIT, error


def recurrence(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> tuple[Any, Any]:
    made = []
    for t in range(q.shape[1]):
        state = np.exp(g[:, t, :, :, None]) * state
        new = beta[:, t, :, None] * (v[:, t] - np.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * new[:, :, None]
        made.append(np.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return np.stack(made, 1), state


@pytest.mark.parametrize("length", [1, 2, CHUNK, 2 * CHUNK + 5])
def test_chunks_beside_single_tokens(length: int) -> None:
    rng = np.random.default_rng(length)
    q, k, g = (rng.standard_normal((2, length, 3, 6)) for _ in range(3))
    k /= np.linalg.norm(k, axis=3, keepdims=True)
    v, state = rng.standard_normal((2, length, 3, 5)), rng.standard_normal((2, 3, 6, 5))
    beta = rng.uniform(size=(2, length, 3))
    k[:, :, 1], beta[:, :, 1] = k[:, :1, 1], 1.0  # one key for all tokens, whose value is replaced each time
    decay = np.where(np.abs(g) > 1.5, -300.0, -np.abs(g))  # also forgotten at once
    given = (q, k, v, decay, beta, state)
    want = recurrence(*given)
    for dtype, limit in ((np.float64, 1e-26), (np.float32, LIMIT)):
        got = rlx.jit(delta_rule, device="cpu")(*(t.astype(dtype) for t in given))
        for made, wanted in zip(got, want, strict=True):
            assert error(np.asarray(made, np.float64), wanted) < limit
