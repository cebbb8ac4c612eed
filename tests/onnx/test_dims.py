"""Symbolic dimensions bound by name, when a model is loaded and when it is compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import GraphError, RlxError, ShapeError
from tests.onnx.models import I64, model, node


def pair() -> Any:
    """y = x · w, z = ids + 1; x (batch, 4), ids (batch, sequence)."""
    return model(
        [node("MatMul", "x w", "y"), node("Add", "ids one", "z")],
        {"x": ["batch", 4], "ids": (["batch", "sequence"], I64)},
        {"y": ["batch", 3], "z": (["batch", "sequence"], I64)},
        {"w": np.ones((4, 3), np.float32), "one": np.array(1)},
    )


def feeds(batch: int, length: int) -> dict[str, np.ndarray]:
    return {"x": np.ones((batch, 4), np.float32), "ids": np.zeros((batch, length), np.int64)}


def test_bound_when_loaded() -> None:
    with rlx.onnx.load(pair(), dims={"batch": 2}) as loaded:
        assert [i.shape for i in loaded.inputs] == [(2, 4), (2, "sequence")]
        assert [o.shape for o in loaded.outputs] == [(2, 3), (2, "sequence")]
        assert loaded.run(feeds(2, 5), device="cpu")["z"].shape == (2, 5)
        with pytest.raises(
            ShapeError, match=r"'x': has shape \(3, 4\), whose dimension 'batch' is 3; dims binds"
        ):
            loaded.run(feeds(3, 5), device="cpu")
    session = rlx.onnx.InferenceSession(pair(), device="cpu", dims={"batch": 1})
    assert session.get_inputs()[0].shape == (1, 4) and session.run(["y"], feeds(1, 1))[0].shape == (1, 3)


@pytest.mark.sample(vulkan=0)
def test_bound_when_compiled(device: str) -> None:
    with rlx.onnx.load(pair()) as loaded:
        for bound in ({"batch": 2, "sequence": 3}, {"batch": np.int64(2), "sequence": 3}):
            with loaded.compile(dims=bound, device=device).graph as graph:
                assert graph.graph.inputs["ids"].shape == (2, 3)
        with loaded.compile({"ids": (2, 7)}, dims={"batch": 2}, device=device) as program:
            assert program.run(feeds(2, 7))["z"].shape == (2, 7)
            with pytest.raises(ShapeError):
                program.run(feeds(3, 7))
        with loaded.compile({"ids": (2, 7)}, device=device) as program:  # the shapes given bind what they name
            assert program.run(feeds(2, 7))["y"].shape == (2, 3)
        with pytest.raises(GraphError, match="no input 'id'; it takes"):
            loaded.compile({"id": (2, 7)}, device=device)


@pytest.mark.parametrize(
    ("bound", "error", "text"),
    [
        ({"batsh": 2}, GraphError, r"no dimensions \['batsh'\]; its inputs have \['batch', 'sequence'\]"),
        ({"ids.1": 2}, GraphError, "; ids.1 is called 'sequence'"),
        ({"ids": (1, 2)}, GraphError, "; ids is an input, .*give lengths by the names in it"),
        ({"batch": 2.5}, ShapeError, "'batch' is 2.5; expected a whole number"),
        ({"batch": -1}, ShapeError, "'batch' is -1; expected a length of 0 or more"),
        ({"batch": True}, ShapeError, "expected a length"),
        (["batch"], GraphError, "came as a list; expected a dict"),
    ],
)
def test_what_cannot_be_bound(bound: Any, error: type[RlxError], text: str) -> None:
    with pytest.raises(error, match=text):
        rlx.onnx.load(pair(), dims=bound)
    with rlx.onnx.load(pair()) as loaded, pytest.raises(error, match=text):
        loaded.compile(dims=bound, device="cpu")


def test_a_compilation_that_lacks_a_length_says_which() -> None:
    with rlx.onnx.load(pair()) as loaded:
        with pytest.raises(
            GraphError, match=r"'ids': its dimensions \['sequence'\] have no length; give dims"
        ):
            loaded.compile(dims={"batch": 2}, device="cpu")
        with pytest.raises(
            ShapeError, match=r"'x': has shape \(3, 4\), whose dimension 'batch' is 3; dims binds"
        ):
            loaded.compile({"x": (3, 4)}, dims={"batch": 2, "sequence": 1}, device="cpu")
    nameless = model([node("Neg", "x", "y")], {"x": [None, 2]}, {"y": None})
    with rlx.onnx.load(nameless) as loaded:
        with pytest.raises(GraphError, match=r"says only \[None, 2\] of its shape; give shapes="):
            loaded.compile(device="cpu")
        with pytest.raises(GraphError, match="shapes of its inputs have no symbols"):
            loaded.compile(dims={"n": 1}, device="cpu")
