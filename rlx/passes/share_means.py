"""share_means: where the mean of an f16 or bf16 tensor is computed both in f32 and in its own dtype, sums once."""

from __future__ import annotations

from rlx.dtypes import f32
from rlx.ir import Graph, Node, Rewriter, Tensor
from rlx.passes.fusion_groups import adds_up, widens_half

Key = tuple[int, tuple[int, ...]]


def share_means(graph: Graph) -> Graph:
    """Replaces a mean in f16 or bf16 by the rounded f32 mean of the same tensor, where the graph has both, as in batch
    statistics."""
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
        if mean.dtype != node.output.dtype:
            (mean,) = new.add("cast", [mean], {"dtype": node.output.dtype}, node.label)
        if mean.shape != node.output.shape:
            (mean,) = new.add("reshape", [mean], {"shape": node.output.shape}, node.label)
        new.put(node.outputs, [mean])
    return new.finish()


def _halves(node: Node) -> Tensor | None:
    """The f16 or bf16 tensor of which a node is the mean, computed in its dtype or in f32; None for any other node."""
    if not (node.op.averages and adds_up(node)):
        return None
    x = node.inputs[0]
    if x.dtype.is_half:
        return x
    return x.node.inputs[0] if x.dtype == f32 and widens_half(x.node) else None
