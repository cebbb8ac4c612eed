"""Conformance of attention and its gradient."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bool_, f16, f32, i32
from rlx.ir import Attrs, Tensor
from rlx.ir.graph import apply_multi
from rlx.ops.attention.parts import NO_TOKENS, ByToken, heads_first, softmax_rows, swapped
from rlx.ops.numeric import Array, widened

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

_ALL = ByToken.Q | ByToken.K | ByToken.V | ByToken.Y
# (batch, query heads, key heads, queries, keys, head size)
Size = tuple[int, int, int, int, int, int]
_SIZES: tuple[Size, ...] = (
    (1, 1, 1, 1, 1, 1), (1, 1, 1, 3, 5, 4), (2, 3, 3, 7, 7, 8), (1, 12, 12, 16, 16, 32), (2, 4, 2, 5, 9, 16),
    (1, 8, 1, 3, 33, 64), (1, 2, 2, 31, 31, 32), (1, 2, 2, 32, 32, 32), (1, 2, 2, 33, 33, 32), (1, 1, 1, 63, 65, 64),
    (1, 1, 1, 64, 128, 128), (1, 2, 1, 65, 129, 80), (1, 4, 4, 1, 257, 64), (3, 2, 2, 17, 1, 24),
    (1, 2, 2, 128, 128, 40), (0, 2, 2, 3, 4, 8), (1, 2, 2, 0, 4, 8), (1, 2, 2, 3, 0, 8), (1, 1, 1, 5, 6, 3),
)  # fmt: skip
_MASKS: tuple[tuple[int, ...], ...] = (
    (), (17,), (9, 17), (9, 1), (1, 17), (4, 9, 17), (1, 9, 17), (2, 1, 1, 17), (2, 4, 9, 17), (2, 4, 1, 1),
)  # fmt: skip


_GRADIENT_SIZES: tuple[Size, ...] = (
    (1, 1, 1, 1, 1, 1), (1, 1, 1, 3, 5, 4), (2, 3, 3, 7, 7, 8), (2, 4, 2, 5, 9, 16), (1, 8, 1, 3, 33, 64),
    (1, 2, 2, 31, 31, 32), (1, 2, 2, 32, 32, 32), (1, 2, 2, 33, 33, 32), (1, 1, 1, 63, 65, 64), (1, 1, 1, 64, 128, 128),
    (1, 2, 1, 65, 129, 80), (1, 4, 4, 1, 257, 64), (3, 2, 2, 17, 1, 24), (1, 2, 2, 66, 66, 20), (0, 2, 2, 3, 4, 8),
    (1, 2, 2, 0, 4, 8), (1, 2, 2, 3, 0, 8), (1, 1, 1, 5, 6, 3), (1, 1, 1, 5, 9, 256),
)  # fmt: skip
_GRADIENT_MASKS: tuple[tuple[int, ...], ...] = ((17,), (9, 17), (9, 1), (2, 1, 1, 17), (2, 4, 9, 17), (4, 1, 17))


# Windows, soft caps and lengths, alone and together.
_VARIANTS: tuple[dict[str, Any], ...] = (
    {"window": 0}, {"window": 0, "causal": True}, {"window": 3}, {"window": 3, "causal": True}, {"window": 40},
    {"softcap": 0.5}, {"softcap": 30.0, "causal": True}, {"lengths": ""}, {"lengths": "b"},
    {"lengths": "b", "causal": True}, {"lengths": "b", "window": 4}, {"lengths": "", "window": 2, "causal": True},
    {"lengths": "b", "causal": True, "window": 5, "softcap": 2.0},
)  # fmt: skip


def _case(
    size: Size,
    dtype: DType = f32,
    mask: InputSpec | None = None,
    scale: float | None = None,
    causal: bool = False,
    domain: str = "normal",
    window: int | None = None,
    softcap: float | None = None,
    lengths: str | None = None,
    tokens: ByToken = NO_TOKENS,
) -> Case:
    """One case. `lengths`: "" is one kv_len for all batches, "b" one for each; some of them are out of range."""
    b, h, kv, n_q, n_k, d = size
    shapes = {ByToken.Q: (b, h, n_q, d), ByToken.K: (b, kv, n_k, d), ByToken.V: (b, kv, n_k, d)}
    swapped_shapes = [swapped(shape) if one in tokens else shape for one, shape in shapes.items()]
    specs = [InputSpec(shape, dtype, domain) for shape in swapped_shapes]
    name = f"{dtype}-{label(size)}"
    if mask is not None:
        specs.append(mask)
        name += f"-mask_{mask.dtype}_{label(mask.shape)}_{mask.domain}"
    if lengths is not None:
        specs.append(InputSpec((b,) if lengths else (), i32, f"wild:{max(n_k, 1)}"))
        name += f"-kv_len{lengths}"
    if causal:
        name += "-causal"
    if window is not None:
        name += f"-window{window}"
    if softcap is not None:
        name += f"-cap{softcap:g}"
    if scale is not None:
        name += f"-scale{scale:g}"
    name += f"-{domain}" if domain != "normal" else ""
    name += "-tokens_" * bool(tokens) + "".join(str(one.name).lower() for one in tokens)
    scale = 1 / math.sqrt(d) if scale is None else scale
    attrs: dict[str, Any] = {"scale": scale, "causal": causal, "window": window, "softcap": softcap}
    if tokens:
        attrs["tokens"] = tokens
    return Case("attention", name, tuple(specs), attrs, NORM)


def _sizes_and_masks(
    sizes: tuple[Size, ...], size: Size, masks: tuple[tuple[int, ...], ...]
) -> Iterator[Case]:
    """Every size, with and without `causal`; then, at one size, every mask, of bools and of floats."""
    for each in sizes:
        yield _case(each)
        yield _case(each, causal=True)
    for mask in masks:
        yield _case(size, mask=InputSpec(mask, bool_))
        yield _case(size, mask=InputSpec(mask, f32))


def _attention() -> Iterator[Case]:
    size = (2, 4, 2, 9, 17, 16)
    yield from _sizes_and_masks(_SIZES, size, _MASKS)
    for dtype in FLOATS:
        yield _case((1, 4, 4, 33, 40, 64), dtype)
        yield _case((2, 4, 1, 9, 9, 32), dtype, causal=True)
        yield _case(size, dtype, mask=InputSpec((2, 1, 1, 17), bool_))
        yield _case(size, dtype, mask=InputSpec((9, 17), dtype))
        yield _case(size, dtype, scale=0.5, causal=True, mask=InputSpec((2, 1, 9, 17), bool_))
        yield _case(size, dtype, domain="large")
    # Additive masks with -inf, also in whole rows; scores of large differences; NaN and infinity in the inputs.
    yield _case(size, mask=InputSpec((9, 17), f32, "masked"))
    yield _case((1, 2, 2, 33, 2, 8), mask=InputSpec((33, 2), f32, "masked"))
    yield _case((1, 2, 2, 33, 2, 8), mask=InputSpec((33, 2), bool_))
    yield _case(size, f16, mask=InputSpec((9, 17), f32))
    # NaN keys only where none is masked: torch adds -inf to their scores, which stay NaN, while rlx replaces these
    # scores.
    beyond = (_case((2, 2, 1, 70, 75, 20), window=3), _case((1, 2, 2, 70, 65, 16), causal=True))
    for plain, i in ((_case(size), 1), (_case(size), 2), *((case, 2) for case in beyond)):
        inputs = [replace(spec, domain="holes") if k == i else spec for k, spec in enumerate(plain.inputs)]
        yield replace(plain, name=f"{plain.name}-x{i}-holes", inputs=tuple(inputs))
    yield _case(size, scale=-1.0)
    yield _case(size, scale=0.0)
    # More queries than keys: the first rows see no key at all.
    yield _case((1, 2, 2, 9, 4, 8), causal=True)
    yield _case((1, 2, 2, 70, 65, 16), causal=True)
    for variant in _VARIANTS:
        yield _case(size, **variant)
        yield _case((2, 2, 1, 70, 75, 20), **variant)
        yield _case(size, mask=InputSpec((9, 17), bool_), **variant)
        # Decoding: few queries, many keys.
        yield _case((2, 8, 2, 1, 150, 32), **variant)
        yield _case((2, 3, 3, 3, 150, 36), mask=InputSpec((2, 1, 3, 150), f32), **variant)
    for dtype in FLOATS:
        for lengths in ("", "b"):
            yield _case((2, 8, 2, 1, 300, 64), dtype, lengths=lengths)
            yield _case((2, 4, 4, 2, 70, 20), dtype, lengths=lengths, causal=True, window=30)
        yield _case((1, 16, 1, 1, 260, 128), dtype, lengths="b")
        yield _case((1, 2, 2, 4, 65, 256), dtype, softcap=5.0, lengths="b", causal=True)
        yield _case((1, 2, 1, 130, 140, 64), dtype, window=20, causal=True)
        yield _case((1, 2, 1, 70, 140, 96), dtype, window=20, softcap=3.0, lengths="")
        yield _case((1, 1, 1, 65, 66, 256), dtype, causal=True)
        # Some or all operands with a token's heads adjacent, the layout in which projections write them.
        for tokens in (_ALL, ByToken.K | ByToken.V, ByToken.Q | ByToken.Y, ByToken.V):
            yield _case((2, 4, 2, 70, 75, 20), dtype, tokens=tokens, causal=True)
            yield _case((2, 6, 3, 3, 150, 32), dtype, tokens=tokens, lengths="b")
        yield _case((2, 4, 4, 130, 130, 64), dtype, tokens=_ALL, mask=InputSpec((2, 1, 1, 130), bool_))
        yield _case((2, 12, 12, 16, 16, 32), dtype, tokens=_ALL, mask=InputSpec((2, 1, 1, 16), bool_))
    yield _case((1, 2, 2, 0, 4, 8), tokens=_ALL)
    yield _case((1, 2, 2, 3, 0, 8), tokens=_ALL)
    yield _case((2, 1, 1, 5, 6, 3), tokens=_ALL)


def _attention_grad() -> Iterator[Case]:
    """The gradient, at the inputs of the forward cases."""
    for case in forward_of_gradients():
        q = case.inputs[0]
        d = InputSpec(q.shape, q.dtype)
        yield Case("attention_grad", case.name, (d, *case.inputs), case.attrs, case.tolerance)


def forward_of_gradients() -> Iterator[Case]:
    size = (2, 4, 2, 9, 17, 16)
    yield from _sizes_and_masks(_GRADIENT_SIZES, size, _GRADIENT_MASKS)
    for variant in _VARIANTS:
        yield _case(size, **variant)
        yield _case((2, 2, 1, 70, 75, 20), **variant)
    for dtype in FLOATS:
        yield _case((1, 4, 4, 33, 40, 64), dtype)
        yield _case((2, 4, 1, 9, 9, 32), dtype, causal=True)
        yield _case(size, dtype, mask=InputSpec((9, 17), dtype))
        yield _case(size, dtype, softcap=2.0, window=5, causal=True, lengths="b")
    yield _case(size, mask=InputSpec((9, 17), f32, "masked"))
    # A mask of all magnitudes must differ from key to key: one number per row cancels in softmax except for rounding.
    yield _case(size, mask=InputSpec((9, 17), f32, "wide"))
    yield _case((1, 2, 2, 33, 2, 8), mask=InputSpec((33, 2), bool_))
    yield _case(size, scale=-1.0)
    yield _case(size, scale=0.0)
    yield _case((1, 2, 2, 70, 65, 16), causal=True)


@rule("attention")
def _plain(b: Builder) -> Made:
    batch, kv, group, n_q, n_k, d = (1 + b.below(3) for _ in range(6))
    dtype = b.choose((f32, f32, f16))
    q = b.leaf((batch, kv * group, n_q, d), dtype)
    k, v = b.leaf((batch, kv, n_k, d), dtype), b.leaf((batch, kv, n_k, d), dtype)
    mask = b.leaf((n_q, n_k), b.choose((bool_, f32))) if b.chance(0.5) else None
    return (ops.attention(q, k, v, mask=mask, causal=b.chance(0.5)),)


def _operands(b: Builder) -> tuple[list[Tensor], dict[str, Any]]:
    batch, kv, group, n_q, n_k, d = (1 + b.below(3) for _ in range(6))
    n_k = n_k if b.chance(0.7) else 40
    dtype = b.choose((f32, f32, f16))
    operands = [
        b.leaf((batch, kv * group, n_q, d), dtype),
        *(b.leaf((batch, kv, n_k, d), dtype) for _ in range(2)),
    ]
    if b.chance(0.3):
        operands.append(b.leaf((n_q, n_k), b.choose((bool_, f32))))
    if b.chance(0.5):
        operands.append(b.graph.constant(b.rng.integers(0, n_k + 1, (batch,)).astype(np.int32), i32))
    attrs = {"scale": 0.5, "causal": b.chance(0.5), "window": b.choose((None, None, 0, 2))}
    return operands, {**attrs, "softcap": b.choose((None, 2.0))}


@rule("attention_variants")
def _variants(b: Builder) -> Made:
    operands, attrs = _operands(b)
    tokens = functools.reduce(operator.or_, [one for one in ByToken if b.chance(0.3)], NO_TOKENS)
    operands = [ops.transpose(t, (0, 2, 1, 3)) if one in tokens else t
             for one, t in zip(ByToken, operands[:3], strict=False)] + operands[3:]  # fmt: skip
    return apply_multi("attention", *operands, **attrs, tokens=tokens)


@rule("attention_grad")
def _gradient(b: Builder) -> Made:
    operands, attrs = _operands(b)
    d = b.leaf(operands[0].shape, operands[0].dtype)
    return apply_multi("attention_grad", d, *operands, **attrs)


def largest_value(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """The largest value of v for each output element, since attention is a weighted mean of them."""
    tokens = attrs.get("tokens", NO_TOKENS)
    q, _, v = heads_first(inputs, tokens)[:3]
    largest = np.max(np.abs(np.repeat(v, q.shape[1] // v.shape[1], axis=1)), axis=2, keepdims=True, initial=0)
    whole = np.broadcast_to(largest, q.shape)
    return np.asarray(np.swapaxes(whole, 1, 2) if ByToken.Y in tokens else whole)


def masked_nan(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """The results that depend on a value that is not finite at a key of weight 0. They may be NaN (0 · NaN) or not:
    kernels skip tiles in which all keys are masked, and torch's skip every masked key."""
    tokens = attrs.get("tokens", NO_TOKENS)
    q, k, v, *others = heads_first([widened(x) for x in inputs], tokens)
    if not k.size or not q.size or np.isfinite(v).all():
        return np.zeros((), bool)
    rest = {name: value for name, value in attrs.items() if name != "tokens"}
    p = softmax_rows(q, k, others, **rest)[0]
    free = np.matmul(p == 0, ~np.isfinite(np.repeat(v, q.shape[1] // v.shape[1], axis=1)))
    return np.swapaxes(free, 1, 2) if ByToken.Y in tokens else free


def terms_of_gradient(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """The size of the gradient's terms, one number for all three results: the root of their mean square.

    dS = P (dP - Σ P dP) subtracts numbers of similar size, and the gradients of q and k sum the differences. Where
    these nearly cancel, the errors are still those of P dP.
    """
    d, q, k, v, *others = inputs
    if others and others[-1].shape in (
        (),
        q.shape[:1],
    ):  # kv_len, converted to float like all inputs; no mask has this shape here
        others[-1] = others[-1].astype(np.int32)
    if q.size == 0 or k.size == 0:
        return np.zeros(())
    p, _, keys = softmax_rows(q, k, others, **attrs)
    return size_of_gradient(d, (q, k, v), p, keys, None, attrs["scale"])


def size_of_gradient(
    d: Array,
    operands: tuple[Array, Array, Array],
    p: Array,
    keys: Array,
    delta: Array | None,
    scale: float,
    over_elements: Callable[[Array], Any] = np.mean,
) -> Any:
    """The scale of rounding errors in the gradients of q and k for probabilities p: √(Σ terms²) of their elements,
    combined by `over_elements`. `delta`, one number per row, is by default the sum of |P dP|."""
    q, k, v = operands
    group = q.shape[1] // k.shape[1]
    k, v = (np.where(keys, np.repeat(t, group, axis=1), 0) for t in (k, v))
    dp = np.matmul(np.abs(d), np.swapaxes(np.abs(v), -1, -2))
    terms = (p * (dp + (np.sum(dp * p, axis=-1, keepdims=True) if delta is None else delta)) * scale) ** 2
    sizes = (np.matmul(terms, k**2), np.matmul(np.swapaxes(terms, -1, -2), q**2))
    return np.sqrt(max(float(over_elements(size)) for size in sizes))


_STEEP = ("offset", "scores of 2,000 round to 1e-4, and weights change by as much of themselves")
OPS = (
    Conformance(
        "attention", (_attention,), (_plain, _variants), terms=largest_value, undecided=masked_nan,
        narrower={(i, "far"): _STEEP for i in (1, 3)},
    ),
    Conformance(
        "attention_grad", (_attention_grad,), (_gradient,), terms=terms_of_gradient,
        narrower={(4, "far"): _STEEP},
    ),
)  # fmt: skip
