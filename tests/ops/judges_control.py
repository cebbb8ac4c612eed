"""The judges of control ops: Python's own statements; the bodies are evaluated op by op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.conformance.oracle import evaluate
from rlx.ir import Graph

Array = np.ndarray[Any, Any]


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


JUDGES: dict[str, Callable[..., Any]] = {"Python's if": _if, "Python's while": _while, "Python's for": _for}
