"""InferenceSession takes what scripts for ONNX Runtime give: options, providers, bindings, metadata, profiles."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rlx
from rlx.errors import DTypeError, GraphError, ShapeError, UnsupportedOp
from tests.devices import device_here
from tests.onnx.models import info, model, node
from tests.outside import outside

X = np.arange(6, dtype=np.float32).reshape(2, 3)
CPU = ["CPUExecutionProvider"]


def affine() -> onnx.ModelProto:
    """y = x·w + b, z = -y; b may be given."""
    proto = model(
        [node("MatMul", "x w", "t"), node("Add", "t b", "y"), node("Neg", "y", "z")], {"x": ["n", 3]},
        {"y": ["n", 2], "z": ["n", 2]}, {"w": np.ones((3, 2), np.float32), "b": np.float32([1, 2])},
    )  # fmt: skip
    proto.graph.input.append(info("b", [2]))
    proto.producer_name, proto.domain, proto.doc_string, proto.model_version = "maker", "org.example", "a test", 7
    proto.metadata_props.add(key="author", value="me")
    return proto


WANT = X @ np.ones((3, 2), np.float32) + np.float32([1, 2])


def test_metadata_and_overridable_initializers() -> None:
    session = rlx.onnx.InferenceSession(affine(), None, CPU)
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.domain) == ("maker", "g", "org.example")
    assert meta.description == "a test"
    assert meta.version == 7 and meta.custom_metadata_map == {"author": "me"} and meta.graph_description == ""
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert [(i.name, i.type) for i in session.get_overridable_initializers()] == [("b", "tensor(float)")]
    (y,) = session.run(["y"], {"x": X, "b": np.float32([0, 0])}, None)
    np.testing.assert_allclose(y, WANT - np.float32([1, 2]))
    broken = affine().SerializeToString().replace(b"maker", b"\xff\xfe\xfd\xfc\xfb")
    assert rlx.onnx.InferenceSession(broken).get_modelmeta().producer_name == ""


def test_options_and_providers_by_position() -> None:
    options = rlx.onnx.SessionOptions()
    options.graph_optimization_level = rlx.onnx.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.intra_op_num_threads = 1
    options.add_free_dimension_override_by_name("n", 2)
    options.add_session_config_entry("session.some", "1")
    session = rlx.onnx.InferenceSession(affine().SerializeToString(), options, CPU, [{"device_id": 0}])
    assert session.get_providers() == CPU and session.get_session_options() is options
    assert session.get_inputs()[0].shape == (2, 3) and options.get_session_config_entry("session.some") == "1"
    assert session.get_provider_options() == {CPU[0]: {"device_id": "0"}}
    session.set_providers(CPU)
    session.disable_fallback()
    np.testing.assert_allclose(session.run(None, {"x": X}, rlx.onnx.RunOptions())[1], -WANT)
    assert CPU[0] in rlx.onnx.get_available_providers()
    with pytest.raises(GraphError, match="lists of equal length"):
        session.set_providers(CPU, [{}, {}])
    training = rlx.onnx.RunOptions()
    training.training_mode = True
    with pytest.raises(UnsupportedOp, match="training_mode"):
        session.run(None, {"x": X}, training)
    ended = rlx.onnx.RunOptions()
    ended.terminate = True
    with pytest.raises(UnsupportedOp, match="terminate is set"):
        session.run(None, {"x": X}, ended)
    with pytest.raises(GraphError, match="got a NoneType; session"):
        session.run_with_iobinding(None)  # type: ignore[arg-type]
    options.optimized_model_filepath = "there.onnx"
    with pytest.warns(UserWarning, match="'there.onnx' is not written"):
        rlx.onnx.InferenceSession(affine(), options)


def test_bindings() -> None:
    session = rlx.onnx.InferenceSession(affine(), providers=CPU)
    bound = session.io_binding()
    bound.bind_cpu_input("x", X)
    bound.bind_output("z")
    bound.bind_output("y", "cpu", 0)
    session.run_with_iobinding(bound)
    z, y = bound.copy_outputs_to_cpu()
    np.testing.assert_allclose(y, WANT)
    np.testing.assert_allclose(z, -WANT)
    assert [v.shape() for v in bound.get_outputs()] == [[2, 2]] * 2 and bound.get_outputs()[0].device_name() == "cpu"

    source, target = X.copy(), np.zeros((2, 2), np.float32)
    bound.bind_input("x", "cpu", 0, np.float32, source.shape, source.ctypes.data)
    bound.clear_binding_outputs()
    bound.bind_output("y", "cpu", 0, onnx.TensorProto.FLOAT, [2, 2], target.ctypes.data)
    for factor in (1, 2):
        source[...] = factor * X
        session.run_with_iobinding(bound, None)
        np.testing.assert_allclose(target, factor * (WANT - np.float32([1, 2])) + np.float32([1, 2]))

    value = rlx.onnx.OrtValue.ortvalue_from_numpy(X.copy())
    taker = rlx.onnx.OrtValue.ortvalue_from_shape_and_type([2, 2], np.float32)
    bound.bind_ortvalue_input("x", value)
    bound.bind_ortvalue_output("y", taker)
    session.run_with_iobinding(bound)
    np.testing.assert_allclose(taker.numpy(), WANT)
    assert taker.data_type() == "tensor(float)" and taker.is_tensor() and taker.has_value()
    value.update_inplace(2 * X)
    (y,) = session.run_with_ort_values(["y"], {"x": value})
    np.testing.assert_allclose(y.numpy(), 2 * (WANT - np.float32([1, 2])) + np.float32([1, 2]))

    for wrong, error, text in (
        (lambda: bound.bind_cpu_input("w", X), GraphError, r"no input 'w'; it has \['x', 'b'\]"),
        (lambda: bound.bind_output("t"), GraphError, "no output 't'"),
        (lambda: bound.bind_input("x", "dml", 0, np.float32, (2, 3), 64), GraphError, "addresses of the host"),
        (lambda: bound.bind_input("x", "cpu", 0, np.float32, (2, 3), 0), ShapeError, "the address 0"),
        (lambda: bound.bind_input("x", "cpu", 0, "lots", (2, 3), 64), DTypeError, "element type 'lots'"),
        (lambda: bound.bind_output("y", buffer_ptr=64), GraphError, "element_type and shape"),
        (lambda: value.update_inplace(X[0]), ShapeError, "update_inplace"),
        (lambda: session.run_with_iobinding(session.io_binding()), GraphError, "no output is bound"),
    ):
        with pytest.raises(error, match=text):
            wrong()


def test_values_on_a_device(device: str) -> None:
    value = rlx.onnx.OrtValue.ortvalue_from_numpy(X, device)
    assert value.device_name() == device and value.shape() == [2, 3] and value.data_type() == "tensor(float)"
    session = rlx.onnx.InferenceSession(affine(), device=device)
    bound = session.io_binding()
    bound.bind_ortvalue_input("x", value)
    bound.bind_output("y", device)
    session.run_with_iobinding(bound)
    (made,) = bound.get_outputs()
    assert made.device_name() == device
    np.testing.assert_allclose(made.numpy(), WANT, rtol=1e-6)


@pytest.mark.cuda
@pytest.mark.judged
def test_an_address_of_cuda() -> None:
    device_here("cuda")
    torch = outside("torch")
    x = torch.arange(6, dtype=torch.float32, device="cuda").reshape(2, 3)
    torch.cuda.synchronize()
    session = rlx.onnx.InferenceSession(affine(), device="cuda")
    bound = session.io_binding()
    bound.bind_input("x", "cuda", 0, np.float32, tuple(x.shape), x.data_ptr())
    bound.bind_output("y", "cuda")
    session.run_with_iobinding(bound)
    assert bound.get_outputs()[0].device_name() == "cuda"
    np.testing.assert_allclose(bound.copy_outputs_to_cpu()[0], WANT, rtol=1e-6)


def test_a_run_on_another_thread() -> None:
    session = rlx.onnx.InferenceSession(affine(), providers=CPU)
    done, said = threading.Event(), []

    def tell(results: list[Any], user: Any, error: str) -> None:
        said.append((results, user, error))
        done.set()

    for feeds, right in (({"x": X}, True), ({}, False)):
        done.clear()
        session.run_async(["y"], feeds, tell, "mine")
        assert done.wait(60)
        results, user, error = said.pop()
        assert user == "mine" and (error == "") == right and len(results) == right
    assert "'x'" in error
    done.clear()
    session.run_async([["y"]], {"x": X}, tell, "mine")  # type: ignore[list-item]
    assert done.wait(60) and said.pop()[2]


@pytest.mark.parametrize("providers", ["CPUExecutionProvider", [("CPUExecutionProvider",)], CPU])
def test_every_form_of_a_provider(providers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = rlx.onnx.InferenceSession(affine(), None, providers, [None], disabled_optimizers=["Fusion"])
    assert session.get_providers() == CPU
    with pytest.raises(GraphError, match="a dict of options"):
        session.set_providers([("CPUExecutionProvider", 3)])  # type: ignore[list-item]
    assert CPU[0] in rlx.onnx.get_all_providers() and rlx.onnx.get_device() in ("CPU", "GPU")
    monkeypatch.setattr("rlx.onnx.session.devices", lambda: [d for d in rlx.devices() if d.kind in ("cpu", "software")])
    assert rlx.onnx.get_device() == "CPU"
    rlx.onnx.set_default_logger_severity(3)


def test_profiles(tmp_path: Path) -> None:
    options = rlx.onnx.SessionOptions()
    assert rlx.onnx.InferenceSession(affine(), options, CPU).end_profiling() == ""
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    session = rlx.onnx.InferenceSession(affine(), options, CPU)
    for _ in range(3):
        session.run(None, {"x": X})
    path = session.end_profiling()
    assert session.end_profiling() != path
    events = json.loads(Path(path).read_text())
    assert all(e["dur"] >= 0 and e["ph"] == "X" for e in events)
    runs = [e for e in events if e["cat"] == "Session"]
    nodes = [e for e in events if e["cat"] == "Node"]
    assert [e["name"] for e in runs] == ["model_run"] * 3 and len(runs) + len(nodes) == len(events)
    assert len(nodes) % 3 == 0 and nodes
    assert all(e["name"].endswith("_kernel_time") and e["args"]["provider"] == "cpu" for e in nodes)
    spans = [(r["ts"], r["ts"] + r["dur"] + 1) for r in runs]
    assert all(any(a <= e["ts"] <= b for a, b in spans) for e in nodes)


@pytest.mark.judged
def test_the_objects_of_onnx_runtime() -> None:
    runtime = outside("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = rlx.onnx.InferenceSession(affine().SerializeToString(), options, CPU)
    theirs = runtime.InferenceSession(affine().SerializeToString(), options, CPU)
    for field in ("producer_name", "graph_name", "domain", "description", "version", "custom_metadata_map"):
        assert getattr(session.get_modelmeta(), field) == getattr(theirs.get_modelmeta(), field), field
    bound = session.io_binding()
    bound.bind_ortvalue_input("x", runtime.OrtValue.ortvalue_from_numpy(X))
    taker = runtime.OrtValue.ortvalue_from_numpy(np.zeros((2, 2), np.float32))
    bound.bind_ortvalue_output("y", taker)
    session.run_with_iobinding(bound, runtime.RunOptions())
    np.testing.assert_allclose(taker.numpy(), WANT)


def test_providers_of_other_makers_name_the_one_that_serves_them() -> None:
    words = "VulkanExecutionProvider is for the GPUs of every maker, in place of 'ROCMExecutionProvider'"
    with pytest.raises(GraphError, match=words):
        rlx.onnx.InferenceSession(affine(), providers=["ROCMExecutionProvider"])
    with pytest.warns(UserWarning, match=words):
        session = rlx.onnx.InferenceSession(affine(), providers=["ROCMExecutionProvider", *CPU])
    assert session.get_providers() == CPU
