"""Fuses transpositions of heads into attention, whose kernels read and write (B, S, H, D) directly."""

from __future__ import annotations

from rlx.ir import Graph, Node, Rewriter, Tensor, node_of
from rlx.ops.attention.parts import NO_TOKENS, ByToken
from rlx.passes.rewriting import SupportOf, native_everywhere, remove_dead, use_counts

_PERM = (0, 2, 1, 3)


def fuse_heads(graph: Graph, support: SupportOf = native_everywhere) -> Graph:
    """Fuses transpositions around attention into one node with the attribute `tokens`.

    These are transpositions of (B, S, H, D) operands that nothing else reads, and that of the result."""
    if not any(node.op.heads for node in graph.nodes):
        return remove_dead(graph)
    uses = use_counts(graph)
    after = {t.id: node for node in graph.nodes if _turns(node) for t in node.inputs if uses[t.id] == 1}
    new = Rewriter(graph)
    taken: set[int] = set()  # transpositions already replaced by their attention's output
    for node in graph.nodes:
        if id(node) in taken:
            continue
        if not node.op.heads or node.attrs.get("tokens"):
            new.keep(node)
            continue
        operands: list[Tensor] = list(node.inputs)
        tokens = NO_TOKENS
        for k, one in zip(node.op.heads, ByToken, strict=False):
            if _turns(operands[k].node) and uses[operands[k].id] == 1:
                operands[k] = operands[k].node.inputs[0]
                tokens |= one
        last = after.get(node.output.id)
        tokens |= ByToken.Y if last is not None else NO_TOKENS
        attrs = {**node.attrs, "tokens": tokens}
        if not tokens or support(node_of(node.op, [t.type for t in operands], attrs)) != "native":
            new.keep(node)
            continue
        results = new.add(node.op, operands, attrs, node.label)
        new.put((last or node).outputs, results)
        taken.add(id(last or node))
    return remove_dead(new.finish(), graph)


def _turns(node: Node) -> bool:
    perm = node.attrs.get("perm")
    return perm is not None and tuple(perm) == _PERM
