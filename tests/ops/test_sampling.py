"""rlx.sample: the same ids on every device, the distributions that its filters leave, odd rows, and bad arguments."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy

import rlx
from rlx import random
from rlx.errors import DTypeError, RlxError, ShapeError
from tests.devices import run, session_here
from tests.ops.families.random import block, gumbel_of

KEY = np.array([77, -1234567], np.int32)
ROWS, TOKENS = 2000, 65


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param)


every_device = pytest.mark.parametrize("session", ["cpu", "vulkan", "cuda"], indirect=True)
on_cpu = pytest.mark.parametrize("session", ["cpu"], indirect=True)


def _logits(rows: int = ROWS, tokens: int = TOKENS) -> np.ndarray:
    """Rows of different sharpness, some with equal logits, some with tokens that are forbidden."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((rows, tokens)) * rng.uniform(0.1, 6, (rows, 1))
    x[1::5] = np.round(x[1::5])
    x[2::5][rng.random(x[2::5].shape) < 0.3] = -np.inf
    return x.astype(np.float32)


def _parameters(rows: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(6)
    return {
        "temperature": np.where(rng.random(rows) < 0.05, 0, rng.uniform(0.2, 3, rows)).astype(np.float32),
        "top_k": rng.integers(0, 40, rows).astype(np.int32),
        "top_p": rng.uniform(0.05, 1.05, rows).astype(np.float32),
        "min_p": np.where(rng.random(rows) < 0.5, 0, rng.uniform(0, 0.3, rows)).astype(np.float32),
        "repetition_penalty": rng.uniform(0.8, 2, rows).astype(np.float32),
        "previous": rng.integers(-3, TOKENS + 3, (rows, 9)).astype(np.int32),
        "previous_count": rng.integers(0, 12, rows).astype(np.int32),
        "frequency_penalty": rng.uniform(-0.5, 2, rows).astype(np.float32),
        "presence_penalty": rng.uniform(-0.5, 2, rows).astype(np.float32),
        "logit_bias": np.where(rng.random((rows, TOKENS)) < 0.9, 0, rng.uniform(-4, 4, (rows, TOKENS))).astype(
            np.float32
        ),
    }


def _noise(key: Any, position: int, tokens: int) -> np.ndarray:
    """Gumbel noise of a row's tokens, by the paper's text."""
    folded = block(int(key[0]), int(key[1]), 0, position)
    pairs = (block(*folded, 0, token) for token in range(tokens))
    return gumbel_of([x ^ y for x, y in pairs]).astype(np.float64)


def _penalized(x: np.ndarray, p: dict[str, Any], row: int) -> np.ndarray:
    x = x.astype(np.float64)
    counts = Counter(int(t) for t in p["previous"][row][: p["previous_count"][row]] if 0 <= t < x.size)
    for token in counts:
        x[token] = (
            x[token] / p["repetition_penalty"][row]
            if x[token] > 0
            else x[token] * p["repetition_penalty"][row]
        )
    x += p["logit_bias"][row]
    for token, count in counts.items():
        x[token] -= p["frequency_penalty"][row] * count + p["presence_penalty"][row]
    return x


def _kept(x: np.ndarray, heat: float, k: int, p: float, least: float) -> tuple[np.ndarray, float]:
    """The probabilities that the filters leave, in float64; and how near the nearest decision is to another."""
    order = np.argsort(-x, kind="stable")
    k = k if k >= 1 else x.size
    odds = np.zeros(x.size)
    odds[order[:k]] = np.exp((x[order[:k]] - x.max()) / heat)
    share = odds / odds.sum()
    before = np.cumsum(share[order]) - share[order]
    near = np.abs(before[1:] - p).min(initial=1.0) if p < 1 else 1.0
    if p < 1:
        odds[order[1:][before[1:] >= p]] = 0
    near = min(near, np.abs(odds - least).min()) if least else near
    return np.where(odds >= least, odds, 0), near


def _wanted(x: np.ndarray, key: Any, position: int, p: dict[str, Any], row: int) -> tuple[int, bool]:
    """The id by float64; and whether rounding could change it."""
    x = _penalized(x, p, row)
    heat = float(p["temperature"][row])
    if heat == 0:
        two = np.sort(x)[-2:]
        return int(np.argmax(x)), 0 < two[1] - two[0] < 1e-5
    odds, near = _kept(x, heat, int(p["top_k"][row]), float(p["top_p"][row]), float(p["min_p"][row]))
    with np.errstate(divide="ignore"):
        score = np.log(odds) + _noise(key, position, x.size)
    two = np.sort(score)[-2:]
    return int(np.argmax(score)), near < 1e-5 or two[1] - two[0] < 1e-4


def _everything(logits: Any, keys: Any, position: Any, *parameters: Any) -> Any:
    return rlx.ops.sample(logits, keys, position, **dict(zip(_parameters(1), parameters, strict=True)))


@every_device
@pytest.mark.late("vulkan")
def test_ids_by_definition(session: rlx.Session) -> None:
    """All filters at once, each row with its own parameters, key and position, against float64."""
    x, p = _logits(300), _parameters(300)
    rng = np.random.default_rng(8)
    keys = rng.integers(-(1 << 31), 1 << 31, (300, 2)).astype(np.int32)
    positions = rng.integers(0, 5000, 300).astype(np.int32)
    ids = run(session, _everything, x, keys, positions, *p.values())
    assert ids.dtype == np.int32 and ids.shape == (300,)
    close = 0
    for row in range(300):
        wanted, near = _wanted(x[row], keys[row], int(positions[row]), p, row)
        close += near
        assert near or ids[row] == wanted, row
    assert close < 15


# CRC-32 of the ids of thousands of rows, near decisions included: every device gives these.
CHOICES: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "plain": (lambda x, k: rlx.ops.sample(x, k, 3), 3654837653),
    "top_k": (lambda x, k: rlx.ops.sample(x, k, 3, temperature=0.7, top_k=20), 1713545483),
    "top_p": (lambda x, k: rlx.ops.sample(x, k, 3, temperature=1.7, top_p=0.9), 666276462),
    "min_p": (lambda x, k: rlx.ops.sample(x, k, 3, min_p=0.05), 2405074226),
    "both": (lambda x, k: rlx.ops.sample(x, k, 3, top_k=30, top_p=0.8), 306190110),
}


@every_device
@pytest.mark.late("vulkan")
def test_ids_are_the_same_everywhere(session: rlx.Session) -> None:
    x, p = _logits(), _parameters()
    made = run(session, lambda x, k: tuple(choice(x, k) for choice, _ in CHOICES.values()), x, KEY)
    found = {name: zlib.crc32(ids.tobytes()) for name, ids in zip(CHOICES, made, strict=True)}
    assert found == {name: crc for name, (_, crc) in CHOICES.items()}
    ids = run(session, _everything, x, np.tile(KEY, (ROWS, 1)), np.arange(ROWS, dtype=np.int32), *p.values())
    assert zlib.crc32(ids.tobytes()) == 3474283457
    halves = run(session, lambda x, k: rlx.ops.sample(x, k, 1, top_p=0.95), x.astype(np.float16), KEY)
    assert zlib.crc32(halves.tobytes()) == 4292011596


@every_device
@pytest.mark.sample(vulkan=0)
def test_a_row_does_not_depend_on_its_batch(session: rlx.Session) -> None:
    x = _logits(12)

    def parts(x: Any, k: Any) -> tuple[Any, ...]:
        keys = random.split(k, 12)
        draw = lambda x, k: rlx.ops.sample(x, k, 9, top_p=0.9)  # noqa: E731
        whole, own = draw(x, k), draw(x, keys)
        return whole, own, rlx.ops.concat([draw(x[7:], keys[7:]), draw(x[:7], keys[:7])]), draw(x[0], keys[0])

    whole, own, turned, first = run(session, parts, x, KEY)
    np.testing.assert_array_equal(own, whole)
    np.testing.assert_array_equal(np.roll(turned, 7), whole)
    # A row alone, of a key of its own, is row 0 of that key.
    alone = run(session, lambda x, k: rlx.ops.sample(x, random.fold_in(k, 0)[None], 9, top_p=0.9), x[:1], run(
        session, lambda k: random.split(k, 12)[0], KEY))  # fmt: skip
    assert first.shape == () and first == alone[0]


@every_device
@pytest.mark.sample(vulkan=0)
def test_filters_agree_whichever_way_they_are_given(session: rlx.Session) -> None:
    """Numbers and tensors, and filters that keep everything, choose the same ids."""
    x = _logits(200)
    number, ints = np.float32, np.int32

    def choices(x: Any, k: Any, t: Any, n: Any, p: Any, m: Any, one: Any, none: Any) -> tuple[Any, ...]:
        def draw(**given: Any) -> Any:
            return rlx.ops.sample(x, k, 2, **given)

        return (
            draw(temperature=0.5, top_k=9, top_p=0.7, min_p=0.02), draw(temperature=t, top_k=n, top_p=p, min_p=m),
            draw(), draw(temperature=one, top_k=TOKENS, top_p=1.0, min_p=0.0), draw(top_p=one), draw(top_k=none),
        )  # fmt: skip

    made = run(session, choices, x, KEY, number(0.5), ints(9), number(0.7), number(0.02), number(1), ints(0))
    np.testing.assert_array_equal(made[0], made[1])
    for other in made[3:]:
        np.testing.assert_array_equal(made[2], other)
    greedy = run(
        session,
        lambda x, k, zero, p: (rlx.ops.sample(x, k, temperature=0), rlx.ops.sample(x, k, temperature=zero, top_p=p),
                               rlx.ops.sample(x, k, top_p=0.0), rlx.ops.sample(x, k, top_k=1)),
        x, KEY, number(0), number(0.5),
    )  # fmt: skip
    for ids in greedy:
        np.testing.assert_array_equal(ids, np.argmax(x, -1))


@on_cpu
@pytest.mark.parametrize(
    "given",
    [{}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.75}, {"min_p": 0.15},
     {"temperature": 1.5, "top_k": 9, "top_p": 0.8}],
    ids=str,
)  # fmt: skip
def test_distribution(session: rlx.Session, given: dict[str, float]) -> None:
    x = np.array([0.3, 2.0, -1.0, 1.2, 0.0, -4.0, 1.9, 0.7, -0.2, 1.0, -30.0, 0.5], np.float32)
    n = 40_000
    ids = run(
        session,
        lambda x, k: rlx.ops.sample(rlx.ops.broadcast_to(x, (n, x.size)), k, **given),
        x,
        random.key(4),
    )
    odds, near = _kept(
        x.astype(np.float64), given.get("temperature", 1.0), int(given.get("top_k", 0)), given.get("top_p", 1.0),
        given.get("min_p", 0.0),
    )  # fmt: skip
    assert near > 1e-3 and set(np.unique(ids)) <= set(np.flatnonzero(odds))
    likely = odds / odds.sum() * n > 5
    seen, wanted = np.bincount(ids, minlength=x.size)[likely], odds[likely] / odds[likely].sum()
    assert scipy.stats.chisquare(seen, wanted * seen.sum()).pvalue > 1e-3


@on_cpu
def test_positions_are_independent(session: rlx.Session) -> None:
    n = 20_000
    positions = np.arange(n, dtype=np.int32)
    ids = run(
        session, lambda x, k, at: rlx.ops.sample(rlx.ops.broadcast_to(x, (n, 4)), rlx.ops.broadcast_to(k, (n, 2)), at),
        np.zeros(4, np.float32), KEY, positions,
    )  # fmt: skip
    pairs = np.bincount(ids[:-1] * 4 + ids[1:], minlength=16)
    assert scipy.stats.chisquare(pairs).pvalue > 1e-3


@every_device
@pytest.mark.late("vulkan")
def test_odd_rows(session: rlx.Session) -> None:
    """Rows of NaN, infinities, subnormal and huge numbers, under every filter, and odd parameters."""
    nan, inf, big = np.nan, np.inf, np.finfo(np.float32).max
    x = np.array(
        [[-inf, -inf, -inf, -inf], [nan, nan, nan, nan], [-inf, nan, 1.0, -inf], [inf, 0.0, nan, -inf],
         [0.0, inf, -inf, 0.0], [big, -big, -big, -big], [-big, -big, -inf, -big], [1e-45, -inf, -1e-45, -inf]],
        np.float32,
    )  # fmt: skip
    allowed = [{-1}, {-1}, {2}, {0}, {1}, {0}, {0, 1, 3}, {0, 2}]
    odd = np.array([0.0, -1.0, nan, inf, 1e-30, 0.5, big, 1e-45], np.float32)

    def choices(x: Any, k: Any, heat: Any, k_of: Any, p: Any) -> tuple[Any, ...]:
        draw = rlx.ops.sample
        return (
            draw(x, k), draw(x, k, top_k=3), draw(x, k, top_p=0.5), draw(x, k, min_p=0.5), draw(x, k, temperature=0),
            draw(x, k, temperature=heat, top_k=k_of, top_p=p, min_p=p), draw(x, k, temperature=heat),
            draw(x, k, repetition_penalty=heat, previous=rlx.ops.broadcast_to(k_of[:, None], (8, 2))),
        )  # fmt: skip

    k_of = np.array([0, -5, 2**31 - 1, -(2**31), 1, 2, 3, 4], np.int32)
    for seed in range(3):
        made = run(session, choices, x, random.key(seed), odd, k_of, np.roll(odd, 3))
        for ids in made[:-1]:
            assert all(i in wanted for i, wanted in zip(ids.tolist(), allowed, strict=True)), ids
        assert all(-1 <= i < 4 for i in made[-1].tolist())


@every_device
def test_shapes(session: rlx.Session) -> None:
    x = np.zeros((3, 2, 5), np.float32)
    made = run(
        session,
        lambda x, k: (rlx.ops.sample(x, k, top_k=2), rlx.ops.sample(x[0, 0], k), rlx.ops.sample(x[:0], k, top_p=0.5),
                      rlx.ops.sample(x[..., :1], k), rlx.ops.sample(x, random.split(random.split(k, 3), 2), top_k=99)),
        x, KEY,
    )  # fmt: skip
    assert [m.shape for m in made] == [(3, 2), (), (0, 2), (3, 2), (3, 2)]
    assert (made[3] == 0).all()


F, S = DTypeError, ShapeError
BAD: list[tuple[str, Callable[[Any, Any], Any], type[RlxError], str]] = [
    ("ints", lambda x, k: rlx.ops.sample(k, k), F, "expected a float"),
    ("no tokens", lambda x, k: rlx.ops.sample(x[:, :0], k), S, "vocabulary"),
    ("key", lambda x, k: rlx.ops.sample(x, x), F, "expected i32"),
    ("keys", lambda x, k: rlx.ops.sample(x, random.split(k, 3)), S, "keys of shape"),
    ("position", lambda x, k: rlx.ops.sample(x, k, -1), S, "position is -1"),
    ("position type", lambda x, k: rlx.ops.sample(x, k, 1.5), S, "expected an int"),
    ("positions", lambda x, k: rlx.ops.sample(x, k, np.zeros(5, np.int32)), S, "broadcast"),
    ("temperature", lambda x, k: rlx.ops.sample(x, k, temperature=-0.1), S, "temperature is -0.1"),
    ("temperature nan", lambda x, k: rlx.ops.sample(x, k, temperature=float("nan")), S, "temperature is nan"),
    ("temperature inf", lambda x, k: rlx.ops.sample(x, k, temperature=float("inf")), S, "temperature is inf"),
    ("temperatures", lambda x, k: rlx.ops.sample(x, k, temperature=x), S, "broadcast"),
    ("top_k", lambda x, k: rlx.ops.sample(x, k, top_k=0), S, "top_k is 0; expected an int"),
    ("top_k type", lambda x, k: rlx.ops.sample(x, k, top_k=2.5), S, "expected an int"),
    ("top_k tensor", lambda x, k: rlx.ops.sample(x, k, top_k=x[:, 0]), F, "expected i32"),
    ("top_p", lambda x, k: rlx.ops.sample(x, k, top_p=1.5), S, "top_p is 1.5"),
    ("min_p", lambda x, k: rlx.ops.sample(x, k, min_p=-0.5), S, "min_p is -0.5"),
    ("penalty", lambda x, k: rlx.ops.sample(x, k, repetition_penalty=0, previous=x), S, "repetition_penalty is 0"),
    ("no previous", lambda x, k: rlx.ops.sample(x, k, repetition_penalty=1.2), S, "without previous"),
    ("no penalty", lambda x, k: rlx.ops.sample(x, k, previous=k), S, "without a penalty"),
    ("no counts", lambda x, k: rlx.ops.sample(x, k, frequency_penalty=1.2), S, "frequency_penalty without previous"),
    ("presence", lambda x, k: rlx.ops.sample(x, k, presence_penalty=np.inf, previous=k), S, "is inf"),
    ("bias", lambda x, k: rlx.ops.sample(x, k, logit_bias=k), F, "logit_bias is i32"),
    ("short bias", lambda x, k: rlx.ops.sample(x, k, logit_bias=x[0, 1:]), S, "logit_bias has shape"),
    ("previous", lambda x, k: rlx.ops.sample(x, k, repetition_penalty=1.2, previous=x), F, "expected i32"),
    ("previous rows", lambda x, k: rlx.ops.sample(x, k, repetition_penalty=1.2, previous=k), S, "axis of tokens"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, words", [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_arguments(call: Callable[[Any, Any], Any], error: type[RlxError], words: str) -> None:
    g = rlx.Graph("bad")
    with pytest.raises(error, match=words):
        call(g.input("x", (2, 4), "f32"), g.input("key", (2,), "i32"))
