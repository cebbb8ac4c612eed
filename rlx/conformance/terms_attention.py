"""Term sizes of attention's gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.ir import Attrs
from rlx.ops.attention.parts import softmax_rows
from rlx.ops.numeric import Array


def _gradient(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """dS = P (dP - Σ P dP) takes two numbers of one size from each other, and the gradients of q and k add up what is
    left: where little is, errors are those of P dP. One figure for all three results: their terms' mean square."""
    d, q, k, v, *others = inputs
    if others and others[-1].shape in (
        (),
        q.shape[:1],
    ):  # kv_len, which came as a float; no mask here is so small
        others[-1] = others[-1].astype(np.int32)
    if q.size == 0 or k.size == 0:
        return np.zeros(())
    p, _, keys = softmax_rows(q, k, others, **attrs)
    group = q.shape[1] // k.shape[1]
    k, v = (np.where(keys, np.repeat(t, group, axis=1), 0) for t in (k, v))
    dp = np.matmul(np.abs(d), np.swapaxes(np.abs(v), -1, -2))
    terms = (p * (dp + np.sum(dp * p, axis=-1, keepdims=True)) * attrs["scale"]) ** 2
    sizes = (np.matmul(terms, k**2), np.matmul(np.swapaxes(terms, -1, -2), q**2))
    return np.sqrt(max(float(np.mean(size)) for size in sizes))


RULES: dict[str, Callable[[Sequence[Array], Attrs], Any]] = {"attention_grad": _gradient}
