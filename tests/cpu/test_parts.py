"""NumPy's kernels where they cut long work into parts, which cases are too small for."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.backends.cpu.host import quantized
from rlx.packed import PackedArray
from tests.cpu.test_engine_products import packed_rows


def session() -> rlx.Session:
    return rlx.Session("cpu", engine="numpy")


def test_tiles_of_a_packed_weight_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "_TILE_ELEMENTS", 64)
    q: PackedArray = packed_rows("q8_0", 37, 64)
    x = np.random.default_rng(0).standard_normal((5, 37)).astype(np.float32)
    graph = rlx.Graph("packed")
    y = rlx.packed_matmul(graph.input("x", x.shape), graph.input("q", (37, 64), q.dtype), transpose_q=False)
    graph.output("y", y)
    made = session().compile(graph).run({"x": x, "q": q})["y"]
    np.testing.assert_allclose(made, x.astype(np.float64) @ q.dequantize(), rtol=1e-4, atol=1e-4)
