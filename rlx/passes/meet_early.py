"""meet_early: collectives begin as soon as their operands are known, so that waiting for other ranks overlaps work."""

from __future__ import annotations

from rlx.ir import Graph, Node, Rewriter

# Nodes of these families, and nodes with small outputs, move together with the collective that reads them.
_CHEAP = ("elementwise", "movement")
_FEW_BYTES = 1 << 12


def meet_early(graph: Graph) -> Graph:
    """Moves collectives, with the cheap nodes that make what they read, behind the last node that they depend on.

    The gradients of a training step are then summed while the backward pass computes the others. Collectives keep
    their order, which has to be that of all ranks; a rank's operands may be ready earlier than another's."""
    if not any(map(_waits, graph.nodes)):
        return graph
    users: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for t in node.inputs:
            users.setdefault(t.id, []).append(node)
    results = {t.id for t in graph.results()}
    moves: set[int] = set()  # ids of nodes
    for node in reversed(graph.nodes):
        if _waits(node) and not node.attrs.get("spoils"):
            moves.add(id(node))
        elif node.op.is_constant:
            if any(id(n) in moves for t in node.outputs for n in users.get(t.id, ())):
                moves.add(id(node))
        elif _cheap(node) and not any(t.id in results for t in node.outputs):
            readers = [n for t in node.outputs for n in users.get(t.id, ())]
            if any(id(n) in moves for n in readers):
                moves.add(id(node))
    place: dict[int, int] = {}  # tensor's id -> index of the node behind which it is known
    order: list[tuple[int, int, int]] = []
    last = 0  # the place of the previous collective
    for i, node in enumerate(graph.nodes):
        at = i
        if id(node) in moves:
            at = max((place[t.id] for t in node.inputs), default=-1 if node.op.is_constant else i)
            if _waits(node):
                at = last = max(at, last)
        elif _waits(node):
            last = i
        place.update((t.id, at) for t in node.outputs)
        order.append((at, i > at, i))
    order.sort()
    if all(i == k for k, (_, _, i) in enumerate(order)):
        return graph
    rewriter = Rewriter(graph)
    for _, _, i in order:
        rewriter.keep(graph.nodes[i])
    return rewriter.finish()


def _cheap(node: Node) -> bool:
    few = node.op.leaf is None and sum(t.type.nbytes for t in (*node.inputs, *node.outputs)) <= _FEW_BYTES
    return node.op.family in _CHEAP or (few and node.op.control is None)


def _waits(node: Node) -> bool:
    return node.op.meets is not None and node.op.fallible
