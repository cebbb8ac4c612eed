"""Chooses the tensors of a program that are stored with channels last, a memory layout that the graph does not show.

Convolutions by matrix instructions read and write channels last. Tensors between them, and between ops that work in
either layout (elementwise ops and pools), are then stored as (N, *S, C). Inputs and outputs of the program, weights,
states, operands and results of products, and memory that several tensors view keep the layout of their shapes. A node
that does not support the layout works on transposed copies (`Lowering.lower`), so the choice made here affects only the
speed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rlx.driver.memory.views import view_offset
from rlx.ir import Node, Tensor, bodies
from rlx.ir.expr import linearize
from rlx.passes.trees import node_trees

if TYPE_CHECKING:
    from rlx.backends.gpu.program.lowering import Lowering


class Maker(NamedTuple):
    """An op that is faster if some of its tensors (`images`; by default its first input and its output) have channels
    last, provided that `takes(ctx, node, wished)`. `wished`: assume that they have."""

    takes: Callable[[Lowering, Node, bool], bool]
    images: Callable[[Node], Sequence[Tensor]] = lambda node: (node.inputs[0], node.output)


class Follower(NamedTuple):
    """An op whose first input and output share a layout, which may be either, if `takes(node)`."""

    takes: Callable[[Node], bool]


class Reader(NamedTuple):
    """An op that reads its input in either layout and writes its output channels first, if `takes(node)`."""

    takes: Callable[[Node], bool]


class Mover(NamedTuple):
    """An op that reads and writes each tensor in either layout."""


IMAGES: dict[str, Maker | Follower | Reader | Mover] = {}  # how the rule of an op handles the layout of images


def set_channels_last(ctx: Lowering, native: Callable[[Node], bool]) -> None:
    """Sets `ctx.last`, the ids of the tensors stored with channels last: those of convolutions that want it, and
    tensors connected to these by ops that accept either layout, if more nodes profit than need a transposed copy. A
    convolution with channels last on one side only may fall back to another algorithm; it then counts as one that needs
    a copy."""
    makers = {id(n) for n in ctx.graph.nodes if _takes(ctx, n, wished=True)}
    while makers:
        ctx.last = _lying_last(ctx, makers, native)
        left = {id(n) for n in ctx.graph.nodes if id(n) in makers and _takes(ctx, n, wished=False)}
        if left == makers:
            return
        makers = left
    ctx.last = frozenset()


def _lying_last(ctx: Lowering, makers: Collection[int], native: Callable[[Node], bool]) -> frozenset[int]:
    graph = ctx.graph
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
        role, alike = IMAGES.get(node.op.name), _alike(node)
        if isinstance(role, Maker) and id(node) in makers:
            gain.update({t.id: 1 for t in role.images(node) if free(t)})
        elif alike and all(map(free, alike)):
            for t in alike[1:]:
                parent[root(t.id)] = root(alike[0].id)
        elif not (isinstance(role, Mover) or (isinstance(role, Reader) and role.takes(node))):
            gain.update({t.id: -1 for t in (*node.inputs, *node.outputs) if free(t)})
    total: Counter[int] = Counter()
    for i, value in gain.items():
        total[root(i)] += value
    every = (t for node in graph.nodes for t in node.outputs)
    return frozenset(t.id for t in every if free(t) and total[root(t.id)] > 0)


def in_any_order(ctx: Lowering, node: Node) -> bool:
    """Whether the rule of a node can read and write its tensors in their layouts, some of them with channels last."""
    role = IMAGES.get(node.op.name)
    if isinstance(role, Maker):
        return _takes(ctx, node, wished=False)
    if isinstance(role, Mover):
        return True
    if isinstance(role, Reader):
        return role.takes(node) and ctx.last.isdisjoint(t.id for t in node.outputs)
    alike = {t.id for t in _alike(node)}
    others = {t.id for t in (*node.inputs, *node.outputs)} - alike
    return bool(alike) and alike <= ctx.last and others.isdisjoint(ctx.last)


def _takes(ctx: Lowering, node: Node, wished: bool) -> bool:
    role = IMAGES.get(node.op.name)
    return isinstance(role, Maker) and role.takes(ctx, node, wished)


def _alike(node: Node) -> Sequence[Tensor]:
    """The tensors of a node that its rule takes in either layout, but all in the same one. For an elementwise op that
    does not use the element's index, these are the tensors with the shape of its outputs."""
    role = IMAGES.get(node.op.name)
    if isinstance(role, Follower):
        return (node.inputs[0], node.output) if role.takes(node) else ()
    if not node.op.elementwise or any(e.prim == "index" for e in linearize(node_trees(node))):
        return ()
    return [t for t in (*node.inputs, *node.outputs) if t.shape == node.outputs[0].shape]


def last_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape (N, C, *S) reordered to (N, *S, C)."""
    return (shape[0], *shape[2:], shape[1])


def last_strides(strides: Sequence[int]) -> tuple[int, ...]:
    """The strides of (N, C, *S) reordered to (N, *S, C)."""
    return (strides[0], *strides[2:], strides[1])
