"""fft, rfft and irfft: discrete Fourier transforms along the last axis, of complex numbers as pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, f32, f64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.op import Cost, Infer
from rlx.ir.types import MAX_DIM, is_length
from rlx.ops import batching
from rlx.ops.base import check_inputs, written
from rlx.ops.numeric import Array

TYPES = (f32, f64)


def half(n: int) -> int:
    """How many elements of a spectrum of n do not follow from its conjugate symmetry."""
    return n // 2 + 1


def check_length(op: str, n: Any) -> int:
    """The length of a transform. Raises: ShapeError for one that is no integer of at least 1."""
    if not is_length(n) or not 1 <= n <= MAX_DIM:
        raise ShapeError(
            f"{op}: the length of the transform is {n!r}; expected an integer from 1 to {MAX_DIM}"
        )
    return int(n)


def check_pairs(op: str, x: TensorType) -> None:
    """Raises: ShapeError unless x holds complex numbers, pairs along its last axis."""
    if x.rank == 0 or x.shape[-1] != 2:
        raise ShapeError(
            f"{op}: the input is {x}; expected complex numbers as pairs (real, imaginary) along a last axis of 2; "
            "rlx.fft.pair makes them of real numbers"
        )


def _infer(op: str, pairs: bool, gives_pairs: bool) -> Infer:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        check_inputs(op, types, 1)
        x = types[0]
        if x.dtype not in TYPES:
            raise DTypeError(
                f"{op}: the input is {x}; expected f32 or f64 (the functions of rlx.fft cast the others)"
            )
        if pairs:
            check_pairs(op, x)
        lines = x.shape[:-1] if pairs else x.shape
        if not lines:
            raise ShapeError(f"{op}: the input is {x}, a single number; expected an axis to transform")
        if lines[-1] == 0:
            raise ShapeError(
                f"{op}: the input is {x}; expected at least one element along the transformed axis"
            )
        n = check_length(op, attrs["n"])
        if not isinstance(attrs["inverse"], bool) or not isinstance(attrs["scale"], float):
            raise DTypeError(
                f"{op}: inverse is {attrs['inverse']!r} and scale {attrs['scale']!r}; expected a bool and a float"
            )
        if not gives_pairs:
            return TensorType((*lines[:-1], n), x.dtype)
        return TensorType((*lines[:-1], half(n) if not pairs else n, 2), x.dtype)

    return infer


def complex_of(x: Array) -> Array:
    """The complex numbers that an array's last axis holds as pairs."""
    kind = np.complex128 if x.dtype == np.float64 else np.complex64
    return np.asarray(np.ascontiguousarray(x).view(kind)[..., 0])


def pairs_of(z: Array) -> Array:
    """Complex numbers as pairs."""
    return np.stack([z.real, z.imag], -1)


def _computed(fn: Callable[..., Array]) -> Callable[..., Array]:
    """A reference that transforms in float64, scales, and rounds once."""

    def reference(x: Array, *, n: int, inverse: bool, scale: float) -> Array:
        with np.errstate(all="ignore"):
            return (fn(x.astype(np.float64), n, inverse) * scale).astype(x.dtype, copy=False)

    return reference


@_computed
def _fft(x: Array, n: int, inverse: bool) -> Array:
    z = complex_of(x)
    return pairs_of(np.fft.ifft(z, n, norm="forward") if inverse else np.fft.fft(z, n))


@_computed
def _rfft(x: Array, n: int, inverse: bool) -> Array:
    spectrum = np.fft.rfft(x, n)
    return pairs_of(np.conj(spectrum) if inverse else spectrum)


@_computed
def _irfft(x: Array, n: int, inverse: bool) -> Array:
    z = complex_of(x)
    return np.fft.irfft(z if inverse else np.conj(z), n, norm="forward")


def _resized(d: Tensor, axis: int, count: int) -> Tensor:
    """The gradient cut or zero-padded along the axis to the input's `count` elements."""
    have = d.shape[axis]
    if have > count:
        stops = (*d.shape[:axis], count, *d.shape[axis + 1 :])
        return apply("slice", d, starts=(0,) * d.ndim, stops=stops, steps=(1,) * d.ndim)
    if have < count:
        more = (*d.shape[:axis], count - have, *d.shape[axis + 1 :])
        return apply("concat", d, apply("expand", d.graph.constant(0.0, d.dtype), shape=more), axis=axis)
    return d


def _counted(z: Tensor, n: int, ends: float, others: float) -> Tensor:
    """Half a spectrum of length n, times `ends` at elements that are their own mirror image, else times `others`."""
    k = np.arange(z.shape[-2])
    weight = np.where(2 * k % n == 0, ends, others).astype(z.dtype.np)
    return apply("mul", z, z.graph.constant(weight[:, None]))


def _fft_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The transpose of a transform, as a real matrix on pairs, is the transform in the other direction."""
    d, x = grads[0], node.inputs[0]
    if d is None:
        return (None,)
    attrs = {**node.attrs, "inverse": not node.attrs["inverse"]}
    return (_resized(apply("fft", d, **attrs), x.ndim - 2, x.shape[-2]),)


def _rfft_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """irfft adds each inner element and its mirror image, of which rfft leaves out one."""
    d, x = grads[0], node.inputs[0]
    if d is None:
        return (None,)
    n = node.attrs["n"]
    attrs = {**node.attrs, "inverse": not node.attrs["inverse"]}
    return (_resized(apply("irfft", _counted(d, n, 1.0, 0.5), **attrs), x.ndim - 1, x.shape[-1]),)


def _irfft_vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    d, x = grads[0], node.inputs[0]
    if d is None:
        return (None,)
    n = node.attrs["n"]
    attrs = {**node.attrs, "inverse": not node.attrs["inverse"]}
    return (_resized(_counted(apply("rfft", d, **attrs), n, 1.0, 2.0), x.ndim - 2, x.shape[-2]),)


def _cost(node: Node) -> Cost:
    """A transform reads and writes its elements about once for every three bits of its length."""
    passes = 1 + math.ceil(math.log2(node.attrs["n"] + 1) / 3)
    nbytes = written(node)
    return Cost(passes * nbytes, tables=16 * node.attrs["n"], terms=8 * nbytes)


register(
    Op("fft", "fft", _infer("fft", True, True), _fft, "scipy.fft.fft", _fft_vjp, kernel="fft", cost=_cost,
       batch=batching.along())
)
register(
    Op("rfft", "fft", _infer("rfft", False, True), _rfft, "scipy.fft.rfft", _rfft_vjp, kernel="fft", cost=_cost,
       batch=batching.along())
)
register(
    Op("irfft", "fft", _infer("irfft", True, False), _irfft, "scipy.fft.irfft", _irfft_vjp, kernel="fft", cost=_cost,
       batch=batching.along())
)


def transform(op: str, x: Tensor, n: int, inverse: bool, scale: float) -> Tensor:
    """One transform along the last axis of complex or real numbers."""
    return apply(op, x, n=n, inverse=inverse, scale=scale)


def working(dtype: DType) -> DType:
    """The dtype in which numbers of `dtype` are transformed."""
    return f64 if dtype == f64 else f32
