"""Consecutive products with the same A, such as a layer's queries, keys and values, run as one batch with a stride of 0
for A.

Which products form a batch depends on the graph and the offsets of weights, never on the offsets of results: a
library's batched product may differ from single ones in the last bits, and results must not depend on the memory plan.
"""

from __future__ import annotations

from dataclasses import replace

from rlx.backends.gpu.gemm.launch import product
from rlx.backends.gpu.gemm.operands import Epilogue, Operand, ProductCall
from rlx.backends.gpu.gemm.product import product_of
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Ref
from rlx.driver.memory.views import is_alias, view_offset
from rlx.dtypes import f32
from rlx.ir import Leaf, Node

_GAPLESS_BYTES = 256  # results whose size is a multiple of this can be adjacent in memory


def batch_of(ctx: Lowering, node: Node) -> tuple[Node, ...]:
    """The nodes of the batch that a node belongs to, itself included; empty if its product is in no batch."""
    if ctx.together is None:
        ctx.together = _batches(ctx)
    return ctx.together.get(node.output.id, ())


def make_batch(ctx: Lowering, node: Node, group: tuple[Node, ...]) -> None:
    """Computes the whole batch at its first node, directly into the results if they are adjacent in memory, else
    through workspace. If the plan has other steps between the nodes, which may still read the results' bytes, each node
    computes the batch again and copies its own result."""
    if node.output.id in ctx.made:
        return
    places = [ctx.ref(n.output) for n in group]
    size = places[0].nbytes
    adjacent = _adjacent(ctx, group)
    direct = adjacent and all(
        r == Ref(places[0].segment, places[0].offset + i * size, size) for i, r in enumerate(places)
    )
    whole = (
        Ref(places[0].segment, places[0].offset, len(group) * size)
        if direct
        else ctx.scratch(len(group) * size)
    )
    first = group[0]
    a, b = (Operand.of(ctx, t) for t in first.inputs[:2])
    apart = _apart(ctx, first, group[1])
    p = replace(product_of(first), batch=((len(group), 0, apart[0] // b.dtype.itemsize),))
    b = Operand(Ref(b.ref.segment, b.ref.offset, (len(group) - 1) * apart[0] + b.ref.nbytes), b.dtype)
    end = Epilogue.of(first)
    if end.bias is not None:
        end = replace(end, step=apart[1] // ctx.storage(end.bias).itemsize)
    c = Operand(whole, ctx.storage(first.output))
    product(ctx, ProductCall(p, a, b, c, end, node.label or node.op.name))
    for i, (n, place) in enumerate(zip(group, places, strict=True)):
        if not direct and (adjacent or n is node):
            ctx.copy(Ref(whole.segment, whole.offset + i * size, size), place)
    if adjacent:
        ctx.made.update(n.output.id for n in group)


def _adjacent(ctx: Lowering, group: tuple[Node, ...]) -> bool:
    """Whether the plan has no step between the nodes."""
    nodes = ctx.graph.nodes
    at = [next(i for i, n in enumerate(nodes) if n is node) for node in (group[0], group[-1])]
    between = (n for n in nodes[at[0] : at[1]] if not n.op.leaf and not any(n is m for m in group))
    return all(is_alias(n, ctx.plan) for n in between)


def _batches(ctx: Lowering) -> dict[int, tuple[Node, ...]]:
    result: dict[int, tuple[Node, ...]] = {}
    run: list[Node] = []
    for node in ctx.graph.nodes:
        if node.op.leaf or view_offset(node) is not None:
            continue
        if run and _continues(ctx, run, node):
            run.append(node)
            result.update(dict.fromkeys((n.output.id for n in run), tuple(run)))
        else:
            run = [node] if _begins(ctx, node) else []
    return result


def _begins(ctx: Lowering, node: Node) -> bool:
    """Whether a node may be in a batch: a float product without batch axes whose B and bias are parameters or
    constants, and whose result's size needs no padding in the plan."""
    if node.op.name != "matmul" or any(t.node.op.leaf not in (Leaf.PARAM, Leaf.CONSTANT) for t in node.inputs[1:]):
        return False
    stored, place = ctx.storage(node.output), ctx.ref(node.output)
    fine = stored.is_float and stored.name != "f64" and place.nbytes and not place.nbytes % _GAPLESS_BYTES
    biases = all(ctx.storage(t) in (f32, stored) for t in node.inputs[2:])
    return bool(fine and biases and not product_of(node).batch)


def _continues(ctx: Lowering, run: list[Node], node: Node) -> bool:
    """Whether a node continues a batch: it has the same A, attributes and dtypes, and its weight and bias follow those
    of the preceding node at the batch's constant strides."""
    first = run[0]
    if (
        not _begins(ctx, node)
        or node.inputs[0] is not first.inputs[0]
        or dict(node.attrs) != dict(first.attrs)
    ):
        return False
    kinds = [[(t.type, ctx.storage(t)) for t in (*n.inputs[1:], n.output)] for n in (first, node)]
    segments = [[ctx.ref(t).segment for t in n.inputs[1:]] for n in (first, node)]
    if kinds[0] != kinds[1] or segments[0] != segments[1]:
        return False
    apart = _apart(ctx, run[-1], node)
    return (
        min(apart) > 0
        and not any(n % 16 for n in apart)
        and (len(run) == 1 or apart == _apart(ctx, *run[:2]))
    )


def _apart(ctx: Lowering, a: Node, b: Node) -> list[int]:
    """The distance in bytes from a's weight to b's, and from a's bias to b's."""
    return [ctx.ref(y).offset - ctx.ref(x).offset for x, y in zip(a.inputs[1:], b.inputs[1:], strict=True)]
