"""Code that the NumPy references share: half precision computed in f32, conversions, means, extremes, powers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, as_dtype, f32, promote, rounded

Array = npt.NDArray[Any]
F32_MAX = float(np.finfo(np.float32).max)


def working(dtype: DType) -> DType:
    """The dtype that values of `dtype` are computed in: f32 for f16 and bf16, else itself."""
    return f32 if dtype.is_half else dtype


def widened(array: Array) -> Array:
    """The array in its working dtype."""
    dtype = as_dtype(array.dtype)
    return array.astype(np.float32) if dtype.is_half else array


def computed(
    result: Callable[[Sequence[DType]], DType] | None = None, common: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that makes a NumPy function a reference: it gets halves as f32, and its result is rounded once.

    `result` gives the output dtype from the input dtypes (default: the promoted one). With `common`, all inputs are
    cast to the promoted dtype first. Floating-point warnings are off, since NaN and infinity are valid results here.
    """

    def wrap(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def reference(*arrays: Any, **attrs: Any) -> Any:
            inputs = [np.asarray(a) for a in arrays]
            dtypes = [as_dtype(a.dtype) for a in inputs]
            out = result(dtypes) if result is not None else promote(*dtypes)
            with np.errstate(all="ignore"):
                if common:
                    work = working(promote(*dtypes)).np
                    inputs = [a.astype(work, copy=False) for a in inputs]
                else:
                    inputs = [widened(a) for a in inputs]
                return rounded(np.asarray(fn(*inputs, **attrs)), out.np)

        return reference

    return wrap


def convert(array: Array, dtype: DType) -> Array:
    """The array as `dtype`, by rlx's rules.

    Float to float rounds to nearest even. Float to integer truncates toward zero, saturates at the ends of the range
    and gives 0 for NaN (NumPy leaves the last two undefined, and devices differ). Integer to integer keeps the low
    bits. Anything to bool is `!= 0`.
    """
    array = np.asarray(array)
    source = as_dtype(array.dtype)
    if source == dtype:
        return array
    if dtype.kind == "b":
        return np.asarray(array != 0)
    with np.errstate(all="ignore"):
        if not (source.is_float and dtype.is_int):
            return rounded(array, dtype.np)
        info = np.iinfo(dtype.np)
        wide = np.trunc(array.astype(np.float64))
        # float64 cannot hold the greatest i64, so saturated values are inserted after the conversion, not before.
        low, high = wide <= float(info.min), wide >= float(info.max)
        inside = np.where(low | high | np.isnan(wide), 0.0, wide).astype(dtype.np)
        return np.where(low, info.min, np.where(high, info.max, inside)).astype(dtype.np)


def centred(x: Array) -> Array:
    """x less its mean over the last axis; rows of equal numbers give exactly 0.

    The mean is two numbers, m near it and d, the mean of x - m, and both are subtracted: a single number could hold
    the mean of numbers far from 0 only as coarsely as those numbers themselves.
    """
    first = x[..., :1]
    near = x - (first + np.mean(x - first, axis=-1, keepdims=True))
    return np.asarray(near - np.mean(near, axis=-1, keepdims=True))


def _first_of_equals(extreme: np.ufunc) -> Callable[..., Array]:
    """np.maximum or np.minimum, but of equal numbers, zeros of either sign, the first one, as the engine and the GPUs
    have it (and torch's relu, which keeps -0.0).

    NumPy gives what the processor's instruction gives. That is always the second on x86, where it is enough to swap
    the operands; elsewhere equal numbers are selected after it.
    """
    zeros = [np.array([0.0, -0.0] * n, dtype)[:n] for n in (1, 37) for dtype in (np.float32, np.float64)]
    if all(bool((np.signbit(extreme(np.negative(z), z)) == np.signbit(z)).all()) for z in zeros):
        return lambda a, b, out=None: extreme(b, a, out=out)

    def first(a: Array, b: Array, out: Array | None = None) -> Array:
        result = np.where(a == b, a, extreme(a, b))
        if out is None:
            return result
        out[...] = result
        return out

    return first


maximum = _first_of_equals(np.maximum)
minimum = _first_of_equals(np.minimum)


def join_at(ufunc: np.ufunc, target: Array, key: Any, values: Array) -> None:
    """`ufunc.at`, except that of equal numbers maximum and minimum keep the first, as `maximum` here does. On x86 NumPy
    keeps the last one, so the updates are applied in reverse order; elements equal to the old number get the old
    one."""
    if ufunc not in (np.maximum, np.minimum):
        ufunc.at(target, key, values)
        return
    old = target.copy()
    if isinstance(key, tuple):
        ufunc.at(target, tuple(np.flip(k) for k in key), np.flip(values))
    else:
        ufunc.at(target, key[::-1], values[::-1])
    np.copyto(target, old, where=target == old)


# Powers that NumPy computes otherwise where it sees one exponent for a whole loop, a 0-d or broadcast one or one of a
# single element: by a product, a quotient, a square root. sqrt keeps -0.0 and has no value at -inf, pow(x, 0.5) is +0.0
# and inf there.
_SHORT_POWERS: dict[float, Callable[[Array], Array]] = {
    2.0: np.square,
    -1.0: lambda x: 1 / x,
    0.5: lambda x: np.where(x == -np.inf, -x, np.sqrt(x) + 0),
}


def float_power(base: Array, exponent: Array) -> Array:
    """base ** exponent for floats, with the same bits whether the exponent is an array, broadcast or 0-d."""
    result = np.asarray(np.power(base, exponent))
    for number, rule in _SHORT_POWERS.items():
        here = exponent == number
        if here.any():
            np.copyto(result, rule(base), where=here)
    return result


def integer_power(base: Array, exponent: Array) -> Array:
    """base ** exponent for integers, wrapping.

    A negative exponent gives the truncated real value: ±1 for a base of ±1, else 0 (for a base of 0 too).
    """
    negative = exponent < 0
    result = np.power(base, np.where(negative, 0, exponent).astype(exponent.dtype))
    odd = (exponent & 1) == 1
    inverse = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0)).astype(base.dtype)
    return np.where(negative, inverse, result)
