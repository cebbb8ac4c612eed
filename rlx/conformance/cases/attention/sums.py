"""Conformance of attention that also gives its softmax sums, and of the gradient that takes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.attention.dense import forward_of_gradients, size_of_gradient
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import bool_, f32, f64
from rlx.ir import Attrs, Tensor
from rlx.ir.graph import apply_multi
from rlx.ops.attention.parts import ALL_TOKENS, NO_TOKENS, ByToken, heads_first, score_rows, swapped
from rlx.ops.numeric import Array

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder


def _forward() -> Iterator[Case]:
    """The forward cases of the gradient, and cases with some or all operands by token, and with q, k and v in one
    operand."""
    for case in forward_of_gradients():
        attrs = {**case.attrs, "binary": case.inputs[0].dtype.is_half}
        yield Case("attention_sums", case.name, case.inputs, attrs, case.tolerance)
    plain: dict[str, Any] = {"scale": 0.1, "causal": True, "window": None, "softcap": None}
    b, h, kv, n_q, n_k, d = 2, 4, 2, 70, 75, 24
    for dtype in FLOATS:
        for tokens in (ALL_TOKENS, ByToken.Y, ByToken.K | ByToken.V):
            by_head = [(b, h, n_q, d), (b, kv, n_k, d), (b, kv, n_k, d)]
            shapes = [swapped(s) if one in tokens else s for one, s in zip(ByToken, by_head, strict=False)]
            specs = tuple(InputSpec(s, dtype) for s in shapes)
            name = f"{dtype}-{label(shapes[0])}-tokens{tokens.value}"
            yield Case("attention_sums", name, specs, {**plain, "tokens": tokens, "binary": dtype.is_half}, NORM)
        for mask in ((), (InputSpec((n_q, n_q), bool_),)):
            x = InputSpec((b, n_q, h + 2 * kv, d), dtype)
            attrs = {**plain, "tokens": ALL_TOKENS, "kv_heads": kv, "binary": dtype.is_half}
            name = f"{dtype}-{label(x.shape)}-joined{'-mask' * len(mask)}"
            yield Case("attention_sums", name, (x, *mask), attrs, NORM)


def _gradient() -> Iterator[Case]:
    """The gradient at the inputs of the forward cases; the result and the sums given to it are independent random
    numbers. The sums are positive, so that few weights are above 1: those of halves round to halves."""
    for case in _forward():
        if any(spec.domain == "wide" for spec in case.inputs):
            continue
        attrs = case.attrs
        tokens, kv = attrs.get("tokens", NO_TOKENS), attrs.get("kv_heads")
        q = case.inputs[0]
        b, h, n, d = q.shape if ByToken.Q not in tokens else swapped(q.shape)
        h -= 0 if kv is None else 2 * kv
        y = InputSpec((b, n, h, d) if ByToken.Y in tokens else (b, h, n, d), q.dtype)
        sums = InputSpec((2, b, h, n), f64 if q.dtype == f64 else f32, "positive")
        yield Case("attention_sums_grad", case.name, (y, y, sums, *case.inputs), attrs, case.tolerance)


def _kept(b: Builder) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Any]]:
    """A leaf that holds q, k and v, the results of its attention, and the attributes of both ops."""
    batch, kv, group, n, d = (1 + b.below(3) for _ in range(5))
    h = kv * group
    x = b.leaf((batch, n, h + 2 * kv, d), f32)
    attrs = {"scale": 0.5, "causal": b.chance(0.5), "window": None, "softcap": b.choose((None, 2.0))}
    attrs |= {"tokens": ALL_TOKENS, "kv_heads": kv, "binary": b.chance(0.5)}
    return x, apply_multi("attention_sums", x, **attrs), attrs


@rule("attention_sums")
def _sums(b: Builder) -> Made:
    return _kept(b)[1]


@rule("attention_sums_grad")
def _of_sums(b: Builder) -> Made:
    x, (y, sums), attrs = _kept(b)
    return apply_multi("attention_sums_grad", b.leaf(y.shape, f32), y, sums, x, **attrs)


def _operands(inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
    """q, k, v of (batch, heads, length, size), and the other inputs; kv_len is cast back to integers."""
    tokens, kv = attrs.get("tokens", NO_TOKENS), attrs.get("kv_heads")
    if kv is not None:
        heads = inputs[0].shape[2] - 2 * kv
        inputs = [*np.split(inputs[0], [heads, heads + kv], axis=2), *inputs[1:]]
    q, k, v, *others = heads_first(inputs, tokens)
    if others and others[-1].shape in ((), q.shape[:1]):  # no mask here has this shape
        others[-1] = others[-1].astype(np.int32)
    return [q, k, v, *others]


def _largest(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """The scale of rounding errors: the largest |v|, of which results are means, or the largest possible |score|, for
    the sums."""
    q, k, v = _operands(inputs, attrs)[:3]
    sizes = [np.sqrt(np.max(np.sum(t * t, axis=-1), initial=0.0)) for t in (q, k)]
    return max(1.0, float(np.max(np.abs(v), initial=0.0)), float(abs(attrs["scale"]) * sizes[0] * sizes[1]))


def _terms_of_gradient(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """As for attention_grad, with the weights and the row sums of dy y computed from the inputs. For
    halves the largest element counts: kernels round the weights to halves, and here a row's may add up to far more
    than 1, so that elements differ much in size."""
    d, y, sums, *operands = inputs
    q, k, v, *others = _operands(operands, attrs)
    if q.size == 0 or k.size == 0:
        return np.zeros(())
    if ByToken.Y in attrs.get("tokens", NO_TOKENS):
        d, y = d.swapaxes(1, 2), y.swapaxes(1, 2)
    plain = {name: value for name, value in attrs.items() if name not in ("tokens", "kv_heads", "binary")}
    scores, _, keys = score_rows(q, k, others, **plain)
    p = np.exp(scores - sums.sum(0)[..., None] * (math.log(2) if attrs["binary"] else 1))
    delta = np.sum(np.abs(d * y), -1, keepdims=True)
    return size_of_gradient(d, (q, k, v), p, keys, delta, attrs["scale"], np.max if attrs["binary"] else np.mean)


_STEEP = ("offset", "scores of 2,000 round to 1e-4, and weights change by as much of themselves")
_OF_WEIGHTS = "the sum of a row's weights is of the size of its scores, else the weights leave f32"
_FREE = {2: ("zero", "special", "wide", "far"), 3: ("far",), 4: ("far",), 6: ("wide", "far")}
OPS = (
    Conformance(
        "attention_sums", (_forward,), (_sums,), terms=_largest, narrower={(i, "far"): _STEEP for i in (0, 1, 3)},
    ),
    Conformance(
        "attention_sums_grad", (_gradient,), (_of_sums,), terms=_terms_of_gradient,
        without={(i, kind): _OF_WEIGHTS for i, kinds in _FREE.items() for kind in kinds},
    ),
)  # fmt: skip
