"""The size of the terms that convolution, pooling, resizing and sampling add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.ir import Attrs, get_op
from rlx.ops.numeric import Array

F64 = npt.NDArray[np.float64]


def _bilinear(op: str) -> Callable[[Sequence[Array], Attrs], F64]:
    """√(Σ (a·b)²): the same op on squares."""

    def rule(inputs: Sequence[Array], attrs: Attrs) -> F64:
        plain = {**attrs, "activation": None} if "activation" in attrs else dict(attrs)
        made: Any = get_op(op).reference(*(a * a for a in inputs), **plain)
        return np.asarray(np.sqrt(made))

    return rule


def _mean_of_windows(inputs: Sequence[Array], attrs: Attrs) -> F64:
    x = inputs[0]
    return np.asarray(np.sqrt(get_op("avg_pool").reference(x * x, **attrs)))


def _sum_of_gradients(inputs: Sequence[Array], attrs: Attrs) -> F64:
    x, d = inputs
    return np.asarray(np.sqrt(get_op("max_pool_grad").reference(x, d * d, **attrs)))


RULES: dict[str, Callable[[Sequence[Array], Attrs], F64]] = {
    "conv": _bilinear("conv"),
    "conv_transpose": _bilinear("conv_transpose"),
    "conv_grad_input": _bilinear("conv_grad_input"),
    "conv_grad_weight": _bilinear("conv_grad_weight"),
    "avg_pool": _mean_of_windows,
    "max_pool_grad": _sum_of_gradients,
}
