"""integer_matmul: how it is called, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, RlxError, ShapeError


def test_zero_points_are_numbers_or_vectors(session: rlx.Session) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (3, 21), np.uint8), rng.integers(-128, 128, (5, 21), np.int8)
    az, bz = np.array([1, 2, 3], np.uint8), np.array([-4, 0, 5, 6, 127], np.int8)
    g = rlx.Graph()
    x, w = g.input("a", a.shape, "u8"), g.input("b", b.shape, "i8")
    g.output("none", rlx.integer_matmul(x, w))
    g.output("one", rlx.integer_matmul(x, w, 7, -3))
    g.output("many", rlx.integer_matmul(x, w, g.constant(az), g.constant(bz)))
    g.output("part", rlx.integer_matmul(x[1:], w[2:]))
    with session.compile(g) as exe:
        made = exe.run({"a": a, "b": b})
    left, right = a.astype(np.int64), b.astype(np.int64)
    for name, want in {
        "none": left @ right.T,
        "one": (left - 7) @ (right + 3).T,
        "many": (left - az[:, None]) @ (right - bz[:, None].astype(np.int64)).T,
        "part": left[1:] @ right[2:].T,
    }.items():
        assert made[name].dtype == np.int32
        np.testing.assert_array_equal(made[name], want, name)


BAD: dict[str, tuple[Callable[[Any, Any], Any], type[RlxError], str]] = {
    "float": (lambda a, b: rlx.integer_matmul(rlx.cast(a, "f32"), b), DTypeError, "a is f32; expected i8 or u8"),
    "wide": (lambda a, b: rlx.integer_matmul(a, rlx.cast(b, "i32")), DTypeError, "b is i32; expected i8 or u8"),
    "inner": (lambda a, b: rlx.integer_matmul(a, b[:, :3]), ShapeError, "inner dimensions 4 and 3 differ"),
    "rank": (lambda a, b: rlx.integer_matmul(a[0], b), ShapeError, "expected rank 2"),
    "zero": (lambda a, b: rlx.integer_matmul(a, b, 0.5), DTypeError, "a_zero is f32; expected an integer"),
    "large": (lambda a, b: rlx.integer_matmul(a, b, 1 << 31), DTypeError, "a_zero is 2147483648; expected"),
    "zeros": (
        lambda a, b: rlx.integer_matmul(a, b, 0, a.graph.constant(np.zeros(2, np.int8))), ShapeError,
        "b_zero is .*; expected i32 of 1 or 3 elements",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", BAD)
def test_mistakes(mistake: str) -> None:
    build, error, words = BAD[mistake]
    g = rlx.Graph()
    with pytest.raises(error, match=words):
        build(g.input("a", (2, 4), "u8"), g.input("b", (3, 4), "i8"))
