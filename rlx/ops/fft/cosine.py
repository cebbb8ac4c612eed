"""Cosine and sine transforms of types I to IV, by Fourier transforms: scipy.fft's names, types, norms and axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir import Tensor
from rlx.ir.types import as_items, normalize_axes, normalize_axis
from rlx.ops import composite
from rlx.ops.base import TensorLike
from rlx.ops.fft.functions import NORMS, fft, irfft, rfft
from rlx.ops.fft.pairs import imag, multiply, numbers, pair, real
from rlx.ops.fft.transform import check_length
from rlx.ops.movement import arrange
from rlx.ops.movement import strided as movement
from rlx.ops.pad import pad

_INVERSE = {1: 1, 2: 3, 3: 2, 4: 4}


def _row(x: Tensor, values: Any) -> Tensor:
    return x.graph.constant(np.asarray(values, x.dtype.np))


def _turns(x: Tensor, angles: Any) -> Tensor:
    """exp(i angle) as pairs."""
    return _row(x, np.stack([np.cos(angles), np.sin(angles)], -1))


def _cosine(x: Tensor, kind: int) -> Tensor:
    """The cosine transform of the last axis, without a scale."""
    n = x.shape[-1]
    k = np.arange(n)
    if kind == 1:
        return real(rfft(movement.concat([x, arrange.flip(x[..., 1 : n - 1], -1)], -1) if n > 2 else x))
    if kind == 2:
        z = rfft(movement.concat([x, arrange.flip(x, -1)], -1))[..., :n, :]
        return real(multiply(z, _turns(x, -np.pi * k / (2 * n))))
    if kind == 3:
        z = multiply(pair(x), _turns(x, np.pi * k / (2 * n)))
        return irfft(z, 2 * n, norm="forward")[..., :n]
    z = fft(multiply(pair(x), _turns(x, -np.pi * k / (2 * n))), 2 * n, pairs=True)[..., :n, :]
    return real(multiply(z, _turns(x, -np.pi * (2 * k + 1) / (4 * n)))) * 2.0


def _sine(x: Tensor, kind: int) -> Tensor:
    """The unscaled sine transform of the last axis: type I by the transform of an odd signal, other types by
    `_cosine`."""
    n = x.shape[-1]
    sign = _row(x, (-1.0) ** np.arange(n))
    if kind == 1:
        zero = x[..., :1] * 0.0
        odd = movement.concat([zero, x, zero, -arrange.flip(x, -1)], -1)
        return -imag(rfft(odd))[..., 1 : n + 1]
    if kind == 2:
        return arrange.flip(_cosine(x * sign, 2), -1)
    return sign * _cosine(arrange.flip(x, -1), kind)


def _ends(n: int, cosine: bool, kind: int) -> list[int]:
    """The elements that an orthogonal transform scales by √2 or 1/√2."""
    if kind == 1:
        return [0, n - 1] if cosine else []
    return [] if kind == 4 else [0 if cosine else n - 1]


def _transform(
    op: str, x: TensorLike, type: int, n: int | None, axis: int, norm: str | None, orthogonalize: bool | None,
    cosine: bool, inverse: bool,
) -> Tensor:  # fmt: skip
    if type not in _INVERSE or isinstance(type, bool):
        raise ShapeError(f"{op}: type is {type!r}; expected 1, 2, 3 or 4")
    norm = "backward" if norm is None else norm
    if norm not in NORMS:
        raise ShapeError(f"{op}: norm is {norm!r}; expected one of {', '.join(NORMS)}, or None for backward")
    t = numbers(op, x)
    at = normalize_axis(axis, t.ndim, op)
    t = t if at == t.ndim - 1 else composite.moveaxis(t, at, -1)
    have = t.shape[-1]
    size = check_length(op, have if n is None else n)
    if cosine and type == 1 and size < 2:
        raise ShapeError(f"{op}: type 1 of {size} element; expected at least two")
    t = t[..., :size] if have > size else pad(t, [(0, 0)] * (t.ndim - 1) + [(0, size - have)]) if have < size else t
    kind = _INVERSE[type] if inverse else type
    ortho = norm == "ortho" if orthogonalize is None else orthogonalize
    ends = _ends(size, cosine, kind) if ortho else []
    if ends and kind in (1, 3):
        weight = np.ones(size)
        weight[ends] = math.sqrt(2)
        t = t * _row(t, weight)
    result = (_cosine if cosine else _sine)(t, kind)
    scale = np.ones(size)
    whole = 2 * (size + (-1 if cosine else 1) * (kind == 1))
    if norm == "ortho":
        scale /= math.sqrt(whole)
    elif inverse == (norm == "backward"):
        scale /= whole
    if ends and kind in (1, 2):
        scale[ends] /= math.sqrt(2)
    result = result * _row(result, scale) if (scale != 1).any() else result
    return result if at == result.ndim - 1 else composite.moveaxis(result, -1, at)


def dct(
    x: TensorLike, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, orthogonalize: bool | None = None,
) -> Tensor:  # fmt: skip
    """The discrete cosine transform of type 1, 2, 3 or 4 along an axis.

    n: the axis is cut or filled with zeros to it. norm: "backward" (None), "forward", or "ortho", which also makes
    types 1 to 3 orthogonal unless orthogonalize says otherwise. overwrite_x and workers change nothing. Dtype: f64
    stays; others are
    computed in f32. Gradient: to x. Numerics: as rlx.fft.rfft of twice the length. Raises: ShapeError.
    Follows scipy.fft.dct.
    """
    return _transform("fft.dct", x, type, n, axis, norm, orthogonalize, True, False)


def idct(
    x: TensorLike, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, orthogonalize: bool | None = None,
) -> Tensor:  # fmt: skip
    """The inverse of `dct` of the same type and norm. Follows scipy.fft.idct."""
    return _transform("fft.idct", x, type, n, axis, norm, orthogonalize, True, True)


def dst(
    x: TensorLike, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, orthogonalize: bool | None = None,
) -> Tensor:  # fmt: skip
    """The discrete sine transform of type 1, 2, 3 or 4 along an axis. Otherwise as `dct`. Follows scipy.fft.dst."""
    return _transform("fft.dst", x, type, n, axis, norm, orthogonalize, False, False)


def idst(
    x: TensorLike, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, orthogonalize: bool | None = None,
) -> Tensor:  # fmt: skip
    """The inverse of `dst` of the same type and norm. Follows scipy.fft.idst."""
    return _transform("fft.idst", x, type, n, axis, norm, orthogonalize, False, True)


def _several(
    op: str, one: Callable[..., Tensor], x: TensorLike, type: int, s: Sequence[int] | None, axes: Any, norm: str | None,
    orthogonalize: bool | None,
) -> Tensor:  # fmt: skip
    t = numbers(op, x)
    lengths = None if s is None else as_items(s, f"{op}: s")
    if axes is None:
        axes = range(t.ndim - (t.ndim if lengths is None else len(lengths)), t.ndim)
    over = [normalize_axis(a, t.ndim, op) for a in as_items(axes, f"{op}: axes")]
    normalize_axes(over, t.ndim, op)  # refuses an axis that is named twice
    if lengths is not None and len(lengths) != len(over):
        raise ShapeError(f"{op}: s has {len(lengths)} lengths for {len(over)} axes; expected as many")
    for i, axis in enumerate(over):
        t = one(t, type, None if lengths is None else lengths[i], axis, norm, orthogonalize=orthogonalize)
    return t


def dctn(
    x: TensorLike, type: int = 2, s: Sequence[int] | None = None, axes: Any = None, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, orthogonalize: bool | None = None,
) -> Tensor:  # fmt: skip
    """`dct` along several axes (None: all). Follows scipy.fft.dctn."""
    return _several("fft.dctn", dct, x, type, s, axes, norm, orthogonalize)


def idctn(
    x: TensorLike, type: int = 2, s: Sequence[int] | None = None, axes: Any = None, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, orthogonalize: bool | None = None,
) -> Tensor:  # fmt: skip
    """The inverse of `dctn`. Follows scipy.fft.idctn."""
    return _several("fft.idctn", idct, x, type, s, axes, norm, orthogonalize)


def dstn(
    x: TensorLike, type: int = 2, s: Sequence[int] | None = None, axes: Any = None, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, orthogonalize: bool | None = None,
) -> Tensor:  # fmt: skip
    """`dst` along several axes (None: all). Follows scipy.fft.dstn."""
    return _several("fft.dstn", dst, x, type, s, axes, norm, orthogonalize)


def idstn(
    x: TensorLike, type: int = 2, s: Sequence[int] | None = None, axes: Any = None, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, orthogonalize: bool | None = None,
) -> Tensor:  # fmt: skip
    """The inverse of `dstn`. Follows scipy.fft.idstn."""
    return _several("fft.idstn", idst, x, type, s, axes, norm, orthogonalize)
