"""Judges (SciPy and torch in float64) and gradient cases of softmax and logsumexp."""

from __future__ import annotations

from typing import Any

import scipy

from rlx import ops
from rlx.ir import apply
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Judge, with_torch


def _softmax_back(torch: Any, d: Any, y: Any, axis: int) -> Any:
    return torch._softmax_backward_data(d, y, axis, torch.float64)


JUDGES: dict[str, Judge] = {
    "scipy.special.softmax": lambda x, *, axis: scipy.special.softmax(x, axis=axis) if x.size else x,
    "torch.nn.functional.log_softmax": with_torch(
        lambda torch, x, axis: torch.nn.functional.log_softmax(x, axis) if x.numel() else x
    ),
    "torch.logsumexp": with_torch(lambda torch, x, axis: torch.logsumexp(x, axis, keepdim=True)),
    "torch.autograd of softmax": with_torch(_softmax_back),
}
GRADIENTS: Gradients = {
    "softmax": [(ops.softmax, [(3, 4)], None), (lambda x: ops.softmax(x, 0), [(3, 4)], None)],
    "log_softmax": [(ops.log_softmax, [(3, 4)], None), (lambda x: ops.log_softmax(x, 0), [(3, 4)], None)],
    "logsumexp": [
        (lambda x: ops.logsumexp(x, 1), [(3, 4)], None),
        (ops.logsumexp, [(3, 4)], None),
        (lambda x: ops.logsumexp(x, (0, 2), keepdims=True), [(2, 3, 4)], None),
        (lambda x: ops.logsumexp(x, (0, 1)), [(2, 3, 4)], None),
    ],
    "softmax_grad": [
        (lambda d, y: apply("softmax_grad", d, y, axis=0), [(3, 4), (3, 4)], None),
        (lambda d, y: apply("softmax_grad", d, y, axis=1), [(3, 4), (3, 4)], None),
    ],
}  # fmt: skip
