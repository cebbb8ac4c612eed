"""Tree kernels on real devices, as the backends record them: float functions to the last place, casts, lengths,
layouts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Ref
from rlx.driver import MemoryPlan, Slot
from rlx.dtypes import as_dtype, bf16, f16, f32, i32, u8
from rlx.ir import Expr, Graph, expr
from tests.devices import device_here
from tests.gpu.host_prims import BINARY, ulps
from tests.gpu.test_prims import LIMITS, ORACLES, TINY, inputs

Array = npt.NDArray[Any]


@pytest.fixture(scope="module", params=["vulkan:0", pytest.param("cuda:0", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> Any:
    return device_here(request.param)


def evaluate(device: Any, tree: Expr, *arrays: Array, strides: Any = None, shape: Any = None) -> Array:
    """The tree over arrays (of one shape, or read with `strides` as `shape`), as the lowering launches it."""
    dims = arrays[0].shape if shape is None else shape
    out = np.empty(dims, tree.dtype.np)
    every = (*arrays, out)
    names = [f"arena{k}" for k in range(len(every))]
    segments = {name: a.nbytes for name, a in zip(names, every, strict=True)}
    slots = {
        k: Slot(name, 0, a.nbytes, as_dtype(a.dtype))
        for k, (name, a) in enumerate(zip(names, every, strict=True))
    }
    arena = device.arena(MemoryPlan("bump", slots, segments), {})
    steps = [contiguous(dims)] * len(every) if strides is None else [*strides, contiguous(dims)]
    views = [
        View(Ref(n, 0, a.nbytes), as_dtype(a.dtype), s) for n, a, s in zip(names, every, steps, strict=True)
    ]
    for k, a in enumerate(arrays):
        arena.write_bytes(k, a)
    lowering = Lowering(Graph("tree"), MemoryPlan("bump"), device.target, "f32")
    launch_tree(lowering, (tree,), dims, views[:-1], views[-1:])
    if lowering.args:
        block = device.acquire(len(lowering.args))
        block.write(0, np.frombuffer(bytes(lowering.args), np.uint8))
        arena.bind("args", block)
    recorded = device.record(lowering.steps, arena)
    recorded.launch()
    recorded.wait()
    result: Array = np.array(arena.read_bytes(len(arrays))).view(tree.dtype.np).reshape(dims)
    recorded.close()
    arena.close()
    return result


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_float_primitives(device: Any, name: str) -> None:
    x = inputs(1)
    args = [x, np.random.default_rng(2).permutation(inputs(3))] if name in BINARY else [x]
    got = evaluate(device, expr.call(name, *(expr.arg(k, f32) for k in range(len(args)))), *args)
    with np.errstate(all="ignore"):
        want = np.asarray(ORACLES[name](*(a.astype(np.float64) for a in args)))
    error = ulps(got, want)
    if not device.info.preserves_subnormals:
        small = np.any([(np.abs(a) < TINY) & (a != 0) for a in args], axis=0)
        error[small | ((np.abs(want) < 2 * TINY) & (want != 0))] = 0
    allowed = (
        np.where(np.abs(want) < TINY, LIMITS[name] + 0.26, LIMITS[name]) if LIMITS[name] else np.zeros(x.size)
    )
    worst = int(np.argmax(error - allowed))
    assert error[worst] <= allowed[worst], ([a[worst] for a in args], got[worst], want[worst], error[worst])


def test_halves_round_to_nearest_even(device: Any) -> None:
    x = np.concatenate([inputs(4), np.linspace(-7e4, 7e4, 100_001, dtype=np.float32)])
    for dtype in (f16, bf16):
        with np.errstate(all="ignore"):
            want = x.astype(dtype.np)
        got = evaluate(device, expr.cast(expr.arg(0, f32), dtype), x)
        number = ~np.isnan(x)
        np.testing.assert_array_equal(got.view(np.uint16)[number], want.view(np.uint16)[number])
        assert np.isnan(got[~number].astype(np.float32)).all()


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.int8, np.uint8]
)
@pytest.mark.parametrize("n", [1, 7, 1023, 1 << 19])
def test_sums_of_any_length(device: Any, dtype: Any, n: int) -> None:
    rng = np.random.default_rng(n)
    x, y = (rng.integers(-100, 100, n).astype(dtype) for _ in range(2))
    kind = as_dtype(x.dtype)
    got = evaluate(device, expr.arg(0, kind) + expr.arg(1, kind), x, y)
    np.testing.assert_array_equal(got.astype(np.float64), (x + y).astype(np.float64))


@pytest.mark.parametrize("columns", [7, 8, 64])
def test_broadcasts_in_packs_and_singly(device: Any, columns: int) -> None:
    x = np.random.default_rng(5).normal(size=(300, columns)).astype(np.float32)
    row, column = x[0].copy() * 2, x[:, 0].copy() * 3
    tree = expr.arg(0, f32) * expr.arg(1, f32) + expr.arg(2, f32)
    strides = [(columns, 1), (0, 1), (1, 0)]
    got = evaluate(device, tree, x, row, column, strides=strides, shape=x.shape)
    np.testing.assert_array_equal(got, x * row + column[:, None])


def test_columns_are_read_as_rows(device: Any) -> None:
    x = np.arange(33 * 70, dtype=np.int32).reshape(33, 70)
    got = evaluate(device, expr.arg(0, i32), x, strides=[(1, 70)], shape=(70, 33))
    np.testing.assert_array_equal(got, x.T)
    mask = evaluate(device, expr.call("gt", expr.arg(0, u8), expr.lit(9, u8)), x.astype(np.uint8))
    np.testing.assert_array_equal(mask, x.astype(np.uint8) > 9)
