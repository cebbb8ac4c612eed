"""Judges (a loop in the widest float) and gradient cases of running sums and products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops
from rlx.dtypes import as_dtype, i32, i64
from rlx.ir import Tensor
from tests.ops.gradient_cases import Gradients, one_zero
from tests.ops.judging import Array, Judge, lanes, wrapped

_WAYS = ({}, {"exclusive": True}, {"reverse": True}, {"exclusive": True, "reverse": True})


def _running(join: Callable[[Any, Any], Any], first: int) -> Any:
    def judge(x: Array, *, axis: int, exclusive: bool, reverse: bool) -> Array:
        is_float = as_dtype(x.dtype).is_float
        dtype = i64 if x.dtype == np.int64 else i32
        out = np.zeros(x.shape, np.float64 if is_float else dtype.np)
        for key, line in lanes(x, axis):
            made, total, power = [], np.longdouble(first) if is_float else first, 0
            for v in reversed(line) if reverse else line:
                before = total
                total = join(total, np.longdouble(v)) if is_float else wrapped(join(total, int(v)), dtype)
                if is_float and first == 1:  # products: mantissa and power of two, so that no part overflows
                    made.append(np.ldexp(before if exclusive else total, np.clip(power, -30_000, 30_000)))
                    total, more = np.frexp(total)
                    power += int(more)
                else:
                    made.append(before if exclusive else total)
            out[key] = made[::-1] if reverse else made
        return out

    return judge


def _scan(name: str, **attrs: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: getattr(ops, name)(x, 1, **attrs)


JUDGES: dict[str, Judge] = {
    "numpy.cumsum": _running(lambda a, b: a + b, 0),
    "numpy.cumprod": _running(lambda a, b: a * b, 1),
}
GRADIENTS: Gradients = {
    "cumsum": [(_scan("cumsum", **attrs), [(3, 4)], None) for attrs in _WAYS],
    "cumprod": [
        (_scan("cumprod", **attrs), [(3, 4)], prepare) for attrs in _WAYS for prepare in (None, one_zero)
    ]
    + [(lambda x: ops.cumprod(x, 0), [(7, 2)], None)],
}  # fmt: skip
