"""Decompositions of matrices by NumPy's LAPACK: ops that every device leaves to the CPU. Leading axes are a batch.

Their gradients are the known formulas, written with ops that have gradients themselves. So second derivatives follow,
and forward mode, which transposes the rules. Formulas: Giles, Collected Matrix Derivative Results, 2008; Murray,
Differentiation of the Cholesky decomposition, 2016; Walter and Lehmann, Algorithmic differentiation of linear algebra
functions, 2012; Golub and Pereyra, 1973.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.autodiff.pullback import pullback
from rlx.dtypes import f32, f64
from rlx.errors import DTypeError, LinAlgError, ShapeError, UnsupportedOp
from rlx.ir import Attrs, Cost, Node, Op, Tensor, TensorType, apply, register_host
from rlx.ir.op import Infer
from rlx.ops import batching
from rlx.ops.base import check_inputs, written
from rlx.ops.numeric import Array

FAMILY = "linalg"
Grads = Sequence["Tensor | None"]
_BLOCK = 32  # systems of up to so many rows are solved row by row; larger ones are halved


# -- types


def _check(op: str, types: Sequence[TensorType], square: bool) -> TensorType:
    """The first input, which must be matrices of f32 or f64."""
    x = types[0]
    for t in types:
        if t.dtype not in (f32, f64) or t.dtype != x.dtype:
            raise DTypeError(
                f"{op}: the inputs are {', '.join(map(str, types))}; expected f32 or f64 alone; rlx.cast them first"
            )
        if t.rank < 2:
            raise ShapeError(f"{op}: an input is {t}; expected matrices, (..., m, n)")
    if square and x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{op}: the input is {x}; expected square matrices, (..., n, n)")
    return x


def _check_flags(op: str, attrs: Attrs) -> None:
    for name, value in attrs.items():
        if name != "rtol" and not isinstance(value, bool):
            raise DTypeError(f"{op}: {name} is {value!r}; expected a bool")


def _like(*outs: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Callable[[str, bool], Infer]:
    """Makes the `infer` of an op of one matrix: each of `outs` gives an output's shape from the input's."""

    def of(op: str, square: bool) -> Infer:
        def infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
            check_inputs(op, types, 1)
            x = _check(op, types, square)
            _check_flags(op, attrs)
            return tuple(TensorType(shape(x.shape), x.dtype) for shape in outs)

        return infer

    return of


def _solve_infer(op: str) -> Infer:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        check_inputs(op, types, 2)
        a = _check(op, types, True)
        _check_flags(op, attrs)
        b = types[1]
        if b.shape[:-1] != a.shape[:-1]:
            raise ShapeError(f"{op}: {a} and {b}; expected (..., n, n) and (..., n, k) of one batch")
        return b

    return infer


def _qr_infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_inputs("qr", types, 1)
    x = _check("qr", types, False)
    _check_flags("qr", attrs)
    *lead, m, n = x.shape
    k = m if attrs["complete"] else min(m, n)
    return TensorType((*lead, m, k), x.dtype), TensorType((*lead, k, n), x.dtype)


def _svd_infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_inputs("svd", types, 1)
    x = _check("svd", types, False)
    _check_flags("svd", attrs)
    *lead, m, n = x.shape
    k = min(m, n)
    u, v = (m, n) if attrs["full_matrices"] else (k, k)
    shapes = ((*lead, m, u), (*lead, k), (*lead, v, n))
    return tuple(TensorType(shape, x.dtype) for shape in shapes)


# -- values


def _refused(op: str, what: str, fails: Callable[[Any], bool], x: Array) -> LinAlgError:
    """The error of the first matrix of a batch that fails."""
    lead = x.shape[:-2]
    at = next((i for i in np.ndindex(lead) if fails(x[i])), None)
    where = f"matrix {list(at)} of the batch {lead}" if at else "the matrix"
    holds = "" if at is None or np.isfinite(x[at]).all() else "; it holds NaN or infinities"
    return LinAlgError(f"{op}: {where} {what}{holds}")


def _tried(op: str, what: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` as a reference whose LinAlgError names the first matrix of the batch that failed."""

    def reference(x: Array, *others: Array, **attrs: Any) -> Any:
        def fails(one: Array) -> bool:
            try:
                run(one, *(np.zeros((one.shape[-1], 1), x.dtype) for _ in others), **attrs)
            except np.linalg.LinAlgError:
                return True
            return False

        with np.errstate(all="ignore"):
            try:
                return run(x, *others, **attrs)
            except np.linalg.LinAlgError:
                raise _refused(op, what, fails, x) from None

    return reference


def _substituted(a: Array, b: Array) -> Array:
    """x with a x = b, of lower triangular a, by substitution."""
    n = a.shape[-1]
    if n > _BLOCK:
        h = n // 2
        first = _substituted(a[..., :h, :h], b[..., :h, :])
        rest = b[..., h:, :] - a[..., h:, :h] @ first
        return np.concatenate([first, _substituted(a[..., h:, h:], rest)], -2)
    x = np.array(b)
    for i in range(n):
        if i:
            x[..., i : i + 1, :] -= a[..., i : i + 1, :i] @ x[..., :i, :]
        x[..., i, :] /= a[..., i, i, None]
    return x


def _solve_triangular(a: Array, b: Array, *, lower: bool, transpose: bool, unit_diagonal: bool) -> Array:
    if unit_diagonal:
        a = a - np.eye(a.shape[-1], dtype=a.dtype) * (a - 1)
    elif (np.diagonal(a, axis1=-2, axis2=-1) == 0).any():
        what = "is singular: its diagonal has a zero"
        raise _refused("solve_triangular", what, lambda one: bool((np.diagonal(one) == 0).any()), a)
    if transpose:
        a, lower = np.swapaxes(a, -1, -2), not lower
    with np.errstate(all="ignore"):
        if lower:
            return _substituted(a, b)
        return _substituted(a[..., ::-1, ::-1], b[..., ::-1, :])[..., ::-1, :]


def _svd(x: Array, *, full_matrices: bool) -> tuple[Array, ...]:
    return tuple(np.linalg.svd(x, full_matrices))


def _cofactor(x: Array) -> Array:
    """det(x) x⁻ᵀ, finite for singular x too: from the SVD, with each singular value replaced by the product of the
    others."""
    u, s, vh = np.linalg.svd(x)
    n = x.shape[-1]
    others = np.where(np.eye(n, dtype=bool), 1, s[..., None, :]).prod(-1)
    return np.asarray((np.linalg.det(u) * np.linalg.det(vh))[..., None, None] * ((u * others[..., None, :]) @ vh))


def _pinv(x: Array, *, rtol: float | None) -> Array:
    eps = np.finfo(x.dtype).eps * max(x.shape[-2:]) if rtol is None else rtol
    return np.asarray(np.linalg.pinv(x, rcond=eps)) if x.size else np.zeros((*x.shape[:-2], *x.shape[:-3:-1]), x.dtype)


# -- gradients


def transposed(x: Tensor) -> Tensor:
    return apply("transpose", x, perm=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _mask(x: Tensor, values: Any) -> Tensor:
    return x.graph.constant(np.asarray(values, x.dtype.np))


def eye(x: Tensor, n: int) -> Tensor:
    """The identity matrix, repeated for each matrix of x's batch."""
    one = _mask(x, np.eye(n))
    return apply("expand", one, shape=(*x.shape[:-2], n, n)) if x.ndim > 2 else one


def triangular(a: Tensor, b: Tensor, lower: bool, transpose: bool = False, unit_diagonal: bool = False) -> Tensor:
    return apply("solve_triangular", a, b, lower=lower, transpose=transpose, unit_diagonal=unit_diagonal)


def _symmetric(x: Tensor) -> Tensor:
    return (x + transposed(x)) * 0.5


def _cholesky_vjp(node: Node, grads: Grads) -> Grads:
    d, low = grads[0], node.outputs[0]
    if d is None:
        return (None,)
    n = low.shape[-1]
    half = _mask(low, np.tril(np.ones((n, n))) - 0.5 * np.eye(n))
    inner = (transposed(low) @ d) * half
    left = triangular(low, inner, True, True)  # L⁻ᵀ Φ
    return (_symmetric(transposed(triangular(low, transposed(left), True, True))),)


def _solve_vjp(node: Node, grads: Grads) -> Grads:
    d = grads[0]
    if d is None:
        return (None, None)
    back = apply("solve", transposed(node.inputs[0]), d)
    return (-(back @ transposed(node.outputs[0])), back)


def _triangular_vjp(node: Node, grads: Grads) -> Grads:
    d, a, attrs = grads[0], node.inputs[0], node.attrs
    if d is None:
        return (None, None)
    back = apply("solve_triangular", a, d, **{**attrs, "transpose": not attrs["transpose"]})
    x = node.outputs[0]
    full = x @ transposed(back) if attrs["transpose"] else back @ transposed(x)
    n = a.shape[-1]
    part = (np.tril if attrs["lower"] else np.triu)(np.ones((n, n)))
    return (-(full * _mask(a, part - np.eye(n) if attrs["unit_diagonal"] else part)), back)


def _slogdet_vjp(node: Node, grads: Grads) -> Grads:
    d, x = grads[1], node.inputs[0]
    if d is None:
        return (None,)
    inverse = apply("solve", transposed(x), eye(x, x.shape[-1]))
    return (apply("reshape", d, shape=(*d.shape, 1, 1)) * inverse,)


def _det_vjp(node: Node, grads: Grads) -> Grads:
    d = grads[0]
    if d is None:
        return (None,)
    return (apply("reshape", d, shape=(*d.shape, 1, 1)) * apply("cofactor", node.inputs[0]),)


def _cofactor_vjp(node: Node, grads: Grads) -> Grads:
    x = node.inputs[0]
    det = apply("det", x)
    inverse = apply("solve", transposed(x), eye(x, x.shape[-1]))
    cofactors = apply("reshape", det, shape=(*det.shape, 1, 1)) * inverse
    return pullback([cofactors], grads, [x], stop=True)


def _pinv_vjp(node: Node, grads: Grads) -> Grads:
    d, x, p = grads[0], node.inputs[0], node.outputs[0]
    if d is None:
        return (None,)
    m, n = x.shape[-2:]
    pt, dt = transposed(p), transposed(d)
    left, right = eye(x, m) - x @ p, eye(x, n) - p @ x
    return (left @ dt @ p @ pt + pt @ p @ dt @ right - pt @ d @ pt,)


def _differences(w: Tensor) -> Tensor:
    """w_j - w_i, and 1 where i = j. Where two are equal, the gradient of the vectors is not finite."""
    n = w.shape[-1]
    rows, columns = (apply("reshape", w, shape=(*w.shape[:-1], *s)) for s in ((n, 1), (1, n)))
    return columns - rows + _mask(w, np.eye(n))


def _diagonal(x: Tensor) -> Tensor:
    n = x.shape[-1]
    return apply("reshape", x, shape=(*x.shape, 1)) * _mask(x, np.eye(n))


def _off_diagonal(x: Tensor) -> Tensor:
    return x * _mask(x, 1 - np.eye(x.shape[-1]))


def _eigh_vjp(node: Node, grads: Grads) -> Grads:
    dw, dv = grads
    w, v = node.outputs
    inner = None if dw is None else _diagonal(dw)
    if dv is not None:
        turned = _off_diagonal(transposed(v) @ dv) / _differences(w)
        inner = turned if inner is None else inner + turned
    return (None,) if inner is None else (_symmetric(v @ inner @ transposed(v)),)


def _svd_vjp(node: Node, grads: Grads) -> Grads:
    du, ds, dvh = grads
    u, s, vh = node.outputs
    m, n = node.inputs[0].shape[-2:]
    k = min(m, n)
    if node.attrs["full_matrices"] and m != n:
        if du is not None or dvh is not None:
            raise UnsupportedOp(
                "gradient: svd with full_matrices=True of matrices that are not square: the vectors beyond the "
                "singular values are any; use full_matrices=False"
            )
        u, vh = u[..., :k], vh[..., :k, :]
    inner = None if ds is None else _diagonal(ds)
    values = apply("reshape", s, shape=(*s.shape[:-1], 1, k))
    outer = None
    if du is not None:
        cross = transposed(u) @ du
        part = (cross - transposed(cross)) / _differences(s * s) * values
        inner = part if inner is None else inner + part
        if m > k:
            outer = ((du - u @ cross) / values) @ vh
    if dvh is not None:
        v, dv = transposed(vh), transposed(dvh)
        cross = vh @ dv
        part = apply("reshape", s, shape=(*s.shape, 1)) * ((cross - transposed(cross)) / _differences(s * s))
        inner = part if inner is None else inner + part
        if n > k:
            more = u @ transposed((dv - v @ cross) / values)
            outer = more if outer is None else outer + more
    if inner is None:
        return (None,)
    gradient = u @ inner @ vh
    return (gradient if outer is None else gradient + outer,)


def _qr_vjp(node: Node, grads: Grads) -> Grads:
    dq, dr = grads
    q, r = node.outputs
    m, n = node.inputs[0].shape[-2:]
    if dq is None and dr is None:
        return (None,)
    if q.shape[-1] > n:
        raise UnsupportedOp(
            'gradient: qr with mode="complete" of matrices with more rows than columns: the columns beyond are any; '
            'use mode="reduced"'
        )
    dq = q * 0.0 if dq is None else dq
    dr = r * 0.0 if dr is None else dr
    if m >= n:
        return (_tall(q, r, dq, dr),)
    x = node.inputs[0]
    more = dr[..., m:]
    first = _tall(q, r[..., :m], dq + x[..., m:] @ transposed(more), dr[..., :m])
    return (apply("concat", first, q @ more, axis=x.ndim - 1),)


def _tall(q: Tensor, r: Tensor, dq: Tensor, dr: Tensor) -> Tensor:
    """The gradient of the matrix q r, with square r."""
    inner = r @ transposed(dr) - transposed(dq) @ q
    n = r.shape[-1]
    low = np.tril(np.ones((n, n)))
    copied = inner * _mask(r, low) + transposed(inner * _mask(r, low - np.eye(n)))
    return transposed(triangular(r, transposed(dq + q @ copied), False))


def _eig_vjp(node: Node, grads: Grads) -> Grads:
    """The eigenvalues' gradient, Re(V⁻ᵀ diag(d̄) Vᵀ), with complex matrices as real ones of twice the size."""
    d, dv = grads
    if dv is not None:
        raise UnsupportedOp(
            "gradient: the eigenvectors that linalg.eig gives have no gradient, since their phases are any; use the "
            "eigenvalues, or linalg.eigh for symmetric matrices"
        )
    if d is None:
        return (None,)
    n = node.inputs[0].shape[-1]
    v = _as_real(node.outputs[1])
    inverse = apply("solve", v, eye(v, 2 * n))
    values = apply("reshape", d, shape=(*d.shape[:-2], n, 1, 2)) * apply(
        "reshape", _mask(d, np.eye(n)), shape=(n, n, 1)
    )
    sign = _mask(d, [1.0, -1.0])
    made = transposed(inverse) @ transposed(_as_real(values * sign)) @ transposed(v)
    return (made[..., :n, :n],)


def _as_real(pairs: Tensor) -> Tensor:
    """Complex matrices, given as pairs, as real matrices [[re, -im], [im, re]]."""
    re, im = pairs[..., 0], pairs[..., 1]
    axis = re.ndim - 1
    rows = apply("concat", re, -im, axis=axis), apply("concat", im, re, axis=axis)
    return apply("concat", *rows, axis=axis - 1)


def _lu_vjp(node: Node, grads: Grads) -> Grads:
    """dA = P L⁻ᵀ (strict lower part of Lᵀ dL + upper part of dU Uᵀ) U⁻ᵀ, of square matrices."""
    _, dl, du = grads
    p, low, up = node.outputs
    m, n = node.inputs[0].shape[-2:]
    if m != n:
        raise UnsupportedOp(f"gradient: lu of matrices of {m} x {n}; only of square ones it has a gradient")
    if dl is None and du is None:
        return (None,)
    lower = np.tril(np.ones((n, n)), -1)
    inner = _mask(p, np.zeros((n, n)))
    if dl is not None:
        inner = inner + (transposed(low) @ dl) * _mask(p, lower)
    if du is not None:
        inner = inner + (du @ transposed(up)) * _mask(p, 1 - lower)
    left = triangular(low, inner, True, True, True)
    return (p @ transposed(triangular(up, transposed(left), False)),)


# -- records


def _cost(node: Node) -> Cost:
    m, n = node.inputs[0].shape[-2:]
    return Cost(written(node), multiplications=node.inputs[0].size * min(m, n) * 10)


def _record(name: str, infer: Infer, run: Callable[..., Any], what: str, judge: str, vjp: Any) -> None:
    register_host(
        Op(name, FAMILY, infer, _tried(name, what, run), judge, vjp, batch=batching.along(), fallible=True, cost=_cost)
    )


_SAME = _like(lambda s: s)
_NUMBER = _like(lambda s: s[:-2])
_SINGULAR = "is singular"
_NO_END = "has no decomposition that LAPACK finds"


def _eig(x: Array) -> tuple[Array, ...]:
    values, vectors = np.linalg.eig(x)
    return tuple(np.stack([z.real, z.imag], -1).astype(x.dtype) for z in (values, vectors))


def _lu(x: Array) -> tuple[Array, ...]:
    """LU with partial pivoting, column by column."""
    *lead, m, n = x.shape
    k = min(m, n)
    up = x.reshape(-1, m, n).copy()
    order, batch = np.tile(np.arange(m), (len(up), 1)), np.arange(len(up))
    low = np.zeros((len(up), m, k), x.dtype)
    for i in range(k):
        pivot = i + np.argmax(np.abs(up[:, i:, i]), axis=1)
        for part in (up, low, order):
            part[batch, i], part[batch, pivot] = part[batch, pivot].copy(), part[batch, i].copy()
        head = up[:, i, i]
        factor = np.divide(up[:, i + 1 :, i], head[:, None], out=np.zeros_like(up[:, i + 1 :, i]),
                           where=head[:, None] != 0)  # fmt: skip
        low[:, i, i], low[:, i + 1 :, i] = 1, factor
        up[:, i + 1 :] -= factor[:, :, None] * up[:, i, None, :]
        up[:, i + 1 :, i] = 0
    rows = np.zeros((len(up), m, m), x.dtype)
    rows[batch[:, None], order, np.arange(m)] = 1
    return rows.reshape(*lead, m, m), low.reshape(*lead, m, k), up[:, :k].reshape(*lead, k, n)


def _cholesky(x: Array, *, upper: bool) -> Array:
    return np.asarray(np.linalg.cholesky(np.swapaxes(x, -1, -2) if upper else x))


_record("cholesky", _SAME("cholesky", True), _cholesky, "is not positive definite", "numpy.linalg.cholesky",
        _cholesky_vjp)  # fmt: skip
_record("solve", _solve_infer("solve"), np.linalg.solve, _SINGULAR, "numpy.linalg.solve", _solve_vjp)
_record("solve_triangular", _solve_infer("solve_triangular"), _solve_triangular, _SINGULAR,
        "scipy.linalg.solve_triangular", _triangular_vjp)  # fmt: skip
_record("qr", _qr_infer, lambda x, complete: tuple(np.linalg.qr(x, "complete" if complete else "reduced")), _NO_END,
        "numpy.linalg.qr", _qr_vjp)  # fmt: skip
_record("svd", _svd_infer, _svd, _NO_END, "numpy.linalg.svd", _svd_vjp)
_record("eigh", _like(lambda s: s[:-1], lambda s: s)("eigh", True),
        lambda x, upper: tuple(np.linalg.eigh(x, "U" if upper else "L")), _NO_END, "numpy.linalg.eigh",
        _eigh_vjp)  # fmt: skip
_record("slogdet", _like(lambda s: s[:-2], lambda s: s[:-2])("slogdet", True), lambda x: tuple(np.linalg.slogdet(x)),
        _NO_END, "numpy.linalg.slogdet", _slogdet_vjp)  # fmt: skip
_record("det", _NUMBER("det", True), np.linalg.det, _NO_END, "numpy.linalg.det", _det_vjp)
_record("cofactor", _SAME("cofactor", True), _cofactor, _NO_END, "numpy.linalg", _cofactor_vjp)
_record("pinv", _like(lambda s: (*s[:-2], s[-1], s[-2]))("pinv", False), _pinv, _NO_END, "numpy.linalg.pinv", _pinv_vjp)
_record("eig", _like(lambda s: (*s[:-1], 2), lambda s: (*s, 2))("eig", True), _eig, _NO_END, "numpy.linalg.eig",
        _eig_vjp)  # fmt: skip
_LU = _like(lambda s: (*s[:-1], s[-2]), lambda s: (*s[:-1], min(s[-2:])), lambda s: (*s[:-2], min(s[-2:]), s[-1]))
_record("lu", _LU("lu", False), _lu, _NO_END, "scipy.linalg.lu", _lu_vjp)
