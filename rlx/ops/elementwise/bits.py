"""Bitwise logic and shifts of integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Expr, Op, Tensor, apply, register
from rlx.ir import expr as ex
from rlx.ops.base import TensorLike, infer_binary, infer_unary, tensor, tensors
from rlx.ops.elementwise.prims import PRIM_FUNCTIONS
from rlx.ops.numeric import computed


def _check_bits(op: str, dtype: DType) -> None:
    if dtype.is_float:
        raise DTypeError(f"{op}: takes integers or bools, got {dtype}; cast it to an integer first")


def _check_int(op: str, dtype: DType) -> None:
    if not dtype.is_int:
        raise DTypeError(f"{op}: takes integers, got {dtype}; cast it to an integer first")


def _binary(name: str, prim: str, check: Callable[[str, DType], None]) -> None:
    register(
        Op(name, "elementwise", infer_binary(name, check), computed(common=True)(PRIM_FUNCTIONS[prim]),
           f"numpy.{name}", NOT_DIFFERENTIABLE, lambda args, attrs: ex.call(prim, args[0], args[1]), inplace=(0, 1))
    )  # fmt: skip


for _name, _prim in (("and", "and"), ("or", "or"), ("xor", "xor")):
    _binary(f"bitwise_{_name}", _prim, _check_bits)
_binary("left_shift", "shl", _check_int)
_binary("right_shift", "shr", _check_int)


def _invert_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    x = args[0]
    if x.dtype.kind == "b":
        return ex.call("not", x)
    return ex.call("xor", x, int(np.iinfo(x.dtype.np).max) if x.dtype.kind == "u" else -1)


register(
    Op("bitwise_not", "elementwise", infer_unary("bitwise_not", _check_bits), computed()(np.invert),
       "numpy.bitwise_not", NOT_DIFFERENTIABLE, _invert_expr, inplace=(0,))
)  # fmt: skip


def bitwise_and(a: TensorLike, b: TensorLike) -> Tensor:
    """The bits set in both a and b. Shape: broadcast. Dtype: integers or bools, promoted. Gradient: none."""
    return apply("bitwise_and", *tensors("bitwise_and", a, b))


def bitwise_or(a: TensorLike, b: TensorLike) -> Tensor:
    """The bits set in a, in b or in both. Shape: broadcast. Dtype: integers or bools, promoted. Gradient: none."""
    return apply("bitwise_or", *tensors("bitwise_or", a, b))


def bitwise_xor(a: TensorLike, b: TensorLike) -> Tensor:
    """The bits set in exactly one of a and b. Shape: broadcast. Dtype: integers or bools, promoted. Gradient: none."""
    return apply("bitwise_xor", *tensors("bitwise_xor", a, b))


def bitwise_not(x: TensorLike) -> Tensor:
    """x with every bit inverted. Dtype: an integer or bool. Gradient: none."""
    return apply("bitwise_not", tensor("bitwise_not", x))


def left_shift(a: TensorLike, b: TensorLike) -> Tensor:
    """a with its bits shifted left by b places; zeros come in, and bits beyond the width are lost.

    Shape: broadcast. Dtype: integers, promoted. Gradient: none. Numerics: 0 where b is negative or at least the width.
    """
    return apply("left_shift", *tensors("left_shift", a, b))


def right_shift(a: TensorLike, b: TensorLike) -> Tensor:
    """a with its bits shifted right by b places: a / 2ᵇ rounded down.

    Shape: broadcast. Dtype: integers, promoted. Gradient: none. Numerics: where b is negative or at least the width,
    the result is 0, or -1 for a negative a.
    """
    return apply("right_shift", *tensors("right_shift", a, b))


__all__ = ["bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"]
