"""Integer products with packed weights: the CUDA source, and both forms of the SPIR-V, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.steps import FileKernel, Launch
from rlx.dtypes import as_dtype
from rlx.packed import PackedArray
from tests.gpu import cuda_host, lowered
from tests.gpu.lowered import ROUNDED, Array, close
from tests.gpu.test_packed_family import lower, packed, run
from tests.ops.families.packed_int8 import rounded

load_rules()
on_host = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
on_vulkan = pytest.mark.vulkan


def product(name: str, m: int, n: int, blocks: int, dtype: str, backend: str) -> None:
    """A product, and its error against float64."""
    kind, q = as_dtype(dtype), packed(name, n, blocks)
    x = np.random.default_rng(m + n).standard_normal((m, q.shape[1])).astype(kind.np)
    x[0, :32] = 0
    got = run("packed_matmul_int8", q, x, backend=backend, transpose_q=True)
    w, near = q.dequantize().astype(np.float64), rounded(x)
    close(got, near @ w.T, scale=np.sqrt(near**2 @ w.T**2), **ROUNDED.get(kind.np.type, {}))


@on_host
@pytest.mark.parametrize(
    "name, m, n, blocks, dtype",
    [
        ("q4_0", 1, 9, 3, "f32"), ("q5_1", 3, 20, 8, "f16"), ("q2_k", 5, 7, 1, "bf16"), ("q6_k", 2, 33, 2, "f32"),
        ("iq4_nl", 4, 9, 8, "f32"), ("int8_zp", 2, 9, 3, "f32"), ("int4_zp_128", 1, 9, 2, "f32"),
        ("mxfp4", 3, 9, 3, "f32"),
    ],
)  # fmt: skip
def test_products_of_the_cuda_source(name: str, m: int, n: int, blocks: int, dtype: str) -> None:
    product(name, m, n, blocks, dtype, "cuda")


@on_host
def test_seventeen_rows_of_the_cuda_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "SOFTWARE", False)  # a software driver takes four at a time
    product("q4_k", 17, 9, 1, "f32", "cuda")


@on_vulkan
@pytest.mark.parametrize("dots", [True, False])
@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q5_k", "iq4_xs", "int8_zp"])
def test_dot_products_as_an_instruction_and_without(
    name: str, dots: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = lowered.FEATURES | {"intdot"} if dots else lowered.FEATURES - {"intdot"}
    monkeypatch.setattr(lowered, "FEATURES", features)
    product(name, 3, 9, 2, "f32", "vulkan")
    q = packed(name, 9, 2)
    _, _, lowering, _ = lower(
        "packed_matmul_int8", q, [np.ones((3, q.shape[1]), np.float32)], "vulkan", transpose_q=True
    )
    blocks, multiplied = lowering.steps
    assert isinstance(blocks, Launch) and isinstance(multiplied, Launch)
    assert isinstance(multiplied.kernel, FileKernel)
    assert dict(multiplied.kernel.defines)["DOT"] == ("packed" if dots else "plain")


@on_host
def test_experts_of_the_cuda_source() -> None:
    q, n = packed("q4_1", 3 * 5, 2), 5
    stacked = PackedArray("q4_1", (3, n, q.shape[1]), q.data.reshape(3, n, -1))
    x = np.random.default_rng(2).standard_normal((9, q.shape[1])).astype(np.float32)
    sizes = np.array([5, -1, 2], np.int32)
    got = run("grouped_packed_matmul_int8", stacked, x, sizes, backend="cuda", transpose_q=True)
    w, near = q.dequantize().astype(np.float64).reshape(3, n, -1), rounded(x)
    want = np.concatenate([near[:5] @ w[0].T, near[5:7] @ w[2].T, np.zeros((2, n))])
    close(got, want, scale=np.abs(want) + 1)


@on_host
def test_a_scale_that_no_number_has_reaches_its_row_alone() -> None:
    q = packed("q8_0", 4, 2)
    x = np.ones((4, q.shape[1]), np.float32)
    x[1, 3], x[2, 40], x[3] = np.nan, -np.inf, 2.0**-101
    got: Array = run("packed_matmul_int8", q, x, backend="cuda", transpose_q=True)
    assert np.isfinite(got[0]).all() and np.isnan(got[1:3]).all() and (got[3] == 0).all()
