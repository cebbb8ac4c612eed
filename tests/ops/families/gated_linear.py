"""The judge (torch) and gradient cases of gated_linear."""

from __future__ import annotations

from typing import Any

from rlx import ops
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Judge, activated, with_torch


def _gated_linear(torch: Any, x: Any, weight: Any, *, gate: str) -> Any:
    y, half = x @ weight.to(x.dtype).T, weight.shape[0] // 2
    return activated(torch, gate, y[..., :half]) * y[..., half:]


JUDGES: dict[str, Judge] = {"torch: linear, gate": with_torch(_gated_linear)}
GRADIENTS: Gradients = {
    "gated_linear": [
        (ops.gated_linear, [(3, 5), (4, 5)], None),
        (lambda *t: ops.gated_linear(*t, gate="sigmoid"), [(2, 1, 5), (6, 5)], None),
    ],
}  # fmt: skip
