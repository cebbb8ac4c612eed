"""Packed weights in graphs: dequantize, and products with a packed weight that never write the dequantized one.

A packed tensor is a param, a constant or an input of a packed dtype; `rlx.packed.decode` says what its bits mean. The
attribute `format` repeats that dtype for the NumPy definitions, which get its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, DTypeLike, as_dtype, f32, f64
from rlx.errors import DTypeError, RlxError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Node, Op, Tensor, TensorType, apply, get_op, register
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, floating, tensor, tensors
from rlx.ops.grouped import check_group_sizes, group_sizes_of, grouped_product
from rlx.ops.matmul import product_cost
from rlx.ops.numeric import Array, computed
from rlx.packed import PackedArray


def check_packed(op: str, q: TensorType, attrs: Attrs, rank: int | None = None) -> None:
    """Raises: DTypeError where q is not packed as `format` says, ShapeError where it has another rank."""
    if not q.dtype.is_packed:
        raise DTypeError(f"{op}: q is {q}; expected a packed dtype (rlx.quantize makes packed weights)")
    if attrs["format"] != q.dtype:
        raise DTypeError(f"{op}: format is {attrs['format']!r}, but q is {q}")
    if rank is not None and q.rank != rank:
        experts = "; grouped_packed_matmul takes a weight for each expert" if rank == 2 and q.rank == 3 else ""
        raise ShapeError(f"{op}: q is {q}; expected rank {rank}{experts}")


def elements(q: Array, format: DType) -> Array:
    """The elements of packed bytes, in f32."""
    blocks = q.shape[-1] // format.storage.nbytes
    return PackedArray(format, (*q.shape[:-1], blocks * format.storage.elements), np.asarray(q)).dequantize()


# -- dequantize


def _dequantize_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("dequantize", types, 1)
    check_packed("dequantize", types[0], attrs)
    if not attrs["dtype"].is_float:
        raise DTypeError(f"dequantize: dtype is {attrs['dtype']}; expected f32, f16, bf16 or f64")
    return TensorType(types[0].shape, attrs["dtype"])


def _dequantize(q: Array, *, format: DType, dtype: DType) -> Array:
    with np.errstate(all="ignore"):
        return elements(q, format).astype(dtype.np, copy=False)


def _dequantize_in_f32(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """Dequantizes to f32 and casts: for dtypes that a device's kernel does not write."""
    return cast_to(apply("dequantize", *inputs, format=attrs["format"], dtype=f32), attrs["dtype"])


register(
    Op("dequantize", "quantized", _dequantize_infer, _dequantize, "gguf.quants.dequantize", NOT_DIFFERENTIABLE,
       kernel="dequantize", decompose=_dequantize_in_f32, packed=(0,))
)  # fmt: skip


def dequantize(q: TensorLike, dtype: DTypeLike = f32) -> Tensor:
    """The elements of a packed weight as floats; the same bits on every device.

    Shape: as q. Dtype: `dtype`, a float; elements are made in f32 and rounded to it once. Gradient: none. A scale that
    is infinite or NaN gives infinities and NaN. Numerics: `rlx.packed.decode`. Raises: DTypeError for a q that is not
    packed. Follows ggml's `dequantize_row_*`.
    """
    q = tensor("dequantize", q)
    return apply("dequantize", q, format=q.dtype, dtype=as_dtype(dtype))


# -- packed_matmul


def _first(dtypes: Sequence[DType]) -> DType:
    return dtypes[0]


def _product_infer(op: str, x: TensorType, q: TensorType, attrs: Attrs) -> TensorType:
    check_float(op, x.dtype, "x")
    if not isinstance(attrs["transpose_q"], bool):
        raise DTypeError(f"{op}: transpose_q is {attrs['transpose_q']!r}; expected a bool")
    n, k = q.shape[-2:] if attrs["transpose_q"] else q.shape[:-3:-1]
    if x.shape[-1] != k:
        raise ShapeError(
            f"{op}: x is {x.shape} and q {q.shape}; the inner dimensions {x.shape[-1]} and {k} differ"
        )
    return TensorType((*x.shape[:-1], n), x.dtype)


def _matmul_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "packed_matmul"
    check_inputs(op, types, 2)
    x, q = types
    check_packed(op, q, attrs, 2)
    if x.rank < 2:
        raise ShapeError(f"{op}: x is {x}; the op wants rank 2 or more (rlx.{op} reshapes vectors)")
    return _product_infer(op, x, q, attrs)


def _matmul(x: Array, q: Array, *, format: DType, transpose_q: bool) -> Any:
    w = elements(q, format).astype(x.dtype, copy=False)
    return np.matmul(x, w.T if transpose_q else w)


def _plain_product(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The product with the dequantized weight as a whole, where a device has no kernel for the packed one."""
    x, q, *sizes = inputs
    w = apply("dequantize", q, format=attrs["format"], dtype=f64 if x.dtype == f64 else f32)
    turned = attrs["transpose_q"]
    if sizes:
        product = apply("grouped_matmul", x, w, *sizes, transpose_w=turned)
    else:
        product = apply("matmul", x, w, transpose_a=False, transpose_b=turned, activation=None)
    return cast_to(product, x.dtype)


def _transposed_product(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradient to x is the product with the weight the other way round; packed weights have none."""
    d = grads[0]
    if d is None:
        return (None,) * len(node.inputs)
    attrs = {**node.attrs, "transpose_q": not node.attrs["transpose_q"]}
    return (apply(node.op.name, d, *node.inputs[1:], **attrs), *(None,) * (len(node.inputs) - 1))


register(
    Op("packed_matmul", "quantized", _matmul_infer, computed(_first)(_matmul), "numpy.matmul of gguf.quants.dequantize",
       _transposed_product, kernel="packed_matmul", decompose=_plain_product, contracts=True, packed=(1,),
       integers="packed_matmul_int8", cost=product_cost, batch=batching.along(1))
)  # fmt: skip


def _in_precision(op: str, inputs: tuple[Tensor, ...], attrs: Attrs, precision: str) -> Tensor:
    """The product at a precision: by integers where "int8" is asked for and the op has them for these inputs."""
    if precision not in ("f32", "int8"):
        raise DTypeError(f'{op}: precision is {precision!r}; expected "f32" or "int8"')
    integers = get_op(get_op(op).integers or op)
    if precision == "int8":
        try:
            integers.types([t.type for t in inputs], attrs)
        except RlxError:
            return apply(op, *inputs, **attrs)  # accepts these inputs, or raises its own error
        op = integers.name
    return apply(op, *inputs, **attrs)


def packed_matmul(
    x: TensorLike, q: TensorLike, *, transpose_q: bool = True, precision: str = "f32"
) -> Tensor:
    """x times a packed weight, which is decoded piece by piece and never written as a whole.

    Shape: x (..., k), q (n, k) in blocks along k; gives (..., n), the product with qᵀ. With transpose_q=False x is
    (..., n) and the result x @ q, (..., k). Dtype: x's; integers become f32. Gradient: to x, through the same weight
    the other way round; none to q. Numerics: elements of q in f32 as `dequantize` gives them, sums in
    f32 (for f64 in f64), rounded once; kernels of GPUs may round x first, to within 2^-22 of the largest magnitude
    in its row, for one row among 32 neighbours, and take magnitudes below 2^-125 for zero. Raises: DTypeError for a q
    that is not packed and an unknown precision, ShapeError.

    `precision="int8"`, or a session of that precision, rounds x to 8 bits: each 32 elements are integers from -127 to
    127 times their largest magnitude over 127 (as in ggml's q8_0, with a scale in f32). Dot products with the integers
    of a block of q are exact; these are scaled and added up in f32. A block of x with an infinity or NaN makes its row
    NaN, one of numbers below 2^-100 counts as zeros. Gradient: none, except of a session's products, whose gradients
    are made before they are rounded. All formats have it whose elements are integers times scales: q4_0 to q6_k,
    iq4_nl, iq4_xs, tq2_0, mxfp4, int8 and int4. For the others (fp8, nf4, fp4, nvfp4, q1_0, tq1_0, iq1, iq2,
    iq3), for x in f64 and with transpose_q=False the product is that in f32, and `report()` names it packed_matmul, not
    packed_matmul_int8.
    """
    x, q = tensors("packed_matmul", x, q)
    x = floating(x)
    if not x.ndim:
        raise ShapeError(f"packed_matmul: x is a scalar, {x.type}; expected a vector (k,), or rows of them (..., k)")
    flat = x.ndim == 1
    if flat:
        x = apply("reshape", x, shape=(1, *x.shape))
    out = _in_precision("packed_matmul", (x, q), {"format": q.dtype, "transpose_q": transpose_q}, precision)
    return apply("reshape", out, shape=out.shape[1:]) if flat else out


# -- grouped_packed_matmul


def _grouped_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "grouped_packed_matmul"
    check_inputs(op, types, 3)
    x, q, sizes = types
    check_packed(op, q, attrs, 3)
    if x.rank != 2:
        raise ShapeError(f"{op}: x is {x}; expected rank 2")
    check_group_sizes(op, sizes, q.shape[0])
    return _product_infer(op, x, q, attrs)


def _grouped(x: Array, q: Array, sizes: Array, *, format: DType, transpose_q: bool) -> Any:
    return grouped_product(x, elements(q, format), sizes, transpose_w=transpose_q)


register(
    Op("grouped_packed_matmul", "quantized", _grouped_infer, computed(_first)(_grouped),
       "the loop over rows and their experts", _transposed_product, kernel="grouped_packed_matmul",
       decompose=_plain_product, contracts=True, packed=(1,),
       integers="grouped_packed_matmul_int8", cost=product_cost)
)  # fmt: skip


def grouped_packed_matmul(
    x: TensorLike, q: TensorLike, group_sizes: TensorLike, *, transpose_q: bool = True, precision: str = "f32"
) -> Tensor:
    """Each group of x's rows times a packed weight of its own: the first group_sizes[0] rows times q[0]ᵀ, and so on.

    Shape: x (rows, k), q (experts, n, k), group_sizes (experts,); gives (rows, n). With transpose_q=False x is
    (rows, n) and the result (rows, k). Groups, sizes: as rlx.grouped_matmul takes them. Dtype, gradient, numerics,
    precision: as rlx.packed_matmul. Follows Gale et al., MegaBlocks, 2022.
    """
    op = "grouped_packed_matmul"
    x, q = tensors(op, x, q)
    inputs = (floating(x), q, group_sizes_of(op, x, group_sizes))
    return _in_precision(op, inputs, {"format": q.dtype, "transpose_q": transpose_q}, precision)


__all__ = ["dequantize", "grouped_packed_matmul", "packed_matmul"]
