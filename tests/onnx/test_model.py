"""Models loaded, compiled and run: names, shapes, values that shapes depend on, functions, weights, element types."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.errors import (
    DeviceUnavailable,
    DTypeError,
    GraphError,
    ModelFormatError,
    ModelWarning,
    ShapeError,
    UnsupportedOp,
)
from rlx.onnx.reader.elements import ELEMENTS
from tests.onnx.models import I64, info, model, node
from tests.threads import at_once

RNG = np.random.default_rng(11)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def mlp() -> onnx.ModelProto:
    nodes = [node("Gemm", "x w b", "h"), node("Relu", "h", "r"), node("MatMul", "r v", "y")]
    weights = {"w": f32(64, 48), "b": f32(48), "v": f32(48, 3)}
    return model(nodes, {"x": ["n", 64]}, {"y": ["n", 3]}, weights)


@pytest.mark.sample(vulkan=0)
def test_a_model_runs_on_any_number_of_rows_with_its_weights_once(device: str) -> None:
    proto = mlp()
    loaded = rlx.onnx.load(proto.SerializeToString())
    assert [(i.name, i.type, i.shape) for i in loaded.inputs] == [("x", "tensor(float)", ("n", 64))]
    assert [(o.name, o.shape) for o in loaded.outputs] == [("y", ("n", 3))]
    for rows in (1, 5, 5, 0):
        x = f32(rows, 64)
        want = ReferenceEvaluator(proto).run(None, {"x": x})[0]
        assert np.allclose(loaded.run({"x": x}, device=device)["y"], want, rtol=1e-5, atol=1e-5)
    stores = {id(p.graph.weights) for p in loaded.programs}
    assert len(loaded.programs) == 3 and len(stores) == 1
    assert set(loaded.programs[0].graph.weights.dtypes()) == {"weight w"}  # the others are small: constants


def test_a_path_and_its_external_data(tmp_path: Path) -> None:
    proto = mlp()
    x = f32(4, 64)
    want = rlx.onnx.load(proto).run({"x": x}, device="cpu")["y"]
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="sub.bin", size_threshold=0)
    assert (tmp_path / "sub.bin").stat().st_size > 64 * 48 * 4
    assert np.array_equal(rlx.onnx.load(tmp_path / "m.onnx").run({"x": x}, device="cpu")["y"], want)
    assert np.array_equal(rlx.onnx.load(str(tmp_path / "m.onnx")).run({"x": x}, device="cpu")["y"], want)


def test_shapes_are_folded_and_values_become_part_of_the_program(device: str) -> None:
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Unsqueeze", "n front", "nn"),
        node("Concat", "nn rest", "shape", axis=0), node("Reshape", "x shape", "flat"),
        node("Slice", "flat a b one", "y"),
    ]  # fmt: skip
    weights = {"zero": np.array(0), "front": np.array([0]), "rest": np.array([-1]), "one": np.array([1])}
    proto = model(nodes, {"x": ["n", 2, 3], "a": ([1], I64), "b": ([1], I64)}, {"y": ["n", None]}, weights)
    loaded = rlx.onnx.load(proto)
    x = f32(4, 2, 3)
    for a, b in ((0, 4), (1, 3), (1, 3), (-2, 99)):
        y = loaded.run({"x": x, "a": np.array([a]), "b": np.array([b])}, device=device)["y"]
        assert np.array_equal(y, x.reshape(4, 6)[:, a:b])
    assert len(loaded.programs) == 3 and all(set(p.fixed) == {"a", "b"} for p in loaded.programs)


def test_compile_ahead() -> None:
    proto = model([node("Tile", "x r", "y")], {"x": ["n", 2], "r": ([2], I64)}, {"y": None})
    loaded = rlx.onnx.load(proto)
    with pytest.raises(GraphError, match=r"values of the inputs \['r'\] are needed"):
        loaded.compile({"x": (3, 2), "r": (2,)}, device="cpu")
    program = loaded.compile({"x": (3, 2)}, {"r": [2, 1]}, device="cpu")
    x = f32(3, 2)
    assert np.array_equal(program.run({"x": x})["y"], np.tile(x, (2, 1)))
    assert np.array_equal(program.run({"x": x, "r": np.array([2, 1])})["y"], np.tile(x, (2, 1)))
    with pytest.raises(ShapeError, match="compiled for its value"):
        program.run({"x": x, "r": np.array([1, 1])})
    with pytest.raises(ShapeError):
        program.run({"x": f32(4, 2)})


def test_the_cache_of_programs_is_capped() -> None:
    loaded = rlx.onnx.load(model([node("Neg", "x", "y")], {"x": ["n"]}, {"y": ["n"]}))
    for n in range(40):
        loaded.run({"x": f32(n)}, device="cpu")
    assert len(loaded.programs) == 16
    first, last = f32(0), loaded.programs[-1]
    loaded.run({"x": first}, device="cpu")  # compiled again
    assert last in loaded.programs and loaded.programs[-1].run({"x": first})["y"].shape == (0,)


def test_programs_that_leave_the_cache_are_closed_and_a_model_can_be() -> None:
    x = f32(1, 64)
    with rlx.onnx.load(mlp()) as loaded:
        want = loaded.run({"x": x}, device="cpu")["y"]
        (first,) = loaded.programs
        for n in range(2, 18):
            loaded.run({"x": f32(n, 64)}, device="cpu")
        with pytest.raises(GraphError, match="closed"):
            first.run({"x": x})
        assert np.array_equal(loaded.run({"x": x}, device="cpu")["y"], want)
    assert loaded.programs == []
    assert np.array_equal(loaded.run({"x": x}, device="cpu")["y"], want)  # and used again


def test_threads_with_more_shapes_than_the_cache_holds() -> None:
    loaded = rlx.onnx.load(mlp())

    def work(k: int) -> None:
        for n in range(1, 40):
            rows = 1 + (n * (k + 3)) % 37
            made = loaded.run({"x": np.ones((rows, 64), np.float32)}, device="cpu")
            assert made["y"].shape == (rows, 3)

    at_once(4, work)
    assert len(loaded.programs) == 16


def test_inputs_are_held_against_the_declaration() -> None:
    proto = model([node("Add", "a b", "y")], {"a": ["n", 2], "b": ["n", 2]}, {"y": ["n", 2]})
    loaded = rlx.onnx.load(proto, strict=True)
    a = f32(3, 2)
    for feeds, error, text in (
        ({"a": a}, GraphError, r"\['b'\] are missing"),
        ({"a": a, "c": a}, GraphError, r"no input 'c'; it takes \['a', 'b'\]"),
        ({"a": a, "b": a, "c": a}, GraphError, "no input 'c'"),
        ({"a": a, "b": a.astype(np.float64)}, DTypeError, "'b': is float64, expected float32"),
        ({"a": a, "b": f32(3, 3)}, ShapeError, r"'b': has shape \(3, 3\)"),
        ({"a": a, "b": f32(4, 2)}, ShapeError, "dimension 'n' is 4"),
        ({"a": a, "b": "text"}, DTypeError, "'b': a str is no array of float32"),
        ({"a": a, "b": [[1, 2], [3]]}, DTypeError, "'b': a list is no array of float32"),
    ):
        with pytest.raises(error, match=text):
            loaded.run(feeds, device="cpu")
    with pytest.raises(
        GraphError, match=r"the inputs came as a list; expected a dict by name, of \['a', 'b'\]"
    ):
        loaded.run([a, a], device="cpu")  # type: ignore[arg-type]


def test_a_length_of_minus_one_is_open() -> None:
    """As Paddle's exporters write it; and so is a question mark."""
    for unknown in (-1, "?"):
        loaded = rlx.onnx.load(
            model([node("Relu", "x", "y")], {"x": [unknown, unknown, 2]}, {"y": [unknown] * 3})
        )
        assert loaded.inputs[0].shape == (None, None, 2) and loaded.outputs[0].shape == (None,) * 3
        assert [loaded.run({"x": f32(n, 3, 2)}, device="cpu")["y"].shape for n in (1, 5)] == [
            (1, 3, 2),
            (5, 3, 2),
        ]
    with pytest.raises(ShapeError, match=r"'x': has shape \(3, 4, 4\)"):
        loaded.run({"x": f32(3, 4, 4)}, device="cpu")


def test_outputs_of_other_shapes_than_declared_are_taken_unless_strict() -> None:
    proto = model([node("Relu", "x", "y")], {"x": ["n", 2]}, {"y": [1, "n"]})
    with pytest.raises(ModelFormatError, match=r"but comes out \(3, 2\); rlx.onnx.load.*strict=False"):
        rlx.onnx.load(proto, strict=True).run({"x": f32(3, 2)}, device="cpu")
    with pytest.warns(ModelWarning, match=r"'y': is declared \[1, 'n'\], but comes out \(3, 2\); rlx takes it so"):
        made = rlx.onnx.load(proto).run({"x": f32(3, 2)}, device="cpu")
    assert made["y"].shape == (3, 2)
    with pytest.warns(ModelWarning, match="comes out"):
        (made,) = rlx.onnx.InferenceSession(proto, device="cpu").run(None, {"x": f32(3, 2)})
    assert made.shape == (3, 2)


def test_dimensions_of_one_name_may_differ_unless_strict() -> None:
    proto = model([node("MatMul", "a b", "y")], {"a": ["n", "k"], "b": ["n", "m"]}, {"y": None})
    feeds = {"a": f32(3, 2), "b": f32(2, 4)}
    said = "dimension 'n' is 2 in shape \\(2, 4\\), but 3 elsewhere"
    with pytest.raises(ShapeError, match=said):
        rlx.onnx.load(proto, strict=True).run(feeds, device="cpu")
    with pytest.warns(ModelWarning, match=said):
        assert rlx.onnx.load(proto).run(feeds, device="cpu")["y"].shape == (3, 4)
    with pytest.warns(ModelWarning, match=said):
        assert rlx.onnx.InferenceSession(proto, device="cpu").run(None, feeds)[0].shape == (3, 4)


def test_nodes_in_any_order() -> None:
    """Of the graph, of a function, of a graph in a node, and of what such a graph takes from a later node."""
    branch = helper.make_graph([node("Neg", "t", "b"), node("Add", "x late", "t")], "b", [], [info("b", None)])
    other = helper.make_graph([node("Relu", "x", "b")], "o", [], [info("b", None)])
    swapped = helper.make_function(
        "f", "F", ["p"], ["q"], [node("Abs", "m", "q"), node("Neg", "p", "m")], [helper.make_opsetid("", 21)]
    )
    proto = model(
        [
            node("Add", "i late", "y"), node("If", "c", "i", then_branch=branch, else_branch=other),
            node("F", "x", "late", domain="f"),
        ],
        {"x": [2, 3], "c": ([], TensorProto.BOOL)}, {"y": [2, 3]}, functions=[swapped], domains=["f"],
    )  # fmt: skip
    before, x = proto.SerializeToString(), f32(2, 3)
    late = np.abs(-x)
    for taken, want in ((True, -(x + late) + late), (False, np.maximum(x, 0) + late)):
        made = rlx.onnx.load(proto, strict=True).run({"x": x, "c": np.array(taken)}, device="cpu")
        np.testing.assert_allclose(made["y"], want, rtol=1e-6, atol=1e-6)
    assert proto.SerializeToString() == before


def test_domains_that_are_not_imported() -> None:
    ml = node("Binarizer", "x", "b", domain="ai.onnx.ml", threshold=0.5)
    proto = model([ml, node("Gelu", "b", "y", domain="com.microsoft", name="n")], {"x": [2, 3]}, {"y": [2, 3]})
    with pytest.raises(ModelFormatError, match=r"Binarizer.*'ai.onnx.ml' is not imported; .*strict=False"):
        rlx.onnx.load(proto, strict=True)
    with pytest.warns(ModelWarning) as warned:
        loaded = rlx.onnx.load(proto)
    said = ["'ai.onnx.ml' is not imported; rlx takes ", "'com.microsoft' is not imported; rlx takes version 1 of it"]
    assert all(text in str(w.message) for text, w in zip(said, warned, strict=True))
    made = loaded.run({"x": np.float32([[0, 1, 2], [0, 0, 1]])}, device="cpu")["y"]
    np.testing.assert_allclose(made, 0.84134475 * np.float32([[0, 1, 1], [0, 0, 1]]), rtol=1e-6)


def test_unknown_attributes_are_ignored_unless_strict() -> None:
    """As the exporter's `epsion`, which ONNX Runtime takes."""
    proto = model([node("Elu", "x", "y", name="n", epsion=1.0)], {"x": [2, 3]}, {"y": [2, 3]})
    x = f32(2, 3)
    with pytest.raises(ModelFormatError, match=r"'n'.*has no attribute 'epsion'; it has alpha; "):
        rlx.onnx.load(proto, strict=True).run({"x": x}, device="cpu")
    with pytest.warns(ModelWarning, match=r"'n'.*'epsion'; it has alpha; rlx ignores it"):
        made = rlx.onnx.load(proto).run({"x": x}, device="cpu")["y"]
    np.testing.assert_allclose(made, np.where(x > 0, x, np.expm1(x)), rtol=1e-6, atol=1e-7)


def test_what_becomes_of_the_proto_afterwards_changes_nothing() -> None:
    proto = mlp()
    loaded, x = rlx.onnx.load(proto), f32(2, 64)
    want = loaded.run({"x": x}, device="cpu")["y"]
    proto.graph.node[1].op_type = "Neg"
    del proto.graph.initializer[:], proto.graph.output[:]
    np.testing.assert_allclose(loaded.run({"x": x[:1]}, device="cpu")["y"], want[:1], rtol=1e-5, atol=1e-5)


def test_what_is_no_model() -> None:
    for source in (None, 3, io.BytesIO(mlp().SerializeToString()), mlp().graph):
        with pytest.raises(
            ModelFormatError, match=f"a {type(source).__name__} is no model; give a path, the bytes"
        ):
            rlx.onnx.load(source)


@pytest.mark.parametrize("shape", [(-1, 64), ("n", 64), (2.0, 64), 64, None])
def test_what_is_no_shape(shape: Any) -> None:
    with (
        rlx.onnx.load(mlp()) as loaded,
        pytest.raises(ShapeError, match=r"'x': .* is no shape; expected lengths"),
    ):
        loaded.compile({"x": shape}, device="cpu")


def test_an_initializer_that_is_an_input_may_be_fed() -> None:
    proto = model(
        [node("Mul", "x k", "y")], {"x": [2], "k": [1]}, {"y": [2]}, {"k": np.array([3], np.float32)}
    )
    loaded = rlx.onnx.load(proto)
    x = f32(2)
    assert [i.name for i in loaded.inputs] == ["x"]
    assert np.array_equal(loaded.run({"x": x}, device="cpu")["y"], x * 3)
    assert np.array_equal(loaded.run({"x": x, "k": np.array([5], np.float32)}, device="cpu")["y"], x * 5)


def test_functions_are_inlined_with_their_attributes() -> None:
    body = [node("LeakyRelu", "a", "h"), node("Add", "h b", "out")]
    reference = body[0].attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "slope", onnx.AttributeProto.FLOAT
    function = helper.make_function(
        "mine", "LeakySum", ["a", "b"], ["out"], body, [helper.make_opsetid("", 21)], attributes=["slope"]
    )
    nodes = [
        node("LeakySum", "x x", "t", domain="mine", slope=0.5),
        node("LeakySum", "t x", "y", domain="mine"),
    ]
    proto = model(nodes, {"x": [4]}, {"y": [4]}, functions=[function], domains=["mine"])
    x = f32(4)
    t = np.where(x < 0, x * np.float32(0.5), x) + x
    want = (
        np.where(t < 0, t * np.float32(0.01), t) + x
    )  # the operator's own default where no attribute is given
    assert np.allclose(rlx.onnx.load(proto).run({"x": x}, device="cpu")["y"], want, rtol=1e-6)


def test_functions_of_one_name_are_told_apart_by_their_overloads() -> None:
    """One of them calls the other, which is no recursion."""
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    inner = helper.make_node("F", ["a"], ["t"], domain="mine", overload="plain")
    plain = helper.make_function(
        "mine", "F", ["a"], ["y"], [node("Neg", "a", "y")], imports, overload="plain"
    )
    double = helper.make_function(
        "mine", "F", ["a"], ["y"], [inner, node("Add", "t t", "y")], imports, overload="double"
    )
    calls = [
        helper.make_node("F", ["x"], ["p"], domain="mine", overload="plain"),
        helper.make_node("F", ["x"], ["d"], domain="mine", overload="double"),
    ]
    proto = model(calls, {"x": [3]}, {"p": [3], "d": [3]}, functions=[plain, double], domains=["mine"])
    x = f32(3)
    made = rlx.onnx.load(proto).run({"x": x}, device="cpu")
    assert np.array_equal(made["p"], -x) and np.array_equal(made["d"], -2 * x)
    calls[1].overload = "none"
    with pytest.raises(UnsupportedOp, match="mine 'F' version 1"):
        rlx.onnx.load(
            model(calls, {"x": [3]}, {"p": [3], "d": [3]}, functions=[plain, double], domains=["mine"])
        )


def test_an_output_may_be_an_input_or_a_weight_and_be_given_twice() -> None:
    nodes = [node("Identity", "x", "a"), node("Identity", "x", "b"), node("Identity", "w", "c")]
    proto = model(nodes, {"x": [2]}, {"a": [2], "b": [2], "c": [3]}, {"w": np.arange(3, dtype=np.float32)})
    x = f32(2)
    made = rlx.onnx.load(proto).run({"x": x}, device="cpu")
    assert np.array_equal(made["a"], x) and np.array_equal(made["b"], x) and made["c"].tolist() == [0, 1, 2]
    made["a"][:] = 7
    assert np.array_equal(made["b"], x)
    proto.graph.output.append(proto.graph.output[0])
    again = rlx.onnx.InferenceSession(proto, device="cpu")
    assert [o.name for o in again.get_outputs()] == ["a", "b", "c", "a"]
    assert np.array_equal(again.run(None, {"x": x})[3], x)


@pytest.mark.parametrize("code", sorted(ELEMENTS), ids=lambda c: TensorProto.DataType.Name(c))
def test_every_element_type_goes_in_and_comes_out(code: int, device: str) -> None:
    dtype = ELEMENTS[code]
    x = RNG.integers(0, 2, 5).astype(bool) if dtype.kind == "b" else np.array([0, 1, 2, 100, 7]).astype(dtype)
    x = np.array(["", "a", "bc", "a", "é"], object) if dtype.kind == "O" else x
    if dtype.kind in "iu":
        x[0], x[1] = np.iinfo(dtype).min, np.iinfo(dtype).max
    proto = model(
        [node("Identity", "x", "t"), node("Reshape", "t shape", "y")],
        {"x": ([5], code)},
        {"y": ([1, 5], code)},
        {"shape": np.array([1, 5])},
        opset=25,
    )
    y = rlx.onnx.load(proto).run({"x": x}, device=device)["y"]
    assert y.dtype == dtype and y.shape == (1, 5) and repr(y) == repr(x[None])


def truncated(p: int, q: int) -> int:
    return abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)


UNSIGNED = ["uint16", "uint32", "uint64", "uint8"]
ARITHMETIC = ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Less"]


@pytest.mark.parametrize(
    "kind, name",
    [
        *((k, n) for k in ARITHMETIC for n in [*UNSIGNED, "int16", "int8"]),
        *(("BitShift", n) for n in UNSIGNED),
    ],
)
def test_narrow_and_unsigned_integers_wrap_and_order_as_their_own(kind: str, name: str) -> None:
    dtype = np.dtype(name)
    ends, bits = np.iinfo(dtype), 8 * dtype.itemsize
    a = np.array([ends.min, ends.max, 3, 1, ends.max, ends.max - 1, ends.max], dtype)
    b = np.array([1, ends.max, 5, 2, 1, ends.max, 2], dtype)
    functions = {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Mod": np.mod, "Max": np.maximum, "Less": np.less,
        "BitShift": lambda x, y: np.where(y < bits, x >> np.minimum(y, bits - 1), 0).astype(dtype),
        "Div": lambda x, y: np.array([truncated(int(p), int(q)) for p, q in zip(x, y, strict=True)], dtype),
    }  # fmt: skip
    attributes = {"direction": "RIGHT"} if kind == "BitShift" else {}
    code = next(c for c, d in ELEMENTS.items() if d == dtype)
    proto = model([node(kind, "a b", "y", **attributes)], {"a": ([7], code), "b": ([7], code)}, {})
    proto.graph.output.append(info("y", [7], TensorProto.BOOL if kind == "Less" else code))
    with np.errstate(all="ignore"):
        want = functions[kind](a, b)
    y = rlx.onnx.load(proto).run({"a": a, "b": b}, device="cpu")["y"]
    assert y.dtype == want.dtype and np.array_equal(y, want), (y, want)


def test_the_session_of_others() -> None:
    session = rlx.onnx.InferenceSession(mlp().SerializeToString(), device="cpu")
    assert [i.name for i in session.get_inputs()] == ["x"] and session.get_inputs()[0].type == "tensor(float)"
    assert [o.name for o in session.get_outputs()] == ["y"]
    x = f32(2, 64)
    (a,), (b,) = session.run(None, {"x": x}), session.run(["y"], {"x": x})
    assert np.array_equal(a, b) and a.shape == (2, 3)
    assert np.array_equal(session.run(output_names=["y"], input_feed={"x": x})[0], a)
    with pytest.raises(GraphError, match="no outputs"):
        session.run(["z"], {"x": x})
    with pytest.raises(GraphError, match=r"a string; expected a list, \['y'\]"):
        session.run("y", {"x": x})


def test_the_session_on_a_provider() -> None:
    file = mlp().SerializeToString()
    cpu = "CPUExecutionProvider"
    assert rlx.onnx.InferenceSession(file, providers=[cpu]).device.startswith("cpu")
    assert rlx.onnx.InferenceSession(file, providers=[(cpu, {"arena": 1})]).device.startswith("cpu")
    if not any(d.backend == "cuda" for d in rlx.devices()):
        assert rlx.onnx.InferenceSession(file, providers=["CUDAExecutionProvider", cpu]).device.startswith("cpu")
        with pytest.raises(DeviceUnavailable, match="CUDA"):
            rlx.onnx.InferenceSession(file, providers=["CUDAExecutionProvider"])
    with pytest.raises(GraphError, match=r"nothing for \['AbacusExecutionProvider'\]; it has"):
        rlx.onnx.InferenceSession(file, providers=["AbacusExecutionProvider"])
    with pytest.warns(UserWarning, match=r"nothing for \['AbacusExecutionProvider'\], which are left out"):
        assert rlx.onnx.InferenceSession(file, None, ["AbacusExecutionProvider", cpu]).device.startswith("cpu")
    with pytest.raises(GraphError, match="give one"):
        rlx.onnx.InferenceSession(file, device="cpu", providers=[cpu])


def test_the_backend_of_onnx() -> None:
    assert rlx.onnx.Backend.supports_device("CPU") and not rlx.onnx.Backend.supports_device("TPU")
    (y,) = rlx.onnx.Backend.run_node(node("Add", "a b", "y"), [np.float32(2), np.float32(3)])
    assert y.shape == () and y == 5
    with pytest.raises(DeviceUnavailable, match="'tpu'"):
        rlx.onnx.Backend.prepare(mlp(), "TPU")
    prepared = rlx.onnx.Backend.prepare(mlp())
    x = f32(1, 64)
    assert np.array_equal(prepared.run([x])[0], prepared.run({"x": x})[0])
    with pytest.raises(GraphError, match="2 inputs came"):
        prepared.run([f32(1, 64), f32(1, 64)])


def test_threads_share_a_model() -> None:
    loaded, x = rlx.onnx.load(mlp()), [f32(1 + k % 3, 64) for k in range(12)]
    want = [loaded.run({"x": v}, device="cpu")["y"] for v in x]
    made = at_once(12, lambda k: loaded.run({"x": x[k]}, device="cpu")["y"])
    assert all(np.array_equal(made[k], want[k]) for k in range(12))


def test_models_of_one_session_share_its_memory() -> None:
    session = rlx.Session("cpu", memory_limit=1 << 20)
    x = f32(2, 64)
    with rlx.onnx.load(mlp()) as first, rlx.onnx.load(mlp()) as second:
        for loaded in (first, second):
            want = loaded.run({"x": x}, "cpu")["y"]
            before = session.room.taken
            np.testing.assert_array_equal(loaded.run({"x": x}, session)["y"], want)
            assert session.room.taken > before
        assert first.compile(dims={"n": 3}, device=session).graph.device is session.device
        with pytest.raises(DTypeError, match="precision 'f16' beside Session"):
            first.run({"x": x}, session, "f16")
