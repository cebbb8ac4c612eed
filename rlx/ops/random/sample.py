"""rlx.sample: the next token's id from logits, the same on every device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.dtypes import DType, f32, i32, i64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor, apply
from rlx.ir.types import broadcast_shapes, is_index
from rlx.ops.base import TensorLike, cast_to, tensors
from rlx.ops.cumulative import cumsum
from rlx.ops.elementwise.binary import logical_and, logical_or, minimum
from rlx.ops.elementwise.bits import bitwise_and, left_shift, right_shift
from rlx.ops.elementwise.predicates import isnan
from rlx.ops.elementwise.select import clip, where
from rlx.ops.elementwise.unary import abs, floor
from rlx.ops.index.gather import gather_elements
from rlx.ops.movement.strided import expand, reshape
from rlx.ops.order import argmax
from rlx.ops.order import top_k as greatest
from rlx.ops.random.draws import key_tensor, key_words
from rlx.ops.reduce import max, sum
from rlx.ops.scatter import scatter_elements

_OP = "sample"
_LARGEST = 1 << 22  # most logits of a row: their weights, up to 2⁴⁰ each, add up to less than 2⁶³
_HOTTEST = float(np.finfo(np.float32).max)
_LEAST = 2.0**-100  # smaller magnitudes count as 0: devices differ in subnormal numbers
# 2^-f for f in [0, 1): a minimax fit of degree 6, within 2⁻²⁸ of it, and 1 at 0. Highest power first.
_HALVED = (
    0.00010902315989369527, -0.0012747481232509017, 0.009579179808497429, -0.05549075827002525, 0.24022436141967773,
    -0.6931470632553101, 1.0,
)  # fmt: skip


def sample(
    logits: Tensor, key: TensorLike, position: TensorLike = 0, *, temperature: TensorLike = 1.0,
    top_k: TensorLike | None = None, top_p: TensorLike | None = None, min_p: TensorLike | None = None,
    repetition_penalty: TensorLike | None = None, frequency_penalty: TensorLike | None = None,
    presence_penalty: TensorLike | None = None, logit_bias: TensorLike | None = None,
    previous: TensorLike | None = None, previous_count: TensorLike | None = None,
) -> Tensor:  # fmt: skip
    """The id of one token of each row, drawn from softmax(logits / temperature) of the logits that the filters keep.

    The steps, in this order, as in Transformers: for the tokens in `previous` (..., n), of which the first
    `previous_count` count, `repetition_penalty` divides positive logits and multiplies the others. `logit_bias`,
    (vocabulary,) or (..., vocabulary), is added. Each token in `previous` loses `frequency_penalty` for each time that
    it occurs there, and `presence_penalty` once. The logits are divided by the temperature. `top_k` keeps the k
    greatest logits, of equal ones those of lower id; `top_p` keeps of these the fewest, greatest first, whose
    probabilities sum to p or more; `min_p` keeps those whose probability is at least min_p times the greatest. One is
    drawn by adding Gumbel's noise and taking the greatest. The noise of a token depends on the row's key, the position
    and the token's id, not on the filters. A key (..., 2) has a key for each row; with a single key, row r uses
    `fold_in(key, r)`. Of the row's key, `fold_in(row_key, position)` is the key that draws.

    Shape: logits (..., vocabulary) give (...); each parameter is a number or a tensor that broadcasts to (...), so that
    another value compiles nothing. An int `top_k` costs less than a tensor, which sorts the row. Dtype: logits a
    float, computed in f32; the key, position, top_k, previous and previous_count i32; gives i32. Gradient: none.

    Numerics: the same ids on every device for the same bits of logits. The noise and the probabilities are made of
    operations that are exact or rounded once, in a fixed order; probabilities are integers, 2⁴⁰ for the greatest, whose
    sum is the same in any order. p and min_p are rounded down to multiples of 2⁻²⁴. Magnitudes below 2⁻¹⁰⁰ count as 0.

    A logit of NaN or -infinity is never drawn; where +infinity occurs, one of those is. A row without another logit
    gives -1. A temperature of 0 takes the greatest logit, of equal ones the first. Ids in `previous` outside the
    vocabulary are ignored.

    Raises: ShapeError for shapes that do not fit, a vocabulary of 0 or of more than 2²² tokens, penalties without
    `previous`, and numbers out of range: temperature in [0, ∞), top_k ≥ 1, top_p and min_p in [0, 1],
    repetition_penalty in [2⁻¹⁰⁰, 2¹⁰⁰], the other penalties finite. In tensors a temperature below 2⁻¹⁰⁰ or NaN counts
    as 0 and infinity as the largest number, top_k < 1 as none, top_p and min_p are clipped to [0, 1] (NaN: no filter),
    and a repetition penalty that is not positive counts as 1. DTypeError for other dtypes.

    >>> pick = rlx.jit(lambda logits, keys, position: rlx.sample(logits, keys, position, temperature=0.8, top_p=0.9))
    >>> pick(logits, keys, np.int32(17))  # logits (batch, vocabulary), keys (batch, 2)
    """
    logits, key = tensors(_OP, logits, key)
    if not logits.dtype.is_float:
        raise DTypeError(f"{_OP}: the logits are {logits.dtype}; expected a float")
    if not logits.shape or not 0 < logits.shape[-1] <= _LARGEST:
        raise ShapeError(
            f"{_OP}: logits of shape {logits.shape}; expected (..., vocabulary), of 1 to 2**22 tokens"
        )
    lead, n = logits.shape[:-1], logits.shape[-1]
    rows = math.prod(lead)
    x = cast_to(reshape(logits, (rows, n)), f32)

    def checked(what: str, value: TensorLike, dtype: DType, low: float, high: float) -> Tensor:
        """A parameter as one number for each row, or one for all rows."""
        if not isinstance(value, Tensor) and np.ndim(value) == 0:
            number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
            if not number or (dtype == i32 and not is_index(value)) or not low <= value <= high:
                span = (
                    f"an int from {low} to {high}" if dtype == i32 else f"a number from {low:g} to {high:g}"
                )
                raise ShapeError(f"{_OP}: {what} is {value!r}; expected {span}, or a tensor")
            return reshape(x.graph.constant(value, dtype), (1, 1))
        t = tensors(_OP, x.graph.constant(0, dtype), value)[1]
        if t.dtype != dtype and not (dtype == f32 and t.dtype.is_float):
            raise DTypeError(f"{_OP}: {what} is {t.dtype}; expected {dtype}")
        if broadcast_shapes(t.shape, lead, op=f"{_OP}: {what}") != lead:
            raise ShapeError(
                f"{_OP}: {what} has shape {t.shape}; expected one number, or one for each row of {lead}"
            )
        t = cast_to(t, dtype)
        return reshape(t, (1, 1)) if t.size == 1 else reshape(expand(t, lead), (rows, 1))

    limits = {"repetition_penalty": (repetition_penalty, _LEAST, 2.0**100),
              "frequency_penalty": (frequency_penalty, -_HOTTEST, _HOTTEST),
              "presence_penalty": (presence_penalty, -_HOTTEST, _HOTTEST)}  # fmt: skip
    penalties = {name: checked(name, value, f32, *span) for name, (value, *span) in limits.items() if value is not None}
    repetition, frequency, presence = map(penalties.get, limits)
    if penalties and previous is None:
        raise ShapeError(f"{_OP}: {next(iter(penalties))} without previous; give the ids of the tokens before")
    if not penalties and (previous is not None or previous_count is not None):
        raise ShapeError(f"{_OP}: previous tokens without a penalty; give repetition_penalty or another one too")
    bias = None if logit_bias is None else _bias(x, logit_bias, lead)
    if previous is not None:
        count = None if previous_count is None else checked("previous_count", previous_count, i32, 0, 2**31 - 1)
        seen = _seen(x, _tokens(x, previous, lead), count, frequency is not None)
        if repetition is not None:
            x = where(seen > 0, _penalized(x, where(repetition > 0, repetition, 1.0)), x)
        x = x if bias is None else x + bias
        if frequency is not None:
            x = x - cast_to(seen, f32) * frequency
        if presence is not None:
            x = where(seen > 0, x - presence, x)
    elif bias is not None:
        x = x + bias
    x = where(isnan(x), -math.inf, where(abs(x) < _LEAST, 0.0, x))
    heat = checked("temperature", temperature, f32, 0, _HOTTEST)
    greedy = not isinstance(temperature, Tensor) and np.ndim(temperature) == 0 and temperature == 0

    ids: Tensor | None = None
    limit = None if top_k is None else checked("top_k", top_k, i32, 1, 2**31 - 1)
    chance = None if top_p is None else checked("top_p", top_p, f32, 0, 1)
    least = None if min_p is None else checked("min_p", min_p, f32, 0, 1)
    finite = max(x, axis=-1, keepdims=True) > -math.inf
    if greedy:
        picked = argmax(x, axis=-1, keepdims=True)
    else:
        if limit is not None or chance is not None:
            most = n
            if not isinstance(top_k, Tensor) and is_index(top_k):
                most = min(int(top_k), n)  # type: ignore[arg-type]
            x, places = greatest(x, most)
            ids = cast_to(places, i32)
        picked = _picked(x, ids, _keys(key, position, lead, checked), heat, limit, chance, least)
        picked = picked if ids is None else gather_elements(ids, picked, -1)
    return reshape(where(finite, cast_to(picked, i32), -1), lead)


def _tokens(x: Tensor, previous: TensorLike, lead: tuple[int, ...]) -> Tensor:
    """The previous tokens as (rows, n)."""
    tokens = tensors(_OP, x, previous)[1]
    if tokens.dtype != i32:
        raise DTypeError(f"{_OP}: previous is {tokens.dtype}; expected i32")
    if tokens.shape[:-1] != lead or not tokens.ndim:
        raise ShapeError(f"{_OP}: previous has shape {tokens.shape}; expected {lead} and an axis of tokens")
    return reshape(tokens, (x.shape[0], tokens.shape[-1]))


def _seen(x: Tensor, tokens: Tensor, count: Tensor | None, counted: bool) -> Tensor:
    """Whether each token of the vocabulary occurs among the first `count` of a row's tokens, or with `counted` how
    often: i32, of x's shape."""
    n = x.shape[-1]
    valid = logical_and(tokens >= 0, tokens < n)
    if count is not None:
        valid = logical_and(valid, x.graph.constant(np.arange(tokens.shape[-1], dtype=np.int32)) < count)
    none = expand(x.graph.constant(0, i32), x.shape)
    # Updates at n, one past the end, are dropped.
    ones = expand(x.graph.constant(1, i32), tokens.shape)
    return scatter_elements(none, where(valid, tokens, n), ones, -1, "add" if counted else "none")


def _penalized(x: Tensor, penalty: Tensor) -> Tensor:
    """N. S. Keskar et al., "CTRL: A Conditional Transformer Language Model for Controllable Generation", 2019, with
    Transformers' case distinction by sign."""
    return where(x > 0, x / penalty, x * penalty)


def _bias(x: Tensor, bias: TensorLike, lead: tuple[int, ...]) -> Tensor:
    """The bias that is added to the logits, as (rows or 1, vocabulary)."""
    given = tensors(_OP, x, bias)[1]
    if not given.dtype.is_float:
        raise DTypeError(f"{_OP}: logit_bias is {given.dtype}; expected a float")
    if given.shape not in ((x.shape[-1],), (*lead, x.shape[-1])):
        raise ShapeError(f"{_OP}: logit_bias has shape {given.shape}; expected {(x.shape[-1],)}, or that of the logits")
    return cast_to(reshape(given, (given.size // x.shape[-1], x.shape[-1])), f32)


def _keys(key: Tensor, position: TensorLike, lead: tuple[int, ...], checked: Any) -> tuple[Tensor, Tensor]:
    """The two words of each row's key, with the position folded in, (rows, 1) each; as separate tensors they need no
    copies."""
    key, rows = key_tensor(_OP, key), math.prod(lead)
    if key.ndim > 1 and key.shape[:-1] != lead:
        raise ShapeError(f"{_OP}: keys of shape {key.shape}; expected (2,), or {(*lead, 2)}")
    words = key_words(reshape(key, (key.size // 2, 2)), 1)
    if key.ndim == 1:
        words = _folded(words, key.graph.constant(np.arange(rows, dtype=np.int32).reshape(rows, 1)))
    return _folded(words, checked("position", position, i32, 0, 2**31 - 1))


def _folded(words: tuple[Tensor, Tensor], data: Tensor) -> tuple[Tensor, Tensor]:
    first, second = (apply("threefry", *words, 0, data, word=word) for word in ("first", "second"))
    return first, second


def _picked(
    x: Tensor, ids: Tensor | None, keys: tuple[Tensor, Tensor], heat: Tensor, limit: Tensor | None,
    chance: Tensor | None, least: Tensor | None,
) -> Tensor:  # fmt: skip
    """The index of the pick in each row of x. With `ids`, which name its tokens, x is in descending order."""
    greedy = apply("logical_not", heat >= _LEAST)
    top = max(x, axis=-1, keepdims=True)
    # Equal logits, also infinite ones, have distance 0; an infinite distance stays infinite at every temperature.
    behind = where(x >= top, 0.0, (top - x) / minimum(where(greedy, 1.0, heat), _HOTTEST))
    behind = where(behind < _LEAST, 0.0, behind)
    kept = x > -math.inf
    rank = x.graph.constant(np.arange(x.shape[-1], dtype=np.int32))
    if limit is not None:
        kept = logical_and(kept, logical_or(rank < limit, limit < 1))
    if chance is not None or least is not None:
        mantissa, halvings = _weight(behind)
    if chance is not None:
        weight = where(kept, right_shift(left_shift(cast_to(mantissa, i64), 16), cast_to(halvings, i64)), 0)
        part, total = _units(where(isnan(chance), 1.0, chance)), sum(weight, axis=-1, keepdims=True)
        share = cast_to(part, i64)
        # ⌈total · part / 2²⁴⌉, with intermediate results below 2⁶³
        rest = bitwise_and(total, (1 << 24) - 1) * share + ((1 << 24) - 1)
        enough = right_shift(total, 24) * share + right_shift(rest, 24)
        inside = cumsum(weight, axis=-1, exclusive=True) < enough
        kept = logical_and(kept, logical_or(logical_or(inside, rank < 1), part >= 1 << 24))
    if least is not None:
        part = _units(where(isnan(least), 0.0, least))
        kept = logical_and(kept, right_shift(left_shift(mantissa, 6), halvings) >= left_shift(part, 6))
    if ids is None:
        words = apply("random_bits", *keys, 0, shape=x.shape, axes=1, word="xor", stream=0)
    else:
        words = apply("threefry", *keys, 0, ids, word="xor")
    noise = where(greedy, 0.0, apply("gumbel", words))
    return argmax(where(kept, noise - behind, -math.inf), axis=-1, keepdims=True)


def _weight(behind: Tensor) -> tuple[Tensor, Tensor]:
    """exp(-behind) as (m, k): m · 2^-k / 2²⁴."""
    power = minimum(behind, 64.0) * 1.4426950216293335
    whole = floor(power)
    part = power - whole
    scaled: Any = _HALVED[0]
    for c in _HALVED[1:]:
        scaled = part * scaled + c
    return cast_to(scaled * 2.0**24, i32), cast_to(whole, i32)


def _units(x: Tensor) -> Tensor:
    """A probability in units of 2⁻²⁴, rounded down."""
    return cast_to(clip(x, 0.0, 1.0) * 2.0**24, i32)


__all__ = ["sample"]
