"""Gradient cases of grouped and low-rank products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rlx.ops as ops
from rlx.ir import Tensor, apply

Shape = tuple[int, ...]


def _sizes(x: Tensor, *values: int) -> Tensor:
    """Sizes that are no constant, so that they need not fit."""
    made = x.graph.constant(np.array(values, np.int64)) + ops.cast(ops.sum(x) * 0.0, "i64")
    return ops.cast(made, "i32")


def _grouped(transpose: bool, *sizes: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, w: ops.grouped_matmul(x, w, _sizes(x, *sizes), transpose_w=transpose)


CASES: dict[str, list[tuple[Callable[..., Tensor], list[Shape], Any]]] = {
    "grouped_matmul": [
        (_grouped(False, 2, 0, 3), [(6, 3), (3, 3, 2)], None),
        (_grouped(True, 1, 9, 3), [(6, 3), (3, 2, 3)], None),
        (_grouped(False, -1, 4, 1), [(5, 3), (3, 3, 2)], None),
    ],
    "grouped_matmul_grad": [
        (lambda x, d: apply("grouped_matmul_grad", x, d, _sizes(x, 2, 0, 3)), [(6, 3), (6, 2)], None),
    ],
    "lora_matmul": [
        (
            lambda x, w, a, b: ops.lora_matmul(x, w, a, b, scale=0.5),
            [(2, 3, 4), (4, 3), (4, 2), (2, 3)],
            None,
        ),
        (
            lambda x, w, a, b, bias: ops.lora_matmul(x, w, a, b, bias, scale=2.0, activation="tanh"),
            [(3, 4), (4, 3), (4, 2), (2, 3), (3,)],
            None,
        ),
    ],
}
