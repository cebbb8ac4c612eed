"""Code that the recurrences share: optional inputs by name, and the types of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Tensor, TensorType, apply
from rlx.ir.op import Renews
from rlx.ops.base import TensorLike, cast_to, check_float, floats, tensors
from rlx.ops.numeric import Array, widened, working
from rlx.ops.reduce import working_float

T = TypeVar("T")


def optional(op: str, inputs: Sequence[T], required: int, names: Sequence[str], operands: Any) -> dict[str, T]:
    """The optional inputs of a node by name: those that the attribute `operands` lists, after the required ones.

    Raises: DTypeError unless `operands` is a tuple of some of `names` in their order, ShapeError if the number of
    inputs does not fit it.
    """
    if not isinstance(operands, tuple) or operands != tuple(n for n in names if n in operands):
        raise DTypeError(
            f"{op}: operands is {operands!r}; expected a tuple of {', '.join(names)}, in this order"
        )
    if len(inputs) != required + len(operands):
        raise ShapeError(
            f"{op}: takes {required} inputs and {len(operands)} named {operands}, got {len(inputs)}"
        )
    return dict(zip(operands, inputs[required:], strict=True))


def renews_state(required: int) -> Renews:
    """The trait of an op whose second output, the last state, may overwrite its operand `state`."""

    def renews(attrs: Attrs) -> tuple[tuple[int, int], ...]:
        operands = attrs["operands"]
        return ((required + operands.index("state"), 1),) if "state" in operands else ()

    return renews


def check_types(
    op: str, dtype: DType, expected: Mapping[str, tuple[TensorType, tuple[int, ...], bool]]
) -> None:
    """Checks inputs by name against shapes, and against `dtype` or (where the bool is true) its working dtype.

    Raises: ShapeError, DTypeError.
    """
    check_float(op, dtype)
    for name, (t, shape, wide) in expected.items():
        if t.shape != shape:
            raise ShapeError(f"{op}: {name} is {t}; expected the shape {shape}")
        if t.dtype != (working(dtype) if wide else dtype):
            raise DTypeError(
                f"{op}: {name} is {t}; expected {working(dtype) if wide else dtype} beside x of {dtype}"
            )


def given_tensors(op: str, required: Sequence[TensorLike], more: Mapping[str, TensorLike | None]) -> Any:
    """The required arguments as float tensors of one graph, and those of `more` that are not None by name."""
    names = [name for name, value in more.items() if value is not None]
    operand_tensors = floats(*tensors(op, *required, *(more[name] for name in names)))
    return operand_tensors[: len(required)], dict(zip(names, operand_tensors[len(required) :], strict=True))


def rounded(fn: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Array, Array]]:
    """Makes a NumPy recurrence a reference: it computes halves in f32, and only its first result is rounded to them."""

    def reference(x: Array, *others: Array, **attrs: Any) -> tuple[Array, Array]:
        with np.errstate(all="ignore"):
            y, state = fn(widened(x), *map(widened, others), **attrs)
            return np.asarray(y).astype(x.dtype, copy=False), np.asarray(state)

    return reference


def wide(x: Tensor) -> Tensor:
    """The tensor in the dtype it is computed in."""
    return cast_to(x, working_float(x))


def zeros(like: Tensor, shape: Sequence[int], dtype: DType) -> Tensor:
    """Zeros in the graph of a tensor."""
    return apply("expand", like.graph.constant(0, dtype), shape=tuple(shape))


def transposed(x: Tensor, *perm: int) -> Tensor:
    return apply("transpose", x, perm=perm)


def reshaped(x: Tensor, *shape: int) -> Tensor:
    return apply("reshape", x, shape=shape)
