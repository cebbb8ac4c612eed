"""Which tensors of a program are channels last in memory: a physical layout, unknown to the graph.

The engine's convolutions read and write channels last. A tensor between them, and between ops that work on either
layout (elementwise ops and pools), is an array of the same shape with the strides of (N, *S, C). Inputs and outputs of
the program, weights, states, operands and results of matrix products, and memory that several tensors view, keep the
order of their shapes. A node that cannot be bound to such strides gets copies (`executable.py`), so the choice made
here affects speed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.step import IMAGES, binders_of
from rlx.driver import MemoryPlan
from rlx.driver.memory.views import view_offset
from rlx.ir import Graph, Node, Tensor, TensorType, bodies, node_of


def channels_last_tensors(graph: Graph, plan: MemoryPlan) -> dict[int, tuple[int, ...]]:
    """The shape (N, *S, C) in memory of each channels-last tensor, by its id: those that a convolution reads or writes,
    and those that are tied to one by ops that work on either layout."""
    fixed = {t.id for ts in (graph.inputs, graph.outputs, graph.updates) for t in ts.values()}
    for node in graph.nodes:
        product = node.op.contracts and "makes" not in _images(node)  # matrices keep the order of their shapes
        if node.op.leaf or bodies(node) or view_offset(node) is not None or product:
            fixed.update(t.id for t in (*node.inputs, *node.outputs))
    parent: dict[int, int] = {}

    def root(i: int) -> int:
        while parent.setdefault(i, i) != i:
            i = parent[i]
        return i

    def free(t: Tensor) -> bool:
        shape = t.shape
        image = len(shape) >= 3 and shape[1] > 1 and math.prod(shape[2:]) > 1
        return image and t.id not in fixed and t.id in plan.slots and t.dtype.name in ("f64", "f32", "i32", "i8", "u8")

    wanted: set[int] = set()
    for node in graph.nodes:
        if "makes" in _images(node):
            wanted.update(t.id for t in (node.inputs[0], node.output) if free(t))
        tied = [t for t in _tied(node) if free(t)]
        for t in tied[1:]:
            parent[root(t.id)] = root(tied[0].id)
    roots = {root(i) for i in wanted}
    every = (t for node in graph.nodes for t in node.outputs)
    last = (t for t in every if free(t) and root(t.id) in roots)
    return {t.id: (t.shape[0], *t.shape[2:], t.shape[1]) for t in last}


def _images(node: Node) -> set[str]:
    """How a node's binders treat the layout of images ("makes", "follows")."""
    return {IMAGES[b] for b in binders_of(node.op) if b in IMAGES}


def _tied(node: Node) -> Sequence[Tensor]:
    """The images of a node that should have the same layout."""
    if "follows" in _images(node):
        return [t for t in (*node.inputs, node.output) if t.ndim == node.output.ndim]
    if node.op.elementwise:
        shape = node.outputs[0].shape
        return [t for t in (*node.inputs, *node.outputs) if t.shape == shape]
    return ()


def in_memory_order(node: Node, ins: Sequence[Array]) -> tuple[Node, Sequence[Array]]:
    """A reduction of a channels-last image over its channels or all its pixels, as a reduction of an array (N, *S, C),
    which has the same elements in the same order. Any other node unchanged."""
    axes = node.attrs.get("axes")
    if node.op.joins is None or axes is None or len(ins) != 1 or ins[0].flags.c_contiguous:
        return node, ins
    rank = ins[0].ndim
    if 1 not in axes and not set(range(2, rank)) <= set(axes):
        return node, ins
    moved = np.moveaxis(ins[0], 1, -1)
    types = [TensorType(moved.shape, node.inputs[0].dtype)]
    places = (0, rank - 1, *range(1, rank - 1))  # the axes' positions after the move
    inside = tuple(sorted(places[axis] for axis in axes))
    return node_of(node.op, types, {**node.attrs, "axes": inside}), [moved]
