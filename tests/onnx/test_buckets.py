"""Symbolic dimensions that vary up to a limit, run in buckets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import GraphError, ShapeError, UnsupportedOp
from tests.onnx.models import I64, model, node

WEIGHTS = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def attention() -> Any:
    """Self-attention of two heads as exporters write it, with shapes computed from the input's, and its mean over the
    sequence; the last token; and a table of positions cut to the length."""
    return model(
        [
            node("Shape", "x", "shape"),
            node("Gather", "shape zero", "b", axis=0),
            node("Gather", "shape one", "t", axis=0),
            node("Unsqueeze", "b first", "b1"),
            node("Unsqueeze", "t first", "t1"),
            node("Concat", "b1 t1 two four", "split", axis=0),
            node("Concat", "b1 t1 eight", "whole", axis=0),
            node("MatMul", "x w", "h"),
            node("Reshape", "h split", "h4"),
            node("Transpose", "h4", "q", perm=[0, 2, 1, 3]),
            node("Transpose", "h4", "k", perm=[0, 2, 3, 1]),
            node("MatMul", "q k", "scores"),
            node("Softmax", "scores", "p", axis=-1),
            node("MatMul", "p q", "seen"),
            node("Transpose", "seen", "back", perm=[0, 2, 1, 3]),
            node("Reshape", "back whole", "joined"),
            node("Slice", "table first t1 first", "places"),
            node("Add", "joined places", "y"),
            node("ReduceMean", "y one_axis", "mean", keepdims=0),
            node("Gather", "y last", "end", axis=1),
        ],
        {"x": ["batch", "time", 8]},
        {"y": ["batch", "time", 8], "mean": ["batch", 8], "end": ["batch", 8]},
        {
            "w": WEIGHTS, "zero": np.array(0), "one": np.array(1), "first": np.array([0]), "two": np.array([2]),
            "four": np.array([4]), "eight": np.array([8]), "one_axis": np.array([1]), "last": np.array(-1),
            "table": np.arange(16 * 8, dtype=np.float32).reshape(16, 8) / 100,
        },
    )  # fmt: skip


@pytest.mark.parametrize("free", ["time", None])
def test_a_length_that_dims_does_not_name_has_programs_of_its_own(free: str | None) -> None:
    proto = model([node("ReduceSum", "x axis", "s", keepdims=0), node("Relu", "x", "y")],
                  {"x": [free, "batch", 3]}, {"y": None, "s": None}, {"axis": np.array([0])})  # fmt: skip
    loaded = rlx.onnx.load(proto, dims={"batch": rlx.Dim("batch", max=8)})
    for shape in ((3, 2, 3), (5, 3, 3), (3, 3, 3), (5, 2, 3), (4, 3, 3)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        results = loaded.run({"x": x}, device="cpu")
        np.testing.assert_array_equal(results["y"], np.maximum(x, 0))
        np.testing.assert_allclose(results["s"], x.sum(0), atol=1e-6)


def wanted(x: np.ndarray[Any, Any]) -> dict[str, Any]:
    b, t, _ = x.shape
    h = (x.astype(np.float64) @ WEIGHTS).reshape(b, t, 2, 4).transpose(0, 2, 1, 3)
    scores = h @ h.swapaxes(-1, -2)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    y = (e / e.sum(-1, keepdims=True) @ h).transpose(0, 2, 1, 3).reshape(b, t, 8)
    y = y + np.arange(t * 8).reshape(t, 8) / 100
    return {"y": y, "mean": y.mean(1), "end": y[:, -1]}


def test_lengths_of_a_file_run_in_buckets() -> None:
    rng = np.random.default_rng(1)
    dims = {"batch": rlx.Dim("batch", max=4), "time": rlx.Dim("time", max=16, buckets=(4, 8))}
    with rlx.onnx.load(attention(), dims=dims) as loaded:
        assert loaded.inputs[0].shape == ("batch", "time", 8)
        for b, t in ((3, 5), (4, 8), (3, 7), (3, 2), (1, 13), (3, 6)):
            x = rng.standard_normal((b, t, 8)).astype(np.float32)
            got = loaded.run({"x": x}, device="cpu")
            for name, value in wanted(x).items():
                assert got[name].shape == value.shape
                np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-4)
        sizes = [tuple(p.sizes.values()) for p in loaded.lengths().programs]
        assert sizes == [(4, 8), (4, 4), (1, 16)] and "3 programs, 6 runs" in str(loaded.lengths())
        with pytest.raises(ShapeError, match="'time' is 17; it was declared from 1 to 16"):
            loaded.run({"x": np.zeros((1, 17, 8), np.float32)}, device="cpu")
    session = rlx.onnx.InferenceSession(attention(), device="cpu", dims=dims)
    x = rng.standard_normal((2, 3, 8)).astype(np.float32)
    np.testing.assert_allclose(session.run(["mean"], {"x": x})[0], wanted(x)["mean"], rtol=1e-4, atol=1e-4)


def test_bound_and_varying_dimensions_of_one_file() -> None:
    with rlx.onnx.load(attention(), dims={"batch": 2, "time": rlx.Dim("t", max=8)}) as loaded:
        x = np.ones((2, 5, 8), np.float32)
        np.testing.assert_allclose(
            loaded.run({"x": x}, device="cpu")["y"], wanted(x)["y"], rtol=1e-4, atol=1e-4
        )
        with pytest.raises(ShapeError, match="dims binds 'batch' to 2"):
            loaded.run({"x": np.ones((3, 5, 8), np.float32)}, device="cpu")
    with pytest.raises(GraphError, match=r"no dimensions \['times'\]"):
        rlx.onnx.load(attention(), dims={"times": rlx.Dim("t", max=8)})
    with rlx.onnx.load(attention()) as loaded, pytest.raises(GraphError, match="it gives none"):
        loaded.lengths()


def test_operators_that_no_mask_suits() -> None:
    made = model(
        [node("LpPool", "x", "y", kernel_shape=[2]), node("NonZero", "x", "z")][:1],
        {"x": [1, 2, "time"]}, {"y": [1, 2, None]}, {},
    )  # fmt: skip
    feeds = {"x": np.arange(10, dtype=np.float32).reshape(1, 2, 5)}
    dims = {"time": rlx.Dim("time", max=8)}
    with rlx.onnx.load(made) as exact:
        want = exact.run(feeds, device="cpu")["y"]
    with rlx.onnx.load(made, dims=dims) as loaded, pytest.raises(UnsupportedOp, match="time 5 cannot run in"):
        loaded.run(feeds, device="cpu")
    with rlx.onnx.load(made, dims=dims, otherwise="exact") as loaded:
        np.testing.assert_array_equal(loaded.run(feeds, device="cpu")["y"], want)
        assert loaded.lengths().programs[0].exact


def test_an_integer_input_of_two_lengths() -> None:
    made = model(
        [node("Gather", "table ids", "rows"), node("ReduceSum", "rows axis", "y", keepdims=0)],
        {"ids": (["batch", "time"], I64)},
        {"y": ["batch", 2]},
        {"table": np.arange(10, dtype=np.float32).reshape(5, 2), "axis": np.array([1])},
    )
    dims = {n: rlx.Dim(n, max=8) for n in ("batch", "time")}
    with rlx.onnx.load(made, dims=dims) as loaded:
        ids = np.array([[0, -1, 4], [1, 2, 3], [3, 3, 3]])
        want = np.arange(10).reshape(5, 2)[ids].sum(1)
        np.testing.assert_array_equal(loaded.run({"ids": ids}, device="cpu")["y"], want)
