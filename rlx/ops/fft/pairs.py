"""Complex numbers as pairs: a real tensor whose last axis holds (real, imaginary)."""

from __future__ import annotations

import numpy as np

from rlx.dtypes import promote
from rlx.ir import Tensor, apply
from rlx.ir.types import broadcast_shapes
from rlx.ops.base import TensorLike, cast_to, tensor, tensors
from rlx.ops.elementwise import binary, select, unary
from rlx.ops.fft.transform import check_pairs, working
from rlx.ops.movement import strided as movement


def numbers(op: str, x: TensorLike) -> Tensor:
    """A tensor in the dtype of transforms: f64 stays, everything else becomes f32."""
    x = tensor(op, x)
    return cast_to(x, working(x.dtype))


def complex_numbers(op: str, z: TensorLike) -> Tensor:
    """A tensor of pairs in the dtype of transforms. Raises: ShapeError where the last axis is not one of 2."""
    result = numbers(op, z)
    check_pairs(op, result.type)
    return result


def _part(z: Tensor, which: int) -> Tensor:
    starts, stops = (0,) * (z.ndim - 1), z.shape[:-1]
    part = apply("slice", z, starts=(*starts, which), stops=(*stops, which + 1), steps=(1,) * z.ndim)
    return movement.reshape(part, z.shape[:-1])


def _joined(re: Tensor, im: Tensor) -> Tensor:
    return movement.concat([movement.reshape(t, (*t.shape, 1)) for t in (re, im)], re.ndim)


def pair(re: TensorLike, im: TensorLike | None = None) -> Tensor:
    """The complex numbers re + i im as pairs.

    Shape: the broadcast of both, and an axis of 2 after it; im None: zeros. Dtype: f64 where one is f64, else f32.
    Gradient: to both. Raises: ShapeError where the two do not broadcast.
    """
    op = "fft.pair"
    if im is None:
        real = numbers(op, re)
        zeros = apply("expand", real.graph.constant(0.0, real.dtype), shape=real.shape)
        return _joined(real, zeros)
    parts = tensors(op, re, im)
    dtype = working(promote(*(t.dtype for t in parts)))
    shape = broadcast_shapes(*(t.shape for t in parts), op=op)
    real, imaginary = (movement.expand(cast_to(t, dtype), shape) for t in parts)
    return _joined(real, imaginary)


def real(z: TensorLike) -> Tensor:
    """The real parts of pairs (..., 2): (...). Dtype: f64 stays, others become f32. Gradient: to z."""
    return _part(complex_numbers("fft.real", z), 0)


def imag(z: TensorLike) -> Tensor:
    """The imaginary parts of pairs (..., 2): (...). Dtype: f64 stays, others become f32. Gradient: to z."""
    return _part(complex_numbers("fft.imag", z), 1)


def conj(z: TensorLike) -> Tensor:
    """The conjugates of pairs: imaginary parts with the other sign. Dtype: f64 stays, others become f32."""
    z = complex_numbers("fft.conj", z)
    return binary.mul(z, z.graph.constant(np.array([1.0, -1.0], z.dtype.np)))


def multiply(a: TensorLike, b: TensorLike) -> Tensor:
    """The products of complex numbers as pairs.

    Shape: that of a and b without the last axis broadcasts, and pairs come out. Dtype: f64 where one is f64, else f32.
    Gradient: to both. Numerics: (ac - bd, ad + bc), each sum rounded as written, so that parts may cancel; an infinite
    factor may give NaN. Raises: ShapeError where one holds no pairs, or the two do not broadcast.
    """
    op = "fft.multiply"
    left, right = tensors(op, a, b)
    dtype = working(promote(left.dtype, right.dtype))
    left, right = (complex_numbers(op, cast_to(t, dtype)) for t in (left, right))
    broadcast_shapes(left.shape[:-1], right.shape[:-1], op=op)
    (a_re, a_im), (b_re, b_im) = ((_part(t, 0), _part(t, 1)) for t in (left, right))
    return _joined(a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re)


def power(z: TensorLike) -> Tensor:
    """re² + im² of pairs (..., 2): (...). Dtype: f64 stays, others become f32. Gradient: to z."""
    z = complex_numbers("fft.power", z)
    re, im = _part(z, 0), _part(z, 1)
    return binary.add(re * re, im * im)


def absolute(z: TensorLike) -> Tensor:
    """The magnitudes of pairs (..., 2): (...).

    Dtype: f64 stays, others become f32. Gradient: z / |z|, and 0 where z is 0. Numerics: the root of re² + im² of
    parts divided by the larger one, which neither overflow nor vanish.
    """
    z = complex_numbers("fft.absolute", z)
    re, im = _part(z, 0), _part(z, 1)
    larger = apply("maximum", unary.abs(re), unary.abs(im))
    scale = select.where((larger > 0.0) & (larger < float("inf")), larger, 1.0)
    re, im = re / scale, im / scale
    square = re * re + im * im
    # The root has no derivative at 0, so that zeros keep their square, whose derivative is 0.
    return select.where(square > 0.0, scale * unary.sqrt(select.where(square > 0.0, square, 1.0)), square)
