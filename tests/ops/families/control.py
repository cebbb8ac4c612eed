"""Judges (Python's own statements; the bodies are evaluated op by op) and gradient cases of branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.conformance.oracle import evaluate
from rlx.ir import Graph, Tensor
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge


def _call(body: Graph, *arrays: Array) -> list[Array]:
    names = [*body.inputs, *body.params]
    upcast = any(a.dtype == np.float64 for a in arrays)
    values = evaluate(body, dict(zip(names, arrays, strict=True)), upcast)
    return [values[t.id] for t in body.outputs.values()]


def _if(pred: Array, *given: Array, then: Graph, otherwise: Graph) -> list[Array]:
    if pred:
        return _call(then, *given)
    return _call(otherwise, *given)


def _while(going: Array, *given: Array, body: Graph, max_steps: int | None) -> list[Array]:
    n = len(body.inputs)
    carry, captured = list(given[:n]), given[n:]
    while going:
        going, *carry = _call(body, *carry, *captured)
    return carry


def _for(*given: Array, body: Graph, carries: int, length: int, reverse: bool) -> list[Array]:
    count = len(body.inputs)
    carry: Sequence[Array] = given[:carries]
    kept: dict[int, list[Array]] = {}
    for i in sorted(range(length), reverse=reverse):
        made = _call(body, *carry, *(x[i] for x in given[carries:count]), *given[count:])
        carry, kept[i] = made[:carries], made[carries:]
    ys = list(body.outputs.values())[carries:]
    stacked = [
        np.empty((length, *t.shape), kept[0][k].dtype if kept else np.float64) for k, t in enumerate(ys)
    ]
    for i, rows in kept.items():
        for out, row in zip(stacked, rows, strict=True):
            out[i] = row
    return [*carry, *stacked]


def _branch(truth: bool) -> Callable[..., Tensor]:
    def build(x: Tensor, w: Tensor) -> Tensor:
        pred = (ops.sum(x) * 0.0 == 0.0) if truth else (ops.sum(x) * 0.0 != 0.0)
        y, z = ops.cond(pred, lambda a: (a @ w, a * a), lambda a: (ops.sin(a @ w), a), x)
        return ops.concat([y, z], 1)

    return build


def _until(x: Tensor, w: Tensor) -> Tensor:
    """Steps until the sum of squares passes a limit, of fewer than there may be."""
    def going(c: tuple[Tensor, Tensor]) -> Tensor:
        return ops.logical_and(c[0] < 9, ops.sum(c[1] * c[1]) < 40.0)

    n, y = ops.while_loop(going, lambda c: (c[0] + 1, c[1] * 1.5 + ops.tanh(x + w)), (0, x), max_steps=12)
    return y * ops.cast(n, y.dtype)


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


JUDGES: dict[str, Judge] = {
    "Python's if": _if,
    "Python's while": _while,
    "Python's for": _for,
}
GRADIENTS: Gradients = {
    "cond": [
        (_branch(True), [(3, 4), (4, 2)], None),
        (_branch(False), [(3, 4), (4, 2)], None),
        (_loop_in_a_branch, [(3, 4)], None),
    ],
    "while_loop": [(_until, [(4, 4), (4, 4)], None)],
    "scan": [
        (_rnn(False), [(4,), (3, 4), (4, 4)], None),
        (_rnn(True), [(4,), (3, 4), (4, 4)], None),
        (lambda x: ops.scan(lambda c, row: (c, row * row), (), x)[1], [(3, 4)], None),
        (lambda x: ops.scan(lambda c, _: (c * c * 0.5, c), x, length=3)[1], [(4,)], None),
    ],
}  # fmt: skip
