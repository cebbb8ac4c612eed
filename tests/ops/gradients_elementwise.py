"""Gradient cases of the rest of the elementwise table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rlx.ops as ops

Shape = tuple[int, ...]
S = (3, 4)


def _inside(x: np.ndarray) -> np.ndarray:
    """Within (-1, 1)."""
    return np.tanh(x) * 0.9


def _above_one(x: np.ndarray) -> np.ndarray:
    return np.abs(x) + 1.3


def _positive(x: np.ndarray) -> np.ndarray:
    return np.abs(x) + 0.5


def _off(x: np.ndarray) -> np.ndarray:
    """Away from the bends of every function here: 0, ±3, whole numbers and their ratios."""
    return np.round(x * 5) / 5 + 0.0713 + np.arange(x.size).reshape(x.shape) * 1.7e-2


def _sized(x: np.ndarray) -> np.ndarray:
    return _off(x) + np.sign(x) * 4.0


def _near(x: np.ndarray) -> np.ndarray:
    """Of either sign, about 2.5: the ratio of 3.4 times one to another is never whole."""
    return np.copysign(2.5 + 0.1 * np.tanh(x), x)


CASES: dict[str, list[tuple[Any, list[Shape], Callable[[np.ndarray], np.ndarray] | None]]] = {
    **{name: [(getattr(ops, name), [S], None)]
       for name in ("sinh", "cosh", "atan", "asinh", "exp2", "expm1", "softplus", "mish")},
    **{name: [(getattr(ops, name), [S], _inside)] for name in ("tan", "asin", "acos", "atanh", "log1p")},
    **{name: [(getattr(ops, name), [S], _positive)] for name in ("log2", "log10", "cbrt")},
    "acosh": [(ops.acosh, [S], _above_one)],
    "trunc": [(ops.trunc, [S], _off)],
    "atan2": [(ops.atan2, [S, (4,)], _positive), (ops.atan2, [S, (3, 1)], _sized)],
    "elu": [(ops.elu, [S], _off), (lambda x: ops.elu(x, -0.3), [S], _off)],
    "selu": [(ops.selu, [S], _off)],
    "leaky_relu": [(lambda x: ops.leaky_relu(x, 0.2), [S], _off)],
    "hard_sigmoid": [(ops.hard_sigmoid, [S], _off), (lambda x: ops.hard_sigmoid(x, 0.9, 0.1), [S], _off)],
    "hard_swish": [(ops.hard_swish, [S], _off), (lambda x: ops.hard_swish(x * 3.1), [S], _off)],
    "mod": [(lambda a, b: ops.mod(a * 3.4, b), [S, (4,)], _near)],
    "fmod": [(lambda a, b: ops.fmod(a * 3.4, b), [S, (4,)], _near)],
    "floor_divide": [(lambda a, b: ops.floor_divide(a * 3.4, b), [S, (4,)], _near)],
}  # fmt: skip
