"""What tolerances of conformance cases would hide: roundings at ties, exponentials of rows to the last digits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.backends.cpu.engine import choice

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)


def on_engine(function: Any, *arrays: Any) -> Any:
    return rlx.jit(function, device=rlx.Session("cpu", engine="compiled"))(*arrays)


@pytest.mark.parametrize(("dtype", "digits"), [(np.float16, 11), (ml_dtypes.bfloat16, 8)])
def test_results_of_rows_are_rounded_to_even(dtype: Any, digits: int) -> None:
    """Sums that lie halfway between two halves."""
    half = 2.0**-digits
    x = np.array([[1, half], [1 + 2 * half, half], [-1, -half], [-1 - 2 * half, -half]], dtype)
    wanted = np.array([1, 1 + 4 * half, -1, -1 - 4 * half], dtype)
    np.testing.assert_array_equal(on_engine(lambda x: rlx.sum(x, axis=1), x), wanted)


@pytest.mark.parametrize("n", [64, 37])
def test_a_softmax_is_as_good_as_its_exponentials(n: int) -> None:
    x = np.random.default_rng(0).integers(-40 << 16, 0, (64, n)).astype(np.float32) / 2**16  # exact differences
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    wanted = e / e.sum(1, keepdims=True)
    made = on_engine(lambda x: rlx.softmax(x, axis=1), x)
    assert np.abs(made / wanted - 1).max() < 4 * 2.0**-23


def test_a_sum_of_f64_keeps_what_its_additions_lose() -> None:
    """Ones between two large numbers: each is less than the last digit of the sums that they are added to."""
    x = np.zeros((16, 4096))
    x[:, 512:-512] = 1
    x[:, 0], x[:, -512] = 2.0**60, -(2.0**60)
    made = on_engine(lambda x: rlx.sum(x, axis=1), x)
    np.testing.assert_array_equal(made, np.full(16, 4096 - 1024))
