"""Normalizations of com.microsoft, and of onnx's domain without a schema of onnx, beside float64 and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import ModelFormatError
from tests.onnx.microsoft import beside, judged, microsoft
from tests.onnx.models import model, node
from tests.outside import outside

RNG = np.random.default_rng(13)


def rand(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def normed(x: np.ndarray, eps: float, centred: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The norm over the last axis, the mean and one by the deviation."""
    mean = x.mean(-1, keepdims=True)
    away = x - mean if centred else x
    rate = 1 / np.sqrt((away**2).mean(-1, keepdims=True) + eps)
    return away * rate, mean, rate


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("skipped", [(2, 5, 13), (1, 5, 13), (5, 13)])
@pytest.mark.sample(2, vulkan=3)
def test_norms_of_residual_sums(dtype: type, skipped: tuple[int, ...], device: str) -> None:
    given = {"x": rand(2, 5, 13, dtype=dtype), "s": rand(*skipped, dtype=dtype)}
    given |= {n: rand(13, dtype=dtype) for n in ("gamma", "beta", "bias")}
    w = {n: v.astype(np.float64) for n, v in given.items()}
    kind = "SkipLayerNormalization"
    for names, total, beta in [
        ("x s gamma beta bias", w["x"] + w["s"] + w["bias"], w["beta"]),
        ("x s gamma _ bias", w["x"] + w["s"] + w["bias"], 0),
        ("x s gamma beta", w["x"] + w["s"], w["beta"]),
        ("x s gamma", w["x"] + w["s"], 0),
    ]:
        y, mean, rate = normed(total, 1e-3)
        want = {"y": y * w["gamma"] + beta, "sum": total}
        judged(device, kind, given, want, names, "y _ _ sum", epsilon=1e-3)
        judged(device, kind, given, {"y": want["y"]}, names, epsilon=1e-3)
        if dtype == np.float32:
            judged(device, kind, given, {**want, "m": mean, "r": rate}, names, "y m r sum", epsilon=1e-3)
    kind = "SkipSimplifiedLayerNormalization"
    for names, total in [
        ("x s gamma bias", w["x"] + w["s"] + w["bias"]),
        ("x s gamma", w["x"] + w["s"]),
    ]:
        y, _, rate = normed(total, 1e-3, False)
        want = {"y": y * w["gamma"], "sum": total}
        judged(device, kind, given, want, names, "y _ _ sum", epsilon=1e-3)
        if dtype == np.float32:
            judged(device, kind, given, {**want, "r": rate}, names, "y _ r sum", epsilon=1e-3)


@pytest.mark.judged
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_residual_sums_beside_onnx_runtime(dtype: type) -> None:
    tolerance = 2e-5 if dtype == np.float32 else 4e-3
    for shape, skipped in [((3, 17), (3, 17)), ((2, 5, 13), (1, 5, 13)), ((2, 5, 13), (5, 13))]:
        given = {"x": rand(*shape, dtype=dtype), "s": rand(*skipped, dtype=dtype)}
        given |= {n: rand(shape[-1], dtype=dtype) for n in ("gamma", "beta", "bias")}
        for names in ("x s gamma beta bias", "x s gamma _ bias", "x s gamma"):
            beside("SkipLayerNormalization", given, names, "y _ _ sum", tolerance)
        for names in ("x s gamma bias", "x s gamma"):
            beside("SkipSimplifiedLayerNormalization", given, names, "y _ _ sum", tolerance, epsilon=1e-6)


def test_norms_in_onnx_s_domain(device: str) -> None:
    x, gamma, beta = rand(2, 3, 4, 5), rand(4, 5), rand(4, 5)
    flat, _, rate = normed(x.astype(np.float64).reshape(2, 3, 20), 1e-2, False)
    want = flat.reshape(x.shape) * gamma
    for domain in ("", "com.microsoft"):
        made = node("SimplifiedLayerNormalization", "x g", "y r", domain=domain, axis=-2, epsilon=1e-2)
        dims = {"y": [2, 3, 4, 5], "r": [2, 3, 1, 1]}
        proto = model([made], {"x": [2, 3, 4, 5], "g": [4, 5]}, dims, domains=["com.microsoft"])
        got = rlx.onnx.load(proto).run({"x": x, "g": gamma}, device=device)
        assert np.allclose(got["y"], want, atol=1e-5)
        assert np.allclose(got["r"], rate[..., None], atol=1e-5)
    # LayerNormalization in a model of an opset before that in which onnx has it.
    made = node("LayerNormalization", "x g b", "y m r", axis=-2, epsilon=1e-2)
    dims = dict.fromkeys("ymr", (None, 1))
    proto = model([made], {"x": [2, 3, 4, 5], "g": [4, 5], "b": [4, 5]}, dims, opset=13)
    got = rlx.onnx.load(proto).run({"x": x, "g": gamma, "b": beta}, device=device)
    y, mean, rate = normed(x.astype(np.float64).reshape(2, 3, 20), 1e-2)
    for name, array in [
        ("y", y.reshape(x.shape) * gamma + beta),
        ("m", mean[..., None]),
        ("r", rate[..., None]),
    ]:
        assert got[name].shape == array.shape
        assert np.allclose(got[name], array, atol=1e-5)


@pytest.mark.judged
def test_rms_norms_beside_onnx_runtime() -> None:
    beside("SimplifiedLayerNormalization", {"x": rand(6, 5), "g": rand(5)}, domain="", epsilon=1e-2)


def embedded(names: str) -> tuple[Any, dict[str, np.ndarray]]:
    """A model that embeds with the inputs `names`, and what it is given."""
    tables = {
        "words": rand(11, 9),
        "places": rand(7, 9),
        "parts": rand(3, 9),
        "gamma": rand(9),
        "beta": rand(9),
    }
    tops = {"ids": 11, "seg": 3, "at": 7}
    given = {n: RNG.integers(0, top, (2, 5)).astype(np.int32) for n, top in tops.items()}
    given |= {**tables, "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.int32)}
    made = node("EmbedLayerNormalization", names, "y count sum", domain="com.microsoft", epsilon=1e-5)
    inputs = {n: (list(v.shape), 6 if v.dtype == np.int32 else 1) for n, v in given.items()}
    outputs = {"y": None, "count": ([2], 6), "sum": None}
    return model([made], inputs, outputs, domains=["com.microsoft"]), given


EMBEDDED = [
    "ids seg words places parts gamma beta mask",
    "ids _ words places _ gamma beta",
    "ids _ words places _ gamma beta _ at",
    "ids seg words places parts gamma beta mask at",
]


@pytest.mark.parametrize("names", EMBEDDED)
def test_norms_of_embeddings(names: str, device: str) -> None:
    proto, given = embedded(names)
    w = {n: v.astype(np.float64) if v.dtype == np.float32 else v for n, v in given.items()}
    total = w["words"][w["ids"]] + w["places"][w["at"] if "at" in names.split() else np.arange(5)]
    if "seg" in names.split():
        total = total + w["parts"][w["seg"]]
    got = rlx.onnx.load(proto).run(given, device=device)
    assert np.allclose(got["sum"], total, atol=1e-5)
    assert np.allclose(got["y"], normed(total, 1e-5)[0] * w["gamma"] + w["beta"], atol=1e-5)
    assert got["count"].tolist() == ([3, 4] if "mask" in names.split() else [0, 0])
    assert got["count"].dtype == np.int32


@pytest.mark.judged
@pytest.mark.parametrize("names", EMBEDDED)
def test_norms_of_embeddings_beside_onnx_runtime(names: str) -> None:
    runtime = outside("onnxruntime")
    proto, given = embedded(names)
    session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    got = rlx.onnx.load(proto).run(given, device="cpu")
    for name, array in zip(["y", "count", "sum"], session.run(None, given), strict=True):
        assert np.allclose(got[name], array, atol=1e-5)


@pytest.mark.judged
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("segments", [True, False])
def test_norms_of_quantized_embeddings(dtype: Any, segments: bool, device: str) -> None:
    names, tops = ["words", "places", "parts", "gamma", "beta"], [11, 7, 3, 0, 0]
    whole = {n: RNG.integers(0, 120, (top, 9) if top else 9).astype(dtype) for n, top in zip(names, tops, strict=True)}
    scales = {f"{n}_s": np.float32(RNG.uniform(0.01, 0.1)) for n in names}
    zeros = {f"{n}_z": np.array(RNG.integers(0, 100), dtype) for n in names}
    fed = {"ids": RNG.integers(0, 11, (2, 5)).astype(np.int32), "seg": RNG.integers(0, 3, (2, 5)).astype(np.int32)}
    fed["mask"] = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.int32)
    order = " ".join(["ids seg", *names, "mask", *scales, *zeros])
    if not segments:
        order = " ".join("_" if n[:3] in ("seg", "par") else n for n in order.split())
    made = node("QEmbedLayerNormalization", order, "y count", domain="com.microsoft", epsilon=1e-5)
    fixed = {n: np.asarray(a) for n, a in (whole | scales | zeros).items()}
    inputs = {n: (list(a.shape), 6) for n, a in fed.items()}
    proto = model([made], inputs, {"y": None, "count": ([2], 6)}, fixed, domains=["com.microsoft"])
    real = {n: (whole[n].astype(np.float64) - zeros[f"{n}_z"]) * scales[f"{n}_s"] for n in names}
    total = real["words"][fed["ids"]] + real["places"][np.arange(5)]
    total = total + real["parts"][fed["seg"]] if segments else total
    got = rlx.onnx.load(proto).run(fed, device=device)
    np.testing.assert_allclose(got["y"], normed(total, 1e-5)[0] * real["gamma"] + real["beta"], atol=1e-4)
    assert got["count"].tolist() == [3, 4]
    if device == "cpu":
        session = outside("onnxruntime").InferenceSession(
            proto.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        np.testing.assert_allclose(got["y"], session.run(["y"], fed)[0], atol=1e-4)


def test_shapes_that_do_not_fit_are_said() -> None:
    given = {"x": rand(2, 5, 13), "s": rand(2, 1, 13), "gamma": rand(13)}
    with pytest.raises(ModelFormatError, match=r"SkipLayerNormalization.*the skip \(2, 1, 13\)"):
        rlx.onnx.load(microsoft("SkipLayerNormalization", given)).run(given)
    given = {"x": rand(2, 5, 13), "s": rand(2, 5, 13), "gamma": rand(12)}
    with pytest.raises(ModelFormatError, match=r"SkipSimplifiedLayerNormalization.*weights are \[\(12,\)\]"):
        rlx.onnx.load(microsoft("SkipSimplifiedLayerNormalization", given)).run(given)
    names = "ids seg words places parts gamma beta mask"
    proto, given = embedded(names)
    quantized = proto.graph.node[0]
    quantized.op_type = "QEmbedLayerNormalization"
    del quantized.output[2:]
    del proto.graph.output[2:]
    with pytest.raises(ModelFormatError, match="QEmbedLayerNormalization"):
        rlx.onnx.load(proto).run(given)
