"""Operators that other tools write: support vector classifiers beside the formulas of LIBSVM, pools with channels last,
operators that were experimental; and files for one kind of CPU."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import rlx
from rlx.errors import ModelFormatError, RlxError, UnsupportedOp
from tests.onnx.microsoft import judged as hold
from tests.onnx.models import I64, model, node
from tests.outside import outside

F32, TEXT = TensorProto.FLOAT, TensorProto.STRING
ML = "ai.onnx.ml"
X = np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)


def machine(k: int, kernel: str, after: str, chances: bool, linear: bool = False) -> Any:
    """A support vector classifier of random vectors, with k classes; strings name them where k is 3."""
    rng = np.random.default_rng(k)
    counts, pairs = [int(n) for n in rng.integers(1, 4, k)], k * (k - 1) // 2
    given: dict[str, Any] = {
        "kernel_type": kernel, "kernel_params": [0.3, 0.2, 3.0], "post_transform": after,
        "rho": rng.standard_normal(1 if linear else pairs).tolist(),
        "coefficients": rng.standard_normal(k * 4 if linear else (k - 1) * sum(counts)).tolist(),
    }  # fmt: skip
    if not linear:
        given["support_vectors"] = rng.standard_normal(sum(counts) * 4).tolist()
        given["vectors_per_class"] = counts
    if chances:
        given["prob_a"] = (-1 - rng.random(pairs)).tolist()
        given["prob_b"] = (0.1 * rng.standard_normal(pairs)).tolist()
    given |= {"classlabels_strings": ["u", "v", "w"]} if k == 3 else {"classlabels_ints": list(range(10, 10 + k))}
    made = node("SVMClassifier", "x", "y z", domain=ML, **given)
    proto = model([made], {"x": (None, F32)}, {"y": (None, TEXT if k == 3 else I64), "z": (None, F32)}, domains=[ML])
    return proto, given


def by_hand(given: dict[str, Any], k: int) -> tuple[np.ndarray, np.ndarray]:
    """The class with most votes, and the scores of the pairs of classes."""
    ends = np.cumsum([0, *given["vectors_per_class"]])
    vectors, dot = np.float64(given["support_vectors"]).reshape(-1, 4), None
    dot = 0.3 * X.astype(np.float64) @ vectors.T + 0.2
    found = {
        "LINEAR": (dot - 0.2) / 0.3, "POLY": dot**3, "SIGMOID": np.tanh(dot),
        "RBF": np.exp(-0.3 * ((X[:, None] - vectors) ** 2).sum(-1)),
    }[given["kernel_type"]]  # fmt: skip
    weights = np.float64(given["coefficients"]).reshape(k - 1, -1)
    votes, scores = np.zeros((len(X), k)), []
    for (i, j), rho in zip(combinations(range(k), 2), given["rho"], strict=True):
        a, b = slice(ends[i], ends[i + 1]), slice(ends[j], ends[j + 1])
        score = found[:, a] @ weights[j - 1, a] + found[:, b] @ weights[i, b] + rho
        votes[np.arange(len(X)), np.where(score > 0, i, j)] += 1
        scores.append(score)
    return votes.argmax(1), np.stack(scores, 1)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.sample(2)
def test_votes_and_scores_of_support_vectors(k: int, kernel: str) -> None:
    proto, given = machine(k, kernel, "NONE", False)
    got = rlx.onnx.load(proto).run({"x": X}, device="cpu")
    best, scores = by_hand(given, k)
    labels = np.array(given.get("classlabels_strings") or given["classlabels_ints"])
    assert got["y"].tolist() == labels[best].tolist()
    scores = np.concatenate([-scores, scores], 1) if k == 2 else scores
    assert np.allclose(got["z"], scores, rtol=1e-4, atol=1e-4 * np.abs(scores).max())


def test_probabilities_of_classes() -> None:
    """They minimize Σ (r[j, i]·p[i] - r[i, j]·p[j])², which the solution of a linear system does (Wu, Lin and Weng,
    2004); LIBSVM stops iterating at an error of 0.005 / k."""
    k = 4
    proto, given = machine(k, "RBF", "NONE", True)
    got = rlx.onnx.load(proto).run({"x": X}, device="cpu")["z"]
    _, scores = by_hand(given, k)
    chances = 1 / (1 + np.exp(scores * given["prob_a"] + given["prob_b"]))
    for row, z in zip(chances, got, strict=True):
        r = np.zeros((k, k))
        for (i, j), chance in zip(combinations(range(k), 2), row, strict=True):
            r[i, j], r[j, i] = chance, 1 - chance
        q = np.diag((r**2).sum(0)) - r * r.T
        system = np.block([[q, np.ones((k, 1))], [np.ones((1, k)), np.zeros((1, 1))]])
        assert np.abs(np.linalg.solve(system, np.eye(k + 1)[k])[:k] - z).max() < 0.01
        assert abs(z.sum() - 1) < 1e-5


@pytest.mark.judged
@pytest.mark.parametrize("linear", [False, True])
def test_support_vectors_beside_onnx_runtime(linear: bool) -> None:
    runtime = outside("onnxruntime")
    for k, chances in ((2, False), (2, True), (3, False), (5, True)):
        for after in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"):
            if (k, chances, linear, after) == (2, False, False, "PROBIT"):
                continue  # ONNX Runtime leaves the second score of a row unset
            proto, _ = machine(k, "RBF", after, chances, linear)
            want = runtime.InferenceSession(proto.SerializeToString()).run(None, {"x": X})
            got = rlx.onnx.InferenceSession(proto, device="cpu").run(None, {"x": X})
            assert got[0].tolist() == want[0].tolist() and got[1].shape == want[1].shape
            assert np.allclose(got[1], want[1], rtol=1e-4, atol=1e-5, equal_nan=True), (k, chances, after)


def test_many_rows_of_support_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    proto, _ = machine(3, "RBF", "NONE", False)
    want = rlx.onnx.load(proto).run({"x": X}, device="cpu")["z"]
    monkeypatch.setattr("rlx.onnx.ml.support.MAX_APART", 100)
    assert np.allclose(rlx.onnx.load(proto).run({"x": X}, device="cpu")["z"], want, atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"coefficients": [1.0]}, {"rho": [1.0]}, {"prob_a": [1.0]}, {"vectors_per_class": [1, 1 << 40, 1]},
        {"vectors_per_class": [-1, 2, 3]}, {"vectors_per_class": [1]}, {"support_vectors": [1.0]},
        {"classlabels_strings": ["u"]}, {"post_transform": "MORE"}, {"kernel_type": "MORE"},
    ],
    ids=lambda c: next(iter(c)),
)  # fmt: skip
def test_support_vectors_that_do_not_fit(change: dict[str, Any]) -> None:
    proto, given = machine(3, "RBF", "NONE", False)
    made = node("SVMClassifier", "x", "y z", domain=ML, **{**given, **change})
    proto.graph.node[0].CopyFrom(made)
    with pytest.raises(RlxError):
        rlx.onnx.load(proto).run({"x": X}, device="cpu")


def test_max_pool_with_channels_last(device: str) -> None:
    x = np.random.default_rng(4).integers(-100, 100, (2, 5, 6, 3)).astype(np.int8)
    padded = np.pad(x, ((0, 0), (1, 0), (0, 1), (0, 0)), constant_values=-128)
    want = np.stack(
        [padded[:, i : i + 2, j : j + 3].max((1, 2)) for i in (0, 2, 4) for j in (0, 2, 4)], 1
    ).reshape(2, 3, 3, 3)  # fmt: skip
    hold(device, "NhwcMaxPool", {"x": x}, want, kernel_shape=[2, 3], strides=[2, 2], pads=[1, 0, 0, 1])


def test_operators_that_were_experimental() -> None:
    x = np.random.default_rng(5).standard_normal((2, 3, 4, 5)).astype(np.float32)
    bias = np.float32([1, 2, 3])
    for kind, attributes, want in (
        ("Affine", {"alpha": 2.0, "beta": 1.0}, 2 * x + 1),
        ("Scale", {"scale": 2.0}, 2 * x),
        ("ImageScaler", {"scale": 2.0, "bias": bias.tolist()}, 2 * x + bias[:, None, None]),
        ("Crop", {"border": [1, 0, 2, 1]}, x[:, :, :3, 1:3]),
        ("Crop", {"border": [1, 0, 2, 1], "scale": [2, 3]}, x[:, :, :2, 1:4]),
        ("ScaledTanh", {"alpha": 2.0, "beta": 0.5}, 2 * np.tanh(0.5 * x.astype(np.float64))),
        ("ParametricSoftplus", {"alpha": 2.0, "beta": 0.5}, 2 * np.log1p(np.exp(0.5 * x.astype(np.float64)))),
    ):
        proto = model([node(kind, "x", "y", **attributes)], {"x": list(x.shape)}, {"y": None}, opset=7)
        assert np.allclose(rlx.onnx.load(proto).run({"x": x}, device="cpu")["y"], want, atol=1e-6), kind
    ends = {"s": np.array([1]), "e": np.array([9]), "a": np.array([2])}
    proto = model([node("DynamicSlice", "x s e a", "y")], {"x": list(x.shape)}, {"y": None}, ends, opset=7)
    assert np.array_equal(rlx.onnx.load(proto).run({"x": x}, device="cpu")["y"], x[:, :, 1:])
    for kind, bad in (("Crop", {"border": [3, 0, 3, 0]}), ("Crop", {"border": [1]}), ("ImageScaler", {"bias": [1.0]})):
        proto = model([node(kind, "x", "y", **bad)], {"x": list(x.shape)}, {"y": None}, opset=7)
        with pytest.raises(ModelFormatError, match=kind):
            rlx.onnx.load(proto).run({"x": x}, device="cpu")


def test_a_file_for_one_kind_of_cpu_says_what_to_do() -> None:
    proto = model([node("ReorderInput", "x", "y", domain="com.microsoft.nchwc")], {"x": [1, 8, 4, 4]}, {"y": None})
    with pytest.raises(UnsupportedOp, match=r"com.microsoft.nchwc: ONNX Runtime saved .* ORT_ENABLE_EXTENDED, or give"):
        rlx.onnx.load(proto)
