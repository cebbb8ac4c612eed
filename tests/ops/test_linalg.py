"""rlx.linalg beside NumPy: values, gradients by differences in f64, second ones, jvp, vmap, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import linalg
from rlx.errors import DTypeError, LinAlgError, ShapeError, UnsupportedOp
from tests.devices import session_here

RNG = np.random.default_rng(7)
Array = np.ndarray


def _square(*shape: int) -> Array:
    x = RNG.standard_normal(shape)
    return x + 2.0 * np.sqrt(shape[-1]) * np.eye(shape[-1])


def _normal(*shape: int) -> Array:
    return RNG.standard_normal(shape)


def _apart(m: int, n: int) -> Array:
    """A matrix whose singular values are far from each other."""
    return np.diag([3.0, 2, 1])[:m, :n] + 0.2 * _normal(m, n)


def _definite(*shape: int) -> Array:
    x = RNG.standard_normal(shape)
    return x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])


def _pairs_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose complex results are shown as real and imaginary parts."""

    def call(*args: Any) -> list[Any]:
        given = function(*args)
        parts = list(given) if isinstance(given, tuple) else [given]
        return [f(z) for z in parts for f in (rlx.real, rlx.imag)]

    return call


_TURNING = np.array([[1.0, 3.0, 0.2], [-3.0, 2.0, 0.1], [0.3, -0.2, 7.0]])
# scipy.linalg.expm of SciPy 1.17.1.
_EXPM = np.array([
    [-2.536359785639877, 0.528573859425653, 36.95836855311087],
    [-0.8120165177865734, -4.249786221570791, 0.055411483095637336],
    [59.68919270508011, -8.614102717018884, 1105.6478114909646],
])


VALUES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Array, ...]]] = {
    "cholesky": (linalg.cholesky, np.linalg.cholesky, (_definite(2, 3, 5, 5),)),
    "cholesky upper": (lambda a: linalg.cholesky(a, upper=True), lambda a: np.linalg.cholesky(a, upper=True),
                       (_definite(4, 4),)),
    "solve": (linalg.solve, np.linalg.solve, (_square(3, 4, 4), _normal(4, 2))),
    "solve of a vector": (linalg.solve, np.linalg.solve, (_square(2, 3, 3), _normal(3))),
    "inv": (linalg.inv, np.linalg.inv, (_square(2, 6, 6),)),
    "det": (linalg.det, np.linalg.det, (_normal(3, 2, 4, 4),)),
    "slogdet": (linalg.slogdet, np.linalg.slogdet, (_normal(3, 4, 4),)),
    "qr": (linalg.qr, np.linalg.qr, (_normal(2, 5, 3),)),
    "qr of wide ones": (linalg.qr, np.linalg.qr, (_normal(3, 5),)),
    "complete qr": (lambda a: linalg.qr(a, "complete"), lambda a: np.linalg.qr(a, "complete"),
                    (_normal(5, 3),)),
    "r": (lambda a: linalg.qr(a, "r"), lambda a: np.linalg.qr(a, "r"), (_normal(5, 3),)),
    "svd": (linalg.svd, np.linalg.svd, (_normal(2, 3, 5),)),
    "small svd": (lambda a: linalg.svd(a, False), lambda a: np.linalg.svd(a, False), (_normal(6, 3),)),
    "svdvals": (linalg.svdvals, np.linalg.svdvals, (_normal(4, 3, 3),)),
    "eigh": (linalg.eigh, np.linalg.eigh, (_definite(2, 4, 4),)),
    "eigh of the upper": (lambda a: linalg.eigh(a, "U"), lambda a: np.linalg.eigh(a, "U"), (_square(4, 4),)),
    "pinv": (linalg.pinv, np.linalg.pinv, (_normal(2, 3, 5),)),
    "pinv with rcond": (lambda a: linalg.pinv(a, 0.3), lambda a: np.linalg.pinv(a, 0.3), (_square(5, 4, 4),)),
    "matrix_power": (lambda a: linalg.matrix_power(a, 5), lambda a: np.linalg.matrix_power(a, 5), (_square(2, 3, 3),)),
    "matrix_power -2": (lambda a: linalg.matrix_power(a, -2), lambda a: np.linalg.matrix_power(a, -2),
                        (_square(3, 3),)),
    "matrix_power 0": (lambda a: linalg.matrix_power(a, 0), lambda a: np.linalg.matrix_power(a, 0),
                       (_square(2, 3, 3),)),
    "matrix_rank": (linalg.matrix_rank, np.linalg.matrix_rank, (np.diag([1.0, 2, 0, 1e-18]),)),
    "lstsq": (linalg.lstsq, lambda a, b: np.linalg.lstsq(a, b), (_normal(6, 3), _normal(6, 2))),
    "eig": (_pairs_of(linalg.eig), _pairs_of(np.linalg.eig), (_square(2, 4, 4) + np.diag([0.0, 3, 6, 9]),)),
    "eigvals": (_pairs_of(linalg.eigvals), _pairs_of(np.linalg.eigvals), (_TURNING,)),
    "expm": (linalg.expm, lambda a: _EXPM, (_TURNING,)),
    "expm of zeros": (linalg.expm, lambda a: np.eye(3), (np.zeros((3, 3)),)),
    "diagonal": (linalg.diagonal, np.linalg.diagonal, (_normal(2, 3, 4),)),
    "trace": (linalg.trace, np.linalg.trace, (_normal(2, 3, 4),)),
    "cond": (linalg.cond, np.linalg.cond, (_square(2, 4, 4),)),
    "cond 1": (lambda a: linalg.cond(a, 1), lambda a: np.linalg.cond(a, 1), (_square(2, 4, 4),)),
    "multi_dot": (lambda *a: linalg.multi_dot(a), lambda *a: np.linalg.multi_dot(a),
                  tuple(RNG.standard_normal(s) for s in ((4,), (4, 9), (9, 2), (2, 5)))),
    "norm": (linalg.norm, np.linalg.norm, (_normal(2, 3, 4),)),
    **{f"norm {o}": (lambda a, o=o: linalg.norm(a, o, 1), lambda a, o=o: np.linalg.norm(a, o, 1),
                     (_normal(2, 5, 4),)) for o in (None, 0, 1, 2, 3.5, -1, np.inf, -np.inf)},
    **{f"norm {o!r} of matrices": (lambda a, o=o: linalg.norm(a, o, (0, 2), True),
                                   lambda a, o=o: np.linalg.norm(a, o, (0, 2), True), (_normal(5, 3, 4),))
       for o in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)},
}  # fmt: skip


def _parts(x: Any) -> list[Array]:
    return [np.asarray(t) for t in x] if isinstance(x, tuple | list) else [np.asarray(x)]


@pytest.mark.parametrize("name", VALUES)
def test_values_are_numpys(name: str) -> None:
    ours, numpys, args = VALUES[name]
    for dtype, limit in ((np.float64, 1e-11), (np.float32, 2e-4)):
        given = [a.astype(dtype) for a in args]
        want = _parts(numpys(*args))
        for got in (_parts(ours(*given)), _parts(rlx.jit(ours, device="cpu")(*given))):
            for a, b in zip(got, want, strict=True):
                assert a.shape == b.shape and (a.dtype == dtype or b.dtype.kind in "iu")
                np.testing.assert_allclose(a, b, rtol=limit, atol=limit * np.abs(b).max(initial=0))


def test_triangular_systems_read_one_triangle() -> None:
    for n in (1, 5, 70):  # rows one by one, and in halves
        a, b = RNG.standard_normal((2, n, n)) / n + 2 * np.eye(n), RNG.standard_normal((2, n, 3))
        for lower in (True, False):
            part = (np.tril if lower else np.triu)(a)
            np.testing.assert_allclose(
                linalg.solve_triangular(a, b, lower=lower), np.linalg.solve(part, b), rtol=1e-9
            )
            turned = np.swapaxes(part, -1, -2)
            np.testing.assert_allclose(
                linalg.solve_triangular(a, b, "T", lower), np.linalg.solve(turned, b), rtol=1e-9
            )
            unit = part - np.eye(n) * part + np.eye(n)
            np.testing.assert_allclose(
                linalg.solve_triangular(a, b[0, :, 0], 0, lower, True),
                np.linalg.solve(unit, b[0, :, :1])[..., 0],
                rtol=1e-9,
            )
    spd = _definite(4, 4)
    for lower in (True, False):
        c = np.asarray(linalg.cholesky(spd, upper=not lower))
        want = np.linalg.solve(spd, np.ones(4))
        np.testing.assert_allclose(linalg.cho_solve((c, lower), np.ones(4)), want, rtol=1e-9)


def _sym(x: Any) -> Any:
    return (x + rlx.swapaxes(x, -1, -2)) * 0.5


def _weighed(*ts: Any) -> Any:
    """A number that depends on each element of the results in its own way."""
    total: Any = 0.0
    for k, t in enumerate(ts):
        w = np.cos(np.arange(t.size, dtype=np.float64) * (k + 1.3)).reshape(t.shape)
        total = total + rlx.sum(t * w)
    return total


LOSSES: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "cholesky": (lambda a: _weighed(linalg.cholesky(_sym(a))), (_definite(2, 3, 3),)),
    "solve": (lambda a, b: _weighed(linalg.solve(a, b)), (_square(2, 3, 3), _normal(3, 2))),
    "triangular": (lambda a, b: _weighed(linalg.solve_triangular(a, b, 1, True)),
                   (_square(3, 3), _normal(3))),
    "unit triangular": (lambda a, b: _weighed(linalg.solve_triangular(a, b, 0, False, True)),
                        (_square(3, 3), _normal(3, 2))),
    "inv": (lambda a: _weighed(linalg.inv(a)), (_square(3, 3),)),
    "det": (lambda a: _weighed(linalg.det(a)), (_normal(2, 3, 3),)),
    "slogdet": (lambda a: _weighed(linalg.slogdet(a)[1]), (_square(2, 3, 3),)),
    "qr": (lambda a: _weighed(*linalg.qr(a)), (_normal(4, 3),)),
    "wide qr": (lambda a: _weighed(*linalg.qr(a)), (_normal(2, 4) + np.eye(2, 4),)),
    "svd": (lambda a: _weighed(*linalg.svd(a, False)), (_apart(3, 2),)),
    "wide svd": (lambda a: _weighed(*linalg.svd(a, False)), (_apart(2, 3),)),
    "svdvals": (lambda a: _weighed(linalg.svdvals(a)), (_apart(2, 3),)),
    "eigh": (lambda a: _weighed(*linalg.eigh(_sym(a))), (np.diag([3.0, 2, 0.5]) + 0.2 * _normal(3, 3),)),
    "pinv": (lambda a: _weighed(linalg.pinv(a)), (_normal(4, 2) + np.eye(4, 2),)),
    "lstsq": (lambda a, b: _weighed(*linalg.lstsq(a, b)[:2]), (_normal(4, 2), _normal(4, 2))),
    "lu": (lambda a: _weighed(*linalg.lu(a)[1:]), (_square(3, 3),)),
    "expm": (lambda a: _weighed(linalg.expm(a * 4.0)), (_normal(2, 2),)),
    "norm": (lambda a: linalg.norm(a) + linalg.norm(a, 3, 0)[0] + linalg.norm(a, "nuc"), (_normal(3, 2),)),
}  # fmt: skip


def _differences(f: Callable[[Array], float], x: Array, h: float) -> Array:
    made = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        e = np.zeros_like(x)
        e[at] = h
        made[at] = (f(x - 2 * e) - 8 * f(x - e) + 8 * f(x + e) - f(x + 2 * e)) / (12 * h)
    return made


@pytest.mark.late(name=("wide qr", "wide svd", "svdvals", "unit triangular", "lstsq", "slogdet", "inv"))
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_differences(name: str) -> None:
    """First ones, tangents, and second ones by differences of the first along a direction."""
    loss, args = LOSSES[name]
    every = tuple(range(len(args)))
    value, slopes = rlx.jit(loss, device="cpu"), rlx.grad(loss, every, device="cpu")
    found = slopes(*args)
    for i, x in enumerate(args):
        want = _differences(lambda v, i=i: float(value(*args[:i], v, *args[i + 1 :])), x, 1e-3)
        np.testing.assert_allclose(found[i], want, rtol=1e-8, atol=1e-8)
    along = tuple(RNG.standard_normal(x.shape) for x in args)
    tangent = float(rlx.jvp(loss, args, along)[1])
    assert tangent == pytest.approx(sum(float(np.sum(g * d)) for g, d in zip(found, along, strict=True)), rel=1e-9)

    def first(a: Any) -> Any:
        return rlx.grad(loss)(a, *args[1:])

    h = 1e-3
    moved = [np.asarray(slopes(args[0] + k * h * along[0], *args[1:])[0]) for k in (-2, -1, 1, 2)]
    want = (moved[0] - 8 * moved[1] + 8 * moved[2] - moved[3]) / (12 * h)
    np.testing.assert_allclose(rlx.jvp(first, args[:1], along[:1])[1], want, rtol=1e-6, atol=1e-6)


def test_eigenvalues_have_a_gradient_and_vectors_none() -> None:
    def loss(a: Any) -> Any:
        values = linalg.eigvals(a)
        return _weighed(rlx.abs(values), rlx.real(values), rlx.imag(values) ** 2)

    value = rlx.jit(loss, device="cpu")
    want = _differences(lambda v: float(value(v)), _TURNING, 1e-3)
    np.testing.assert_allclose(rlx.grad(loss, device="cpu")(_TURNING), want, rtol=1e-8, atol=1e-8)
    with pytest.raises(UnsupportedOp, match="no gradient, since their phases"):
        rlx.grad(lambda a: rlx.sum(rlx.real(linalg.eig(a).eigenvectors)), device="cpu")(_TURNING)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 3, 3)])
def test_lu_is_a_product_of_triangles_with_the_greatest_pivots(shape: tuple[int, ...]) -> None:
    a = _normal(*shape)
    p, low, up = (np.asarray(t) for t in linalg.lu(a))
    k = min(shape[-2:])
    np.testing.assert_allclose(p @ low @ up, a, rtol=1e-13, atol=1e-13)
    np.testing.assert_array_equal(np.sort(p, -1)[..., -1], 1)
    np.testing.assert_array_equal(p.sum(-1), 1)
    np.testing.assert_array_equal(np.diagonal(low, axis1=-2, axis2=-1), 1)
    np.testing.assert_array_equal(np.triu(low, 1), 0)
    np.testing.assert_array_equal(np.tril(up, -1), 0)
    assert np.abs(low).max() <= 1 and low.shape[-1] == up.shape[-2] == k


def test_vmap_is_the_batch() -> None:
    a, b = _square(3, 2, 4, 4), _normal(3, 4)
    got = rlx.vmap(rlx.vmap(linalg.solve, (0, None)), (0, 0))(a, b)
    np.testing.assert_allclose(got, np.linalg.solve(a, b[:, None, :, None])[..., 0], rtol=1e-10)
    each = rlx.vmap(rlx.grad(lambda m: linalg.slogdet(m)[1]))(a[:, 0])
    np.testing.assert_allclose(each, np.swapaxes(np.linalg.inv(a[:, 0]), -1, -2), rtol=1e-10)


def test_the_determinant_of_a_singular_matrix_has_a_gradient() -> None:
    np.testing.assert_allclose(rlx.grad(linalg.det)(np.array([[1.0, 2], [2, 4]])), [[4.0, -2], [-2, 1]], atol=1e-12)
    one = np.eye(2)
    want = np.einsum("ij,kl->ijkl", one, one) - np.einsum("il,jk->ijkl", one, one)
    np.testing.assert_allclose(rlx.hessian(linalg.det)(one), want, atol=1e-12)


def test_gradients_where_norms_are_zero() -> None:
    zero = np.zeros((2, 2))
    for loss in (linalg.norm, lambda x: rlx.sum(linalg.norm(x, 3, 0))):
        np.testing.assert_array_equal(rlx.grad(loss)(zero), zero)
    assert float(linalg.norm(np.full(2, 3e38, np.float32) / 2)) == pytest.approx(3e38 / 2**0.5, rel=1e-6)


def test_values_that_cannot_be_taken_are_typed_errors() -> None:
    batch = np.stack([np.eye(3), -np.eye(3)])
    with pytest.raises(LinAlgError, match=r"cholesky: matrix \[1\] of the batch \(2,\) is not positive definite"):
        linalg.cholesky(batch)
    assert np.isnan(linalg.cholesky(np.full((2, 2), np.nan))).any()  # as NumPy
    for fn in (linalg.inv, lambda a: linalg.solve(a, np.ones(2)), lambda a: linalg.solve_triangular(a, np.ones(2))):
        with pytest.raises(LinAlgError, match="singular"):
            fn(np.zeros((2, 2)))
    step = rlx.jit(lambda a: rlx.sum(linalg.inv(a * 2)) + 1, device="cpu")
    with pytest.raises(LinAlgError, match="solve: the matrix is singular"):
        step(np.ones((2, 2)))
    assert float(step(np.eye(2))) == 2.0  # the next run is a run as any
    with pytest.raises(LinAlgError, match=r"svd: .*holds NaN"):
        linalg.svd(np.full((2, 2), np.nan))
    kept = rlx.jit(lambda p: rlx.cond(p, lambda: linalg.inv(np.zeros((2, 2))), lambda: np.eye(2)), device="cpu")
    np.testing.assert_array_equal(kept(np.False_), np.eye(2))  # the branch that would fail does not run


def test_shapes_and_dtypes_that_do_not_fit_are_typed_errors() -> None:
    power: Any = lambda a: linalg.matrix_power(a, 2)  # noqa: E731
    for fn in (linalg.cholesky, linalg.inv, linalg.det, linalg.slogdet, linalg.eigh, power):
        with pytest.raises(ShapeError, match=r"f64\[2,3\].*square"):
            fn(np.ones((2, 3)))
    with pytest.raises(ShapeError, match="as many rows"):
        linalg.solve(np.eye(3), np.ones(4))
    with pytest.raises(ShapeError, match="expected matrices"):
        linalg.svd(np.ones(3))
    with pytest.raises(ShapeError, match="mode is 'raw'"):
        linalg.qr(np.eye(2), "raw")
    with pytest.raises(DTypeError, match=r"f16.*cast"):
        linalg.inv(np.eye(2, dtype=np.float16))
    assert np.asarray(linalg.inv(np.array([[2, 0], [0, 4]]))).dtype == np.float32
    for loss in (lambda a: rlx.sum(linalg.svd(a)[0]), lambda a: rlx.sum(linalg.qr(a, "complete")[0])):
        with pytest.raises(UnsupportedOp, match="any; use"):
            rlx.grad(loss)(np.ones((4, 2)))


def test_a_saved_program_has_them(tmp_path: Any) -> None:
    f = rlx.jit(lambda a: linalg.cholesky(a), device="cpu")
    a = _definite(3, 3)
    f.save(tmp_path / "c.rlx", a)
    np.testing.assert_array_equal(rlx.load_program(tmp_path / "c.rlx").run({"a": a})["y0"], f(a))


@pytest.mark.parametrize("device, said", [("cpu", "reference:cholesky"), ("vulkan", "host:cholesky")])
def test_the_report_says_that_the_host_computes(device: str, said: str) -> None:
    """And a run in which it meets a matrix that it cannot take raises, while the next one is a run as any."""
    g = rlx.Graph()
    g.output("y", linalg.cholesky(g.input("x", (2, 2))) + 1)
    with session_here(device).compile(g) as program:
        assert said in str(program.report())
        for _ in range(2):
            with pytest.raises(LinAlgError, match="not positive definite"):
                program.run({"x": -np.eye(2, dtype=np.float32)})
            np.testing.assert_array_equal(program.run({"x": 4 * np.eye(2, dtype=np.float32)})["y"], [[3, 1], [1, 3]])


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0), (3, 0), (0, 3), (2, 0, 3), (0,)])
@pytest.mark.parametrize("order", [None, 1, 2, np.inf, "fro", "nuc", 0, 3, np.int64(1), np.float32(3)])
def test_norms_of_nothing_are_numpys(shape: tuple[int, ...], order: Any) -> None:
    x = np.zeros(shape)
    for axis in (None, 0, -1, (-2, -1), (0, 1)):
        for keepdims in (False, True):
            try:
                want = np.linalg.norm(x, order, axis, keepdims)
            except ValueError:
                with pytest.raises((ShapeError, DTypeError)):
                    linalg.norm(x, order, axis, keepdims)
            else:
                got = np.asarray(linalg.norm(x, order, axis, keepdims))
                assert got.shape == want.shape and np.array_equal(got, want), (axis, keepdims)


def test_a_rank_takes_a_tolerance_for_each_matrix() -> None:
    x = np.stack([np.diag([3.0, 1.0, 1e-2]), np.diag([30.0, 10.0, 0.0]), np.diag([5.0, 1e-3, 1e-4])])
    for of in ({"tol": np.array([0.1, 20.0, 1e-5])}, {"rtol": np.array([0.1, 0.5, 1e-5])}, {"tol": 0.5}, {}):
        assert np.array_equal(linalg.matrix_rank(x, **of), np.linalg.matrix_rank(x, **of)), of
    for vector in ([1.0, 0.0], [0.0, 0.0], 3.0, 0.0, []):
        assert int(linalg.matrix_rank(vector)) == np.linalg.matrix_rank(vector)
    assert int(linalg.matrix_rank(np.zeros((0, 3)))) == 0


def test_least_squares_of_a_deficient_matrix_with_the_old_rcond() -> None:
    x = np.array([[1.0, 2, 1], [1, 2, 1], [1, 2, 1], [1, 2, 1]])
    got, want = linalg.lstsq(x, np.arange(4.0), -1), np.linalg.lstsq(x, np.arange(4.0), -1)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-12)
    assert int(got[2]) == want[2] == 1
    assert np.asarray(linalg.lstsq(np.zeros((3, 0)), np.ones(3))[0]).shape == (0,)


def test_powers_and_chains_of_integers_stay_integers() -> None:
    steps = np.array([[1, 1], [1, 0]])
    assert np.array_equal(linalg.matrix_power(steps, 80), np.linalg.matrix_power(steps, 80))
    big = np.array([[2**30, 1], [1, 1]])
    assert np.array_equal(linalg.multi_dot([big, big.T, steps]), np.linalg.multi_dot([big, big.T, steps]))
    half = np.eye(2, dtype=np.float16) * 3
    assert np.asarray(linalg.matrix_power(half, 2)).dtype == np.asarray(linalg.norm(half)).dtype == np.float16
    assert float(linalg.norm(np.full(4, 60000, np.float16) / 4)) == 30000


def test_right_sides_in_lists() -> None:
    a = np.array([[2.0, 1.0], [1.0, 3.0]])
    for b in ([np.array([1.0, 2.0]), np.array([3.0, 4.0])], [1.0, 2.0], (1, 2), ((1, 2), (3, 4))):
        np.testing.assert_allclose(linalg.solve(a, b), np.linalg.solve(a, np.asarray(b)))
    assert np.asarray(linalg.solve(np.zeros((0, 0)), [])).shape == (0,)
    assert np.asarray(linalg.expm(np.zeros((0, 0)))).shape == (0, 0)
    with pytest.raises(ShapeError, match="at least one element"):
        linalg.cond(np.zeros((2, 0, 0)), "fro")
