"""Judges (Python's own order) and gradient cases of argmax, argmin and sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx import ops
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge, lanes


def _arg(beats: Callable[[Any, Any], bool]) -> Any:
    def judge(x: Array, *, axis: int, keepdims: bool, select_last_index: bool) -> Array:
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        out = np.zeros(shape, np.int64)
        if 0 not in shape:
            for key, line in lanes(x, axis):
                best = 0
                for i, v in enumerate(line):
                    held = line[best]
                    same = v == held or (v != v and held != held)
                    if (same and select_last_index) or (
                        not same and held == held and (v != v or beats(v, held))
                    ):
                        best = i
                out[(*key[:axis], 0, *key[axis + 1 :])] = best
        return out if keepdims else out.reshape(x.shape[:axis] + x.shape[axis + 1 :])

    return judge


def _order(line: list[Any], descending: bool) -> list[int]:
    # Python's sort is stable in both directions.
    return sorted(range(len(line)), key=lambda i: (line[i] != line[i], 0 if line[i] != line[i] else line[i]),
                  reverse=descending)  # fmt: skip


def _sorted(
    x: Array, *, axis: int, descending: bool | None = None, k: int | None = None, largest: bool = False
) -> Any:
    count = x.shape[axis] if k is None else k
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    values, indices = np.zeros(shape, x.dtype), np.zeros(shape, np.int64)
    for key, line in lanes(x, axis):
        found = _order(line, largest if descending is None else descending)[:count]
        values[key], indices[key] = x[key][found], found
    return [values, indices]


def _apart(x: np.ndarray) -> np.ndarray:
    """Numbers of which no two are equal."""
    return np.argsort(np.argsort(x, axis=None)).reshape(x.shape) * 0.37 - 2.0


JUDGES: dict[str, Judge] = {
    "numpy.argmax": _arg(lambda a, b: a > b),
    "numpy.argmin": _arg(lambda a, b: a < b),
    "the stable order of Python's sorted": _sorted,
    "the stable order of Python's sorted, places": lambda x, **attrs: _sorted(x, **attrs)[1],
}
GRADIENTS: Gradients = {
    "sort": [(ops.sort, [(3, 4)], _apart), (lambda x: ops.sort(x, 0, descending=True), [(3, 4)], _apart)],
    "top_k": [
        (lambda x: ops.top_k(x, 2)[0], [(3, 4)], _apart),
        (lambda x: ops.top_k(x, 2, 0, largest=False)[0], [(3, 4)], _apart),
    ],
}  # fmt: skip
