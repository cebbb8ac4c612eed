"""The reduction kernel, as lowered, on a Vulkan device, against NumPy in float64."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from tests import devices
from tests.full import sampled
from tests.gpu.lowered import Array, close, lower, run

pytestmark = pytest.mark.vulkan
_NUMPY = {"sum": np.sum, "mean": np.mean, "prod": np.prod, "max": np.max, "min": np.min}


def _check(op: str, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> None:
    got = run(op, x, axes=axes, keepdims=keepdims)
    exact = x.dtype.kind in "iub"
    wide = x if exact else x.astype(np.float64)
    if exact and op in ("sum", "prod"):
        want = _NUMPY[op](
            x, axis=axes, keepdims=keepdims, dtype=np.int64 if x.dtype == np.int64 else np.int32
        )
    else:
        want = _NUMPY[op](wide, axis=axes, keepdims=keepdims)
    if exact or op in ("max", "min"):
        assert got.dtype == (want.dtype if exact else x.dtype)
        np.testing.assert_array_equal(got.astype(want.dtype), want)
        return
    half = x.dtype.itemsize == 2
    limit = (
        {"nmse": 3e-6, "worst": 4e-3}
        if half and x.dtype != np.float16
        else {"nmse": 1e-7, "worst": 5e-4}
        if half
        else {}
    )
    count = max(1, int(np.prod([x.shape[a] for a in axes])))
    scale: Any = 0.0
    if op in ("sum", "mean"):
        scale = np.sqrt(np.sum(wide * wide, axis=axes, keepdims=keepdims)) / (count if op == "mean" else 1)
    close(got, np.asarray(want), scale=scale, **limit)


@pytest.mark.parametrize("op", sorted(_NUMPY))
@pytest.mark.parametrize(
    "shape, axes",
    [((1,), (0,)), ((7,), (0,)), ((255,), (0,)),
     ((256, 3), (1,)), ((3, 257), (1,)), ((5, 1031), (0,)), ((2, 3, 5), (0, 2)),
     ((4, 5, 6, 7), (1, 3)), ((3, 1, 4), (1,)), ((2, 3, 4), ()), ((33, 65, 2), (1,)), ((6, 31, 64), (0, 1))],
)  # fmt: skip
@pytest.mark.sample(5, vulkan=7)
def test_axes(op: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).uniform(0.9, 1.1, shape) * np.where(
        np.arange(np.prod(shape)).reshape(shape) % 3, 1, -1
    )
    for keepdims in sampled((False, True), most=1):
        _check(op, x.astype(np.float32), axes, keepdims)


@pytest.mark.parametrize("op, dtype", [*itertools.product(["sum", "max"], [np.float16, ml_dtypes.bfloat16])])
@pytest.mark.sample(1)
def test_halves(op: str, dtype: Any) -> None:
    x = np.random.default_rng(4).standard_normal((3, 70, 5)).astype(dtype)
    for axes in sampled(((2,), (0, 2), (1,)), most=1):
        _check(op, x, axes)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers(op: str, dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(5).integers(info.min, info.max, (9, 130, 3), dtype, endpoint=True)
    for axes in sampled(((1,), (0, 2), (0, 1, 2)), most=2):
        with np.errstate(over="ignore"):
            _check(op, x, axes)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_nan_and_infinity(op: str) -> None:
    x = np.ones((6, 300), np.float32)
    x[0, 5], x[1, 7], x[2, 299], x[3, 0] = np.nan, np.inf, -np.inf, -0.0
    x[4, :2] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        _check(op, x, (1,))


def test_empty_reductions() -> None:
    x = np.zeros((3, 0, 2), np.float32)
    assert (run("sum", x, axes=(1,), keepdims=False) == 0).all()
    assert (run("prod", x, axes=(1,), keepdims=False) == 1).all()
    assert np.isnan(run("mean", x, axes=(1,), keepdims=False)).all()
    assert run("max", x, axes=(0,), keepdims=False).shape == (0, 2)


def test_long_rows_take_several_stages() -> None:
    n = (1 << 22) + 12345
    x = np.random.default_rng(6).standard_normal(n).astype(np.float32)
    _check("sum", x, (0,))
    _check("min", x, (0,))
    ones = np.ones((1, n, 1), np.float32)
    assert run("sum", ones, axes=(1,), keepdims=False).item() == n
    _, _, lowering = lower("sum", [ones], {"axes": (1,), "keepdims": False})
    assert len(lowering.steps) >= 2


def test_more_groups_than_one_grid_axis() -> None:
    from rlx.driver import Limits

    x = np.arange(1000 * 300, dtype=np.int32).reshape(1000, 300)
    got = run("sum", x, axes=(1,), keepdims=False, limits=Limits(max_groups=(7, 65535, 65535)))
    np.testing.assert_array_equal(got, x.sum(1, dtype=np.int32))


def test_what_else_adds_reads_widened_halves_as_they_are_widened() -> None:
    """A running sum and the mean of a window are no sums over axes, which read halves in place of an f32 copy."""
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 8)).astype(np.float16)

    def added(x: rlx.Tensor) -> tuple[rlx.Tensor, ...]:
        wide = x.astype("f32")
        return rlx.cumsum(wide, axis=3), rlx.avg_pool(wide, 2), rlx.sum(wide, axis=(0, 2))

    running, pooled, total = devices.run(devices.session_here("vulkan"), added, x)
    wide = x.astype(np.float64)
    close(running, np.cumsum(wide, axis=3))
    close(pooled, wide.reshape(2, 3, 3, 2, 4, 2).mean(axis=(3, 5)))
    close(total, wide.sum(axis=(0, 2)))
