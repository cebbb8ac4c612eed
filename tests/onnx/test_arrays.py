"""Inputs and outputs of models that stay on a device."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import rlx
from rlx.errors import DTypeError, GraphError, ShapeError
from tests.devices import session_here
from tests.onnx.models import I64, model, node


def test_a_model_takes_and_gives_arrays_of_its_device(device: str) -> None:
    session = session_here(device)
    proto = model(
        [node("MatMul", "x w", "h"), node("Relu", "h", "y"), node("ArgMax", "h", "best", axis=1, keepdims=0)],
        {"x": ["n", 8]}, {"y": ["n", 8], "best": (["n"], I64)}, {"w": np.eye(8, dtype=np.float32) * 2},
    )  # fmt: skip
    loaded, x = rlx.onnx.load(proto), np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    want = loaded.run({"x": x}, device=device)
    held = rlx.array(x, device=session)
    for _ in range(2):
        made = loaded.run({"x": held}, device=device, out="device")
        assert {type(v) for v in made.values()} == {rlx.Array}
        for name, value in want.items():
            np.testing.assert_array_equal(made[name], value)
        held, want = made["y"], loaded.run({"x": want["y"]}, device=device)
    assert len(loaded.programs) == 1
    with pytest.raises(DTypeError, match="is int32, expected float32"):
        loaded.run({"x": held.numpy().astype(np.int32)}, device=device)
    with pytest.raises(ShapeError, match=r"has shape \(8, 5\)"):
        loaded.run({"x": rlx.array(x.T, device=session)}, device=device)
    if device != "cpu":
        with pytest.raises(GraphError, match=r"is an array on cpu, .*\.to\("):
            loaded.run({"x": rlx.array(x, device="cpu")}, device=device)


def test_values_that_shapes_depend_on_are_read_from_the_device(device: str) -> None:
    session = session_here(device)
    proto = model([node("Reshape", "x s", "y")], {"x": [2, 6], "s": ([2], I64)}, {"y": None})
    loaded, x = rlx.onnx.load(proto, strict=False), np.arange(12, dtype=np.float32).reshape(2, 6)
    for shape in ([3, 4], [12, 1]):
        given = {"x": rlx.array(x, device=session), "s": rlx.array(shape, device=session)}
        y = loaded.run(given, device=device, out="device")["y"]
        np.testing.assert_array_equal(y, x.reshape(shape))


def test_models_and_sessions_are_launched(device: str) -> None:
    session = session_here(device)
    proto = model(
        [node("MatMul", "x w", "y"), node("Cast", "y", "small", to=2)], {"x": ["n", 8]},
        {"y": ["n", 8], "small": (["n", 8], 2)}, {"w": np.eye(8, dtype=np.float32) * 2},
    )  # fmt: skip
    x = np.random.default_rng(0).integers(0, 9, (5, 8)).astype(np.float32)
    loaded, held = rlx.onnx.load(proto), rlx.array(x, device=session)
    for n in range(3):
        launch = loaded.launch({"x": held}, device)
        held = launch.results["y"]
        made = launch.wait("host")
        np.testing.assert_array_equal(made["y"], x * 2 ** (n + 1))
        np.testing.assert_array_equal(made["small"], (x * 2 ** (n + 1)).astype(np.uint8))
    begun = rlx.onnx.InferenceSession(proto, device=device).launch(["small", "y"], {"x": x})
    np.testing.assert_array_equal(begun.wait("host")[1], x * 2)
    assert isinstance(begun.results[1], rlx.Array) and begun.done()


def test_a_cut_model_is_done_when_launch_returns() -> None:
    proto = model(
        [node("NonZero", "x", "at"), node("Neg", "x", "y"), node("SequenceConstruct", "at at", "both")],
        {"x": [6]}, {"at": None, "y": [6]},
    )  # fmt: skip
    proto.graph.output.append(helper.make_tensor_sequence_value_info("both", I64, None))
    begun = rlx.onnx.load(proto, strict=False).launch({"x": np.float32([0, 1, 0, 2, 3, 0])}, "cpu")
    assert begun.done()
    made = begun.wait("host")
    np.testing.assert_array_equal(made["at"], [[1, 3, 4]])
    assert {type(a) for a in begun.results["both"]} == {rlx.Array}
    assert {type(a) for a in made["both"]} == {np.ndarray}  # what lists hold, too, is read
