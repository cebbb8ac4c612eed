"""Matrix products: the lowered steps on a Vulkan device, against NumPy in float64; and the steps lowered for CUDA."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy.special import erf, expit

from rlx.backends.gpu.gemm.choice import forcing
from rlx.backends.gpu.program.steps import FileKernel, Gemm, Launch, TreeKernel
from tests.full import sampled
from tests.gpu.lowered import ROUNDED, Array, close, lower, run

pytestmark = pytest.mark.vulkan
_ACTIVATION = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * expit(x),
    "tanh": np.tanh,
    "sigmoid": expit,
}


def _attrs(ta: bool = False, tb: bool = False, activation: str | None = None) -> dict[str, Any]:
    return {"transpose_a": ta, "transpose_b": tb, "activation": activation}


def _want(a: Array, b: Array, *bias: Array, transpose_a: bool, transpose_b: bool, activation: str | None) -> Array:
    a, b = a.astype(np.float64), b.astype(np.float64)
    a = np.swapaxes(a, -1, -2) if transpose_a else a
    b = np.swapaxes(b, -1, -2) if transpose_b else b
    return _ACTIVATION[activation](a @ b + (bias[0].astype(np.float64) if bias else 0))


def _pair(
    m: int, k: int, n: int, ta: bool, tb: bool, dtype: Any = np.float32, other: Any = None
) -> tuple[Array, Array]:
    rng = np.random.default_rng(m * 7 + k * 3 + n)
    a = rng.standard_normal((k, m) if ta else (m, k)).astype(dtype)
    b = rng.standard_normal((n, k) if tb else (k, n)).astype(other or dtype)
    return a, b


_SIZES = [
    (1, 1, 1), (1, 7, 5), (63, 8, 64), (64, 9, 65), (65, 16, 63), (7, 130, 31), (128, 20, 132), (3, 0, 4), (130, 64, 4)
]  # fmt: skip


@pytest.mark.parametrize("ta, tb", [*itertools.product([False, True], repeat=2)])
@pytest.mark.parametrize("m, k, n", _SIZES)
@pytest.mark.sample(3, vulkan=5)
def test_sizes(m: int, k: int, n: int, ta: bool, tb: bool) -> None:
    a, b = _pair(m, k, n, ta, tb)
    close(run("matmul", a, b, **_attrs(ta, tb)), _want(a, b, **_attrs(ta, tb)))


@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("k, n", [(1, 1), (5, 7), (64, 64), (259, 130), (1000, 17000)])
@pytest.mark.sample(2, vulkan=3)
@pytest.mark.late
def test_few_rows(m: int, k: int, n: int, tb: bool) -> None:
    a, b = _pair(m, k, n, False, tb)
    a /= np.float32(np.sqrt(k))  # keeps tanh's argument small: the test measures the error of the sum
    bias = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    got = run("matmul", a, b, bias, **_attrs(tb=tb, activation="tanh"))
    close(got, _want(a, b, bias, **_attrs(tb=tb, activation="tanh")))


@pytest.mark.parametrize("across, sites", [(8, 32), (8, 16), (8, 4), (32, 2), (16, 2)])
@pytest.mark.full(sites=(32, 16))
@pytest.mark.full(across=16)
@pytest.mark.parametrize("m", [3, 16, 37])
@pytest.mark.sample(1, vulkan=1)
@pytest.mark.late
def test_few_rows_however_they_are_cut(m: int, across: int, sites: int) -> None:
    bias = np.random.default_rng(0).standard_normal(70).astype(np.float32)
    for k in sampled((385, 20, 1536), most=1):
        a, b = _pair(m, k, 70, False, True)
        a /= np.float32(np.sqrt(k))
        with forcing(algorithm="rows", across=across, sites=sites):
            got = run("matmul", a, b, bias, **_attrs(tb=True, activation="gelu"))
        close(got, _want(a, b, bias, **_attrs(tb=True, activation="gelu")))


@pytest.mark.late
def test_many_rows_by_the_kernel_for_few() -> None:
    a, b = _pair(37, 65, 70, False, False)
    with forcing(algorithm="rows"):
        close(run("matmul", a, b, **_attrs()), _want(a, b, **_attrs()))


@pytest.mark.parametrize("other", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.sample(vulkan=1)
@pytest.mark.late
def test_few_rows_of_a_batch_beside_half_weights(other: Any) -> None:
    a, b = _pair(4, 40, 24, False, True, np.float32, other)
    a, b = np.stack([a, a + 1, a - 2]), np.stack([b, b * 2, b])
    close(run("matmul", a, b, **_attrs(tb=True)), _want(a, b, **_attrs(tb=True)))
    close(run("matmul", b[:, :3], a, **_attrs(tb=True)), _want(b[:, :3], a, **_attrs(tb=True)))


@pytest.mark.parametrize("m, n", [(129, 2100), (2100, 65), (1100, 1030)])
@pytest.mark.full(m=129)
@pytest.mark.sample(vulkan=1)
def test_large_tiles(m: int, n: int) -> None:
    a, b = _pair(m, 12, n, False, True)
    a, b = np.stack([a] * 9), np.stack([b, b * 2, b * 3] * 3)
    close(run("matmul", a, b, **_attrs(False, True)), _want(a, b, **_attrs(False, True)))


# Products of few rows, of half weights and of halves have the others.
@pytest.mark.parametrize("activation", list(_ACTIVATION))
@pytest.mark.full(activation=_ACTIVATION.keys() - {None, "relu", "sigmoid", "gelu_tanh"})
def test_epilogue(activation: str | None) -> None:
    a, b = _pair(33, 40, 70, False, False)
    bias = np.random.default_rng(0).standard_normal(70).astype(np.float32)
    for n in sampled((70, 68), most=1):
        got = run("matmul", a, b[:, :n].copy(), bias[:n].copy(), **_attrs(activation=activation))
        close(got, _want(a, b[:, :n], bias[:n], **_attrs(activation=activation)))


@pytest.mark.parametrize("other", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.sample(vulkan=1)
def test_half_weights_beside_f32(other: Any) -> None:
    for tb in sampled((True, False), most=1):
        a, b = _pair(20, 72, 36, False, tb, np.float32, other)
        bias = np.random.default_rng(0).standard_normal(36).astype(other)
        got = run("matmul", a, b, bias, **_attrs(tb=tb, activation="gelu"))
        assert got.dtype == np.float32
        close(got, _want(a, b, bias, **_attrs(tb=tb, activation="gelu")))
        close(run("matmul", b, a, **_attrs(not tb, True)), _want(b, a, **_attrs(not tb, True)))


@pytest.mark.parametrize("dtype", list(ROUNDED))
@pytest.mark.sample(vulkan=1)
def test_halves(dtype: Any) -> None:
    for m, k, n in sampled(((70, 100, 68), (64, 64, 64), (5, 33, 7)), most=2):
        a, b = _pair(m, k, n, False, True, dtype)
        bias = np.random.default_rng(0).standard_normal(n).astype(np.float32)
        got = run("matmul", a, b, bias, **_attrs(tb=True, activation="silu"))
        assert got.dtype == dtype
        close(got, _want(a, b, bias, **_attrs(tb=True, activation="silu")), **ROUNDED[dtype])


@pytest.mark.parametrize(
    "a_batch, b_batch",
    [((3,), ()), ((), (3,)), ((2, 1), (3,)), ((2, 1, 2), (3, 1)), ((2, 1, 2, 1), (1, 3, 1, 2)),
     ((2, 1, 2, 1, 2), (1, 3, 1, 2, 1)), ((0,), (1,))],
)  # fmt: skip
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.sample(3, vulkan=4)
def test_batch_broadcasting(a_batch: tuple[int, ...], b_batch: tuple[int, ...], ta: bool) -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal((*a_batch, *((6, 5) if ta else (5, 6)))).astype(np.float32)
    b = rng.standard_normal((*b_batch, 6, 9)).astype(np.float32)
    close(run("matmul", a, b, **_attrs(ta)), _want(a, b, **_attrs(ta)))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers_wrap(dtype: Any) -> None:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(2)
    for ta, tb in itertools.product([False, True], repeat=2):
        a = rng.integers(info.min, info.max, (2, 18, 35) if ta else (2, 35, 18), dtype)
        b = rng.integers(info.min, info.max, (17, 18) if tb else (18, 17), dtype)
        bias = rng.integers(info.min, info.max, 17, dtype)
        left, right = (np.swapaxes(a, 1, 2) if ta else a), (b.T if tb else b)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(run("matmul", a, b, bias, **_attrs(ta, tb)), left @ right + bias)


@pytest.mark.late
def test_long_sums_stay_within_the_tolerance() -> None:
    a, b = _pair(4, 70001, 3, False, False)
    close(run("matmul", a + 1, b + 1, **_attrs()), _want(a + 1, b + 1, **_attrs()))


def test_nan_and_infinity_stay_in_their_rows() -> None:
    a, b = _pair(70, 20, 66, False, False)
    a[3, 5], a[64, 19] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        close(run("matmul", a, b, **_attrs()), _want(a, b, **_attrs()))


def _steps(*inputs: Array, precision: str = "f32", **attrs: Any) -> list[Any]:
    return lower("matmul", list(inputs), attrs, backend="cuda", precision=precision)[2].steps


def test_cuda_products_go_to_the_library() -> None:
    a, b = np.zeros((2, 9, 6), np.float32), np.zeros((5, 6), np.float32)
    (gemm,) = _steps(a, b, **_attrs(tb=True), precision="tf32")
    assert isinstance(gemm, Gemm)
    assert (gemm.m, gemm.n, gemm.k, gemm.batch, gemm.transpose_b, gemm.precision) == (18, 5, 6, 1, True, "tf32")
    many = np.zeros((3, 4, 40, 6), np.float32)
    steps = _steps(many, np.zeros((4, 6, 5), np.float32), **_attrs())
    assert [(s.batch, s.stride_a, s.stride_b, s.stride_c) for s in steps] == [(4, 240, 30, 200)] * 3
    assert [s.c.offset - steps[0].c.offset for s in steps] == [0, 3200, 6400]


def test_cuda_epilogue_is_one_more_launch_and_halves_round_once() -> None:
    a, b, bias = np.zeros((40, 6), np.float16), np.zeros((6, 5), np.float16), np.zeros(5, np.float32)
    gemm, launch = _steps(a, b, bias, **_attrs(activation="gelu"))
    assert isinstance(gemm, Gemm) and gemm.c_dtype.name == "f32" and gemm.precision == "f16"
    assert isinstance(launch, Launch) and isinstance(launch.kernel, TreeKernel)
    assert launch.kernel.outputs[0].storage.name == "f16" and launch.args[-1] == 200


def test_the_kernel_for_few_rows_has_the_epilogue_inside() -> None:
    a, b, bias = np.zeros((16, 6), np.float32), np.zeros((5, 6), np.float32), np.zeros(5, np.float32)
    for precision in ("f32", "tf32", "bf16"):
        with forcing(algorithm="rows"):
            (launch,) = _steps(a, b, bias, **_attrs(tb=True, activation="gelu"), precision=precision)
        assert isinstance(launch, Launch) and isinstance(launch.kernel, FileKernel)
        assert launch.kernel.stem == "matmul_rows"


def test_cuda_takes_half_weights_beside_f32_with_its_own_kernel() -> None:
    (launch,) = _steps(np.zeros((8, 6), np.float32), np.zeros((6, 5), ml_dtypes.bfloat16), **_attrs())
    assert isinstance(launch, Launch) and isinstance(launch.kernel, FileKernel) and launch.kernel.stem == "matmul_rows"
