"""Convolution of signals of any rank: by Fourier transforms, in blocks, or directly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from rlx.dtypes import promote
from rlx.errors import ShapeError, UnsupportedOp
from rlx.ir import Tensor, apply
from rlx.ir.types import broadcast_shapes, normalize_axes
from rlx.ops.base import TensorLike, cast_to, tensors
from rlx.ops.composite import moveaxis
from rlx.ops.conv.convolution import conv
from rlx.ops.fft.functions import irfftn, rfftn
from rlx.ops.fft.pairs import multiply, numbers
from rlx.ops.movement import arrange
from rlx.ops.movement import strided as movement
from rlx.ops.signal.blocks import block_convolution, block_length, by_blocks, countable
from rlx.ops.signal.segments import choose

Mode = Literal["full", "same", "valid"]
MODES = ("full", "same", "valid")
METHODS = ("auto", "direct", "fft")
_DIRECT = 64  # elements of the shorter operand up to which "auto" multiplies and adds directly


def _operands(op: str, a: TensorLike, b: TensorLike, mode: str) -> tuple[Tensor, Tensor]:
    choose(op, "mode", mode, MODES)
    first, second = tensors(op, a, b)
    dtype = promote(first.dtype, second.dtype)
    first, second = (numbers(op, cast_to(t, dtype)) for t in (first, second))
    if first.ndim != second.ndim or first.ndim == 0:
        raise ShapeError(
            f"{op}: the inputs are {first.type} and {second.type}; expected equally many axes, at least one"
        )
    if 0 in (*first.shape, *second.shape):
        raise ShapeError(f"{op}: the inputs are {first.type} and {second.type}; expected no empty axis")
    return first, second


def _axes(op: str, a: Tensor, b: Tensor, axes: int | Sequence[int] | None) -> tuple[int, ...]:
    """The axes to convolve; the others broadcast. Raises: ShapeError where they do not."""
    listed = tuple(range(a.ndim)) if axes is None else normalize_axes(axes, a.ndim, op)
    if not listed:
        raise ShapeError(f"{op}: axes is empty; expected at least one axis")
    broadcast_shapes(*(tuple(1 if i in listed else n for i, n in enumerate(t.shape)) for t in (a, b)), op=op)
    return tuple(sorted(listed))


def _ordered(op: str, a: Tensor, b: Tensor, axes: Sequence[int], mode: str) -> tuple[Tensor, Tensor]:
    """The operands, for "valid" the longer one first. Raises: ShapeError if neither is at least as long along all
    axes."""
    if mode != "valid":
        return a, b
    if all(a.shape[i] >= b.shape[i] for i in axes):
        return a, b
    if all(b.shape[i] >= a.shape[i] for i in axes):
        return b, a
    raise ShapeError(
        f"{op}: mode 'valid' of shapes {a.shape} and {b.shape}; expected one that is at least as long as the other "
        f"along each of the axes {tuple(axes)}"
    )


def _kept(full: Tensor, a: Tensor, b: Tensor, axes: Sequence[int], mode: str) -> Tensor:
    """The part of the full convolution that a mode keeps."""
    if mode == "full":
        return full
    cut = [slice(None)] * full.ndim
    for i in axes:
        size = a.shape[i] if mode == "same" else abs(a.shape[i] - b.shape[i]) + 1
        start = (full.shape[i] - size) // 2
        cut[i] = slice(start, start + size)
    return full[tuple(cut)]


def fast_length(n: int) -> int:
    """The least number from n on without a prime factor above 5, whose transforms take few steps."""
    best = 1 << max(0, n - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            two = three << max(0, -(-n // three) - 1).bit_length()
            best = min(best, two) if two >= n else best
            three *= 3
        five *= 5
    return best


def fftconvolve(
    in1: TensorLike, in2: TensorLike, mode: Mode = "full", axes: int | Sequence[int] | None = None
) -> Tensor:
    """The convolution of two signals by Fourier transforms.

    Shape: equally many axes; those in `axes`, all unless given, are convolved and the others broadcast. Along an axis
    of n1 and n2 elements "full" gives all n1 + n2 - 1; "same" the n1 in their middle; "valid" the max - min + 1 that
    need no elements beyond the ends, of signals of which one is at least as long along every axis. Dtype: f64 where one
    is f64; everything else is computed, and given, in f32. Gradient: to both. Numerics: errors are relative to the
    largest element of the result, about 1e-7 of it in f32; an infinity or NaN makes all elements of its line NaN.
    Raises: ShapeError for ranks that differ, empty axes, an unknown mode, and shapes that do not fit. Follows
    scipy.signal.fftconvolve.
    """
    op = "signal.fftconvolve"
    a, b = _operands(op, in1, in2, mode)
    over = _axes(op, a, b, axes)
    long = [i for i in over if a.shape[i] != 1 and b.shape[i] != 1]
    a, b = _ordered(op, a, b, long, mode)
    if not long:
        return _kept(a * b, a, b, over, mode)
    full = [a.shape[i] + b.shape[i] - 1 for i in long]
    lengths = [fast_length(n) for n in full]
    spectrum_product = irfftn(multiply(rfftn(a, lengths, long), rfftn(b, lengths, long)), lengths, long)
    sizes = dict(zip(long, full, strict=True))
    cut = tuple(slice(0, sizes.get(i, n)) for i, n in enumerate(spectrum_product.shape))
    return _kept(spectrum_product[cut], a, b, over, mode)


def oaconvolve(
    in1: TensorLike, in2: TensorLike, mode: Mode = "full", axes: int | Sequence[int] | None = None
) -> Tensor:
    """The convolution along one axis of a long signal with a short one, block by block, by the overlap-add method.

    The transforms are a few times as long as the shorter signal, not as long as the sum of both. On a GPU up to 1,024
    elements are convolved by one kernel, which reads the longer signal about once. axes: one axis, which may be left
    out where there is only one. Numerics: errors are relative to the largest element of a block or of its neighbour,
    and an infinity or NaN may reach all elements of both. Otherwise as fftconvolve. Raises: UnsupportedOp for several
    axes. Follows scipy.signal.oaconvolve.
    """
    op = "signal.oaconvolve"
    a, b = _operands(op, in1, in2, mode)
    over = _axes(op, a, b, axes)
    if len(over) > 1:
        raise UnsupportedOp(f"{op}: convolves along one axis, got the axes {over}; use rlx.signal.fftconvolve")
    a, b = _ordered(op, a, b, over, mode)
    (axis,) = over
    short, long = sorted((a.shape[axis], b.shape[axis]))
    size = block_length(short) or 1 << (8 * short - 1).bit_length()
    if short == 1 or size >= long:
        return fftconvolve(a, b, mode, over)
    last = a.ndim - 1
    lines = [moveaxis(t, axis, last) for t in (a, b)] if axis != last else [a, b]
    x, h = lines if a.shape[axis] == long else reversed(lines)
    if block_length(short) is not None and countable(long, size):
        lead = broadcast_shapes(x.shape[:-1], h.shape[:-1], op=op)
        if h.size == short and x.shape[:-1] == lead:
            h = movement.reshape(h, (short,))
        else:
            x, h = (movement.expand(t, (*lead, t.shape[-1])) for t in (x, h))
        full = block_convolution(x, h, size)
    else:
        full = by_blocks(x, h, size)
    if axis != last:
        full = moveaxis(full, last, axis)
    return _kept(full, a, b, over, mode)


def convolve(in1: TensorLike, in2: TensorLike, mode: Mode = "full", method: str = "auto") -> Tensor:
    """The convolution of two signals along all axes.

    method: "direct" multiplies and adds, of one to three axes; "fft" is fftconvolve; "auto" is direct where that is
    possible and the smaller signal has at most 64 elements. Numerics of "direct": those of rlx.conv; of integers all
    methods give whole numbers. Otherwise as fftconvolve. Raises: UnsupportedOp for "direct" of more axes. Follows
    scipy.signal.convolve.
    """
    op = "signal.convolve"
    first, second = tensors(op, in1, in2)
    result = _either(op, first, second, mode, method)
    return result if first.dtype.is_float or second.dtype.is_float else apply("round", result)


def _either(op: str, first: Tensor, second: Tensor, mode: Mode, method: str) -> Tensor:
    choose(op, "method", method, METHODS)
    a, b = _operands(op, first, second, mode)
    over = tuple(range(a.ndim))
    if method == "direct" and a.ndim > 3:
        raise UnsupportedOp(f"{op}: method 'direct' of {a.ndim} axes; expected one to three, or use method 'fft'")
    if method == "fft" or (method == "auto" and (a.ndim > 3 or min(a.size, b.size) > _DIRECT)):
        return fftconvolve(a, b, mode)
    a, b = _ordered(op, a, b, over, mode)
    x, h = (a, b) if math.prod(a.shape) >= math.prod(b.shape) else (b, a)
    pads = [(n - 1, n - 1) for n in h.shape]
    image, kernel = (movement.reshape(t, (1, 1, *t.shape)) for t in (x, arrange.flip(h)))
    full = conv(image, kernel, pads=pads)
    return _kept(movement.reshape(full, full.shape[2:]), a, b, over, mode)


def correlate(in1: TensorLike, in2: TensorLike, mode: Mode = "full", method: str = "auto") -> Tensor:
    """The cross-correlation of two signals along all axes: Σ in1[i + lag] in2[i].

    Modes, method, dtype and gradient as convolve; correlation_lags gives the lags. Follows scipy.signal.correlate.
    """
    op = "signal.correlate"
    a, b = tensors(op, in1, in2)
    _operands(op, a, b, mode)
    if mode == "valid" and any(n < m for n, m in zip(a.shape, b.shape, strict=True)):
        return arrange.flip(convolve(b, arrange.flip(a), mode, method))
    return convolve(a, arrange.flip(b), mode, method)


def correlation_lags(in1_len: int, in2_len: int, mode: str = "full") -> npt.NDArray[np.int64]:
    """The lags of the elements of correlate of two signals of these lengths: a NumPy array. Follows
    scipy.signal.correlation_lags."""
    choose("signal.correlation_lags", "mode", mode, MODES)
    lags = np.arange(-in2_len + 1, in1_len)
    if mode == "same":
        middle, far = lags.size // 2, in1_len // 2
        return lags[middle - far : middle + far + in1_len % 2]
    if mode == "valid":
        bound = in1_len - in2_len
        return np.arange(bound + 1) if bound >= 0 else np.arange(bound, 1)
    return lags
