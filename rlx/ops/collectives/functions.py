"""Collectives: functions of what all ranks of a mesh have, along some of its axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.errors import GraphError, ShapeError
from rlx.ir import Tensor, apply, get_op
from rlx.ir.graph import TRACING, traced_graph
from rlx.ir.types import normalize_axis
from rlx.ops.base import TensorLike, tensor
from rlx.ops.collectives.records import place_of
from rlx.ranks import PLACE
from rlx.ranks.mesh import Axes, Mesh

__all__ = ["all_gather", "all_reduce", "all_to_all", "axis_index", "broadcast", "reduce_scatter"]


def _here(op: str) -> Mesh:
    if PLACE.mesh is None:
        raise GraphError(
            f"{op}: this thread works within no mesh; call it in rlx.shard_map, in mesh.run, or within `with mesh:`"
        )
    return PLACE.mesh


def _who(op: str, axis_name: Axes) -> dict[str, Any] | None:
    """The attributes that say which ranks take part; None where that is one alone."""
    mesh = _here(op)
    over = mesh.names(axis_name, op)
    if mesh.world is None or all(mesh.axes[name] == 1 for name in over):
        return None
    who = {"over": over, "mesh": tuple(mesh.axes.items()), "world": mesh.world.name, "rank": mesh.rank}
    return who if PLACE.card is None else {**who, "card": PLACE.card}


def _applied(op: str, x: TensorLike, axis_name: Axes, attrs: Callable[[Tensor], dict[str, Any]]) -> Tensor:
    x = tensor(op, x)
    who = _who(op, axis_name)
    known = attrs(x)
    if who is not None:
        return apply(op, x, **who, **known)
    # One rank: the type is still checked.
    alone = {"over": ("rank",), "mesh": (("rank", 1),), "world": "", "rank": 0}
    get_op(op).types([x.type], {**alone, **known})
    return x


def all_reduce(x: TensorLike, axis_name: Axes, op: str = "sum") -> Tensor:
    """The sum of x over the ranks along an axis of the mesh, or along several; all of them have it.

    op: "sum", "mean", "prod", "max" or "min". Shape and dtype: those of x, the same on all ranks. bool: "max" is any,
    "min" all. Gradient: of the sum of what all ranks compute, so that of a sum is the sum of the ranks' gradients; of
    "max" and "min" ties share it evenly, of "prod" there is none. Numerics: on the CPU in the order of the ranks, halves
    in f32; the same bits on all ranks. Raises: GraphError outside of a mesh and for an axis that it does not have,
    DTypeError; in a run RanksDisagree and RankLost. As jax.lax.psum, pmean, pmax and pmin.
    """
    return _applied("all_reduce", x, axis_name, lambda x: {"how": op})


def all_gather(x: TensorLike, axis_name: Axes, axis: int = 0) -> Tensor:
    """The arrays of all ranks along an axis of the mesh, behind each other along `axis`.

    Shape: n times as long along `axis`. Dtype: any. Gradient: the sum over the ranks of this rank's part. Otherwise as
    `all_reduce`. As jax.lax.all_gather with tiled=True.
    """
    return _applied("all_gather", x, axis_name, lambda x: {"axis": _axis("all_gather", axis, x)})


def reduce_scatter(x: TensorLike, axis_name: Axes, axis: int = 0, op: str = "sum") -> Tensor:
    """Of the sum over the ranks along an axis of the mesh this rank's part along `axis`.

    Shape: `axis` is divided by the number of ranks. Gradient: of "sum" and "mean". Otherwise as `all_reduce`. Raises:
    ShapeError where the axis does not divide. As jax.lax.psum_scatter with tiled=True.
    """
    return _applied("reduce_scatter", x, axis_name, lambda x: {"axis": _axis("reduce_scatter", axis, x), "how": op})


def all_to_all(x: TensorLike, axis_name: Axes, split_axis: int, concat_axis: int) -> Tensor:
    """Each rank's array cut along `split_axis`, of which this rank has its part of all, behind each other along
    `concat_axis`.

    Shape: `split_axis` is divided by the number of ranks, `concat_axis` multiplied. Dtype: any. Gradient: the exchange
    back. Otherwise as `reduce_scatter`. As jax.lax.all_to_all with tiled=True.
    """
    return _applied(
        "all_to_all", x, axis_name,
        lambda x: {"split": _axis("all_to_all", split_axis, x), "concat": _axis("all_to_all", concat_axis, x)},
    )  # fmt: skip


def broadcast(x: TensorLike, axis_name: Axes, root: int = 0) -> Tensor:
    """The array of the rank in place `root` along an axis of the mesh, on all of them.

    Shape and dtype: those of x, the same on all ranks. Gradient: the sum over the ranks, at the root. Otherwise as
    `all_reduce`. As MPI_Bcast.
    """
    mesh = _here("broadcast")
    n = int(np.prod([mesh.axes[name] for name in mesh.names(axis_name, "broadcast")]))
    if isinstance(root, bool) or not isinstance(root, int | np.integer) or not 0 <= root < n:
        raise ShapeError(f"broadcast: root is {root!r}; expected the place of a rank along {axis_name!r}, 0 to {n - 1}")
    return _applied("broadcast", x, axis_name, lambda x: {"root": int(root)})


def axis_index(axis_name: Axes) -> Tensor:
    """The place of this rank along an axis of the mesh, from 0 on: an i32 of rank 0.

    It is known while the program is built, as `mesh.index(axis)` is, but programs of all ranks stay alike by it. As
    jax.lax.axis_index.
    """
    graph = traced_graph()
    if graph is None:
        raise GraphError("axis_index: no function is traced; mesh.index(axis) gives the number")
    who = _who("axis_index", axis_name)
    zero = graph.constant(0, "i32")
    return zero if who is None else apply("axis_index", zero, **who)


def _axis(op: str, axis: int, x: Tensor) -> int:
    if not x.shape:
        raise ShapeError(f"{op}: x is a scalar; reshape it to (1,) first")
    return normalize_axis(axis, x.ndim, op)


def _instead(function: Callable[..., Tensor]) -> Callable[[Sequence[Any], Mapping[str, Any]], Any]:
    """What a call outside a trace does: no program is kept for it, as one would be of one rank."""

    def other(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
        x = args[0] if args else kwargs.get("x")
        if TRACING.graph is not None or TRACING.body is not None or isinstance(x, Tensor):
            return None
        return lambda *args, **kwargs: _at_once(function, args, kwargs)

    return other


def _at_once(function: Callable[..., Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    from rlx.ir import Graph
    from rlx.ops.elementwise.unary import copy
    from rlx.ops.public import Outside

    x, *rest = args if args else (kwargs["x"],)
    array = np.asarray(x.numpy() if hasattr(x, "numpy") else x)
    kwargs = {name: value for name, value in kwargs.items() if name != "x"}
    out = function(Graph("a collective").constant(array), *rest, **kwargs)
    if not out.node.op.is_constant:
        array = out.node.op.reference(out.node.inputs[0].node.attrs["value"], **out.node.attrs)
    return array if Outside.compute is None else Outside.compute(copy, (array,), {})


for _function in (all_gather, all_reduce, all_to_all, broadcast, reduce_scatter):
    _function.instead = _instead(_function)  # type: ignore[attr-defined]
