"""Steps of optimizers and gradients, beside the same in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import rlx
from rlx.errors import ModelFormatError, UnsupportedOp
from tests.onnx.models import I64, model, node

DOMAIN = "ai.onnx.preview.training"
RNG = np.random.default_rng(9)


def stepped(
    kind: str, names: str, t: int, device: str, **attributes: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors given and the results, of two tensors of different shapes."""
    given = {f"{n}{k}": RNG.random(s).astype(np.float32) for n in names for k, s in enumerate([(3,), (2, 4)])}
    outs = [f"{n}{k}" for n in names if n != "g" for k in (0, 1)]
    made = node(
        kind, " ".join(["r", "t", *given]), " ".join("new_" + n for n in outs), domain=DOMAIN, **attributes
    )
    inputs: dict[str, Any] = {"r": [], "t": ([], I64), **{n: list(v.shape) for n, v in given.items()}}
    outputs = {"new_" + n: (list(given[n].shape), TensorProto.FLOAT) for n in outs}
    proto = model([made], inputs, outputs, domains=[DOMAIN])
    got = rlx.onnx.load(proto).run({"r": np.float32(0.1), "t": np.int64(t), **given}, device=device)
    return {n: v.astype(np.float64) for n, v in given.items()}, got


def close(got: Any, want: Any) -> bool:
    return np.allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("t", [0, 7])
def test_steps(t: int, device: str) -> None:
    given, got = stepped("Adagrad", "xgh", t, device, decay_factor=0.1, epsilon=1e-5, norm_coefficient=0.01)
    for k in "01":
        g = given["g" + k] + 0.01 * given["x" + k]
        h = given["h" + k] + g * g
        assert close(got["new_h" + k], h)
        assert close(got["new_x" + k], given["x" + k] - 0.1 / (1 + 0.1 * t) * g / (np.sqrt(h) + 1e-5))
    given, got = stepped(
        "Adam", "xgvh", t, device, alpha=0.9, beta=0.99, epsilon=1e-4, norm_coefficient_post=0.2
    )
    for k in "01":
        g = given["g" + k]
        v, h = 0.9 * given["v" + k] + 0.1 * g, 0.99 * given["h" + k] + 0.01 * g * g
        rate = 0.1 * np.sqrt(1 - 0.99**t) / (1 - 0.9**t) if t else 0.1
        assert close(got["new_v" + k], v) and close(got["new_h" + k], h)
        assert close(got["new_x" + k], 0.8 * (given["x" + k] - rate * v / (np.sqrt(h) + 1e-4)))
    for mode in ("standard", "nesterov"):
        given, got = stepped(
            "Momentum", "xgv", t, device, alpha=0.9, beta=0.5, norm_coefficient=0.1, mode=mode
        )
        for k in "01":
            g = given["g" + k] + 0.1 * given["x" + k]
            v = 0.9 * given["v" + k] + (0.5 if t else 1.0) * g
            assert close(got["new_v" + k], v)
            assert close(got["new_x" + k], given["x" + k] - 0.1 * (v if mode == "standard" else g + 0.9 * v))


def test_inputs_that_do_not_pair() -> None:
    made = node("Adagrad", "r t x g h h", "y", domain=DOMAIN, name="n")
    inputs = {"r": [], "t": ([], I64), "x": [2], "g": [2], "h": [2]}
    feeds = {n: np.zeros(d, np.float32) for n, d in inputs.items() if n != "t"} | {"t": np.int64(0)}
    with pytest.raises(ModelFormatError, match=r"'n'.*2 and 3 for each tensor"):
        rlx.onnx.load(model([made], inputs, {"y": [2]}, domains=[DOMAIN])).run(feeds, device="cpu")
    made = node("Adagrad", "r t x g h", "y z", domain=DOMAIN, name="n")
    with pytest.raises(ModelFormatError, match=r"'n'.*differs in shape"):
        rlx.onnx.load(model([made], {**inputs, "g": [1]}, {"y": [2]}, domains=[DOMAIN])).run(
            {**feeds, "g": np.zeros(1, np.float32)}, device="cpu"
        )


@pytest.mark.sample(vulkan=0)
def test_gradients_and_gradients_of_them(device: str) -> None:
    """y = Σ tanh(x w)²; the second derivative by the first's own operator."""
    nodes = [
        node("MatMul", "x w", "a"), node("Tanh", "a", "t"), node("Mul", "t t", "s"), node("ReduceSum", "s", "y"),
        node("Gradient", "w x", "dw", domain=DOMAIN, xs=["w"], zs=["x"], y="y"),
        node("Gradient", "w", "ddw", domain=DOMAIN, xs=["w"], y="dw"),
    ]  # fmt: skip
    proto = model(nodes, {"x": [4, 3], "w": [3, 1]}, {"dw": [3, 1], "ddw": [3, 1]}, domains=[DOMAIN])
    x, w = RNG.standard_normal((4, 3)), RNG.standard_normal((3, 1))
    got = rlx.onnx.load(proto).run({"x": x.astype(np.float32), "w": w.astype(np.float32)}, device=device)
    t = np.tanh(x @ w)
    assert close(got["dw"], x.T @ (2 * t * (1 - t**2)))
    # Σᵢ ∂dwᵢ/∂w, by the derivative of 2t(1 - t²) = 2t - 2t³ and that of tanh.
    assert np.allclose(
        got["ddw"], x.T @ ((2 - 6 * t**2) * (1 - t**2) * x.sum(1, keepdims=True)), rtol=1e-4, atol=1e-4
    )
    for made, error in (
        (node("Gradient", "x", "dw", domain=DOMAIN, name="n", xs=["w"], y="y"), UnsupportedOp),
        (node("Gradient", "w", "dw", domain=DOMAIN, name="n", xs=["w"], y="nothing"), ModelFormatError),
    ):
        proto.graph.node[4].CopyFrom(made)
        with pytest.raises(error, match="'n'"):
            rlx.onnx.load(proto).run({"x": np.float32(x), "w": np.float32(w)}, device=device)
