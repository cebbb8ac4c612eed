"""The records of collectives: each rank's result depends on the arrays of all ranks of its group, along the first axis.

Gradients are those of the sum of all ranks' losses: the transposed map, which is a collective too."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import i32
from rlx.errors import DTypeError, GraphError, ShapeError, UnsupportedOp
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Cost, Node, Op, Tensor, TensorType, apply, register_host
from rlx.ir.op import Batch, Infer, Vjp
from rlx.ops.base import cast_to, check_inputs, written
from rlx.ops.collectives import cards
from rlx.ops.numeric import Array
from rlx.ranks.collect import HOWS, Group
from rlx.ranks.mesh import ranks_along
from rlx.ranks.world import world_of

FAMILY = "collectives"
# The attributes that say which ranks take part. `spoils`: states may be written first; a lost rank voids them.
PLACE = ("over", "mesh", "world", "rank", "card", "spoils")
Grads = Sequence["Tensor | None"]


def ranks_of(attrs: Attrs) -> tuple[int, ...]:
    """The ranks that take part, in order."""
    return ranks_along(dict(attrs["mesh"]), attrs["over"], attrs["rank"])


def group_of(attrs: Attrs) -> Group:
    """The group of ranks that take part. Raises: GraphError if the ranks are gone, or differ from those of the
    program."""
    world, rank, count = world_of(attrs["world"]), attrs["rank"], math.prod(n for _, n in attrs["mesh"])
    own = getattr(world, "rank", rank)  # any rank may ask where ranks are threads
    if own != rank or world.size != count:
        raise GraphError(
            f"the program is that of rank {rank} of {count}, this process is rank {own} of {world.size}; make it, or "
            "load it, on the rank that it was made on"
        )
    return Group(world, rank, ranks_of(attrs))


def count_of(attrs: Attrs) -> int:
    sizes = dict(attrs["mesh"])
    return math.prod(sizes[name] for name in attrs["over"])


# -- types


def _checked(op: str, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs(op, types, 1)
    sizes = dict(attrs["mesh"])
    if any(name not in sizes for name in attrs["over"]) or not 0 <= attrs["rank"] < math.prod(sizes.values()):
        raise GraphError(f"{op}: axes {attrs['over']} and rank {attrs['rank']} are none of the mesh {sizes}")
    how = attrs.get("how")
    if how is not None:
        if how not in HOWS:
            raise ShapeError(f"{op}: op is {how!r}; expected one of {', '.join(HOWS)}")
        dtype = types[0].dtype
        if how == "mean" and not dtype.is_float:
            raise DTypeError(f"{op}: the mean of {dtype}; rlx.cast it to a float first")
        if dtype.kind == "b" and how not in ("max", "min"):
            raise DTypeError(f'{op}: the {how} of bools; cast to a number, or take op="max" (any) or "min" (all)')
    return types[0]


def _divided(op: str, t: TensorType, attrs: Attrs) -> int:
    """The length of one rank's part of the first axis."""
    n = count_of(attrs)
    if not t.shape or t.shape[0] % n:
        what = f"the axis of {t.shape[0]} elements of {t}" if t.shape else f"{t}, which has no axis,"
        raise ShapeError(
            f"{op}: {what} does not divide among {n} ranks (along {', '.join(attrs['over'])}); pad it to a multiple "
            f"of {n}"
        )
    return t.shape[0] // n


def _same(op: str) -> Callable[[Sequence[TensorType], Attrs], TensorType]:
    return lambda types, attrs: _checked(op, types, attrs)


def _gather_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    t = _checked("all_gather", types, attrs)
    if not t.shape:
        raise ShapeError(f"all_gather: {t} has no axis; reshape it to (1,) first")
    return TensorType((t.shape[0] * count_of(attrs), *t.shape[1:]), t.dtype)


def _scatter_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    t = _checked("reduce_scatter", types, attrs)
    return TensorType((_divided("reduce_scatter", t, attrs), *t.shape[1:]), t.dtype)


def _exchange_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    t = _checked("all_to_all", types, attrs)
    _divided("all_to_all", t, attrs)
    return t


def _index_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    t = _checked("axis_index", types, attrs)
    if t != TensorType((), i32):
        raise DTypeError(f"axis_index: takes a 0 of i32, got {t}")
    return t


# -- values


def _all_reduce(group: Group, x: Array, attrs: Attrs) -> Array:
    return group.all_reduce(x, attrs["how"])


def _all_gather(group: Group, x: Array, attrs: Attrs) -> Array:
    return group.all_gather(x)


def _reduce_scatter(group: Group, x: Array, attrs: Attrs) -> Array:
    return group.reduce_scatter(x, attrs["how"])


def _all_to_all(group: Group, x: Array, attrs: Attrs) -> Array:
    return group.all_to_all(x)


def _broadcast(group: Group, x: Array, attrs: Attrs) -> Array:
    return group.broadcast(x, attrs["root"])


def place_of(attrs: Attrs) -> int:
    """The rank's index in its group."""
    return ranks_of(attrs).index(attrs["rank"])


# -- gradients


def _beside(node: Node, op: str, x: Tensor, **attrs: Any) -> Tensor:
    """Applies another collective among the same ranks."""
    who = {name: node.attrs[name] for name in PLACE if name in node.attrs}
    return apply(op, x, **who, **attrs)


def _reduce_vjp(node: Node, grads: Grads) -> Grads:
    d, how = grads[0], node.attrs["how"]
    if d is None:
        return (None,)
    if how in ("sum", "mean"):
        return (_beside(node, "all_reduce", d, how=how),)
    if how == "prod":
        raise _refused(node, "gather the factors by rlx.all_gather, and take rlx.prod of them")
    x, y = node.inputs[0], node.outputs[0]
    largest = cast_to(apply("equal", x, y), d.dtype)
    count, total = (_beside(node, "all_reduce", t, how="sum") for t in (largest, d))
    return (largest * (total / count),)


def _gather_vjp(node: Node, grads: Grads) -> Grads:
    d = grads[0]
    return (None if d is None else _beside(node, "reduce_scatter", d, how="sum"),)


def _scatter_vjp(node: Node, grads: Grads) -> Grads:
    d, how = grads[0], node.attrs["how"]
    if d is None:
        return (None,)
    if how not in ("sum", "mean"):
        raise _refused(node, "take rlx.all_reduce, and this rank's part of it")
    whole = _beside(node, "all_gather", d)
    return (whole if how == "sum" else whole / float(count_of(node.attrs)),)


def _exchange_vjp(node: Node, grads: Grads) -> Grads:
    d = grads[0]
    return (None if d is None else _beside(node, "all_to_all", d),)


def _broadcast_vjp(node: Node, grads: Grads) -> Grads:
    d = grads[0]
    if d is None:
        return (None,)
    total = _beside(node, "all_reduce", d, how="sum")
    index = _beside(node, "axis_index", d.graph.constant(0, "i32"))
    return (apply("where", apply("equal", index, index.graph.constant(node.attrs["root"], "i32")), total, total * 0.0),)


def _refused(node: Node, instead: str) -> UnsupportedOp:
    return UnsupportedOp(f"gradient: {node.op.name} of op={node.attrs['how']!r} has none; {instead}")


# -- batches


def _each(node: Node, inputs: Sequence[Tensor], flags: Sequence[bool], size: int) -> Sequence[Tensor]:
    """Batches collectives that combine the ranks' elements at equal positions."""
    return inputs[0].graph.add(node.op, inputs, node.attrs, node.label)


def _first(node: Node, inputs: Sequence[Tensor], flags: Sequence[bool], size: int) -> Sequence[Tensor]:
    """Batches collectives along the first axis: the examples' axis is moved behind it."""
    swapped = (1, 0, *range(2, inputs[0].ndim))
    (out,) = inputs[0].graph.add(node.op, [apply("transpose", inputs[0], perm=swapped)], node.attrs, node.label)
    return (apply("transpose", out, perm=swapped),)


# -- records


def _cost(node: Node) -> Cost:
    return Cost(2 * written(node), terms=4 * written(node))


def _record(
    name: str, infer: Infer, value: Callable[[Group, Array, Attrs], Array], vjp: Vjp, batch: Batch,
    inplace: tuple[int, ...] = (),
) -> None:  # fmt: skip
    def at_once(x: Array, **attrs: Any) -> Array:
        group = group_of(attrs)
        group.meet(lambda: f"{name} of {x.dtype}{list(x.shape)} along {', '.join(attrs['over'])}")
        return value(group, np.asarray(x), attrs)

    def meets(node: Node) -> Callable[..., Array]:
        card: list[bytes] = []  # computed in the first run, since nodes may be added to the graph until then

        def run(x: Array, **attrs: Any) -> Array:
            if not card:
                card.append(cards.card(node))
            group = group_of(attrs)
            group.meet(functools.partial(cards.told, node), card[0])
            return value(group, x, attrs)

        return run

    register_host(
        Op(name, FAMILY, infer, at_once, "mpi4py", vjp, inplace=inplace, batch=batch, fallible=True, cost=_cost,
           meets=meets)
    )  # fmt: skip


_record("all_reduce", _same("all_reduce"), _all_reduce, _reduce_vjp, _each, (0,))
_record("all_gather", _gather_infer, _all_gather, _gather_vjp, _first)
_record("reduce_scatter", _scatter_infer, _reduce_scatter, _scatter_vjp, _first)
_record("all_to_all", _exchange_infer, _all_to_all, _exchange_vjp, _first)
_record("broadcast", _same("broadcast"), _broadcast, _broadcast_vjp, _each, (0,))


def _index(zero: Array, **attrs: Any) -> Array:
    return np.asarray(place_of(attrs), np.int32)


register_host(
    Op("axis_index", FAMILY, _index_infer, _index, "mpi4py", NOT_DIFFERENTIABLE, meets=lambda node: _index)
)
