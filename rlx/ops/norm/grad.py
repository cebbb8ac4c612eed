"""Backward passes of the norms. Their inputs are the gradient of the forward result, then inputs of the forward op."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Expr, TensorType
from rlx.ir import expr as ex
from rlx.ir.op import Infer
from rlx.ir.rows import Layout, Rows, last_axis, less_mean, row_mean
from rlx.ops.base import check_float, check_inputs, check_like
from rlx.ops.norm.channels import check_channels, check_eps, check_groups, groups_of
from rlx.ops.row_programs import row_op


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


def _rows(centre: bool, layout: Callable[[tuple[int, ...], Attrs], Layout]) -> Rows:
    """The row program of a norm's gradient."""

    def rule(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
        d, x, gamma = args
        c = less_mean(x) if centre else x
        inverse = 1.0 / ex.call("sqrt", row_mean(c * c) + attrs["eps"])
        y, dy = c * inverse, d * gamma
        dx = dy - y * row_mean(dy * y)
        if centre:
            dx = dx - row_mean(dy)
        weights = (d * y, d) if attrs["beta"] is not None else (d * y,)
        return (dx * inverse, *weights)

    return Rows(rule, layout, ("element", "element", "weight"), (1, 2, "beta"), summed=(False, True, True))


def _norm_infer(op: str) -> Infer:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        check_inputs(op, types, 3)
        if types[1].rank == 0:
            raise ShapeError(f"{op}: the input is a scalar; expected at least one axis, the last is normalized")
        return _weight_types(op, types, attrs, types[1].shape[-1])

    return infer


for _name, _centre in (("layer_norm_grad", True), ("rms_norm_grad", False)):
    row_op(_name, "norm", _rows(_centre, last_axis), f"torch.autograd of {_name[:-5]}", _norm_infer(_name),
           single=False, kernel="norm_grad", centres=_centre)  # fmt: skip


def _group_infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_inputs("group_norm_grad", types, 3)
    check_channels("group_norm_grad", types[1])
    check_groups("group_norm_grad", types[1], attrs["groups"])
    return _weight_types("group_norm_grad", types, attrs, types[1].shape[1])


row_op("group_norm_grad", "norm", _rows(True, groups_of), "torch.autograd of group_norm", _group_infer, single=False,
       kernel="norm_grad", centres=True)  # fmt: skip
