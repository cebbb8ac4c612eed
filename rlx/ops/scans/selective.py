"""selective_scan: the recurrence of Mamba, a linear state whose decay and input depend on the sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.autodiff.pullback import pullback, vjp_by_parts
from rlx.dtypes import promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.graph import apply_multi
from rlx.ops.base import TensorLike, cast_to, check_like
from rlx.ops.control.functions import scan
from rlx.ops.elementwise.unary import NUMPY_ACTIVATIONS
from rlx.ops.numeric import Array, working
from rlx.ops.scans.operands import (
    check_types,
    given_tensors,
    optional,
    renews_state,
    reshaped,
    rounded,
    transposed,
    wide,
    zeros,
)

NAMES = ("D", "z", "state", "bias")
_REQUIRED = 5
_OP = "selective_scan"


class Sizes(NamedTuple):
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
    op = _OP
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
    expected_more = {"delta_bias" if name == "bias" else name: (t, *of_more[name]) for name, t in more.items()}
    check_types(op, x.dtype, expected | expected_more)
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
    present = dict(zip(operands, more, strict=True))
    s = sizes_of(x, a, b)
    u = x.reshape(s.batch, s.length, s.heads, s.width)
    dt = delta + present["bias"] if "bias" in present else delta
    dt = log1p_exp(dt) if softplus else dt
    rows = a.reshape(s.heads, 1, 1 if s.scalar else s.states)
    b, c = (np.repeat(m, s.heads // s.groups, axis=2)[:, :, :, None] for m in (b, c))
    shape = (s.batch, s.heads, s.width, s.states)
    h: Any = present["state"].reshape(shape) if "state" in present else np.zeros(shape, x.dtype)
    y: Any = np.zeros_like(u)
    for t in range(s.length):
        step = dt[:, t, :, None, None]
        h = np.exp(step * rows) * h + (dt[:, t, :, None] * u[:, t])[..., None] * b[:, t]
        y[:, t] = np.sum(c[:, t] * h, axis=-1)
    y = y.reshape(x.shape)
    if "D" in present:
        y = y + present["D"] * x
    if "z" in present:
        y = y * NUMPY_ACTIVATIONS["silu"](present["z"])
    return y, h.reshape(_state_shape(s))


Core = Callable[[Sequence[Tensor], Tensor | None], tuple[Tensor, ...]]


def _around(inputs: Sequence[Tensor], attrs: Attrs, core: Core) -> tuple[Tensor, ...]:
    """The op with its recurrence computed by `core`, which gets x, Δ, A, B and C in the working dtype, and the
    state."""
    x, delta, *rest = (wide(t) for t in inputs[:_REQUIRED])
    present = {n: wide(t) for n, t in optional(_OP, inputs, _REQUIRED, NAMES, attrs["operands"]).items()}
    delta = delta + present["bias"] if "bias" in present else delta
    delta = apply("softplus", delta) if attrs["softplus"] else delta
    y, last = core((x, delta, *rest), present.get("state"))
    y = y + present["D"] * x if "D" in present else y
    y = y * apply("silu", present["z"]) if "z" in present else y
    return cast_to(y, inputs[0].dtype), last


def _by_scan(inputs: Sequence[Tensor], state: Tensor | None) -> tuple[Tensor, ...]:
    """The recurrence as a scan over the sequence, whose carry is the state."""
    x, delta, a, b, c = inputs
    s = sizes_of(x, a, b)
    u = reshaped(x, s.batch, s.length, s.heads, s.width)
    rows = reshaped(a, 1, s.heads, 1, 1 if s.scalar else s.states)
    b, c = (reshaped(transposed(m, 1, 0, 2, 3), s.length, s.batch, s.groups, 1, 1, s.states) for m in (b, c))
    per = (s.batch, s.groups, s.heads // s.groups, s.width)
    shape = (s.batch, s.heads, s.width, s.states)
    start = zeros(x, shape, x.dtype) if state is None else reshaped(state, *shape)

    def step(h: Tensor, at: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        dt, u, b, c = at
        dt = reshaped(dt, s.batch, s.heads, 1, 1)
        added = reshaped(dt * reshaped(u, s.batch, s.heads, s.width, 1), *per, 1) * b
        h = apply("exp", dt * rows) * h + reshaped(added, *shape)
        y = apply("sum", reshaped(h, *per, s.states) * c, axes=(4,), keepdims=False)
        return h, reshaped(y, s.batch, s.heads, s.width)

    h, y = scan(step, start, (transposed(delta, 1, 0, 2), transposed(u, 1, 0, 2, 3), b, c))
    return reshaped(transposed(y, 1, 0, 2, 3), *x.shape), reshaped(h, *_state_shape(s))


def _by_node(inputs: Sequence[Tensor], state: Tensor | None) -> tuple[Tensor, ...]:
    """The recurrence as a node of this op, without bias, softplus, D and z."""
    more, operands = ((), ()) if state is None else ((state,), ("state",))
    return apply_multi(_OP, *inputs, *more, operands=operands, softplus=False)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    return _around(inputs, attrs, _by_scan)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradient of the recurrence is an op; bias, softplus, D and z are differentiated as separate ops."""
    operands = node.attrs["operands"]
    if node.inputs[0].dtype.is_half or node.attrs["softplus"] or not set(operands) <= {"state"}:
        return pullback(_around(node.inputs, node.attrs, _by_node), grads, node.inputs, stop=True)
    d = [zeros(t, t.shape, t.dtype) if g is None else g for t, g in zip(node.outputs, grads, strict=True)]
    input_grads = apply_multi("selective_scan_grad", *d, *node.inputs, operands=operands)
    return input_grads[: len(node.inputs)]


register(
    Op(_OP, "scans", _infer, rounded(_reference), "torch: the recurrence of Mamba in a loop",
       _vjp, kernel="selective_scan", decompose=_decompose, renews=renews_state(_REQUIRED))
)  # fmt: skip


def _grad_infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    op = "selective_scan_grad"
    if len(types) < 2 + _REQUIRED:
        raise ShapeError(
            f"{op}: takes the gradients of y and the last state, x, delta, A, B, C, got {len(types)}"
        )
    optional(op, types, 2 + _REQUIRED, ("state",), attrs["operands"])
    if types[2].dtype.is_half:
        raise DTypeError(f"{op}: x is {types[2]}; expected f32 or f64")
    outputs = _infer(types[2:], {**attrs, "softplus": False})
    for d, t, what in zip(types[:2], outputs, ("y", "the last state"), strict=True):
        check_like(op, d, t, what)
    return (*types[2 : 2 + _REQUIRED], outputs[1])


def _grad_reference(
    dy: Array, dlast: Array, x: Array, delta: Array, a: Array, b: Array, c: Array, *state: Array,
    operands: tuple[str, ...],
) -> tuple[Any, ...]:  # fmt: skip
    """The derivative of the recurrence, step by step from the end, with all states kept."""
    s = sizes_of(x, a, b)
    per = (s.batch, s.groups, s.heads // s.groups, s.width)
    u, dy = (t.reshape(s.batch, s.length, *per[1:]) for t in (x, dy))
    dt = delta.reshape(s.batch, s.length, *per[1:3], 1)
    rows = a.reshape(*per[1:3], 1, 1 if s.scalar else s.states)
    b, c = (t[:, :, :, None, None] for t in (b, c))
    start = state[0] if state else np.zeros_like(dlast)
    with np.errstate(all="ignore"):
        held = [start.reshape(*per, s.states)]
        for t in range(s.length):
            held.append(
                np.exp(dt[:, t, ..., None] * rows) * held[t] + (dt[:, t] * u[:, t])[..., None] * b[:, t]
            )
        g = dlast.reshape(held[0].shape)
        du, ddt, da = np.zeros_like(u), np.zeros_like(dt), np.zeros_like(rows)
        db, dc = np.zeros_like(b), np.zeros_like(c)
        for t in reversed(range(s.length)):
            g = g + dy[:, t, ..., None] * c[:, t]
            dc[:, t, :, 0, 0] = np.sum(dy[:, t, ..., None] * held[t + 1], axis=(2, 3))
            db[:, t, :, 0, 0] = np.sum(g * (dt[:, t] * u[:, t])[..., None], axis=(2, 3))
            into = np.sum(g * b[:, t], axis=-1)
            du[:, t] = dt[:, t] * into
            g = g * np.exp(dt[:, t, ..., None] * rows)
            back = g * held[t]
            ddt[:, t, ..., 0] = np.sum(back * rows, axis=(3, 4)) + np.sum(into * u[:, t], axis=3)
            da += np.sum(back * dt[:, t, ..., None], axis=(0, 3, 4) if s.scalar else (0, 3)).reshape(da.shape)
    shapes = (x.shape, delta.shape, a.shape, (*b.shape[:3], s.states), (*b.shape[:3], s.states), dlast.shape)
    return tuple(t.reshape(shape) for t, shape in zip((du, ddt, da, db, dc, g), shapes, strict=True))


def _grad_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    """The gradient of the recurrence as a scan, which keeps all states."""
    d, required = inputs[:2], inputs[2 : 2 + _REQUIRED]
    start = inputs[-1] if attrs["operands"] else zeros(d[1], d[1].shape, d[1].dtype)
    wrt = (*required, start)
    input_grads = pullback(_by_scan(required, start), d, wrt, stop=True)
    return tuple(zeros(t, t.shape, t.dtype) if g is None else g for t, g in zip(wrt, input_grads, strict=True))


register(
    Op("selective_scan_grad", "scans", _grad_infer, _grad_reference, "torch.autograd of the recurrence of Mamba",
       vjp_by_parts(_grad_decompose), kernel="selective_scan_grad", decompose=_grad_decompose)
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
    that is. Gradient: to every input. Numerics: state and sums in f32; inf and NaN go
    through the recurrence, and stay in their channel. delta_softplus: delta + delta_bias goes through log(1 + exp).
    Raises: ShapeError, DTypeError. Follows Gu & Dao, "Mamba", 2023, eq. 2 with exp(Δ A) and Δ B as in the authors'
    kernel (whose arrays are (batch, channels, length)); Dao & Gu, "Transformers are SSMs", 2024.
    """
    op = _OP
    more: dict[str, Tensor]
    (x, delta, A, B, C), more = given_tensors(
        op, (x, delta, A, B, C), {"D": D, "z": z, "state": state, "bias": delta_bias}
    )
    dtype = promote(*(t.dtype for t in (x, delta, B, C, *([more["z"]] if "z" in more else []))))
    inner = working(dtype)
    for name, t in {"B": B, "C": C}.items():  # before an axis of groups is added, which the user did not give
        if x.ndim in (3, 4) and t.shape[:2] != x.shape[:2]:
            raise ShapeError(
                f"{op}: {name} is {t.type} beside x {x.type}; expected the batch and the length of x, which is (batch, "
                "length, channels) or (batch, length, heads, size)"
            )
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
