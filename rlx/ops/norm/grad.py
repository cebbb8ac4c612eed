"""Backward passes of the norms. Their inputs are the gradient of the forward result, then inputs of the forward op."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.autodiff.pullback import vjp_by_parts
from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Op, Tensor, TensorType, apply, register
from rlx.ir.op import Decompose, Infer, Reference
from rlx.ops.base import cast_to, check_float, check_inputs, check_like
from rlx.ops.norm.channels import (
    as_groups,
    check_channels,
    check_eps,
    check_groups,
    column,
    normalized,
    tensor_column,
)
from rlx.ops.numeric import Array, centred, widened


def _weight_types(op: str, types: Sequence[TensorType], attrs: Attrs, n: int) -> tuple[TensorType, ...]:
    """The types of dx, dgamma and, unless the attribute `beta` (dbeta's dtype) is None, dbeta."""
    check_inputs(op, types, 3)
    d, x, gamma = types
    check_like(op, d, x)
    check_float(op, gamma.dtype, "gamma")
    if gamma.shape != (n,):
        raise ShapeError(f"{op}: gamma is {gamma.shape}; expected {(n,)} beside the input {x.shape}")
    check_eps(op, attrs)
    beta = attrs["beta"]
    if beta is None:
        return x, gamma
    if not isinstance(beta, DType) or not beta.is_float:
        raise DTypeError(f"{op}: beta is {beta!r}; expected the float dtype of beta's gradient, or None")
    return x, gamma, TensorType((n,), beta)


def _rounded(made: Sequence[Array], like: Sequence[Array], beta: DType | None) -> tuple[Array, ...]:
    """dx, dgamma and dbeta in the dtypes of x, gamma and beta; for the oracle, where x is float64, dbeta is too."""
    x, gamma = like
    dtypes = [x.dtype, gamma.dtype]
    if beta is not None:
        dtypes.append(x.dtype if x.dtype == np.float64 else beta.np)
    return tuple(np.asarray(a).astype(t, copy=False) for a, t in zip(made, dtypes, strict=False))


def _row_gradient(dy: Array, x: Array, eps: float, centre: bool) -> tuple[Array, Array]:
    """The gradient of x, given `dy`, that of the normalized rows; and the normalized rows."""
    if x.size == 0:
        return x, x
    if centre:
        x = centred(x)
    inverse = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps))
    y = x * inverse
    dx = dy - y * np.mean(dy * y, axis=-1, keepdims=True)
    if centre:
        dx = dx - np.mean(dy, axis=-1, keepdims=True)
    return dx * inverse, y


def _column_sums(x: Array) -> Array:
    """The pairwise sum over all but the last axis."""
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return np.asarray(np.sum(np.ascontiguousarray(rows.T), axis=1))


def _norm_infer(op: str) -> Infer:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        check_inputs(op, types, 3)
        if types[1].rank == 0:
            raise ShapeError(f"{op}: the input is a scalar; expected at least one axis, the last is normalized")
        return _weight_types(op, types, attrs, types[1].shape[-1])

    return infer


def _norm_reference(centre: bool) -> Reference:
    def reference(d: Array, x: Array, gamma: Array, *, eps: float, beta: DType | None) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            wide, wide_d = widened(x), widened(d)
            dx, y = _row_gradient(wide_d * gamma.astype(wide.dtype), wide, eps, centre)
            made = (dx, _column_sums(wide_d * y), _column_sums(wide_d))
        return _rounded(made, (x, gamma), beta)

    return reference


def _norm_decompose(centre: bool) -> Decompose:
    def decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
        d, x, gamma = inputs
        last = x.ndim - 1
        y, inverse = normalized(x, last, attrs["eps"], centre)
        wide = cast_to(d, y.dtype)
        dy = wide * cast_to(gamma, y.dtype)
        dx = dy - y * apply("mean", dy * y, axes=(last,), keepdims=True)
        if centre:
            dx = dx - apply("mean", dy, axes=(last,), keepdims=True)
        return _with_weights(cast_to(dx * inverse, x.dtype), wide * y, wide, gamma, attrs["beta"])

    return decompose


def _with_weights(
    dx: Tensor, dgamma: Tensor, dbeta: Tensor, gamma: Tensor, beta: DType | None
) -> tuple[Tensor, ...]:
    """The outputs of a norm's gradient: dx, and the sums of dgamma's and dbeta's terms over all but the last axis."""
    made = [dx]
    for terms, dtype in ((dgamma, gamma.dtype), (dbeta, beta)):
        if dtype is not None:
            axes = tuple(range(terms.ndim - 1))
            made.append(cast_to(apply("sum", terms, axes=axes, keepdims=False), dtype))
    return tuple(made)


for _name, _centre in (("layer_norm_grad", True), ("rms_norm_grad", False)):
    register(
        Op(_name, "norm", _norm_infer(_name), _norm_reference(_centre), f"torch.autograd of {_name[:-5]}",
           vjp_by_parts(_norm_decompose(_centre)), kernel="norm_grad", decompose=_norm_decompose(_centre),
           centres=_centre)
    )  # fmt: skip


def _group_infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_inputs("group_norm_grad", types, 3)
    check_channels("group_norm_grad", types[1])
    check_groups("group_norm_grad", types[1], attrs["groups"])
    return _weight_types("group_norm_grad", types, attrs, types[1].shape[1])


def _group_reference(
    d: Array, x: Array, gamma: Array, *, groups: int, eps: float, beta: DType | None
) -> tuple[Array, ...]:
    with np.errstate(all="ignore"):
        wide, wide_d = widened(x), widened(d)
        dy = as_groups(wide_d * column(gamma, wide), groups)
        dx, y = _row_gradient(dy, as_groups(wide, groups), eps, centre=True)
        terms = (np.moveaxis(t, 1, -1) for t in (wide_d * y.reshape(x.shape), wide_d))
        made = (dx.reshape(x.shape), *(_column_sums(t) for t in terms))
    return _rounded(made, (x, gamma), beta)


def _group_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    d, x, gamma = inputs
    groups = attrs["groups"]
    rows = (x.shape[0], groups, math.prod(x.shape[1:]) // groups)
    y, inverse = normalized(apply("reshape", x, shape=rows), 2, attrs["eps"])
    wide = cast_to(d, y.dtype)
    dy = apply("reshape", wide * tensor_column(gamma, x), shape=rows)
    dx = dy - y * apply("mean", dy * y, axes=(2,), keepdims=True) - apply("mean", dy, axes=(2,), keepdims=True)
    dx = cast_to(apply("reshape", dx * inverse, shape=x.shape), x.dtype)
    last = (0, *range(2, x.ndim), 1)
    terms = (wide * apply("reshape", y, shape=x.shape), wide)
    dgamma, dbeta = (apply("transpose", t, perm=last) for t in terms)
    return _with_weights(dx, dgamma, dbeta, gamma, attrs["beta"])


register(
    Op("group_norm_grad", "norm", _group_infer, _group_reference, "torch.autograd of group_norm",
       vjp_by_parts(_group_decompose), kernel="norm_grad", decompose=_group_decompose, centres=True)
)  # fmt: skip
