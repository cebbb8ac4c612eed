"""gated_delta_rule: linear attention whose state forgets by a gate and replaces what it held for a key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.autodiff.pullback import pullback, vjp_by_parts
from rlx.dtypes import promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.graph import apply_multi
from rlx.ops.base import TensorLike, cast_to, check_like
from rlx.ops.control.functions import scan
from rlx.ops.numeric import F32_MAX, Array, working
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

NAMES = ("g", "state")
_REQUIRED = 4


class Sizes(NamedTuple):
    """The sizes of a delta rule: `heads` of values, `key_heads` of queries and keys, each serving heads / key_heads."""

    batch: int
    length: int
    heads: int
    values: int
    key_heads: int
    keys: int


def sizes_of(k: Any, v: Any) -> Sizes:
    """The sizes of a node, from the shapes of k and v."""
    return Sizes(*v.shape, *k.shape[2:])


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, TensorType]:
    op = "gated_delta_rule"
    if len(types) < _REQUIRED:
        raise ShapeError(f"{op}: takes q, k, v, beta and optional inputs, got {len(types)}")
    q, k, v, beta = types[:_REQUIRED]
    more = optional(op, types, _REQUIRED, NAMES, attrs["operands"])
    if not isinstance(attrs["scale"], float):
        raise DTypeError(f"{op}: scale is {attrs['scale']!r}; expected a float")
    if not abs(attrs["scale"]) <= F32_MAX:
        raise ShapeError(f"{op}: scale is {attrs['scale']}; expected a number that f32 holds")
    for name, t in (("q", q), ("v", v)):
        if t.rank != 4:
            raise ShapeError(f"{op}: {name} is {t}; expected (batch, length, heads, size)")
    if q.shape[3] < 1 or q.shape[2] < 1 or v.shape[2] % q.shape[2]:
        raise ShapeError(
            f"{op}: q is {q} for v {v}; expected keys of at least one element, and a number of heads that divides "
            f"v's {v.shape[2]}"
        )
    gate = v.shape[:3]
    state = TensorType((v.shape[0], v.shape[2], v.shape[3], q.shape[3]), working(q.dtype))
    expected: dict[str, tuple[TensorType, tuple[int, ...], bool]] = {
        "q": (q, (*v.shape[:2], *q.shape[2:]), False),
        "k": (k, q.shape, False),
        "v": (v, v.shape, False),
        "beta": (beta, gate, True),
    }
    of_more = {"g": gate, "state": state.shape}
    check_types(op, q.dtype, expected | {name: (t, of_more[name], True) for name, t in more.items()})
    return v, state


def _reference(
    q: Array, k: Array, v: Array, beta: Array, *more: Array, operands: tuple[str, ...], scale: float
) -> tuple[Any, Any]:
    """The paper's recurrence, one step after the other, with the products of matrix and key as vectors."""
    present = dict(zip(operands, more, strict=True))
    s = sizes_of(k, v)
    q, k = (np.repeat(t, s.heads // s.key_heads, axis=2) for t in (q * q.dtype.type(scale), k))
    S = np.zeros((s.batch, s.heads, s.values, s.keys), v.dtype)
    S = S + present["state"] if "state" in present else S
    o = np.zeros_like(v)
    for t in range(s.length):
        if "g" in present:
            S = np.exp(present["g"][:, t, :, None, None]) * S
        held = np.sum(S * k[:, t, :, None], axis=-1)
        replaced = beta[:, t, :, None] * (v[:, t] - held)
        S = S + replaced[..., None] * k[:, t, :, None]
        o[:, t] = np.sum(S * q[:, t, :, None], axis=-1)
    return o, S


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    """The op as a scan over the sequence, whose carry is the state."""
    q, k, v, beta = (wide(t) for t in inputs[:_REQUIRED])
    present = optional("gated_delta_rule", inputs, _REQUIRED, NAMES, attrs["operands"])
    s = sizes_of(k, v)
    per = s.heads // s.key_heads
    shape = (s.batch, s.key_heads, per, s.values, s.keys)
    start = reshaped(wide(present["state"]), *shape) if "state" in present else zeros(q, shape, v.dtype)
    gates = [transposed(wide(present["g"]), 1, 0, 2)] if "g" in present else []
    rows = [transposed(t, 1, 0, 2, 3) for t in (q * attrs["scale"], k, v)]

    def step(S: Tensor, at: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        q, k, v, beta, *gate = at
        q, k = (reshaped(t, s.batch, s.key_heads, 1, 1, s.keys) for t in (q, k))
        v = reshaped(v, *shape[:4], 1)
        if gate:
            S = apply("exp", reshaped(gate[0], *shape[:3], 1, 1)) * S
        held = apply("sum", S * k, axes=(4,), keepdims=True)
        S = S + reshaped(beta, *shape[:3], 1, 1) * (v - held) * k
        return S, reshaped(apply("sum", S * q, axes=(4,), keepdims=False), s.batch, s.heads, s.values)

    last, o = scan(step, start, (*rows, transposed(beta, 1, 0, 2), *gates))
    return cast_to(transposed(o, 1, 0, 2, 3), inputs[2].dtype), reshaped(
        last, s.batch, s.heads, s.values, s.keys
    )


def _by_node(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    """The op on halves as casts around the op in f32, whose gradient is an op."""
    o, last = apply_multi("gated_delta_rule", *(wide(t) for t in inputs), **attrs)
    return cast_to(o, inputs[2].dtype), last


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    if node.inputs[0].dtype.is_half:
        return pullback(_by_node(node.inputs, node.attrs), grads, node.inputs, stop=True)
    d = [zeros(t, t.shape, t.dtype) if g is None else g for t, g in zip(node.outputs, grads, strict=True)]
    *input_grads, dg, dstate = apply_multi("gated_delta_rule_grad", *d, *node.inputs, **node.attrs)
    of_more = {"g": dg, "state": dstate}
    return (*input_grads, *(of_more[name] for name in node.attrs["operands"]))


register(
    Op("gated_delta_rule", "scans", _infer, rounded(_reference), "torch: the gated delta rule in a loop",
       _vjp, kernel="delta_rule", decompose=_decompose, renews=renews_state(_REQUIRED))
)  # fmt: skip


def _grad_infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    op = "gated_delta_rule_grad"
    if len(types) < 2 + _REQUIRED:
        raise ShapeError(f"{op}: takes the gradients of o and the last state, q, k, v, beta, got {len(types)}")
    if types[2].dtype.is_half:
        raise DTypeError(f"{op}: q is {types[2]}; expected f32 or f64")
    outputs = _infer(types[2:], attrs)
    for d, t, what in zip(types[:2], outputs, ("o", "the last state"), strict=True):
        check_like(op, d, t, what)
    q, k, v, beta = types[2 : 2 + _REQUIRED]
    return q, k, v, beta, beta, outputs[1]


def _grad_reference(
    do: Array, dlast: Array, q: Array, k: Array, v: Array, beta: Array, *more: Array,
    operands: tuple[str, ...], scale: float,
) -> tuple[Any, ...]:  # fmt: skip
    """The derivative of the recurrence, step by step from the end, with all states kept."""
    present = dict(zip(operands, more, strict=True))
    s = sizes_of(k, v)
    per = s.heads // s.key_heads
    rows, keys = (np.repeat(t, per, axis=2) for t in (q * q.dtype.type(scale), k))
    with np.errstate(all="ignore"):
        alpha = np.exp(present["g"]) if "g" in present else np.ones_like(beta)
        states = [present["state"] if "state" in present else np.zeros_like(dlast)]
        for t in range(s.length):
            S = alpha[:, t, :, None, None] * states[-1]
            rest = v[:, t] - np.sum(S * keys[:, t, :, None], axis=-1)
            states.append(S + (beta[:, t, :, None] * rest)[..., None] * keys[:, t, :, None])
        G = dlast
        dq, dk, dv, dbeta, dg = (np.zeros_like(t) for t in (rows, keys, v, beta, beta))
        for t in reversed(range(s.length)):
            key, S = keys[:, t, :, None], alpha[:, t, :, None, None] * states[t]
            G = G + do[:, t, ..., None] * rows[:, t, :, None]
            dq[:, t] = scale * np.sum(do[:, t, ..., None] * states[t + 1], axis=2)
            rest = v[:, t] - np.sum(S * key, axis=-1)
            dput = np.sum(G * key, axis=-1)
            dheld = -beta[:, t, :, None] * dput
            dk[:, t] = np.sum((beta[:, t, :, None] * rest)[..., None] * G + dheld[..., None] * S, axis=2)
            dv[:, t], dbeta[:, t] = -dheld, np.sum(dput * rest, axis=-1)
            G = G + dheld[..., None] * key
            dg[:, t] = np.sum(G * S, axis=(2, 3))
            G = alpha[:, t, :, None, None] * G
        dq, dk = (t.reshape(*t.shape[:2], s.key_heads, per, s.keys).sum(3) for t in (dq, dk))
    return dq, dk, dv, dbeta, dg, np.asarray(G)


def _grad_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    """The gradient of the recurrence as a scan, which keeps all states."""
    d, required = inputs[:2], inputs[2 : 2 + _REQUIRED]
    more = optional("gated_delta_rule_grad", inputs, 2 + _REQUIRED, NAMES, attrs["operands"])
    gate, state = (more.get(name, zeros(t, t.shape, t.dtype)) for name, t in (("g", required[3]), ("state", d[1])))
    wrt = (*required, gate, state)
    input_grads = pullback(_decompose(wrt, {**attrs, "operands": NAMES}), d, wrt, stop=True)
    return tuple(zeros(t, t.shape, t.dtype) if g is None else g for t, g in zip(wrt, input_grads, strict=True))


register(
    Op("gated_delta_rule_grad", "scans", _grad_infer, _grad_reference, "torch.autograd of the gated delta rule",
       vjp_by_parts(_grad_decompose), kernel="delta_rule_grad", decompose=_grad_decompose)
)  # fmt: skip


def gated_delta_rule(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    g: TensorLike | None,
    beta: TensorLike,
    state: TensorLike | None = None,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """S_t = α_t S_{t-1} (I - β_t k_t k_tᵀ) + β_t v_t k_tᵀ; o_t = scale · S_t q_t: linear attention by the delta rule.

    Shape: q and k (batch, length, key heads, d_k), v (batch, length, heads, d_v), where each key head serves heads /
    key heads neighbouring heads; g and beta (batch, length, heads); state (batch, heads, d_v, d_k), the paper's S.
    Gives o, as v, and the last state, with which the next part of a sequence goes on: a sequence may be cut anywhere,
    and a decoding step is a length of 1. Without a state the first one is zero. g: the logarithm of α; None is α = 1,
    the plain delta rule. scale is 1/√d_k unless given. Keys are taken as they are: models divide them by their length
    before. Dtype: q, k and v are promoted to one, which is o's; g, beta and the states are f32, or f64 where that is.
    Gradient: to every input. Numerics: state and sums in f32.
    Raises: ShapeError, DTypeError. Follows Yang, Kautz & Hatamizadeh, "Gated Delta Networks", 2024, eq. 10; Schlag et
    al., "Linear Transformers Are Secretly Fast Weight Programmers", 2021.
    """
    op = "gated_delta_rule"
    more: dict[str, Tensor]
    (q, k, v, beta), more = given_tensors(op, (q, k, v, beta), {"g": g, "state": state})
    dtype = promote(q.dtype, k.dtype, v.dtype)
    inner = working(dtype)
    q, k, v = (cast_to(t, dtype) for t in (q, k, v))
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[-1]) if q.ndim and q.shape[-1] else 1.0
    if not isinstance(scale, int | float | np.integer | np.floating):
        raise DTypeError(f"{op}: scale is {scale!r}; expected a number")
    operands = tuple(n for n in NAMES if n in more)
    inputs = [q, k, v, cast_to(beta, inner), *(cast_to(more[n], inner) for n in operands)]
    o, last = apply_multi(op, *inputs, operands=operands, scale=float(scale))
    return o, last


__all__ = ["gated_delta_rule"]
