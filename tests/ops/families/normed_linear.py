"""The judge (torch) and gradient cases of normed_linear."""

from __future__ import annotations

from typing import Any

from rlx import ops
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Judge, activated, with_torch


def _normed_linear(torch: Any, x: Any, gamma: Any, weight: Any, *, eps: float, gate: str | None) -> Any:
    y = torch.nn.functional.rms_norm(x, gamma.shape, gamma.to(x.dtype), eps) @ weight.to(x.dtype).T
    if gate is None:
        return y
    half = weight.shape[0] // 2
    return activated(torch, gate, y[..., :half]) * y[..., half:]


JUDGES: dict[str, Judge] = {"torch: rms_norm, linear, gate": with_torch(_normed_linear)}
GRADIENTS: Gradients = {
    "normed_linear": [
        (ops.normed_linear, [(3, 5), (5,), (4, 5)], None),
        (lambda *t: ops.normed_linear(*t, eps=0.1, gate="silu"), [(2, 1, 5), (5,), (6, 5)], None),
    ],
}  # fmt: skip
