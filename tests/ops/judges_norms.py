"""Judges of norms, their backward passes, cross-entropy, fake quantization (torch in float64) and rope (a loop)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ops.judges import Array, _rms_norm, _torch, _with_torch, near_zero


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
        y = _with_torch(norm)(total, *weights, eps=eps)
        return [total, y] if keep_sum else [y]

    return judge


def _layer(torch: Any, x: Any, gamma: Any, beta: Any, eps: float) -> Any:
    return torch.nn.functional.layer_norm(near_zero(x), gamma.shape, gamma, beta, eps)


def _back(forward: Callable[..., Any], d: Array, *inputs: Array) -> list[Array]:
    """torch.autograd's gradients of the float inputs."""
    torch = _torch()
    leaves = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in inputs]
    made = forward(torch, *leaves)
    wanted = [t for t in leaves if t.requires_grad]
    found = torch.autograd.grad(made, wanted, torch.from_numpy(np.array(d)), allow_unused=True)
    return [np.zeros(t.shape) if g is None else g.numpy() for t, g in zip(wanted, found, strict=True)]


def _norm_back(name: str) -> Callable[..., list[Array]]:
    def judge(d: Array, x: Array, gamma: Array, *, eps: float, beta: Any) -> list[Array]:
        def forward(torch: Any, x: Any, gamma: Any, zero: Any) -> Any:
            return (_layer if name == "layer_norm" else _rms_norm)(torch, x, gamma, zero, eps=eps)

        found = _back(forward, d, x, gamma, np.zeros_like(gamma))
        return found if beta is not None else found[:2]

    return judge


def _group_back(d: Array, x: Array, gamma: Array, *, groups: int, eps: float, beta: Any) -> list[Array]:
    def forward(torch: Any, x: Any, gamma: Any, zero: Any) -> Any:
        return torch.nn.functional.group_norm(_near_zero(x, groups), groups, gamma, zero, eps)

    if x.size == 0:
        found = [x, np.zeros_like(gamma), np.zeros_like(gamma)]
    else:
        found = _back(forward, d, x, gamma, np.zeros_like(gamma))
    return found if beta is not None else found[:2]


def _softmax_back(torch: Any, d: Any, y: Any, axis: int) -> Any:
    return torch._softmax_backward_data(d, y, axis, torch.float64)


def _losses(torch: Any, x: Any, labels: Array, ignored: int) -> Any:
    """torch refuses labels out of range: they are brought to the nearest class first, as documented."""
    n = x.shape[-1]
    inside = torch.from_numpy(np.where(labels == ignored, -100, np.clip(labels, 0, max(n - 1, 0))).astype(np.int64))
    if x.numel() == 0:
        return x.new_zeros(labels.shape)
    rows = torch.nn.functional.cross_entropy(x.reshape(-1, n), inside.reshape(-1), reduction="none")
    return rows.reshape(labels.shape)


def _cross_entropy(x: Array, labels: Array, *, ignore_index: int) -> Array:
    return _with_torch(lambda torch, x: _losses(torch, x, labels, ignore_index))(x)


def _cross_entropy_back(d: Array, x: Array, labels: Array, *, ignore_index: int) -> Array:
    if x.size == 0:
        return x
    return _back(lambda torch, x: _losses(torch, x, labels, ignore_index), d, x)[0]


def _fake_quantize(x: Array, scale: Array, *zero: Array, low: int, high: int) -> tuple[Any, Any]:
    """The input as a leaf, and what torch makes of it. torch converts to integers first, where NaN has no meaning and
    what is far outside may wrap: neither is asked of it."""
    torch = _torch()
    step = scale.astype(np.float32)
    reach = float(np.max(step, initial=1.0)) * 2.0 * (high - low + 100)
    tame = np.clip(np.where(np.isnan(x), np.float32(0), x.astype(np.float32)), -reach, reach)
    leaf = torch.tensor(tame, requires_grad=True)
    offset = zero[0] if zero else np.zeros(scale.shape, np.int32)
    if not zero and not low <= 0 <= high:
        raise AssertionError("torch wants 0 on the grid")
    s, z = torch.from_numpy(step.reshape(-1).copy()), torch.from_numpy(offset.reshape(-1).copy())
    if scale.size == 1:
        return leaf, torch.fake_quantize_per_tensor_affine(leaf, s, z, low, high)
    axis = x.ndim - scale.ndim + next(i for i, n in enumerate(scale.shape) if n != 1)
    return leaf, torch.fake_quantize_per_channel_affine(leaf, s, z, axis, low, high)


def _quantized(x: Array, scale: Array, *zero: Array, low: int, high: int) -> Array:
    if x.size == 0:
        return x
    _, made = _fake_quantize(x, scale, *zero, low=low, high=high)
    return np.where(np.isnan(x.astype(np.float32)), np.float32(math.nan), made.detach().numpy())


def _quantized_back(d: Array, x: Array, scale: Array, *zero: Array, low: int, high: int) -> Array:
    if x.size == 0:
        return x
    torch = _torch()
    leaf, made = _fake_quantize(x, scale, *zero, low=low, high=high)
    inside = torch.autograd.grad(made, leaf, torch.ones_like(made))[0].numpy() != 0
    return np.where(inside & ~np.isnan(x.astype(np.float32)), d, np.zeros((), d.dtype))


def _rope(
    x: Array, cos: Array, sin: Array, *positions: Array,
    axis: int, offset: int, interleaved: bool, sections: int, inverse: bool,
) -> Array:  # fmt: skip
    """Each pair as a complex number, times cos ± i sin of its place."""
    half = cos.shape[1]
    per = half // sections if sections else 0
    out = x.astype(np.float64)
    for at in np.ndindex(x.shape[:-1]):
        p = at[axis] + offset
        if positions:
            given = positions[0]
            place = {0: (), 1: (at[axis],), 2: (at[0], at[axis])}[given.ndim]
            p = int(given[place]) + offset + (at[axis] if given.ndim == 0 else 0)
        p = min(max(p, 0), len(cos) - 1)
        for k in range(half):
            first = 2 * k if interleaved else k // per * 2 * per + k % per
            second = first + 1 if interleaved else first + per
            turn = complex(cos[p, k], -sin[p, k] if inverse else sin[p, k])
            a, b = float(x[at][first]), float(x[at][second])
            if math.isfinite(a) and math.isfinite(b):
                z = complex(a, b) * turn
                out[at][first], out[at][second] = z.real, z.imag
            else:  # a product of complex numbers has rules of its own for infinities
                with np.errstate(invalid="ignore"):
                    u, v, c, s = (np.float64(t) for t in (a, b, turn.real, turn.imag))
                    out[at][first], out[at][second] = u * c - v * s, v * c + u * s
    return out


JUDGES: dict[str, Callable[..., Any]] = {
    "torch.nn.functional.batch_norm": _with_torch(_batch_norm),
    "torch.nn.functional.group_norm": _with_torch(_group_norm),
    "torch.nn.functional.layer_norm over the channels": _with_torch(_channels),
    "torch: the sum, then layer_norm": _residual(_layer),
    "torch: the sum, then rms_norm": _residual(_rms_norm),
    "torch.autograd of layer_norm": _norm_back("layer_norm"),
    "torch.autograd of rms_norm": _norm_back("rms_norm"),
    "torch.autograd of group_norm": _group_back,
    "torch.autograd of softmax": _with_torch(_softmax_back),
    "torch.nn.functional.cross_entropy": _cross_entropy,
    "torch.autograd of cross_entropy": _cross_entropy_back,
    "torch.fake_quantize_per_channel_affine": _quantized,
    "torch.autograd of fake_quantize_per_channel_affine": _quantized_back,
    "complex numbers turned place by place": _rope,
}
