"""Steps of attention and of caches in q8_0: what a ring means, and bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import CapacityExceeded, DTypeError, ShapeError
from tests.ops.paged_sweep import wrong


def test_a_ring_gives_what_a_cache_of_all_tokens_gives() -> None:
    """Token after token, round a ring of five rows with a window of three keys, beside a cache with a row for each."""
    rng = np.random.default_rng(2)
    ring = whole = None
    step: Any = rlx.jit(lambda *t: rlx.attention_step(*t[:6], window=3, ring=True), device="cpu")
    plain: Any = rlx.jit(lambda *t: rlx.attention_step(*t[:6], window=3), device="cpu")
    for at in range(13):
        q, k, v = (rng.standard_normal((1, heads, 8)).astype(np.float32) for heads in (6, 2, 2))
        ring = ring or [np.full((1, 5, 2, 8), np.nan, np.float32)] * 2
        whole = whole or [np.full((1, 13, 2, 8), np.nan, np.float32)] * 2
        y, *ring = (np.asarray(t) for t in step(q, k, v, *ring, np.array([at], np.int32)))
        want, *whole = (np.asarray(t) for t in plain(q, k, v, *whole, np.array([at], np.int32)))
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [None, 5, 6])
def test_a_ring_holds_the_keys_of_its_window(window: int | None) -> None:
    g = rlx.Graph("ring")
    q, cache, at = g.input("q", (1, 1, 8)), g.input("cache", (1, 5, 1, 8)), g.input("at", (1,), "i32")
    with pytest.raises(ShapeError, match="ring of 5 rows, which holds 4 keys before the token's own"):
        rlx.attention_step(q, q, q, cache, cache, at, window=window, ring=True)


@pytest.mark.parametrize(
    "codes, scales, error, match",
    [
        ((2, 3, 1, 32), (2, 3, 1, 2), ShapeError, "a scale for each 32 elements"),
        ((2, 0, 1, 32), (2, 0, 1, 1), ShapeError, "of at least a row"),
        ((1, 3, 1, 32), (1, 3, 1, 1), ShapeError, r"x \(2, 1, 32\), a cache of \(1, 3, 1, 32\)"),
        ("f32", (2, 3, 1, 1), DTypeError, "expected i8 and f16"),
    ],
)
def test_rows_of_8_bits_that_do_not_fit_are_refused(codes: Any, scales: Any, error: Any, match: str) -> None:
    g = rlx.Graph("rows")
    held = g.input("codes", (2, 3, 1, 32), "f32") if codes == "f32" else g.input("codes", codes, "i8")
    by, x = g.input("scales", scales, "f16"), g.input("x", (2, 1, 32))
    with pytest.raises(error, match=match):
        rlx.q8_0_update(x, held, by, g.input("at", (2,), "i32"))
    with pytest.raises(DTypeError, match="expected whole numbers"):
        rlx.q8_0_update(x, held, by, g.input("place", (2,)))


@pytest.mark.parametrize(
    "dtype, shapes, error, match",
    [
        ("i8", [(5, 4, 1, 2)] * 2, ShapeError, "one for each 32 elements"),
        ("i8", [(5, 4, 1, 1), (4, 4, 1, 1)], ShapeError, "one for each 32 elements"),
        ("i8", [(5, 4, 1, 1)], DTypeError, "scales f16; expected .* scales in f16 for each"),
        ("f32", [(5, 4, 1, 1)] * 2, DTypeError, "k f32, v f32, scales f16, f16"),
    ],
)
def test_pages_of_8_bits_need_scales_that_fit(dtype: str, shapes: list[Any], error: Any, match: str) -> None:
    g = rlx.Graph("pages")
    q, k = g.input("q", (2, 1, 1, 32)), g.input("k", (5, 4, 1, 32), dtype)
    scales = [g.input(f"scales{i}", shape, "f16") for i, shape in enumerate(shapes)]
    table, lengths = g.input("table", (2, 3), "i32"), g.input("lengths", (2,), "i32")
    with pytest.raises(error, match=match):
        rlx.paged_attention(q, k, k, table, lengths, *scales)
    with pytest.raises(DTypeError, match="scales f16, f32; expected"):
        rlx.paged_attention(q, k, k, table, lengths, scales[0], g.input("wide", (5, 4, 1, 1)))


def test_random_tables_lengths_and_steps_beside_float64() -> None:
    """A sample of `python -m tests.ops.paged_sweep`."""
    assert not wrong("cpu", 12, 3)


def test_positions_beyond_the_tables_of_a_rope_are_refused() -> None:
    q, cache = np.ones((2, 1, 8), np.float32), np.zeros((2, 6, 1, 8), np.float32)
    cos, sin = rlx.rope_table(4, 8)

    def step(at: Any) -> Any:
        return rlx.attention_step(q, q, q, cache, cache, at, cos, sin)

    assert np.asarray(step(np.array([3, 0]))[0]).shape == q.shape
    with pytest.raises((CapacityExceeded, ShapeError), match="in tables of 4 positions: row 1 has 4; expected 0 to 3"):
        step(np.array([3, 4]))
    with pytest.raises(CapacityExceeded, match="row 0 has 5"):
        rlx.jit(step, device="cpu")(np.array([5, 0], np.int64))


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint64])
def test_integers_beyond_32_bits_do_not_wrap(dtype: Any) -> None:
    """Into a length, a page or an index that is there: they count as the end of the range."""
    top = np.iinfo(dtype).max - np.arange(3, dtype=dtype)[None]
    q, pool = np.ones((1, 1, 1, 4), np.float32), np.arange(24, dtype=np.float32).reshape(2, 3, 1, 4)
    paged: Any = rlx.jit(lambda *t: rlx.paged_attention(*t), device="cpu")
    want = paged(q, pool, pool, np.array([[1]]), np.array([3]))
    assert np.array_equal(paged(q, pool, pool, top[:, :1], np.array([3])), want)
    assert np.array_equal(paged(q, pool, pool, np.array([[1]]), top[0, :1]), want)
    take: Any = rlx.jit(lambda x, at: rlx.gather(x, at), device="cpu")
    assert np.array_equal(take(np.arange(5.0), top[0]), [4, 4, 4])
    with pytest.raises(ShapeError, match=r"kv_len .* is outside 0\.\.3"):
        rlx.jit(lambda q: rlx.paged_attention(q, pool, pool, np.array([[1]]), np.array([4], dtype)), device="cpu")(q)
