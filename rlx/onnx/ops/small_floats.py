"""Numbers rounded to the floats of 4 and 8 bits, by arithmetic that is exact in the wider type on every device."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from rlx import ops as o
from rlx.dtypes import bf16, f32, to_odd
from rlx.ir import Tensor
from rlx.onnx.reader.call import Call
from rlx.onnx.reader.elements import E8M0, FLOATS_OF_8_BITS, SMALL_FLOATS, Array, ElementType

_E8M0_BIAS = 127


@cache
def _format(dtype: ElementType) -> tuple[int, int, float, bool]:
    """Bits of the mantissa, least exponent, greatest number, whether there are infinities."""
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return info.nmant, info.minexp, float(info.max), dtype == np.dtype(ml_dtypes.float8_e5m2)


def rounded(x: Tensor, to: ElementType, saturate: bool) -> Tensor:
    """x, of f32 or f64, as the nearest number of a small float, ties to even, in its carrier.

    A number that is too large becomes the greatest one with `saturate`, else an infinity, or NaN where the type has no
    infinity. The float of 4 bits has neither: it always saturates, and its NaN is 0.
    """
    mantissa, least, greatest, has_inf = _format(to)
    zero_signed = to not in FLOATS_OF_8_BITS or not to.name.endswith("uz")
    # The exponent is found by comparison with powers of two: a logarithm could round to the wrong one.
    rest, unit = o.mul(o.abs(x), 2.0**-least), o.full_like(x, 2.0 ** (least - mantissa))
    span = math.frexp(greatest)[1] - 1 - least
    for k in reversed(range(span.bit_length())):
        large = o.greater_equal(rest, 2.0 ** (1 << k))
        rest = o.where(large, o.mul(rest, 2.0 ** -(1 << k)), rest)
        unit = o.where(large, o.mul(unit, 2.0 ** (1 << k)), unit)
    result = o.mul(o.round(o.div(x, unit)), unit)
    limit: float | Tensor = greatest
    if not saturate and to in FLOATS_OF_8_BITS:
        limit = math.inf if has_inf else math.nan
    result = o.where(o.greater(result, greatest), limit, o.where(o.less(result, -greatest), -limit, result))
    if to not in FLOATS_OF_8_BITS:
        result = o.where(o.isnan(result), -0.0, result)
    if not zero_signed:
        result = o.where(o.equal(result, 0.0), 0.0, result)
    return o.cast(result, bf16)


def powers_of_two(x: Array, mode: str, saturate: bool) -> Array:
    """The magnitudes as e8m0, which has powers of two only: the next one up, down, or the nearest (ties up).

    Numbers below e8m0's least or above its greatest one (0 and infinity too) become that number with `saturate`, else
    NaN, even if rounding would lead back into the range.
    """
    held = np.abs(np.asarray(to_odd(x), np.float64))
    part, exponent = np.frexp(held)  # held = part 2^exponent, part from 1/2 to 1
    more = {"up": part > 0.5, "down": np.False_, "nearest": part >= 0.75}[mode]
    code = np.clip(exponent - 1 + more + _E8M0_BIAS, 0, 2 * _E8M0_BIAS)
    below, above = held < 2.0**-_E8M0_BIAS, held > 2.0**_E8M0_BIAS
    code = np.where(below, 0, np.where(above, 2 * _E8M0_BIAS, code))
    none = np.isnan(held) | (np.False_ if saturate else below | above)
    return np.where(none, 255, code).astype(np.uint8).view(E8M0)


def widened(c: Call, t: Tensor, dtype: ElementType) -> Tensor:
    """The numbers that a tensor of small floats stands for, in f32; other tensors as they are."""
    if dtype == E8M0:
        every = np.arange(256, dtype=np.uint8).view(E8M0).astype(np.float32)
        return o.gather(c.tensor(every), o.cast(t, "i32"), 0)
    return o.cast(t, f32) if dtype in SMALL_FLOATS else t
