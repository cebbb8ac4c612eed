"""Products with packed weights by integers: x is rounded to 8 bits, and integer dot products are scaled in f32.

They are what `precision="int8"` makes of `rlx.packed_matmul` and `rlx.grouped_packed_matmul`. Formats whose blocks are
integers times scales have them (`has_integers`); all others, f64 and products with q the other way round keep f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, f32, f64
from rlx.errors import DTypeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Op, Tensor, TensorType, apply, get_op, register
from rlx.ops.base import cast_to
from rlx.ops.grouped import group_bounds
from rlx.ops.matmul import product_cost
from rlx.ops.numeric import Array, computed
from rlx.packed import PackedArray

BLOCK = 32  # elements of x that share a scale
SMALLEST = 2.0**-100  # a block of smaller numbers is zeros, so that its scale is never near a subnormal


def has_integers(format: DType) -> bool:
    """Whether a packed dtype's elements are integers of 8 bits times scales that whole groups of 16 or more share."""
    return not format.name.startswith(("fp4", "fp8", "iq1", "iq2", "iq3", "nf4", "nvfp4", "q1_", "tq1"))


def rounded_blocks(x: Array) -> tuple[Array, Array]:
    """Rows of f32 as integers from -127 to 127, (..., blocks, 32), in f32, and their scales, (..., blocks).

    A scale is the largest magnitude of its block over 127; ties go to even. A block that holds an infinity or NaN has
    the scale NaN, one whose numbers are all below 2^-100 the scale 0.
    """
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK)
    with np.errstate(all="ignore"):
        top = np.abs(blocks).max(-1, initial=0)
        kept = np.isfinite(top) & (top >= np.float32(SMALLEST))
        by = np.where(kept, np.float32(127) / top, np.float32(0))
        whole = np.where(kept[..., None], np.rint(blocks * by[..., None]), np.float32(0))
        scale = np.where(kept, top / np.float32(127), np.where(np.isfinite(top), 0, np.nan))
    return whole.astype(np.float32), scale.astype(np.float32)


def _check(op: str, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """The type of the product in f32, which has the same inputs. Raises: DTypeError for what has no integer product."""
    result = get_op(op.removesuffix("_int8")).types(types, attrs)[0]
    if not has_integers(attrs["format"]):
        raise DTypeError(
            f"{op}: {attrs['format']} is not integers times scales; {op.removesuffix('_int8')} takes it"
        )
    if not attrs["transpose_q"]:
        raise DTypeError(f"{op}: transpose_q is False; scales that lie along the sum take the f32 product")
    if types[0].dtype == f64:
        raise DTypeError(f"{op}: x is f64; expected f32, f16 or bf16")
    return result


def _matmul_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return _check("packed_matmul_int8", types, attrs)


def _grouped_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return _check("grouped_packed_matmul_int8", types, attrs)


def _product(x: Array, q: Array, format: DType) -> Array:
    w = PackedArray(format, (len(q), x.shape[-1]), np.asarray(q)).dequantize(f64)
    whole, scale = rounded_blocks(x)
    return np.asarray(np.matmul((whole * scale[..., None].astype(np.float64)).reshape(x.shape), w.T))


def _first(dtypes: Sequence[DType]) -> DType:
    return dtypes[0]


def _matmul(x: Array, q: Array, *, format: DType, transpose_q: bool) -> Any:
    return _product(x, q, format)


def _grouped(x: Array, q: Array, sizes: Array, *, format: DType, transpose_q: bool) -> Any:
    out = np.zeros((len(x), q.shape[1]))
    for e, (start, stop) in enumerate(group_bounds(sizes, len(x))):
        out[start:stop] = _product(x[start:stop], q[e], format)
    return out


def _in_f32(op: str, inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The product of x, rounded, in f32: the same but for the roundings of that."""
    x = inputs[0]
    blocks = apply("reshape", cast_to(x, f32), shape=(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK))
    top = apply("max", apply("abs", blocks), axes=(blocks.ndim - 1,), keepdims=True) if x.size else blocks
    kept = apply("greater_equal", top, _like(top, SMALLEST))
    by = apply("where", kept, apply("div", _like(top, 127.0), top), _like(top, 0.0))
    scale = apply("where", kept, apply("div", top, _like(top, 127.0)), _like(top, 0.0))
    # NaN, whatever the integers beside it are.
    scale = apply("where", apply("isfinite", top), scale, _like(top, np.nan))
    whole = apply("round", apply("mul", blocks, by))
    decoded = apply("reshape", apply("mul", whole, scale), shape=x.shape)
    return cast_to(apply(op, decoded, *inputs[1:], **attrs), x.dtype)


def _like(x: Tensor, value: float) -> Tensor:
    return x.graph.constant(np.float32(value))


def _matmul_in_f32(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    return _in_f32("packed_matmul", inputs, attrs)


def _grouped_in_f32(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    return _in_f32("grouped_packed_matmul", inputs, attrs)


register(
    Op("packed_matmul_int8", "packed_int8", _matmul_infer, computed(_first)(_matmul),
       "rounded rows times gguf.quants.dequantize", NOT_DIFFERENTIABLE, kernel="packed_matmul_int8",
       decompose=_matmul_in_f32, contracts=True, packed=(1,), cost=product_cost)
)  # fmt: skip
register(
    Op("grouped_packed_matmul_int8", "packed_int8", _grouped_infer, computed(_first)(_grouped),
       "the loop over rounded rows and their experts", NOT_DIFFERENTIABLE, kernel="grouped_packed_matmul_int8",
       decompose=_grouped_in_f32, contracts=True, packed=(1,), cost=product_cost)
)  # fmt: skip
