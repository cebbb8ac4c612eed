"""An attention whose gradient the program computes as well leaves the sums of its rows for it."""

from __future__ import annotations

from typing import Any

from rlx.ir import Graph, Node, Rewriter, Tensor, get_op, node_of
from rlx.ops.attention.parts import NO_TOKENS, ByToken
from rlx.passes.rewriting import SupportOf, native_everywhere

_Key = tuple[tuple[int, ...], tuple[Any, ...]]


def keep_sums(graph: Graph, support: SupportOf = native_everywhere) -> Graph:
    """Replaces attention and attention_grad of the same operands by attention_sums and attention_sums_grad, where the
    device has kernels for both: the gradient then need not compute scores twice to know the sums of their weights.

    The result of the attention may be in rows of tokens; its operands may not, since the gradient's are not."""
    forward, gradient = get_op("attention"), get_op("attention_grad")
    made: dict[_Key, Node] = {}
    pairs: dict[int, Node] = {}  # by the id of the attention's result: of its gradient
    for node in graph.nodes:
        if node.op is forward and node.attrs.get("tokens", NO_TOKENS) in (NO_TOKENS, ByToken.Y):
            made.setdefault(_key(node, node.inputs), node)
        elif node.op is gradient:
            attention = made.get(_key(node, node.inputs[1:]))
            if attention is not None and _runs(attention, node, support):
                pairs.setdefault(attention.output.id, node)
    if not pairs:
        return graph
    new = Rewriter(graph)
    kept: dict[_Key, tuple[Tensor, ...]] = {}
    for node in graph.nodes:
        if node.op is forward and node.output.id in pairs:
            results = new.add("attention_sums", node.inputs, node.attrs, node.label)
            kept[_key(node, node.inputs)] = results
            new.put(node.outputs, results[:1])
        elif node.op is gradient and _key(node, node.inputs[1:]) in kept:
            attention = made[_key(node, node.inputs[1:])]
            inputs = (node.inputs[0], *kept[_key(node, node.inputs[1:])], *node.inputs[1:])
            new.put(node.outputs, new.add("attention_sums_grad", inputs, attention.attrs, node.label))
        else:
            new.keep(node)
    return new.finish()


def _key(node: Node, operands: tuple[Tensor, ...]) -> _Key:
    """What an attention and its gradient have in common."""
    attrs = node.attrs
    names = ("scale", "causal", "window", "softcap")
    return tuple(t.id for t in operands), tuple(attrs.get(name) for name in names)


def _runs(attention: Node, gradient: Node, support: SupportOf) -> bool:
    """Whether the device has kernels for both replacements."""
    one = node_of(get_op("attention_sums"), [t.type for t in attention.inputs], attention.attrs)
    types = [gradient.inputs[0].type, *(t.type for t in one.outputs), *(t.type for t in gradient.inputs[1:])]
    two = node_of(get_op("attention_sums_grad"), types, attention.attrs)
    return support(one) == support(two) == "native"
