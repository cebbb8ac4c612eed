"""Neighbouring columns of a matrix, which kernels read where they are, so that no launch copies them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rlx.backends.gpu.program.lowering import Lowering, Rule, rule_for
from rlx.backends.gpu.program.steps import Ref
from rlx.driver.memory.views import cut_from, is_alias
from rlx.ir import Node, Tensor

Whole = tuple[Tensor, int]  # a matrix, and which of its columns is the first
Takes = Callable[[Lowering, Node, Tensor], bool]
# By lowering rule, whether a node's kernel reads this input where it is.
TAKES: dict[Rule, Takes] = {}


def columns_for(ctx: Lowering, node: Node, t: Tensor) -> Whole | None:
    """The matrix of which t is some columns, where `node` may read it in place of t: both are stored alike, and nothing
    is written over the matrix before the node has run. Else None."""
    whole = cut_from(t)
    if whole is None:
        return None
    cut = t.node
    while cut.op.reshapes:
        if not is_alias(cut, ctx.plan):
            return None
        cut = cut.inputs[0].node
    tensors = (whole, cut.output, t)
    if is_alias(cut, ctx.plan) or any(ctx.lies_last(x) or x.id in ctx.moved for x in tensors):
        return None
    if len({ctx.storage(x) for x in tensors}) != 1 or 0 in whole.shape:
        return None
    nodes, bytes_of = ctx.graph.nodes, ctx.ref(whole)
    between = nodes[nodes.index(cut) + 1 : nodes.index(node) + 1]
    written = (x for n in between if not is_alias(n, ctx.plan) for x in n.outputs if x.id in ctx.plan.slots)
    if any(ctx.ref(x).overlaps(bytes_of) for x in written):
        return None
    return whole, cut.attrs["starts"][1]


def read_in_place(ctx: Lowering, t: Tensor) -> bool:
    """Whether all readers of t, some columns of a matrix, read the matrix, so that t need not be written."""
    readers = list(_readers(ctx, t))
    return bool(readers) and all(node is not None and _takes(ctx, node, read) for node, read in readers)


def _readers(ctx: Lowering, t: Tensor) -> Iterator[tuple[Node | None, Tensor]]:
    """The nodes that read t, or a reshape of it that has its bytes, each with the one that it reads; None for the
    graph's end."""
    for i in ctx.readers.get(t.id, []):
        node = None if i == len(ctx.graph.nodes) else ctx.graph.nodes[i]
        if node is not None and node.op.reshapes and is_alias(node, ctx.plan):
            yield from _readers(ctx, node.output)
        else:
            yield node, t


def _takes(ctx: Lowering, node: Node, t: Tensor) -> bool:
    rule = rule_for(node, ctx.target)
    takes = None if rule is None else TAKES.get(rule)
    return takes is not None and takes(ctx, node, t)


def whole_heads(ctx: Lowering, node: Node) -> tuple[Tensor, list[int]] | None:
    """The matrix of which the node's first three inputs, heads of (rows, heads, size), are columns, and the first
    column of each, where all are whole heads and begin at multiples of 16 bytes; None where they are not."""
    heads, size = node.inputs[:3], node.inputs[0].shape[-1]
    places = [place for place in (columns_for(ctx, node, t) for t in heads) if place is not None]
    if len(places) < 3 or any(whole is not places[0][0] for whole, _ in places):
        return None
    whole, starts = places[0][0], [start for _, start in places]
    apart, each = (*starts, whole.shape[1]), ctx.storage(whole).itemsize
    fits = ctx.storage(whole) == ctx.storage(heads[0]) and ctx.ref(whole).offset % 16 == 0
    return (whole, starts) if fits and all(n % size == 0 and n * each % 16 == 0 for n in apart) else None


def takes_heads(ctx: Lowering, node: Node, t: Tensor) -> bool:
    """Whether t is one of the heads that the node reads in a matrix, and nothing else that it reads."""
    heads, others = node.inputs[:3], node.inputs[3:]
    return any(t is x for x in heads) and all(t is not x for x in others) and whole_heads(ctx, node) is not None


def column_refs(ctx: Lowering, columns: tuple[Tensor, Sequence[int]], inputs: Sequence[Tensor]) -> list[Ref]:
    """The bytes of the matrix from the first to the last element of each of its inputs."""
    (whole, starts), place = columns, ctx.ref(columns[0])
    (rows, width), size = whole.shape, ctx.storage(whole).itemsize
    return [Ref(place.segment, place.offset + start * size, ((rows - 1) * width + t.size // rows) * size)
            for start, t in zip(starts, inputs, strict=True)]  # fmt: skip
