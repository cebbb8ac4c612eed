"""Products of integers on the CPU: exact, and modulo what the result holds, as large as they may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx.ops as ops
from rlx.backends.cpu.host.matmul.integers import by_floats
from tests.cpu.programs import run_both

SHAPES = [((40, 70), (70, 50)), ((3, 33, 40), (40, 64)), ((2, 1, 33, 40), (1, 3, 40, 33))]


def check(a: Any, b: Any) -> None:
    """The result in whole numbers of any size, modulo what its dtype holds."""
    ((got, _),) = run_both(lambda a, b: ops.matmul(a, b), a, b)
    exact = a.astype(object) @ b.astype(object)
    bits = 8 * got.dtype.itemsize
    want = exact % (1 << bits)
    if got.dtype.kind == "i":
        want = np.where(want >= 1 << bits - 1, want - (1 << bits), want)
    np.testing.assert_array_equal(got, want.astype(got.dtype))


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_products_are_exact(dtype: Any, shapes: Any) -> None:
    rng = np.random.default_rng(0)
    low = 0 if dtype is np.uint8 else -128
    a, b = (rng.integers(low, low + 256, s).astype(dtype) for s in shapes)
    assert by_floats(a, b, (a @ b).astype(dtype))
    check(a, b)


@pytest.mark.parametrize("shapes", SHAPES)
def test_large_products_wrap(shapes: Any) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-(1 << 31), 1 << 31, s).astype(np.int32) for s in shapes)
    a.flat[:2], b.flat[:2] = -(1 << 31), (1 << 31) - 1
    check(a, b)
    check(a, b % 5)


def test_a_product_goes_by_what_comes_at_each_run() -> None:
    a, b = np.full((64, 64), (1 << 31) - 1, np.int32), np.ones((64, 64), np.int32)
    for right in (b, b * 7, -b * (1 << 30), b * 0):
        check(a, right)


def test_convolutions_of_integers() -> None:
    rng = np.random.default_rng(2)
    x, w = rng.integers(-99, 99, (2, 8, 12, 12)).astype(np.int32), rng.integers(-9, 9, (16, 8, 3, 3)).astype(np.int32)
    ((got, want),) = run_both(lambda x, w: ops.conv(x, w, pads=1), x, w)
    np.testing.assert_array_equal(got, want)
