"""The functions of rlx.linalg: NumPy's and SciPy's names and arguments, over the decompositions of `lapack`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.dtypes import DTypeLike, f32, f64, i32, promote
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor, apply
from rlx.ir.graph import apply_multi
from rlx.ir.types import as_items, broadcast_shapes, is_length, normalize_axes, normalize_axis
from rlx.ops import composite, reduce
from rlx.ops.base import TensorLike, cast_to, tensors
from rlx.ops.composed import products
from rlx.ops.elementwise import select, unary
from rlx.ops.linalg.lapack import eye, transposed, triangular
from rlx.ops.matmul import matmul
from rlx.ops.movement import arrange
from rlx.ops.movement import strided as movement


class QRResult(NamedTuple):
    Q: Tensor
    R: Tensor


class SVDResult(NamedTuple):
    U: Tensor
    S: Tensor
    Vh: Tensor


class EighResult(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class SlogdetResult(NamedTuple):
    sign: Tensor
    logabsdet: Tensor


def _numbers(op: str, *args: TensorLike) -> tuple[Tensor, ...]:
    """The arguments as f64 if one is f64, else as f32. Raises: DTypeError for halves."""
    operands = tensors(op, *args)
    dtype = promote(*(t.dtype for t in operands))
    if dtype.is_half:
        raise DTypeError(f"{op}: the input is {dtype}; LAPACK has f32 and f64: rlx.cast it to one of these")
    work = dtype if dtype in (f32, f64) else f32
    return tuple(cast_to(t, work) for t in operands)


def _matrix(op: str, x: TensorLike) -> Tensor:
    (matrix,) = _numbers(op, x)
    if matrix.ndim < 2:
        raise ShapeError(f"{op}: the input is {matrix.type}; expected matrices, (..., m, n)")
    return matrix


def cholesky(a: TensorLike, *, upper: bool = False) -> Tensor:
    """The lower triangular L with a = L Lᵀ, or with `upper` the upper triangular U with a = Uᵀ U.

    Shape: (..., n, n) symmetric, of which the lower (upper) triangle is read. Dtype: f32 and f64 stay, integers become
    f32. Gradient: symmetric, as for a symmetric input. Raises: ShapeError; LinAlgError for a matrix that is not
    positive definite, from a run. Follows numpy.linalg.cholesky.
    """
    low = apply("cholesky", _matrix("linalg.cholesky", a), upper=bool(upper))
    return transposed(low) if upper else low


def _systems(op: str, a: TensorLike, b: TensorLike) -> tuple[Tensor, Tensor, bool]:
    """Matrices and right-hand sides broadcast to one batch, and whether b is a vector, which is made a column."""
    left, right = _numbers(op, a, b)
    vector = right.ndim == 1
    if left.ndim < 2 or left.shape[-1] != left.shape[-2]:
        raise ShapeError(f"{op}: a is {left.type}; expected square matrices, (..., n, n)")
    if vector:
        right = movement.reshape(right, (*right.shape, 1))
    if right.ndim < 2 or right.shape[-2] != left.shape[-1]:
        raise ShapeError(f"{op}: a is {left.type} and b {right.type}; expected as many rows in b")
    lead = broadcast_shapes(left.shape[:-2], right.shape[:-2], op=op)
    left, right = (movement.expand(t, (*lead, *t.shape[-2:])) for t in (left, right))
    return left, right, vector


def solve(a: TensorLike, b: TensorLike) -> Tensor:
    """x with a x = b, by LU decomposition with partial pivoting.

    Shape: (..., n, n) and (..., n, k), or b (n,); leading axes broadcast. Dtype: f64 where one is, else f32. Gradient:
    to both. Raises: ShapeError; LinAlgError for a singular matrix, from a run. Follows numpy.linalg.solve.
    """
    left, right, vector = _systems("linalg.solve", a, b)
    result = apply("solve", left, right)
    return movement.reshape(result, result.shape[:-1]) if vector else result


def solve_triangular(
    a: TensorLike, b: TensorLike, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False
) -> Tensor:
    """x with a x = b, of triangular a, by substitution; the other triangle is not read.

    trans: 0 or "N"; 1, 2, "T" or "C" for aᵀ x = b. unit_diagonal: the diagonal counts as ones. Otherwise as `solve`.
    Raises: LinAlgError for a zero in the diagonal. Follows scipy.linalg.solve_triangular.
    """
    op = "linalg.solve_triangular"
    if trans not in (0, 1, 2, "N", "T", "C"):
        raise ShapeError(f"{op}: trans is {trans!r}; expected 0, 1, 2, 'N', 'T' or 'C'")
    left, right, vector = _systems(op, a, b)
    result = triangular(left, right, bool(lower), trans not in (0, "N"), bool(unit_diagonal))
    return movement.reshape(result, result.shape[:-1]) if vector else result


def cho_solve(c_and_lower: tuple[TensorLike, bool], b: TensorLike) -> Tensor:
    """x with a x = b, of a's factor by `cholesky` and whether it is the lower one. Follows scipy.linalg.cho_solve."""
    c, lower = c_and_lower
    first, second = (0, 1) if lower else (1, 0)
    return solve_triangular(c, solve_triangular(c, b, first, lower), second, lower)


def inv(a: TensorLike) -> Tensor:
    """The inverse of matrices (..., n, n). Otherwise as `solve`. Follows numpy.linalg.inv."""
    x = _matrix("linalg.inv", a)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"linalg.inv: the input is {x.type}; expected square matrices, (..., n, n)")
    return apply("solve", x, eye(x, x.shape[-1]))


def det(a: TensorLike) -> Tensor:
    """The determinants (...) of matrices (..., n, n).

    Gradient: the cofactors, of singular matrices too; second derivatives need an inverse. Follows numpy.linalg.det.
    """
    return apply("det", _matrix("linalg.det", a))


def slogdet(a: TensorLike) -> SlogdetResult:
    """Sign and logarithm of the absolute value of the determinants; 0 and -inf of a singular matrix.

    Gradient: of the logarithm, the inverse transposed. Raises: LinAlgError for the gradient of a singular matrix.
    Follows numpy.linalg.slogdet.
    """
    return SlogdetResult(*apply_multi("slogdet", _matrix("linalg.slogdet", a)))


def qr(a: TensorLike, mode: str = "reduced") -> Any:
    """q with orthonormal columns and upper triangular r, with a = q r.

    mode: "reduced" gives (..., m, k) and (..., k, n) with k = min(m, n), "complete" (..., m, m) and (..., m, n), "r"
    the reduced r alone. Signs are LAPACK's. Gradient: of matrices whose first k columns are independent; not of
    "complete" with m > n. Follows numpy.linalg.qr.
    """
    if mode not in ("reduced", "complete", "r"):
        raise ShapeError(f"linalg.qr: mode is {mode!r}; expected 'reduced', 'complete' or 'r'")
    result = QRResult(*apply_multi("qr", _matrix("linalg.qr", a), complete=mode == "complete"))
    return result.R if mode == "r" else result


def svd(a: TensorLike, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """The singular value decomposition a = U diag(S) Vh, the greatest value first.

    Shape: (..., m, n) gives (..., m, m), (..., k), (..., n, n) with k = min(m, n), or without `full_matrices`
    (..., m, k), (..., k), (..., k, n); with compute_uv=False the values alone. Signs are LAPACK's. Gradient: of values
    always; of vectors where no two values are equal (else it is not finite), and, where m ≠ n, without full_matrices.
    hermitian: the matrices are symmetric, which changes nothing here. Raises: LinAlgError for NaN and infinities, from
    a run. Follows numpy.linalg.svd.
    """
    result = SVDResult(*apply_multi("svd", _matrix("linalg.svd", a), full_matrices=bool(full_matrices and compute_uv)))
    return result if compute_uv else result.S


def svdvals(a: TensorLike) -> Tensor:
    """The singular values (..., min(m, n)), the greatest first. Follows numpy.linalg.svdvals."""
    result: Tensor = svd(a, compute_uv=False)
    return result


def eigh(a: TensorLike, UPLO: str = "L") -> EighResult:
    """Eigenvalues, ascending, and eigenvectors, the columns of the second, of symmetric matrices.

    Shape: (..., n, n) gives (..., n) and (..., n, n); the lower triangle is read, or the upper with "U". Gradient:
    symmetric; of vectors where no two values are equal (else it is not finite). Raises: LinAlgError where LAPACK does
    not end, from a run. Follows numpy.linalg.eigh.
    """
    if UPLO not in ("L", "U", "l", "u"):
        raise ShapeError(f"linalg.eigh: UPLO is {UPLO!r}; expected 'L' or 'U'")
    return EighResult(*apply_multi("eigh", _matrix("linalg.eigh", a), upper=UPLO in "Uu"))


def eigvalsh(a: TensorLike, UPLO: str = "L") -> Tensor:
    """The eigenvalues of symmetric matrices, ascending. Otherwise as `eigh`. Follows numpy.linalg.eigvalsh."""
    return eigh(a, UPLO).eigenvalues


def pinv(
    a: TensorLike, rcond: float | None = None, hermitian: bool = False, *, rtol: float | None = None
) -> Tensor:
    """The pseudo-inverse (..., n, m) of matrices (..., m, n).

    Singular values of at most rcond (or rtol) times the greatest count as 0; None: max(m, n) times the dtype's eps
    (NumPy's own is 1e-15 in f32 too). hermitian: the matrices are symmetric, which changes nothing here. Gradient: of
    matrices whose rank does not change nearby. Follows numpy.linalg.pinv.
    """
    cutoff = rtol if rcond is None else rcond
    if cutoff is not None and not isinstance(cutoff, int | float):
        raise DTypeError(f"linalg.pinv: rcond is {cutoff!r}; expected a number that is known when the graph is built")
    return apply("pinv", _matrix("linalg.pinv", a), rtol=None if cutoff is None else float(cutoff))


def matrix_power(a: TensorLike, n: int) -> Tensor:
    """The n-th power of square matrices; n < 0: of the inverse, in f32 or f64. Otherwise the dtype is a's, whose
    integers wrap. Follows numpy.linalg.matrix_power."""
    op = "linalg.matrix_power"
    (x,) = tensors(op, a)
    if not is_length(n):
        raise DTypeError(f"{op}: n is {n!r}; expected an int")
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{op}: the input is {x.type}; expected square matrices, (..., n, n)")
    if n < 0:
        return matrix_power(inv(x), -n)
    result: Tensor | None = None
    while n:
        if n & 1:
            result = x if result is None else result @ x
        n >>= 1
        x = x @ x if n else x
    return eye(x, x.shape[-1]) if result is None else result


def matrix_rank(
    A: TensorLike, tol: TensorLike | None = None, hermitian: bool = False, *, rtol: TensorLike | None = None
) -> Tensor:
    """How many singular values are greater than `tol`, or than rtol (max(m, n) eps) times the greatest; i32.

    Shape: A (..., m, n) gives (...), which tol and rtol broadcast with; a vector or a number has the rank 1, of zeros
    alone 0. hermitian: the matrices are symmetric, which changes nothing here. Follows numpy.linalg.matrix_rank."""
    op = "linalg.matrix_rank"
    (x,) = _numbers(op, A)
    if x.ndim < 2:
        return select.cast(composite.any(x != 0), i32)
    s = svdvals(x)
    if tol is None:
        by = max(x.shape[-2:]) * _eps(x) if rtol is None else _column(op, x, rtol)
        limit = _greatest(s, -1) * by
    else:
        limit = _column(op, x, tol)
    return reduce.sum(select.cast(s > limit, i32), -1)


def _eps(x: Tensor) -> float:
    return float(np.finfo(x.dtype.np).eps)


def _column(op: str, x: Tensor, limit: TensorLike) -> Any:
    """A limit, either a number or one for each matrix of the batch, shaped to broadcast with singular values."""
    return limit if isinstance(limit, int | float) else composite.expand_dims(tensors(op, x, limit)[1], -1)


def _greatest(size: Tensor, axes: Any) -> Tensor:
    """The maximum over the axes of numbers ≥ 0, and 0 for no elements; the axes are kept."""
    if 0 not in (size.shape[a] for a in normalize_axes(axes, size.ndim, "linalg")):
        return reduce.max(size, axes, True)
    return reduce.sum(size, axes, True)


def lstsq(a: TensorLike, b: TensorLike, rcond: float | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The least squares solution of a x = b of least norm: (x, sums of squared residuals, rank, singular values).

    Shape: a (..., m, n), b (m,) or (..., m, k). Residuals are there for every rank (NumPy gives none of a deficient
    one, nor where m <= n). rcond: as `pinv`; below 0: the dtype's eps. Gradient: to both, as `pinv`. Follows
    numpy.linalg.lstsq.
    """
    op = "linalg.lstsq"
    left, right = _numbers(op, a, b)
    vector = right.ndim == 1
    right = movement.reshape(right, (*right.shape, 1)) if vector else right
    if left.ndim < 2 or right.ndim < 2 or left.shape[-2] != right.shape[-2]:
        raise ShapeError(f"{op}: a is {left.type} and b {right.type}; expected (..., m, n) and (..., m, k)")
    rcond = _eps(left) if rcond is not None and rcond < 0 else rcond
    x = pinv(left, rcond) @ right
    rest = right - left @ x
    residuals = reduce.sum(rest * rest, -2)
    rank = matrix_rank(left, rtol=rcond)
    return (movement.reshape(x, x.shape[:-1]) if vector else x), residuals, rank, svdvals(left)


def vector_norm(x: TensorLike, axis: Any = None, keepdims: bool = False, ord: float | None = 2) -> Tensor:
    """The norm of vectors along `axis` (None: of all elements): ord 2 (None), 1, inf, -inf, 0, or any number.

    Gradient: 0 where a vector is 0. Numerics: numbers are divided by the greatest first, so that squares neither
    overflow nor vanish. Follows numpy.linalg.vector_norm.
    """
    op = "linalg.vector_norm"
    (t,) = tensors(op, x)
    if t.dtype.is_half:
        return cast_to(vector_norm(cast_to(t, f32), axis, keepdims, ord), t.dtype)
    (t,) = _numbers(op, t)
    axes = normalize_axes(axis, t.ndim, op)
    ord = 2 if ord is None else ord
    if isinstance(ord, bool) or not isinstance(ord, int | float | np.integer | np.floating):
        raise ShapeError(f"{op}: ord is {ord!r}; expected a number or an infinity")
    ord = float(ord)
    size = unary.abs(t)
    if ord == 0:
        return reduce.sum(cast_to(t != 0, t.dtype), axes, keepdims)
    if ord == 1:
        return reduce.sum(size, axes, keepdims)
    if ord == math.inf:
        return _kept(_greatest(size, axes), axes, keepdims)
    if ord == -math.inf:
        return reduce.min(size, axes, keepdims)
    if ord < 0 or 0 in t.shape:
        total = reduce.sum(size**ord if ord != 2 else t * t, axes, keepdims)
        return total ** (1.0 / ord)
    top = apply("stop_gradient", reduce.max(size, axes, True))
    scale = select.where((top > 0.0) & (top < math.inf), top, 1.0)
    near = (t if ord == 2 else size) / scale
    total = reduce.sum(near * near if ord == 2 else near**ord, axes, True)
    some = total > 0.0
    safe = select.where(some, total, 1.0)
    result = select.where(some, scale * (unary.sqrt(safe) if ord == 2 else safe ** (1.0 / ord)), total)
    return _kept(result, axes, keepdims)


def _kept(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return x if keepdims or not axes else composite.squeeze(x, axes)


def matrix_norm(x: TensorLike, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """The norm of matrices (..., m, n): "fro", "nuc", 1, -1, 2, -2, inf, -inf. Follows numpy.linalg.matrix_norm."""
    (t,) = tensors("linalg.matrix_norm", x)
    if t.ndim < 2:
        raise ShapeError(f"linalg.matrix_norm: the input is {t.type}; expected matrices, (..., m, n)")
    return norm(t, ord, (-2, -1), keepdims)


def norm(x: TensorLike, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The norm of vectors or matrices.

    axis: an int for vectors, two for matrices, None for all of x. ord: None is the root of the sum of squares; others
    as `vector_norm` and `matrix_norm`. Gradient: 0 where all elements are 0. Raises: ShapeError. Follows
    numpy.linalg.norm.
    """
    op = "linalg.norm"
    (t,) = tensors(op, x)
    if axis is None and ord is None:
        return vector_norm(t, None, keepdims)
    axes = tuple(range(t.ndim)) if axis is None else tuple(
        normalize_axis(a, t.ndim, op) for a in as_items(axis, f"{op}: axis")
    )  # fmt: skip
    if len(axes) == 1:
        if isinstance(ord, str):
            raise ShapeError(f"{op}: ord is {ord!r}, a norm of matrices, and axis one axis; expected two axes")
        return vector_norm(t, axes[0], keepdims, 2 if ord is None else ord)
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ShapeError(f"{op}: the axes are {axes}; expected one for vectors, two for matrices")
    if ord in (None, "fro", "f"):
        return vector_norm(t, axes, keepdims)
    row, column = axes
    if ord in (1, -1, math.inf, -math.inf):
        over, then = (row, column) if abs(ord) == 1 else (column, row)
        sums = reduce.sum(unary.abs(t if t.dtype.is_float else _numbers(op, t)[0]), over, True)
        result = _greatest(sums, then) if ord > 0 else reduce.min(sums, then, True)
        return _kept(result, axes, keepdims)
    if ord not in ("nuc", 2, -2):
        raise ShapeError(f"{op}: ord is {ord!r}; of matrices expected 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    rest = [i for i in range(t.ndim) if i not in axes]
    s = svdvals(movement.transpose(t, [*rest, row, column]))
    result = _greatest(s, -1) if ord == 2 else (reduce.sum if ord == "nuc" else reduce.min)(s, -1, True)
    result = composite.squeeze(result, -1)
    return composite.expand_dims(result, sorted(axes)) if keepdims else result


def cond(x: TensorLike, p: Any = None) -> Tensor:
    """The condition number of matrices, by the norm p (None: 2). Follows numpy.linalg.cond."""
    t = _matrix("linalg.cond", x)
    if 0 in t.shape[-2:]:
        raise ShapeError(f"linalg.cond: the input is {t.type}; expected matrices of at least one element")
    if p in (None, 2, -2):
        s = svdvals(t)
        first, last = s[..., 0], s[..., -1]
        return last / first if p == -2 else first / last
    return norm(t, p, (-2, -1)) * norm(inv(t), p, (-2, -1))


def multi_dot(arrays: Sequence[TensorLike]) -> Tensor:
    """The product of two or more matrices (the first and last may be vectors), in the order that multiplies least.

    Follows numpy.linalg.multi_dot."""
    op = "linalg.multi_dot"
    if len(arrays) < 2:
        raise ShapeError(f"{op}: {len(arrays)} arrays; expected at least two")
    matrices = list(tensors(op, *arrays))
    if any(t.ndim != 2 for t in matrices[1:-1]) or not {matrices[0].ndim, matrices[-1].ndim} <= {1, 2}:
        raise ShapeError(f"{op}: the inputs are {', '.join(str(t.type) for t in matrices)}; expected matrices")
    sizes = [1 if matrices[0].ndim == 1 else matrices[0].shape[0], *(t.shape[0] for t in matrices[1:]),
             1 if matrices[-1].ndim == 1 else matrices[-1].shape[1]]  # fmt: skip
    best: dict[tuple[int, int], tuple[int, int]] = {(i, i): (0, i) for i in range(len(matrices))}
    for span in range(1, len(matrices)):
        for i in range(len(matrices) - span):
            j = i + span
            best[i, j] = min(
                (best[i, k][0] + best[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )

    def product(i: int, j: int) -> Tensor:
        k = best[i, j][1]
        return matrices[i] if i == j else matmul(product(i, k), product(k + 1, j))

    return product(0, len(matrices) - 1)


def diagonal(x: TensorLike, offset: int = 0) -> Tensor:
    """The diagonals of matrices, the last two axes. Otherwise as rlx.diagonal. Follows numpy.linalg.diagonal."""
    return arrange.diagonal(tensors("linalg.diagonal", x)[0], offset, -2, -1)


def trace(x: TensorLike, offset: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """The sums of the diagonals of matrices, the last two axes. Follows numpy.linalg.trace."""
    return products.trace(tensors("linalg.trace", x)[0], offset, -2, -1, dtype)
