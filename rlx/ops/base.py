"""Code that the op modules share: type checks for `infer`, argument handling of public functions, unbroadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, f32, f64, promote
from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.ir import Attrs, Node, Tensor, TensorType, apply
from rlx.ir.graph import TRACING, as_tensors, graph_of
from rlx.ir.op import Infer, Leaf
from rlx.ir.types import broadcast_shapes, normalize_axis

TensorLike = Any  # a Tensor, a Python scalar, or an array of NumPy, rlx or another library


def tensors(op: str, *args: TensorLike) -> tuple[Tensor, ...]:
    """The arguments as Tensors of one graph; Python scalars adapt to the dtypes of the Tensors.

    Raises: DTypeError for a scalar that this dtype cannot hold, GraphError where there is no argument.
    """
    if not args:
        raise GraphError(f"{op}: an empty list was given; expected at least one tensor or array in it")
    graph = graph_of(op, args)
    try:
        return as_tensors(graph, args)
    except DTypeError as error:
        scalar = any(isinstance(x, bool | int | float) for x in args)
        advice = "; or rlx.cast the tensor beside it to a wider dtype first" if scalar else ""
        raise DTypeError(f"{op}: {error}{advice}") from None


def tensor(op: str, x: TensorLike) -> Tensor:
    """The only argument of an op, which must be a Tensor."""
    return tensors(op, x)[0]


def cast_to(x: Tensor, dtype: DType) -> Tensor:
    """x cast to `dtype`; x itself, and no new node, when it has that dtype."""
    return x if x.dtype == dtype else apply("cast", x, dtype=dtype)


def narrowed(x: Tensor, dtype: DType) -> Tensor:
    """Integers cast to another integer dtype; values out of its range are clamped and do not wrap."""
    have, want = np.iinfo(x.dtype.np), np.iinfo(dtype.np)
    if have.max > want.max:
        x = apply("clip", x, min=max(int(have.min), int(want.min)), max=int(want.max))
    return cast_to(x, dtype)


def floating(x: Tensor) -> Tensor:
    """x itself when it is a float, else cast to f32."""
    return x if x.dtype.is_float else cast_to(x, f32)


def floats(*xs: Tensor) -> tuple[Tensor, ...]:
    """The tensors, with integers and bools cast to f32, or to f64 when another tensor is f64."""
    work = f64 if any(x.dtype == f64 for x in xs) else f32
    return tuple(x if x.dtype.is_float else cast_to(x, work) for x in xs)


def check_known(x: Tensor, check: Callable[[Any], None], read: bool = False) -> None:
    """Checks the values of x (or of the tensor it was cast from) if the host knows them: a constant's now, those of an
    input of a call outside a trace before each run. With `read` it knows rlx.Arrays too, which it reads once each."""
    node = x.node
    if node.op.name == "cast":
        node = node.inputs[0].node
    if node.op.name == "constant":
        check(node.attrs["value"])
    elif node.op.leaf is Leaf.INPUT and node.output.graph is TRACING.graph and TRACING.checks is not None:
        TRACING.checks.append((node.attrs["name"], check, read))


def check_inputs(op: str, types: Sequence[TensorType], low: int, high: int | None = None) -> None:
    high = low if high is None else high
    if not low <= len(types) <= high:
        expected = str(low) if low == high else f"{low} to {high}"
        raise ShapeError(f"{op}: takes {expected} inputs, got {len(types)}")


def check_axis(op: str, x: TensorType, attrs: Attrs) -> int:
    """The axis of a node's attributes. Raises: ShapeError for a scalar, or an axis not counted from the front."""
    if x.rank == 0:
        raise ShapeError(f"{op}: the input is a scalar; expected at least one axis")
    axis: int = attrs["axis"]
    if axis != normalize_axis(axis, x.rank, op):
        raise ShapeError(f"{op}: axis {axis} is not normalized; expected it counted from the front")
    return axis


def flat_or_axis(op: str, x: Tensor, axis: int | None) -> tuple[Tensor, int]:
    """The tensor and its axis, counted from the front; for None the flattened tensor (row-major), and 0."""
    if axis is None:
        return x if x.ndim == 1 else apply("reshape", x, shape=(x.size,)), 0
    return x, normalize_axis(axis, x.ndim, op)


def check_float(op: str, dtype: DType, what: str = "input") -> None:
    if not dtype.is_float:
        raise DTypeError(
            f"{op}: the {what} must be a float, got {dtype}; cast it first (the function rlx.{op} does)"
        )


def check_number(op: str, dtype: DType) -> None:
    if dtype.kind == "b":
        raise DTypeError(f"{op}: takes numbers, got bool; cast to a number, or use the logical_* functions")


def check_bool(op: str, dtype: DType) -> None:
    if dtype.kind != "b":
        raise DTypeError(f"{op}: takes bool, got {dtype}; cast it to bool (`x != 0`)")


def infer_unary(op: str, check: Callable[[str, DType], None]) -> Infer:
    """The `infer` of an op of one input whose output has the input's type; `check` checks the dtype."""

    def infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        check_inputs(op, types, 1)
        check(op, types[0].dtype)
        return types[0]

    return infer


def infer_binary(op: str, check: Callable[[str, DType], None], result: DType | None = None) -> Infer:
    """The `infer` of an op of two inputs: the broadcast shape; the promoted dtype, or `result`."""

    def infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        check_inputs(op, types, 2)
        dtype = promote(types[0].dtype, types[1].dtype)
        check(op, dtype)
        dtype = dtype if result is None else result
        if types[0].shape == types[1].shape and dtype is types[0].dtype:
            return types[0]
        return TensorType(broadcast_shapes(types[0].shape, types[1].shape, op=op), dtype)

    return infer


def anything(op: str, dtype: DType) -> None:
    """The dtype check of an op that takes every dtype."""


def unbroadcast(gradient: Tensor, like: Tensor) -> Tensor | None:
    """The gradient of a tensor, in its shape and dtype, from the gradient of its broadcast.

    It is summed over the axes along which the tensor was repeated. None for a tensor of integers or bools.
    """
    if not like.dtype.is_float:
        return None
    extra = gradient.ndim - like.ndim
    axes = [
        i
        for i in range(gradient.ndim)
        if i < extra or (like.shape[i - extra] == 1 and gradient.shape[i] != 1)
    ]
    if axes:
        gradient = apply("sum", gradient, axes=tuple(axes), keepdims=True)
    if gradient.shape != like.shape:
        gradient = apply("reshape", gradient, shape=like.shape)
    return cast_to(gradient, like.dtype)


def written(node: Node) -> int:
    """The bytes of a node's outputs."""
    return sum(t.type.nbytes for t in node.outputs)


def check_like(op: str, d: TensorType, x: TensorType, what: str = "input") -> None:
    """Checks that the gradient `d` has the type of `x`, the input or output it belongs to. Raises: ShapeError."""
    check_float(op, x.dtype, what)
    if d != x:
        raise ShapeError(f"{op}: the gradient is {d}, the {what} {x}; expected the same shape and dtype")


def flag(op: str, name: str, value: Any) -> bool:
    """A bool, or 0 or 1. Raises: DTypeError for anything else, such as the dtype that NumPy has in its place."""
    if isinstance(value, bool | np.bool_) or (isinstance(value, int | np.integer) and value in (0, 1)):
        return bool(value)
    raise DTypeError(f"{op}: {name} is {value!r}; expected a bool; write what was meant by name, as dtype=…")
