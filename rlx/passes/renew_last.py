"""renew_last: new values of states are computed after the last read of the old ones, so that they can overwrite
them."""

from __future__ import annotations

from rlx.ir import Graph, Node, Rewriter


def renew_last(graph: Graph) -> Graph:
    """Moves nodes that make a state's new value after the other nodes that read the old one.

    The planner can then place the new value in the state's memory instead of copying it there at the end. A node is not
    moved if keeping its inputs until then would take more memory than that saves, or if another node needs its result
    earlier.
    """
    order = list(graph.nodes)
    place = {id(node): i for i, node in enumerate(order)}
    users: dict[int, list[Node]] = {}
    for node in order:
        for t in node.inputs:
            users.setdefault(t.id, []).append(node)
    kept = {t.id for t in graph.results()}
    for name, t in graph.updates.items():
        node, state = t.node, graph.states[name]
        others = [place[id(n)] for n in users.get(state.id, ()) if n is not node]
        last = max(others, default=-1)
        if node.op.leaf or node.op.view is not None or last < place[id(node)]:
            continue
        if any(place[id(n)] <= last for out in node.outputs for n in users.get(out.id, ())):
            continue
        longer = [
            x for x in {x.id: x for x in node.inputs}.values()
            if not x.node.op.leaf and x.id not in kept and max(place[id(n)] for n in users[x.id]) < last
        ]  # fmt: skip
        if sum(x.type.nbytes for x in longer) > t.type.nbytes:
            continue
        first = place[id(node)]
        order.insert(last, order.pop(first))
        for i in range(first, last + 1):
            place[id(order[i])] = i
    if all(a is b for a, b in zip(order, graph.nodes, strict=True)):
        return graph
    rewriter = Rewriter(graph)
    for node in order:
        rewriter.keep(node)
    return rewriter.finish()
