"""Judges of the rest of the elementwise table: NumPy in float64, torch, and Python's own integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import as_dtype, promote
from rlx.ops.numeric import widened
from tests.outside import outside

Array = npt.NDArray[Any]


def _common(*arrays: Array) -> list[Array]:
    dtype = promote(*(as_dtype(a.dtype) for a in arrays)).np
    return [a.astype(dtype) for a in arrays]


def _ufunc(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays, **attrs: fn(*(widened(a) for a in _common(*arrays)))


def _torch(run: Callable[..., Any]) -> Callable[..., Any]:
    def judge(x: Array, **attrs: Any) -> Any:
        torch = outside("torch")
        with torch.no_grad():
            return run(torch, torch.from_numpy(np.array(x, np.float64)), **attrs).numpy()

    return judge


def _loop(fn: Callable[[int, int], int]) -> Callable[..., Any]:
    """Integers one by one, wrapped to the width of the dtype."""

    def judge(a: Array, b: Array) -> Array:
        a, b = _common(a, b)
        dtype = as_dtype(a.dtype)
        bits, signed = 8 * dtype.itemsize, dtype.kind == "i"
        wide = np.broadcast_arrays(a, b)
        made = []
        for x, y in zip(wide[0].ravel().tolist(), wide[1].ravel().tolist(), strict=True):
            value = fn(x, y) if dtype.kind == "b" else fn(x, y) % (1 << bits)
            made.append(value - (1 << bits) if signed and value >> (bits - 1) else value)
        return np.array(made, dtype.np).reshape(wide[0].shape)

    return judge


def _remainder(floats: Callable[..., Any], ints: Callable[[int, int], int]) -> Callable[..., Any]:
    whole = _loop(lambda x, y: 0 if y == 0 else ints(x, y))

    def judge(a: Array, b: Array) -> Array:
        a, b = _common(a, b)
        return whole(a, b) if a.dtype.kind in "iu" else np.asarray(floats(widened(a), widened(b))).astype(a.dtype)

    return judge


def _shift(a: int, b: int, bits: int) -> int:
    return 0 if not 0 <= b < bits else a << b


def _shifted(left: bool) -> Callable[..., Any]:
    def judge(a: Array, b: Array) -> Array:
        a, b = _common(a, b)
        bits = 8 * a.dtype.itemsize

        def one(x: int, y: int) -> int:
            if left:
                return _shift(x, y, bits)
            return x >> y if 0 <= y < bits else (-1 if x < 0 else 0)

        return np.asarray(_loop(one)(a, b))

    return judge


def _isinf(x: Array, *, positive: bool, negative: bool) -> Array:
    return (np.isposinf(widened(x)) & positive) | (np.isneginf(widened(x)) & negative)


_NAMES = ("tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "arcsinh", "arccosh", "arctanh", "arctan2", "exp2",
          "expm1", "log2", "log10", "log1p", "cbrt", "trunc", "isnan", "isfinite")  # fmt: skip

JUDGES: dict[str, Callable[..., Any]] = {
    **{f"numpy.{name}": _ufunc(getattr(np, name)) for name in _NAMES},
    "numpy.isinf": _isinf,
    "numpy.logaddexp": lambda x: np.logaddexp(0.0, x),
    "torch.nn.functional.mish": _torch(lambda torch, x: torch.nn.functional.mish(x)),
    "torch.nn.functional.elu": _torch(lambda torch, x, alpha: torch.nn.functional.elu(x, alpha)),
    "gamma times torch.nn.functional.elu": _torch(
        lambda torch, x, alpha, gamma: gamma * torch.nn.functional.elu(x, alpha)
    ),
    "torch.nn.functional.leaky_relu": _torch(lambda torch, x, alpha: torch.nn.functional.leaky_relu(x, alpha)),
    "torch.clamp of a line": _torch(lambda torch, x, alpha, beta: torch.clamp(alpha * x + beta, 0.0, 1.0)),
    "torch.nn.functional.hardswish": _torch(lambda torch, x: torch.nn.functional.hardswish(x)),
    "numpy.mod": _remainder(np.mod, lambda x, y: x % y),
    "numpy.fmod": _remainder(np.fmod, lambda x, y: int(math.copysign(1, x)) * (abs(x) % abs(y))),
    "numpy.floor_divide": _remainder(np.floor_divide, lambda x, y: x // y),
    "numpy.bitwise_and": _loop(lambda x, y: x & y),
    "numpy.bitwise_or": _loop(lambda x, y: x | y),
    "numpy.bitwise_xor": _loop(lambda x, y: x ^ y),
    "numpy.bitwise_not": np.bitwise_not,
    "numpy.left_shift": _shifted(True),
    "numpy.right_shift": _shifted(False),
}
