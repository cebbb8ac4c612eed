"""Operators of com.microsoft: declarations, activations and biases beside float64 and ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import erf, expit

import rlx
from rlx.errors import ModelFormatError, UnsupportedOp
from tests.onnx.microsoft import beside, judged, microsoft
from tests.onnx.models import model, node

RNG = np.random.default_rng(11)


def test_a_node_is_held_against_the_declaration() -> None:
    x = np.ones((2, 3), np.float32)
    for kind, names, says, attributes in [
        ("Gelu", "x", "has no attribute 'alpha'", {"alpha": 1.0}),
        ("Gelu", "x x", "has 2 inputs; expected 1", {}),
        ("BiasGelu", "x", "has 1 input; expected 2", {}),
        ("QuickGelu", "x", "attribute alpha is of kind", {"alpha": 1}),
        ("BiasGelu", "x x", "the bias is", {}),
        ("BiasGelu", "x _", r"input 1 \(B\) is left out", {}),
    ]:
        proto = microsoft(kind, {"x": x}, names, **attributes)
        with pytest.raises(ModelFormatError, match=f"{kind}.*{says}"):
            rlx.onnx.load(proto, strict=True).run({"x": x})
    proto = microsoft("Gelu", {"x": np.ones(3, np.int64)}, "x")
    with pytest.raises(ModelFormatError, match=r"input 0 \(X\) is tensor\(int64\).*takes tensor\(bfloat16\)"):
        rlx.onnx.load(proto).run({"x": np.ones(3, np.int64)})


def test_what_is_not_in_the_table_is_said_when_loading() -> None:
    made = node("NoSuchThing", "x", "y", domain="com.microsoft")
    with pytest.raises(UnsupportedOp, match=r"com.microsoft 'NoSuchThing' version 1 at"):
        rlx.onnx.load(model([made], {"x": [2]}, {"y": [2]}, domains=["com.microsoft"]))
    made = node("Mine", "x", "y", domain="elsewhere")
    with pytest.raises(UnsupportedOp, match=r"elsewhere 'Mine' of a domain that is not imported"):
        rlx.onnx.load(model([made], {"x": [2]}, {"y": [2]}))


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + erf(x / np.sqrt(2))) / 2


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_activations(device: str, dtype: type) -> None:
    x, b, s = (RNG.normal(size=n).astype(dtype) for n in [(3, 5, 14), 14, (3, 5, 14)])
    wide, row, skip = (a.astype(np.float64) for a in (x, b, s))
    judged(device, "Gelu", {"x": x}, gelu(wide))
    judged(device, "BiasGelu", {"x": x, "b": b}, gelu(wide + row))
    judged(device, "FastGelu", {"x": x}, tanh_gelu(wide))
    judged(device, "FastGelu", {"x": x, "b": b}, tanh_gelu(wide + row))
    judged(device, "QuickGelu", {"x": x}, wide * expit(1.702 * wide))
    judged(device, "QuickGelu", {"x": x}, wide * expit(0.5 * wide), alpha=0.5)
    judged(device, "BiasAdd", {"x": x, "b": b, "s": s}, wide + row + skip)
    both = wide + row
    judged(device, "BiasSplitGelu", {"x": x, "b": b}, both[..., :7] * gelu(both[..., 7:]))


@pytest.mark.judged
def test_activations_beside_onnx_runtime() -> None:
    x, b = RNG.normal(size=(3, 17)).astype(np.float32), RNG.normal(size=17).astype(np.float32)
    for kind, given in [
        ("Gelu", {"x": x}),
        ("BiasGelu", {"x": x, "b": b}),
        ("FastGelu", {"x": x, "b": b}),
        ("QuickGelu", {"x": x}),
    ]:
        beside(kind, given)
