"""Replaces transpositions of a tensor's slices by one of the whole tensor: models multiply by the weights of queries,
keys and values at once, slice the result and transpose the heads of each part."""

from __future__ import annotations

import math
from typing import NamedTuple

from rlx.ir import Graph, Node, Rewriter, Tensor, get_op
from rlx.passes.rewriting import remove_dead


class _Part(NamedTuple):
    """A transposed slice: part `number` along `axis`, its shape before the transposition, and the permutation."""

    number: int
    axis: int
    shape: tuple[int, ...]
    perm: tuple[int, ...]


def join_transpositions(graph: Graph) -> Graph:
    """If a tensor is cut into equal parts along an axis and all are transposed alike, directly or after being split
    into heads, transposes the whole tensor so that the parts are its first axis; each part is then contiguous and needs
    no copy."""
    groups: dict[int, dict[int, _Part]] = {}  # id of the tensor -> id of a transposition -> what it does
    readers: dict[int, int] = {}
    for node in graph.nodes:
        for t in node.inputs:
            readers[t.id] = readers.get(t.id, 0) + 1
    results = {t.id for t in graph.results()}
    sources: dict[int, Tensor] = {}
    for node in graph.nodes:
        cut = _part(node, readers, results)
        if cut is not None:
            x, part = cut
            groups.setdefault(x.id, {})[node.output.id] = part
            sources[node.output.id] = x
    joint = {i: x for i, x in sources.items() if _whole(x, groups[x.id])}
    if not joint:
        return graph
    new = Rewriter(graph)
    made: dict[int, Tensor] = {}
    for node in graph.nodes:
        if not node.outputs or node.outputs[0].id not in joint:
            new.keep(node)
            continue
        x = joint[node.output.id]
        part = groups[x.id][node.output.id]
        if x.id not in made:
            made[x.id] = _transposed(new, x, part, len(groups[x.id]), node.label)
        whole = made[x.id]
        count = len(whole.shape) - 1
        attrs = {"starts": (part.number, *[0] * count), "stops": (part.number + 1, *whole.shape[1:]),
                 "steps": (1,) * (count + 1)}  # fmt: skip
        (one,) = new.add("slice", (whole,), attrs, node.label)
        new.put(node.outputs, new.add("reshape", (one,), {"shape": node.output.shape}, node.label))
    return remove_dead(new.finish(), graph)


def _part(node: Node, readers: dict[int, int], results: set[int]) -> tuple[Tensor, _Part] | None:
    """The tensor whose slice a node transposes, and the transposition."""
    perm = node.attrs.get("perm")
    if perm is None:
        return None
    y = node.inputs[0]
    shape = y.shape
    while y.node.op.reshapes and readers[y.id] == 1 and y.id not in results:
        y = y.node.inputs[0]
    cut = y.node
    if cut.op is not get_op("slice") or readers[y.id] != 1 or y.id in results:
        return None
    x, starts = cut.inputs[0], cut.attrs["starts"]
    axes = [i for i, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if a != b]
    if len(axes) != 1 or 0 in y.shape or any(step != 1 for step in cut.attrs["steps"]):
        return None
    (axis,) = axes
    n = y.shape[axis]
    if math.prod(x.shape[:axis]) == 1 or x.shape[axis] % n or starts[axis] % n or shape[:axis] != y.shape[:axis]:
        return None
    return x, _Part(starts[axis] // n, axis, shape, tuple(perm))


def _whole(x: Tensor, parts: dict[int, _Part]) -> bool:
    """Whether the parts are alike and make up the tensor."""
    axis, shape, perm = next(iter(parts.values()))[1:]
    alike = all(part[1:] == (axis, shape, perm) for part in parts.values())
    numbers = sorted(part.number for part in parts.values())
    return alike and len(parts) > 1 and len(parts) * math.prod(shape) == x.size and numbers == list(range(len(parts)))


def _transposed(new: Rewriter, x: Tensor, part: _Part, count: int, label: str) -> Tensor:
    axis = part.axis
    shape = (*part.shape[:axis], count, *part.shape[axis:])
    (cut,) = new.add("reshape", new.inputs((x,)), {"shape": shape}, label)
    perm = (axis, *(p + (p >= axis) for p in part.perm))
    return new.add("transpose", (cut,), {"perm": perm}, label)[0]
