"""The reverse sweep: gradients through the part of a graph that lies between given inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rlx.errors import GraphError, UnsupportedOp
from rlx.ir import NOT_DIFFERENTIABLE, Node, Tensor, apply, get_op
from rlx.ir.graph import traced_into
from rlx.ir.op import Decompose, Vjp, _NotDifferentiable


def pullback(
    outputs: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    wrt: Sequence[Tensor],
    stop: bool = False,
    since: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """The gradient of each tensor of `wrt`, given those of `outputs`; None where no gradient reaches it.

    Nodes are appended to the tensors' graph. With `stop`, for use in rules of nodes, the tensors of `wrt` count as
    independent, even if one is computed from another; a tensor that occurs several times gets its gradient at its
    first position only, since the caller adds up the gradients of all positions. With `since` only that tensor's node
    and nodes added to its graph later are visited.
    """
    sources = {id(t) for t in wrt}
    between = nodes_between(outputs, sources, stop, since)
    total: dict[int, Tensor] = {}
    for t, d in zip(outputs, grads, strict=True):
        if d is not None:
            _accumulate(total, t, d)
    for node in reversed(between):
        seeds = [total.get(id(t)) for t in node.outputs]
        if all(d is None for d in seeds):
            continue
        if isinstance(node.op.vjp, _NotDifferentiable):
            if any(t.dtype.is_float and d is not None for t, d in zip(node.outputs, seeds, strict=True)):
                raise no_gradient(node)
            continue
        input_grads = node.op.vjp(here(node), seeds)
        if len(input_grads) != len(node.inputs):
            raise GraphError(
                f"gradient: the rule of op {node.op.name} gave {len(input_grads)} for {len(node.inputs)} inputs"
            )
        for t, d in zip(node.inputs, input_grads, strict=True):
            if d is None or not t.dtype.is_float:
                continue
            if d.type != t.type:
                raise GraphError(
                    f"gradient: the rule of op {node.op.name} gave {d.type} for an input {t.type}"
                )
            _accumulate(total, t, d)
    return tuple(total.pop(id(t), None) if stop else total.get(id(t)) for t in wrt)


def here(node: Node) -> Node:
    """The node with its tensors as tensors of the graph that takes new nodes, as gradient rules need it. If a body is
    being traced and the node is in a graph around it, the node's tensors become captures of the body."""
    if not node.inputs:
        return node
    graph = traced_into(node.inputs[0].graph)
    if graph is node.inputs[0].graph:
        return node
    shadow = Node(node.op, tuple(graph.reach(t, "gradient") for t in node.inputs), node.attrs, node.label)
    shadow.outputs = tuple(graph.reach(t, "gradient") for t in node.outputs)
    return shadow


def no_gradient(node: Node) -> UnsupportedOp:
    """The error of a node whose op has no gradient."""
    return UnsupportedOp(
        f"gradient: op {node.op.name} ({node}) is {NOT_DIFFERENTIABLE}; use an op that has a gradient instead, or "
        "leave it out of what is differentiated (rlx.stop_gradient)"
    )


def _accumulate(total: dict[int, Tensor], t: Tensor, d: Tensor) -> None:
    before = total.get(id(t))
    if before is not None:
        joint = _joined(before, d)
        d = before + d if joint is None else joint
    total[id(t)] = d


def _joined(a: Tensor, b: Tensor) -> Tensor | None:
    """a + b as one concat, if both are concats along one axis, such as gradients of slices, and each has zeros where
    the other has values: then no zeros are written, read or added. None otherwise."""
    concat = get_op("concat")
    if a.node.op is not concat or b.node.op is not concat or a.node.attrs != b.node.attrs or a.graph is not b.graph:
        return None
    axis = a.node.attrs["axis"]
    own = sorted((*_own_parts(a, axis), *_own_parts(b, axis)), key=lambda part: part[0])
    parts: list[Tensor] = []
    end = 0
    for start, x in [*own, (a.shape[axis], None)]:
        if start < end:
            return None  # both have a value there
        if start > end:
            shape = (*a.shape[:axis], start - end, *a.shape[axis + 1 :])
            parts.append(apply("expand", a.graph.constant(0, a.dtype), shape=shape))
        if x is not None:
            parts.append(x)
            end = start + x.shape[axis]
    return apply("concat", *parts, axis=axis)


def _own_parts(t: Tensor, axis: int) -> Iterator[tuple[int, Tensor]]:
    """The parts of a concat that are not all zeros, and where each begins."""
    start = 0
    for x in t.node.inputs:
        if not _zeros(x):
            yield start, x
        start += x.shape[axis]


def _zeros(t: Tensor) -> bool:
    """Whether t is a constant 0 that was broadcast."""
    if not t.node.op.broadcasts:
        return False
    value = t.node.inputs[0].node
    return value.op.is_constant and not np.any(value.attrs["value"])


def nodes_between(
    outputs: Sequence[Tensor], sources: set[int], stop: bool, since: Tensor | None = None
) -> list[Node]:
    """The nodes on a path of float tensors from a source (by `id`) to an output, each after those that it reads.

    `stop` and `since`: as in `pullback`."""
    order: list[Node] = []
    reaches: dict[int, bool] = {}  # node -> whether it depends on a source
    for output in outputs:
        stack: list[tuple[Tensor, bool]] = [(output, False)]
        while stack:
            t, back = stack.pop()
            node = t.node
            if back:
                reaches[id(node)] = any(
                    id(x) in sources or reaches.get(id(x.node), False)
                    for x in node.inputs
                    if x.dtype.is_float
                )
                if reaches[id(node)]:
                    order.append(node)
            elif id(node) not in reaches and not (stop and id(t) in sources) and not _before(t, since):
                reaches[id(node)] = False
                stack.append((t, True))
                stack += [(x, False) for x in node.inputs if x.dtype.is_float]
    return order


def _before(t: Tensor, since: Tensor | None) -> bool:
    return since is not None and (t.graph is not since.graph or t.id < since.id)


def vjp_by_parts(decompose: Decompose) -> Vjp:
    """The gradient rule of an op, derived from its decomposition into simpler ops."""

    def vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        result = decompose(node.inputs, node.attrs)
        outs = (result,) if isinstance(result, Tensor) else result
        return pullback(outs, grads, node.inputs, stop=True)

    return vjp
