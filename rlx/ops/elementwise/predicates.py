"""Predicates of floats: isnan, isinf, isfinite."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import bool_
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Expr, Op, Tensor, TensorType, apply, register
from rlx.ir import expr as ex
from rlx.ir.op import ExprRule
from rlx.ops.base import TensorLike, check_float, check_inputs, tensor
from rlx.ops.composite import full_like
from rlx.ops.numeric import Array, computed


def _register(name: str, reference: Callable[..., Any], expr: ExprRule) -> None:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        check_inputs(name, types, 1)
        check_float(name, types[0].dtype)
        if name == "isinf":
            _check_signs(attrs)
        return TensorType(types[0].shape, bool_)

    register(
        Op(name, "elementwise", infer, computed(lambda dtypes: bool_)(reference), f"numpy.{name}",
           NOT_DIFFERENTIABLE, expr, inplace=(0,))
    )  # fmt: skip


def _check_signs(attrs: Attrs) -> None:
    for what in ("positive", "negative"):
        if not isinstance(attrs[what], bool):
            raise DTypeError(f"isinf: {what} is {attrs[what]!r}; expected a bool")
    if not attrs["positive"] and not attrs["negative"]:
        raise ShapeError("isinf: neither positive nor negative is set; expected one of them, or both")


def _isinf(x: Array, *, positive: bool, negative: bool) -> Array:
    infinite = np.isinf(x)
    return infinite if positive and negative else infinite & ((x > 0) == positive)


def _isinf_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    if attrs["positive"] and attrs["negative"]:
        return ex.call("isinf", args[0])
    return ex.call("eq", args[0], math.inf if attrs["positive"] else -math.inf)


_register("isnan", np.isnan, lambda args, attrs: ex.call("isnan", args[0]))
_register("isinf", _isinf, _isinf_expr)
_register("isfinite", np.isfinite, lambda args, attrs: ex.call("lt", ex.call("abs", args[0]), math.inf))


def isnan(x: TensorLike) -> Tensor:
    """Whether x is NaN. Dtype: any; gives bool. Gradient: none."""
    x = tensor("isnan", x)
    return apply("isnan", x) if x.dtype.is_float else full_like(x, False, bool_)


def isinf(x: TensorLike, positive: bool = True, negative: bool = True) -> Tensor:
    """Whether x is +inf (if `positive`) or -inf (if `negative`). Dtype: any; gives bool. Gradient: none."""
    x = tensor("isinf", x)
    if not x.dtype.is_float or not (positive or negative):
        return full_like(x, False, bool_)
    return apply("isinf", x, positive=bool(positive), negative=bool(negative))


def isfinite(x: TensorLike) -> Tensor:
    """Whether x is neither NaN nor infinite. Dtype: any; gives bool. Gradient: none."""
    x = tensor("isfinite", x)
    return apply("isfinite", x) if x.dtype.is_float else full_like(x, True, bool_)


__all__ = ["isfinite", "isinf", "isnan"]
