"""Judges (scipy.fft on complex numbers) and gradient cases of Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlx import fft
from rlx.ir import Tensor
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge
from tests.outside import outside


def _complex(x: Array) -> Array:
    return x[..., 0] + 1j * x[..., 1]


def _pairs(z: Array) -> Array:
    return np.stack([z.real, z.imag], -1)


def _fft(x: Array, *, n: int, inverse: bool, scale: float) -> Array:
    scipy = outside("scipy.fft")
    made = scipy.ifft(_complex(x), n, norm="forward") if inverse else scipy.fft(_complex(x), n)
    return _pairs(made) * scale


def _rfft(x: Array, *, n: int, inverse: bool, scale: float) -> Array:
    scipy = outside("scipy.fft")
    made = scipy.ihfft(x, n, norm="forward") if inverse else scipy.rfft(x, n)
    return _pairs(made) * scale


def _irfft(x: Array, *, n: int, inverse: bool, scale: float) -> Array:
    scipy = outside("scipy.fft")
    made = scipy.irfft(_complex(x), n, norm="forward") if inverse else scipy.hfft(_complex(x), n)
    return np.asarray(made * scale)


def _made(name: str, n: int | None, axis: int = -1, norm: str | None = None) -> Callable[[Tensor], Tensor]:
    pairs = {"pairs": True} if name in ("fft", "ifft") else {}
    return lambda x: getattr(fft, name)(x, n, axis, norm, **pairs)


JUDGES: dict[str, Judge] = {"scipy.fft.fft": _fft, "scipy.fft.rfft": _rfft, "scipy.fft.irfft": _irfft}
GRADIENTS: Gradients = {
    "fft": [(_made("fft", n), [(2, 4, 2)], None) for n in (None, 3, 6)]
    + [(_made("ifft", 5, 0, "ortho"), [(5, 2, 2)], None)],
    "rfft": [(_made("rfft", n), [(2, 5)], None) for n in (None, 1, 4, 6)]
    + [(_made("ihfft", 6, 0, "forward"), [(6, 2)], None)],
    "irfft": [(_made("irfft", n), [(2, 4, 2)], None) for n in (None, 1, 5, 7, 10)]
    + [(_made("hfft", 6, 0, "ortho"), [(4, 2, 2)], None)],
}
