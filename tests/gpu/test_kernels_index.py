"""Gather, as lowered, on a Vulkan device, against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.gpu.lowered import Array, run

pytestmark = pytest.mark.vulkan


def _take(x: Array, indices: Array, axis: int) -> Array:
    n = x.shape[axis]
    wanted = np.where(indices < 0, indices.astype(np.int64) + n, indices)
    return np.take(x, np.clip(wanted, 0, n - 1), axis=axis)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.uint8, np.int8, np.bool_]
)
def test_every_dtype(dtype: Any, index: Any) -> None:
    rng = np.random.default_rng(0)
    for shape, axis in (((9, 5), 0), ((9, 8), 0), ((9, 64), 0), ((3, 7, 2), 1), ((3, 4, 5), 2), ((11,), 0)):
        x = rng.integers(0, 255, (*shape, np.dtype(dtype).itemsize), np.uint8)
        x = (x & 1).astype(np.bool_)[..., 0] if dtype == np.bool_ else x.view(dtype)[..., 0]
        indices = rng.integers(-shape[axis], shape[axis], (4, 3)).astype(index)
        got = run("gather", x, indices, axis=axis)
        want = _take(x, indices, axis)
        assert got.shape == want.shape
        assert got.tobytes() == np.ascontiguousarray(want).tobytes()


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_out_of_range_is_clamped(index: Any) -> None:
    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    info = np.iinfo(index)
    indices = np.array([info.min, info.min + 9, -11, -10, -1, 0, 9, 10, 1 << 30, info.max], index)
    np.testing.assert_array_equal(run("gather", x, indices, axis=0), _take(x, indices, 0))
    far = np.array([-(1 << 31) - 1, (1 << 31), (1 << 32) + 3, -(1 << 32) + 3, (1 << 31) - 1], np.int64)
    np.testing.assert_array_equal(run("gather", x, far, axis=0), _take(x, far, 0))


@pytest.mark.late
def test_scalar_empty_and_large() -> None:
    x = np.arange(70000 * 300, dtype=np.int32).reshape(70000, 300)
    assert run("gather", x, np.array(5, np.int64), axis=1).shape == (70000,)
    assert run("gather", x, np.zeros((0, 2), np.int32), axis=0).shape == (0, 2, 300)
    indices = np.random.default_rng(1).integers(0, 70000, 66000).astype(np.int32)
    np.testing.assert_array_equal(run("gather", x, indices, axis=0), x[indices])
