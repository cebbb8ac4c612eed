"""The functions of rlx.fft: NumPy's names, lengths, axes and norms, over one transform of the last axis at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DTypeLike, as_dtype, f32
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor
from rlx.ir.types import as_items, normalize_axes, normalize_axis
from rlx.ops import composite
from rlx.ops.base import TensorLike, flag, tensor
from rlx.ops.fft.pairs import complex_numbers, numbers, pair
from rlx.ops.fft.transform import TYPES, check_length, transform
from rlx.ops.movement import arrange
from rlx.ops.public import Complexes
from rlx.ops.reduce import Axis

NORMS = ("backward", "ortho", "forward")


def _read(
    op: str, z: TensorLike, pairs: bool | None, asks: bool = True
) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """The input as pairs, and the function that finishes a result: for real numbers it makes rlx.Complex, of NumPy's
    shape.

    If `pairs` is None, a last axis of 2 is refused with `asks`, else taken as pairs. Raises: ShapeError, DTypeError."""
    x = numbers(op, z)
    if pairs is None and not asks:
        pairs = x.shape[-1:] == (2,)
    if not x.ndim or _has_pairs(op, x, pairs):
        return complex_numbers(op, x), lambda result: result
    Complexes.load()
    return pair(x), Complexes.type


def _has_pairs(op: str, x: Tensor, pairs: bool | None) -> bool:
    """Whether a tensor holds pairs. Raises: ShapeError for a last axis of 2 if `pairs` is None."""
    if pairs is None and x.shape[-1:] == (2,):
        raise ShapeError(
            f"{op}: the input is {x.type}, and a last axis of 2 may hold pairs (real, imaginary) or two real numbers; "
            "write pairs=True or pairs=False, or give complex numbers, which rlx.view_as_complex makes of pairs"
        )
    return pairs is not None and flag(op, "pairs", pairs)


def _scale(op: str, norm: str | None, n: int, inverse: bool) -> float:
    """The factor of a transform of length n: `norm` says which direction is divided by n."""
    norm = "backward" if norm is None else norm
    if norm not in NORMS:
        raise ShapeError(f"{op}: norm is {norm!r}; expected one of {', '.join(NORMS)}, or None for backward")
    if norm == "ortho":
        return 1.0 / math.sqrt(n)
    return 1.0 / n if inverse == (norm == "backward") else 1.0


def _checked_rank(op: str, x: Tensor, rank: int) -> int:
    """`rank`, the number of axes without that of pairs. Raises: ShapeError if it is 0."""
    if rank == 0:
        held, shape = ("one pair", "(1, 2)") if x.ndim else ("a single number", "(1,)")
        raise ShapeError(
            f"{op}: the input is {x.type}, {held}; expected an axis of numbers to transform; reshape it to {shape} for "
            "a line of one"
        )
    return rank


def _along(
    op: str, kind: str, x: Tensor, n: int | None, axis: int, inverse: bool, norm: str | None
) -> Tensor:
    """The transform `kind` of x along one axis of its numbers; x is in the dtype of transforms already."""
    rank = x.ndim - (kind != "rfft")
    at = normalize_axis(axis, _checked_rank(op, x, rank), op)
    if n is None:
        if x.shape[at] == 0:
            raise ShapeError(f"{op}: the input is {x.type}; expected at least one element along axis {axis}")
        n = 2 * (x.shape[at] - 1) if kind == "irfft" else x.shape[at]
        if n == 0:
            raise ShapeError(
                f"{op}: the input is {x.type}, one element along axis {axis}; without n that would be a transform to 0 "
                "real numbers; give n (n=1 for a single one), or the n // 2 + 1 elements of a spectrum of n"
            )
    n = check_length(op, n)
    moved = composite.moveaxis(x, at, rank - 1) if at != rank - 1 else x
    spectrum = transform(kind, moved, n, inverse, _scale(op, norm, n, inverse))
    return composite.moveaxis(spectrum, rank - 1, at) if at != rank - 1 else spectrum


def _several(
    op: str, x: Tensor, s: Sequence[int] | None, axes: Sequence[int] | int | None, rank: int
) -> list[tuple[int, int | None]]:
    """The axes of a multi-dimensional transform, each with its length or None, in the order given."""
    _checked_rank(op, x, rank)
    lengths = None if s is None else as_items(s, f"{op}: s")
    if axes is None:
        count = rank if lengths is None else len(lengths)
        if count > rank:
            raise ShapeError(f"{op}: s has {count} lengths, and the input {rank} axes of numbers")
        listed = list(range(rank - count, rank))
    else:
        listed = [normalize_axis(a, rank, op) for a in as_items(axes, f"{op}: axes")]
    normalize_axes(listed, rank, op)  # refuses an axis that is named twice
    if not listed:
        raise ShapeError(f"{op}: axes is empty; expected at least one axis")
    if lengths is not None and len(lengths) != len(listed):
        raise ShapeError(f"{op}: s has {len(lengths)} lengths for {len(listed)} axes; expected as many")
    return list(zip(listed, [None] * len(listed) if lengths is None else lengths, strict=True))


def _over(
    op: str, z: Tensor, pairs: Sequence[tuple[int, int | None]], inverse: bool, norm: str | None
) -> Tensor:
    for axis, n in reversed(pairs):
        z = _along(op, "fft", z, n, axis, inverse, norm)
    return z


def fft(
    z: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, pairs: bool | None = None
) -> Any:
    """The discrete Fourier transform along an axis: Z[k] = Σ z[j] exp(-2πi jk / n).

    Shape: z holds complex numbers, or pairs of their parts (..., 2), which give pairs, or real numbers, which give
    rlx.Complex of NumPy's shape; `axis` counts as it does on a complex array, without the axis of pairs. `pairs` says
    whether a tensor holds these; None: real numbers, but a last axis of 2 is refused, for it may be either. `n`: the
    length of the transform, to which z is cut or filled with zeros; its own unless given; any length from 1. norm:
    "backward" (None) divides the inverse by n, "forward" this one, "ortho" both by √n. Dtype: f64 stays; all others are
    computed, and given, in f32. Gradient: the inverse of d, without its division. Numerics: a relative error of about
    1e-7 log2(n) of the whole in f32 (f64: 2e-16 log2(n)), with tables of roots of unity computed in f64; an infinity or
    NaN makes any results of its line infinite or NaN. Raises: ShapeError for a single number, a length or an axis below
    1, an unknown norm. Follows numpy.fft.fft.
    """
    op = "fft.fft"
    x, of = _read(op, z, pairs)
    return of(_along(op, "fft", x, n, axis, False, norm))


def ifft(
    z: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, pairs: bool | None = None
) -> Any:
    """The inverse of `fft`: z[j] = Σ Z[k] exp(2πi jk / n) / n. Otherwise as `fft`. Follows numpy.fft.ifft."""
    op = "fft.ifft"
    x, of = _read(op, z, pairs)
    return of(_along(op, "fft", x, n, axis, True, norm))


def rfft(x: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The transform of real numbers: the elements 0 to ⌊n/2⌋ of `fft`, of which the others are conjugates.

    Shape: x (..., m, ...) gives pairs (..., n // 2 + 1, ..., 2). Otherwise as `fft`. Follows numpy.fft.rfft.
    """
    op = "fft.rfft"
    return _along(op, "rfft", numbers(op, x), n, axis, False, norm)


def irfft(
    z: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, pairs: bool | None = None
) -> Tensor:
    """The inverse of `rfft`: real numbers, from the elements 0 to ⌊n/2⌋ of their transform.

    Shape: pairs (..., m, ..., 2) give (..., n, ...), with n = 2 (m - 1) unless given: an odd n has to be given. The
    imaginary parts of element 0, and of element n/2 of an even n, count as 0. A last axis of 2 holds pairs unless
    pairs=False says that the numbers are real, as those of another length are. Otherwise as `fft`. Raises: ShapeError
    also for m = 1 without n. Follows numpy.fft.irfft.
    """
    op = "fft.irfft"
    x, _ = _read(op, z, pairs, False)
    return _along(op, "irfft", x, n, axis, True, norm)


def hfft(
    z: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, pairs: bool | None = None
) -> Tensor:
    """The transform of a signal that is conjugate-symmetric, given by its first half: real. Follows numpy.fft.hfft."""
    op = "fft.hfft"
    x, _ = _read(op, z, pairs, False)
    return _along(op, "irfft", x, n, axis, False, norm)


def ihfft(x: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `hfft`: half of a conjugate-symmetric signal, as pairs. Follows numpy.fft.ihfft."""
    op = "fft.ihfft"
    return _along(op, "rfft", numbers(op, x), n, axis, True, norm)


def fftn(
    z: TensorLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None, *,
    pairs: bool | None = None,
) -> Any:  # fmt: skip
    """`fft` along several axes: all of them, or `axes`, cut or filled with zeros to the lengths `s`.

    Shape: pairs (..., 2) give pairs; without axes, as many lengths as s has are those of the last axes. Otherwise as
    `fft`. Raises: ShapeError also for an axis named twice, and for lengths that are not as many as axes. Follows
    numpy.fft.fftn.
    """
    op = "fft.fftn"
    x, of = _read(op, z, pairs)
    return of(_over(op, x, _several(op, x, s, axes, x.ndim - 1), False, norm))


def ifftn(
    z: TensorLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None, *,
    pairs: bool | None = None,
) -> Any:  # fmt: skip
    """The inverse of `fftn`. Follows numpy.fft.ifftn."""
    op = "fft.ifftn"
    x, of = _read(op, z, pairs)
    return of(_over(op, x, _several(op, x, s, axes, x.ndim - 1), True, norm))


def fft2(
    z: TensorLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None, *,
    pairs: bool | None = None,
) -> Any:  # fmt: skip
    """`fftn` of two axes, the last two unless given. Follows numpy.fft.fft2."""
    return fftn(z, s, axes, norm, pairs=pairs)


def ifft2(
    z: TensorLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None, *,
    pairs: bool | None = None,
) -> Any:  # fmt: skip
    """The inverse of `fft2`. Follows numpy.fft.ifft2."""
    return ifftn(z, s, axes, norm, pairs=pairs)


def rfftn(
    x: TensorLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None
) -> Tensor:
    """The transform of real numbers along several axes: `rfft` along the last of them, then `fft` along the others.

    Shape: x gives pairs (..., 2), of which the last of the axes has n // 2 + 1 elements. Otherwise as `fftn`. Follows
    numpy.fft.rfftn.
    """
    op = "fft.rfftn"
    x = numbers(op, x)
    *others, (last, n) = _several(op, x, s, axes, x.ndim)
    return _over(op, _along(op, "rfft", x, n, last, False, norm), others, False, norm)


def irfftn(
    z: TensorLike, s: Sequence[int] | None = None, axes: Axis = None, norm: str | None = None, *,
    pairs: bool | None = None,
) -> Tensor:  # fmt: skip
    """The inverse of `rfftn`: `ifft` along all axes but the last, then `irfft`. Follows numpy.fft.irfftn."""
    op = "fft.irfftn"
    x, _ = _read(op, z, pairs, False)
    *others, (last, n) = _several(op, x, s, axes, x.ndim - 1)
    return _along(op, "irfft", _over(op, x, others, True, norm), n, last, True, norm)


def rfft2(
    x: TensorLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None
) -> Tensor:
    """`rfftn` of two axes, the last two unless given. Follows numpy.fft.rfft2."""
    return rfftn(x, s, axes, norm)


def irfft2(
    z: TensorLike, s: Sequence[int] | None = None, axes: Axis = (-2, -1), norm: str | None = None, *,
    pairs: bool | None = None,
) -> Tensor:  # fmt: skip
    """The inverse of `rfft2`. Follows numpy.fft.irfft2."""
    return irfftn(z, s, axes, norm, pairs=pairs)


def _frequencies(op: str, n: int, d: float, dtype: DTypeLike) -> tuple[int, Any]:
    kind = as_dtype(dtype)
    if kind not in TYPES:
        raise DTypeError(f"{op}: dtype is {kind}; expected f32 or f64")
    if not isinstance(d, int | float | np.integer | np.floating) or d == 0 or not abs(d) < math.inf:
        raise ShapeError(f"{op}: the spacing of samples is {d}; expected a finite number other than 0")
    return check_length(op, n), kind.np


def fftfreq(n: int, d: float = 1.0, dtype: DTypeLike = f32) -> npt.NDArray[Any]:
    """The frequencies of the elements of `fft`, for samples at a distance d: 0, 1, …, then the negative ones, over n d.

    Shape: (n,), a NumPy array. Dtype: f32 or f64, rounded once. Raises: ShapeError for n < 1 or d = 0, DTypeError.
    Follows numpy.fft.fftfreq.
    """
    length, kind = _frequencies("fft.fftfreq", n, d, dtype)
    return np.fft.fftfreq(length, d).astype(kind)


def rfftfreq(n: int, d: float = 1.0, dtype: DTypeLike = f32) -> npt.NDArray[Any]:
    """The frequencies of the elements of `rfft`: 0 to n // 2, over n d. Otherwise as `fftfreq`."""
    length, kind = _frequencies("fft.rfftfreq", n, d, dtype)
    return np.fft.rfftfreq(length, d).astype(kind)


def _shifted(op: str, x: Any, axes: Axis, pairs: bool | None, back: bool) -> Any:
    if not isinstance(x, Tensor):
        array = np.asarray(x)
        own = pairs is not None and flag(op, "pairs", pairs) and array.ndim > 0
        return (np.fft.ifftshift if back else np.fft.fftshift)(array, normalize_axes(axes, array.ndim - own, op))
    x = tensor(op, x)
    pairs = _has_pairs(op, x, pairs)
    if pairs and (not x.ndim or x.shape[-1] != 2):
        raise ShapeError(
            f"{op}: the input is {x.type}; expected complex numbers as pairs (real, imaginary) along a last axis of 2; "
            "of real numbers it takes pairs=False"
        )
    listed = normalize_axes(axes, x.ndim - pairs, op)
    by = [-(x.shape[a] // 2) if back else x.shape[a] // 2 for a in listed]
    return arrange.roll(x, by, listed) if listed else x


def fftshift(x: TensorLike, axes: Axis = None, *, pairs: bool | None = None) -> Any:
    """Moves the element of frequency 0 to the middle of each axis.

    Shape: x's. Of pairs their own axis stays as it is and does not count; `pairs` says whether x holds these: None: no,
    but a last axis of 2 is refused, for it may be either. axes: all unless given. Dtype: any. A NumPy array (of
    `fftfreq`) has no axis of pairs and gives one. Gradient: d moved back. Raises: ShapeError for a tensor without pairs
    that is to have them, an axis out of range or named twice. Follows numpy.fft.fftshift.
    """
    return _shifted("fft.fftshift", x, axes, pairs, False)


def ifftshift(x: TensorLike, axes: Axis = None, *, pairs: bool | None = None) -> Any:
    """The inverse of `fftshift`, which differs from it where a length is odd. Follows numpy.fft.ifftshift."""
    return _shifted("fft.ifftshift", x, axes, pairs, True)
