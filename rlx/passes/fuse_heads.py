"""Transpositions of heads around attention become part of it: its kernels read and write tokens' rows as they lie."""

from __future__ import annotations

from rlx.ir import Graph, Node, Tensor
from rlx.ops.attention_parts import OPERANDS
from rlx.passes.rewriting import Maker, SupportOf, native_everywhere, remove_dead, trial, use_counts

_PERM = (0, 2, 1, 3)


def fuse_heads(graph: Graph, support: SupportOf = native_everywhere) -> Graph:
    """attention of transposed (B, S, H, D) operands that nothing else reads, and the transposition of its result, as
    one node with the attribute `tokens`."""
    uses = use_counts(graph)
    after = {t.id: node for node in graph.nodes if _turns(node) for t in node.inputs if uses[t.id] == 1}
    maker = Maker(graph)
    for node in graph.nodes:
        if node.outputs[0].id in maker.made:
            continue  # a transposition that its attention has made
        if not node.op.heads or node.attrs.get("tokens"):
            maker.copy(node)
            continue
        given: list[Tensor] = list(node.inputs)
        tokens = ""
        for k, letter in zip(node.op.heads, OPERANDS, strict=False):
            if _turns(given[k].node) and uses[given[k].id] == 1:
                given[k] = given[k].node.inputs[0]
                tokens += letter
        last = after.get(node.output.id)
        tokens += "y" if last is not None else ""
        attrs = {**node.attrs, "tokens": tokens}
        if not tokens or support(trial(node.op, [t.type for t in given], attrs)) != "native":
            maker.copy(node)
            continue
        made = maker.new.add(node.op, maker.inputs(given), attrs, node.label)
        maker.put((last or node).outputs, made)
    return remove_dead(maker.finish())


def _turns(node: Node) -> bool:
    return tuple(node.attrs.get("perm", ())) == _PERM
