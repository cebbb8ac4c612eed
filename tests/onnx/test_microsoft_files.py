"""Whole files as ONNX Runtime's optimizer writes them, beside the files they were written from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rlx
from tests.onnx.models import model, node
from tests.outside import outside

RNG = np.random.default_rng(16)


def block() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Attention with a scaled product, a norm written out, gelu written out, and a convolution with relu."""
    shapes = {
        "w": (8, 8),
        "b": (8,),
        "g": (8,),
        "e": (8,),
        "up": (8, 16),
        "ub": (16,),
        "k": (4, 3, 3, 3),
        "kb": (4,),
    }
    weights = {n: (RNG.normal(size=s) / 2).astype(np.float32) for n, s in shapes.items()}
    weights |= {
        "two": np.float32(2),
        "eps": np.float32(1e-5),
        "root": np.float32(2**0.5),
        "one": np.float32(1),
    }
    weights |= {"half": np.float32(0.5), "four": np.float32(4)}
    nodes = [
        node("MatMul", "x w", "p"), node("Add", "p b", "q"), node("Transpose", "q", "qt", perm=[0, 2, 1]),
        node("MatMul", "q qt", "s0"), node("Div", "s0 four", "s"), node("Softmax", "s", "a", axis=-1),
        node("MatMul", "a q", "y0"),
        node("ReduceMean", "y0", "m", axes=[-1], keepdims=1), node("Sub", "y0 m", "d"), node("Pow", "d two", "d2"),
        node("ReduceMean", "d2", "v", axes=[-1], keepdims=1), node("Add", "v eps", "ve"), node("Sqrt", "ve", "r"),
        node("Div", "d r", "n"), node("Mul", "n g", "ng"), node("Add", "ng e", "y1"),
        node("MatMul", "y1 up", "u0"), node("Add", "u0 ub", "u"), node("Div", "u root", "ur"), node("Erf", "ur", "ue"),
        node("Add", "ue one", "u1"), node("Mul", "u u1", "u2"), node("Mul", "u2 half", "y"),
        node("Conv", "i k kb", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "z"),
    ]  # fmt: skip
    given = {"x": RNG.normal(size=(2, 5, 8)).astype(np.float32), "i": RNG.normal(size=(1, 3, 6, 5))}
    given["i"] = given["i"].astype(np.float32)
    inputs = {n: list(a.shape) for n, a in given.items()}
    return model(nodes, inputs, {"y": None, "z": None}, weights, opset=13), given


def optimized(proto: onnx.ModelProto, path: Path) -> Any:
    """The session of ONNX Runtime that wrote what it made of the model to `path`."""
    runtime = outside("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    return runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.judged
@pytest.mark.late("vulkan")
def test_a_file_that_the_optimizer_wrote(tmp_path: Path, device: str) -> None:
    proto, given = block()
    path = tmp_path / "optimized.onnx"
    want = optimized(proto, path).run(None, given)
    kinds = {(n.domain, n.op_type) for n in onnx.load(path).graph.node}
    assert {("com.microsoft", n) for n in ("FusedMatMul", "Gelu", "FusedConv")} <= kinds
    assert ("", "LayerNormalization") in kinds
    loaded = rlx.onnx.load(path)
    plain = rlx.onnx.load(proto).run(given, device=device)
    got = loaded.run(given, device=device)
    for name, array in zip(["y", "z"], want, strict=True):
        assert np.allclose(got[name], array, rtol=1e-5, atol=2e-6)
        assert np.allclose(got[name], plain[name], rtol=1e-5, atol=2e-6)
