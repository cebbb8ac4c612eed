"""Judges (torch in float64) and gradient cases of norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops
from rlx.ir import Tensor
from rlx.ir.graph import apply_multi
from tests.ops.gradient_cases import Gradients, whole
from tests.ops.judging import Array, Judge, back, near_zero, with_torch


def _rms_norm(torch: Any, x: Any, gamma: Any, *beta: Any, eps: float) -> Any:
    y = torch.nn.functional.rms_norm(x, gamma.shape, gamma, eps)
    return y + beta[0] if beta else y


def _batch_norm(torch: Any, x: Any, gamma: Any, beta: Any, mean: Any, var: Any, eps: float) -> Any:
    return torch.nn.functional.batch_norm(
        x, mean.flatten(), var.flatten(), gamma.flatten(), beta.flatten(), training=False, eps=eps
    )


def _group_norm(torch: Any, x: Any, gamma: Any, beta: Any, groups: int, eps: float) -> Any:
    if x.numel() == 0 or x.numel() == x.shape[0] * groups:  # groups of one element: torch refuses them
        return x - x + beta.reshape(-1, *[1] * (x.dim() - 2)) if x.numel() else x
    return torch.nn.functional.group_norm(_near_zero(x, groups), groups, gamma, beta, eps)


def _near_zero(x: Any, groups: int) -> Any:
    return near_zero(x.reshape(x.shape[0], groups, -1)).reshape(x.shape)


def _channels(torch: Any, x: Any, gamma: Any, beta: Any, eps: float) -> Any:
    last = near_zero(x.movedim(1, -1))
    return torch.nn.functional.layer_norm(last, gamma.shape, gamma, beta, eps).movedim(-1, 1)


def _residual(norm: Callable[..., Any]) -> Callable[..., list[Array]]:
    def judge(x: Array, residual: Array, *weights: Array, eps: float, keep_sum: bool) -> list[Array]:
        total = x + residual
        y = with_torch(norm)(total, *weights, eps=eps)
        return [total, y] if keep_sum else [y]

    return judge


def _layer(torch: Any, x: Any, gamma: Any, beta: Any, eps: float) -> Any:
    return torch.nn.functional.layer_norm(near_zero(x), gamma.shape, gamma, beta, eps)


def _norm_back(name: str) -> Callable[..., list[Array]]:
    def judge(d: Array, x: Array, gamma: Array, *, eps: float, beta: Any) -> list[Array]:
        def forward(torch: Any, x: Any, gamma: Any, zero: Any) -> Any:
            return (_layer if name == "layer_norm" else _rms_norm)(torch, x, gamma, zero, eps=eps)

        found = back(forward, d, x, gamma, np.zeros_like(gamma))
        return found if beta is not None else found[:2]

    return judge


def _group_back(d: Array, x: Array, gamma: Array, *, groups: int, eps: float, beta: Any) -> list[Array]:
    def forward(torch: Any, x: Any, gamma: Any, zero: Any) -> Any:
        return torch.nn.functional.group_norm(_near_zero(x, groups), groups, gamma, zero, eps)

    if x.size == 0:
        found = [x, np.zeros_like(gamma), np.zeros_like(gamma)]
    else:
        found = back(forward, d, x, gamma, np.zeros_like(gamma))
    return found if beta is not None else found[:2]


def _norm_grad(op: str, **attrs: Any) -> Callable[..., Tensor]:
    """The gradient op with a gradient of beta too, in the dtype of x."""
    return lambda *inputs: whole(apply_multi(op, *inputs, eps=0.1, beta=inputs[1].dtype, **attrs))


JUDGES: dict[str, Judge] = {
    "torch.nn.functional.batch_norm": with_torch(_batch_norm),
    "torch.nn.functional.group_norm": with_torch(_group_norm),
    "torch.nn.functional.layer_norm over the channels": with_torch(_channels),
    "torch: the sum, then layer_norm": _residual(_layer),
    "torch: the sum, then rms_norm": _residual(_rms_norm),
    "torch.autograd of layer_norm": _norm_back("layer_norm"),
    "torch.autograd of rms_norm": _norm_back("rms_norm"),
    "torch.autograd of group_norm": _group_back,
    "torch.nn.functional.layer_norm": with_torch(_layer),
    "torch.nn.functional.rms_norm": with_torch(_rms_norm),
}
GRADIENTS: Gradients = {
    "layer_norm": [(ops.layer_norm, [(2, 3, 5), (5,), (5,)], None)],
    "rms_norm": [(ops.rms_norm, [(3, 5), (5,)], None), (ops.rms_norm, [(3, 5), (5,), (5,)], None)],
    "group_norm": [(lambda x, g, b: ops.group_norm(x, 3, g, b), [(2, 6, 5), (6,), (6,)], None),
                   (lambda x, g, b: ops.group_norm(x, 1, g, b), [(2, 2, 3, 2), (2,), (2,)], None)],
    "layer_norm_channels": [(ops.layer_norm_channels, [(2, 6, 5), (6,), (6,)], None),
                            (ops.layer_norm_channels, [(3, 5), (5,), (5,)], None)],
    "batch_norm": [
        (lambda x, g, b, m, v: ops.batch_norm(x, g, b, m, ops.exp(v)), [(2, 6, 5), (6,), (6,), (6,), (6,)], None),
    ],
    "add_layer_norm": [(lambda *t: whole(ops.add_layer_norm(*t)), [(3, 4), (3, 4), (4,), (4,)], None),
                       (lambda *t: ops.add_layer_norm(*t)[1], [(3, 4), (3, 4), (4,), (4,)], None)],
    "add_rms_norm": [(lambda *t: whole(ops.add_rms_norm(*t)), [(3, 4), (3, 4), (4,)], None),
                     (lambda *t: ops.add_rms_norm(*t)[0], [(3, 4), (3, 4), (4,), (4,)], None)],
    "layer_norm_grad": [(_norm_grad("layer_norm_grad"), [(3, 4), (3, 4), (4,)], None)],
    "rms_norm_grad": [
        (lambda *t: whole(apply_multi("rms_norm_grad", *t, eps=0.1, beta=None)), [(3, 4), (3, 4), (4,)], None),
    ],
    "group_norm_grad": [(_norm_grad("group_norm_grad", groups=2), [(2, 4, 3), (2, 4, 3), (4,)], None)],
}  # fmt: skip
