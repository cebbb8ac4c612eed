"""The records of cond, while_loop and scan.

A node's inputs are: a predicate (scan has none), the values for its bodies' inputs (a scan's body gets slices of xs),
and the captures, which are the bodies' params. See rlx.ir.body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import bool_
from rlx.errors import ShapeError, StepLimitExceeded
from rlx.ir import Attrs, Control, Cost, Graph, Node, Op, TensorType, bodies, register
from rlx.ops import batching
from rlx.ops.base import check_inputs
from rlx.ops.control import grad as control_grad
from rlx.ops.control.functions import same_type
from rlx.ops.control.steps import spend, weight
from rlx.ops.interpret import run_body
from rlx.ops.numeric import Array

FAMILY = "control"
_BOOL = TensorType((), bool_)


def _check_body(op: str, body: Graph, types: Sequence[TensorType]) -> None:
    leaves = [*body.inputs.values(), *body.params.values()]
    check_inputs(f"{op} (its body {body.name!r})", types, len(leaves))
    for leaf, t in zip(leaves, types, strict=True):
        same_type(f"{op}: {leaf.node.label} of its body {body.name!r} is given", t, leaf.type)


def _types(body: Graph) -> list[TensorType]:
    return [t.type for t in body.outputs.values()]


def _some(op: str, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if not types:
        raise ShapeError(f"{op}: its bodies give no tensor; nothing would be computed")
    return tuple(types)


def _cond_infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    then, other = attrs["then"], attrs["otherwise"]
    check_inputs("cond", types, 1, 1 << 30)
    same_type("cond: the predicate is, and should be", types[0], _BOOL)
    for body in (then, other):
        _check_body("cond", body, types[1:])
    check_inputs("cond: the second branch, for the results of the first", _types(other), len(then.outputs))
    for i, (a, b) in enumerate(zip(_types(then), _types(other), strict=True)):
        same_type(f"cond: result {i} of the branches", a, b)
    return _some("cond", _types(then))


def _while_infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    body = attrs["body"]
    check_inputs("while_loop", types, 1, 1 << 30)
    same_type("while_loop: the predicate is, and should be", types[0], _BOOL)
    _check_body("while_loop", body, types[1:])
    again, *carried = _types(body) or [_BOOL]
    same_type("while_loop: the predicate after a step is, and should be", again, _BOOL)
    _check_carries("while_loop", types[1:], len(body.inputs), carried)
    return _some("while_loop", carried)


def _check_carries(op: str, before: Sequence[TensorType], count: int, after: Sequence[TensorType]) -> None:
    check_inputs(f"{op}: the carry after a step", after, count)
    for i, (a, b) in enumerate(zip(before, after, strict=False)):
        same_type(f"{op}: carry {i} goes in and comes back as", a, b)


def _scan_infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    body, n, length = attrs["body"], attrs["carries"], attrs["length"]
    count = len(body.inputs)
    for i, t in enumerate(types[n:count]):
        if t.shape[:1] != (length,):
            raise ShapeError(f"scan: xs {i} is {t}; expected {length} along axis 0")
    slices = [TensorType(t.shape[1:], t.dtype) for t in types[n:count]]
    _check_body("scan", body, [*types[:n], *slices, *types[count:]])
    results = _types(body)
    _check_carries("scan", types[:n], n, results[:n])
    return _some("scan", [*results[:n], *(TensorType((length, *t.shape), t.dtype) for t in results[n:])])


def _upcast(arrays: Sequence[Array], *parts: Graph) -> bool:
    """Whether an input is float64 although the bodies declare only smaller floats: then they compute in float64."""
    leaves = [t for body in parts for t in (*body.inputs.values(), *body.params.values())]
    declared = {t.dtype.name for t in leaves if t.dtype.is_float}
    return bool(declared) and "f64" not in declared and any(a.dtype == np.float64 for a in arrays)


def _cond(
    pred: Array, *inputs: Array, then: Graph, otherwise: Graph, upcast: bool | None = None
) -> tuple[Array, ...]:
    wide = _upcast(inputs, then, otherwise) if upcast is None else upcast
    return tuple(run_body(then if bool(pred) else otherwise, inputs, wide))


def _while(
    going: Array, *inputs: Array, body: Graph, max_steps: int | None, upcast: bool | None = None
) -> tuple[Array, ...]:
    wide = _upcast(inputs, body) if upcast is None else upcast
    n, steps, again = len(body.inputs), 0, bool(going)
    carry, captured, each = list(inputs[:n]), inputs[n:], weight(body)
    while again:
        if steps == max_steps:
            raise step_limit("while_loop", max_steps)
        spend("while_loop", 1, each)
        results = run_body(body, (*carry, *captured), wide)
        again, carry, steps = bool(results[0]), results[1:], steps + 1
    return tuple(carry)


def step_limit(name: str, max_steps: int) -> StepLimitExceeded:
    """The error of a loop that has not ended after `max_steps` steps."""
    return StepLimitExceeded(
        f"{name}: still going after max_steps = {max_steps} steps; raise the limit, or look at its condition"
    )


def _scan(
    *inputs: Any, body: Graph, carries: int, length: int, reverse: bool, upcast: bool | None = None
) -> tuple[Array, ...]:
    count = len(body.inputs)
    wide = _upcast(inputs, body) if upcast is None else upcast
    carry, xs, captured = list(inputs[:carries]), inputs[carries:count], inputs[count:]
    kept: list[list[Array]] = [[] for _ in range(len(body.outputs) - carries)]
    spend("scan", length, weight(body))
    for i in reversed(range(length)) if reverse else range(length):
        results = run_body(body, (*carry, *(x[i] for x in xs), *captured), wide)
        carry = results[:carries]
        for rows, y in zip(kept, results[carries:], strict=True):
            rows.append(y)
    stacked = []
    for rows, t in zip(kept, _types(body)[carries:], strict=True):
        dtype = np.dtype(np.float64) if wide and t.dtype.is_float else t.dtype.np
        stacked.append(np.array(rows[::-1] if reverse else rows, dtype).reshape(length, *t.shape))
    return (*carry, *stacked)


def _cond_cost(node: Node) -> Cost:
    """The cost of the more expensive branch, in steps."""
    return Cost(0, steps=max(weight(body) for body in bodies(node).values()))


register(
    Op("cond", FAMILY, _cond_infer, _cond, "Python's if", control_grad.cond_vjp,
       jvp=control_grad.cond_jvp, control=Control(predicate=True, repeats=False), cost=_cond_cost,
       batch=batching.batched_cond)
)  # fmt: skip
register(
    Op("while_loop", FAMILY, _while_infer, _while, "Python's while", control_grad.while_vjp,
       jvp=control_grad.while_jvp, control=Control(predicate=True, repeats=True), batch=batching.batched_while)
)  # fmt: skip
register(
    Op("scan", FAMILY, _scan_infer, _scan, "Python's for", control_grad.scan_vjp,
       jvp=control_grad.scan_jvp, control=Control(predicate=False, repeats=True), batch=batching.batched_scan)
)  # fmt: skip
