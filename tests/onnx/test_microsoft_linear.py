"""Fused products and convolutions of com.microsoft beside float64 and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import rlx
from rlx.errors import ModelFormatError, UnsupportedOp
from tests.full import sampled
from tests.onnx.microsoft import beside, judged, microsoft
from tests.onnx.test_microsoft import tanh_gelu

RNG = np.random.default_rng(12)


def rand(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


PRODUCTS: list[tuple[Any, Any, str, dict[str, Any]]] = [
    ((3, 5), (5, 7), "mk,kn->mn", {}),
    ((5, 3), (7, 5), "km,nk->mn", {"transA": 1, "transB": 1}),
    ((2, 3, 4, 5), (3, 7, 5), "abmk,bnk->abmn", {"transB": 1, "alpha": 0.125}),
    ((4, 2, 3, 5), (2, 3, 5, 7), "mabk,abkn->abmn", {"transBatchA": 1}),
    ((5, 2, 3, 4), (2, 3, 5, 7), "kabm,abkn->abmn", {"transBatchA": 1, "transA": 1, "alpha": 3.0}),
    ((2, 4, 5), (7, 2, 5), "amk,nak->amn", {"transBatchB": 1, "transB": 1}),
    ((5,), (3, 5, 7), "k,akn->an", {"transA": 1}),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.sample(1, vulkan=0)
def test_products_with_turned_axes(device: str, dtype: type) -> None:
    for a_shape, b_shape, said, attributes in sampled(PRODUCTS, most=3):
        a, b = rand(*a_shape, dtype=dtype), rand(*b_shape, dtype=dtype)
        want = np.einsum(said, a.astype(np.float64), b.astype(np.float64)) * attributes.get("alpha", 1.0)
        judged(device, "FusedMatMul", {"a": a, "b": b}, want, **attributes)
    a, b = rand(4, 6, dtype=dtype), rand(3, 6, dtype=dtype)
    want = 2 * a.astype(np.float64) @ b.T
    judged(device, "TransposeMatMul", {"a": a, "b": b}, want, transB=1, alpha=2.0)
    judged(device, "FusedMatMulActivation", {"a": a, "b": b}, np.maximum(want, 0), transB=1, alpha=2.0,
           activation="Relu")  # fmt: skip
    given = {"a": a, "b": b.T.copy(), "c": rand(3, dtype=dtype)}
    judged(device, "GemmFastGelu", given, tanh_gelu(a.astype(np.float64) @ b.T + given["c"]))


@pytest.mark.sample(vulkan=0)
def test_a_product_of_halves_is_scaled_before_it_is_too_large(device: str) -> None:
    a, b = np.full((1, 64), 40, np.float16), np.full((64, 1), 40, np.float16)
    judged(device, "FusedMatMul", {"a": a, "b": b}, np.full((1, 1), 12800.0), alpha=0.125)


ACTIVATIONS: list[tuple[str, list[float], Any]] = [
    ("Relu", [], lambda x: np.maximum(x, 0)),
    ("Tanh", [], np.tanh),
    ("Sigmoid", [], expit),
    ("Softplus", [], lambda x: np.log1p(np.exp(x))),
    ("Softsign", [], lambda x: x / (1 + np.abs(x))),
    ("LeakyRelu", [0.2], lambda x: np.where(x < 0, 0.2 * x, x)),
    ("Elu", [0.7], lambda x: np.where(x < 0, 0.7 * np.expm1(x), x)),
    ("HardSigmoid", [0.3, 0.4], lambda x: np.clip(0.3 * x + 0.4, 0, 1)),
    ("ThresholdedRelu", [0.5], lambda x: np.where(x > 0.5, x, 0)),
]


@pytest.mark.parametrize(("name", "numbers", "function"), ACTIVATIONS)
@pytest.mark.sample(vulkan=4)
def test_gemm_with_an_activation(name: str, numbers: list[float], function: Any, device: str) -> None:
    given = {"a": rand(6, 5), "b": rand(7, 6), "c": rand(5, 1)}
    attributes = dict(zip(["activation_alpha", "activation_beta"], numbers, strict=False))
    attributes |= {"activation": name, "transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}
    wide = {n: v.astype(np.float64) for n, v in given.items()}
    want = function(0.5 * wide["a"].T @ wide["b"].T + 2 * wide["c"])
    judged(device, "FusedGemm", given, want, **attributes)


@pytest.mark.sample(vulkan=0)
def test_gemm_without_one(device: str) -> None:
    given = {"a": rand(3, 5), "b": rand(5, 4)}
    judged(device, "FusedGemm", given, given["a"].astype(np.float64) @ given["b"])
    judged(device, "FusedGemm", given, np.where(given["a"].astype(np.float64) @ given["b"] < 0, 0.01, 1)
           * (given["a"].astype(np.float64) @ given["b"]), activation="LeakyRelu")  # fmt: skip


CONVS = [a for a in ACTIVATIONS if a[0] in ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid")]
CONVS.append(("Clip", [-0.5, 0.75], lambda x: np.clip(x, -0.5, 0.75)))


@pytest.mark.parametrize(("name", "numbers", "function"), CONVS)
@pytest.mark.sample(vulkan=4)
def test_convolutions(name: str, numbers: list[float], function: Any, device: str) -> None:
    given = {"x": rand(2, 3, 7, 6), "w": rand(4, 3, 3, 2), "b": rand(4), "z": rand(2, 4, 4, 3)}
    padded = np.pad(given["x"].astype(np.float64), [(0, 0), (0, 0), (1, 1), (0, 1)])
    want = np.zeros((2, 4, 4, 3))
    for i, j in np.ndindex(4, 3):
        patch = padded[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 2]
        want[:, :, i, j] = np.einsum("nchw,ochw->no", patch, given["w"].astype(np.float64)) + given["b"]
    attributes: dict[str, Any] = {"activation": name, "strides": [2, 2], "pads": [1, 0, 1, 1]}
    attributes["activation_params"] = numbers or None
    judged(device, "FusedConv", given, function(want + given["z"]), **attributes)
    judged(device, "FusedConv", given, function(want), "x w b", **attributes)


@pytest.mark.judged
def test_products_and_convolutions_beside_onnx_runtime() -> None:
    for a_shape, b_shape, _, attributes in PRODUCTS:
        beside("FusedMatMul", {"a": rand(*a_shape), "b": rand(*b_shape)}, **attributes)
    for name, numbers, _ in ACTIVATIONS:
        given = {"a": rand(6, 5), "b": rand(7, 6), "c": rand(5, 1)}
        attributes = dict(zip(["activation_alpha", "activation_beta"], numbers, strict=False))
        beside("FusedGemm", given, activation=name, transA=1, transB=1, alpha=0.5, beta=2.0, **attributes)
    for name, numbers, _ in CONVS:
        given = {"x": rand(2, 3, 7, 6), "w": rand(4, 3, 3, 2), "b": rand(4), "z": rand(2, 4, 4, 3)}
        for names in ("x w b z", "x w b"):
            beside("FusedConv", given, names, activation=name, activation_params=numbers or None, strides=[2, 2],
                   pads=[1, 0, 1, 1])  # fmt: skip


def test_what_is_not_done_is_said() -> None:
    given = {"a": rand(3, 5), "b": rand(5, 4)}
    with pytest.raises(UnsupportedOp, match=r"FusedGemm.*activation 'Snake' is not supported"):
        rlx.onnx.load(microsoft("FusedGemm", given, activation="Snake")).run(given)
    with pytest.raises(ModelFormatError, match=r"transBatchA for \(3, 5\)"):
        rlx.onnx.load(microsoft("FusedMatMul", given, transBatchA=1)).run(given)
    image = {"x": rand(1, 1, 4, 4), "w": rand(1, 1, 2, 2)}
    for says, attributes in [
        (r"Clip is given \[\]; expected 2", {"activation": "Clip"}),
        (r"LeakyRelu is given .* expected 1", {"activation": "LeakyRelu", "activation_params": [0.1, 0.5]}),
    ]:
        with pytest.raises(ModelFormatError, match=says):
            rlx.onnx.load(microsoft("FusedConv", image, **attributes)).run(image)
