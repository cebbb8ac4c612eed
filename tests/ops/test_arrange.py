"""flip, tile, repeat, roll, diagonal, tril, triu, pad as functions: NumPy's results, and errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.conformance import domains
from rlx.dtypes import ALL, DType, f64
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Tensor
from rlx.runtime import Session
from tests.ops.by_family import judge_of

X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


def run(fn: Callable[[Tensor], Tensor], x: np.ndarray = X) -> np.ndarray:
    g = rlx.Graph()
    g.output("y", fn(g.input("x", x.shape, x.dtype)))
    return Session("cpu").compile(g).run({"x": x})["y"]


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), ()])
def test_flip(axis: Any) -> None:
    np.testing.assert_array_equal(run(lambda x: rlx.flip(x, axis)), np.flip(X, axis))


@pytest.mark.parametrize("counts", [2, (2,), (2, 1, 3), (2, 3, 1, 1), (0, 1), (1, 1, 1)])
def test_tile(counts: Any) -> None:
    np.testing.assert_array_equal(run(lambda x: rlx.tile(x, counts)), np.tile(X, counts))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_repeat(axis: int) -> None:
    np.testing.assert_array_equal(run(lambda x: rlx.repeat(x, 3, axis)), np.repeat(X, 3, axis))


@pytest.mark.parametrize(
    "shift, axis", [(7, None), (-1, 0), (9, 1), ((1, -2), (0, 2)), ((1, 2), (1, 1)), (2, (0, 1)), (0, 2), (4, 1)]
)
def test_roll(shift: Any, axis: Any) -> None:
    np.testing.assert_array_equal(run(lambda x: rlx.roll(x, shift, axis)), np.roll(X, shift, axis))


@pytest.mark.parametrize("axes", [(0, 1), (1, 2), (2, 0), (-1, 1)])
@pytest.mark.parametrize("offset", [0, 1, -1, 2, -2, 3, 4, 9, -9])
def test_diagonal(offset: int, axes: tuple[int, int]) -> None:
    np.testing.assert_array_equal(
        run(lambda x: rlx.diagonal(x, offset, *axes)), np.diagonal(X, offset, *axes)
    )


@pytest.mark.parametrize("k", [-3, -1, 0, 1, 7])
def test_triangles(k: int) -> None:
    for dtype in (np.float32, np.int64, np.bool_):
        x = (X + 1).astype(dtype)
        np.testing.assert_array_equal(run(lambda t: rlx.tril(t, k), x), np.tril(x, k))
        np.testing.assert_array_equal(run(lambda t: rlx.triu(t, k), x), np.triu(x, k))


def test_pad_takes_numbers_pairs_and_negative_pads() -> None:
    np.testing.assert_array_equal(run(lambda x: rlx.pad(x, 1)), np.pad(X, 1))
    np.testing.assert_array_equal(run(lambda x: rlx.pad(x, (2, 1), "edge")), np.pad(X, (2, 1), "edge"))
    np.testing.assert_array_equal(run(lambda x: rlx.pad(x, 0, "wrap")), X)
    pads = ((-1, 2), (0, -3), (1, 0))
    np.testing.assert_array_equal(
        run(lambda x: rlx.pad(x, pads, value=9)), np.pad(X[1:, :1], ((0, 2), (0, 0), (1, 0)), constant_values=9)
    )
    np.testing.assert_array_equal(
        run(lambda x: rlx.pad(x, ((-1, 3), (0, 0), (0, 0)), "reflect")),
        np.pad(X[1:], ((0, 3), (0, 0), (0, 0)), "reflect"),
    )


def refused(fn: Callable[[Tensor], Any], error: type[Exception], *words: str, dtype: str = "f32") -> None:
    x = rlx.Graph().input("x", (3, 4, 5), dtype)
    with pytest.raises(error) as caught:
        fn(x)
    for word in words:
        assert word in str(caught.value)


def test_bad_arguments_are_named() -> None:
    refused(lambda x: rlx.pad(x, ((1, 1),)), ShapeError, "pad", "1 pairs", "expected 3")
    refused(lambda x: rlx.pad(x, "one"), ShapeError, "pad", "'one'")
    refused(lambda x: rlx.pad(x, 1, "mirror"), ShapeError, "mirror", "reflect")
    refused(lambda x: rlx.pad(x, (-2, -2)), ShapeError, "pad", "axis 0")
    refused(lambda x: rlx.pad(x, 1, value=2.5), DTypeError, "2.5", "whole", dtype="i32")
    refused(lambda x: rlx.pad(x, 1, value=300), DTypeError, "300", "0 to 255", dtype="u8")
    refused(lambda x: rlx.pad(x[:0], 1, "edge"), ShapeError, "axis 0", "no element")
    refused(lambda x: rlx.roll(x, (1, 2), 0), ShapeError, "roll", "2 shifts")
    refused(lambda x: rlx.diagonal(x, 0, 1, 1), ShapeError, "diagonal", "both 1")
    refused(lambda x: rlx.tril(x[0, 0]), ShapeError, "tril", "two axes")
    refused(lambda x: rlx.tile(x, (2, -1)), ShapeError, "tile")
    refused(lambda x: rlx.elu(x, float("nan")), ShapeError, "elu", "alpha")
    refused(lambda x: x.graph.add("isinf", (x,), {"positive": False, "negative": False}), ShapeError, "isinf")
    refused(lambda x: rlx.bitwise_and(x, x), DTypeError, "bitwise_and", "f32")
    refused(lambda x: rlx.left_shift(x, x), DTypeError, "left_shift", "integers", dtype="bool")
    refused(lambda x: rlx.mod(x, x), DTypeError, "mod", "bool", dtype="bool")


def test_operators() -> None:
    n = np.array([-7, -1, 0, 5, 12], np.int32)
    np.testing.assert_array_equal(run(lambda x: x % 3, n), n % 3)
    np.testing.assert_array_equal(run(lambda x: 7 // (x * 2 + 1), n), 7 // (n * 2 + 1))
    np.testing.assert_array_equal(run(lambda x: (x << 3) >> 1, n), (n << 3) >> 1)
    np.testing.assert_array_equal(run(lambda x: -7.5 % (x + 0.5), X), np.float32(-7.5) % (X + np.float32(0.5)))


def test_predicates_of_integers() -> None:
    n = np.array([1, -2], np.int32)
    assert not run(rlx.isnan, n).any() and not run(rlx.isinf, n).any() and run(rlx.isfinite, n).all()
    x = np.array([np.inf, -np.inf, np.nan, 0.0], np.float32)
    np.testing.assert_array_equal(run(lambda t: rlx.isinf(t, positive=False), x), [False, True, False, False])
    assert not run(lambda t: rlx.isinf(t, False, False), x).any()


def test_prelu() -> None:
    slope = np.array([0.5, -2.0, 0.0, 1.0, 3.0], np.float32)
    x = X - 30
    want = np.where(x < 0, x * slope, x)
    np.testing.assert_array_equal(run(lambda t: rlx.prelu(t, slope), x), want)
    np.testing.assert_array_equal(run(rlx.relu6, x), np.clip(x, 0, 6))


@pytest.mark.judged
@pytest.mark.parametrize("other", ALL, ids=str)
def test_casts_from_and_to_f64(other: DType) -> None:
    """On the CPU, which computes in f64; elsewhere they are host steps."""
    for source, target in ((f64, other), (other, f64)):
        for domain in ("special", "any"):
            x = domains.make((257,), source, domain, 3)
            got = run(lambda t, target=target: rlx.cast(t, target), x)
            with np.errstate(all="ignore"):
                want = judge_of("cast")(x, dtype=target) if source != target else x
            number = ~np.isnan(np.asarray(want, np.float64))
            np.testing.assert_array_equal(np.isnan(np.asarray(got, np.float64)), ~number)
            np.testing.assert_array_equal(got[number], np.asarray(want)[number])
