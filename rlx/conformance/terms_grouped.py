"""Term sizes of grouped and low-rank products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.ir import Attrs
from rlx.ir.op import get_op
from rlx.ops.numeric import Array


def _squares(op: str) -> Callable[[Sequence[Array], Attrs], Any]:
    """The op itself over the squares of its operands."""

    def rule(inputs: Sequence[Array], attrs: Attrs) -> Any:
        x, w, sizes = inputs
        return np.sqrt(get_op(op).reference(np.square(x), np.square(w), sizes.astype(np.int64), **attrs))

    return rule


def _lora(inputs: Sequence[Array], attrs: Attrs) -> Any:
    x, w, a, b = (np.square(t) for t in inputs[:4])
    squares = x @ w + attrs["scale"] ** 2 * ((x @ a) @ b)
    return np.sqrt(squares + np.square(inputs[4]) if len(inputs) == 5 else squares)


RULES: dict[str, Callable[[Sequence[Array], Attrs], Any]] = {
    "grouped_matmul": _squares("grouped_matmul"),
    "grouped_matmul_grad": _squares("grouped_matmul_grad"),
    "lora_matmul": _lora,
}
