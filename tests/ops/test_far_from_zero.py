"""Norms, variances and their gradients of constant rows and of rows far from 0, against exact fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.dtypes import as_dtype
from rlx.ir import Tensor
from tests.devices import run, session_on_engine
from tests.full import sampled

EPS = 1e-5
NMSE = 1e-11  # relative to the exact result
LEVELS = (1000000.125, -1e3 - 1 / 3, 1e7, 0.1)
Array = np.ndarray[Any, Any]
Build = Callable[[Tensor], Tensor]


@pytest.fixture(scope="module", params=["cpu", "vulkan", "cuda"])
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_on_engine(request.param)


def exact(x: Array) -> tuple[Array, Array]:
    """Each row less its mean, and its variance: in integers over one denominator, rounded once to f64."""
    away, spread = [], []
    for row in x.astype(np.float64).reshape(-1, x.shape[-1]):
        ratios = [v.as_integer_ratio() for v in row.tolist()]
        under = max(low for _, low in ratios)  # all are powers of two
        numbers = [high * (under // low) for high, low in ratios]
        n, total = len(numbers), sum(numbers)
        left = [n * v - total for v in numbers]
        away.append([v / (n * under) for v in left])
        spread.append(sum(v * v for v in left) / (n * (n * under) ** 2))
    return np.reshape(away, x.shape), np.reshape(spread, (*x.shape[:-1], 1))


def standard(x: Array) -> Array:
    away, spread = exact(x)
    return np.asarray(away / np.sqrt(spread + EPS))


def nmse(got: Array, want: Array) -> float:
    wide = got.astype(np.float64)
    if not np.isfinite(wide).all():
        return math.inf
    error, power = float(np.sum((wide - want) ** 2)), float(np.sum(want**2))
    return error / power if power else (math.inf if error else 0.0)


def ones(n: int) -> Array:
    return np.ones(n, np.float32)


NORMS: dict[str, tuple[Callable[[Array], Array], Callable[[int], Build]]] = {
    "layer_norm": (lambda x: x, lambda n: lambda t: rlx.layer_norm(t, ones(n), 0 * ones(n), EPS)),
    "add_layer_norm": (
        lambda x: x,
        lambda n: lambda t: rlx.add_layer_norm(t, t * 0, ones(n), 0 * ones(n), EPS)[1],
    ),
    "group_norm": (lambda x: x[None], lambda n: lambda t: rlx.group_norm(t, t.shape[1], ones(3), 0 * ones(3), EPS)),
    "layer_norm_channels": (
        lambda x: np.ascontiguousarray(x.T)[None],
        lambda n: lambda t: rlx.layer_norm_channels(t, ones(n), 0 * ones(n), EPS),
    ),
}


@pytest.mark.parametrize("n", [1, 7, 64, 1000, 9001])
@pytest.mark.parametrize("op", NORMS)
@pytest.mark.sample(3, vulkan=3)
def test_norms(session: rlx.Session, op: str, n: int) -> None:
    """Constant rows give exactly 0, others are within the tolerance of f32; rows of both kinds lie side by side."""
    place, build = NORMS[op]
    rng = np.random.default_rng(n)
    for level in LEVELS if n < 1000 else LEVELS[:1]:
        x = (rng.standard_normal((3, n)) + level).astype(np.float32)
        x[1] = level
        got = run(session, build(n), place(x))
        want = place(standard(x))
        assert nmse(got, want) <= NMSE, level
        alone = run(session, build(n), place(np.full((3, n), level, np.float32)))
        np.testing.assert_array_equal(alone, 0)


@pytest.mark.parametrize("n", [1, 7, 50_000, 300_007])
@pytest.mark.sample(2, vulkan=1)
def test_rows_of_one_number_vanish_at_every_length_and_size(session: rlx.Session, n: int) -> None:
    for level in (1000000.125, 1e-30, -3e38):
        x = np.full((3, n), level, np.float32)
        for op in ("layer_norm", "group_norm"):
            place, build = NORMS[op]
            np.testing.assert_array_equal(run(session, build(n), place(x)), 0, op)
        for spread in (rlx.var, rlx.std):
            np.testing.assert_array_equal(run(session, lambda t, of=spread: of(t, 1), x), 0)


@pytest.mark.sample(vulkan=0)
def test_a_row_that_begins_far_from_its_mean(session: rlx.Session) -> None:
    """The sums are not shifted by the first element alone: small elements keep their digits after a large first one."""
    rng = np.random.default_rng(3)
    for n in sampled((9001, 64, 1024), most=1):
        x = rng.standard_normal((3, n)).astype(np.float32)
        x[0, 0], x[1, n // 2], x[2, -1] = 3000.0, -3000.0, 3000.0
        x[:, 1:3] += 1000
        want = standard(x)
        for op, (place, build) in NORMS.items():
            assert nmse(run(session, build(n), place(x)), place(want)) <= NMSE, (op, n)


@pytest.mark.parametrize("dtype, level", [("f32", 1e6), ("f32", -1e7), ("f16", 1e3), ("bf16", 300.0), ("f64", 1e9)])
@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
@pytest.mark.sample(2, vulkan=3)
def test_variances(session: rlx.Session, dtype: str, level: float, axis: Any) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((65, 130)) * 4 + level).astype(as_dtype(dtype).np)
    rows = x.reshape(1, -1) if axis == (0, 1) else np.moveaxis(x, axis, 1)
    _, want = exact(rows)
    limit = {"f64": 1e-28, "f16": 1e-6, "bf16": 1e-4}.get(dtype, NMSE)
    for correction in (0, 1):
        n = rows.shape[1]
        scaled = np.squeeze(want, 1) * n / (n - correction)
        got = run(session, lambda t, c=correction: rlx.var(t, axis, correction=c), x)
        assert nmse(np.atleast_1d(got), scaled) <= limit
        got = run(session, lambda t, c=correction: rlx.std(t, axis, correction=c), x)
        assert nmse(np.atleast_1d(got), np.sqrt(scaled)) <= limit
    flat = np.full((3, 1000), level, as_dtype(dtype).np)
    np.testing.assert_array_equal(run(session, lambda t: rlx.var(t, axis), flat), 0)


def test_the_variance_of_numbers_whose_distance_leaves_the_range(session: rlx.Session) -> None:
    far = np.array([[3e38, -3e38, 3e38, -3e38], [1e18, -1e18, 1e18, -1e18]], np.float32)
    got = run(session, lambda t: rlx.var(t, 1), far)
    assert got[0] == np.inf
    np.testing.assert_allclose(got[1], 1e36, rtol=1e-6)


@pytest.mark.parametrize("op", [*NORMS, "var"])
def test_gradients(session: rlx.Session, op: str) -> None:
    rng, n = np.random.default_rng(2), 130
    x = (rng.standard_normal((3, n)) + 1e6).astype(np.float32)
    x[1] = 1e6 + 0.125
    d = rng.standard_normal((3, n)).astype(np.float32)
    away, spread = exact(x)
    inverse = 1 / np.sqrt(spread + EPS)
    y = away * inverse
    want = inverse * (d - d.mean(1, keepdims=True, dtype=np.float64) - y * (d * y).mean(1, keepdims=True))
    place, build = NORMS.get(op, (lambda x: x, lambda n: lambda t: rlx.var(t, 1)))
    seed = place(d)
    if op == "var":
        seed, want = d[:, 0], 2 * away / n * d[:, :1]
    got = run(session, lambda t: gradients(build(n)(t), [t], t.graph.constant(seed))[0], place(x))
    assert nmse(got, place(want)) <= NMSE
