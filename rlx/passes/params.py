"""Passes over parameters: the dtype they are stored in, and the removal of casts of half-precision weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlx.dtypes import DType
from rlx.errors import DTypeError, GraphError
from rlx.ir import Graph, Leaf, Node, Rewriter, Tensor, bodies, node_of, rebuild
from rlx.ir.body import map_bodies
from rlx.passes.rewriting import SupportOf, native_everywhere, remove_dead


def set_param_dtypes(graph: Graph, dtypes: Mapping[str, DType]) -> Graph:
    """The graph with params stored in other dtypes: a cast to the declared dtype follows each.

    Raises: GraphError for a name that is no param, DTypeError unless both dtypes are floats or they are equal.
    """
    for name, dtype in dtypes.items():
        if name not in graph.params:
            raise GraphError(f"set_param_dtypes: no param {name!r}; the params are {sorted(graph.params)}")
        declared = graph.params[name].dtype
        if dtype != declared and not (dtype.is_float and declared.is_float):
            raise DTypeError(f"param {name!r} is declared {declared}; both must be floats to keep it as {dtype}")

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        if node.op.leaf is not Leaf.PARAM:
            return None
        name, declared = node.attrs["name"], node.attrs["dtype"]
        dtype = dtypes.get(name, declared)
        if dtype == declared:
            return None
        kept = new.graph.param(name, node.attrs["shape"], dtype)
        return new.add("cast", (kept,), {"dtype": declared}, f"{name}.{declared}")

    return rebuild(graph, rewrite)


def sink_casts(graph: Graph, support: SupportOf = native_everywhere) -> Graph:
    """Moves the cast of a half-precision weight towards its use, so that it can vanish.

    cast(weight) → reshape, transpose, slice, expand or gather becomes the same op with the cast after it. A cast that
    reaches a matmul or a norm vanishes: these take f16 and bf16 weights beside f32 directly. Results keep every bit.
    """

    if not any(t.dtype.is_half for t in graph.params.values()):
        return remove_dead(graph)

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        if node.op.moves_data:
            half = _half_weight(inputs[0])
            if half is None:
                return None
            if support(node_of(node.op, [half.type, *(t.type for t in inputs[1:])], node.attrs)) != "native":
                return None
            moved = new.add(node.op, (half, *inputs[1:]), node.attrs, node.label)
            return new.add("cast", moved, {"dtype": inputs[0].dtype}, node.label)
        if bodies(node):
            return _captured(new, node, inputs)
        taken = list(inputs)
        for k in node.op.mixed:  # `mixed` lists weights first; one factor must stay f32
            half = _half_weight(taken[k]) if k < len(taken) else None
            if half is not None:
                tried = [*taken[:k], half, *taken[k + 1 :]]
                cast_node = node_of(node.op, [t.type for t in tried], node.attrs)
                if cast_node.outputs[0].type == node.outputs[0].type and support(cast_node) == "native":
                    taken = tried
        if any(a is not b for a, b in zip(taken, inputs, strict=True)):
            return new.add(node.op, taken, node.attrs, node.label)
        return None

    return remove_dead(rebuild(graph, rewrite), graph)


def _captured(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
    """A control node that captures half-precision weights uncast: its bodies cast them, and move the casts."""
    halves: dict[str, Tensor] = {}
    captures = next(iter(bodies(node).values())).params
    for name, t in zip(captures, inputs[len(inputs) - len(captures) :], strict=True):
        half = _half_weight(t)
        if half is not None:
            halves[name] = half
    if not halves:
        return None
    dtypes = {name: t.dtype for name, t in halves.items()}
    operands = [*inputs[: len(inputs) - len(captures)],
             *(halves.get(name, t) for name, t in zip(captures, inputs[-len(captures) :], strict=True))]  # fmt: skip
    attrs = map_bodies(node.attrs, lambda body: set_param_dtypes(body, dtypes))
    return new.add(node.op, operands, attrs, node.label)


def _half_weight(t: Tensor) -> Tensor | None:
    """The weight that t widens, if t is a half-precision weight, moved or not, cast to a wider float; else None."""
    if not t.node.op.converts or not t.dtype.is_float:
        return None
    half = t.node.inputs[0]
    if not half.dtype.is_half or t.dtype.itemsize <= half.dtype.itemsize:
        return None
    source = half
    while source.node.op.moves_data:
        source = source.node.inputs[0]
    return half if source.node.op.leaf is Leaf.PARAM else None
