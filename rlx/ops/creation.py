"""Tensors made of numbers alone: zeros, ones, full, eye, arange, linspace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.dtypes import DType, DTypeLike, as_dtype, f32, i64
from rlx.errors import DTypeError, ShapeError
from rlx.host.other_attributes import explain
from rlx.ir import Graph, Tensor
from rlx.ir.graph import traced_graph
from rlx.ir.types import as_shape, is_length
from rlx.ops.elementwise import binary, select
from rlx.ops.movement import strided as movement

Shape = int | Sequence[int]

if TYPE_CHECKING:

    class Created(Tensor, np.ndarray[Any, np.dtype[Any]]):  # type: ignore[misc]
        """What these functions give, to a type checker: it may stand where a tensor and where an array may, since the
        checker does not see which of the two a call gives. In operations it is a tensor."""

else:
    Created = Tensor | np.ndarray


class CreatedArray(np.ndarray[Any, np.dtype[Any]]):
    """What these functions return outside a traced function: a NumPy array that also has `at`, as rlx.Array does.

    NumPy's functions return plain arrays for it."""

    @property
    def at(self) -> Any:
        from rlx.ops.index.at import At

        return At(self)

    def astype(self, dtype: Any, *args: Any, **options: Any) -> Any:
        """As in NumPy, for rlx dtypes too."""
        return super().astype(dtype.np if isinstance(dtype, DType) else dtype, *args, **options)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return np.asarray(array)[()] if return_scalar else np.asarray(array)

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def __reduce__(self) -> Any:
        return self.view(np.ndarray).__reduce__()


explain(CreatedArray)


def _filled(op: str, shape: Shape, value: Any, dtype: DTypeLike | None) -> Created:
    dims = as_shape(shape, f"{op}: shape")
    result: Any
    if isinstance(value, Tensor):
        result = movement.expand(value.concrete() if dtype is None else select.cast(value, dtype), dims)
    else:
        home = traced_graph()
        one = (home or Graph()).constant(value, dtype)
        result = movement.expand(one, dims) if home else np.full(dims, one.node.attrs["value"]).view(CreatedArray)
    return result  # type: ignore[no-any-return]


def full(shape: Shape, value: Any, dtype: DTypeLike | None = None) -> Created:
    """A tensor filled with one number.

    In a function that jit, grad or a control op traces, a tensor of that program, which takes no memory before an op
    needs it; elsewhere a NumPy array, which is an operand beside tensors and an argument of such a function. To a type
    checker it is both. Dtype: of the number where none is given: f32 for floats, i64 for ints, bool. Gradient: to a
    tensor of rank 0 given as the number, the sum. Raises: ShapeError, DTypeError for a number that the dtype does not
    hold.
    """
    return _filled("full", shape, value, dtype)


def zeros(shape: Shape, dtype: DTypeLike = f32) -> Created:
    """Zeros of a shape: a tensor in a traced function, elsewhere a NumPy array, as rlx.full."""
    return _filled("zeros", shape, 0, dtype)


def ones(shape: Shape, dtype: DTypeLike = f32) -> Created:
    """Ones of a shape: a tensor in a traced function, elsewhere a NumPy array, as rlx.full."""
    return _filled("ones", shape, 1, dtype)


def _known(array: Any, dtype: DTypeLike) -> Created:
    """An array known now, as a constant of the traced program or as it is."""
    home = traced_graph()
    one = (home or Graph()).constant(array, dtype)
    result: Any = one.node.attrs["value"].copy().view(CreatedArray) if home is None else one
    return result  # type: ignore[no-any-return]


def arange(
    start: float, stop: float | None = None, step: float = 1, dtype: DTypeLike | None = None
) -> Created:
    """start, start + step, … before stop; `arange(n)` is 0 to n - 1. Follows numpy.arange.

    In a traced function a tensor, elsewhere a NumPy array, as rlx.full. Dtype: i64 of ints, f32 where one is a float.
    Numerics: numpy.arange's in float64, rounded once: start + i·d, where d is (start + step) - start as float64 has it,
    so that an element may be an ULP from start + i·step. Raises: DTypeError for numbers that the dtype does not hold
    and for what is no number, ShapeError for a step of 0, and for NaN, infinities and more elements than memory has.
    """
    first, end = (0, start) if stop is None else (start, stop)
    arguments: dict[str, Any] = {"start": first, "stop": end, "step": step}
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            is_length(value)  # raises: only a run knows it
        if np.ndim(value) or np.asarray(value).dtype.kind not in "biuf":
            raise DTypeError(f"arange: {name} is {value!r}; expected one real number of at most 64 bits")
    try:
        values: Any = np.arange(first, end, step)
    except ZeroDivisionError:
        raise ShapeError("arange: the step is 0; expected another number") from None
    except (ValueError, MemoryError):
        raise ShapeError(f"arange: from {first} to {end} by {step}; expected finite numbers, and fewer") from None
    return _known(values, dtype or (i64 if values.dtype.kind in "iu" else f32))


def linspace(start: float, stop: float, count: int = 50, endpoint: bool = True, dtype: DTypeLike = f32) -> Created:
    """`count` numbers at equal distances from start to stop, which `endpoint` includes. Follows numpy.linspace.

    In a traced function a tensor, elsewhere a NumPy array, as rlx.full. Numerics: in float64, rounded once. Raises:
    ShapeError for a negative count, DTypeError for numbers that an integer dtype does not hold.
    """
    (n,) = as_shape((count,), "linspace: count")
    return _known(np.linspace(start, stop, n, endpoint), dtype)


def eye(rows: int, columns: int | None = None, offset: int = 0, dtype: DTypeLike = f32) -> Created:
    """Ones on a diagonal, else zeros: element (i, j) is 1 where j = i + offset. Follows numpy.eye.

    Shape: (rows, columns), square by default. In a traced function a tensor, elsewhere a NumPy array, as rlx.full.
    """
    n, m = as_shape((rows, rows if columns is None else columns), "eye: rows and columns")
    home = traced_graph()
    result: Any
    if home is None:
        result = np.eye(n, m, offset, as_dtype(dtype).np).view(CreatedArray)
    else:
        i, j = (home.constant(np.arange(k, dtype=np.int64)) for k in (n, m))
        result = select.cast(binary.equal(movement.reshape(i, (n, 1)) + offset, j), dtype)
    return result  # type: ignore[no-any-return]


__all__ = ["arange", "eye", "full", "linspace", "ones", "zeros"]
