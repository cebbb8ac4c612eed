"""rlx.random: known answers, the same numbers on every device and in every part, distributions, and bad arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy

import rlx
from rlx import random
from rlx.autodiff import gradients
from rlx.errors import DTypeError, RlxError, ShapeError
from tests.devices import run, session_here
from tests.full import full
from tests.ops.families.random import block

DEVICES = ["cpu", "vulkan", "cuda"]
KEY = np.array([0x13198A2E, -5], np.int32)
N = 5000


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param)


every_device = pytest.mark.parametrize("session", DEVICES, indirect=True)
on_cpu = pytest.mark.parametrize("session", ["cpu"], indirect=True)


def words(key: Any, numbers: Any, stream: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Both words of the blocks of these counters, unsigned, by the paper's text."""
    made = np.array([block(int(key[0]), int(key[1]), stream, int(i)) for i in numbers], np.uint64)
    return made[:, 0], made[:, 1]


# -- the generator and its keys

# threefry2x32, 20 rounds, of Random123's kat_vectors: counter, key, result.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@every_device
def test_the_published_vectors(session: rlx.Session) -> None:
    counter, key, wanted = (np.array(column, np.uint32).view(np.int32) for column in zip(*KNOWN, strict=True))
    np.testing.assert_array_equal(run(session, random.threefry2x32, key, counter), wanted)


@on_cpu
def test_the_numbers_that_jax_documents(session: rlx.Session) -> None:
    key = random.key(0)
    assert key.dtype == np.int32 and key.shape == (2,)
    made = run(session, lambda k: random.split(k), key).view(np.uint32)
    np.testing.assert_array_equal(made, [[1797259609, 2579123966], [928981903, 3453687069]])
    drawn = run(session, lambda k: random.uniform(k, (3,)), key)
    np.testing.assert_array_equal(drawn, np.array([0.947667, 0.9785799, 0.33229148], np.float32))


def test_a_seed_is_the_words_of_its_key() -> None:
    np.testing.assert_array_equal(random.key((5 << 32) + 2**32 - 1), [5, -1])
    np.testing.assert_array_equal(random.key(2**64 - 1), [-1, -1])


@every_device
def test_keys_are_values(session: rlx.Session) -> None:
    """split and fold_in of keys given in a run, of many keys at once, and of seeds."""
    keys = np.array([KEY, [3, 4], [-1, 0]], np.int32)
    data = np.array([7, -1, 2**31 - 1], np.int32)
    made = run(
        session, lambda k, i: (random.split(k, 4), random.fold_in(k, i), random.fold_in(k, 3), random.key(i)),
        keys, data,
    )  # fmt: skip
    for row, key in enumerate(keys):
        np.testing.assert_array_equal(made[0][row].view(np.uint32), np.stack(words(key, range(4)), -1))
        np.testing.assert_array_equal(
            made[1][row].view(np.uint32), np.stack(words(key, data[row : row + 1]), -1)[0]
        )
        np.testing.assert_array_equal(made[2][row], made[0][row, 3])
        np.testing.assert_array_equal(made[3][row], [0, data[row]])


# -- the same numbers everywhere


@every_device
def test_a_number_depends_on_its_key_and_its_place_alone(session: rlx.Session) -> None:
    first, second = words(KEY, range(2 * 3 * 35))
    wanted = (first ^ second).astype(np.uint32).view(np.int32)
    keys = np.array([KEY, [3, 4]], np.int32)

    def draws(k: Any, ks: Any, place: Any) -> tuple[Any, ...]:
        parts = [random.bits(k, (70,), offset=start) for start in (0, 70, 140)]
        return (
            random.bits(k, (2, 3, 35)), random.bits(k, 210) + 0, *parts, random.bits(k, (10, 7), offset=place),
            random.bits(ks, (210,)), random.bits(ks, (5,), offset=rlx.ops.concat([place.reshape(1)] * 2)),
        )  # fmt: skip

    made = run(session, draws, KEY, keys, np.int32(140))
    np.testing.assert_array_equal(made[0].ravel(), wanted)
    np.testing.assert_array_equal(made[1], wanted)
    np.testing.assert_array_equal(np.concatenate(made[2:5]), wanted)
    np.testing.assert_array_equal(made[5].ravel(), wanted[140:])
    np.testing.assert_array_equal(made[6][0], wanted)
    np.testing.assert_array_equal(made[6][1], run(session, lambda k: random.bits(k, 210), keys[1]))
    np.testing.assert_array_equal(made[7], made[6][:, 140:145])


@every_device
def test_uniform_and_integers_are_equal_to_the_bit(session: rlx.Session) -> None:
    first, second = words(KEY, range(N))
    u = ((first ^ second) >> np.uint64(9)).astype(np.float32) * np.float32(2.0**-23)
    made = run(
        session,
        lambda k: (random.uniform(k, N), random.uniform(k, N, -3, 0.1), random.bernoulli(k, 0.3, N),
                   *(random.uniform(k, N, dtype=dtype) for dtype in ("f64", "f16", "bf16"))),
        KEY,
    )  # fmt: skip
    low, high = np.float32(-3), np.float32(0.1)
    np.testing.assert_array_equal(made[0], u)
    np.testing.assert_array_equal(made[1], low + u * (high - low))
    np.testing.assert_array_equal(made[2], u < np.float32(0.3))
    wide = ((first << np.uint64(32)) | second) >> np.uint64(12)
    np.testing.assert_array_equal(made[3], wide.astype(np.float64) * 2.0**-52)
    for half in made[4:]:
        rounded = u.astype(half.dtype)
        np.testing.assert_array_equal(half, np.where(rounded == 1, np.zeros_like(rounded), rounded))


BOUNDS = [
    (0, 1, "i32"), (-7, 12, "i32"), (0, 3_000_000_000 - 2**31, "i32"), (-(2**31), 2**31, "i32"),
    (-(2**31), 2**31 - 1, "i32"), (0, 256, "u8"), (-128, 128, "i8"), (2**40, 2**40 + 2**32, "i64"),
    (-5, 2**31 + 9, "i64"), (np.int8(-100), np.int8(100), "i8"),
]  # fmt: skip


@every_device
def test_randint_is_the_upper_part_of_a_product(session: rlx.Session) -> None:
    first, second = words(KEY, range(N))
    draws = [int(a) << 32 | int(b) for a, b in zip(first, second, strict=True)]
    made = run(session, lambda k: tuple(random.randint(k, N, *bounds) for bounds in BOUNDS), KEY)
    for (low, high, dtype), got in zip(BOUNDS, made, strict=True):
        assert got.dtype == rlx.ops.random.draws.as_dtype(dtype).np
        wanted = [int(low) + (v * (int(high) - int(low)) >> 64) for v in draws]
        np.testing.assert_array_equal(got, np.array(wanted, got.dtype), f"{low} {high} {dtype}")


@every_device
def test_bounds_and_probabilities_may_be_tensors(session: rlx.Session) -> None:
    low, high = (
        np.array([[0.0], [5.0], [2.0], [np.nan]], np.float32),
        np.array([[1.0], [5.0], [-1.0], [3.0]], np.float32),
    )
    start, end = np.array([[-5], [3], [9], [0]], np.int32), np.array([[5], [3], [1], [2**31 - 1]], np.int32)
    p = np.array([[0.25], [-1.0], [np.nan], [2.0]], np.float32)
    drawn, whole, hit, plain, first = run(
        session,
        lambda k, a, b, i, j, q: (
            random.uniform(k, (4, 40), a, b), random.randint(k, (4, 40), i, j), random.bernoulli(k, q, (4, 40)),
            random.uniform(k, (4, 40)), random.randint(k, (4, 40), -5, 5),
        ),
        KEY, low, high, start, end, p,
    )  # fmt: skip
    np.testing.assert_array_equal(drawn[0], plain[0])
    assert (drawn[1] == 5).all() and (drawn[2] == 2).all() and np.isnan(drawn[3]).all()
    np.testing.assert_array_equal(whole[0], first[0])
    assert (whole[1] == 3).all() and (whole[2] == 9).all() and (whole[3] >= 0).all()
    np.testing.assert_array_equal(hit[0], plain[0] < 0.25)
    assert not hit[1:3].any() and hit[3].all()


@every_device
def test_permutations_are_those_of_sorting_by_random_words(session: rlx.Session) -> None:
    x = np.arange(5 * 40, dtype=np.float32).reshape(5, 40)
    order, long, rows, columns, apart = run(
        session,
        lambda k, x: (random.permutation(k, 40), random.permutation(k, 3000), random.permutation(k, x),
                      random.permutation(k, x, axis=1), random.permutation(k, x, axis=1, independent=True)),
        KEY, x,
    )  # fmt: skip
    np.testing.assert_array_equal(order, _shuffled(KEY, 40, rounds=1))
    np.testing.assert_array_equal(long, _shuffled(KEY, 3000, rounds=2))
    np.testing.assert_array_equal(rows, x[_shuffled(KEY, 5, rounds=1)])
    np.testing.assert_array_equal(columns, x[:, order])
    np.testing.assert_array_equal(np.sort(apart, axis=1), x)
    assert len({tuple(row - row.min()) for row in apart}) == 5


def test_a_permutation_of_an_array_that_is_no_argument() -> None:
    x = np.arange(12.0).reshape(4, 3)
    found = rlx.jit(lambda k: random.permutation(k, x), device="cpu")(KEY)
    np.testing.assert_array_equal(found, x[_shuffled(KEY, 4, rounds=1)])


def _shuffled(key: Any, n: int, rounds: int) -> np.ndarray:
    """jax.random.permutation: a stable sort by new words in each round."""
    order = np.arange(n)
    for _ in range(rounds):
        key, drawn = (
            np.array(pair, np.uint32).view(np.int32) for pair in zip(*words(key, range(2)), strict=True)
        )
        first, second = words(drawn, range(n))
        order = order[np.argsort(first ^ second, kind="stable")]
    return order


@every_device
def test_normal_is_within_4_ulp_of_its_formula(session: rlx.Session) -> None:
    single, half, double = run(
        session, lambda k: (random.normal(k, N), random.normal(k, N, "bf16"), random.normal(k, N, "f64")), KEY
    )
    first, second = words(KEY, range(N))
    u = ((first >> np.uint64(8)).astype(np.float64) + 1) * 2.0**-24
    r = (second.astype(np.uint32).view(np.int32) >> 8).astype(np.float64) * 2.0**-23
    exact = np.sqrt(-2 * np.log(u)) * np.sin(np.pi / 2 * r)
    assert np.max(np.abs(single - exact) / np.spacing(np.abs(exact).astype(np.float32))) <= 4
    np.testing.assert_array_equal(half, single.astype(half.dtype))
    long = np.longdouble
    if np.finfo(long).nmant < 60:
        return
    u = ((((first << np.uint64(32)) | second) >> np.uint64(12)).astype(long) + 1) * long(2) ** -52
    first, second = words(KEY, range(N), stream=1)
    r = ((first << np.uint64(32)) | second).view(np.int64) >> 11
    turn = r.astype(long) * long(2) ** -52 * (long(np.pi / 2) + long(6.123233995736766e-17))
    exact = np.sqrt(-2 * np.log(u)) * np.sin(turn)
    assert np.max(np.abs(double - exact) / np.spacing(np.abs(exact).astype(np.float64))) <= 4


@every_device
def test_draws_fuse_with_what_uses_them(session: rlx.Session) -> None:
    g = rlx.Graph("dropped")
    x = g.input("x", (64, 33), "f32")
    g.output("y", rlx.ops.relu(random.dropout(x, 0.5, g.input("key", (2,), "i32"))))
    with session.compile(g) as compiled:
        assert [d.op for d in compiled.report() if d.how == "native" and d.op != "slice"] == ["fused"]
        made = compiled.run({"x": np.ones((64, 33), np.float32), "key": KEY})["y"]
        other = compiled.run({"x": np.ones((64, 33), np.float32), "key": KEY + 1})["y"]
    first, second = words(KEY, range(64 * 33))
    kept = ((first ^ second) >> np.uint64(31)).astype(bool).reshape(64, 33)
    np.testing.assert_array_equal(made, np.where(kept, np.float32(2), 0))
    assert (made != other).mean() > 0.4


@every_device
def test_keys_pass_through_loops(session: rlx.Session) -> None:
    x = np.ones((3, 8), np.float32)

    def step(k: Any, row: Any) -> tuple[Any, Any]:
        keys = random.split(k)
        return keys[0], random.dropout(row, 0.5, keys[1])

    last, rows = run(session, lambda k, x: rlx.scan(step, k, x), KEY, x)
    key = KEY
    for row in rows:
        key, drawn = (np.array(pair, np.uint32).view(np.int32) for pair in zip(*words(key, range(2)), strict=True))
        first, second = words(drawn, range(8))
        np.testing.assert_array_equal(row, np.where((first ^ second) >> np.uint64(31), np.float32(2), 0))
    np.testing.assert_array_equal(last, key)


@every_device
def test_keys_may_be_constants(session: rlx.Session) -> None:
    x = np.ones(9, np.float32)
    made = run(session, lambda x: (random.dropout(x, 0.5, KEY), random.bits(x.graph.constant(KEY), 3)), x)
    first, second = words(KEY, range(9))
    np.testing.assert_array_equal(made[0], np.where((first ^ second) >> np.uint64(31), np.float32(2), 0))
    np.testing.assert_array_equal(made[1].view(np.uint32), (first ^ second)[:3])


def test_numbers_of_a_traced_call_are_values() -> None:
    """Seeds, bounds, rates and offsets as Python numbers of a call: another number gives what a constant would."""

    def draws(x: Any, seed: Any, low: Any, high: Any, rate: Any, start: Any) -> tuple[Any, ...]:
        k = random.key(seed)
        return (
            random.uniform(k, 4, low, high, "f64"), random.randint(k, 4, seed, 90), random.bernoulli(k, rate, 4),
            random.dropout(x, rate, k), random.bits(random.fold_in(k, start), 4, offset=start),
        )  # fmt: skip

    x = np.ones(30, np.float32)
    traced = rlx.jit(draws, device="cpu")
    for numbers in ((3, 0.1, 2, 0.3, 5), (4, -1, 2.5, 0.75, 1)):
        wanted = rlx.jit(lambda x, numbers=numbers: draws(x + 0, *_constants(x, numbers)), device="cpu")(x)
        for got, want in zip(traced(x, *numbers), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def _constants(x: Any, numbers: tuple[Any, ...]) -> list[Any]:
    return [x.graph.constant(np.int32(numbers[0])), *numbers[1:]]


# -- distributions, on the CPU: other devices give the same numbers

DISTRIBUTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "uniform": (lambda k: random.uniform(k, 200_000), lambda: scipy.stats.uniform),
    "uniform-5to7": (lambda k: random.uniform(k, 200_000, 5, 7), lambda: scipy.stats.uniform(5, 2)),
    "uniform-f64": (lambda k: random.uniform(k, 200_000, dtype="f64"), lambda: scipy.stats.uniform),
    "normal": (lambda k: random.normal(k, 200_000), lambda: scipy.stats.norm),
    "normal-f64": (lambda k: random.normal(k, 200_000, "f64"), lambda: scipy.stats.norm),
    "gumbel": (lambda k: random.gumbel(k, 200_000), lambda: scipy.stats.gumbel_r),
    "exponential": (lambda k: random.exponential(k, 200_000), lambda: scipy.stats.expon),
    "laplace": (lambda k: random.laplace(k, 200_000), lambda: scipy.stats.laplace),
}
_FAR_TAILS = {"gumbel": 0.12, "exponential": 0.6, "laplace": 0.6}  # whose kurtosis few draws decide


@on_cpu
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(session: rlx.Session, name: str) -> None:
    draw, expected = DISTRIBUTIONS[name]
    distribution = expected()
    for seed in range(3):
        x = np.asarray(run(session, draw, random.key(seed)), np.float64)
        assert scipy.stats.kstest(x, distribution.cdf).pvalue > 1e-3
        moments = distribution.stats(moments="mvsk")
        got = x.mean(), x.var(), scipy.stats.skew(x), scipy.stats.kurtosis(x)
        np.testing.assert_allclose(got, moments, atol=_FAR_TAILS.get(name, 0.04))


def test_vectors_have_the_mean_and_covariance_that_were_asked_for() -> None:
    cov = np.array([[[2.0, 0.5], [0.5, 1.0]], [[1.0, -0.9], [-0.9, 1.0]]])
    mean = np.array([1.0, -3.0])
    x = np.asarray(random.multivariate_normal(random.key(3), mean, cov, (40_000, 2), "f64"))
    assert x.shape == (40_000, 2, 2)
    for k in range(2):
        np.testing.assert_allclose(x[:, k].mean(0), mean, atol=0.03)
        np.testing.assert_allclose(np.cov(x[:, k].T), cov[k], atol=0.05)
    with pytest.raises(ShapeError, match=r"expected \(..., n\) and \(..., n, n\)"):
        random.multivariate_normal(random.key(3), mean, cov[:, :1])


@on_cpu
def test_keys_are_independent(session: rlx.Session) -> None:
    """Numbers of sibling keys, of a key and its children, and of neighbouring seeds are not correlated, nor bits."""
    made = run(
        session,
        lambda k, other: tuple(random.normal(keys, 50_000) for keys in (random.split(k, 6), k, other)),
        random.key(11), random.key(12),
    )  # fmt: skip
    rows = np.stack([*made[0], *made[1:]])
    limit = 5 / np.sqrt(50_000)
    assert np.abs(np.corrcoef(rows) - np.eye(len(rows))).max() < limit
    assert max(abs(np.corrcoef(row[:-lag], row[lag:])[0, 1]) for row in rows for lag in (1, 2, 7, 64)) < limit
    drawn = run(session, lambda k: random.bits(k, 100_000), random.key(3)).view(np.uint32)
    bits = (drawn[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    assert np.abs(bits.mean(0) - 0.5).max() < 5 / np.sqrt(4 * 100_000)
    assert np.abs(np.corrcoef(bits.T) - np.eye(32)).max() < 5 / np.sqrt(100_000)


@on_cpu
def test_integers_and_orders_are_equally_likely(session: rlx.Session) -> None:
    made = run(session, lambda k: random.randint(k, 120_000, -3, 9), random.key(1))
    assert scipy.stats.chisquare(np.bincount(made + 3, minlength=12)).pvalue > 1e-3
    g = rlx.Graph("orders")
    tries = 600 if full() else 120
    keys = random.split(g.input("key", (2,), "i32"), tries)
    for i in range(tries):
        g.output(f"y{i}", random.permutation(keys[i], 3))
    with session.compile(g) as compiled:
        found = compiled.run({"key": random.key(5)})
    seen = np.unique(np.array(list(found.values())) @ [9, 3, 1], return_counts=True)[1]
    assert len(seen) == 6 and scipy.stats.chisquare(seen).pvalue > 1e-3
    hits = run(session, lambda k: random.bernoulli(k, 0.3, 100_000), random.key(2))
    assert scipy.stats.binomtest(int(hits.sum()), 100_000, 0.3).pvalue > 1e-3


# -- edges


@every_device
@pytest.mark.parametrize(
    "low, high, dtype",
    [(1.0, 1 + 2.0**-23, "f32"), (1.0, 1 + 2.0**-22, "f32"), (-1.0, 1.0, "f32"), (1e8, 1e8 + 16, "f32"),
     (-1e38, 1e38, "f32"), (0.0, 1.0, "f16"), (1.0, 1.004, "f16"), (0.0, 1.0, "bf16"), (1.0, 1.02, "bf16"),
     (1.0, 1 + 2.0**-52, "f64"), (-1e300, 1e300, "f64")],
)  # fmt: skip
def test_the_upper_bound_is_never_reached(session: rlx.Session, low: float, high: float, dtype: str) -> None:
    made = run(session, lambda k: random.uniform(k, 20_000, low, high, dtype), KEY)
    start, end = (float(np.asarray(v).astype(made.dtype)) for v in (low, high))
    wide = made.astype(np.float64)
    assert start <= wide.min() <= wide.max() < end
    if end - start < 1e-6:
        assert set(wide.tolist()) <= {start, (start + end) / 2}


@every_device
def test_empty_draws_and_few(session: rlx.Session) -> None:
    made = run(
        session,
        lambda k, x: (random.uniform(k), random.normal(k, (0, 3)), random.bits(k, (2, 0)), random.split(k, 0),
                      random.permutation(k, 0), random.permutation(k, 1), random.randint(k, (), 4, 5),
                      random.dropout(x, 0.5, k), random.permutation(k, x)),
        KEY, np.empty((0, 4), np.float32),
    )  # fmt: skip
    assert [m.shape for m in made] == [(), (0, 3), (2, 0), (0, 2), (0,), (1,), (), (0, 4), (0, 4)]
    assert made[5] == [0] and made[6] == 4


@every_device
def test_dropout_and_its_gradient(session: rlx.Session) -> None:
    x = np.linspace(-2, 2, 6 * 50, dtype=np.float32).reshape(6, 50)
    first, second = words(KEY, range(300))
    u = ((first ^ second) >> np.uint64(9)).astype(np.float64).reshape(6, 50) * 2.0**-23

    def both(x: Any, k: Any, rate: Any) -> tuple[Any, ...]:
        fixed, given = random.dropout(x, 0.4, k), random.dropout(x, rate, k)
        return fixed, *gradients(fixed, [x], x), given, *gradients(given, [x, rate], x)

    for rate in (0.4, 0.0, 1.0, -1.0, 7.0, np.nan):
        fixed, d_fixed, given, d_given, d_rate = run(session, both, x, KEY, np.float32(rate))
        np.testing.assert_allclose(fixed, np.where(u >= 0.4, x / 0.6, 0), rtol=1e-6)
        np.testing.assert_array_equal(d_fixed, fixed)
        part = min(max(rate, 0), 1) if rate == rate else 1.0
        wanted = np.where(u >= np.float32(part), x / (1 - part if part < 1 else 1), 0)
        np.testing.assert_allclose(given, wanted, rtol=1e-6)
        np.testing.assert_allclose(d_given, wanted, rtol=1e-6)
        assert d_rate == 0
    for rate in (0, 1, 0.0, 1.0):
        np.testing.assert_array_equal(
            run(session, lambda x, k, rate=rate: random.dropout(x, rate, k), x, KEY), x * (1 - rate)
        )
    keys = np.array([KEY, [1, 2], [3, 4], KEY, [5, 6], [7, 8]], np.int32)
    halves = run(session, lambda x, k: random.dropout(x, 0.5, k), x.astype(np.float16), keys)
    assert halves.dtype == np.float16
    np.testing.assert_array_equal(halves[0], np.where(u[0] >= 0.5, x[0].astype(np.float16) * 2, 0))
    np.testing.assert_array_equal(halves[0] == 0, halves[3] == 0)


@on_cpu
def test_uniform_is_differentiable_in_its_bounds(session: rlx.Session) -> None:
    def both(k: Any, low: Any, high: Any) -> tuple[Any, ...]:
        made = random.uniform(k, 100, low, high)
        return made, *gradients(rlx.ops.sum(made), [low, high])

    made, low, high = run(session, both, KEY, np.float32(1), np.float32(3))
    np.testing.assert_allclose(low + high, 100, rtol=1e-5)
    np.testing.assert_allclose(high, ((made - 1) / 2).sum(), rtol=1e-5)


F, S = DTypeError, ShapeError
BAD: list[tuple[str, Callable[[Any, Any], Any], type[RlxError], str]] = [
    ("key shape", lambda k, x: random.bits(x[0], 3), F, "expected i32"),
    ("key words", lambda k, x: random.bits(rlx.ops.concat([k, k]), 3), S, r"expected \(\.\.\., 2\)"),
    ("key dtype", lambda k, x: random.split(rlx.ops.cast(k, "i64")), F, "random.key"),
    ("seed", lambda k, x: random.key(-1), S, "2\\*\\*64"),
    ("seed type", lambda k, x: random.key(1.5), S, "expected an int"),  # type: ignore[arg-type]
    ("negative shape", lambda k, x: random.uniform(k, (3, -1)), S, "negative"),
    ("too many", lambda k, x: random.bits(k, (1 << 16, 1 << 15)), S, "2\\*\\*31"),
    ("offset", lambda k, x: random.bits(k, 4, offset=2**32 - 3), S, "offset"),
    ("offset type", lambda k, x: random.bits(k, 4, offset=x), F, "offset"),
    ("split", lambda k, x: random.split(k, -2), S, "negative"),
    ("fold_in", lambda k, x: random.fold_in(k, 1 << 32), S, "32 bits"),
    ("fold_in dtype", lambda k, x: random.fold_in(k, x), F, "expected i32"),
    ("uniform order", lambda k, x: random.uniform(k, 3, 1, 1), S, "low < high"),
    ("uniform halves", lambda k, x: random.uniform(k, 3, 1, 1.0001, "f16"), S, "low < high"),
    ("uniform nan", lambda k, x: random.uniform(k, 3, 0, float("nan")), S, "low < high"),
    ("uniform far", lambda k, x: random.uniform(k, 3, -3e38, 3e38), S, "farther apart"),
    ("uniform dtype", lambda k, x: random.uniform(k, 3, dtype="i32"), F, "expected a float"),
    ("uniform shape", lambda k, x: random.uniform(k, 3, x, 9), S, "broadcast"),
    ("normal dtype", lambda k, x: random.normal(k, 3, "i8"), F, "expected a float"),
    ("randint order", lambda k, x: random.randint(k, 3, 4, 4), S, "low < high"),
    ("randint range", lambda k, x: random.randint(k, 3, 0, 300, "u8"), S, "from 0 to 255"),
    ("randint far", lambda k, x: random.randint(k, 3, 0, 2**33, "i64"), S, "2\\*\\*32 apart"),
    ("randint wrapped", lambda k, x: random.randint(k, 3, np.int64(-(2**63)), np.int64(2**63 - 1), "i64"), S, "apart"),
    ("randint dtype", lambda k, x: random.randint(k, 3, 0, 5, "f32"), F, "i32, i64, u8 or i8"),
    ("randint bound", lambda k, x: random.randint(k, 3, 0, 5.5), F, "expected an int"),
    ("bernoulli", lambda k, x: random.bernoulli(k, 1.5), S, "from 0 to 1"),
    ("bernoulli nan", lambda k, x: random.bernoulli(k, float("nan")), S, "from 0 to 1"),
    ("rate", lambda k, x: random.dropout(x, -0.1, k), S, "from 0 to 1"),
    ("rates", lambda k, x: random.dropout(x, x, k), S, "one number"),
    ("rates of an array", lambda k, x: random.dropout(x, np.array([0.1, 0.2]), k), S, "one number"),
    ("rate of a string", lambda k, x: random.dropout(x, "half", k), F, "expected numbers"),
    ("dropout dtype", lambda k, x: random.dropout(k, 0.1, k), F, "expected a float"),
    ("dropout keys", lambda k, x: random.dropout(x, 0.1, random.split(k, 3)), S, "the keys' axes"),
    ("permutation axis", lambda k, x: random.permutation(k, x, axis=2), S, "out of range"),
    ("permutation keys", lambda k, x: random.permutation(random.split(k), 4), S, "one key"),
    ("permutation of", lambda k, x: random.permutation(k, 2.5), F, "tensor or an int"),  # type: ignore[arg-type]
    ("permutation size", lambda k, x: random.permutation(k, -1), S, "negative"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, words", [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_arguments(call: Callable[[Any, Any], Any], error: type[RlxError], words: str) -> None:
    g = rlx.Graph("bad")
    with pytest.raises(error, match=words):
        call(g.input("key", (2,), "i32"), g.input("x", (2, 3), "f32"))
