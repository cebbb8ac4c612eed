"""Softmax, layer norm and RMS norm, as lowered, on a Vulkan device, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.program.lowering import Lowering
from rlx.driver.memory.planner import plan
from rlx.ir import Graph
from tests.gpu.lowered import ROUNDED, Array, carried_out, close, run, target

pytestmark = pytest.mark.vulkan
# One rounding to 11 or 8 bits: a relative error up to 2^-11 or 2^-8 everywhere.


def _softmax(x: Array, axis: int) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        e = np.exp(x.astype(np.float64) - np.max(x.astype(np.float64), axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)


# Row lengths around quads, lanes and the longest row held in registers (8192), aligned and not.
_LENGTHS = [1, 2, 3, 4, 5, 8, 31, 32, 33, 127, 128, 129, 384, 1021, 1024, 1025, 8188, 8192, 8193, 9001, 16384]


@pytest.mark.parametrize("n", _LENGTHS)
@pytest.mark.sample(vulkan=8)
def test_softmax_rows(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((7, n)).astype(np.float32) * 5
    close(run("softmax", x, axis=1), _softmax(x, 1))


@pytest.mark.parametrize(
    "shape, axis", [((5, 7, 3), 1), ((4, 1000, 1, 2), 1), ((3, 2), 0), ((2, 65, 33), 1), ((2, 17, 70), 1)]
)
def test_softmax_other_axes(shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32) * 5
    close(run("softmax", x, axis=axis), _softmax(x, axis))


@pytest.mark.parametrize("shape, axis", [((30000, 33), 0), ((1, 3000001), 1)])
def test_long_columns_and_rows_keep_their_digits(shape: tuple[int, ...], axis: int) -> None:
    """A sum of positive numbers one after the other loses digits with its length."""
    x = np.random.default_rng(7).standard_normal(shape).astype(np.float32) * 5
    close(run("softmax", x, axis=axis), _softmax(x, axis), nmse=1e-12)


@pytest.mark.parametrize("n", [300, 9000])
def test_softmax_of_nan_and_infinity(n: int) -> None:
    x = np.zeros((6, n), np.float32)
    x[0, 3], x[1, n - 1], x[2, 2:] = np.nan, np.inf, -np.inf
    x[3], x[4, ::2] = -np.inf, 3e38
    close(run("softmax", x, axis=1), _softmax(x, 1))
    close(run("softmax", x.T.copy(), axis=0), _softmax(x.T, 0))


def test_a_greatest_element_that_rises_along_a_long_row() -> None:
    """The exponentials that were added up before are scaled each time; those before the first number are 0."""
    n = 9000
    x = np.stack([np.linspace(-300, 300, n), np.linspace(300, -300, n), np.repeat(np.arange(30.0), n // 30)])
    x = np.concatenate([x, x]).astype(np.float32)
    x[3:, : n // 2], x[5, n // 2 + 1 :] = -np.inf, -np.inf
    close(run("softmax", x, axis=1), _softmax(x, 1), nmse=1e-12)


@pytest.mark.parametrize("dtype", list(ROUNDED))
@pytest.mark.parametrize("n", [5, 128, 1001, 9000])
@pytest.mark.late
def test_softmax_of_halves(n: int, dtype: Any) -> None:
    x = np.random.default_rng(n).standard_normal((5, n)).astype(dtype)
    close(run("softmax", x, axis=1), _softmax(x, 1), **ROUNDED[dtype])
    close(run("softmax", x, axis=0), _softmax(x, 0), **ROUNDED[dtype])


def test_more_rows_than_one_grid_axis() -> None:
    x = np.random.default_rng(2).standard_normal((70000 * 2, 3)).astype(np.float32)
    close(run("softmax", x, axis=1), _softmax(x, 1))


@pytest.mark.parametrize("n", [384, 1000, 1024, 1030])
@pytest.mark.full(n=(384, 1030))
@pytest.mark.late
def test_many_rows(n: int) -> None:
    x = np.random.default_rng(2).standard_normal((2053, n)).astype(np.float32)
    gamma, beta = x[0].copy(), x[1].copy()
    close(run("softmax", x, axis=1), _softmax(x, 1))
    close(run("layer_norm", x, gamma, beta, eps=1e-5), _norm("layer_norm", x, 1e-5, gamma, beta))


def test_empty() -> None:
    assert run("softmax", np.zeros((0, 4), np.float32), axis=1).shape == (0, 4)
    assert run("softmax", np.zeros((3, 0), np.float32), axis=1).shape == (3, 0)


def _norm(op: str, x: Array, eps: float, gamma: Array, *beta: Array) -> Array:
    wide = x.astype(np.float64)
    if op == "layer_norm":
        wide = wide - wide.mean(-1, keepdims=True)
    y = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + eps) * gamma.astype(np.float64)
    return y + beta[0].astype(np.float64) if beta else y


@pytest.mark.parametrize("op, betas", [("layer_norm", 1), ("rms_norm", 0), ("rms_norm", 1)])
@pytest.mark.parametrize("n", [*_LENGTHS[1:], 20000])
@pytest.mark.sample(3, vulkan=5)
def test_norms(op: str, betas: int, n: int) -> None:
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((2, 3, n)) * 3 + 0.5).astype(np.float32)
    weights = [rng.standard_normal(n).astype(np.float32) for _ in range(1 + betas)]
    close(run(op, x, *weights, eps=1e-5), _norm(op, x, 1e-5, *weights))


def test_the_variance_keeps_its_digits_beside_a_large_mean() -> None:
    rng = np.random.default_rng(9)
    x = (rng.standard_normal((4, 768)) + 1000).astype(np.float32)
    gamma, beta = np.ones(768, np.float32), np.zeros(768, np.float32)
    # Rounding the mean to f32 alone gives 3e-5 / 1 here.
    close(run("layer_norm", x, gamma, beta, eps=1e-5), _norm("layer_norm", x, 1e-5, gamma, beta), nmse=1e-8, worst=5e-5)


@pytest.mark.parametrize("dtype", list(ROUNDED))
@pytest.mark.parametrize("n", [30, 384, 9000])
@pytest.mark.sample(vulkan=2)
def test_norms_of_halves(n: int, dtype: Any) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((5, n)).astype(dtype)
    gamma, beta = rng.standard_normal(n).astype(dtype), rng.standard_normal(n).astype(dtype)
    close(run("layer_norm", x, gamma, beta, eps=1e-5), _norm("layer_norm", x, 1e-5, gamma, beta), **ROUNDED[dtype])
    close(run("rms_norm", x, gamma, eps=1e-5), _norm("rms_norm", x, 1e-5, gamma), **ROUNDED[dtype])


def test_weights_of_other_dtypes_keep_their_digits() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 128)).astype(np.float16)
    gamma, beta = rng.standard_normal(128).astype(np.float32), rng.standard_normal(128).astype(ml_dtypes.bfloat16)
    want = _norm("layer_norm", x, 1e-5, gamma, beta)
    got = run("layer_norm", x, gamma, beta, eps=1e-5)
    close(got, want, **ROUNDED[np.float16])
    wide = x.astype(np.float32)
    close(run("rms_norm", wide, beta, eps=1e-5), _norm("rms_norm", wide, 1e-5, beta))


def test_sums_for_weights_that_nothing_reads_are_left_out() -> None:
    """As in a model whose norms are frozen: the gradient of its input alone."""
    rng = np.random.default_rng(3)
    d, x = (rng.standard_normal((40, 24)).astype(np.float32) for _ in range(2))
    gamma = rng.standard_normal(24).astype(np.float32)
    graph = Graph("frozen")
    ins = [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate((d, x, gamma))]
    graph.output("y0", graph.add("rms_norm_grad", ins, {"eps": 1e-6, "beta": None})[0])
    planned = plan(graph, planner="bump")
    lowering = Lowering(graph, planned, target("vulkan"), "f32")
    lowering.lower(graph.nodes[-1])
    assert len(lowering.steps) == 1
    alone = carried_out(graph, planned, lowering, [d, x, gamma], "vulkan")["y0"]
    np.testing.assert_array_equal(alone, run("rms_norm_grad", d, x, gamma, eps=1e-6, beta=None))
