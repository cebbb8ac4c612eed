"""Which tensors of a program lie in memory with their channels last: a physical order, unknown to the graph.

Convolutions by matrix instructions read and write channels last. A tensor between them, and between elementwise ops, has
the bytes of (N, *S, C) in its slot then. What the caller sees, weights, states, operands and results of products, and
memory that several tensors view keep the order of their shapes. A node that does not know of the order works on
transposed copies (`Lowering.lower`), so what is chosen here decides times alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rlx.driver.memory.views import view_offset
from rlx.ir import Node, Tensor, bodies
from rlx.ir.expr import linearize
from rlx.passes.trees import node_trees

if TYPE_CHECKING:
    from rlx.backends.gpu.program.lowering import Lowering

# Of an op whose rule knows the order: whether it can read and write a node's images with their channels last; `wished`:
# if all of them lay so.
IMAGES: dict[str, Callable[[Lowering, Node, bool], bool]] = {}


def channels_last_tensors(ctx: Lowering, native: Callable[[Node], bool]) -> frozenset[int]:
    """The ids of the tensors that lie with their channels last: those that convolutions read or write so, and those that
    are tied to them by elementwise ops, where more nodes read and write them so than need a copy."""
    graph = ctx.graph
    makers = {id(n) for n in graph.nodes if n.op.name in IMAGES and IMAGES[n.op.name](ctx, n, True)}
    if not makers:
        return frozenset()
    fixed = {t.id for ts in (graph.inputs, graph.outputs, graph.updates) for t in ts.values()}
    for node in graph.nodes:
        product = node.op.contracts and id(node) not in makers
        if node.op.leaf or bodies(node) or view_offset(node) is not None or product or not native(node):
            fixed.update(t.id for t in (*node.inputs, *node.outputs))

    def free(t: Tensor) -> bool:
        image = t.ndim >= 3 and t.shape[1] > 1 and math.prod(t.shape[2:]) > 1 and t.size > 0
        return image and t.id not in fixed and t.id in ctx.plan.slots

    parent: dict[int, int] = {}

    def root(i: int) -> int:
        while parent.setdefault(i, i) != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    gain: Counter[int] = Counter()
    for node in graph.nodes:
        if id(node) in makers:
            touched, each = (node.inputs[0], node.output), 1
        elif _by_element(node) and all(free(t) for t in images(node)):
            touched, each = (), 0
            for t in images(node)[1:]:
                parent[root(t.id)] = root(images(node)[0].id)
        else:
            touched, each = (*node.inputs, *node.outputs), -1
        gain.update({t.id: each for t in touched if free(t)})
    for i, value in list(gain.items()):
        if root(i) != i:
            gain[root(i)] += value
    every = (t for node in graph.nodes for t in node.outputs)
    return frozenset(t.id for t in every if free(t) and gain[root(t.id)] > 0)


def in_any_order(ctx: Lowering, node: Node) -> bool:
    """Whether the rule of a node can read and write its tensors as they lie."""
    if node.op.name in IMAGES:
        return IMAGES[node.op.name](ctx, node, False)
    if not _by_element(node):
        return False
    alike = {t.id for t in images(node)}
    return alike <= ctx.last and not any(t.id in ctx.last for t in node.inputs if t.id not in alike)


def _by_element(node: Node) -> bool:
    """Whether each element of a node's outputs depends on those at its place alone, and not on the place's number."""
    return node.op.elementwise and all(e.prim != "index" for e in linearize(node_trees(node)))


def images(node: Node) -> Sequence[Tensor]:
    """The tensors of an elementwise node that have the shape of its outputs."""
    shape = node.outputs[0].shape
    return [t for t in (*node.inputs, *node.outputs) if t.shape == shape]


def last_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """(N, *S, C) of (N, C, *S)."""
    return (shape[0], *shape[2:], shape[1])


def last_strides(strides: Sequence[int]) -> tuple[int, ...]:
    """The strides of (N, *S, C) of those of (N, C, *S)."""
    return (strides[0], *strides[2:], strides[1])
