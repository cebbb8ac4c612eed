"""Means of the same halves, in f32 and rounded, become one sum."""

from __future__ import annotations

from rlx.dtypes import f32
from rlx.ir import Graph, Node, Rewriter, Tensor
from rlx.passes.fusion_groups import adds_up, widens_half

Key = tuple[int, tuple[int, ...]]


def share_means(graph: Graph) -> Graph:
    """Rounds a mean of halves from the mean of the same numbers in f32, where the graph has both: statistics of a batch
    are read once."""
    means = [(node, _halves(node)) for node in graph.nodes]
    keys = {id(node): (x.id, tuple(node.attrs["axes"])) for node, x in means if x is not None}
    narrow = {keys[id(node)] for node, x in means if x is not None and node.inputs[0] is x}
    shared = narrow & {keys[id(node)] for node, x in means if x is not None and node.inputs[0] is not x}
    if not shared:
        return graph
    new = Rewriter(graph)
    sums: dict[Key, Tensor] = {}
    for node in graph.nodes:
        key = keys.get(id(node))
        x = _halves(node) if key in shared else None
        if key is None or x is None:
            new.keep(node)
            continue
        if key not in sums:
            (wide,) = new.add("cast", new.inputs([x]), {"dtype": f32}, node.label)
            (sums[key],) = new.add(node.op, [wide], {"axes": node.attrs["axes"], "keepdims": True}, node.label)
        mean = sums[key]
        if mean.shape != node.output.shape:
            (mean,) = new.add("reshape", [mean], {"shape": node.output.shape}, node.label)
        if mean.dtype != node.output.dtype:
            (mean,) = new.add("cast", [mean], {"dtype": node.output.dtype}, node.label)
        new.put(node.outputs, [mean])
    return new.finish()


def _halves(node: Node) -> Tensor | None:
    """The halves of which a node is the mean, in their dtype or in f32; None for any other node."""
    if not (node.op.averages and adds_up(node)):
        return None
    x = node.inputs[0]
    if x.dtype.is_half:
        return x
    return x.node.inputs[0] if x.dtype == f32 and widens_half(x.node) else None
