"""selective_scan: the recurrence of Mamba, a linear state whose decay and input depend on the sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.autodiff.pullback import vjp_by_parts
from rlx.dtypes import promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Op, Tensor, TensorType, apply, register
from rlx.ir.graph import apply_multi
from rlx.ops.base import TensorLike, cast_to
from rlx.ops.control.functions import scan
from rlx.ops.elementwise.unary import NUMPY_ACTIVATIONS
from rlx.ops.numeric import Array, working
from rlx.ops.scans.operands import (
    given_tensors,
    optional,
    reshaped,
    rounded,
    transposed,
    want_types,
    wide,
    zeros,
)

NAMES = ("D", "z", "state", "bias")
_REQUIRED = 5


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a selective scan: `heads` of `width` channels each, of which A may have one decay (`scalar`) or one
    for each state; `groups` of heads share B and C."""

    batch: int
    length: int
    heads: int
    width: int
    groups: int
    states: int
    scalar: bool

    @property
    def channels(self) -> int:
        return self.heads * self.width


def sizes_of(x: Any, a: Any, b: Any) -> Sizes:
    """The sizes of a node, from the shapes of x, A and B."""
    width = x.shape[3] if len(x.shape) == 4 else 1
    (batch, length, heads), (groups, states) = x.shape[:3], b.shape[2:]
    return Sizes(batch, length, heads, width, groups, states, len(a.shape) == 1)


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, TensorType]:
    op = "selective_scan"
    if len(types) < _REQUIRED:
        raise ShapeError(f"{op}: takes x, delta, A, B, C and optional inputs, got {len(types)}")
    x, delta, a, b, c = types[:_REQUIRED]
    more = optional(op, types, _REQUIRED, NAMES, attrs["operands"])
    if not isinstance(attrs["softplus"], bool):
        raise DTypeError(f"{op}: softplus is {attrs['softplus']!r}; expected a bool")
    if x.rank not in (3, 4):
        raise ShapeError(
            f"{op}: x is {x}; expected (batch, length, channels), or (batch, length, heads, head size) with an A of "
            "one number a head"
        )
    if a.rank != 5 - x.rank:
        raise ShapeError(
            f"{op}: A is {a} for x {x}; expected (channels, states) for x of three axes, (heads,) for x of four"
        )
    if b.rank != 4:
        raise ShapeError(f"{op}: B is {b}; expected (batch, length, groups, states)")
    s = sizes_of(x, a, b)
    if s.states < 1 or s.groups < 1 or s.heads % s.groups:
        raise ShapeError(
            f"{op}: B is {b} for x {x}; expected at least one state, and a number of groups that divides {s.heads}"
        )
    matrix = (*x.shape[:2], s.groups, s.states)
    state = TensorType(_state_shape(s), working(x.dtype))
    expected: dict[str, tuple[TensorType, tuple[int, ...], bool]] = {
        "x": (x, x.shape, False),
        "delta": (delta, x.shape[:3], False),
        "A": (a, (s.heads,) if s.scalar else (s.heads, s.states), True),
        "B": (b, matrix, False),
        "C": (c, matrix, False),
    }
    of_more = {
        "D": (x.shape[2:], True),
        "z": (x.shape, False),
        "state": (state.shape, True),
        "bias": ((s.heads,), True),
    }
    want_types(op, x.dtype, expected | {name: (t, *of_more[name]) for name, t in more.items()})
    return x, state


def _state_shape(s: Sizes) -> tuple[int, ...]:
    return (s.batch, s.heads, *((s.width,) if s.scalar else ()), s.states)


def log1p_exp(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _reference(
    x: Array,
    delta: Array,
    a: Array,
    b: Array,
    c: Array,
    *more: Array,
    operands: tuple[str, ...],
    softplus: bool,
) -> tuple[Any, Any]:
    """Equation 2 of the paper, one step after the other, with the zero-order hold of A and Euler's rule for B."""
    given = dict(zip(operands, more, strict=True))
    s = sizes_of(x, a, b)
    u = x.reshape(s.batch, s.length, s.heads, s.width)
    dt = delta + given["bias"] if "bias" in given else delta
    dt = log1p_exp(dt) if softplus else dt
    rows = a.reshape(s.heads, 1, 1 if s.scalar else s.states)
    b, c = (np.repeat(m, s.heads // s.groups, axis=2)[:, :, :, None] for m in (b, c))
    shape = (s.batch, s.heads, s.width, s.states)
    h: Any = given["state"].reshape(shape) if "state" in given else np.zeros(shape, x.dtype)
    y = np.zeros_like(u)
    for t in range(s.length):
        step = dt[:, t, :, None, None]
        h = np.exp(step * rows) * h + (dt[:, t, :, None] * u[:, t])[..., None] * b[:, t]
        y[:, t] = np.sum(c[:, t] * h, axis=-1)
    y = y.reshape(x.shape)
    if "D" in given:
        y = y + given["D"] * x
    if "z" in given:
        y = y * NUMPY_ACTIVATIONS["silu"](given["z"])
    return y, h.reshape(_state_shape(s))


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    """The op as a scan over the sequence, whose carry is the state."""
    x, a, b = inputs[0], wide(inputs[2]), inputs[3]
    given = optional("selective_scan", inputs, _REQUIRED, NAMES, attrs["operands"])
    s = sizes_of(x, a, b)
    u = reshaped(wide(x), s.batch, s.length, s.heads, s.width)
    dt = wide(inputs[1])
    dt = dt + wide(given["bias"]) if "bias" in given else dt
    dt = apply("softplus", dt) if attrs["softplus"] else dt
    rows = reshaped(a, 1, s.heads, 1, 1 if s.scalar else s.states)
    b, c = (
        reshaped(transposed(wide(m), 1, 0, 2, 3), s.length, s.batch, s.groups, 1, 1, s.states)
        for m in inputs[3:5]
    )
    per = (s.batch, s.groups, s.heads // s.groups, s.width)
    shape = (s.batch, s.heads, s.width, s.states)
    start = reshaped(wide(given["state"]), *shape) if "state" in given else zeros(x, shape, u.dtype)

    def step(h: Tensor, at: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        dt, u, b, c = at
        dt = reshaped(dt, s.batch, s.heads, 1, 1)
        added = reshaped(dt * reshaped(u, s.batch, s.heads, s.width, 1), *per, 1) * b
        h = apply("exp", dt * rows) * h + reshaped(added, *shape)
        y = apply("sum", reshaped(h, *per, s.states) * c, axes=(4,), keepdims=False)
        return h, reshaped(y, s.batch, s.heads, s.width)

    h, y = scan(step, start, (transposed(dt, 1, 0, 2), transposed(u, 1, 0, 2, 3), b, c))
    y = reshaped(transposed(y, 1, 0, 2, 3), *x.shape)
    if "D" in given:
        y = y + wide(given["D"]) * wide(x)
    if "z" in given:
        y = y * apply("silu", wide(given["z"]))
    return cast_to(y, x.dtype), reshaped(h, *_state_shape(s))


register(
    Op("selective_scan", "scans", _infer, rounded(_reference), "torch: the recurrence of Mamba in a loop",
       vjp_by_parts(_decompose), kernel="selective_scan", decompose=_decompose)
)  # fmt: skip


def selective_scan(
    x: TensorLike,
    delta: TensorLike,
    A: TensorLike,
    B: TensorLike,
    C: TensorLike,
    D: TensorLike | None = None,
    z: TensorLike | None = None,
    state: TensorLike | None = None,
    *,
    delta_bias: TensorLike | None = None,
    delta_softplus: bool = False,
) -> tuple[Tensor, Tensor]:
    """h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t x_t; y_t = C_t · h_t + D x_t, times silu(z_t): the recurrence of Mamba.

    Shape: x (batch, length, channels), delta likewise, A (channels, states), D (channels,), state (batch, channels,
    states); or, with one decay for each head (Mamba-2), x (batch, length, heads, size), delta (batch, length, heads), A
    (heads,), D (heads,) or (heads, size), state (batch, heads, size, states). B and C (batch, length, states), or
    (batch, length, groups, states) where each group serves as many neighbouring channels (heads); z as x; delta_bias
    (channels,) or (heads,). Gives y, as x, and the last state, with which the next part of a sequence goes on: a
    sequence may be cut anywhere, and a decoding step is a length of 1. Without a state the first one is zero.
    Dtype: x, delta, B, C and z are promoted to one, which is y's; A, D, delta_bias and the states are f32, or f64 where
    that is. Gradient: to every input, by a scan in the other direction. Numerics: state and sums in f32; inf and NaN go
    through the recurrence, and stay in their channel. delta_softplus: delta + delta_bias goes through log(1 + exp).
    Raises: ShapeError, DTypeError. Follows Gu & Dao, "Mamba", 2023, eq. 2 with exp(Δ A) and Δ B as in the authors'
    kernel (whose arrays are (batch, channels, length)); Dao & Gu, "Transformers are SSMs", 2024.
    """
    op = "selective_scan"
    more: dict[str, Tensor]
    (x, delta, A, B, C), more = given_tensors(
        op, (x, delta, A, B, C), {"D": D, "z": z, "state": state, "bias": delta_bias}
    )
    dtype = promote(*(t.dtype for t in (x, delta, B, C, *([more["z"]] if "z" in more else []))))
    inner = working(dtype)
    if B.ndim == 3:
        B = reshaped(B, *B.shape[:2], 1, B.shape[2])
    if C.ndim == 3:
        C = reshaped(C, *C.shape[:2], 1, C.shape[2])
    d = more.get("D")
    if d is not None and x.ndim == 4 and d.shape == x.shape[2:3]:
        more["D"] = apply("expand", reshaped(d, *d.shape, 1), shape=x.shape[2:])
    x, delta, B, C = (cast_to(t, dtype) for t in (x, delta, B, C))
    inputs = [x, delta, cast_to(A, inner), B, C]
    inputs += [cast_to(more[n], dtype if n == "z" else inner) for n in NAMES if n in more]
    operands = tuple(n for n in NAMES if n in more)
    y, last = apply_multi(op, *inputs, operands=operands, softplus=bool(delta_softplus))
    return y, last


__all__ = ["selective_scan"]
