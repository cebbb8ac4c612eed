"""Products of halves by instructions of warpgroups, with the whole epilogue: the CUDA source run on the CPU, without
its barriers between a bringing and two multiplying warpgroups but with addresses as in a cluster; and where they are
chosen."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.cuda.target import cuda_target
from rlx.backends.gpu.gemm.choice import Library, Panels, Problem, choose, forcing
from rlx.backends.gpu.gemm.product import Product
from rlx.backends.gpu.program.lowering import kernel_name
from rlx.driver import Limits
from rlx.dtypes import bf16
from tests.gpu import cuda_host, lowered
from tests.gpu.lowered import ROUNDED, Array, close, run
from tests.gpu.test_kernels_matmul import _attrs, _pair, _want

_LIMITS = Limits(shared_bytes=48 << 10, dynamic_shared_bytes=227 << 10, subgroup=32)
_WORDS = frozenset({"coopmat", "bf16_coopmat", "wgmma"})
on_host = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES | _WORDS)


def panels(a: Array, b: Array, *bias: Array, **attrs: Any) -> Array:
    with forcing(algorithm="panels"):
        made = lowered.lower("matmul", [a, b, *bias], attrs, "cuda", _LIMITS)[2].steps
        assert [kernel_name(step).split("-")[0] for step in made] == ["matmul_panels"]
        return run("matmul", a, b, *bias, limits=_LIMITS, backend="cuda", **attrs)


@on_host
@pytest.mark.parametrize("ta, tb", [*itertools.product([False, True], repeat=2)])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.sample(2)
def test_every_layout(dtype: Any, ta: bool, tb: bool) -> None:
    a, b = _pair(328, 72, 280, ta, tb, dtype)
    bias = np.random.default_rng(0).standard_normal(280).astype(np.float32)
    attrs = _attrs(ta, tb, "gelu")
    close(panels(a, b, bias, **attrs), _want(a, b, bias, **attrs), **ROUNDED[dtype])


@on_host
@pytest.mark.parametrize("end", [None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"])
def test_every_activation(end: str | None) -> None:
    a, b = _pair(40, 64, 72, False, True, np.float16)
    attrs = _attrs(False, True, end)
    close(panels(a, b, **attrs), _want(a, b, **attrs), **ROUNDED[np.float16])


@on_host
@pytest.mark.parametrize("ta", [False, True])
def test_the_second_workgroup_of_a_cluster_reads_columns_of_every_panel(ta: bool) -> None:
    """Its shared addresses differ from the first one's in a bit that no descriptor holds."""
    a, b = _pair(256, 64, 256, ta, False, np.float16)
    got, want = panels(a, b, **_attrs(ta)), _want(a, b, **_attrs(ta))
    close(got[128:], want[128:], **ROUNDED[np.float16])


@on_host
def test_columns_that_fill_no_unit() -> None:
    a, b = _pair(37, 136, 83, False, True, np.float16)
    close(panels(a, b, **_attrs(tb=True)), _want(a, b, **_attrs(tb=True)), **ROUNDED[np.float16])


def _chosen(m: int, k: int, n: int, end: str | None) -> type:
    target = cuda_target(_WORDS | {"16bit_storage", "subgroup"}, _LIMITS)
    problem = Problem(Product(m, n, k, (), False, False), bf16, bf16, bf16, "f32", aligned=True, apart=end)
    return type(choose(target, problem))


def test_where_the_library_would_leave_an_activation_to_another_launch() -> None:
    assert _chosen(8192, 768, 3072, "gelu") is _chosen(2048, 768, 3072, "gelu_tanh") is Panels
    assert _chosen(4096, 4096, 4096, "gelu") is Panels
    assert _chosen(8192, 768, 3072, None) is Library
    assert _chosen(512, 768, 3072, "gelu") is Library  # tiles would fill a third of the device
    assert _chosen(8192, 128, 4096, "gelu") is Library  # a sum too short to hide how results leave
