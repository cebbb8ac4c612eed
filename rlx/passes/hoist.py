"""hoist: nodes that would give the same result in every step of a loop are computed once, before the loop."""

from __future__ import annotations

from rlx.ir import Graph, Node, Rewriter, Tensor, bodies, rebuild

_LARGE_BYTES = 1 << 20  # an output larger than this and than its node's inputs stays in the loop


def hoist(graph: Graph) -> Graph:
    """Moves nodes that depend on captures alone out of the bodies of while_loop and scan.

    It begins with the innermost loops, and drops captures that nothing reads any more. Ops have no side effects, so
    moving them is safe also where the loop runs no step. Broadcasts stay: reading their source is cheaper.
    """

    if all(node.op.control is None for node in graph.nodes):
        return graph

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        old_bodies = bodies(node)
        inner = {key: hoist(body) for key, body in old_bodies.items()}
        if node.op.control is not None and node.op.control.repeats:
            inner["body"], inputs = _emptied(new, inner["body"], inputs)
        if all(inner[key] is body for key, body in old_bodies.items()):
            return None
        return new.add(node.op, inputs, {**node.attrs, **inner}, node.label)

    return rebuild(graph, rewrite)


def _emptied(new: Rewriter, body: Graph, inputs: tuple[Tensor, ...]) -> tuple[Graph, tuple[Tensor, ...]]:
    """The body without its invariant nodes, which are added to `new`; and the node's inputs, extended by captures of
    the moved nodes' results."""
    first = len(inputs) - len(body.params)
    outside = {t.id: x for t, x in zip(body.params.values(), inputs[first:], strict=True)}
    moved: set[int] = set()
    for node in body.nodes:
        if node.op.leaf or bodies(node) or node.op.broadcasts or _grows(node):
            continue
        # A node that reads only constants was folded already, or is too large to fold.
        operands = [t for t in node.inputs if not t.node.op.is_constant]
        if not operands or any(t.id not in outside for t in operands):
            continue
        ins = [outside[t.id] if t.id in outside else _copied(new, t) for t in node.inputs]
        results = new.add(node.op, ins, node.attrs, node.label)
        outside.update(zip((t.id for t in node.outputs), results, strict=True))
        moved.add(id(node))
    read = {t.id for node in body.nodes if id(node) not in moved for t in node.inputs}
    read |= {t.id for t in body.outputs.values()}
    captured = [t for t in body.tensors() if t.id in outside and t.id in read]

    if [t.id for t in captured] == [t.id for t in body.params.values()]:
        return body, inputs  # nothing moved: a moved node would leave a new capture

    fresh = Rewriter(body)
    for leaf in body.inputs.values():
        fresh.put((leaf,), (fresh.graph.input(leaf.node.attrs["name"], leaf.shape, leaf.dtype),))
    for i, t in enumerate(captured):
        fresh.put((t,), (fresh.graph.param(f"k{i}", t.shape, t.dtype),))
    for node in body.nodes:
        if id(node) not in moved and not node.op.declared:
            fresh.keep(node)
    return fresh.finish(), (*inputs[:first], *(outside[t.id] for t in captured))


def _grows(node: Node) -> bool:
    nbytes = sum(t.type.nbytes for t in node.outputs)
    return nbytes > _LARGE_BYTES and nbytes > sum({t.id: t.type.nbytes for t in node.inputs}.values())


def _copied(new: Rewriter, constant: Tensor) -> Tensor:
    return new.add(constant.node.op, (), constant.node.attrs, constant.node.label)[0]
