"""erf and erfc, which NumPy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[Any]

# Rational minimax coefficients, highest power first: W. J. Cody, "Rational Chebyshev approximations for the error
# function", Math. Comp. 23 (1969) 631-637, in the double-precision form he published in SPECFUN.
_SMALL_P = (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
            3.20937758913846947e3)  # fmt: skip
_SMALL_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
MIDDLE_P = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
             2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
             1.23033935479799725e3)  # fmt: skip
MIDDLE_Q = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
             3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3)  # fmt: skip
LARGE_P = (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
            1.60837851487422766e-2, 6.58749161529837803e-4)  # fmt: skip
LARGE_Q = (1.0, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1, 6.05183413124413191e-2,
            2.33520497626869185e-3)  # fmt: skip
INV_SQRT_PI = 0.56418958354775628695
SWITCH = 0.46875  # below it erf is x times a rational function of x²; above it erfc is approximated, erf = 1 - erfc


def _poly(coefficients: tuple[float, ...], x: Floats) -> Floats:
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total *= x
        total += c
    return total


def _erf_small(x: Floats) -> Floats:
    square = x * x
    return x * _poly(_SMALL_P, square) / _poly(_SMALL_Q, square)


def _erfc_positive(y: Floats) -> Floats:
    """erfc of y ≥ 0.46875 (or NaN)."""
    y = np.asarray(np.minimum(y, 30.0))  # erfc is 0 beyond 27; keeps y² finite
    ratio = np.asarray(_poly(MIDDLE_P, y) / _poly(MIDDLE_Q, y))
    far = y > 4.0  # few elements of most data are so
    if far.any():
        inverse = 1.0 / (y[far] * y[far])
        tail = inverse * _poly(LARGE_P, inverse) / _poly(LARGE_Q, inverse)
        ratio[far] = (INV_SQRT_PI - tail) / y[far]
    # exp(-y²) as two factors: y² rounded to one number would cost digits for large y.
    head = np.trunc(y * 16.0) / 16.0
    return np.exp(-head * head) * np.exp(-(y - head) * (y + head)) * ratio


def _wide(x: npt.ArrayLike) -> tuple[Floats, Any]:
    """x in a wider type than its own, and the type of the result: float64, or f32 for f32.

    The wider type keeps the rounding of the polynomials' sums out of the result. (On platforms whose long double is a
    float64 the last two bits are lost.)
    """
    array = np.asarray(x)
    if array.dtype == np.float32:
        return array.astype(np.float64), np.float32
    return array.astype(np.longdouble), np.float64


def erf(x: npt.ArrayLike) -> Floats:
    """The error function. Numerics: within 2 ULP in float64; erf(±inf) = ±1, NaN gives NaN, -0 gives -0."""
    x, answer = _wide(x)
    y = np.abs(x)
    with np.errstate(all="ignore"):
        near = y <= SWITCH
        far = np.copysign(1.0 - _erfc_positive(np.maximum(y, SWITCH)), x)
        return np.where(near, _erf_small(np.where(near, x, 0.0)), far).astype(answer)


def erfc(x: npt.ArrayLike) -> Floats:
    """1 - erf(x), with a small relative error also where it is tiny."""
    x, answer = _wide(x)
    y = np.abs(x)
    with np.errstate(all="ignore"):
        near = y <= SWITCH
        far = _erfc_positive(np.maximum(y, SWITCH))
        small = 1.0 - _erf_small(np.where(near, x, 0.0))
        return np.where(near, small, np.where(x < 0, 2.0 - far, far)).astype(answer)
