"""`with` blocks: every object with `close` is closed at the end of its block, also where that is an exception."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import rlx
from rlx.errors import GraphError
from rlx.runtime.custom import CustomOp

X = np.arange(4, dtype=np.float32)


def counter() -> rlx.Graph:
    g = rlx.Graph("counter")
    total = g.state("total", (4,))
    made = total + g.input("x", (4,)) * g.param("w", (4,))
    g.update("total", made)
    g.output("y", made)
    return g


def test_stores_and_programs_give_their_memory_back(session: rlx.Session) -> None:
    with rlx.Weights(session.device) as weights, rlx.State(session.device) as state:
        with session.compile(counter(), weights=weights, state=state) as exe:
            exe.set_param("w", X)
            for _ in range(2):
                y = exe.run({"x": X})["y"]
        np.testing.assert_array_equal(y, 2 * X * X)
        np.testing.assert_array_equal(state.get("total"), y)
        assert weights.nbytes and weights.missing(["w"]) == []
    assert (weights.nbytes, state.full.nbytes, weights.missing(["w"])) == (0, 0, ["w"])
    with pytest.raises(GraphError, match="'counter' is closed"):
        exe.run({"x": X})


def test_an_error_inside_closes_and_goes_on(session: rlx.Session) -> None:
    weights = rlx.Weights(session.device)

    def fails() -> None:
        with weights:
            weights.declare({"w": counter().params["w"].type})
            weights.set("w", X)
            assert weights.nbytes
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails()
    assert weights.nbytes == 0
    weights.close()  # a second call does nothing


def test_a_custom_op_is_known_inside_its_block() -> None:
    for factor in (2, 3):  # the name is free again after the block
        made = rlx.custom_op("closing_scale", lambda x, k=factor: x * k, infer=lambda types, attrs: types[0])
        with made as scale:
            np.testing.assert_array_equal(rlx.jit(scale, device="cpu")(X), factor * X)
    assert "closing_scale" not in rlx.ir.REGISTRY


def test_an_onnx_program_is_closed(session: rlx.Session) -> None:
    onnx = pytest.importorskip("onnx", reason="programs of ONNX models need onnx")
    of = {n: onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4]) for n in ("x", "y")}
    node = onnx.helper.make_node("Neg", ["x"], ["y"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "neg", [of["x"]], [of["y"]]))
    with rlx.onnx.load(model) as loaded, loaded.compile({"x": (4,)}, device=session.info.id) as program:
        np.testing.assert_array_equal(program.run({"x": X})["y"], -X)
    with pytest.raises(GraphError, match="closed"):
        program.run({"x": X})


def test_every_public_class_that_has_close_may_stand_in_a_with_block() -> None:
    found = {CustomOp}
    for face in (rlx, rlx.models, rlx.onnx):
        found |= {
            value for value in (getattr(face, name) for name in dir(face))
            if inspect.isclass(value) and hasattr(value, "close")
        }
    assert {rlx.CompiledGraph, rlx.Weights, rlx.State, rlx.models.SentenceEncoder, rlx.onnx.Program} <= found
    assert [c.__name__ for c in found if not hasattr(c, "__enter__")] == []
