"""fake_quantize: a float rounded to a grid of integers and back, with the straight-through gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import f32, i32, promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Expr, Node, Op, Tensor, TensorType, apply, register
from rlx.ir import expr as ex
from rlx.ir.types import broadcast_shapes, normalize_axis
from rlx.ir.values import as_array, exactly
from rlx.ops.base import TensorLike, cast_to, check_float, check_inputs, floats, tensors
from rlx.ops.norm.channels import first_dtype
from rlx.ops.numeric import Array, computed, maximum, minimum, working

_EXACT = 1 << 24  # f32 represents every integer up to this one


def _check_grid(op: str, types: Sequence[TensorType], attrs: Attrs) -> None:
    x, scale, *zero = types
    check_float(op, x.dtype)
    check_float(op, scale.dtype, "scale")
    for name, t in zip(("scale", "zero_point"), (scale, *zero), strict=False):
        if broadcast_shapes(t.shape, x.shape, op=op) != x.shape:
            raise ShapeError(f"{op}: {name} is {t.shape}; expected a shape that broadcasts to the input {x.shape}")
    if zero and zero[0].dtype != i32:
        raise DTypeError(f"{op}: zero_point is {zero[0].dtype}; expected i32")
    low, high = attrs["low"], attrs["high"]
    if type(low) is not int or type(high) is not int or not -_EXACT <= low < high <= _EXACT:
        raise DTypeError(f"{op}: low {low!r}, high {high!r}; expected ints, low < high, within ±2^24")


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("fake_quantize", types, 2, 3)
    _check_grid("fake_quantize", types, attrs)
    return types[0]


def _levels(x: Array, scale: Array, zero: Sequence[Array]) -> tuple[Array, Array | float]:
    """The quantized level before it is clipped, and the zero point."""
    z = zero[0].astype(x.dtype) if zero else x.dtype.type(0)
    return np.rint(x / scale.astype(x.dtype)) + z, z


def _fake_quantize(x: Array, scale: Array, *zero: Array, low: int, high: int) -> Any:
    q, z = _levels(x, scale, zero)
    q = minimum(maximum(q, x.dtype.type(low)), x.dtype.type(high))
    return (q - z) * scale.astype(x.dtype)


def _tree(args: Sequence[Expr]) -> tuple[Expr, Expr, Expr | None]:
    """The quantized level before it is clipped, the scale and the zero point, in the working dtype."""
    work = working(args[0].dtype)
    x, scale, *zero = (a if a.dtype == work else ex.cast(a, work) for a in args)
    q = ex.call("round", x / scale)
    if zero:
        return q + zero[0], scale, zero[0]
    # A level is an integer, which has no -0. It is selected, since Vulkan drivers take x + 0.0 for x.
    return ex.call("select", ex.call("eq", q, 0.0), 0.0, q), scale, None


def _expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    q, scale, zero = _tree(args)
    q = ex.call("min", ex.call("max", q, float(attrs["low"])), float(attrs["high"]))
    y = (q if zero is None else q - zero) * scale
    return y if y.dtype == args[0].dtype else ex.cast(y, args[0].dtype)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    if grads[0] is None:
        return (None,) * len(node.inputs)
    dx = apply("fake_quantize_grad", grads[0], *node.inputs, **node.attrs)
    return (dx, *(None for _ in node.inputs[1:]))


register(
    Op("fake_quantize", "elementwise", _infer, computed(first_dtype)(_fake_quantize),
       "torch.fake_quantize_per_channel_affine", _vjp, _expr, inplace=(0,))
)  # fmt: skip


def _grad_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_inputs("fake_quantize_grad", types, 3, 4)
    if types[0] != types[1]:
        raise ShapeError(
            f"fake_quantize_grad: the gradient is {types[0]}, the input {types[1]}; expected the same type"
        )
    _check_grid("fake_quantize_grad", types[1:], attrs)
    return types[0]


def _grad(d: Array, x: Array, scale: Array, *zero: Array, low: int, high: int) -> Any:
    q, _ = _levels(x, scale, zero)
    return np.where((q >= low) & (q <= high), d, d.dtype.type(0))


def _grad_expr(args: Sequence[Expr], attrs: Attrs) -> Expr:
    q, _, _ = _tree(args[1:])
    inside = ex.call("and", ex.call("ge", q, float(attrs["low"])), ex.call("le", q, float(attrs["high"])))
    return ex.call("select", inside, args[0], 0.0)


def _grad_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    if grads[0] is None:
        return (None,) * len(node.inputs)
    again = apply("fake_quantize_grad", grads[0], *node.inputs[1:], **node.attrs)
    return (again, *(None for _ in node.inputs[1:]))


register(
    Op("fake_quantize_grad", "elementwise", _grad_infer, computed(first_dtype)(_grad),
       "torch.autograd of fake_quantize_per_channel_affine", _grad_vjp, _grad_expr, inplace=(0,))
)  # fmt: skip


def _wide(scale: Any, beside: TensorLike) -> Array | Tensor:
    what = "fake_quantize: scale"
    work = promote(f32, beside.dtype) if isinstance(beside, Tensor) else f32
    if isinstance(scale, Tensor):
        return scale if scale.weak is None else scale.as_dtype(work)
    return exactly(as_array(scale, what), work, what)


def fake_quantize(
    x: TensorLike,
    scale: TensorLike,
    zero_point: TensorLike | None = None,
    *,
    bits: int = 8,
    signed: bool = True,
    narrow: bool = False,
    axis: int | None = None,
) -> Tensor:
    """(clip(round(x / scale) + zero_point, low, high) - zero_point) · scale: x quantized and dequantized again.

    low and high are the least and greatest integer of `bits` bits, signed or unsigned; `narrow` leaves out the least,
    which makes signed ranges symmetric. Without `zero_point` it is 0. A scale of one element quantizes per tensor, a
    vector along `axis` per channel. Rounds half to even. Dtype: x's; integers become f32; zero_point i32.
    Gradient: straight-through: d where the level before clipping lies within low..high, else 0; none to scale and zero
    point, as in torch. Numerics: in f32 for halves. Follows Jacob et al., 2018; Bengio, Léonard and Courville, 2013.
    Raises: ShapeError, DTypeError.
    """
    if not isinstance(bits, int) or not 2 <= bits <= 24:
        raise DTypeError(f"fake_quantize: bits is {bits!r}; expected 2 to 24")
    # A Python number is not weakly typed here: the scale must not be rounded to x's dtype where that is f16 or bf16.
    arguments: list[Any] = [x, _wide(scale, x)]
    if zero_point is not None:
        arguments.append(zero_point.concrete() if isinstance(zero_point, Tensor) else np.asarray(zero_point))
    x, *grid = tensors("fake_quantize", *arguments)
    x, grid[0] = floats(x, grid[0])
    if len(grid) == 2:
        if not grid[1].dtype.is_int:
            raise DTypeError(f"fake_quantize: zero_point is {grid[1].dtype}; expected an integer dtype")
        grid[1] = cast_to(grid[1], i32)
    for i, (name, t) in enumerate(zip(("scale", "zero_point"), grid, strict=False)):
        grid[i] = _along(name, t, x, axis)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return apply("fake_quantize", x, *grid, low=low + bool(narrow), high=high)


def _along(name: str, t: Tensor, x: Tensor, axis: int | None) -> Tensor:
    """A tensor of one element, or a vector along an axis, reshaped to broadcast with x. Raises: ShapeError."""
    if t.size == 1 and axis is None:
        return t if t.ndim == 0 else apply("reshape", t, shape=())
    if axis is None:
        raise ShapeError(f"fake_quantize: {name} is {t.shape} and axis None; expected one element, or an axis")
    axis = normalize_axis(axis, x.ndim, "fake_quantize")
    if t.shape != x.shape[axis : axis + 1]:
        raise ShapeError(
            f"fake_quantize: {name} is {t.shape}; expected {x.shape[axis : axis + 1]}, axis {axis} of {x.shape}"
        )
    return apply("reshape", t, shape=(t.size, *(1,) * (x.ndim - 1 - axis)))


__all__ = ["fake_quantize"]
