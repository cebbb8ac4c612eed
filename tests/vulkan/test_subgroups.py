"""Rows exchanged by registers: which devices do it, and what their kernels give. tests/gpu runs the other modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.program.steps import FileKernel
from rlx.backends.vulkan.pipelines import Pipelines, has_spirv, shuffles
from rlx.runtime import Session

BOTH = frozenset({"subgroup", "full_subgroups"})
SOFTMAX = FileKernel("softmax", (("T", "f32"),), (64, 1, 0))


def test_full_subgroups_of_a_known_size_are_needed() -> None:
    assert all(shuffles(BOTH, size) for size in (4, 8, 16, 32, 64, 128))
    assert not shuffles(BOTH, 1) and not shuffles(BOTH, 2)
    assert not shuffles(BOTH - {"full_subgroups"}, 32) and not shuffles(BOTH - {"subgroup"}, 32)


def test_row_kernels_come_both_ways() -> None:
    for name in ("softmax-f32", "row_norm-bf16-bf16", "log_softmax-f16", "cross_entropy-f32"):
        assert has_spirv(name) and has_spirv(f"{name}.subgroup")
    assert not has_spirv("reduce-f32_f32.subgroup")


@pytest.mark.vulkan
def test_a_device_without_full_subgroups_gets_the_module_that_needs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device: Any = Session("vulkan").device
    for features in (device.target.features | BOTH, device.target.features - BOTH):
        if not shuffles(features, device.limits.subgroup) and features >= BOTH:
            pytest.skip(f"subgroups of {device.limits.subgroup}")
        monkeypatch.setattr(device, "target", replace(device.target, features=features))
        made = Pipelines(device)
        try:
            expected = "softmax-f32.subgroup" if features >= BOTH else "softmax-f32"
            assert made.get(SOFTMAX).name == expected
        finally:
            made.close()


@pytest.mark.vulkan
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("n", [3, 8, 40, 256, 1000, 4096])
@pytest.mark.sample(2, vulkan=3)
def test_rows_of_every_number_of_threads(n: int, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = Session("vulkan").device
    features = device.target.features | {"fused_fma"} if fused else device.target.features - {"fused_fma"}
    monkeypatch.setattr(device, "target", replace(device.target, features=features))
    made = Pipelines(device)
    monkeypatch.setattr(device, "pipelines", made)
    x = np.random.default_rng(n).standard_normal((7, n)).astype(np.float32)
    wide = x.astype(np.float64)
    spread = np.exp(wide - wide.max(-1, keepdims=True))
    centred = wide - wide.mean(-1, keepdims=True)
    g = rlx.Graph("rows")
    given = g.input("x", x.shape)
    one, zero = (g.constant(np.full(n, v, np.float32)) for v in (1, 0))
    g.output("softmax", rlx.softmax(given))
    g.output("norm", rlx.layer_norm(given, one, zero, eps=1e-5))
    with Session("vulkan").compile(g) as exe:
        got = exe.run({"x": x})
    made.close()
    np.testing.assert_allclose(got["softmax"], spread / spread.sum(-1, keepdims=True), rtol=1e-5)
    norm = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got["norm"], norm, rtol=1e-5, atol=1e-6)
