"""Functions made of other ops against NumPy, SciPy and torch; the error function against SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import rlx
import rlx.ops as ops
from rlx.conformance.oracle import evaluate
from rlx.errors import DTypeError
from rlx.ir import Graph, Tensor
from rlx.ops.elementwise.special import erf, erfc

rng = np.random.default_rng(0)
A = rng.standard_normal((2, 3, 4))
INF = np.array([[math.inf, 1.0], [-math.inf, -math.inf], [-math.inf, 2.0], [1e300, 1e300], [-1e4, -1e4]])


def run(build: Callable[[Tensor], Any], x: np.ndarray) -> Any:
    g = Graph()
    made = build(g.input("x", x.shape, x.dtype))
    values = evaluate(g, {"x": x})
    return [values[t.id] for t in made] if isinstance(made, tuple) else values[made.id]


CASES: list[tuple[Callable[[Tensor], Tensor], np.ndarray, np.ndarray]] = [
    (lambda x: ops.squeeze(x), A[:, :1], np.squeeze(A[:, :1])),
    (lambda x: ops.squeeze(x, (0, -1)), A[:1, :, :1], A[0, :, 0]),
    (lambda x: ops.expand_dims(x, 1), A, A[:, None]),
    (lambda x: ops.unsqueeze(x, (0, -1)), A, np.expand_dims(A, (0, -1))),
    (lambda x: ops.flatten(x), A, A.ravel()),
    (lambda x: ops.flatten(x, 1), A, A.reshape(2, 12)),
    (lambda x: ops.flatten(x, 0, 1), A, A.reshape(6, 4)),
    (lambda x: ops.flatten(x), np.array(2.0), np.array([2.0])),
    (lambda x: ops.permute_dims(x, (1, 2, 0)), A, A.transpose(1, 2, 0)),
    (lambda x: ops.swapaxes(x, 0, -1), A, np.swapaxes(A, 0, -1)),
    (lambda x: ops.moveaxis(x, 0, 2), A, np.moveaxis(A, 0, 2)),
    (lambda x: ops.stack([x, x * 2], 1), A, np.stack([A, A * 2], 1)),
    (lambda x: ops.stack([x, x], -1), A, np.stack([A, A], -1)),
    (lambda x: ops.square(x), A, A * A),
    (lambda x: ops.var(x), A, np.var(A)),
    (lambda x: ops.var(x, (0, 2), True, 1), A, np.var(A, (0, 2), ddof=1, keepdims=True)),
    (lambda x: ops.var(x, 0, correction=2), A, np.full((3, 4), np.nan)),
    (lambda x: ops.std(x, 1), A + 1e4, np.std(A + 1e4, 1)),
    (lambda x: ops.any(x > 1, 1), A, (A > 1).any(1)),
    (lambda x: ops.all(x, (0, 1)), np.round(A), np.round(A).all((0, 1))),
    (lambda x: ops.any(x, 1), np.zeros((3, 0)), np.zeros(3, bool)),
    (lambda x: ops.all(x, 1), np.zeros((3, 0)), np.ones(3, bool)),
    (lambda x: ops.logsumexp(x, 1), INF, scipy.special.logsumexp(INF, 1)),
    (lambda x: ops.logsumexp(x, (0, 2), True), A, scipy.special.logsumexp(A, (0, 2), keepdims=True)),
    (lambda x: ops.logsumexp(x, 0), np.array([1.0, math.nan]), np.array(math.nan)),
    (lambda x: ops.log_softmax(x), A * 300, scipy.special.log_softmax(A * 300, -1)),
    (lambda x: ops.log_softmax(x, 0), A, scipy.special.log_softmax(A, 0)),
    (lambda x: ops.normalize(x), A, A / np.linalg.norm(A, axis=-1, keepdims=True)),
    (lambda x: ops.normalize(x), np.zeros((2, 3)), np.zeros((2, 3))),
    (lambda x: ops.zeros_like(x), A, np.zeros_like(A)),
    (lambda x: ops.ones_like(x, "i32"), A, np.ones(A.shape, np.int32)),
    (lambda x: ops.full_like(x, 2.5), A, np.full_like(A, 2.5)),
    (lambda x: ops.linear(x, np.eye(4)[:3]), A, A[..., :3]),
    (lambda x: ops.where(x > 0, 1, 2.5), A, np.where(A > 0, 1, 2.5)),
    (
        lambda x: ops.where(np.array([True, False, True, False]), x, 0),
        A,
        np.where([True, False, True, False], A, 0),
    ),
    (lambda x: ops.where(x, x, -1), np.round(A), np.where(np.round(A), np.round(A), -1)),
    (lambda x: ops.slice(x, (0, -2, 1), (2, None, 4), (1, 1, 2)), A, A[0:2, -2:, 1:4:2]),
    (lambda x: ops.broadcast_to(x, (3, 2, 3, 4)), A, np.broadcast_to(A, (3, 2, 3, 4))),
    (lambda x: ops.gather(x, [[1, -1]], axis=2), A, np.take(A, [[1, -1]], 2)),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_function_is_numpys(number: int) -> None:
    build, x, want = CASES[number]
    got = run(build, x)
    assert got.shape == want.shape
    assert got.dtype.kind == want.dtype.kind
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


def test_split() -> None:
    x = np.arange(24.0).reshape(2, 12)
    for parts, points in ((3, 3), ([1, 4, 7], [1, 5]), ([0, 12], [0])):
        for got, want in zip(
            run(lambda t, p=parts: ops.split(t, p, 1), x), np.split(x, points, 1), strict=True
        ):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mine, theirs", [(erf, math.erf), (erfc, math.erfc)])
def test_error_function_within_two_ulp(mine: Callable[..., Any], theirs: Callable[[float], float]) -> None:
    x = np.concatenate([np.linspace(-6, 6, 20001), np.logspace(-300, 0.7, 2000), -np.logspace(-20, 0.7, 500)])
    want = np.array([theirs(v) for v in x])
    # Without an 80-bit long double, rounding within the polynomials shows.
    limit = 2 if np.finfo(np.longdouble).nmant > 52 else 8
    limit += theirs is math.erfc  # the C library itself rounds its tail
    assert np.max(np.abs(mine(x) - want) / np.spacing(np.abs(want))) <= limit


def test_error_function_agrees_with_scipy() -> None:
    x = np.linspace(-6, 6, 5001)
    np.testing.assert_allclose(erf(x), scipy.special.erf(x), rtol=1e-15)
    np.testing.assert_array_equal(erf([math.nan, math.inf, -math.inf, 0.0]), [math.nan, 1, -1, 0])
    assert np.signbit(erf(np.array(-0.0)))
    assert erf(np.float32([0.5])).dtype == np.float32


@pytest.mark.parametrize("axis", [None, -1, 0, (0, 1), (2, 0), (0, 1, 2)])
def test_softmax_over_several_axes_and_chosen_elements(axis: Any) -> None:
    x = np.random.default_rng(8).standard_normal((2, 3, 4))
    chosen = np.random.default_rng(9).random((2, 3, 4)) < 0.6
    chosen[0] = False
    for where in (None, chosen, np.array([True, False, True, True])):
        e = np.exp(x) * (True if where is None else where)
        total = e.sum(axis, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            want = np.where(e > 0, e / total, 0)
            logs = np.where(e > 0, np.log(want), -np.inf)
            sums = np.log(e.sum(axis))
        np.testing.assert_allclose(rlx.softmax(x, axis, where=where), want, rtol=1e-12)
        np.testing.assert_allclose(rlx.log_softmax(x, axis, where=where), logs, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(rlx.logsumexp(x, axis, where=where), sums, rtol=1e-9, atol=1e-12)
        slope = rlx.grad(lambda x: rlx.sum(rlx.softmax(x, axis, where=where) ** 2))(x)  # noqa: B023
        assert np.isfinite(slope).all() and not slope[e == 0].any()


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 1, (0, 1)])
def test_logsumexp_with_factors_and_sign(axis: Any, keepdims: bool) -> None:
    rng = np.random.default_rng(10)
    x, b = rng.standard_normal((3, 4)) * 300, rng.standard_normal(4)
    b[1], x[:, 1] = 0, np.inf  # a factor of 0 leaves an element out
    size, sign = rlx.logsumexp(x, axis, keepdims, b=b, return_sign=True)
    scale = np.where(b == 0, -np.inf, x).max(axis, keepdims=True)
    with np.errstate(invalid="ignore"):
        total = np.where(b == 0, 0, b * np.exp(x - scale)).sum(axis, keepdims=keepdims)
    np.testing.assert_allclose(size, np.log(abs(total)) + scale.reshape(total.shape), rtol=1e-12)
    assert np.array_equal(sign, np.sign(total))
    alone = np.asarray(rlx.logsumexp(x, axis, keepdims, b=b))
    assert np.array_equal(np.isnan(alone), total < 0)
    assert float(rlx.logsumexp(np.zeros((0,)), return_sign=True)[0]) == -np.inf
    with pytest.raises(DTypeError, match="keepdims is"):
        rlx.logsumexp(x, 0, b)
