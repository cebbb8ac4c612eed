"""The functions of `rlx.random`, whose docstring explains keys and draws.

The words follow J. K. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011. `key`, `split`, `fold_in`,
`bits`, `uniform` in f32 and f64, `bernoulli` and `permutation` give the numbers that jax.random gives with its
"threefry2x32" keys (jax_threefry_partitionable, its default).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, DTypeLike, as_dtype, f32, f64, i8, i32, i64, rounded, u8
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor, apply
from rlx.ir.types import as_shape, broadcast_shapes, is_index, is_length, normalize_axis
from rlx.ops.base import TensorLike, cast_to, tensor, tensors
from rlx.ops.composite import stack
from rlx.ops.elementwise.binary import maximum
from rlx.ops.elementwise.bits import bitwise_and, bitwise_or, bitwise_xor, left_shift, right_shift
from rlx.ops.elementwise.select import where
from rlx.ops.elementwise.unary import stop_gradient
from rlx.ops.index.gather import gather, gather_elements
from rlx.ops.movement.strided import reshape
from rlx.ops.order import argsort

_SIGN = -(1 << 31)


# -- keys


def key(seed: int | Tensor) -> npt.NDArray[np.int32] | Tensor:
    """The key of a seed: of a Python int from 0 to 2⁶⁴ - 1 an array, to give to a program or to `Graph.constant`.

    Shape: (2,), the upper and the lower word; of a tensor of seeds (..., 2), the upper word 0. Dtype: i32; seeds i32.
    Raises: ShapeError for an int out of range, DTypeError for seeds of another dtype.
    """
    if isinstance(seed, Tensor):
        (low,) = _words("random.key", "seeds", seed)
        return stack([low * 0, low], -1)
    if not is_length(seed) or not 0 <= int(seed) < 1 << 64:
        raise ShapeError(f"random.key: the seed is {seed!r}; expected an int from 0 to 2**64 - 1")
    return np.array([int(seed) >> 32, int(seed) & 0xFFFFFFFF], np.uint32).view(np.int32)


def split(key: TensorLike, n: int = 2) -> Tensor:
    """n new keys of each key: key i is both words of the counter (0, i), as fold_in(key, i).

    Shape: (..., 2) gives (..., n, 2). Dtype: i32. A Tensor does not unpack: index it.

    >>> keys = rlx.random.split(key)
    >>> x, y = rlx.random.normal(keys[0], 5), rlx.random.normal(keys[1], 5)
    """
    key = key_tensor("random.split", key)
    if not is_length(n):
        raise ShapeError(f"random.split: n is {n!r}; expected an int")
    shape = as_shape(n, "random.split: n")
    return _draw("random.split", key, (*shape, 2), 0, "both")


def fold_in(key: TensorLike, data: TensorLike) -> Tensor:
    """New keys of a key and numbers, such as the number of a step or of a row; different numbers give different keys.

    Shape: key (..., 2) and data (...) broadcast, and give (..., 2). Dtype: i32; data i32, or an int of 32 bits.
    Raises: ShapeError for an int out of range, DTypeError for data of another dtype.
    """
    key = key_tensor("random.fold_in", key)
    (count,) = _words("random.fold_in", "data", data, key)
    lead = broadcast_shapes(key.shape[:-1], count.shape, op="random.fold_in")
    attrs = {"shape": (*lead, 2), "axes": 1, "word": "both", "stream": 0}
    return apply("random_bits", *key_words(key, 1), reshape(count, (*count.shape, 1)), **attrs)


def threefry2x32(key: TensorLike, counter: TensorLike) -> Tensor:
    """Threefry-2x32-20 itself: the two words of each key and counter.

    Shape: key (..., 2) and counter (..., 2) broadcast, and give (..., 2). Dtype: i32, which holds unsigned words.
    """
    key, counter = tensors("random.threefry2x32", key, counter)
    words = [
        *key_words(key_tensor("random.threefry2x32", key), 0),
        *key_words(key_tensor("random.threefry2x32", counter, "counter"), 0),
    ]
    return stack([apply("threefry", *words, word=word) for word in ("first", "second")], -1)


# -- draws


def bits(key: TensorLike, shape: Sequence[int] | int = (), *, offset: int | Tensor = 0) -> Tensor:
    """Random words of 32 bits: element i is Threefry of (0, offset + i), its two words combined by exclusive or.

    Shape: keys (..., 2) give (..., *shape). Dtype: i32, all 2³² values equally likely. `offset`: an int, or i32, one
    number or one for each key; it counts modulo 2³². Gradient: none. Raises: ShapeError for a negative dimension, a
    draw that runs beyond 2³² elements, or one of 2³¹ elements; DTypeError for a key that is not i32.

    >>> noise = rlx.jit(lambda key: rlx.random.bits(key, (2, 3)))
    >>> noise(rlx.random.key(0))
    """
    return _draw("random.bits", key_tensor("random.bits", key), as_shape(shape, "random.bits"), offset)


def uniform(
    key: TensorLike, shape: Sequence[int] | int = (), low: TensorLike = 0.0, high: TensorLike = 1.0,
    dtype: DTypeLike = f32, *, offset: int | Tensor = 0,
) -> Tensor:  # fmt: skip
    """Numbers equally likely in [low, high): low + u (high - low), where u is a multiple of 2⁻²³ (f64: 2⁻⁵²).

    Shape: keys (..., 2) give (..., *shape), with which tensors `low` and `high` broadcast. Dtype: a float; f16 and bf16
    are drawn in f32 and rounded once. What rounds to high becomes low, so high is never reached. Gradient: to low and
    high. Numerics: equal to the bit on every device. Raises: as `bits`; ShapeError for numbers low and high with
    low >= high, not finite, or too far apart for the dtype. Tensors with low >= high give low; a NaN gives NaN.
    """
    op, kind = "random.uniform", _float("random.uniform", dtype)
    key, low, high = tensors_beside(op, key, low, high)
    dims = as_shape(shape, op)
    work = f64 if kind == f64 else f32
    u = _unit(op, key, dims, offset, work)
    if not isinstance(low, Tensor) and not isinstance(high, Tensor):
        start, end = (_rounded(v, kind) for v in (low, high))
        if not (start < end and math.isfinite(_rounded(end - start, work))):
            raise ShapeError(
                f"{op}: low {low} and high {high} in {kind}; expected finite numbers with low < high that are no "
                "farther apart than the largest number"
            )
        if (start, end) == (0.0, 1.0) and kind == work:
            return u
    ends = [cast_to(t, kind) for t in tensors(op, u, low, high)[1:]]
    a, b = (_inside(op, t, u.shape) for t in ends)
    result = cast_to(cast_to(a, work) + u * (cast_to(b, work) - cast_to(a, work)), kind)
    return where(result >= b, a, result)


def normal(
    key: TensorLike, shape: Sequence[int] | int = (), dtype: DTypeLike = f32, *, offset: int | Tensor = 0
) -> Tensor:
    """Numbers of mean 0 and deviation 1, by Box and Muller: √(-2 log u) · sin(π r / 2).

    u in (0, 1] and r in [-1, 1) are multiples of 2⁻²⁴ and 2⁻²³ from the two words of one counter, in f64 of 2⁻⁵² from
    those of two, so |x| is at most 5.77 (f64: 8.49). Shape: as `uniform`. Dtype: a float; f16 and bf16 are drawn in f32
    and rounded once. Gradient: none. Numerics: within 4 ULP of the formula. Raises: as `bits`.
    """
    op, kind = "random.normal", _float("random.normal", dtype)
    key, dims = key_tensor(op, key), as_shape(shape, op)
    if kind == f64:
        u = _unit(op, key, dims, offset, f64) + 2.0**-52
        coarse, fine = (_draw(op, key, dims, offset, word, stream=1) for word in ("first", "second"))
        r = cast_to(coarse, f64) * 2.0**-31 + cast_to(_upper(fine, 21), f64) * 2.0**-52
    else:
        first, second = (_draw(op, key, dims, offset, word) for word in ("first", "second"))
        u = cast_to(_upper(first, 24) + 1, f32) * 2.0**-24
        r = cast_to(right_shift(second, 8), f32) * 2.0**-23
    result = apply("sqrt", apply("log", u) * -2.0) * apply("sin", r * (math.pi / 2))
    return cast_to(result, kind)


def gumbel(
    key: TensorLike, shape: Sequence[int] | int = (), dtype: DTypeLike = f32, *, offset: int | Tensor = 0
) -> Tensor:
    """Numbers of Gumbel's distribution: -log(-log(1 - u)), u from a word of 32 bits. argmax(logits + gumbel) is a draw
    from softmax(logits).

    Shape: as `bits`. Dtype: a float; all are drawn in f32. Gradient: none. Numerics: equal to the bit on every device,
    made of f32 additions and multiplications alone; from -2.86 to 22.9. Raises: as `bits`.
    """
    kind = _float("random.gumbel", dtype)
    return cast_to(apply("gumbel", bits(key, shape, offset=offset)), kind)


def bernoulli(
    key: TensorLike,
    p: TensorLike = 0.5,
    shape: Sequence[int] | int | None = None,
    *,
    offset: int | Tensor = 0,
) -> Tensor:
    """True with probability p, rounded to a multiple of 2⁻²³: uniform(key) < p.

    Shape: keys (..., 2) give (..., *shape), with which p broadcasts; None: p's shape. Dtype: bool; p in f32. Gradient:
    none. Raises: as `bits`; ShapeError for a number p outside [0, 1] or NaN. Of a tensor, p < 0 and NaN give False and
    p > 1 True.
    """
    op = "random.bernoulli"
    key, p = tensors_beside(op, key, p)
    if not isinstance(p, Tensor):
        _check_probability(op, "p", p)
    dims = as_shape(shape, op) if shape is not None else p.shape if isinstance(p, Tensor) else ()
    u = _unit(op, key, dims, offset, f32)
    chance = cast_to(tensors(op, u, p)[1], f32)
    return u < _inside(op, chance, u.shape)


def randint(
    key: TensorLike, shape: Sequence[int] | int, low: TensorLike, high: TensorLike, dtype: DTypeLike = i32, *,
    offset: int | Tensor = 0,
) -> Tensor:  # fmt: skip
    """Integers in [low, high): low + the upper part of (64 random bits) · (high - low) / 2⁶⁴.

    No value's probability is more than (high - low) / 2⁶⁴ of itself away from 1 / (high - low), at most 2⁻³². Shape: as
    `uniform`. Dtype: i32, i64, u8 or i8. Gradient: none. Numerics: exact. Raises: as `bits`; ShapeError for ints with
    low >= high, outside the dtype, or more than 2³² apart. Tensors with low >= high give low; they are taken modulo
    2³² apart. Follows D. Lemire, "Fast Random Integer Generation in an Interval", 2019, without its rejection.
    """
    op, kind = "random.randint", as_dtype(dtype)
    if kind not in (i32, i64, u8, i8):
        raise DTypeError(f"{op}: dtype {kind}; expected i32, i64, u8 or i8")
    key, low, high = tensors_beside(op, key, low, high)
    dims, work = as_shape(shape, op), i64 if kind == i64 else i32
    words = [_draw(op, key, dims, offset, word) for word in ("first", "second")]
    for bound in (low, high):
        if not (isinstance(bound, Tensor) and not bound.dtype.is_float) and not is_index(bound):
            raise DTypeError(f"{op}: a bound is {bound!r}; expected an int or a tensor of integers")
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        ends = [cast_to(_integer(words[0], v, work), work) for v in (low, high)]
        start, end = (_inside(op, t, words[0].shape) for t in ends)
        below_span = _below(words, cast_to(where(end > start, end - start, 1), i32))
    else:
        low, high = int(low), int(high)  # differences of NumPy's integers wrap
        info = np.iinfo(kind.np)
        if not (info.min <= low < high <= info.max + 1 and high - low <= 1 << 32):
            raise ShapeError(
                f"{op}: low {low}, high {high} for {kind}; expected low < high, at most 2**32 apart, of which low and "
                f"high - 1 are from {info.min} to {info.max}"
            )
        start = _integer(words[0], low, work)
        span = high - low
        below_span = words[0] if span == 1 << 32 else _below(words, _integer(words[0], span, i32))
    if kind == i64:
        below_span = bitwise_and(cast_to(below_span, i64), 0xFFFFFFFF)
    return cast_to(below_span + start, kind)


def permutation(key: TensorLike, x: int | TensorLike, axis: int = 0, independent: bool = False) -> Tensor:
    """x with its slices along an axis in random order; of an int n the numbers 0 to n - 1 in random order, as i32.

    With `independent` each line along the axis gets an order of its own. Shape, dtype: x's. Gradient: to where each
    slice was. Sorts by random words of 32 bits, stably: equal words keep their order. It is repeated with new words
    ⌈3 log(size) / log(2³² - 1)⌉ times, as jax.random does, so that equal words leave no trace. Numerics: exact.
    Raises: ShapeError for several keys, a negative n, or an axis that x lacks.
    """
    op = "random.permutation"
    if isinstance(x, bool | float):
        raise DTypeError(f"{op}: x is {x!r}; expected a tensor or an int")
    if isinstance(x, Tensor) or not is_index(x):
        key, x = tensors(op, key, x)
    key = key_tensor(op, key)
    if key.ndim != 1:
        raise ShapeError(f"{op}: keys of shape {key.shape}; expected one key, of shape (2,)")
    if not isinstance(x, Tensor):
        (n,) = as_shape(x, f"{op}: x")
        return _shuffled(op, key, key.graph.constant(np.arange(n, dtype=np.int32)), 0)
    axis = normalize_axis(axis, x.ndim, op)
    if x.ndim == 1 or independent:
        return _shuffled(op, key, x, axis)
    order = _shuffled(op, key, key.graph.constant(np.arange(x.shape[axis], dtype=np.int32)), 0)
    return gather(x, order, axis)


def dropout(x: Tensor, rate: TensorLike, key: TensorLike) -> Tensor:
    """x with elements set to 0 with probability `rate`, and the others divided by 1 - rate, so that the mean stays.

    Element i is dropped where element i of uniform(key, x.shape) is below the rate. With keys (..., 2) the leading axes
    of x are those of the keys. Shape, dtype: x's, a float. Gradient: to x, d where the element was kept, divided
    likewise; none to the rate. Raises: ShapeError for a number outside [0, 1] or NaN, or keys that do not fit x. A
    tensor rate (one number) below 0 counts as 0; above 1, and NaN, everything is dropped.
    """
    op = "random.dropout"
    x, key = tensors(op, x, key)
    key = key_tensor(op, key)
    if not x.dtype.is_float:
        raise DTypeError(f"{op}: x is {x.dtype}; expected a float")
    lead = key.ndim - 1
    if x.shape[:lead] != key.shape[:-1]:
        raise ShapeError(
            f"{op}: keys of shape {key.shape} for x {x.shape}; expected the keys' axes first in x"
        )
    u = _unit(op, key, x.shape[lead:], 0, f32)
    if not _is_number(rate):
        rate = tensors(op, x, rate)[1]
    if isinstance(rate, Tensor):
        if rate.size != 1:
            raise ShapeError(f"{op}: the rate has shape {rate.shape}; expected one number")
        rate = stop_gradient(reshape(maximum(cast_to(tensors(op, u, rate)[1], f32), 0.0), ()))
        scale: Any = where(rate < 1, 1 / (1 - rate), 0.0)
    else:
        _check_probability(op, "rate", rate)
        scale = 1.0 / (1.0 - rate) if rate < 1 else 0.0
    return where(u >= rate, x * cast_to(tensors(op, x, scale)[1], x.dtype), 0)


# -- parts


def tensors_beside(op: str, key: TensorLike, *others: TensorLike) -> list[Any]:
    """The key as a tensor, and the other arguments, of which arrays become tensors of the key's graph."""
    key = key_tensor(op, tensors(op, key, *(v for v in others if isinstance(v, Tensor)))[0])
    return [key, *(v if isinstance(v, Tensor) or _is_number(v) else tensors(op, key, v)[1] for v in others)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating)


def key_tensor(op: str, key: TensorLike, what: str = "key") -> Tensor:
    words = tensor(op, key)
    if words.dtype != i32:
        raise DTypeError(f"{op}: the {what} is {words.type}; expected i32, as rlx.random.key(seed) gives it")
    if not words.shape or words.shape[-1] != 2:
        raise ShapeError(
            f"{op}: the {what} has shape {words.shape}; expected (..., 2), as rlx.random.key gives it"
        )
    return words


def _words(op: str, what: str, value: TensorLike, beside: Tensor | None = None) -> tuple[Tensor, ...]:
    """The value as an i32 tensor; a 32-bit int, signed or unsigned, keeps its bits."""
    if is_index(value) and not isinstance(value, bool):
        if not _SIGN <= value < 1 << 32:
            raise ShapeError(f"{op}: {what} {value}; expected an int of 32 bits")
        assert beside is not None
        return (_integer(beside, value, i32),)
    if isinstance(value, Tensor) and value.weak is int:
        value = value.as_dtype(i32)
    result = tensors(op, value) if beside is None else tensors(op, beside, value)[1:]
    for t in result:
        if t.dtype != i32:
            raise DTypeError(f"{op}: {what} of dtype {t.dtype}; expected i32")
    return result


def _integer(beside: Tensor, value: Any, dtype: DType) -> Tensor:
    """An int as a constant of the graph, by its low bits; a tensor as it is."""
    if isinstance(value, Tensor):
        return value.as_dtype(dtype) if value.weak is not None else value
    low, n = np.iinfo(dtype.np).min, 8 * dtype.itemsize
    return beside.graph.constant((int(value) - low) % (1 << n) + low, dtype)


def key_words(key: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """The two words of each key, with `axes` axes of length 1 after those of the keys."""
    lead = key.shape[:-1]
    both = []
    for i in range(2):
        starts, stops = (0,) * len(lead) + (i,), (*lead, i + 1)
        word = apply("slice", key, starts=starts, stops=stops, steps=(1,) * key.ndim)
        both.append(reshape(word, (*lead, *(1,) * axes)))
    return both[0], both[1]


def _draw(
    op: str, key: Tensor, shape: tuple[int, ...], offset: int | Tensor, word: str = "xor", stream: int = 0
) -> Tensor:
    lead, size = key.shape[:-1], math.prod(shape)
    if isinstance(offset, Tensor):
        (first,) = _words(op, "offset", offset)
        first = reshape(first, (*first.shape, *(1,) * len(shape)))
    else:
        if not is_length(offset) or not 0 <= offset <= (1 << 32) - size:
            raise ShapeError(
                f"{op}: offset {offset!r} for {size} elements; expected an int from 0, and no more than 2**32"
            )
        first = _integer(key, offset, i32)
    attrs = {"shape": (*lead, *shape), "axes": len(shape), "word": word, "stream": stream}
    return apply("random_bits", *key_words(key, len(shape)), first, **attrs)


def _upper(word: Tensor, n: int) -> Tensor:
    """The upper n bits of words, as numbers from 0."""
    return bitwise_and(right_shift(word, 32 - n), (1 << n) - 1)


def _unit(op: str, key: Tensor, shape: tuple[int, ...], offset: int | Tensor, work: DType) -> Tensor:
    """Multiples of 2⁻²³ (f64: 2⁻⁵²) in [0, 1)."""
    if work == f32:
        return cast_to(_upper(_draw(op, key, shape, offset), 23), f32) * 2.0**-23
    first, second = (_draw(op, key, shape, offset, word) for word in ("first", "second"))
    fine = bitwise_or(left_shift(bitwise_and(first, 63), 20), _upper(second, 20))
    return cast_to(_upper(first, 26), f64) * 2.0**-26 + cast_to(fine, f64) * 2.0**-52


def _below(words: Sequence[Tensor], span: Tensor) -> Tensor:
    """The upper 32 bits of words · span / 2³², words and span unsigned."""
    low, carried = words[0] * span, apply("multiply_high", words[1], span)
    total = low + carried
    carry = cast_to(bitwise_xor(total, _SIGN) < bitwise_xor(low, _SIGN), i32)
    return apply("multiply_high", words[0], span) + carry


def _shuffled(op: str, key: Tensor, x: Tensor, axis: int) -> Tensor:
    for _ in range(math.ceil(3 * math.log(max(1, x.size)) / math.log(2**32 - 1))):
        keys = split(key)
        key, drawn = (
            reshape(apply("slice", keys, starts=(i, 0), stops=(i + 1, 2), steps=(1, 1)), (2,))
            for i in range(2)
        )
        order = argsort(bitwise_xor(_draw(op, drawn, x.shape, 0), _SIGN), axis)
        x = gather_elements(x, order, axis)
    return x


def _float(op: str, dtype: DTypeLike) -> DType:
    kind = as_dtype(dtype)
    if not kind.is_float:
        raise DTypeError(f"{op}: dtype {kind}; expected a float")
    return kind


def _rounded(value: float, dtype: DType) -> float:
    return float(rounded(np.asarray(value, np.float64), dtype.np))


def _inside(op: str, t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """t, which must broadcast to the shape of a draw."""
    if broadcast_shapes(t.shape, shape, op=op) != shape:
        raise ShapeError(f"{op}: a tensor of shape {t.shape} does not broadcast to the draw's {shape}")
    return t


def _check_probability(op: str, what: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ShapeError(f"{op}: {what} is {value}; expected a number from 0 to 1")
