"""Judges (torch in float64) and gradient cases of convolution, its gradients and im2col."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.ir import Tensor, apply
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge, activated, by_rank, padded, with_torch
from tests.outside import outside


def _conv(
    torch: Any,
    x: Any,
    w: Any,
    *bias: Any,
    strides: Any,
    dilations: Any,
    pads: Any,
    groups: int,
    activation: Any,
) -> Any:
    if x.shape[0] == 0 or 0 in w.shape:
        raise AssertionError("no case asks this judge for nothing")
    y = by_rank(torch, "conv", x)(
        padded(torch, x, pads), w, bias[0] if bias else None, strides, 0, dilations, groups
    )
    return activated(torch, activation, y)


def _conv_transpose(
    torch: Any,
    x: Any,
    w: Any,
    *bias: Any,
    strides: Any,
    dilations: Any,
    pads: Any,
    groups: int,
    output_padding: Any,
) -> Any:
    """torch's result without pads, then cut by the pads (or widened, where the output padding reaches beyond it)."""
    full = by_rank(torch, "conv_transpose", x)(x, w, None, strides, 0, 0, groups, dilations)
    for axis, ((before, after), extra) in enumerate(zip(pads, output_padding, strict=True), start=2):
        size = full.shape[axis] - before - after + extra
        short = before + size - full.shape[axis]
        if short > 0:
            shape = list(full.shape)
            shape[axis] = short
            full = torch.cat([full, full.new_zeros(shape)], axis)
        full = full.narrow(axis, before, size)
    return full + bias[0].reshape(-1, *[1] * (x.dim() - 2)) if bias else full


def _by_autograd(shape: Any, run: Any, gradient: Any, torch: Any) -> Any:
    """The gradient of `run` at zero with respect to an input of that shape."""
    with torch.enable_grad():
        leaf = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad(run(leaf), leaf, gradient)
    return found


def _grad_input(torch: Any, d: Any, w: Any, *, sizes: Any, groups: int, **attrs: Any) -> Any:
    def run(x: Any) -> Any:
        return _conv(torch, x, w, groups=groups, activation=None, **attrs)

    return _by_autograd((d.shape[0], w.shape[1] * groups, *sizes), run, d, torch)


def _grad_weight(torch: Any, x: Any, d: Any, *, kernel: Any, groups: int, **attrs: Any) -> Any:
    def run(w: Any) -> Any:
        return _conv(torch, x, w, groups=groups, activation=None, **attrs)

    return _by_autograd((d.shape[1], x.shape[1] // groups, *kernel), run, d, torch)


def _im2col(x: Array, *, kernel: Any, strides: Any, dilations: Any, pads: Any) -> Array:
    """torch.nn.functional.unfold in two dimensions; in one and three a loop over the positions of the window."""
    torch = outside("torch")
    if x.ndim == 4 and x.dtype.kind == "f":
        wide = padded(torch, torch.from_numpy(x.astype(np.float64)), pads)
        return np.asarray(torch.nn.functional.unfold(wide, kernel, dilations, 0, strides).numpy())
    p = np.pad(x, ((0, 0), (0, 0), *pads))
    counts = [
        len(range(0, n - d * (k - 1), s))
        for n, k, s, d in zip(p.shape[2:], kernel, strides, dilations, strict=True)
    ]
    rows = []
    for c in range(x.shape[1]):
        for tap in np.ndindex(*kernel):
            steps = zip(tap, dilations, counts, strides, strict=True)
            places = [range(t * d, t * d + n * s, s) for t, d, n, s in steps]
            rows.append(p[:, c][np.ix_(range(len(x)), *places)].reshape(len(x), -1))
    return np.stack(rows, axis=1) if rows else np.zeros((len(x), 0, math.prod(counts)), x.dtype)


def _integers(x: Array, w: Array, x_zero: Array, w_zero: Array, **attrs: Any) -> Array:
    """torch's convolution in float64, in which these sums are exact."""
    wide = x.astype(np.float64) - x_zero, w - w_zero.astype(np.float64).reshape(-1, *(1,) * (w.ndim - 1))
    return with_torch(_conv)(*wide, activation=None, **attrs).astype(np.int32)


def _input_of(d: Tensor, w: Tensor) -> Tensor:
    return apply(
        "conv_grad_input",
        d,
        w,
        sizes=(6, 5),
        strides=(2, 1),
        dilations=(1, 2),
        pads=((1, 0), (1, 1)),
        groups=2,
    )


def _weight_of(x: Tensor, d: Tensor) -> Tensor:
    return apply(
        "conv_grad_weight",
        x,
        d,
        kernel=(2, 2),
        strides=(2, 1),
        dilations=(1, 2),
        pads=((1, 0), (1, 1)),
        groups=2,
    )


JUDGES: dict[str, Judge] = {
    "torch.nn.functional.conv2d": with_torch(_conv),
    "torch.nn.functional.conv_transpose2d": with_torch(_conv_transpose),
    "torch.nn.grad.conv2d_input": with_torch(_grad_input),
    "torch.nn.grad.conv2d_weight": with_torch(_grad_weight),
    "torch.nn.functional.unfold": _im2col,
    "torch.nn.functional.conv2d of integers": _integers,
}
GRADIENTS: Gradients = {
    "conv": [
        (lambda x, w: ops.conv(x, w, pads=1), [(2, 2, 4), (3, 2, 3)], None),
        (lambda x, w, b: ops.conv(x, w, b, strides=(2, 1), dilations=(1, 2), pads=((1, 0), (1, 1)), groups=2),
         [(1, 4, 5, 4), (2, 2, 2, 2), (2,)], None),
        (lambda x, w, b: ops.conv(x, w, b, strides=2, activation="gelu"), [(1, 2, 4, 4), (2, 2, 3, 3), (2,)], None),
        (lambda x, w: ops.conv(x, w, pads=1, groups=3), [(1, 3, 3, 3), (3, 1, 3, 3)], None),
        (lambda x, w: ops.conv(x, w, pads=((5, 4),), strides=3, dilations=2), [(1, 1, 4), (2, 1, 2)], None),
        (lambda x, w: ops.conv(x, w, strides=2, pads=1), [(1, 1, 3, 3, 3), (2, 1, 2, 2, 2)], None),
    ],
    "conv_grad_input": [(_input_of, [(1, 4, 3, 5), (4, 2, 2, 2)], None)],
    "conv_grad_weight": [(_weight_of, [(2, 4, 6, 5), (2, 4, 3, 5)], None)],
    "conv_transpose": [
        (lambda x, w: ops.conv_transpose(x, w, strides=2, pads=1), [(1, 2, 3), (2, 3, 4)], None),
        (lambda x, w, b: ops.conv_transpose(x, w, b, strides=2, pads=((1, 0), (0, 2)), output_padding=1, groups=2),
         [(1, 4, 2, 3), (4, 1, 3, 2), (2,)], None),
        (lambda x, w: ops.conv_transpose(x, w, strides=2, dilations=3, output_padding=2), [(1, 1, 3), (1, 2, 2)], None),
        (lambda x, w: ops.conv_transpose(x, w, strides=2), [(1, 1, 2, 2, 2), (1, 2, 2, 2, 2)], None),
        # An output_padding of a stride and more, with pads that absorb it, that do not, and that leave nothing.
        (lambda x, w: ops.conv_transpose(x, w, pads=2, dilations=2, output_padding=1), [(1, 1, 4), (1, 1, 3)], None),
        (lambda x, w: ops.conv_transpose(x, w, pads=((0, 1),), dilations=4, output_padding=3, groups=2),
         [(1, 2, 3), (2, 2, 2)], None),
        (lambda x, w: ops.conv_transpose(x, w, strides=(2, 1), dilations=(1, 3), pads=((1, 4), (0, 2)),
                                         output_padding=(1, 2)), [(1, 2, 4, 3), (2, 1, 3, 2)], None),
        (lambda x, w, b: ops.conv_transpose(x, w, b, pads=((3, 0),), dilations=4, output_padding=3),
         [(1, 1, 2), (1, 2, 1), (2,)], None),
    ],
    "im2col": [
        (lambda x: ops.im2col(x, (2, 3), strides=2, pads=1), [(1, 2, 4, 5)], None),
        (lambda x: ops.im2col(x, 2, dilations=2), [(2, 2, 5)], None),
    ],
}  # fmt: skip
