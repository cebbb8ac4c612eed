"""Judges (torch in float64) and gradient cases of cross-entropy."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.ir import Tensor
from rlx.ir.graph import apply_multi
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge, back, with_torch


def _losses(torch: Any, x: Any, labels: Array, ignored: int) -> Any:
    """torch's losses. torch refuses labels out of range, so they are clamped to the nearest class first, as
    documented."""
    n = x.shape[-1]
    inside = torch.from_numpy(np.where(labels == ignored, -100, np.clip(labels, 0, max(n - 1, 0))).astype(np.int64))
    if x.numel() == 0:
        return x.new_zeros(labels.shape)
    rows = torch.nn.functional.cross_entropy(x.reshape(-1, n), inside.reshape(-1), reduction="none")
    return rows.reshape(labels.shape)


def _cross_entropy(x: Array, labels: Array, *, ignore_index: int) -> Array:
    return with_torch(lambda torch, x: _losses(torch, x, labels, ignore_index))(x)


def _cross_entropy_back(d: Array, x: Array, labels: Array, *, ignore_index: int) -> Array:
    if x.size == 0:
        return x
    return back(lambda torch, x: _losses(torch, x, labels, ignore_index), d, x)[0]


def _labels(x: Tensor, n: int) -> Tensor:
    return x.graph.constant(np.arange(int(np.prod(x.shape[:-1])), dtype=np.int32).reshape(x.shape[:-1]) % n)


JUDGES: dict[str, Judge] = {
    "torch.nn.functional.cross_entropy": _cross_entropy,
    "torch.autograd of cross_entropy": _cross_entropy_back,
}
GRADIENTS: Gradients = {
    "cross_entropy": [
        (lambda x: ops.cross_entropy(x, _labels(x, 3), reduction="none", ignore_index=1), [(3, 4)], None),
        (lambda x: ops.cross_entropy(x, _labels(ops.transpose(x, (0, 2, 1)), 4), axis=1), [(2, 4, 3)], None),
    ],
    "cross_entropy_grad": [
        (lambda d, x: ops.sin(apply_multi("cross_entropy_grad", d, x, _labels(x, 4), ignore_index=1)[0]),
         [(3,), (3, 4)], None)
    ],
}  # fmt: skip
