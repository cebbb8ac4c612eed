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
    element alone: then f and that node are one launch. Of several operands all must be such, from one shape, but for
    leaves, which are reshaped at no cost, and single functions of leaves, which are computed in that shape."""
    return remove_dead(rebuild(graph, _sunk), graph)


def _sunk(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
    if len(node.outputs) != 1 or not inputs or not fusible(node) or "trees" in node.attrs:
        return None
    shape = node.output.shape
    if node.output.type.nbytes > _MOST_BYTES or any(e.prim == "index" for e in linearize(node_trees(node))):
        return None
    numbers = [literal(t) is not None for t in inputs]
    sources = [source(t) for t, number in zip(inputs, numbers, strict=True) if not number]
    shapes = {x.shape for x in sources if fusible(x.node) and not _of_leaves(x)}
    shapes = shapes or {x.shape for x in sources if fusible(x.node)}
    if len(shapes) != 1 or shape in shapes or any(_sides(x.shape) != _sides(shape) for x in sources):
        return None
    (before,) = shapes
    if any(t.size != 1 or len(t.shape) > len(before) for t, number in zip(inputs, numbers, strict=True) if number):
        return None
    if not all(x.shape == before or x.node.op.leaf or _of_leaves(x) for x in sources):
        return None
    operands = [t if number else _shaped(new, source(t), before) for t, number in zip(inputs, numbers, strict=True)]
    (y,) = new.add(node.op, operands, node.attrs, node.label)
    return new.add("reshape", (y,), {"shape": shape}, node.label)


def _of_leaves(x: Tensor) -> bool:
    """Whether x is one elementwise function of leaves and numbers."""
    node = x.node
    plain = len(node.outputs) == 1 and fusible(node) and "trees" not in node.attrs
    if not plain or any(e.prim == "index" for e in linearize(node_trees(node))):
        return False
    tensors = [t for t in node.inputs if literal(t) is None]
    if not tensors or any(t.ndim for t in node.inputs if literal(t) is not None):
        return False
    return all(source(t).node.op.leaf and _sides(t.shape) == _sides(x.shape) for t in tensors)


def _shaped(new: Rewriter, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A source in this shape."""
    if x.shape == shape:
        return x
    if x.node.op.leaf:
        return new.add("reshape", (x,), {"shape": shape}, x.node.label)[0]
    node = x.node
    operands = [t if literal(t) is not None else _shaped(new, source(t), shape) for t in node.inputs]
    return new.add(node.op, operands, node.attrs, node.label)[0]


def source(t: Tensor) -> Tensor:
    """The tensor that t is a reshape of, or t."""
    while t.node.op.reshapes:
        t = t.node.inputs[0]
    return t


def _sides(shape: tuple[int, ...]) -> list[int]:
    return [n for n in shape if n != 1]
