"""Grouped matrix products (rows sorted by expert), and products with a low-rank correction of the weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, i32, promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, floats, narrowed, tensors
from rlx.ops.elementwise.unary import NUMPY_ACTIVATIONS
from rlx.ops.matmul import ACTIVATIONS, activated, matmul, product_cost
from rlx.ops.numeric import Array, computed

# -- grouped_matmul


def group_bounds(sizes: Array, rows: int) -> list[tuple[int, int]]:
    """(first row, one past the last) of every group: sizes below 0 count as 0, and groups are cut at the last row."""
    bounds, start = [], 0
    for size in np.asarray(sizes).tolist():
        stop = min(start + max(int(size), 0), rows)
        bounds.append((start, stop))
        start = stop
    return bounds


def _pair(dtypes: Sequence[DType]) -> DType:
    return promote(*dtypes[:2])


def _want(op: str, types: Sequence[TensorType], second: str, rank: int) -> None:
    check_inputs(op, types, 3)
    x, w, sizes = types
    for what, t, expected in (("x", x, 2), (second, w, rank)):
        if t.rank != expected:
            raise ShapeError(f"{op}: {what} is {t}; expected rank {expected}")
    check_float(op, x.dtype, "x")
    check_float(op, w.dtype, second)
    check_group_sizes(op, sizes)


def check_group_sizes(op: str, sizes: TensorType, experts: int | None = None) -> None:
    """Raises: ShapeError, DTypeError unless sizes are a vector of i32, one for each of `experts`."""
    if sizes.rank != 1:
        raise ShapeError(f"{op}: group_sizes is {sizes}; expected rank 1")
    if sizes.dtype != i32:
        raise DTypeError(f"{op}: group_sizes is {sizes.dtype}; expected i32 (rlx.{op} casts)")
    if experts is not None and sizes.shape[0] != experts:
        raise ShapeError(f"{op}: {sizes.shape[0]} group sizes for {experts} experts; expected one each")


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "grouped_matmul"
    _want(op, types, "w", 3)
    x, w, sizes = types
    if not isinstance(attrs["transpose_w"], bool):
        raise DTypeError(f"{op}: transpose_w is {attrs['transpose_w']!r}; expected a bool")
    k, n = (w.shape[2], w.shape[1]) if attrs["transpose_w"] else w.shape[1:]
    if x.shape[1] != k:
        raise ShapeError(
            f"{op}: x is {x.shape} and w {w.shape}; the inner dimensions {x.shape[1]} and {k} differ"
        )
    check_group_sizes(op, sizes, w.shape[0])
    return TensorType((x.shape[0], n), promote(x.dtype, w.dtype))


def grouped_product(x: Array, w: Array, sizes: Array, *, transpose_w: bool) -> Array:
    """The NumPy definition: a product for each group."""
    common = np.result_type(x, w)
    w = np.swapaxes(w, 1, 2) if transpose_w else w
    out = np.zeros((x.shape[0], w.shape[2]), common)
    for e, (start, stop) in enumerate(group_bounds(sizes, x.shape[0])):
        out[start:stop] = x[start:stop].astype(common) @ w[e].astype(common)
    return out


def _grouped_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d, (x, w, sizes) = grads[0], node.inputs
    if d is None:
        return None, None, None
    t = node.attrs["transpose_w"]
    dx = apply("grouped_matmul", d, w, sizes, transpose_w=not t)
    dw = apply("grouped_matmul_grad", *((d, x) if t else (x, d)), sizes)
    return cast_to(dx, x.dtype), cast_to(dw, w.dtype), None


register(
    Op("grouped_matmul", "grouped", _infer, computed(_pair)(grouped_product), "the loop over rows and their experts",
       _grouped_vjp, kernel="matmul_grouped", contracts=True, cost=product_cost)
)  # fmt: skip


def _outer_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "grouped_matmul_grad"
    _want(op, types, "d", 2)
    x, d, sizes = types
    if x.shape[0] != d.shape[0]:
        raise ShapeError(f"{op}: x has {x.shape[0]} rows and d {d.shape[0]}; expected as many")
    return TensorType((sizes.shape[0], x.shape[1], d.shape[1]), promote(x.dtype, d.dtype))


def _outer(x: Array, d: Array, sizes: Array) -> Array:
    common = np.result_type(x, d)
    out = np.zeros((len(sizes), x.shape[1], d.shape[1]), common)
    for e, (start, stop) in enumerate(group_bounds(sizes, x.shape[0])):
        out[e] = x[start:stop].astype(common).T @ d[start:stop].astype(common)
    return out


def _outer_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    dw, (x, d, sizes) = grads[0], node.inputs
    if dw is None:
        return None, None, None
    dx = apply("grouped_matmul", d, dw, sizes, transpose_w=True)
    dd = apply("grouped_matmul", x, dw, sizes, transpose_w=False)
    return cast_to(dx, x.dtype), cast_to(dd, d.dtype), None


register(
    Op("grouped_matmul_grad", "grouped", _outer_infer, computed(_pair)(_outer),
       "the loop over rows, added up by expert", _outer_vjp, kernel="matmul_grouped", contracts=True, cost=product_cost)
)  # fmt: skip


def grouped_matmul(
    x: TensorLike, w: TensorLike, group_sizes: TensorLike, *, transpose_w: bool = False
) -> Tensor:
    """Each group of x's rows times a weight of its own: the first group_sizes[0] rows times w[0], and so on.

    Shape: x (rows, k), w (experts, k, n), or (experts, n, k) with transpose_w, group_sizes (experts,); gives (rows, n).
    Groups may be empty; rows after the last group give 0. Dtype: promoted from x and w; sizes are integers.
    Constant sizes must be 0 or more and must not exceed the rows together, else ShapeError. For sizes known only in a
    run, every device counts one below 0 as 0 and ends a group at the last row. Gradient: to x through the transposed
    weights, to each weight from the rows of its group. Numerics: sums in f32, rounded once. Follows Gale et al.,
    MegaBlocks, 2022.
    """
    x, w = tensors("grouped_matmul", x, w)
    sizes = group_sizes_of("grouped_matmul", x, group_sizes)
    return apply("grouped_matmul", *floats(x, w), sizes, transpose_w=transpose_w)


def group_sizes_of(op: str, x: Tensor, group_sizes: TensorLike) -> Tensor:
    """The sizes of groups of x's rows, in i32. Raises: DTypeError, ShapeError as `grouped_matmul` says."""
    sizes = tensors(op, x, group_sizes if isinstance(group_sizes, Tensor) else np.asarray(group_sizes))[1]
    if not sizes.dtype.is_int:
        raise DTypeError(f"{op}: group_sizes is {sizes.dtype}; expected integers")
    if sizes.node.op.name == "constant" and x.ndim > 0:
        known = np.asarray(sizes.node.attrs["value"], np.int64)
        if known.size and (known.min() < 0 or known.sum() > x.shape[0]):
            raise ShapeError(
                f"{op}: group_sizes {known.ravel()[:8].tolist()} for {x.shape[0]} rows; expected sizes of 0 or more "
                "that together are at most the rows"
            )
    return narrowed(sizes, i32)


# -- lora_matmul


def _lora_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "lora_matmul"
    check_inputs(op, types, 4, 5)
    x, w, a, b = types[:4]
    if x.rank < 2:
        raise ShapeError(f"{op}: x is {x}; the op wants rank 2 or more (rlx.{op} reshapes vectors)")
    for what, t in (("w", w), ("a", a), ("b", b)):
        if t.rank != 2:
            raise ShapeError(f"{op}: {what} is {t}; expected rank 2")
    for what, t in zip(("x", "w", "a", "b", "bias"), types, strict=False):
        check_float(op, t.dtype, what)
    k, n = w.shape
    if x.shape[-1] != k or a.shape[0] != k or b.shape[1] != n or a.shape[1] != b.shape[0]:
        raise ShapeError(
            f"{op}: x {x.shape}, w {w.shape}, a {a.shape}, b {b.shape}; expected (..., k), (k, n), (k, r), (r, n)"
        )
    if len(types) == 5 and types[4].shape != (n,):
        raise ShapeError(f"{op}: bias is {types[4].shape}; expected ({n},)")
    if not isinstance(attrs["scale"], float):
        raise DTypeError(f"{op}: scale is {attrs['scale']!r}; expected a float")
    activation = attrs["activation"]
    if activation is not None and activation not in ACTIVATIONS:
        raise ShapeError(f"{op}: activation {activation!r}; expected None or one of {', '.join(ACTIVATIONS)}")
    return TensorType((*x.shape[:-1], n), promote(x.dtype, w.dtype))


def _lora(x: Array, w: Array, a: Array, b: Array, *bias: Array, scale: float, activation: str | None) -> Any:
    common = np.result_type(x, w)
    x, w, a, b = (t.astype(common, copy=False) for t in (x, w, a, b))
    out = x @ w + common.type(scale) * ((x @ a) @ b)
    if bias:
        out = out + bias[0].astype(common)
    return out if activation is None else NUMPY_ACTIVATIONS[activation](out)


def _lora_sum(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """x @ w + scale · (x @ a) @ b + bias as separate ops; f16 and bf16 are rounded after each of them."""
    x, w, a, b = inputs[:4]
    low = matmul(matmul(x, a), b)
    product = matmul(x, w)
    out = product + cast_to(low * attrs["scale"], product.dtype)
    return out + cast_to(inputs[4], out.dtype) if len(inputs) == 5 else out


def _lora_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    return activated(_lora_sum(inputs, attrs), attrs["activation"])


def _lora_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d = grads[0]
    if d is None:
        return (None,) * len(node.inputs)
    x, w, a, b = node.inputs[:4]
    scale, activation = node.attrs["scale"], node.attrs["activation"]
    if activation is not None:
        # The forward pass does not store the value before the activation, so it is recomputed.
        before = apply("lora_matmul", *node.inputs, scale=scale, activation=None)
        act = activated(before, activation).node
        assert callable(act.op.vjp)
        d = act.op.vjp(act, [d])[0]
        assert d is not None
    rows = int(np.prod(d.shape[:-1], dtype=np.int64))
    d2 = apply("reshape", d, shape=(rows, d.shape[-1]))
    x2 = apply("reshape", x, shape=(rows, x.shape[-1]))
    low = matmul(d2, b, transpose_b=True) * scale  # the gradient of x @ a
    dx = apply("reshape", matmul(d2, w, transpose_b=True) + matmul(low, a, transpose_b=True), shape=x.shape)
    dw = matmul(x2, d2, transpose_a=True)
    da = matmul(x2, low, transpose_a=True)
    db = matmul(matmul(x2, a), d2, transpose_a=True) * scale
    input_grads = [cast_to(g, t.dtype) for g, t in ((dx, x), (dw, w), (da, a), (db, b))]
    if len(node.inputs) == 5:
        input_grads.append(cast_to(apply("sum", d2, axes=(0,), keepdims=False), node.inputs[4].dtype))
    return tuple(input_grads)


register(
    Op("lora_matmul", "grouped", _lora_infer, computed(_pair)(_lora), "numpy.einsum", _lora_vjp,
       kernel="matmul", decompose=_lora_decompose, contracts=True, cost=product_cost, batch=batching.along(1, 2, 3, 4))
)  # fmt: skip


def lora_matmul(
    x: TensorLike,
    w: TensorLike,
    a: TensorLike,
    b: TensorLike,
    bias: TensorLike | None = None,
    *,
    scale: float = 1.0,
    activation: str | None = None,
) -> Tensor:
    """activation(x @ w + scale · (x @ a) @ b + bias): a product whose low-rank correction is never added to the weight.

    Shape: x (..., k), w (k, n), a (k, r), b (r, n), bias (n,); gives (..., n). activation: as rlx.matmul takes it.
    Dtype: promoted from x and w. Gradient: of every operand. Numerics: sums in f32, x @ a kept in f32, rounded once.
    Follows Hu et al., LoRA, 2021.
    """
    operands = [x, w, a, b] if bias is None else [x, w, a, b, bias]
    inputs = list(floats(*tensors("lora_matmul", *operands)))
    flat = inputs[0].ndim == 1
    if flat:
        inputs[0] = apply("reshape", inputs[0], shape=(1, inputs[0].shape[0]))
    out = apply("lora_matmul", *inputs, scale=float(scale), activation=activation)
    return apply("reshape", out, shape=out.shape[1:]) if flat else out


__all__ = ["grouped_matmul", "lora_matmul"]
