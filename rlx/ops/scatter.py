"""Writing by index: scatter, scatter_elements, scatter_nd, segment_sum.

A negative index counts from the end. An update whose index is still out of range is dropped; constant indices out of
range are refused when the graph is built. Every device applies several updates of one element in the order of the
indices: with "none" the last one remains, and sums have the same bits in every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, i64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.types import is_length, normalize_axis
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_inputs, tensors
from rlx.ops.index.dynamic import dynamic_update_slice
from rlx.ops.index.gather import (
    check_constants_in_range,
    check_indices,
    component,
    corner,
    index_tensor,
    integers,
    tuple_length,
)
from rlx.ops.numeric import Array, join_at, widened
from rlx.ops.reduce import working_float

REDUCTIONS = ("none", "add", "mul", "min", "max")
_AT: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _common(op: str, types: Sequence[TensorType], attrs: Attrs) -> None:
    check_inputs(op, types, 2, 3)
    check_indices(op, types[0].dtype)
    dtype, reduction, length = types[1].dtype, attrs["reduction"], attrs["length"]
    if reduction not in REDUCTIONS:
        raise DTypeError(f"{op}: reduction is {reduction!r}; expected one of {', '.join(REDUCTIONS)}")
    if dtype.kind == "b" and reduction != "none":
        raise DTypeError(f"{op}: reduction {reduction!r} of bool; cast to a number, or use reduction 'none'")
    if isinstance(length, bool) or not isinstance(length, int) or length < 0:
        raise ShapeError(f"{op}: length is {length!r}; expected an int ≥ 0")
    if len(types) == 2 and reduction not in ("none", "add"):
        raise ShapeError(f"{op}: reduction {reduction!r} without a tensor to scatter into; give one")


def _into(op: str, types: Sequence[TensorType], shape: tuple[int, ...]) -> TensorType:
    target = TensorType(shape, types[1].dtype)
    if len(types) == 3 and types[2] != target:
        raise ShapeError(
            f"{op}: scatters {types[1]} into {types[2]}; expected {target}, by the indices {types[0]}"
        )
    return target


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    _common("scatter", types, attrs)
    indices, updates, axis = types[0], types[1], attrs["axis"]
    end = axis + indices.rank
    if isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis <= updates.rank - indices.rank:
        raise ShapeError(
            f"scatter: axis {axis!r} with indices {indices} and updates {updates} is out of range"
        )
    if updates.shape[axis:end] != indices.shape:
        raise ShapeError(
            f"scatter: updates {updates.shape} have {updates.shape[axis:end]} from axis {axis} on; expected the "
            f"indices' shape {indices.shape}"
        )
    return _into("scatter", types, (*updates.shape[:axis], attrs["length"], *updates.shape[end:]))


def _elements_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    _common("scatter_elements", types, attrs)
    indices, updates, axis = types[0], types[1], attrs["axis"]
    if updates.shape != indices.shape:
        raise ShapeError(
            f"scatter_elements: indices {indices.shape} and updates {updates.shape}; expected one shape"
        )
    if updates.rank == 0 or axis != normalize_axis(axis, updates.rank, "scatter_elements"):
        raise ShapeError(f"scatter_elements: axis {axis} of {updates.shape}; expected 0..{updates.rank - 1}")
    shape = (*updates.shape[:axis], attrs["length"], *updates.shape[axis + 1 :])
    return _into("scatter_elements", types, shape)


def from_front(indices: Array, n: int) -> tuple[Array, Array]:
    """The indices counted from the front, and which of them are in range."""
    wanted = indices.astype(np.int64)
    wanted = np.where(wanted < 0, wanted + n, wanted)
    return wanted, (wanted >= 0) & (wanted < n)


def _apply_at(out: Array, key: Any, updates: Array, reduction: str) -> None:
    if reduction == "none":
        out[key] = updates  # NumPy keeps the last of several updates of one index
    else:
        join_at(_AT[reduction], out, key, updates)


def _base(shape: tuple[int, ...], updates: Array, x: tuple[Array, ...], reduction: str) -> Array:
    """A new array to scatter into, x or zeros, in the dtype of the arithmetic."""
    dtype = updates.dtype if reduction == "none" else widened(updates[:0]).dtype
    return x[0].astype(dtype).reshape(shape) if x else np.zeros(shape, dtype)


def scatter_rows(indices: Array, updates: Array, *x: Array, axis: int, length: int, reduction: str) -> Array:
    head, tail = updates.shape[:axis], updates.shape[axis + indices.ndim :]
    flat = updates.reshape(math.prod(head), indices.size, math.prod(tail))
    out = _base((math.prod(head), length, math.prod(tail)), flat, x, reduction)
    wanted, valid = from_front(indices.reshape(-1), length)
    with np.errstate(all="ignore"):
        # The scattered axis comes first, so that updates of one index are applied in the order of the indices.
        _apply_at(
            out.transpose(1, 0, 2), wanted[valid], flat.transpose(1, 0, 2)[valid].astype(out.dtype), reduction
        )
        return out.astype(updates.dtype).reshape(*head, length, *tail)


def scatter_each(indices: Array, updates: Array, *x: Array, axis: int, length: int, reduction: str) -> Array:
    shape = (*updates.shape[:axis], length, *updates.shape[axis + 1 :])
    out = _base(shape, updates, x, reduction)
    wanted, valid = from_front(indices, length)
    places: list[Array] = list(np.indices(indices.shape, sparse=True))
    places[axis] = wanted
    key = tuple(np.broadcast_to(p, indices.shape)[valid] for p in places)
    with np.errstate(all="ignore"):
        _apply_at(out, key, updates[valid].astype(out.dtype), reduction)
        return out.astype(updates.dtype)


def _read(node: Node, source: Tensor) -> Tensor:
    """The element of `source` at each update's index; for a dropped update, an arbitrary element."""
    axis = node.attrs["axis"]
    if node.op.name == "scatter_elements":
        return apply("gather_elements", source, node.inputs[0], axis=axis)
    return apply("gather", source, node.inputs[0], axis=axis)


def _kept(node: Node, d: Tensor) -> Tensor:
    """d where the update was not dropped, else 0."""
    indices, n = node.inputs[0], node.attrs["length"]
    valid = apply("logical_and", apply("greater_equal", indices, -n), apply("less", indices, n))
    if node.op.name == "scatter":
        tail = d.ndim - node.attrs["axis"] - indices.ndim
        valid = apply("reshape", valid, shape=(*indices.shape, *(1,) * tail))
    return apply("where", valid, d, 0)


def _write(node: Node, updates: Tensor, reduction: str, into: Tensor | None = None) -> Tensor:
    attrs = {**node.attrs, "reduction": reduction}
    return apply(node.op.name, node.inputs[0], updates, *(() if into is None else (into,)), **attrs)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d, u = grads[0], node.inputs[1]
    x = node.inputs[2] if len(node.inputs) == 3 else None
    reduction = node.attrs["reduction"]
    if d is None or not d.dtype.is_float:
        return (None,) * len(node.inputs)
    if u.size == 0 or d.size == 0:
        return (None, None) if x is None else (None, None, d)
    if reduction == "add":
        du, dx = _kept(node, _read(node, d)), d
    elif reduction == "none":
        # The updates' numbers are scattered too: the number left at an element is that of its last update.
        shape = node.inputs[0].shape
        numbers: Any = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
        if node.op.name == "scatter":
            numbers = numbers.reshape((*shape, *(1,) * (u.ndim - node.attrs["axis"] - len(shape))))
        ids = u.graph.constant(np.broadcast_to(numbers, u.shape))
        last = apply("equal", _read(node, _write(node, ids, "none")), ids)
        du = _kept(node, apply("where", last, _read(node, d), 0))
        hit = _write(node, apply("expand", u.graph.constant(1, "i32"), shape=u.shape), "none")
        dx = apply("where", apply("equal", hit, 0), d, 0)
    elif x is not None and reduction == "mul":
        du, dx = _product_rule(node, d, x, u)
    else:
        assert x is not None
        # The gradient is shared evenly by all values equal to the extremum, as in torch.scatter_reduce.
        wide = working_float(d)
        y = node.outputs[0]
        mine = cast_to(apply("equal", x, y), wide)
        theirs = cast_to(apply("equal", u, _read(node, y)), wide)
        share = cast_to(d, wide) / _write(node, theirs, "add", mine)
        du, dx = cast_to(_kept(node, theirs * _read(node, share)), u.dtype), cast_to(mine * share, x.dtype)
    return (None, du) if x is None else (None, du, dx)


def _product_rule(node: Node, d: Tensor, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of "mul": d times the product of the other factors. Zeros are counted, never divided by."""
    wide = working_float(d)
    d, x32, u32 = (cast_to(t, wide) for t in (d, x, u))
    zero_x, zero_u = apply("equal", x32, 0), apply("equal", u32, 0)
    safe_x, safe_u = apply("where", zero_x, 1, x32), apply("where", zero_u, 1, u32)
    product = _write(node, safe_u, "mul", safe_x) * d
    none_x, none_u = cast_to(zero_x, wide), cast_to(zero_u, wide)
    zeros = _write(node, none_u, "add", none_x)
    dx = apply("where", apply("equal", zeros, none_x), product / safe_x, 0)
    du = apply("where", apply("equal", _read(node, zeros), none_u), _read(node, product) / safe_u, 0)
    return cast_to(_kept(node, du), u.dtype), cast_to(dx, x.dtype)


register(
    Op(
        "scatter",
        "scatter",
        _infer,
        scatter_rows,
        "the loop over updates in order",
        _vjp,
        kernel="scatter_set",
        inplace=(2,),
     batch=batching.scatter)
)
register(
    Op("scatter_elements", "scatter", _elements_infer, scatter_each, "the loop over single updates in order", _vjp,
       kernel="scatter_set", inplace=(2,), batch=batching.along())
)  # fmt: skip


def rows_added(t: Tensor) -> tuple[Tensor | None, Tensor, Tensor] | None:
    """(rest, indices, rows) of a tensor that is the sum of `rest`, or of zeros where that is None, and of rows at
    indices along the first axis, as the gradient of an embedding is; None for other tensors."""
    terms: list[tuple[Tensor, Tensor | None]] = [(t, None)]
    if t.node.op.adds:
        a, b = t.node.inputs
        terms = [(a, b), (b, a)] if a.type == b.type else []
    for term, rest in terms:
        if _adds_rows(term.node):
            indices, rows = term.node.inputs
            return rest, indices, rows
    return None


def _adds_rows(node: Node) -> bool:
    into_zeros = node.op.name == "scatter" and len(node.inputs) == 2 and node.attrs["reduction"] == "add"
    return into_zeros and node.attrs["axis"] == 0 and node.inputs[0].ndim > 0


def _given(op: str, x: TensorLike, indices: TensorLike, updates: TensorLike) -> tuple[Tensor, Tensor, Tensor]:
    x, indices, updates = tensors(op, x, integers(indices), updates)
    if updates.dtype != x.dtype:
        raise DTypeError(
            f"{op}: updates are {updates.dtype} and x is {x.dtype}; expected one dtype, cast one of them"
        )
    return x, index_tensor(op, indices), updates


def _shaped(updates: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A scalar expanded to `shape`; other updates unchanged, since `infer` checks their shape."""
    return apply("expand", updates, shape=shape) if updates.ndim == 0 and shape else updates


def scatter(
    x: TensorLike, indices: TensorLike, updates: TensorLike, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """x with the slices at the indices along an axis replaced by, or combined with, the updates.

    Shape: x's; updates x.shape with the axis replaced by indices.shape, or a scalar. `reduction`: "none" (the last
    update of a slice remains), "add", "mul", "min", "max". Dtype: x any, updates the same; bool with "none" only. Out
    of range: ShapeError where the indices are constant; else the update is dropped. Gradient: to x and updates; equal
    extrema share it evenly. Numerics: updates are applied in the order of the indices, in f32 for halves; sums are
    compensated.
    """
    x, indices, updates = _given("scatter", x, indices, updates)
    axis = normalize_axis(axis, x.ndim, "scatter")
    check_constants_in_range("scatter", indices, x.shape[axis], f"axis {axis} of {x.shape}")
    updates = _shaped(updates, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))
    return apply("scatter", indices, updates, x, axis=axis, length=x.shape[axis], reduction=reduction)


def scatter_add(x: TensorLike, indices: TensorLike, updates: TensorLike, axis: int = 0) -> Tensor:
    """x with the updates added to its slices at the indices: rlx.scatter with "add"; the same bits in every run."""
    return scatter(x, indices, updates, axis, "add")


def segment_sum(updates: TensorLike, indices: TensorLike, length: int, axis: int = 0) -> Tensor:
    """The updates added into `length` zero slices along an axis: slice i is the sum of those whose index is i.

    Shape: updates.shape with the indices' axes, from `axis` on, replaced by `length`. Dtype: updates any number. Out
    of range: as rlx.scatter. Gradient: to each update, d at its index. Numerics: as rlx.scatter.
    """
    updates, indices = tensors("segment_sum", updates, integers(indices))
    indices = index_tensor("segment_sum", indices)
    if not is_length(length) or length < 0:
        raise ShapeError(f"segment_sum: length is {length!r}; expected an int ≥ 0")
    axis = normalize_axis(axis, max(updates.ndim - indices.ndim + 1, 1), "segment_sum")
    check_constants_in_range("segment_sum", indices, int(length), f"{length} segments")
    return apply("scatter", indices, updates, axis=axis, length=int(length), reduction="add")


def scatter_elements(
    x: TensorLike, indices: TensorLike, updates: TensorLike, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """x with x[.., indices[.., j, ..], ..] replaced by, or combined with, updates[.., j, ..]: one index per update.

    Shape: x's; indices and updates of one shape and of x's rank, their other axes at most as long as x's. Reductions,
    dtypes, indices out of range, gradient, numerics: as rlx.scatter. Follows ONNX ScatterElements and
    torch.scatter_reduce.
    """
    x, indices, updates = _given("scatter_elements", x, indices, updates)
    axis = normalize_axis(axis, x.ndim, "scatter_elements")
    part = corner(x, indices, axis, "scatter_elements")
    check_constants_in_range("scatter_elements", indices, x.shape[axis], f"axis {axis} of {x.shape}")
    updates = _shaped(updates, indices.shape)
    result = apply(
        "scatter_elements", indices, updates, part, axis=axis, length=x.shape[axis], reduction=reduction
    )
    return result if part is x else dynamic_update_slice(x, result, (0,) * x.ndim)


def put_along_axis(x: TensorLike, indices: TensorLike, values: TensorLike, axis: int = -1) -> Tensor:
    """scatter_elements with "none", under NumPy's name; unlike NumPy's function it returns a new tensor."""
    return scatter_elements(x, indices, values, axis)


def scatter_nd(x: TensorLike, indices: TensorLike, updates: TensorLike, reduction: str = "none") -> Tensor:
    """x with x[indices[i.., 0], indices[i.., 1], …] replaced by, or combined with, updates[i..].

    Shape: x's; updates indices.shape[:-1] + x.shape[q:] for tuples of q = indices.shape[-1]. An update is dropped when
    any index of its tuple is out of range. Reductions, dtypes, gradient, numerics: as rlx.scatter. Follows ONNX
    ScatterND.
    """
    x, indices, updates = _given("scatter_nd", x, indices, updates)
    q = tuple_length("scatter_nd", x.shape, indices)
    count = math.prod(x.shape[:q])
    flat = apply("reshape", x, shape=(count, *x.shape[q:]))
    rows = _rows(indices, x.shape[:q], count, x.shape)
    updates = _shaped(updates, (*indices.shape[:-1], *x.shape[q:]))
    flat_result = apply("scatter", rows, updates, flat, axis=0, length=count, reduction=reduction)
    return apply("reshape", flat_result, shape=x.shape)


def _rows(indices: Tensor, dims: tuple[int, ...], count: int, shape: tuple[int, ...]) -> Tensor:
    """The row-major number of the row that each index tuple names.

    For a tuple with an index out of range it is `count`, one past the last row, so that `scatter` drops the update.
    """
    dtype: DType = i64 if indices.dtype == i64 or count >= 2**31 else indices.dtype
    rows = valid = None
    for k, n in enumerate(dims):
        part = component(indices, k)
        check_constants_in_range("scatter_nd", part, n, f"axis {k} of {shape}")
        part = cast_to(part, dtype)
        inside = apply("logical_and", apply("greater_equal", part, -n), apply("less", part, n))
        part = apply("where", inside, apply("where", apply("less", part, 0), part + n, part), 0)
        rows = part if rows is None else rows * n + part
        valid = inside if valid is None else apply("logical_and", valid, inside)
    assert rows is not None and valid is not None
    return apply("where", valid, rows, count)


__all__ = ["put_along_axis", "scatter", "scatter_add", "scatter_elements", "scatter_nd", "segment_sum"]
