"""ONNX models as functions of their weights, with gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rlx
from rlx.errors import DTypeError, GraphError, ShapeError, UnsupportedOp
from rlx.models import trainable
from tests.onnx.models import model, node

RNG = np.random.default_rng(0)
W, B = RNG.standard_normal((3, 4)).astype(np.float32), RNG.standard_normal(4).astype(np.float32)
X = RNG.standard_normal((5, 3)).astype(np.float32)


def written(path: Path, proto: Any) -> Path:
    onnx.save(proto, path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    nodes = [node("Gemm", "x w b", "h"), node("Relu", "h", "r"), node("Mul", "r half", "y")]
    held = {"w": W, "b": B, "half": np.array(0.5, np.float32)}
    return written(tmp_path / "model.onnx", model(nodes, {"x": ["batch", 3]}, {"y": ["batch", 4]}, held))


def test_values_and_gradients_of_a_layer(file: Path) -> None:
    """A number without axes is a constant of the model, no weight."""
    function, weights = trainable(file)
    assert weights.keys() == {"w", "b"}
    want = np.maximum(X @ W + B, 0) * 0.5
    np.testing.assert_allclose(function(weights, {"x": X}), want, rtol=1e-5, atol=1e-6)
    slopes = rlx.grad(lambda weights: rlx.sum(function(weights, X) ** 2), device="cpu")(weights)
    back = 2 * want * 0.5 * (want > 0)
    np.testing.assert_allclose(slopes["w"], X.T @ back, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(slopes["b"], back.sum(0), rtol=1e-4, atol=1e-5)
    with rlx.onnx.load(file) as loaded:
        np.testing.assert_allclose(function(weights, X), loaded.run({"x": X}, device="cpu")["y"], rtol=1e-6)
    _, wide = trainable(file, "f64")
    assert {w.dtype.name for w in wide.values()} == {"float64"}


def test_a_weight_that_decides_a_shape_stays_a_constant(tmp_path: Path) -> None:
    nodes = [node("Resize", "x _ scales", "big", mode="nearest"), node("Mul", "big w", "y")]
    held = {"scales": np.array([1, 1, 2, 2], np.float32), "w": np.ones((1, 2, 1, 1), np.float32)}
    proto = model(nodes, {"x": [1, 2, 3, 3]}, {"y": [1, 2, 6, 6]}, held)
    function, weights = trainable(written(tmp_path / "model.onnx", proto))
    assert weights.keys() == {"w"}
    x = RNG.standard_normal((1, 2, 3, 3)).astype(np.float32)
    np.testing.assert_array_equal(function(weights, x), x.repeat(2, 2).repeat(2, 3))


def test_what_cannot_be_is_told(file: Path, tmp_path: Path) -> None:
    function, weights = trainable(file)
    with pytest.raises(GraphError, match="the weights have no 'b'; expected w, b"):
        function({"w": W}, X)
    with pytest.raises(GraphError, match=r"the inputs have no 'x'; expected x; got z"):
        function(weights, {"z": X})
    with pytest.raises(GraphError, match=r"the inputs have 'z'; expected x"):
        function(weights, {"x": X, "z": X})
    with pytest.raises(ShapeError, match=r"weight 'w' is f32\[4,3\]; expected shape \(3, 4\)"):
        function({**weights, "w": W.T.copy()}, X)
    with pytest.raises(DTypeError, match="activations are for language models"):
        trainable(file, activations="bf16")
    draws = model([node("RandomNormal", "", "y", shape=[2])], {}, {"y": [2]}, {})
    with pytest.raises(UnsupportedOp, match="draws random numbers"):
        trainable(written(tmp_path / "draws.onnx", draws))
