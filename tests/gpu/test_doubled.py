"""Inputs that repeat each element twice in a row, read in packs: as lowered, on a Vulkan device, and as CUDA text."""

from __future__ import annotations

import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.cuda.nvrtc import available
from rlx.backends.cuda.sources import kernel_source
from rlx.dtypes import as_dtype
from rlx.ir import expr as ex
from tests.cuda.compiled import compiled
from tests.gpu import lowered
from tests.gpu.lowered import Array, kernel_of, run

importlib.import_module("rlx.backends.gpu.rules.elementwise")
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.int64, np.int8, np.uint8]


@pytest.fixture(autouse=True)
def hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowering as for hardware, not a software driver: packs of four neighbouring elements where layouts allow it."""
    monkeypatch.setattr(lowered, "SOFTWARE", False)


def region(x: Array, z: Array, b: Array, shape: tuple[int, ...]) -> tuple[list[Array], dict[str, Any]]:
    """max(x, z) + b over a split shape: x is (…, H, 1, W, 1), z has the whole shape, b one element a channel."""
    kinds = [as_dtype(a.dtype) for a in (x, z, b)]
    tree = ex.call("add", ex.call("max", ex.arg(0, kinds[0]), ex.arg(1, kinds[1])), ex.arg(2, kinds[2]))
    return [x, z, b], {"trees": (tree,), "shape": shape}


def data(dtype: Any, *shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-9, 10, shape).astype(dtype)


@pytest.mark.vulkan
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("h, w", [(3, 4), (1, 2), (5, 6), (4, 5), (3, 1)])
def test_doubled_rows_and_columns(dtype: Any, h: int, w: int) -> None:
    c, shape = 3, (3, h, 2, w, 2)
    inputs, attrs = region(data(dtype, c, h, 1, w, 1), data(dtype, *shape), data(dtype, c, 1, 1, 1, 1), shape)
    want = np.maximum(inputs[0], inputs[1]) + inputs[2]
    kernel = kernel_of(inputs, attrs)
    if w > 1:  # with one element a line there are no pairs
        assert kernel.packed == (w % 2 == 0)
    if w % 2 == 0:
        assert [o.access for o in (*kernel.inputs, *kernel.outputs)] == ["doubled", "flat", "repeated", "flat"]
    got = run("fused", *inputs, **attrs)
    np.testing.assert_array_equal(got, want.astype(dtype))


@pytest.mark.vulkan
def test_rows_beside_doubled_rows() -> None:
    """An input that is broadcast over lines is read in packs of four, beside a doubled one."""
    shape = (4, 6, 2)
    x, z, b = data(np.float32, 4, 6, 1), data(np.float32, 6, 2), data(np.float32, 1, 1, 1)
    inputs, attrs = region(x, z, b, shape)
    kernel = kernel_of(inputs, attrs)
    assert [o.access for o in kernel.inputs] == ["doubled", "strided", "scalar"]
    np.testing.assert_array_equal(run("fused", *inputs, **attrs), np.maximum(x, z) + b)


@pytest.mark.skipif(not available(), reason="no NVRTC")
def test_the_cuda_text_compiles() -> None:
    shape = (3, 4, 2, 6, 2)
    for dtype in DTYPES:
        inputs, attrs = region(data(dtype, 3, 4, 1, 6, 1), data(dtype, *shape), data(dtype, 3, 1, 1, 1, 1), shape)
        source = kernel_source(kernel_of(inputs, attrs))
        assert "load_pack<2>(x0" in source.text
        assert compiled(source, "compute_90")
