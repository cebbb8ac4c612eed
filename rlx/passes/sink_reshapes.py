"""sink_reshapes: small tensors are computed before they are reshaped, so that elementwise nodes on both sides meet."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir import Graph, Node, Rewriter, Tensor, rebuild
from rlx.ir.expr import linearize
from rlx.passes.fusion_groups import fusible
from rlx.passes.rewriting import remove_dead
from rlx.passes.trees import literal, node_trees

_MOST_BYTES = 1 << 16  # larger tensors take longer than a launch, and stay as they are


def sink_reshapes(graph: Graph) -> Graph:
    """f(reshape(x)) becomes reshape(f(x)) where an elementwise node made x, and the reshape adds or removes axes of one
    element alone: then f and that node are one launch. Of several operands all must be such, from one shape."""
    return remove_dead(rebuild(graph, _sunk), graph)


def _sunk(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
    if len(node.outputs) != 1 or not inputs or not fusible(node) or "trees" in node.attrs:
        return None
    shape = node.output.shape
    if node.output.type.nbytes > _MOST_BYTES or any(e.prim == "index" for e in linearize(node_trees(node))):
        return None
    numbers = [literal(t) is not None for t in inputs]
    sources = {source(t).id: source(t) for t, number in zip(inputs, numbers, strict=True) if not number}
    if not sources or any(not fusible(x.node) for x in sources.values()):
        return None
    before = next(iter(sources.values())).shape
    if any(x.shape != before for x in sources.values()) or before == shape or _sides(before) != _sides(shape):
        return None
    if any(t.size != 1 or len(t.shape) > len(before) for t, number in zip(inputs, numbers, strict=True) if number):
        return None
    operands = [t if number else source(t) for t, number in zip(inputs, numbers, strict=True)]
    (y,) = new.add(node.op, operands, node.attrs, node.label)
    return new.add("reshape", (y,), {"shape": shape}, node.label)


def source(t: Tensor) -> Tensor:
    """The tensor that t is a reshape of, or t."""
    while t.node.op.reshapes:
        t = t.node.inputs[0]
    return t


def _sides(shape: tuple[int, ...]) -> list[int]:
    return [n for n in shape if n != 1]
