"""Linear layers of one row with packed weights, fused with what stands around them: the kernels of both languages
against products in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.gemm.packed import forcing
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.lowering import Lowering
from rlx.driver import Limits
from rlx.driver.memory.planner import plan
from rlx.dtypes import PACKED, as_dtype
from rlx.ops.elementwise.unary import NUMPY_ACTIVATIONS
from tests.gpu import cuda_host, lowered
from tests.gpu.lowered import ROUNDED, close
from tests.gpu.missed_barriers import every_barrier_is_missed
from tests.gpu.test_packed_family import packed, run

load_rules()
_LIMITS = Limits(shared_bytes=48 << 10, dynamic_shared_bytes=220 << 10, subgroup=32)
on_host = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
on_vulkan = pytest.mark.vulkan


def fused(
    name: str, n: int, blocks: int, dtype: str, backend: str, eps: float | None = 0.1, gate: str | None = None,
    bias: str | None = None, size: float = 1.0, **words: Any,
) -> None:  # fmt: skip
    """A layer, and its error against float64."""
    kind, rng = as_dtype(dtype), np.random.default_rng(n)
    q = packed(name, n, blocks)
    given = {"x": (rng.standard_normal((1, q.shape[1])) * size).astype(kind.np)}
    if eps is not None:
        given["gamma"] = rng.standard_normal(q.shape[1]).astype(np.float32)
    if bias is not None:
        given["bias"] = rng.standard_normal(n).astype(as_dtype(bias).np)
    graph = rlx.Graph("row")
    tensors = {key: graph.input(key, a.shape, as_dtype(a.dtype)) for key, a in given.items()}
    weight = graph.input("q", q.shape, PACKED[name])
    attrs = {"format": q.dtype, "eps": eps, "gate": gate}
    x, *rest = tensors.values()
    graph.output("y", graph.add("packed_linear", [x, weight, *rest], attrs)[0])
    planned = plan(graph, planner="bump")
    with forcing(**words):
        lowering = Lowering(graph, planned, lowered.target(backend, _LIMITS), "f32")
        lowering.lower(graph.nodes[-1])
    values = [given.get(key, q.data) for key in graph.inputs]
    got = lowered.carried_out(graph, planned, lowering, values, backend)["y"]
    wide, w = given["x"].astype(np.float64), q.dequantize().astype(np.float64)
    if eps is not None:
        wide = wide / np.sqrt(np.mean(wide**2) + eps) * given["gamma"]
    want, scale = wide @ w.T, np.sqrt(wide**2 @ w.T**2)
    if bias is not None:
        want = want + given["bias"].astype(np.float64)
    if gate is not None:
        half = n // 2
        top, scale = np.abs(want) + 1, scale[:, :half] * (np.abs(want[:, half:]) + 1) + scale[:, half:]
        want, scale = NUMPY_ACTIVATIONS[gate](want[:, :half]) * want[:, half:], scale * top[:, :half]
    close(got, want, scale=scale, **ROUNDED.get(kind.np.type, {}))


@pytest.fixture
def subnormals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES | {"denorm_preserve"})
    monkeypatch.setattr(lowered, "SOFTWARE", False)


@pytest.fixture
def dots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES | {"intdot"})
    monkeypatch.setattr(lowered, "SOFTWARE", False)


@on_host
@pytest.mark.usefixtures("subnormals")
@pytest.mark.parametrize(
    "name, n, blocks, dtype, words",
    [
        ("q8_0", 66, 288, "f32", {}),
        ("q8_0", 38, 16, "bf16", {"gate": "silu", "parts": 2}),
        ("q4_k", 37, 8, "bf16", {"bias": "bf16", "parts": 1, "high": 2}),
        ("q4_k", 300, 16, "f32", {"gate": "silu", "parts": 4, "resident": 1}),
        ("q6_k", 33, 8, "f16", {"eps": None, "bias": "f32"}),
        ("q6_k", 34, 8, "f32", {"gate": "silu", "parts": 2, "high": 2}),
    ],
)
def test_multiply_adds(name: str, n: int, blocks: int, dtype: str, words: dict[str, Any]) -> None:
    fused(name, n, blocks, dtype, "cuda", **words)


@on_host
@pytest.mark.usefixtures("subnormals")
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_a_row_of_any_size(size: float) -> None:
    fused("q4_k", 20, 8, "f32", "cuda", size=size)


@on_host
@pytest.mark.usefixtures("subnormals")
@pytest.mark.parametrize("name", ["q4_k", "q8_0", "q2_k", "iq4_xs"])
@pytest.mark.parametrize("limbs", [True, False])
def test_elements_of_very_different_sizes(name: str, limbs: bool) -> None:
    """32 elements become integers together, by the largest of them: here one is 10,000 times as large as most."""
    q, rng = packed(name, 20, 64 if name == "q8_0" else 8), np.random.default_rng(3)
    x = rng.standard_normal((1, q.shape[1])).astype(np.float32)
    x[0, ::32] *= 1e4
    with forcing(algorithm="line", limbs=limbs):
        got = run("packed_matmul", q, x, backend="cuda", transpose_q=True).astype(np.float64)
    want = x.astype(np.float64) @ q.dequantize().astype(np.float64).T
    assert ((got - want) ** 2).sum() <= 2e-12 * (want**2).sum()
    x[0, 5], x[0, 77] = np.inf, np.nan
    with forcing(algorithm="line", limbs=limbs):
        assert np.isnan(run("packed_matmul", q, x, backend="cuda", transpose_q=True)).all()


@on_host
@pytest.mark.usefixtures("subnormals")
def test_barriers() -> None:
    # Several tiles a workgroup, and several slabs.
    many = {"parts": 2, "resident": 1, "slab": 128}

    def both() -> None:
        fused("q8_0", 1100, 16, "f32", "cuda", **many)
        fused("q8_0", 40, 96, "f32", "cuda", **many)

    every_barrier_is_missed("packed_line.h", both)


@on_host
@pytest.mark.usefixtures("dots")
@pytest.mark.parametrize(
    "name, n, blocks, dtype, words",
    [
        ("q8_0", 66, 288, "f32", {}),
        ("q8_0", 38, 16, "bf16", {"gate": "silu", "parts": 2, "high": 2}),
        ("q4_k", 37, 8, "bf16", {"bias": "bf16", "high": 2}),
        ("q4_k", 300, 16, "f32", {"gate": "silu", "parts": 4}),
        ("q6_k", 33, 8, "f16", {"eps": None, "bias": "f32"}),
        ("iq4_nl", 20, 16, "f32", {"parts": 2}),
        ("int8_zp", 20, 16, "f32", {"size": 1e-30}),
        ("q4_0", 20, 16, "f32", {"size": 1e30}),
        # Three tiles a workgroup.
        ("q8_0", 1070, 8, "f32", {"gate": "silu", "parts": 4, "high": 2, "resident": 1, "size": 1e30}),
        ("q4_0", 661, 8, "bf16", {"bias": "bf16", "parts": 8, "high": 2, "resident": 1}),
    ],
)
def test_digits(name: str, n: int, blocks: int, dtype: str, words: dict[str, Any]) -> None:
    fused(name, n, blocks, dtype, "cuda", **words)


@on_host
@pytest.mark.usefixtures("dots")
def test_barriers_of_digits() -> None:
    # Several tiles a workgroup, and several slabs.
    def both() -> None:
        fused("q8_0", 1100, 16, "f32", "cuda", parts=2, resident=1)
        fused("q8_0", 40, 96, "f32", "cuda", parts=2, slab=64)

    every_barrier_is_missed("packed_digits.h", both)


@on_vulkan
@pytest.mark.usefixtures("dots")
def test_digits_on_vulkan() -> None:
    fused("q8_0", 66, 288, "f32", "vulkan", gate="silu")


@on_vulkan
@pytest.mark.usefixtures("subnormals")
@pytest.mark.sample(vulkan=1)
@pytest.mark.parametrize("gate", [None, "silu"])
def test_on_vulkan(gate: str | None) -> None:
    fused("q8_0", 66, 288, "f32", "vulkan", gate=gate)
