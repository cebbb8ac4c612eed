"""Forward mode: the tangents of a graph's tensors, given those of some of them.

A node's tangents come from its transposed gradient rule: the rule is linear in the outputs' gradients, so the pullback
of its results with respect to these gradients maps tangents of inputs to tangents of outputs. So every op that has a
gradient has a tangent, with the same slopes at kinks. Only the ops that run bodies have rules of their own (`Op.jvp`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.autodiff.pullback import here, no_gradient, nodes_between, pullback
from rlx.errors import UnsupportedOp
from rlx.ir import Node, Tensor
from rlx.ir.graph import apply
from rlx.ir.op import _NotDifferentiable


def pushforward(
    outputs: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
    wrt: Sequence[Tensor],
    since: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """The tangent of each output, given those of the tensors of `wrt`; None where no tangent reaches it.

    Nodes are appended to the tensors' graph. The tensors of `wrt` count as independent of each other. `since`: as in
    `pullback`. Raises: UnsupportedOp for a node on the path whose op is not differentiable.
    """
    known = {id(t): d for t, d in zip(wrt, tangents, strict=True)}
    for node in nodes_between(outputs, set(known), True, since):
        input_tangents = [known.get(id(t)) if t.dtype.is_float else None for t in node.inputs]
        if all(d is None for d in input_tangents):
            continue
        for t, d in zip(node.outputs, _tangents(here(node), input_tangents), strict=True):
            if d is not None and t.dtype.is_float and id(t) not in known:
                known[id(t)] = d
    return tuple(known.get(id(t)) for t in outputs)


def _tangents(node: Node, tangents: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    if node.op.jvp is not None:
        return node.op.jvp(node, tangents)
    if isinstance(node.op.vjp, _NotDifferentiable):
        if any(t.dtype.is_float for t in node.outputs):
            raise no_gradient(node)
        return [None] * len(node.outputs)
    try:
        return transposed(node, tangents)
    except UnsupportedOp:
        if node.op.decompose is None:
            raise
    # The op of its gradient has none itself; the ops that it consists of may.
    begin = cotangent(node.inputs[0])
    result = node.op.decompose(node.inputs, node.attrs)
    return pushforward((result,) if isinstance(result, Tensor) else result, tangents, node.inputs, begin)


def transposed(node: Node, tangents: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The tangents of a node's outputs by its gradient rule, which is linear in its cotangents.

    Raises: UnsupportedOp where an op of the rule has no gradient."""
    assert not isinstance(node.op.vjp, _NotDifferentiable)
    seeds = [cotangent(t) if t.dtype.is_float else None for t in node.outputs]
    wrt = [t for t in seeds if t is not None]
    if not wrt:
        return seeds
    pairs = [
        (g, d)
        for g, d in zip(node.op.vjp(node, seeds), tangents, strict=True)
        if g is not None and d is not None
    ]
    grads = iter(pullback([g for g, _ in pairs], [d for _, d in pairs], wrt, stop=True, since=wrt[0]))
    return [None if t is None else next(grads) for t in seeds]


def cotangent(like: Tensor) -> Tensor:
    """A new tensor of the same type, as the argument of a rule that is linear in it. Its value does not matter, but a 0
    would: `pullback` leaves out the zeros of gradients, which would then not depend on it."""
    return apply("expand", like.graph.constant(1.0, like.dtype), shape=like.shape)
