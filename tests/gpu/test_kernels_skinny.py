"""Products of few rows: the kernel of matrix instructions as CUDA text run on the CPU, and the kernel of multiply-adds
on a Vulkan device, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.gemm.choice import forcing
from rlx.backends.gpu.program.steps import FileKernel, Launch
from rlx.driver import Limits
from tests.full import sampled
from tests.gpu import cuda_host, lowered
from tests.gpu.lowered import ROUNDED, Array, close, lower, run
from tests.gpu.missed_barriers import barrier_is_missed, barriers_of
from tests.gpu.test_kernels_matmul import _attrs, _pair, _want

HALVES = (np.float16, ml_dtypes.bfloat16)
_LIMITS = Limits(shared_bytes=48 << 10)
on_host = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES | {"coopmat", "bf16_coopmat"})


def skinny(a: Array, b: Array, *bias: Array, tb: bool, activation: str | None = None, **sizes: int) -> None:
    """Checks one product by matrix instructions; `sizes` are the candidate's."""
    attrs = _attrs(tb=tb, activation=activation)
    with forcing(algorithm="skinny", **sizes):
        got = run("matmul", a, b, *bias, limits=_LIMITS, backend="cuda", **attrs)
    close(got, _want(a, b, *bias, **attrs), **ROUNDED[a.dtype.type])


@on_host
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_of_rows(dtype: Any, tb: bool) -> None:
    for m in sampled(range(1, 17), most=4):
        k, n = ((136, 40), (37, 33), (1, 1), (300, 24))[m % 4]
        skinny(*_pair(m, k, n, False, tb, dtype), tb=tb)


@on_host
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("columns, beside, ahead", [(16, 1, 4), (16, 8, 1), (32, 2, 2), (64, 1, 3), (64, 4, 4)])
@pytest.mark.sample(2)
def test_every_size_of_slabs(columns: int, beside: int, ahead: int, tb: bool) -> None:
    for m, k, n in ((5, 1096, 72), (16, 520, 200)):
        a, b = _pair(m, k, n, False, tb, np.float16)
        bias = np.random.default_rng(0).standard_normal(n).astype(np.float32)
        skinny(a, b, bias, tb=tb, activation="silu", columns=columns, beside=beside, ahead=ahead)


@on_host
@pytest.mark.parametrize("parts", [2, 3, 8])
def test_parts_of_long_sums(parts: int) -> None:
    a, b = _pair(4, 1100, 40, False, True, np.float16)
    bias = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    skinny(a, b, bias, tb=True, activation="gelu", split_k=parts)
    a, b = np.stack([a, a * 2, a - 1])[:, None], np.stack([b, -b])
    skinny(a, b, tb=True, split_k=parts)


@on_host
def test_what_is_not_there_takes_no_part() -> None:
    """Rows, columns and terms beyond the matrices are read as their neighbours: an infinity there shows in no other
    result."""
    for tb in (False, True):
        a, b = _pair(3, 40, 24, False, tb, np.float16)
        a[2], b[-1], b[:, -1] = np.inf, np.inf, np.inf
        with forcing(algorithm="skinny"), np.errstate(invalid="ignore"):
            got = run("matmul", a, b, limits=_LIMITS, backend="cuda", **_attrs(tb=tb))
            want = _want(a, b, **_attrs(tb=tb))
        assert (np.isfinite(got) == np.isfinite(want)).all()


def test_what_is_read_by_units() -> None:
    """Rows whose length is no multiple of eight halves are read one by one."""
    for k, n, units in ((64, 40, (1, 1)), (63, 40, (0, 1)), (64, 41, (1, 0))):
        a, b = np.zeros((8, k), np.float16), np.zeros((k, n), np.float16)
        (step,) = lower("matmul", [a, b], _attrs(), limits=_LIMITS)[2].steps
        assert isinstance(step, Launch) and isinstance(step.kernel, FileKernel)
        assert step.kernel.stem == "matmul_skinny" and step.kernel.constants[3:5] == units


@on_host
@pytest.mark.parametrize("algorithm", ["skinny", "direct"])
def test_the_barrier_before_the_last_sums_is_needed_and_missed(algorithm: str) -> None:
    """The others cannot be missed here: on the host a warp runs to its next barrier before another begins, and its
    threads meet where they load matrices."""
    a, b = _pair(16, 1096, 32, False, True, np.float16)
    header = f"matmul_{algorithm}.h"
    *_, last = barriers_of(header)

    def product() -> None:
        with forcing(algorithm=algorithm, ahead=1):
            run("matmul", a, b, limits=_LIMITS, backend="cuda", **_attrs(tb=True))

    barrier_is_missed(header, last, product)


@pytest.mark.vulkan
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("other", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.sample(vulkan=2)
@pytest.mark.late
def test_rows_of_multiply_adds(other: Any, tb: bool) -> None:
    for m in sampled((17, 1, 2, 4, 7, 9, 16), most=2):
        k, n = ((264, 72), (37, 33), (1, 1))[m % 3]
        a, b = _pair(m, k, n, False, tb, np.float32, other)
        with forcing(algorithm="rows"):
            close(run("matmul", a, b, **_attrs(tb=tb)), _want(a, b, **_attrs(tb=tb)))


@on_host
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_every_number_of_steps_ahead(ahead: int, tb: bool) -> None:
    """The loads of several steps are outstanding, where the sum has fewer steps than that and where it has more."""
    for m, k, n, dtype in ((1, 1096, 24, np.float32), (3, 520, 40, np.float16), (16, 300, 72, np.float32)):
        a, b = _pair(m, k, n, False, tb, dtype)
        with forcing(algorithm="rows", sites=16, ahead=ahead):
            got = run("matmul", a, b, limits=_LIMITS, backend="cuda", **_attrs(tb=tb))
        close(got, _want(a, b, **_attrs(tb=tb)), **ROUNDED.get(dtype, {}))


# -- matrices made in registers


def direct(a: Array, b: Array, *bias: Array, tb: bool, activation: str | None = None, **limits: float) -> Array:
    """Checks one product by matrices made in registers. Returns: it."""
    attrs = _attrs(tb=tb, activation=activation)
    with forcing(algorithm="direct"), np.errstate(invalid="ignore"):
        (step,) = lower("matmul", [a, b, *bias], attrs, limits=_LIMITS, backend="cuda")[2].steps
        assert isinstance(step, Launch) and isinstance(step.kernel, FileKernel)
        assert step.kernel.stem == "matmul_direct"
        got = run("matmul", a, b, *bias, limits=_LIMITS, backend="cuda", **attrs)
        close(got, _want(a, b, *bias, **attrs), **(limits or ROUNDED.get(a.dtype.type, {})))
    return got


@on_host
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, *HALVES])
@pytest.mark.late
def test_every_number_of_rows_by_matrices_in_registers(dtype: Any, tb: bool) -> None:
    """Sums of one step and of several, whole and not; tiles that fit and that do not; more rows than a matrix has."""
    for m in sampled((16, 1, 5, 9, 13, 17, 40), most=3):
        k, n = ((128, 128), (1160, 136), (648, 200))[m % 3]
        a, b = _pair(m, k, n, False, tb, dtype)
        direct(a, b, np.random.default_rng(0).standard_normal(n).astype(np.float32), tb=tb, activation="silu")


@on_host
def test_batches_by_matrices_in_registers() -> None:
    for tb in (False, True):
        a, b = _pair(4, 136, 72, False, tb)
        direct(np.stack([a, a * 2, a - 1])[:, None], np.stack([b, -b]), tb=tb)


@on_host
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.late
def test_f32_in_terms_is_f32(tb: bool) -> None:
    """Terms of one sign add up their errors, since matrix units cut sums off; large and small numbers in one sum;
    numbers near the ends of f32."""
    a, b = _pair(16, 2056, 40, False, tb)
    direct(np.abs(a), np.abs(b), tb=tb, nmse=3e-13, worst=1e-6)
    powers = np.exp2(np.random.default_rng(1).integers(-20, 20, a.shape)).astype(np.float32)
    got = direct(a * powers, b, tb=tb)
    for up in (2.0**60, 2.0**-60):
        np.testing.assert_array_equal(direct(a * powers * np.float32(up), b / np.float32(up), tb=tb), got)


@on_host
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, *HALVES])
def test_what_is_not_finite_by_matrices_in_registers(dtype: Any, tb: bool) -> None:
    """It shows where it belongs: an infinity has no second term, and the last step reads terms once more as zeros."""
    a, b = _pair(9, 200, 72, False, tb, dtype)
    lines = b if tb else b.T
    a[3, 5], a[4, 7], a[5, 8], lines[9, 190], lines[9, 3] = np.nan, np.inf, -np.inf, np.inf, 1
    a[6, 9] = 3.4e38 if dtype != np.float16 else 65504
    lines[:, 9] = 2.0**-10
    direct(a, b, tb=tb)
