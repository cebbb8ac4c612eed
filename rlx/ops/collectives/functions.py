"""Collectives: functions of the arrays of all ranks along some axes of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.errors import GraphError, ShapeError
from rlx.ir import Tensor, apply, get_op
from rlx.ir.graph import TRACING, traced_graph
from rlx.ir.types import normalize_axis
from rlx.ops.base import TensorLike, tensor
from rlx.ops.collectives.records import count_of
from rlx.ops.composite import moveaxis
from rlx.ops.movement.strided import reshape
from rlx.ranks.mesh import Axes, Mesh
from rlx.ranks.place import PLACE

__all__ = ["all_gather", "all_reduce", "all_to_all", "axis_index", "broadcast", "reduce_scatter"]


def _here(op: str) -> Mesh:
    if PLACE.mesh is None:
        raise GraphError(
            f"{op}: this thread works within no mesh; call it in rlx.shard_map, in mesh.run, or within `with mesh:`"
        )
    return PLACE.mesh


def _who(op: str, axis_name: Axes) -> dict[str, Any] | None:
    """The attributes that say which ranks take part; None if it is only one."""
    mesh = _here(op)
    over = mesh.names(axis_name, op)
    if mesh.world is None or all(mesh.axes[name] == 1 for name in over):
        return None
    who: dict[str, Any] = {"over": over, "mesh": tuple(mesh.axes.items()), "world": mesh.world.name, "rank": mesh.rank}
    who |= {} if PLACE.card is None else {"card": PLACE.card}
    return {**who, "spoils": True} if PLACE.spoils else who


def _applied(op: str, x: Tensor, who: dict[str, Any] | None, **attrs: Any) -> Tensor:
    if who is not None:
        return apply(op, x, **who, **attrs)
    # One rank: only the type is checked.
    alone = {"over": ("rank",), "mesh": (("rank", 1),), "world": "", "rank": 0}
    get_op(op).types([x.type], {**alone, **attrs})
    return x


def all_reduce(x: TensorLike, axis_name: Axes, op: str = "sum") -> Tensor:
    """The sum of x over the ranks along an axis of the mesh, or along several; all these ranks get it.

    op: "sum", "mean", "prod", "max" or "min". Shape and dtype: those of x, the same on all ranks. bool: "max" is any,
    "min" all. Gradient: that of the sum of all ranks' losses, so a sum's is the sum of the ranks' gradients; for "max"
    and "min" ties share it evenly, for "prod" there is none. Numerics: on the CPU in the order of the ranks, halves in
    f32; the same bits on all ranks. Raises: GraphError outside of a mesh and for an axis that it does not have,
    DTypeError; in a run RanksDisagree and RankLost. As jax.lax.psum, pmean, pmax and pmin.
    """
    return _applied("all_reduce", tensor("all_reduce", x), _who("all_reduce", axis_name), how=op)


def all_gather(x: TensorLike, axis_name: Axes, axis: int = 0) -> Tensor:
    """The arrays of all ranks along an axis of the mesh, concatenated along `axis`.

    Shape: n times as long along `axis`. Dtype: any. Gradient: the sum over the ranks of this rank's part. Otherwise as
    `all_reduce`. As jax.lax.all_gather with tiled=True.
    """
    x = tensor("all_gather", x)
    axis = _axis("all_gather", axis, x)
    return moveaxis(_applied("all_gather", moveaxis(x, axis, 0), _who("all_gather", axis_name)), 0, axis)


def reduce_scatter(x: TensorLike, axis_name: Axes, axis: int = 0, op: str = "sum") -> Tensor:
    """This rank's part, along `axis`, of the sum over the ranks along an axis of the mesh.

    Shape: `axis` is divided by the number of ranks. Gradient: of "sum" and "mean". Otherwise as `all_reduce`. Raises:
    ShapeError where the axis does not divide. As jax.lax.psum_scatter with tiled=True.
    """
    x = tensor("reduce_scatter", x)
    axis = _axis("reduce_scatter", axis, x)
    who = _who("reduce_scatter", axis_name)
    return moveaxis(_applied("reduce_scatter", moveaxis(x, axis, 0), who, how=op), 0, axis)


def all_to_all(x: TensorLike, axis_name: Axes, split_axis: int, concat_axis: int) -> Tensor:
    """This rank's parts, along `split_axis`, of the arrays of all ranks, concatenated along `concat_axis`.

    Shape: `split_axis` is divided by the number of ranks, `concat_axis` multiplied. Dtype: any. Gradient: the exchange
    back. Otherwise as `reduce_scatter`. As jax.lax.all_to_all with tiled=True.
    """
    x = tensor("all_to_all", x)
    split, concat = (_axis("all_to_all", axis, x) for axis in (split_axis, concat_axis))
    who = _who("all_to_all", axis_name)
    out = _applied("all_to_all", moveaxis(x, split, 0), who)
    if who is None or split == concat:
        return moveaxis(out, 0, split)
    n = count_of(who)
    blocks = reshape(out, (n, out.shape[0] // n, *out.shape[1:]))
    blocks = moveaxis(moveaxis(blocks, 1, split + 1), 0, concat)  # (…, n, the axis that grows, …)
    shape = blocks.shape
    return reshape(blocks, (*shape[:concat], n * shape[concat + 1], *shape[concat + 2 :]))


def broadcast(x: TensorLike, axis_name: Axes, root: int = 0) -> Tensor:
    """The array of the rank with index `root` along an axis of the mesh, on all ranks along it.

    Shape and dtype: those of x, the same on all ranks. Gradient: the sum over the ranks, at the root. Otherwise as
    `all_reduce`. As MPI_Bcast.
    """
    mesh = _here("broadcast")
    n = int(np.prod([mesh.axes[name] for name in mesh.names(axis_name, "broadcast")]))
    if isinstance(root, bool) or not isinstance(root, int | np.integer) or not 0 <= root < n:
        raise ShapeError(f"broadcast: root is {root!r}; expected the place of a rank along {axis_name!r}, 0 to {n - 1}")
    return _applied("broadcast", tensor("broadcast", x), _who("broadcast", axis_name), root=int(root))


def axis_index(axis_name: Axes) -> Tensor:
    """The index of this rank along an axis of the mesh, from 0: an i32 scalar.

    Like `mesh.index(axis)` it is known while the program is built, but with it the programs of all ranks stay equal. As
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
    """How a call outside a trace runs: at once. No program is kept for the next call, since a program is one rank's."""

    def other(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
        x = args[0] if args else kwargs.get("x")
        if TRACING.graph is not None or TRACING.body is not None or isinstance(x, Tensor):
            return None
        return lambda *args, **kwargs: _at_once(function, args, kwargs)

    return other


def _at_once(function: Callable[..., Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result for an array, by the ops' NumPy definitions."""
    from rlx.ir import Graph
    from rlx.ops.elementwise.unary import copy
    from rlx.ops.interpret import evaluate
    from rlx.ops.public import Outside

    x, *rest = args if args else (kwargs["x"],)
    graph = Graph("a collective")
    array = np.asarray(x.numpy() if hasattr(x, "numpy") else x)
    out = function(graph.input("x", array.shape, array.dtype), *rest, **{k: v for k, v in kwargs.items() if k != "x"})
    result = evaluate(graph, {"x": array}, upcast=False)[out.id]
    return result if Outside.compute is None else Outside.compute(copy, (result,), {})


_COLLECTIVES: tuple[Any, ...] = (all_gather, all_reduce, all_to_all, broadcast, reduce_scatter)
for _function in _COLLECTIVES:
    _function.instead = _instead(_function)
