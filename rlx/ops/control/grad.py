"""The gradients of cond and scan, written with cond and scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlx.autodiff.pullback import pullback
from rlx.ir import Graph, Node, Tensor, inline
from rlx.ir.graph import traced_into
from rlx.ops.composite import zeros_like
from rlx.ops.control.functions import cond, scan

Grads = Sequence["Tensor | None"]


def _floats(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t for t in tensors if t.dtype.is_float]


def _spread(found: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """One gradient for each input: the found ones, in order, for the floats; None for the others."""
    rest = iter(found)
    return [next(rest) if t.dtype.is_float else None for t in inputs]


def _or_zeros(d: Tensor | None, like: Tensor) -> Tensor:
    return zeros_like(like) if d is None else d


def cond_vjp(node: Node, grads: Grads) -> Grads:
    """The pullback of the branch that was taken; its forward values are recomputed."""
    pred, *given = node.inputs
    known = {i: d for i, d in enumerate(grads) if d is not None and d.dtype.is_float}

    def back(body: Graph) -> Any:
        def run(given: list[Tensor], ds: list[Tensor]) -> list[Tensor]:
            outs = inline(body, given[0].graph, given)
            wrt = _floats(given)
            found = pullback([outs[i] for i in known], ds, wrt)
            return [_or_zeros(d, t) for d, t in zip(found, wrt, strict=True)]

        return run

    if not known or not _floats(given):
        return [None] * len(node.inputs)
    made = cond(pred, back(node.attrs["then"]), back(node.attrs["otherwise"]), given, list(known.values()))
    return [None, *_spread(made, given)]


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
        found = [_or_zeros(d, t) for d, t in zip(pullback(ends, [*ds, *dys], wrt), wrt, strict=True)]
        a, b = len(_floats(before)), len(wrt) - len(_floats(outside))
        return [found[:a], [s + d for s, d in zip(sums, found[b:], strict=True)]], found[a:b]

    begin = [d_carry, [zeros_like(t) for t in _floats(captured)]]
    (first, sums), d_xs = scan(back, begin, [kept, list(xs), list(known.values())], length, not reverse)
    return [*_spread(first, start), *_spread(d_xs, xs), *_spread(sums, captured)]
