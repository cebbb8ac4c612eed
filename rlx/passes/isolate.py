"""isolate_results: a state that is a result, and gets a new value in the same run, is copied first."""

from __future__ import annotations

from rlx.ir import Graph, Rewriter


def isolate_results(graph: Graph) -> Graph:
    """Copies each state that a run replaces and that is itself an output or another state's new value.

    New values are written into the states after the last node and before outputs are read, so without the copy such a
    result would show the new value. A state that the run does not replace needs no copy.
    """
    changing = {graph.states[name].id for name, t in graph.updates.items() if t is not graph.states[name]}
    results = [*graph.outputs.values(), *(t for name, t in graph.updates.items() if t is not graph.states[name])]
    exposed = {t.id for t in results} & changing
    if not exposed:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        rewriter.keep(node)
    copies = {
        t.id: rewriter.add("copy", (t,), {}, t.node.label)[0] for t in graph.states.values() if t.id in exposed
    }
    new = rewriter.finish()
    for name, t in graph.outputs.items():
        new.outputs[name] = copies.get(t.id, new.outputs[name])
    for name, t in graph.updates.items():
        if t is not graph.states[name]:
            new.updates[name] = copies.get(t.id, new.updates[name])
    return new
