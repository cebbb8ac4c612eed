"""Judges (NumPy in the widest float, and exact integers) and gradient cases of reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops
from rlx.dtypes import as_dtype
from tests.ops.gradient_cases import KINK, Gradients, Ties, apart, one_zero
from tests.ops.judging import Array, Judge, one_by_one, wrapped


def _exact(fn: Callable[..., Any]) -> Judge:
    """Sums and products: of integers by exact Python integers, of floats in the widest float of the machine."""

    def judge(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Array:
        if x.dtype.kind == "f":
            return np.asarray(fn(x.astype(np.longdouble), axis=axes, keepdims=keepdims)).astype(np.float64)
        dtype = as_dtype(np.int64 if x.dtype == np.int64 else np.int32)
        total = np.asarray(fn(x.astype(object), axis=axes, keepdims=keepdims), object)
        return one_by_one(lambda v: wrapped(int(v), dtype), dtype.np)(total)

    return judge


def _product(x: Array, *, axis: tuple[int, ...], keepdims: bool) -> Array:
    """numpy.prod of mantissas, a few at a time, and the sum of exponents, so that no partial product of floats leaves
    the range."""
    if x.dtype.kind != "f":
        return np.asarray(np.prod(x, axis=axis, keepdims=keepdims))
    shape = np.sum(x, axis=axis, keepdims=keepdims).shape
    kept = [i for i in range(x.ndim) if i not in axis]
    moved = np.transpose(x, (*kept, *axis))
    mantissas, powers = np.frexp(moved.reshape(*moved.shape[: len(kept)], math.prod(x.shape[i] for i in axis)))
    total, power = np.ones(shape, x.dtype), np.sum(powers, axis=-1, dtype=np.int64).reshape(shape)
    for i in range(0, mantissas.shape[-1], 500):
        total, more = np.frexp(total * np.prod(mantissas[..., i : i + 500], axis=-1).reshape(shape))
        power = power + more
    return np.asarray(np.ldexp(total, np.clip(power, -30_000, 30_000).astype(np.int32)))


def _plain_reduce(fn: Callable[..., Any]) -> Judge:
    return lambda x, *, axes, keepdims: fn(x, axis=axes, keepdims=keepdims)


JUDGES: dict[str, Judge] = {
    "numpy.sum": _exact(np.sum),
    "numpy.prod": _exact(_product),
    "numpy.mean": _exact(np.mean),
    "numpy.max": _plain_reduce(np.max),
    "numpy.min": _plain_reduce(np.min),
    "numpy.isfinite, all": lambda *xs: np.asarray(all(np.isfinite(x.astype(np.float64)).all() for x in xs)),
}
GRADIENTS: Gradients = {
    "sum": [(lambda x: ops.sum(x, (0, 2)), [(2, 3, 4)], None), (lambda x: x.sum(keepdims=True), [(3, 4)], None)],
    "mean": [(lambda x: ops.mean(x, 1), [(3, 4)], None), (lambda x: x.mean(), [(3, 4)], None)],
    "prod": [(lambda x: ops.prod(x, 1), [(3, 4)], None), (lambda x: ops.prod(x, 1), [(3, 4)], one_zero),
             (lambda x: ops.prod(x, (0, 2), keepdims=True), [(2, 3, 2)], None)],
    "max": [(lambda x: ops.max(x, 1), [(3, 4)], apart, KINK), (lambda x: ops.max(x), [(3, 4)], apart, KINK)],
    "min": [(lambda x: ops.min(x, 0, keepdims=True), [(3, 4)], apart, KINK)],
}  # fmt: skip


# Ties of equal elements: the op's graph, and torch's.
TIES: Ties = {
    "max": (lambda x, y: ops.max(x, 1) + ops.max(y), lambda torch, x, y: torch.amax(x, 1) + torch.amax(y)),
    "min": (lambda x, y: ops.min(x, 1) + ops.min(y), lambda torch, x, y: torch.amin(x, 1) + torch.amin(y)),
}
