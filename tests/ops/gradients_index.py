"""Gradient cases of select, scan and index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rlx.ops as ops
from rlx.ir import Tensor

Shape = tuple[int, ...]
S = (3, 4)


def _indices(x: Tensor, values: Any) -> Tensor:
    return x.graph.constant(np.array(values, np.int64))


def _wild(x: Tensor, values: Any) -> Tensor:
    """Indices that are no constant, so that they may be out of range."""
    return _indices(x, values) + ops.cast(ops.sum(x) * 0.0, "i64")


def _apart(x: np.ndarray) -> np.ndarray:
    """No two elements alike."""
    return np.argsort(np.argsort(x, axis=None)).reshape(x.shape) * 0.37 - 2.0


def _one_zero(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[0, 1] = 0.0
    x[1, 0] = x[1, 2] = 0.0
    return x


def _scan(name: str, **attrs: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: getattr(ops, name)(x, 1, **attrs)


def _scatter(reduction: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, u: ops.scatter(x, _wild(x, [2, 0, 2, -4, 9, 2]), u, 0, reduction)


def _elements(reduction: str) -> Callable[[Tensor, Tensor], Tensor]:
    places = [[0, 2, -1, 2], [9, 1, 3, -9]]
    return lambda x, u: ops.scatter_elements(x, _wild(x, places), u, 1, reduction)


_SCANS = ({}, {"exclusive": True}, {"reverse": True}, {"exclusive": True, "reverse": True})
ROWS, UPDATES = (4, 3), (6, 3)

CASES: dict[str, list[tuple[Any, list[Shape], Callable[[np.ndarray], np.ndarray] | None]]] = {
    "sort": [(ops.sort, [S], _apart), (lambda x: ops.sort(x, 0, descending=True), [S], _apart)],
    "top_k": [
        (lambda x: ops.top_k(x, 2)[0], [S], _apart),
        (lambda x: ops.top_k(x, 2, 0, largest=False)[0], [S], _apart),
    ],
    "cumsum": [(_scan("cumsum", **attrs), [S], None) for attrs in _SCANS],
    "cumprod": [
        (_scan("cumprod", **attrs), [S], prepare) for attrs in _SCANS for prepare in (None, _one_zero)
    ]
    + [(lambda x: ops.cumprod(x, 0), [(7, 2)], None)],
    "log_softmax": [(ops.log_softmax, [S], None), (lambda x: ops.log_softmax(x, 0), [S], None)],
    "logsumexp": [
        (lambda x: ops.logsumexp(x, 1), [S], None),
        (ops.logsumexp, [S], None),
        (lambda x: ops.logsumexp(x, (0, 2), keepdims=True), [(2, 3, 4)], None),
        (lambda x: ops.logsumexp(x, (0, 1)), [(2, 3, 4)], None),
    ],
    "gather_elements": [
        (lambda x: ops.gather_elements(x, _indices(x, [[0, 2, -1, 2], [3, 3, 0, 1]]), 1), [S], None),
        (lambda x: ops.gather_elements(x, _wild(x, [[0, 2, -9, 7]]), 0), [S], None),
        (lambda x: ops.take_along_axis(x, _indices(x, [[1], [2], [-1]]), 1), [S], None),
    ],
    "scatter": [(_scatter(r), [ROWS, UPDATES], None) for r in ("none", "add", "mul")]
    + [(_scatter("mul"), [ROWS, UPDATES], _one_zero)]
    + [(_scatter(r), [ROWS, UPDATES], None) for r in ("min", "max")]
    + [
        (lambda u: ops.segment_sum(u, _wild(u, [1, 1, 0, 5, -1, 1]), 3), [UPDATES], None),
        (lambda x, u: ops.scatter(x, _indices(x, [[0, 1], [1, 3]]), u, 1), [(2, 4, 3), (2, 2, 2, 3)], None),
        (
            lambda x, u: ops.scatter_nd(x, _wild(x, [[0, 1], [3, -1], [0, 1], [0, 7]]), u, "add"),
            [ROWS, (4,)],
            None,
        ),
        (lambda x: ops.gather_nd(x, _indices(x, [[0, 1], [3, -1], [0, 1]])), [ROWS], None),
    ],
    "scatter_elements": [(_elements(r), [S, (2, 4)], None) for r in ("none", "add", "mul", "min", "max")],
    "dynamic_slice": [
        (lambda x: ops.dynamic_slice(x, (1, 2), (2, 2)), [S], None),
        (lambda x: ops.dynamic_slice(x, (-5, 9), (2, 1)), [S], None),
    ],
    "dynamic_update_slice": [(lambda x, u: ops.dynamic_update_slice(x, u, (9, 1)), [S, (2, 2)], None)],
}
