"""The first elements of rows of floats held in registers: order, places, ties, NaN, and rows of equal elements."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from rlx.backends.gpu.program.steps import FileKernel, Launch
from tests.gpu import cuda_host
from tests.gpu.lowered import lower, outputs

Array = npt.NDArray[Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_NO_COMPILER = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
on_both = pytest.mark.parametrize(
    "backend", [pytest.param("vulkan", marks=pytest.mark.vulkan), pytest.param("cuda", marks=_NO_COMPILER)]
)


def order(x: Array, k: int, largest: bool) -> Array:
    """The indices of the first k: NaN ranks above every number, equal elements rank by index."""
    wide = x.astype(np.float64)
    sign = -1.0 if largest else 1.0
    key = np.where(np.isnan(wide), sign * np.inf, sign * wide)
    numbers = np.where(np.isnan(wide), 0 if largest else 1, 1 if largest else 0)  # NaN beyond infinity
    return np.stack([np.lexsort((np.arange(len(row)), row, n)) for row, n in zip(key, numbers, strict=True)])[:, :k]


def check(x: Array, k: int, largest: bool, backend: str, stem: str = "top_k_rows") -> None:
    attrs = {"k": k, "axis": 1, "largest": largest}
    step = lower("top_k", [x], attrs)[2].steps[0]
    assert isinstance(step, Launch) and isinstance(step.kernel, FileKernel) and step.kernel.stem == stem
    got = outputs("top_k", [x], attrs, backend)
    want = order(x, k, largest)
    np.testing.assert_array_equal(got["y1"], want)
    np.testing.assert_array_equal(
        got["y0"].view(f"u{x.dtype.itemsize}"), np.take_along_axis(x, want, 1).view(f"u{x.dtype.itemsize}")
    )


@on_both
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=str)
@pytest.mark.parametrize("n, k", [(2048, 1), (4096, 8), (2056, 5), (6000, 33), (8192, 64)])
@pytest.mark.sample(3, vulkan=1)
@pytest.mark.late("vulkan")
def test_random_rows(n: int, k: int, dtype: Any, backend: str) -> None:
    x = np.random.default_rng(n + k).standard_normal((3, n)).astype(dtype)
    check(x, k, True, backend)
    check(x, k, False, backend)


@on_both
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=str)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.sample(2)
def test_rows_of_equal_infinite_and_no_numbers(largest: bool, dtype: Any, backend: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 2048)).astype(dtype)
    x[0] = 0
    x[1] = np.where(rng.random(2048) < 0.5, 0.0, -0.0).astype(dtype)
    x[2] = np.nan
    x[3, ::3] = np.nan
    x[4, 7:] = -np.inf if largest else np.inf
    x[5] = np.maximum(x[5], dtype(0) if dtype is np.float32 else BFLOAT16.type(0))
    x[6] = np.sort(x[6])
    x[7, 3], x[7, 4], x[7, 2000] = np.inf, -np.inf, np.nan
    x[8] = np.repeat(x[8, :64], 32)
    check(x, 9, largest, backend)


@pytest.mark.vulkan
def test_what_is_not_held_in_registers_goes_the_other_way() -> None:
    for shape, k in (((2, 1000), 8), ((2, 4099), 8), ((2, 4096), 65), ((1, 8200), 8)):
        check(np.random.default_rng(1).standard_normal(shape).astype(np.float32), k, True, "vulkan", "top_k")


@on_both
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
def test_the_first_of_a_row(dtype: Any, op: str, backend: str) -> None:
    x = np.random.default_rng(3).standard_normal((4, 4096)).astype(dtype)
    x[1], x[2, 4001], x[3, 7::100] = 0, np.nan, 9 if op == "argmax" else -9
    attrs = {"axis": 1, "keepdims": False, "select_last_index": False}
    (step,) = lower(op, [x], attrs)[2].steps
    assert isinstance(step, Launch) and isinstance(step.kernel, FileKernel) and step.kernel.stem == "top_k_rows"
    want = getattr(np, op)(x, axis=1)
    np.testing.assert_array_equal(outputs(op, [x], attrs, backend)["y0"], want)
