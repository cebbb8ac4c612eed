"""Normalizations of ONNX of equal numbers and of numbers far from 0, beside float64 of the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

import rlx.onnx
from tests.onnx.models import model, node

CASES = {
    "LayerNormalization": ((3, 64), (1,), "y mean rate", ("one", "zero")),
    "InstanceNormalization": ((2, 4, 63), (2,), "y", ("one", "zero")),
    "GroupNormalization": ((2, 4, 33), (2,), "y", ("one", "zero")),
    "BatchNormalization": ((5, 4, 33), (0, 2), "y m v", ("one", "zero", "zero", "one")),
    "MeanVarianceNormalization": ((5, 4, 33), (0, 2), "y", ()),
}


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.sample(2, vulkan=4)
def test_normalizations(kind: str, equal: bool, device: str) -> None:
    shape, axes, outputs, weights = CASES[kind]
    x = np.full(shape, 1000000.125) + (0 if equal else np.random.default_rng(4).standard_normal(shape))
    x = x.astype(np.float32)
    eps = 0.0 if kind == "MeanVarianceNormalization" else 1e-5
    attributes = {
        "GroupNormalization": {"num_groups": 4}, "BatchNormalization": {"training_mode": 1, "momentum": 0.0},
        "MeanVarianceNormalization": {"axes": axes},
    }.get(kind, {})  # fmt: skip
    channels = shape[-1] if kind == "LayerNormalization" else shape[1]
    values = {"one": np.ones(channels, np.float32), "zero": np.zeros(channels, np.float32)}
    made = model(
        [node(kind, " ".join(["x", *weights]), outputs, **attributes)], {"x": list(shape)},
        dict.fromkeys(outputs.split()), {n: v for n, v in values.items() if n in weights},
    )  # fmt: skip
    got = rlx.onnx.load(made.SerializeToString()).run({"x": x}, device=device)
    away = x - x.astype(np.float64).mean(axes, keepdims=True)
    spread = (away**2).mean(axes, keepdims=True)
    if equal:
        np.testing.assert_array_equal(got["y"], 0)
    else:
        want = away / np.sqrt(spread + eps)
        assert np.sum((got["y"] - want) ** 2) <= 1e-11 * np.sum(want**2)
    if "v" in got:
        np.testing.assert_allclose(got["v"], spread.reshape(-1), rtol=3e-6)
    if "rate" in got:
        np.testing.assert_allclose(got["rate"], 1 / np.sqrt(spread + eps), rtol=3e-6)
