"""Sums and products that leave the range of floats midway and come back, against exact fractions; long products."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.conformance.tolerances import NORM, compare
from rlx.dtypes import as_dtype
from tests.devices import run, session_here
from tests.full import full

Array = np.ndarray[Any, Any]
# Numbers with a mantissa of two bits, so that every sum of a few of them is exact.
TOP = {"f32": 3 * 2.0**126, "f64": 3 * 2.0**1022, "bf16": 3 * 2.0**126}


@pytest.fixture(scope="module", params=["cpu", "vulkan", "cuda"])
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param)


@pytest.mark.parametrize("dtype", TOP)
@pytest.mark.parametrize("half", [2, 5, 64, 5000, 70_001])
@pytest.mark.sample(2, vulkan=2)
def test_sums(session: rlx.Session, dtype: str, half: int) -> None:
    top = TOP[dtype]
    x = np.repeat([top, -top], half).astype(as_dtype(dtype).np)
    assert run(session, rlx.sum, x) == 0
    assert run(session, rlx.mean, x) == 0
    np.testing.assert_array_equal(run(session, lambda t: rlx.sum(t, 0), np.stack([x, -x], 1)), 0)
    np.testing.assert_allclose(float(run(session, rlx.mean, np.abs(x))), float(x[0]), rtol=2e-6)
    assert run(session, rlx.sum, np.abs(x)) == np.inf
    assert run(session, rlx.sum, -np.abs(x)) == -np.inf
    running = run(session, lambda t: rlx.cumsum(t, 0), x).astype(np.float64)
    assert running[0] == running[-2] == x[0]
    assert running[-1] == 0
    assert np.all(running[1 : 2 * half - 2] == np.inf)


def test_what_is_infinite_or_no_number_stays_so(session: rlx.Session) -> None:
    x = np.ones((5, 3000), np.float32)
    x[0, 7], x[1, 8], x[2, 9], x[2, 2000], x[3, 1] = np.inf, -np.inf, np.inf, -np.inf, np.nan
    x[4, 11], x[4, 2500] = np.inf, 0.0
    with np.errstate(invalid="ignore"):
        for build, numpy in ((rlx.sum, np.sum), (rlx.mean, np.mean), (rlx.prod, np.prod)):
            np.testing.assert_array_equal(run(session, lambda t, f=build: f(t, 1), x), numpy(x, axis=1))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("down", [False, True])
@pytest.mark.sample(vulkan=2)
@pytest.mark.late("vulkan")
def test_products(session: rlx.Session, dtype: str, down: bool) -> None:
    """Rows whose products leave the range at the top or vanish, and come back."""
    rng = np.random.default_rng(5)
    for half in (2, 7, 300):
        bits = 100 if dtype == "f32" else 900
        first = (rng.uniform(1, 2, half) * 2.0**bits).astype(as_dtype(dtype).np)
        x = np.concatenate([1 / first, first] if down else [first, 1 / first])
        numbers = [float(v).as_integer_ratio() for v in x]
        want = float(Fraction(whole_product([a for a, _ in numbers]), whole_product([b for _, b in numbers])))
        rtol = 1.2e-7 if dtype == "f32" else 4e-16
        np.testing.assert_allclose(float(run(session, rlx.prod, x)), want, rtol=rtol)
        last = run(session, lambda t: rlx.cumprod(t, 0), x)[-1]
        np.testing.assert_allclose(float(last), want, rtol=rtol)


def test_a_product_that_was_denormal_on_its_way(session: rlx.Session) -> None:
    """In f64 too, which keeps few digits of denormal numbers. Beside such rows there are rows in range, and zeros."""
    row = np.array([1e-38] * 8 + [1e-18] + [1e38] * 8, np.float32)
    x = np.stack([row, row[::-1], np.ones_like(row), np.where(np.arange(17) == 16, np.float32(0), row)])
    want = [float(np.prod([Fraction(float(v)) for v in r])) for r in x]
    np.testing.assert_allclose(run(session, lambda t: rlx.prod(t, 1), x), want, rtol=1.2e-7)
    np.testing.assert_allclose(run(session, lambda t: rlx.cumprod(t, 1), x)[:, -1], want, rtol=1.2e-7)


@pytest.mark.parametrize("dtype, n", [("f32", 100_000 if full() else 20_000), ("f64", 30_000 if full() else 10_000)])
def test_long_products_stay_within_an_ulp(session: rlx.Session, dtype: str, n: int) -> None:
    """For any number of factors, and for one number many times, where all roundings of a plain product add up."""
    rng = np.random.default_rng(n)
    for x in (rng.uniform(0.7, 1.4, n), np.full(n, 1.0001)):
        factors = (x if x[0] == x[1] else x / np.exp(np.mean(np.log(x)))).astype(as_dtype(dtype).np)
        bits = 24 if dtype == "f32" else 54
        number = whole_product([int(float(v) * 2.0**bits) for v in factors])
        rest = max(0, number.bit_length() - 160)
        want = Fraction(number >> rest) * Fraction(2) ** (rest - bits * n)
        got = Fraction(float(run(session, rlx.prod, factors)))
        assert abs(float(got / want - 1)) <= (1.2e-7 if dtype == "f32" else 2.3e-16)


def whole_product(numbers: list[int]) -> int:
    """The product, by halves: multiplying one after the other would take quadratic time."""
    half = len(numbers) // 2
    return whole_product(numbers[:half]) * whole_product(numbers[half:]) if half else numbers[0]


def test_a_choice_of_order_is_allowed_where_there_is_one() -> None:
    got, want = np.array([np.nan, np.inf, 1.0], np.float32), np.array([5.0, 5.0, 1.0])
    assert compare(got, want, NORM, order_dependent=np.array([True, True, False])).ok
    assert not compare(got, want, NORM).ok
    got = np.array([2.0, np.inf, 1.0], np.float32)
    assert not compare(got, want, NORM, order_dependent=np.array([True, True, False])).ok
