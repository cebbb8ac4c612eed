"""Gradient cases of cond and scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rlx.ops as ops
from rlx.ir import Tensor

Shape = tuple[int, ...]
S = (3, 4)


def _branch(truth: bool) -> Callable[..., Tensor]:
    def build(x: Tensor, w: Tensor) -> Tensor:
        pred = (ops.sum(x) * 0.0 == 0.0) if truth else (ops.sum(x) * 0.0 != 0.0)
        y, z = ops.cond(pred, lambda a: (a @ w, a * a), lambda a: (ops.sin(a @ w), a), x)
        return ops.concat([y, z], 1)

    return build


def _rnn(reverse: bool) -> Callable[..., Tensor]:
    def build(h: Tensor, xs: Tensor, w: Tensor) -> Tensor:
        def step(c: tuple[Tensor, Tensor], x: Tensor) -> Any:
            n, h = c
            h = ops.tanh(h @ w + x)
            return (n + 1, h), (h * x, n)

        (_, last), (ys, _) = ops.scan(step, (0, h), xs, reverse=reverse)
        return ops.concat([last.reshape(1, -1), ys], 0)

    return build


def _loop_in_a_branch(x: Tensor) -> Tensor:
    looped = lambda a: ops.scan(lambda c, row: (c * row + c, None), a[0], a)[0]  # noqa: E731
    return ops.cond(ops.sum(x) * 0.0 == 0.0, looped, lambda a: a[1], x)


CASES: dict[str, list[tuple[Any, list[Shape], Callable[[np.ndarray], np.ndarray] | None]]] = {
    "cond": [
        (_branch(True), [S, (4, 2)], None),
        (_branch(False), [S, (4, 2)], None),
        (_loop_in_a_branch, [S], None),
    ],
    "scan": [
        (_rnn(False), [(4,), S, (4, 4)], None),
        (_rnn(True), [(4,), S, (4, 4)], None),
        (lambda x: ops.scan(lambda c, row: (c, row * row), (), x)[1], [S], None),
        (lambda x: ops.scan(lambda c, _: (c * c * 0.5, c), x, length=3)[1], [(4,)], None),
    ],
}
