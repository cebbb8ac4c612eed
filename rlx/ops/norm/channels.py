"""Norms of images: group norm, layer norm over the channels, batch norm at inference. Axis 1 holds the channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Expr, Node, Op, Tensor, TensorType, apply, register
from rlx.ir import expr as ex
from rlx.ir.graph import apply_multi
from rlx.ir.rows import Layout
from rlx.ir.types import is_index
from rlx.ops import batching
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, floats, tensors, unbroadcast
from rlx.ops.norm.rows import norm_rows
from rlx.ops.numeric import F32_MAX, Array, computed, working
from rlx.ops.reduce import working_float
from rlx.ops.row_programs import row_op


def first_dtype(dtypes: Sequence[DType]) -> DType:
    """The result dtype of an op that keeps its first input's dtype."""
    return dtypes[0]


def check_eps(op: str, attrs: Attrs) -> None:
    """Checks eps. Raises: DTypeError unless it is a float of at least 0 that f32 can hold."""
    if not isinstance(attrs["eps"], float) or not 0 <= attrs["eps"] <= F32_MAX:
        raise DTypeError(f"{op}: eps is {attrs['eps']!r}; expected a float ≥ 0 that f32 holds")


def check_channels(op: str, x: TensorType) -> None:
    """Checks for a channel axis. Raises: ShapeError for an input without one."""
    if x.rank < 2:
        raise ShapeError(f"{op}: the input is {x.shape}; expected (batch, channels, …)")


def check_groups(op: str, x: TensorType, groups: Any) -> None:
    """Checks the number of groups. Raises: ShapeError where the channels are not a multiple of it."""
    if not isinstance(groups, int) or groups < 1 or x.shape[1] % groups:
        raise ShapeError(
            f"{op}: {x.shape[1]} channels of {x.shape} do not fall into {groups!r} groups; "
            "expected a positive divisor of the channels"
        )


def _vectors(op: str, types: Sequence[TensorType], names: Sequence[str]) -> None:
    """Checks that all inputs are floats, and that those after the first hold one value for each channel."""
    x = types[0]
    check_float(op, x.dtype)
    check_channels(op, x)
    for name, t in zip(names, types[1:], strict=True):
        check_float(op, t.dtype, name)
        if t.shape != x.shape[1:2]:
            raise ShapeError(f"{op}: {name} is {t.shape}; expected {x.shape[1:2]}, the channels of {x.shape}")


def _group_norm_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("group_norm", types, 3)
    _vectors("group_norm", types, ("gamma", "beta"))
    check_groups("group_norm", types[0], attrs["groups"])
    check_eps("group_norm", attrs)
    return types[0]


def groups_of(shape: tuple[int, ...], attrs: Attrs) -> Layout:
    """The layout of group norm's rows: each has the elements of a group of channels, with a weight per channel."""
    groups, inner = attrs["groups"], math.prod(shape[2:])
    return Layout((shape[0], groups, shape[1] // groups, inner), (2, 3), (1, 2))


def _group_norm_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d = grads[0]
    if d is None:
        return (None, None, None)
    x, gamma, beta = node.inputs
    return apply_multi("group_norm_grad", d, x, gamma, beta=beta.dtype, **node.attrs)


row_op("group_norm", "norm", norm_rows(True, groups_of), "torch.nn.functional.group_norm", _group_norm_infer,
       _group_norm_vjp, kernel="group_norm", inplace=(0,), batch=batching.folded(1, 2))  # fmt: skip


def _channels_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("layer_norm_channels", types, 3)
    _vectors("layer_norm_channels", types, ("gamma", "beta"))
    check_eps("layer_norm_channels", attrs)
    return types[0]


def _over_channels(shape: tuple[int, ...], attrs: Attrs) -> Layout:
    return Layout(shape, (1,), (1,))


def _channels_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d = grads[0]
    if d is None:
        return (None, None, None)
    x, gamma, beta = node.inputs
    back = (0, *range(2, x.ndim), 1)
    there = (0, x.ndim - 1, *range(1, x.ndim - 1))
    rows = (apply("transpose", t, perm=back) for t in (d, x))
    dx, dgamma, dbeta = apply_multi(
        "layer_norm_grad", *rows, gamma, eps=node.attrs["eps"], beta=beta.dtype
    )
    return apply("transpose", dx, perm=there), dgamma, dbeta


row_op("layer_norm_channels", "norm", norm_rows(True, _over_channels),
       "torch.nn.functional.layer_norm over the channels", _channels_infer, _channels_vjp, kernel="norm_axis",
       inplace=(0,), batch=batching.folded(1, 2))  # fmt: skip

_STATISTICS = ("gamma", "beta", "mean", "var")


def _batch_norm_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("batch_norm", types, 5)
    x = types[0]
    check_float("batch_norm", x.dtype)
    check_channels("batch_norm", x)
    wanted = (x.shape[1], *(1,) * (x.rank - 2))
    for name, t in zip(_STATISTICS, types[1:], strict=True):
        check_float("batch_norm", t.dtype, name)
        if t.shape != wanted:
            raise ShapeError(
                f"batch_norm: {name} is {t.shape}; expected {wanted}, one value a channel of {x.shape} "
                "(rlx.batch_norm takes vectors)"
            )
    check_eps("batch_norm", attrs)
    return x


def _batch_norm(x: Array, gamma: Array, beta: Array, mean: Array, var: Array, *, eps: float) -> Any:
    g, b, m, v = (a.astype(x.dtype) for a in (gamma, beta, mean, var))
    return (x - m) / np.sqrt(v + x.dtype.type(eps)) * g + b


def _batch_norm_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    work = working(args[0].dtype)
    x, gamma, beta, mean, var = (a if a.dtype == work else ex.cast(a, work) for a in args)
    y = (x - mean) / ex.call("sqrt", var + attrs["eps"]) * gamma + beta
    return y if work == args[0].dtype else ex.cast(y, args[0].dtype)


def _batch_norm_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d = grads[0]
    if d is None:
        return (None,) * 5
    work = working_float(node.inputs[0])
    x, gamma, _, mean, var = (cast_to(t, work) for t in node.inputs)
    d = cast_to(d, work)
    inverse = apply("rsqrt", var + node.attrs["eps"])
    y = (x - mean) * inverse
    scale = gamma * inverse
    dbeta, dgamma = (unbroadcast(t, var) for t in (d, d * y))
    assert dbeta is not None and dgamma is not None
    dvar = dgamma * gamma * inverse * inverse * -0.5
    gradients = (d * scale, dgamma, dbeta, -(dbeta * scale), dvar)
    return tuple(cast_to(t, like.dtype) for t, like in zip(gradients, node.inputs, strict=True))


register(
    Op("batch_norm", "norm", _batch_norm_infer, computed(first_dtype)(_batch_norm),
       "torch.nn.functional.batch_norm", _batch_norm_vjp, _batch_norm_expr, inplace=(0,), batch=batching.batch_norm)
)  # fmt: skip


def group_norm(x: TensorLike, groups: int, gamma: TensorLike, beta: TensorLike, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps) · gamma + beta, with mean and variance over each group of channels.

    Shape: x (N, C, …), gamma and beta (C,), C a multiple of `groups`. Dtype: x's; integers become f32. Gradient: to
    x, gamma, beta. Numerics: as rlx.layer_norm. Follows Wu and He, 2018.
    """
    if not is_index(groups):
        raise ShapeError(f"group_norm: groups is {groups!r}; expected a number of groups")
    given = floats(*tensors("group_norm", x, gamma, beta))
    return apply("group_norm", *given, groups=int(groups), eps=float(eps))


def layer_norm_channels(x: TensorLike, gamma: TensorLike, beta: TensorLike, eps: float = 1e-6) -> Tensor:
    """(x - mean) / sqrt(variance + eps) · gamma + beta over the channels of (N, C, …), at each position by itself.

    Shape: x (N, C, …), gamma and beta (C,). Dtype: x's; integers become f32. Gradient: to x, gamma, beta. Numerics: as
    rlx.layer_norm. Follows Ba, Kiros and Hinton, 2016, as used in ConvNeXt (Liu et al., 2022).
    """
    given = floats(*tensors("layer_norm_channels", x, gamma, beta))
    return apply("layer_norm_channels", *given, eps=float(eps))


def batch_norm(
    x: TensorLike, gamma: TensorLike, beta: TensorLike, mean: TensorLike, var: TensorLike, eps: float = 1e-5
) -> Tensor:
    """(x - mean) / sqrt(var + eps) · gamma + beta with given statistics for each channel: batch norm at inference.

    Shape: x (N, C, …), the others (C,). Dtype: x's; integers become f32. Gradient: to all five; the statistics count as
    independent of x. Numerics: in f32 for halves. It is elementwise, so it fuses with neighbouring elementwise ops.
    Follows Ioffe and Szegedy, 2015.
    """
    given = floats(*tensors("batch_norm", x, gamma, beta, mean, var))
    check_channels("batch_norm", given[0].type)
    _vectors("batch_norm", [t.type for t in given], _STATISTICS)
    lead = (given[0].shape[1], *(1,) * (given[0].ndim - 2))
    columns = (t if t.shape == lead else apply("reshape", t, shape=lead) for t in given[1:])
    return apply("batch_norm", given[0], *columns, eps=float(eps))


def instance_norm(
    x: TensorLike, gamma: TensorLike | None = None, beta: TensorLike | None = None, eps: float = 1e-5
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) · gamma + beta, with mean and variance over each channel of each sample.

    Shape: x (N, C, …), gamma and beta (C,), by default ones and zeros. Dtype, gradient, numerics: as rlx.group_norm of
    C groups. Follows Ulyanov, Vedaldi and Lempitsky, 2016.
    """
    (made,) = floats(*tensors("instance_norm", x))
    check_channels("instance_norm", made.type)
    channels = made.shape[1]
    scale, shift = (np.full(channels, k, made.dtype.np) if v is None else v for k, v in ((1, gamma), (0, beta)))
    return group_norm(made, channels, scale, shift, eps)


__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm_channels"]
