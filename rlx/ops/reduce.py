"""Reductions over any axes: sum, mean, prod, max, min; and whether all elements of several tensors are finite."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, DTypeLike, as_dtype, bool_, f32, f64, i32, i64, u32, u64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.op import Decompose, Infer, Vjp
from rlx.ir.types import broadcast_shapes, normalize_axes
from rlx.ops import batching, extended
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, flag, tensor
from rlx.ops.numeric import Array, computed

Axis = int | Sequence[int] | None


def sum_dtype(dtype: DType) -> DType:
    """The dtype of sums and products of `dtype`: floats and i64, u32, u64 keep theirs; other integers and bool give
    i32."""
    return dtype if dtype.is_float or dtype in (i64, u32, u64) else i32


def _same(dtype: DType) -> DType:
    return dtype


def kept_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape after reducing with keepdims."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _infer(op: str, result: Callable[[DType], DType], empty: bool) -> Infer:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        check_inputs(op, types, 1)
        shape, axes = types[0].shape, attrs["axes"]
        if op == "mean":
            check_float(op, types[0].dtype)
        if tuple(axes) != normalize_axes(axes, len(shape), op):
            raise ShapeError(
                f"{op}: axes {axes} are not normalized; expected sorted axes counted from the front"
            )
        if not isinstance(attrs["keepdims"], bool):
            raise DTypeError(f"{op}: keepdims is {attrs['keepdims']!r}; expected a bool")
        if (
            not empty
            and any(shape[i] == 0 for i in axes)
            and all(shape[i] for i in range(len(shape)) if i not in axes)
        ):
            raise ShapeError(
                f"{op}: axes {axes} of {shape} hold no elements, and the {op} of nothing is undefined"
            )
        kept = kept_shape(shape, axes)
        out = kept if attrs["keepdims"] else tuple(n for i, n in enumerate(shape) if i not in axes)
        return TensorType(out, result(types[0].dtype))

    return infer


def _sum(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    rows = last(x, axes)
    total = extended.total(rows) if x.dtype.kind == "f" else np.sum(rows, axis=-1, dtype=_accumulator(x))
    return total.reshape(_shape(x, axes, keepdims))


def _accumulator(x: Array) -> np.dtype[Any]:
    return sum_dtype(as_dtype(x.dtype)).np


def last(x: Array, axes: tuple[int, ...]) -> Array:
    """x with the reduced axes flattened into one, last and contiguous: NumPy sums pairwise only along such an axis."""
    kept = [i for i in range(x.ndim) if i not in axes]
    count = math.prod(x.shape[i] for i in axes)
    moved = np.transpose(x, (*kept, *axes))
    return np.ascontiguousarray(moved).reshape((*(x.shape[i] for i in kept), count))


def _shape(x: Array, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    kept = kept_shape(x.shape, axes)
    return kept if keepdims else tuple(n for i, n in enumerate(x.shape) if i not in axes)


def _mean(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    return extended.mean(last(x, axes)).reshape(_shape(x, axes, keepdims))


def _prod(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    if x.dtype.kind == "f":
        return extended.product(last(x, axes)).reshape(_shape(x, axes, keepdims))
    return np.prod(x, axis=axes, keepdims=keepdims, dtype=_accumulator(x))


def _max(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    return np.max(x, axis=axes, keepdims=keepdims) if x.size else _nothing(x, axes, keepdims)


def _min(x: Array, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    return np.min(x, axis=axes, keepdims=keepdims) if x.size else _nothing(x, axes, keepdims)


def _nothing(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The empty result of max or min of an input without elements, for which NumPy may raise an error."""
    return np.empty(_shape(x, axes, keepdims), x.dtype)


def _back(d: Tensor, node: Node) -> Tensor:
    """A tensor of the output's shape, expanded over the reduced axes to the input's shape."""
    shape = node.inputs[0].shape
    kept = kept_shape(shape, node.attrs["axes"])
    d = d if d.shape == kept else apply("reshape", d, shape=kept)
    return d if kept == shape else apply("expand", d, shape=shape)


def _vjp(rule: Callable[[Tensor, Node], Tensor]) -> Vjp:
    def vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        d = grads[0]
        if d is None or not (d.dtype.is_float and node.inputs[0].dtype.is_float):
            return (None,)
        return (rule(d, node),)

    return vjp


def _count(node: Node) -> int:
    return math.prod(node.inputs[0].shape[i] for i in node.attrs["axes"])


def _mean_rule(d: Tensor, node: Node) -> Tensor:
    return _back(cast_to(cast_to(d, working_float(d)) / float(builtins.max(_count(node), 1)), d.dtype), node)


def _prod_rule(d: Tensor, node: Node) -> Tensor:
    # The gradient is the product of the other factors: y / x where no factor is zero. Where exactly one is, only that
    # factor's gradient is not zero.
    x, axes = node.inputs[0], node.attrs["axes"]
    zero = apply("equal", x, 0)
    safe = apply("where", zero, 1, x)
    product = apply("prod", safe, axes=axes, keepdims=True)
    zeros = apply("sum", zero, axes=axes, keepdims=True)
    others = apply("where", apply("equal", zeros, apply("cast", zero, dtype=i32)), product / safe, 0)
    return _back(d, node) * others


def _extremum_rule(d: Tensor, node: Node) -> Tensor:
    x = node.inputs[0]
    best = apply("equal", x, _back(node.outputs[0], node))
    ones = apply("cast", best, dtype=working_float(d))
    share = ones / apply("sum", ones, axes=node.attrs["axes"], keepdims=True)
    return cast_to(_back(d, node) * share, d.dtype)


def working_float(d: Tensor) -> DType:
    """The dtype that sums are computed in: f32 for f16 and bf16, in which a sum of ones would stop at 2048 and 256."""
    return f32 if d.dtype.is_half else d.dtype


def _mean_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    x = inputs[0]
    if x.dtype.is_half:
        return cast_to(apply("mean", cast_to(x, f32), **attrs), x.dtype)
    count = float(math.prod(x.shape[i] for i in attrs["axes"]))
    by = 2.0 ** -math.ceil(math.log2(count)) if count and x.dtype == f64 else 1.0
    # The sum may overflow where the mean does not. In f64 the terms are scaled by a power of two, which is exact.
    total = apply("sum", x * by if by < 1.0 else x, **attrs)
    return total / (count * by)


def _register(
    name: str,
    reference: Callable[..., Any],
    rule: Callable[[Tensor, Node], Tensor],
    result: Callable[[DType], DType],
    empty: bool,
    decompose: Decompose | None = None,
    **traits: Any,
) -> None:
    register(
        Op(
            name,
            "reduce",
            _infer(name, result, empty),
            computed(lambda dtypes: result(dtypes[0]))(reference),
            f"numpy.{name}",
            _vjp(rule),
            kernel="reduce",
            decompose=decompose,
            batch=batching.along(),
            **traits,
        )
    )


_register("sum", _sum, _back, sum_dtype, empty=True, joins="add", rounds_once=True)
_register("mean", _mean, _mean_rule, _same, empty=True, decompose=_mean_decompose, joins="add", averages=True,
          rounds_once=True)  # fmt: skip
_register("prod", _prod, _prod_rule, sum_dtype, empty=True, joins="mul", rounds_once=True)
_register("max", _max, _extremum_rule, _same, empty=False, joins="max", picks=True)
_register("min", _min, _extremum_rule, _same, empty=False, joins="min", picks=True)


def _finite_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    if not types:
        raise ShapeError("all_finite: needs at least one input")
    for t in types:
        check_float("all_finite", t.dtype)
    return TensorType((), bool_)


def _finite(*arrays: Array) -> Any:
    return np.asarray(builtins.all(bool(np.isfinite(x).all()) for x in arrays))


def _finite_decompose(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """Tests whether the largest magnitude of the inputs of each dtype is finite."""
    largest: dict[DType, list[Tensor]] = {}
    for x in inputs:
        if x.size:
            size = apply("max", apply("abs", x), axes=tuple(range(x.ndim)), keepdims=False)
            largest.setdefault(x.dtype, []).append(apply("reshape", size, shape=(1,)))
    if not largest:
        return inputs[0].graph.constant(True)
    ends = [apply("max", apply("concat", *sizes, axis=0), axes=(0,), keepdims=False) for sizes in largest.values()]
    return functools.reduce(lambda a, b: apply("logical_and", a, b), [apply("isfinite", m) for m in ends])


def _of_narrower(node: Node, inputs: Sequence[Tensor], add: Callable[..., Tensor]) -> Tensor | None:
    """The same test of the tensors that were widened to these inputs, so that the wide ones need not be in memory."""
    narrow = [_before_widening(x) for x in inputs]
    widened = any(a is not b for a, b in zip(narrow, inputs, strict=True))
    return add("all_finite", narrow, node.attrs) if widened else None


def _before_widening(x: Tensor) -> Tensor:
    while x.node.op.converts and x.node.inputs[0].dtype.is_float and x.node.inputs[0].dtype.itemsize < x.dtype.itemsize:
        x = x.node.inputs[0]
    return x


register(Op("all_finite", "reduce", _finite_infer, _finite, "numpy.isfinite, all", NOT_DIFFERENTIABLE,
            kernel="finite_parts", decompose=_finite_decompose, identity=_of_narrower))  # fmt: skip


def first_of(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The first element along each of the axes, which stay with length 1."""
    stops = kept_shape(x.shape, tuple(axes))
    return apply("slice", x, starts=(0,) * x.ndim, stops=stops, steps=(1,) * x.ndim)


def less_mean(x: Tensor, axes: Sequence[int]) -> Tensor:
    """x less its mean over the axes, computed as in `rlx.ops.numeric.centred`."""
    if x.size == 0:
        return x
    kept = {"axes": tuple(axes), "keepdims": True}
    first = first_of(x, axes)
    near = x - (first + apply("mean", x - first, **kept))
    return near - apply("mean", near, **kept)


def _call(
    op: str, x: TensorLike, axis: Axis, keepdims: bool, dtype: DTypeLike | None = None,
    where: TensorLike | None = None, initial: float | None = None,
) -> Tensor:  # fmt: skip
    x = tensor(op, x)
    kind = None if dtype is None else as_dtype(dtype)
    if kind is not None:
        x = cast_to(x, kind)
    elif op == "mean" and not x.dtype.is_float:
        x = cast_to(x, f32)
    attrs = {"axes": normalize_axes(axis, x.ndim, op), "keepdims": flag(op, "keepdims", keepdims)}
    if where is not None:
        if op in ("max", "min") and initial is None:
            raise ShapeError(f"{op}: where chooses elements, and may choose none; give initial=, the {op} of nothing")
        x, counted = chosen(op, x, where, {"sum": 0, "mean": 0, "prod": 1}.get(op, initial))
        if op == "mean":
            wide = working_float(x)
            total = apply("sum", cast_to(x, wide), **attrs) / cast_to(apply("sum", counted, **attrs), wide)
            return cast_to(total, x.dtype)
    result = apply(op, x, **attrs)
    if initial is not None:
        result = apply(_JOINED[op], result, result.graph.constant(initial, result.dtype))
    return result if kind is None else cast_to(result, kind)


_JOINED = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def chosen(op: str, x: Tensor, where: TensorLike, fill: Any) -> tuple[Tensor, Tensor]:
    """x with `fill` where `where` is false, and `where` expanded to x's shape.

    Raises: DTypeError where `where` is not bool, ShapeError where it does not broadcast to x."""
    mask = tensor(op, x.graph.constant(where) if not isinstance(where, Tensor) else where)
    if mask.dtype != bool_:
        raise DTypeError(f"{op}: where is {mask.type}; expected bool")
    if broadcast_shapes(mask.shape, x.shape, op=op) != x.shape:
        raise ShapeError(f"{op}: where is {mask.type}; expected it to broadcast to {x.shape}")
    mask = apply("expand", apply("reshape", mask, shape=(*(1,) * (x.ndim - mask.ndim), *mask.shape)), shape=x.shape)
    return apply("where", mask, x, x.graph.constant(fill, x.dtype)), mask


def sum(
    x: Tensor, axis: Axis = None, keepdims: bool = False, dtype: DTypeLike | None = None, *,
    where: TensorLike | None = None, initial: float | None = None,
) -> Tensor:  # fmt: skip
    """The sum over the axes (None: all); 0 for an empty axis.

    `where`: bools, which broadcast to x's shape: the elements that count. `initial`: a number that counts too.

    Dtype: floats, i64, u32 and u64 keep theirs; other integers and bool give i32, which wraps; `dtype` is
    that in which it is computed. Gradient: d, repeated.
    Numerics: in f32 for halves, in blocks or pairs, so the error grows with the logarithm of the count. The result is
    finite wherever the exact sum is: where partial sums overflow, scaled-down terms are added again.
    """
    return _call("sum", x, axis, keepdims, dtype, where, initial)


def mean(
    x: Tensor, axis: Axis = None, keepdims: bool = False, dtype: DTypeLike | None = None, *,
    where: TensorLike | None = None,
) -> Tensor:  # fmt: skip
    """The mean over the axes (None: all); NaN for an empty axis. `where`: as in rlx.sum.

    Dtype: floats keep theirs; integers and bools become f32; `dtype` is that in which it is computed. Gradient: d /
    count, repeated. Numerics: as rlx.sum; finite also where the sum overflows.
    """
    return _call("mean", x, axis, keepdims, dtype, where)


def prod(
    x: Tensor, axis: Axis = None, keepdims: bool = False, dtype: DTypeLike | None = None, *,
    where: TensorLike | None = None, initial: float | None = None,
) -> Tensor:  # fmt: skip
    """The product over the axes (None: all); 1 for an empty axis. `where`, `initial`: as in rlx.sum.

    Dtype: as rlx.sum. Gradient: d times the product of the others, right where factors are zero too. Numerics: partial
    products are kept as two floats and a power of two: within an ULP at every length, and finite wherever the exact
    product is.
    """
    return _call("prod", x, axis, keepdims, dtype, where, initial)


def max(
    x: Tensor, axis: Axis = None, keepdims: bool = False, *, where: TensorLike | None = None,
    initial: float | None = None,
) -> Tensor:  # fmt: skip
    """The greatest element over the axes (None: all); NaN where an element is NaN. `where`, `initial`: as in rlx.sum.

    Dtype: x's. Gradient: shared evenly by all elements equal to the greatest, as in torch.amax.
    Raises: ShapeError for an empty axis, and for `where` without `initial`.
    """
    return _call("max", x, axis, keepdims, None, where, initial)


def min(
    x: Tensor, axis: Axis = None, keepdims: bool = False, *, where: TensorLike | None = None,
    initial: float | None = None,
) -> Tensor:  # fmt: skip
    """The least element over the axes (None: all); NaN where an element is NaN. `where`, `initial`: as in rlx.sum.

    Dtype: x's. Gradient: shared evenly by all elements equal to the least, as in torch.amin.
    Raises: ShapeError for an empty axis, and for `where` without `initial`.
    """
    return _call("min", x, axis, keepdims, None, where, initial)


def all_finite(*tensors: TensorLike) -> Tensor:
    """Whether no element of any of the tensors is an infinity or a NaN, as one bool; True of no elements.

    Shape: (). Dtype: floats. Not differentiable. GPUs read all of them in one launch.
    Raises: ShapeError where none is given, DTypeError for a tensor that is no float.
    """
    return apply("all_finite", *[tensor("all_finite", x) for x in tensors])


__all__ = ["all_finite", "max", "mean", "min", "prod", "sum"]
