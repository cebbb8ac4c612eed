"""causal_conv: the short depthwise convolution along a sequence that stands before the recurrences of such models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.autodiff.pullback import vjp_by_parts
from rlx.dtypes import promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Op, Tensor, TensorType, apply, register
from rlx.ir.graph import apply_multi
from rlx.ops.base import TensorLike, cast_to
from rlx.ops.elementwise.unary import NUMPY_ACTIVATIONS
from rlx.ops.numeric import Array, widened
from rlx.ops.scans.operands import check_types, given_tensors, optional, reshaped, wide, zeros

NAMES = ("bias", "state")
ACTIVATIONS = (None, "silu")
WIDTHS = range(2, 9)
_REQUIRED = 2


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, TensorType]:
    op = "causal_conv"
    if len(types) < _REQUIRED:
        raise ShapeError(f"{op}: takes x, w and optional inputs, got {len(types)}")
    x, w = types[:_REQUIRED]
    more = optional(op, types, _REQUIRED, NAMES, attrs["operands"])
    if attrs["activation"] not in ACTIVATIONS:
        raise DTypeError(f'{op}: activation is {attrs["activation"]!r}; expected None or "silu"')
    if x.rank != 3:
        raise ShapeError(f"{op}: x is {x}; expected (batch, length, channels)")
    if w.rank != 2 or w.shape[1] not in WIDTHS:
        raise ShapeError(f"{op}: w is {w}; expected (channels, width) with a width of 2 to 8")
    if w.shape[0] != x.shape[2]:
        raise ShapeError(
            f"{op}: w is {w} beside x {x}; expected as many channels, in w (channels, width) and in x (batch, length, "
            "channels)"
        )
    state = TensorType((x.shape[0], w.shape[1] - 1, x.shape[2]), x.dtype)
    expected: dict[str, tuple[TensorType, tuple[int, ...], bool]] = {
        "x": (x, x.shape, False),
        "w": (w, (x.shape[2], w.shape[1]), False),
    }
    of_more = {"bias": x.shape[2:], "state": state.shape}
    check_types(op, x.dtype, expected | {name: (t, of_more[name], False) for name, t in more.items()})
    return x, state


def _reference(
    x: Array, w: Array, *more: Array, operands: tuple[str, ...], activation: str | None
) -> tuple[Any, Any]:
    present = dict(zip(operands, more, strict=True))
    batch, length, channels = x.shape
    width = w.shape[1]
    before = present["state"] if "state" in present else np.zeros((batch, width - 1, channels), x.dtype)
    whole = np.concatenate([before, x], axis=1)
    with np.errstate(all="ignore"):
        rows, weight = widened(whole), widened(w)
        y = np.zeros(x.shape, rows.dtype) + (widened(present["bias"]) if "bias" in present else 0)
        for j in range(width):
            y = y + weight[:, j] * rows[:, j : j + length]
        y = NUMPY_ACTIVATIONS[activation](y) if activation else y
        return y.astype(x.dtype, copy=False), whole[:, length:].astype(x.dtype, copy=False)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    """The op as a sum of as many shifted products as the filter is wide."""
    x, w = inputs[:_REQUIRED]
    present = optional("causal_conv", inputs, _REQUIRED, NAMES, attrs["operands"])
    batch, length, channels = x.shape
    width = w.shape[1]
    before = present.get("state")
    if before is None:
        before = zeros(x, (batch, width - 1, channels), x.dtype)
    whole = apply("concat", before, x, axis=1)
    columns = apply("transpose", wide(w), perm=(1, 0))

    def part(start: int, count: int) -> Tensor:
        stops = (batch, start + count, channels)
        return apply("slice", whole, starts=(0, start, 0), stops=stops, steps=(1, 1, 1))

    y = wide(present["bias"]) if "bias" in present else None
    for j in range(width):
        row = apply("slice", columns, starts=(j, 0), stops=(j + 1, channels), steps=(1, 1))
        term = reshaped(row, 1, 1, channels) * wide(part(j, length))
        y = term if y is None else y + term
    assert y is not None
    y = apply("silu", y) if attrs["activation"] else y
    return cast_to(y, x.dtype), part(length, width - 1)


register(
    Op("causal_conv", "scans", _infer, _reference, "torch.nn.functional.conv1d", vjp_by_parts(_decompose),
       kernel="causal_conv", decompose=_decompose)
)  # fmt: skip


def causal_conv(
    x: TensorLike,
    w: TensorLike,
    bias: TensorLike | None = None,
    state: TensorLike | None = None,
    *,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """y[t] = Σ_j w[:, j] x[t - width + 1 + j] + bias: each channel convolved with its own short filter, causally.

    Shape: x (batch, length, channels), w (channels, width) with a width of 2 to 8, bias (channels,), state (batch,
    width - 1, channels): the inputs before x, oldest first; zeros unless given. Gives y, as x, and the last width - 1
    inputs, with which the next part of a sequence goes on; a decoding step is a length of 1. activation: None or
    "silu". Dtype: all are promoted to one, which is y's and the state's. Gradient: to every input. Numerics: sums in
    f32; the state has the numbers of x themselves (a NaN of 16 bits may get other bits). Raises: ShapeError,
    DTypeError. Follows the convolution of Gu & Dao, "Mamba", 2023, whose arrays are (batch, channels, length).
    """
    op = "causal_conv"
    more: dict[str, Tensor]
    (x, w), more = given_tensors(op, (x, w), {"bias": bias, "state": state})
    dtype = promote(x.dtype, w.dtype, *(t.dtype for t in more.values()))
    operands = tuple(n for n in NAMES if n in more)
    inputs = [cast_to(t, dtype) for t in (x, w, *(more[n] for n in operands))]
    y, last = apply_multi(op, *inputs, operands=operands, activation=activation)
    return y, last


__all__ = ["causal_conv"]
