"""Which tensors of a program lie in memory with their channels last: a physical order, unknown to the graph.

Convolutions of the engine read and write channels last. A tensor between them, and between ops that work on an image
of either order (elementwise ones and pools), is an array of the same shape whose strides are those of (N, *S, C). What
the caller sees, weights, states, and memory that several tensors view, keep the order of their shapes. A node that is
not bound with such strides gets copies (`executable.py`), so what is chosen here decides times alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.driver import MemoryPlan
from rlx.driver.memory.planner_views import view_offset
from rlx.ir import Graph, Node, Tensor, TensorType, bodies, node_of

# Ops beside the elementwise ones whose results have the order of their first input, and which read no other image.
_FOLLOWS = frozenset({"max_pool", "avg_pool"})


def channels_last_tensors(graph: Graph, plan: MemoryPlan) -> frozenset[int]:
    """The ids of the tensors that lie with their channels last: those that a convolution reads or writes, and those
    that are tied to one by ops that work on either order."""
    fixed = {t.id for ts in (graph.inputs, graph.outputs, graph.updates) for t in ts.values()}
    for node in graph.nodes:
        if node.op.leaf or bodies(node) or view_offset(node) is not None:
            fixed.update(t.id for t in (*node.inputs, *node.outputs))
    parent: dict[int, int] = {}

    def root(i: int) -> int:
        while parent.setdefault(i, i) != i:
            i = parent[i]
        return i

    def free(t: Tensor) -> bool:
        shape = t.shape
        image = len(shape) >= 3 and shape[1] > 1 and math.prod(shape[2:]) > 1
        return image and t.id not in fixed and t.id in plan.slots and t.dtype.name == "f32"

    wanted: set[int] = set()
    for node in graph.nodes:
        if node.op.name == "conv":
            wanted.update(t.id for t in (node.inputs[0], node.output) if free(t))
        tied = [t for t in _tied(node) if free(t)]
        for t in tied[1:]:
            parent[root(t.id)] = root(tied[0].id)
    roots = {root(i) for i in wanted}
    every = (t for node in graph.nodes for t in node.outputs)
    return frozenset(t.id for t in every if free(t) and root(t.id) in roots)


def _tied(node: Node) -> Sequence[Tensor]:
    """The images of a node that should have the same order."""
    if node.op.name in _FOLLOWS:
        return (node.inputs[0], node.output)
    if node.op.elementwise:
        shape = node.outputs[0].shape
        return [t for t in (*node.inputs, *node.outputs) if t.shape == shape]
    return ()


def with_channels_last(x: Array) -> Array:
    """The array of the same shape on the same contiguous memory whose elements lie with their channels last."""
    n, c, *sizes = x.shape
    return np.moveaxis(x.reshape(n, *sizes, c), -1, 1)


def is_moved(x: Array) -> bool:
    """Whether the array lies in another order than that of its shape."""
    return not x.flags.c_contiguous


def in_memory_order(node: Node, ins: Sequence[Array]) -> tuple[Node, Sequence[Array]]:
    """A reduction over the pixels of an image whose channels lie last, as one of an array of (N, *S, C): it gives the
    same elements in the same order. Any other node as it is."""
    axes = node.attrs.get("axes")
    if node.op.joins is None or axes is None or len(ins) != 1 or not is_moved(ins[0]):
        return node, ins
    rank = ins[0].ndim
    if 1 in axes or not set(range(2, rank)) <= set(axes):
        return node, ins
    moved = np.moveaxis(ins[0], 1, -1)
    given = [TensorType(moved.shape, node.inputs[0].dtype)]
    inside = (*((0,) if 0 in axes else ()), *range(1, rank - 1))
    return node_of(node.op, given, {**node.attrs, "axes": inside}), [moved]
