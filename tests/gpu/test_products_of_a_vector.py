"""Products of one row by the kernel of their own: the lowered steps, by the kernels of both backends, against NumPy in
float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.gemm.choice import forcing
from rlx.backends.gpu.program.steps import FileKernel, Launch
from tests.gpu import cuda_host
from tests.gpu.lowered import ROUNDED, carried_out, close, lower

_BACKENDS = [
    pytest.param("vulkan", marks=pytest.mark.vulkan),
    pytest.param(
        "cuda", marks=pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
    ),
]
_BF16: Any = ml_dtypes.bfloat16


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.sample(6, vulkan=2)
@pytest.mark.parametrize(
    "x, w", [(np.float32, np.float32), (np.float32, _BF16), (_BF16, _BF16), (np.float16, np.float16)]
)
@pytest.mark.parametrize("n, k", [(1, 1), (37, 300), (40, 2056), (5, 4100)])
@pytest.mark.parametrize("lanes, high", [(32, 1), (64, 2), (256, 4), (32, 8)])
@pytest.mark.parametrize("bias, activation", [(None, None), (np.float32, "silu"), (_BF16, None)])
def test_one_row(
    x: Any, w: Any, n: int, k: int, lanes: int, high: int, bias: Any, activation: str | None, backend: str
) -> None:
    rng = np.random.default_rng(n + k)
    given = [rng.standard_normal((1, k)).astype(x), (rng.standard_normal((n, k)) / np.sqrt(k)).astype(w)]
    given += [] if bias is None else [rng.standard_normal(n).astype(bias)]
    attrs = {"transpose_a": False, "transpose_b": True, "activation": activation}
    with forcing(algorithm="vector", lanes=lanes, high=high):
        graph, planned, lowering = lower("matmul", given, attrs, backend)
    (step,) = (s for s in lowering.steps if isinstance(s, Launch) and isinstance(s.kernel, FileKernel))
    assert isinstance(step.kernel, FileKernel) and step.kernel.stem == "matmul_vector"
    (got,) = carried_out(graph, planned, lowering, given, backend).values()
    want = given[0].astype(np.float64) @ given[1].astype(np.float64).T
    want = want if bias is None else want + given[2].astype(np.float64)
    want = want if activation is None else want / (1 + np.exp(-want))
    close(got, want, **ROUNDED.get(x, {}))
