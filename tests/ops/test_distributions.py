"""Draws of gamma, poisson and what follows from these: their distributions by SciPy, keys, gradients, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import rlx
from rlx import random
from rlx.errors import DTypeError, ShapeError, UnsupportedOp

KEY = random.key(3)
N = 4000


@pytest.mark.parametrize("draw, wanted", [
    (lambda: random.loggamma(KEY, 0.05, (N,)), stats.loggamma(0.05)),
    (lambda: random.gamma(KEY, 500.0, (N,), "f64"), stats.gamma(500.0)),
    (lambda: random.beta(KEY, 0.3, 2.0, (N,)), stats.beta(0.3, 2.0)),
    (lambda: random.dirichlet(KEY, np.array([0.5, 1.0, 2.0]), (N,))[:, 0], stats.beta(0.5, 3.0)),
    (lambda: random.chisquare(KEY, 3.0, (N,)), stats.chi2(3)), (lambda: random.t(KEY, 2.5, (N,)), stats.t(2.5)),
    (lambda: random.logistic(KEY, N), stats.logistic), (lambda: random.cauchy(KEY, N), stats.cauchy),
    (lambda: random.lognormal(KEY, 0.7, N), stats.lognorm(0.7)),
    (lambda: random.pareto(KEY, 1.5, N), stats.pareto(1.5)),
    (lambda: random.rayleigh(KEY, 2.0, N), stats.rayleigh(scale=2.0)), (lambda: random.maxwell(KEY, N), stats.maxwell),
    (lambda: random.weibull_min(KEY, 2.0, 0.7, N), stats.weibull_min(0.7, scale=2.0)),
    (lambda: random.gumbel(KEY, N, "f64"), stats.gumbel_r), (lambda: random.wald(KEY, 2.0, N), stats.invgauss(2.0)),
    (lambda: random.wald(KEY, 3000.0, N), stats.invgauss(3000.0)),
    (lambda: random.triangular(KEY, -1.0, 0.5, 3.0, N), stats.triang(0.375, -1, 4)),
])  # fmt: skip
def test_numbers_have_their_distribution(draw: Callable[[], Any], wanted: Any) -> None:
    assert stats.kstest(np.asarray(draw(), np.float64), wanted.cdf).pvalue > 0.01


def test_poisson_has_its_probabilities() -> None:
    means = np.array([0.3, 9.9, 10.0, 40.0, 1e4], np.float32)
    draws = np.asarray(random.poisson(KEY, means[:, None], (5, N)))
    assert draws.dtype == np.int32
    for lam, x in zip(means.tolist(), draws, strict=True):
        low, high = stats.poisson(lam).ppf([0.01, 0.99])
        for edge in np.unique(np.round(np.linspace(low, high, 10))):
            share = stats.poisson(lam).cdf(edge)
            assert abs(np.sum(x <= edge) - N * share) < 4 * np.sqrt(N * share * (1 - share))


def _is_binomial(x: Any, n: float, p: float) -> None:
    wanted = stats.binom(n, p)
    for edge in np.unique(np.round(np.linspace(*wanted.ppf([0.01, 0.99]), 10))):
        share = wanted.cdf(edge)
        assert abs(np.sum(x <= edge) - N * share) <= 4 * np.sqrt(N * share * (1 - share)), (n, p, edge)


def test_binomial_has_its_probabilities() -> None:
    """By waiting times and by rejection, and where p is above 1/2; at the ends nothing is left to chance."""
    sizes = [1, 12, 19, 40, 1000, 1000, 3e6, 9, 50]
    cases = np.stack([sizes, [0.5, 0.9, 0.52, 0.25, 0.004, 0.4, 0.7, 0, 1]], 1)
    n, p = cases.astype(np.float32).T[..., None]
    draws = np.asarray(random.binomial(KEY, n, p, (len(cases), N)))
    assert draws.dtype == np.float32 and (draws == np.floor(draws)).all()
    for (trials, chance), x in zip(cases.tolist(), draws, strict=True):
        _is_binomial(x, trials, float(np.float32(chance)))
    odd = np.array([-1.0, 2.5, np.nan, 3.0, 3.0]), np.array([0.5, 0.5, 0.5, 1.5, np.nan])
    assert np.isnan(random.binomial(KEY, *odd)).all()
    assert np.asarray(random.binomial(KEY, *odd, dtype="i32")).tolist() == [-1] * 5


def test_multinomial_counts_all_trials() -> None:
    p = np.array([0.4, 0.6, 0.0, 0.2, 0.8], np.float32)  # which need not add to 1
    x = np.asarray(random.multinomial(KEY, 30, p, shape=(N,), dtype="i32"))
    assert x.shape == (N, 5) and x.dtype == np.int32 and (x.sum(-1) == 30).all() and not x[:, 2].any()
    for i in (0, 1, 4):
        _is_binomial(x[:, i], 30, float(p[i]) / 2)
    assert abs(np.cov(x[:, 0], x[:, 4])[0, 1] + 30 * 0.2 * 0.4) < 0.2
    several = random.multinomial(KEY, np.array([3.0, 0.0]), np.array([[1.0, 0.0], [0.5, 0.5]]))
    assert np.asarray(several).tolist() == [[3, 0], [0, 0]]
    assert np.isnan(random.multinomial(KEY, 3, np.zeros(2))).all()


@pytest.mark.parametrize("n, m", [(4, 4), (5, 2), (2, 5), (3, 0)])
def test_orthogonal_matrices(n: int, m: int) -> None:
    q = np.asarray(random.orthogonal(KEY, n, (200,), "f64", m))
    assert q.shape == (200, n, m)
    product = np.swapaxes(q, 1, 2) @ q if n >= m else q @ np.swapaxes(q, 1, 2)
    np.testing.assert_allclose(product, np.broadcast_to(np.eye(min(n, m)), product.shape), atol=1e-12)
    assert not q.size or abs(q[:, 0, 0].mean()) < 4 / np.sqrt(200 * max(n, m))  # either sign is as likely


def test_geometric_and_signs() -> None:
    x = np.asarray(random.geometric(KEY, 0.3, N))
    assert x.min() == 1 and abs(x.mean() - 1 / 0.3) < 4 * np.sqrt(0.7) / 0.3 / np.sqrt(N)
    assert np.all(np.asarray(random.geometric(KEY, 1.0, 9)) == 1)
    signs = np.asarray(random.rademacher(KEY, N, "f32"))
    np.testing.assert_array_equal(signs, 2 * np.asarray(random.bernoulli(KEY, 0.5, N)).astype(np.float32) - 1)


def test_parameters_that_are_none_give_nan() -> None:
    np.testing.assert_array_equal(np.isnan(random.gamma(KEY, np.array([-1.0, np.nan, 3.0, 0.0]))), [1, 1, 0, 1])
    assert np.asarray(random.poisson(KEY, np.array([-1.0, np.nan, 0.0]))).tolist() == [-1, -1, 0]


def test_a_key_of_each_example_draws_what_it_draws_alone() -> None:
    keys, a = np.asarray(random.split(KEY, 3)), np.array([0.5, 1.0, 20.0], np.float32)
    for draw in (random.gamma, random.poisson, lambda k, x: random.binomial(k, 30.0, x / 40)):
        alone = [np.asarray(draw(k, x)) for k, x in zip(keys, a, strict=True)]
        np.testing.assert_allclose(rlx.vmap(draw)(keys, a), alone, rtol=1e-6)


def test_gradients() -> None:
    z = np.log(np.asarray(random.lognormal(KEY, 1.0, 5)))
    slope = rlx.grad(lambda s: rlx.sum(random.lognormal(KEY, s, 5)))(0.5)
    np.testing.assert_allclose(slope, np.sum(z * np.exp(0.5 * z)), rtol=1e-5)
    with pytest.raises(UnsupportedOp, match=r"random\.gamma: its numbers have no gradient"):
        rlx.grad(lambda a: rlx.sum(random.gamma(KEY, a, 3)))(2.0)
    with pytest.raises(UnsupportedOp, match=r"random\.beta: its numbers have no gradient"):
        rlx.jvp(lambda a: random.beta(KEY, a, 1.0, 3), (2.0,), (1.0,))
    x = np.ones(3, np.float32)
    slope = rlx.grad(lambda x: rlx.sum(x * random.gamma(KEY, 2.0, 3)))(x)
    np.testing.assert_allclose(slope, random.gamma(KEY, 2.0, 3), rtol=1e-6)


@pytest.mark.parametrize("call, error, text", [
    (lambda: random.gamma(KEY, -1.0), ShapeError, "a is -1.0; expected a number above 0"),
    (lambda: random.poisson(KEY, -1.0), ShapeError, "expected a number of at least 0"),
    (lambda: random.geometric(KEY, 1.5), ShapeError, "expected a probability above 0"),
    (lambda: random.gamma(KEY, np.ones(3), (2,)), ShapeError, "expected what broadcasts|do not broadcast"),
    (lambda: random.gamma(random.split(KEY), 1.0), ShapeError, "expected one key"),
    (lambda: random.dirichlet(KEY, 1.0), ShapeError, "a number for each part"),
    (lambda: random.poisson(KEY, 2.0, dtype="f32"), DTypeError, "expected i32 or i64"),
    (lambda: random.rademacher(KEY, 3, "u8"), DTypeError, "expected a signed integer or a float"),
    (lambda: random.binomial(KEY, -1, 0.5), ShapeError, "n is -1; expected a number from 0 on"),
    (lambda: random.binomial(KEY, 3, 1.5), ShapeError, "p is 1.5; expected a number from 0 to 1"),
    (lambda: random.binomial(KEY, 3, 0.5, dtype="f16"), DTypeError, "expected f32, f64, i32 or i64"),
    (lambda: random.multinomial(KEY, 3, 0.5), ShapeError, "a probability for each of k classes"),
    (lambda: random.multinomial(KEY, np.ones(3), np.ones((2, 4))), ShapeError, "multinomial"),
    (lambda: random.orthogonal(KEY, -1), ShapeError, "expected ints from 0 on"),
    (lambda: random.wald(KEY, 0.0), ShapeError, "mean is 0.0; expected a number above 0"),
    (lambda: rlx.grad(lambda p: rlx.sum(random.binomial(KEY, 9.0, p, 3)))(0.5), UnsupportedOp, "no gradient"),
])  # fmt: skip
def test_draws_that_cannot_be_are_refused(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
