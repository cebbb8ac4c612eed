"""Reading by index: gather, gather_elements, gather_nd, one_hot.

One rule holds for indices known only in a run: a negative index counts from the end, and one still out of range is
clamped to it. Constant indices out of range are refused when the graph is built.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence

import numpy as np

from rlx.dtypes import DType, DTypeLike, as_dtype, f32, i32, i64, u32, u64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.types import is_length, normalize_axis
from rlx.ops import batching, identities
from rlx.ops.base import TensorLike, check_axis, check_inputs, check_known, narrowed, tensors
from rlx.ops.numeric import Array, convert


def check_indices(op: str, dtype: DType) -> None:
    if dtype not in (i32, i64):
        raise DTypeError(f"{op}: the indices are {dtype}; expected i32 or i64")


def in_range(indices: Array, n: int) -> Array:
    """The indices counted from the front and clamped to 0..n-1."""
    wanted = indices.astype(np.int64)
    return np.clip(np.where(wanted < 0, wanted + n, wanted), 0, max(n - 1, 0))


# -- gather


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("gather", types, 2)
    x, indices = types
    axis = check_axis("gather", x, attrs)
    check_indices("gather", indices.dtype)
    if x.dtype.is_packed and axis == x.rank - 1:
        raise ShapeError(f"gather: x is {x}, whose blocks lie along axis {axis}; expected an axis before the last")
    if x.shape[axis] == 0 and indices.numel:
        raise ShapeError(
            f"gather: {indices.numel} indices into axis {axis} of {x.shape}, which has no elements"
        )
    return TensorType((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)


def _reference(x: Array, indices: Array, *, axis: int) -> Array:
    n = x.shape[axis]
    if n == 0:
        return np.empty((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    return np.take(x, in_range(indices, n), axis=axis)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Adds the gradient of each slice where the slice was read, in the order of the indices."""
    x, indices = node.inputs
    d, axis = grads[0], node.attrs["axis"]
    if d is None or not d.dtype.is_float or d.size == 0 or x.size == 0:
        return None, None
    n = x.shape[axis]
    return apply("scatter", clamped(indices, n), d, axis=axis, length=n, reduction="add"), None


def clamped(indices: Tensor, n: int) -> Tensor:
    """The indices by gather's rule: counted from the front and clamped to 0..n-1."""
    # The indices are clamped to -n..n-1 before n is added to negative ones, so that the sum cannot wrap.
    held = apply("clip", indices, min=-n, max=n - 1)
    return apply("where", apply("less", held, 0), held + n, held)


register(
    Op("gather", "index", _infer, _reference, "numpy.take", _vjp, kernel="gather", moves_data=True, packed=(0,),
       batch=batching.gather, identity=identities.gather)
)


def gather(x: TensorLike, indices: TensorLike, axis: int = 0) -> Tensor:
    """The slices of x at the indices along an axis, as numpy.take.

    Shape: x.shape with the axis replaced by indices.shape. Dtype: x any, packed weights too, whose rows stay packed
    (the axis is then one before the last); indices integers. Negative indices count from
    the end. Out of range: ShapeError where the indices are constant; else every device clamps them to the range.
    Gradient: each slice's is added where the slice was read. Numerics: exact.
    """
    x, indices = tensors("gather", x, integers(indices))
    indices = index_tensor("gather", indices)
    axis = normalize_axis(axis, x.ndim, "gather")
    check_constants_in_range("gather", indices, x.shape[axis], f"axis {axis} of {x.shape}")
    return apply("gather", x, indices, axis=axis)


def integers(indices: TensorLike) -> TensorLike:
    """Python lists and scalars as arrays, so that a scalar index does not take x's dtype."""
    return indices.concrete() if isinstance(indices, Tensor) else np.asarray(indices)


def index_tensor(op: str, indices: Tensor) -> Tensor:
    """The indices as i32 or i64. Raises: DTypeError for floats and bools."""
    if not indices.dtype.is_int:
        raise DTypeError(f"{op}: the indices are {indices.dtype}; expected integers (for masks: rlx.where)")
    return narrowed(indices, i64 if indices.dtype in (i64, u32, u64) else i32)


def check_constants_in_range(op: str, indices: Tensor, n: int, what: str) -> None:
    """Raises: ShapeError where an index that the host knows is outside -n..n-1."""
    check_known(indices, lambda value: check_in_range(op, value, n, what))


def check_in_range(op: str, value: Array, n: int, what: str) -> None:
    """Raises: ShapeError where an index is outside -n..n-1."""
    if value.size and not (-n <= int(value.min()) and int(value.max()) < n):
        came = f"indices from {value.min()} to {value.max()}"
        raise ShapeError(f"{op}: {came} leave {what}; expected {-n}..{n - 1}")


# -- gather_elements


def _elements_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("gather_elements", types, 2)
    x, indices = types
    axis = check_axis("gather_elements", x, attrs)
    check_indices("gather_elements", indices.dtype)
    expected = (*x.shape[:axis], *indices.shape[axis : axis + 1], *x.shape[axis + 1 :])
    if indices.shape != expected or indices.rank != x.rank:
        raise ShapeError(
            f"gather_elements: indices {indices.shape} beside x {x.shape}; expected x's shape but for axis {axis}"
        )
    if x.shape[axis] == 0 and indices.numel:
        raise ShapeError(
            f"gather_elements: {indices.numel} indices into axis {axis} of {x.shape}, which has no elements"
        )
    return TensorType(indices.shape, x.dtype)


def _elements_reference(x: Array, indices: Array, *, axis: int) -> Array:
    if indices.size == 0:
        return np.empty(indices.shape, x.dtype)
    return np.take_along_axis(x, in_range(indices, x.shape[axis]), axis)


def _elements_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    x, indices = node.inputs
    d, axis = grads[0], node.attrs["axis"]
    if d is None or not d.dtype.is_float or d.size == 0:
        return None, None
    n = x.shape[axis]
    return apply("scatter_elements", clamped(indices, n), d, axis=axis, length=n, reduction="add"), None


register(
    Op("gather_elements", "index", _elements_infer, _elements_reference, "numpy.take_along_axis", _elements_vjp,
       kernel="gather_elements", moves_data=True, batch=batching.along())
)  # fmt: skip


def gather_elements(x: TensorLike, indices: TensorLike, axis: int = 0) -> Tensor:
    """y[.., j, ..] = x[.., indices[.., j, ..], ..]: one index for each element, along an axis.

    Shape: indices.shape, of x's rank; its other axes may be shorter than x's, and x is then read only up to there.
    Dtype: x any; indices integers; negative ones count from the end. Out of range: as rlx.gather. Gradient: each
    element's is added where the element was read. Numerics: exact. Follows ONNX GatherElements and torch.gather.
    """
    x, indices = tensors("gather_elements", x, integers(indices))
    indices = index_tensor("gather_elements", indices)
    axis = normalize_axis(axis, x.ndim, "gather_elements")
    x = corner(x, indices, axis, "gather_elements")
    check_constants_in_range("gather_elements", indices, x.shape[axis], f"axis {axis} of {x.shape}")
    return apply("gather_elements", x, indices, axis=axis)


def corner(x: Tensor, indices: Tensor, axis: int, op: str) -> Tensor:
    """x cut to the part that an index tensor of its rank can read, where other axes of the indices are shorter."""
    fits = indices.ndim == x.ndim and all(
        a <= b or i == axis for i, (a, b) in enumerate(zip(indices.shape, x.shape, strict=True))
    )
    if not fits:
        raise ShapeError(
            f"{op}: indices {indices.shape} beside x {x.shape}; expected one rank, and no axis longer but {axis}"
        )
    stops = tuple(b if i == axis else a for i, (a, b) in enumerate(zip(indices.shape, x.shape, strict=True)))
    if stops == x.shape:
        return x
    return apply("slice", x, starts=(0,) * x.ndim, stops=stops, steps=(1,) * x.ndim)


def take_along_axis(x: TensorLike, indices: TensorLike, axis: int = -1) -> Tensor:
    """gather_elements with NumPy's broadcasting: axes of length 1, other than `axis`, are repeated."""
    x, indices = tensors("take_along_axis", x, integers(indices))
    axis = normalize_axis(axis, x.ndim, "take_along_axis")
    if x.ndim != indices.ndim:
        raise ShapeError(f"take_along_axis: indices {indices.shape} beside x {x.shape}; expected one rank")
    for i, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if i != axis and a != b and 1 not in (a, b):
            raise ShapeError(
                f"take_along_axis: indices {indices.shape} do not broadcast with x {x.shape} at axis {i}"
            )
    common = [b if a == 1 else a for a, b in zip(x.shape, indices.shape, strict=True)]
    x, indices = (_repeated(t, (*common[:axis], t.shape[axis], *common[axis + 1 :])) for t in (x, indices))
    return gather_elements(x, indices, axis)


def _repeated(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if x.shape == shape else apply("expand", x, shape=shape)


# -- gather_nd


def gather_nd(x: TensorLike, indices: TensorLike) -> Tensor:
    """The slices of x at index tuples: y[i..] = x[indices[i.., 0], indices[i.., 1], …].

    Shape: indices.shape[:-1] + x.shape[q:] for tuples of q = indices.shape[-1]. Dtype: x any; indices integers;
    negative ones count from the end. Out of range: as gather. Gradient: to x. Follows ONNX GatherND, batch_dims 0.
    """
    x, indices = tensors("gather_nd", x, integers(indices))
    indices = index_tensor("gather_nd", indices)
    q = tuple_length("gather_nd", x.shape, indices)
    rows = None
    for k in range(q):
        part = component(indices, k)
        check_constants_in_range("gather_nd", part, x.shape[k], f"axis {k} of {x.shape}")
        row = clamped(part, x.shape[k])
        rows = row if rows is None else rows * x.shape[k] + row
    flat = apply("reshape", x, shape=(math.prod(x.shape[:q]), *x.shape[q:]))
    assert rows is not None
    return apply("gather", flat, rows, axis=0)


def tuple_length(op: str, shape: tuple[int, ...], indices: Tensor) -> int:
    """The length of the index tuples: the number of x's axes that they index. Raises: ShapeError."""
    if indices.ndim == 0 or not 1 <= indices.shape[-1] <= len(shape):
        raise ShapeError(
            f"{op}: indices {indices.shape} for x {shape}; expected the last axis to hold 1 to {len(shape)} numbers"
        )
    q = indices.shape[-1]
    if indices.dtype == i32 and math.prod(shape[:q]) > 2**31 - 1:
        raise DTypeError(
            f"{op}: {math.prod(shape[:q])} rows of x {shape} are more than i32 counts; use i64 indices"
        )
    return q


def component(indices: Tensor, k: int) -> Tensor:
    """The k-th index of every index tuple."""
    if indices.node.op.name == "constant":
        return indices.graph.constant(indices.node.attrs["value"][..., k])
    starts, stops = [0] * indices.ndim, list(indices.shape)
    starts[-1], stops[-1] = k, k + 1
    cut = apply("slice", indices, starts=tuple(starts), stops=tuple(stops), steps=(1,) * indices.ndim)
    return apply("reshape", cut, shape=indices.shape[:-1])


# -- one_hot


def _one_hot_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("one_hot", types, 1)
    shape, depth = types[0].shape, attrs["depth"]
    check_indices("one_hot", types[0].dtype)
    if isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth < 2**31:
        raise ShapeError(f"one_hot: depth is {depth!r}; expected an int ≥ 0")
    axis = attrs["axis"]
    if axis != normalize_axis(axis, len(shape) + 1, "one_hot"):
        raise ShapeError(f"one_hot: axis {axis} is not normalized; expected it counted from the front")
    if not isinstance(attrs["dtype"], DType):
        raise DTypeError(
            f"one_hot: dtype is {attrs['dtype']!r}; expected a DType (rlx.one_hot takes names too)"
        )
    return TensorType((*shape[:axis], depth, *shape[axis:]), attrs["dtype"])


def _one_hot(indices: Array, *, depth: int, axis: int, on: float, off: float, dtype: DType) -> Array:
    wanted = np.expand_dims(indices.astype(np.int64), axis)
    places = np.arange(depth).reshape([depth if i == axis else 1 for i in range(wanted.ndim)])
    hit = np.where(wanted < 0, wanted + depth, wanted) == places
    values = [convert(np.asarray(v), dtype) for v in (on, off)]
    return np.where(hit, *values)


register(
    Op(
        "one_hot",
        "index",
        _one_hot_infer,
        _one_hot,
        "the loop of ONNX OneHot",
        NOT_DIFFERENTIABLE,
        kernel="tree",
     batch=batching.along())
)


def one_hot(
    indices: TensorLike,
    depth: int,
    axis: int = -1,
    on: float | int | bool = 1,
    off: float | int | bool = 0,
    dtype: DTypeLike = f32,
) -> Tensor:
    """`on` where the position along a new axis of length `depth` equals the index, else `off`.

    Shape: indices.shape with the new axis inserted. Dtype: `dtype`; indices integers. Negative indices count from the
    end; an index out of range, constant or not, gives `off` everywhere. Gradient: none. Follows ONNX OneHot.
    """
    (indices,) = tensors("one_hot", integers(indices))
    indices = index_tensor("one_hot", indices)
    kind = as_dtype(dtype)
    for what, value in (("on", on), ("off", off)):
        if not isinstance(value, builtins.int | builtins.float | np.integer | np.floating | np.bool_):
            raise DTypeError(f"one_hot: {what} is {type(value).__name__}; expected a number")
        if kind.is_int and (
            value != int(value) or not np.iinfo(kind.np).min <= value <= np.iinfo(kind.np).max
        ):
            raise DTypeError(f"one_hot: {what} is {value}, which {kind} does not hold; give another dtype")
    axis = normalize_axis(axis, indices.ndim + 1, "one_hot")
    numbers = {k: float(v) if kind.is_float else int(v) for k, v in (("on", on), ("off", off))}
    if not is_length(depth):
        raise ShapeError(f"one_hot: depth is {depth!r}; expected an int ≥ 0")
    return apply("one_hot", indices, depth=int(depth), axis=axis, dtype=kind, **numbers)


def embedding(table: TensorLike, ids: TensorLike) -> Tensor:
    """The rows of a table of embeddings at the ids: rlx.gather along the first axis, packed tables too.

    Shape: table (n, …), ids any; gives ids.shape + table.shape[1:]. Gradient: each row's is added to the table's row.
    Raises: DTypeError for ids that are no integers.
    """
    table, ids = tensors("embedding", table, integers(ids))
    if not ids.dtype.is_int:
        raise DTypeError(
            f"embedding: the ids are {ids.type}; expected integers; the table comes first, which torch has second"
        )
    return gather(table, ids, axis=0)


__all__ = ["embedding", "gather", "gather_elements", "gather_nd", "one_hot", "take_along_axis"]
