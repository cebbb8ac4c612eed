"""Ops that return a function's results unchanged and carry a rule for its derivatives: custom_vjp, custom_jvp.

The inputs of a node are the function's results, then its arguments; the outputs are the results. Its attribute `rule`
is a `Rule` with the author's functions. Simplification removes the node, which only differentiation needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.autodiff import pullback
from rlx.autodiff.pushforward import cotangent, transposed
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply
from rlx.ir.body import TracedBody
from rlx.ir.graph import traced_into
from rlx.ir.op import REDEFINED
from rlx.ops.batching import spread, sweep
from rlx.records import Record

Grads = Sequence["Tensor | None"]


class Rule(Record, eq=False):
    """An author's rule for the derivatives of a function that takes the leaves `arguments` and has `count` results.

    `back(arguments, gradients of results)` gives a gradient or None for each argument, `forward(arguments, their
    tangents)` a tangent or None for each result; one of the two is None."""

    count: int
    back: Callable[[Sequence[Tensor], Grads], Grads] | None
    forward: Callable[[Sequence[Tensor], Grads], Grads] | None


def with_rule(results: Sequence[Tensor], arguments: Sequence[Tensor], rule: Rule) -> tuple[Tensor, ...]:
    """The results, whose derivatives with respect to the arguments are the rule's."""
    op = _BACK if rule.back is not None else _FORWARD
    return traced_into(results[0].graph).add(op, (*results, *arguments), {"rule": rule})


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    return tuple(types[: attrs["rule"].count])


def _reference(*arrays: Any, rule: Rule) -> Any:
    return arrays[: rule.count]


def _parts(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    return tuple(inputs[: attrs["rule"].count])


def _back_vjp(node: Node, grads: Grads) -> Grads:
    rule: Rule = node.attrs["rule"]
    assert rule.back is not None
    return [*[None] * rule.count, *rule.back(node.inputs[rule.count :], grads)]


def _forward_jvp(node: Node, tangents: Grads) -> Grads:
    rule: Rule = node.attrs["rule"]
    assert rule.forward is not None
    return rule.forward(node.inputs[rule.count :], tangents[rule.count :])


def _forward_vjp(node: Node, grads: Grads) -> Grads:
    """The rule's tangents, which are linear in those of the arguments, transposed."""
    n = node.attrs["rule"].count
    arguments = node.inputs[n:]
    seeds = [cotangent(t) if t.dtype.is_float else None for t in arguments]
    wrt = [t for t in seeds if t is not None]
    if not wrt:
        return [None] * len(node.inputs)
    pushed = _forward_jvp(node, [*[None] * n, *seeds])
    pairs = [(t, d) for t, d in zip(pushed, grads, strict=True) if t is not None and d is not None]
    input_grads = iter(pullback([t for t, _ in pairs], [d for _, d in pairs], wrt, stop=True, since=wrt[0]))
    return [*[None] * n, *(None if t is None else next(input_grads) for t in seeds)]


def _batch(node: Node, inputs: Sequence[Tensor], flags: Sequence[bool], size: int) -> Sequence[Tensor]:
    """The rule for each example: where all share an argument, its gradient is the sum of theirs."""
    rule: Rule = node.attrs["rule"]
    n = rule.count
    shared = [not flag for flag in flags[n:]]

    def each(
        function: Any, arguments: Sequence[Tensor], beside: Grads, apart: Sequence[bool]
    ) -> list[Tensor | None]:
        """A rule's function, for each example; `apart` says which tensors of `beside` have examples."""
        graph = traced_into(arguments[0].graph)
        operands = [(t, not s) for t, s in zip(arguments, shared, strict=True)]
        operands += [(t, a) for t, a in zip(beside, apart, strict=True) if t is not None]
        body = TracedBody(
            "rule", graph, [TensorType(t.shape[1:], t.dtype) if a else t.type for t, a in operands]
        )
        with body.tracing():
            rest = iter(body.given[len(arguments) :])
            results = function(body.given[: len(arguments)], [None if t is None else next(rest) for t in beside])
            outputs = [body.reach(t, "custom rule") for t in results if t is not None]
        known = {t.id: pair for t, pair in zip(body.given, operands, strict=True)}
        for leaf in body.nodes:
            if leaf.op.declared and leaf.output.id not in known:
                known[leaf.output.id] = (body.around(leaf.output), False)
        outs, examples = sweep(body, known, outputs, size, graph)
        spreads = iter(t if b else spread(t, size) for t, b in zip(outs, examples, strict=True))
        return [None if t is None else next(spreads) for t in results]

    def back(arguments: Sequence[Tensor], grads: Grads) -> Grads:
        gradients = each(rule.back, arguments, grads, [True] * len(grads))
        return [
            d if d is None or not s else apply("sum", d, axes=(0,), keepdims=False)
            for d, s in zip(gradients, shared, strict=True)
        ]

    def forward(arguments: Sequence[Tensor], tangents: Grads) -> Grads:
        return each(rule.forward, arguments, tangents, [not s for s in shared])

    results = [t if flag else spread(t, size) for t, flag in zip(inputs[:n], flags, strict=False)]
    wide = Rule(n, back if rule.back is not None else None, forward if rule.forward is not None else None)
    return with_rule(results, inputs[n:], wide)


def _op(name: str, vjp: Any, jvp: Any = None) -> Op:
    op = Op(
        name,
        "control",
        _infer,
        _reference,
        "the author",
        vjp,
        decompose=_parts,
        jvp=jvp,
        batch=_batch,
        forwards=True,
    )
    REDEFINED[id(op)] = op  # graphs may hold it, although no function of rlx has its name
    return op


# A rule that cannot be transposed has no tangent: differentiating the function's own ops would give another one.
_BACK = _op("custom_vjp", _back_vjp, transposed)
_FORWARD = _op("custom_jvp", _forward_vjp, _forward_jvp)
