"""The gradients and tangents of control ops, written with control ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.autodiff.pullback import pullback
from rlx.autodiff.pushforward import cotangent, pushforward
from rlx.errors import UnsupportedOp
from rlx.ir import Graph, Node, Tensor, inline
from rlx.ir.graph import apply, traced_into
from rlx.ops.composite import zeros_like
from rlx.ops.control.functions import cond, scan, while_loop

Grads = Sequence["Tensor | None"]


def _floats(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t for t in tensors if t.dtype.is_float]


def _spread(gradients: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """One gradient for each input: the found ones, in order, for the floats; None for the others."""
    rest = iter(gradients)
    return [next(rest) if t.dtype.is_float else None for t in inputs]


def _or_zeros(d: Tensor | None, like: Tensor) -> Tensor:
    return zeros_like(like) if d is None else d


def cond_vjp(node: Node, grads: Grads) -> Grads:
    """The pullback of the branch that was taken; its forward values are recomputed."""
    pred, *operands = node.inputs
    known = {i: d for i, d in enumerate(grads) if d is not None and d.dtype.is_float}

    def back(body: Graph) -> Any:
        def run(inputs: list[Tensor], ds: list[Tensor]) -> list[Tensor]:
            outs = inline(body, inputs[0].graph, inputs)
            wrt = _floats(inputs)
            input_grads = pullback([outs[i] for i in known], ds, wrt)
            return [_or_zeros(d, t) for d, t in zip(input_grads, wrt, strict=True)]

        return run

    if not known or not _floats(operands):
        return [None] * len(node.inputs)
    input_grads = cond(pred, back(node.attrs["then"]), back(node.attrs["otherwise"]), operands, list(known.values()))
    return [None, *_spread(input_grads, operands)]


def scan_vjp(node: Node, grads: Grads) -> Grads:
    """A second forward scan that stores the carry before each step, then the steps' pullbacks from last to first."""
    body, n, reverse = node.attrs["body"], node.attrs["carries"], node.attrs["reverse"]
    count, length = len(body.inputs), node.attrs["length"]
    start, xs, captured = node.inputs[:n], node.inputs[n:count], node.inputs[count:]
    graph = node.inputs[0].graph if node.inputs else None
    if graph is None:
        return []

    def keep(carry: list[Tensor], x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        outs = inline(body, graph, (*carry, *x, *captured))
        return list(outs[:n]), carry

    kept = scan(keep, list(start), list(xs), length, reverse)[1] if n else []
    d_carry = [_or_zeros(d, t) for d, t in zip(grads[:n], node.outputs[:n], strict=True) if t.dtype.is_float]
    known = {i: d for i, d in enumerate(grads[n:], n) if d is not None and d.dtype.is_float}

    def back(total: list[list[Tensor]], at: list[list[Tensor]]) -> tuple[list[list[Tensor]], list[Tensor]]:
        ds, sums = total
        before, x, dys = at
        here = traced_into(graph)
        outside = [here.reach(t, "scan: gradient") for t in captured]
        outs = inline(body, here, (*before, *x, *outside))
        ends = [*_floats(outs[:n]), *(outs[i] for i in known)]
        wrt = [*_floats(before), *_floats(x), *_floats(outside)]
        input_grads = [_or_zeros(d, t) for d, t in zip(pullback(ends, [*ds, *dys], wrt), wrt, strict=True)]
        a, b = len(_floats(before)), len(wrt) - len(_floats(outside))
        return [input_grads[:a], [s + d for s, d in zip(sums, input_grads[b:], strict=True)]], input_grads[a:b]

    begin = [d_carry, [zeros_like(t) for t in _floats(captured)]]
    (first, sums), d_xs = scan(back, begin, [kept, list(xs), list(known.values())], length, not reverse)
    return [*_spread(first, start), *_spread(d_xs, xs), *_spread(sums, captured)]


def while_vjp(node: Node, grads: Grads) -> Grads:
    """The gradient of a scan of `max_steps` steps, in which steps after the loop's end pass the carry on unchanged.

    The number of steps comes from a second run of the loop, which fails if the first would: a loop that was cut short
    has no gradient. Raises: UnsupportedOp without `max_steps`, since all carries must be stored."""
    going, *operands = node.inputs
    body, limit = node.attrs["body"], node.attrs["max_steps"]
    if limit is None:
        raise UnsupportedOp(
            f"gradient: while_loop ({node}) has no limit of steps, so that there is no room for what its gradient "
            "reads; write while_loop(..., max_steps=n), scan, fori_loop with bounds that are Python ints, or use "
            "rlx.jvp, which goes forward"
        )
    n = len(body.inputs)
    start, captured = operands[:n], operands[n:]
    begin = cotangent(going)

    def run(carry: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        again, *carried = inline(body, carry[0].graph, (*carry, *captured))
        return again, list(carried)

    def count(at: Any) -> Any:
        again, carried = run(at[2])
        return again, at[1] + 1, carried

    first = going.graph.constant(0, "i32")
    steps = while_loop(lambda at: at[0], count, (going, first, list(start)), max_steps=limit)[1]

    def step(at: Any, _: Any) -> Any:
        i, carry = at
        return (i + 1, cond(i < steps, lambda c: run(c)[1], lambda c: c, carry)), None

    outs = scan(step, (first, list(start)), None, int(limit))[0][1]
    return pullback(outs, grads, node.inputs, stop=True, since=begin)


def _both(tensors: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor]:
    """The tangent of each float tensor; zeros for those without one."""
    return [_or_zeros(d, t) for t, d in zip(tensors, tangents, strict=True) if t.dtype.is_float]


def _pushed(body: Graph, inputs: Sequence[Tensor], ds: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """A body's outputs for values of its inputs, and the tangents of its float outputs, given those of float inputs."""
    begin = cotangent(inputs[0])
    sources = [t if not t.dtype.is_float else apply("cast", t, dtype=t.dtype) for t in inputs]
    outs = list(inline(body, begin.graph, sources))
    pushed = pushforward(outs, ds, _floats(sources), since=begin)
    return outs, _both(outs, pushed)


def cond_jvp(node: Node, tangents: Grads) -> Grads:
    """The tangents of the branch that is taken."""
    pred, *operands = node.inputs

    def run(body: Graph) -> Any:
        return lambda inputs, ds: _pushed(body, inputs, ds)[1]

    ds = _both(operands, tangents[1:])
    pushed = cond(pred, run(node.attrs["then"]), run(node.attrs["otherwise"]), operands, ds)
    return _spread(pushed, node.outputs)


def while_jvp(node: Node, tangents: Grads) -> Grads:
    """A loop whose carry has the tangents beside the values."""
    going, *operands = node.inputs
    body, n = node.attrs["body"], len(node.attrs["body"].inputs)
    outside, d_outside = operands[n:], _both(operands[n:], tangents[1 + n :])

    def step(at: Any) -> Any:
        _, carry, ds = at
        (again, *carried), pushed = _pushed(body, (*carry, *outside), (*ds, *d_outside))
        return again, carried, pushed

    start = (going, operands[:n], _both(operands[:n], tangents[1 : 1 + n]))
    pushed = while_loop(lambda at: at[0], step, start, max_steps=node.attrs["max_steps"])[2]
    return _spread(pushed, node.outputs)


def scan_jvp(node: Node, tangents: Grads) -> Grads:
    """A scan whose carry and rows have the tangents beside the values."""
    body, n, count = node.attrs["body"], node.attrs["carries"], len(node.attrs["body"].inputs)
    start, xs, outside = node.inputs[:n], node.inputs[n:count], node.inputs[count:]
    d_outside = _both(outside, tangents[count:])

    def step(at: Any, row: Any) -> Any:
        (carry, ds), (x, dx) = at, row
        outs, pushed = _pushed(body, (*carry, *x, *outside), (*ds, *dx, *d_outside))
        kept = len(_floats(carry))
        return (outs[:n], pushed[:kept]), pushed[kept:]

    first = (list(start), _both(start, tangents[:n]))
    rows = (list(xs), _both(xs, tangents[n:count]))
    (_, ends), ys = scan(step, first, rows, node.attrs["length"], node.attrs["reverse"])
    return _spread([*ends, *ys], node.outputs)
