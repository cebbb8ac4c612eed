"""Functions of matrices that need not be symmetric: eigenvalues, exponential, LU, under NumPy's and SciPy's names."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from rlx.errors import ShapeError
from rlx.ir import Tensor, apply
from rlx.ir.graph import apply_multi
from rlx.ops import reduce
from rlx.ops.base import TensorLike
from rlx.ops.complex_numbers import Complex
from rlx.ops.elementwise import select, unary
from rlx.ops.linalg.functions import _greatest, _matrix
from rlx.ops.linalg.lapack import eye
from rlx.ops.movement import strided as movement

_SQUARINGS = 16
# The coefficients of the Padé approximant of order 13, and the norm up to which it is exact in f64 (Higham, 2005).
_PADE = (64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0,
         10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0,
         1.0)  # fmt: skip
_REACH = 5.371920351148152


class EigResult(NamedTuple):
    eigenvalues: Any
    eigenvectors: Any


class LUResult(NamedTuple):
    P: Tensor
    L: Tensor
    U: Tensor


def _square(op: str, a: TensorLike) -> Tensor:
    x = _matrix(op, a)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{op}: the input is {x.type}; expected square matrices, (..., n, n)")
    return x


def eig(a: TensorLike) -> EigResult:
    """Eigenvalues and eigenvectors, the columns of the second, of square real matrices: complex numbers, in any order.

    Shape: (..., n, n) gives (..., n) and (..., n, n), complex also where all are real. Gradient: of eigenvalues that
    differ from each other; not of vectors, whose phases are any. Raises: LinAlgError for NaN and infinities, from a
    run. Follows numpy.linalg.eig.
    """
    values, vectors = apply_multi("eig", _square("linalg.eig", a))
    return EigResult(Complex(values), Complex(vectors))


def eigvals(a: TensorLike) -> Any:
    """The eigenvalues of square real matrices, complex numbers. Otherwise as `eig`. Follows numpy.linalg.eigvals."""
    return eig(a).eigenvalues


def lu(a: TensorLike) -> LUResult:
    """A permutation P, L with ones in its diagonal and nothing above, and upper triangular U, with a = P L U.

    Shape: (..., m, n) gives (..., m, m), (..., m, k), (..., k, n), k = min(m, n). Gradient: of square matrices without
    a zero among the pivots. Follows scipy.linalg.lu.
    """
    return LUResult(*apply_multi("lu", _matrix("linalg.lu", a)))


def expm(A: TensorLike) -> Tensor:
    """The exponential of square matrices, 1 + A + A²/2 + …

    Numerics: the Padé approximant of order 13 of A / 2ⁿ, squared n times; NaN where n would be above 16 (a norm above
    350,000). Gradient: to A. Follows scipy.linalg.expm; Higham, The scaling and squaring method, 2005.
    """
    x = _square("linalg.expm", A)
    n = x.shape[-1]
    one = eye(x, n)
    norm = apply("stop_gradient", _greatest(reduce.sum(unary.abs(x), -2, True), -1))
    times = unary.ceil(unary.log(apply("maximum", norm / _REACH, 1.0)) / math.log(2.0))
    x = x / unary.exp(select.where(times <= _SQUARINGS, times, math.nan) * math.log(2.0))
    x2 = x @ x
    x4 = x2 @ x2
    x6 = x4 @ x2
    b = _PADE
    odd = x @ (x6 @ (x6 * b[13] + x4 * b[11] + x2 * b[9]) + x6 * b[7] + x4 * b[5] + x2 * b[3] + one * b[1])
    even = x6 @ (x6 * b[12] + x4 * b[10] + x2 * b[8]) + x6 * b[6] + x4 * b[4] + x2 * b[2] + one * b[0]
    result = apply("solve", even - odd, even + odd)
    for i in range(_SQUARINGS):
        result = select.where(times > float(i), result @ result, result)
    return movement.reshape(result, x.shape)
