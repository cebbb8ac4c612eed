"""ONNX models that the disk's cache has ready: the results of the models, and which entries are used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.errors import DTypeError, GraphError, ModelWarning, ShapeError

onnx = pytest.importorskip("onnx")
if choice.why_not() is not None:
    pytest.skip(str(choice.why_not()), allow_module_level=True)

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from rlx.onnx import ready  # noqa: E402

X = np.linspace(-1, 1, 2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)


def written(path: Path, scale: float = 1.0, outputs: tuple[Any, ...] = ("N", 40), extra: tuple[Any, ...] = ()) -> Path:
    """A convolution, a product, a softmax, for any number of images."""
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((8, 3, 3, 3)) * scale, "v": rng.standard_normal((512, 40)) / 20}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
        *extra,
    ]
    port = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, path.parent.name,
        [port("x", TensorProto.FLOAT, ("N", 3, 8, 8))], [port("y", TensorProto.FLOAT, outputs)],
        [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def session(**options: Any) -> rlx.Session:
    return rlx.Session("cpu", engine="compiled", threads=2, **options)


def unread(model: Any) -> bool:
    """Whether the model is one of the cache, which has not read its file."""
    return type(model) is ready.ReadyModel and model._whole is None


@pytest.fixture
def file(tmp_path: Path) -> tuple[Path, Any]:
    """A model that the cache has ready, and its result."""
    path = written(tmp_path / "net.onnx")
    with rlx.onnx.load(path) as model:
        return path, model.run({"x": X}, device=session())["y"]


def test_runs_that_the_cache_knows_read_no_file(file: Any) -> None:
    path, wanted = file
    with rlx.onnx.load(path) as model:
        assert unread(model) and isinstance(model, rlx.onnx.Model)
        device = session()
        np.testing.assert_array_equal(model.run({"x": X}, device=device)["y"], wanted)
        np.testing.assert_array_equal(model(X, device=device), wanted)
        np.testing.assert_array_equal(model(x=X, device=device), wanted)
        assert unread(model)
        assert len(model.programs) == 1 and [t.name for t in model.inputs] == ["x"]
        np.testing.assert_array_equal(model(X, device=device), wanted)
        assert not unread(model) and len(model.programs) == 1


def test_other_shapes_are_compiled_and_then_known(file: Any) -> None:
    path, wanted = file
    with rlx.onnx.load(path) as model:
        device = session()
        model.run({"x": X}, device=device)
        one = model.run({"x": X[:1]}, device=device)["y"]
        assert not unread(model) and len(model.programs) == 2
        np.testing.assert_allclose(one, wanted[:1], rtol=1e-5, atol=1e-7)
    with rlx.onnx.load(path) as model:
        np.testing.assert_array_equal(model.run({"x": X[:1]}, device=session())["y"], one)
        np.testing.assert_array_equal(model.run({"x": X}, device=session())["y"], wanted)
        assert unread(model)


def test_another_file_or_another_setting_is_read(file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, wanted = file
    with rlx.onnx.load(written(tmp_path / "other.onnx", 2.0)) as model:
        assert not unread(model)
    for options in ({"strict": True}, {"max_bytes": 1 << 29}, {"threads": 1}, {"dims": {"N": 2}},
                    {"progress": lambda *stage: None}):  # fmt: skip
        with rlx.onnx.load(path, **options) as model:
            assert not unread(model)
    with rlx.onnx.load(path.read_bytes()) as model:
        assert not unread(model)
    for other in (rlx.Session("cpu", engine="numpy", threads=2), session(memory_limit=1 << 30), session(timings=True)):
        with rlx.onnx.load(path) as model:
            np.testing.assert_allclose(model.run({"x": X}, device=other)["y"], wanted, rtol=1e-4, atol=1e-7)
            assert not unread(model)
    for name in ("stamp", "_package"):
        with monkeypatch.context() as patch:
            patch.setattr(ready, name, lambda *folders: b"another")
            with rlx.onnx.load(path) as model:
                assert not unread(model)
    monkeypatch.setenv("RLX_CACHE_DIR", "off")
    with rlx.onnx.load(path) as model:
        assert not unread(model)


def test_the_file_that_was_read_counts(file: Any, tmp_path: Path) -> None:
    path, wanted = file
    content = path.read_bytes()
    model = rlx.onnx.load(path)
    written(path, 2.0)
    np.testing.assert_array_equal(model.run({"x": X}, device=session())["y"], wanted)
    path.unlink()
    assert model.programs
    np.testing.assert_array_equal(model.run({"x": X}, device=session())["y"], wanted)
    model.close()
    path.write_bytes(content)
    with rlx.onnx.load(path) as again:
        assert unread(again)


def test_what_is_warned_of_is_warned_of_each_time(tmp_path: Path) -> None:
    path = written(tmp_path / "declared.onnx", outputs=("N", 41))
    for _ in range(3):
        with rlx.onnx.load(path) as model, pytest.warns(ModelWarning, match="declared"):
            model.run({"x": X}, device=session())


def test_lengths_of_one_name_that_differ_are_warned_of_each_time(tmp_path: Path) -> None:
    path, port = tmp_path / "sum.onnx", helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["y"])], "sum",
        [port(name, TensorProto.FLOAT, ("N",)) for name in "ab"], [port("y", TensorProto.FLOAT, ("N",))],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    for _ in range(3):
        with rlx.onnx.load(path) as model, pytest.warns(ModelWarning, match="dimension 'N'"):
            model.run({"a": X[0, 0, 0], "b": X[0, 0, 0, :1]}, device=session())


def test_errors_are_those_of_the_model(file: Any) -> None:
    path, _ = file
    cases: list[tuple[Any, type[Exception]]] = [
        ({}, GraphError), ({"z": X}, GraphError), ({"x": X[0]}, ShapeError), ({"x": X.astype(np.int64)}, DTypeError),
        ({"x": X.astype(X.dtype.newbyteorder())}, DTypeError),
    ]  # fmt: skip
    with rlx.onnx.load(path, threads=1) as whole:
        for given, error in cases:
            with rlx.onnx.load(path) as model:
                messages = []
                for m in (model, whole):
                    with pytest.raises(error) as raised:
                        m.run(given, device=session())
                    messages.append(str(raised.value))
                assert messages[0] == messages[1]


def test_lists_and_arrays_of_the_device_and_results_there(file: Any) -> None:
    path, wanted = file
    device = session()
    for given, out in ((X.tolist(), "host"), (rlx.array(X, device="cpu"), "host"), (X, "device")):
        with rlx.onnx.load(path) as model:
            np.testing.assert_array_equal(np.asarray(model.run({"x": given}, device=device, out=out)["y"]), wanted)


def test_in_another_process_onnx_is_not_imported(file: Any, tmp_path: Path) -> None:
    path, wanted = file
    np.save(tmp_path / "x.npy", X)
    code = (
        "import sys, numpy as np, rlx\n"
        "session = rlx.Session('cpu', engine='compiled', threads=2)\n"
        f"x = np.load({str(tmp_path / 'x.npy')!r})\n"
        f"np.save({str(tmp_path / 'y.npy')!r}, rlx.onnx.load({str(path)!r}).run({{'x': x}}, device=session)['y'])\n"
        "names = 'onnx llvmlite rlx.onnx.model rlx.runtime.compiled rlx.passes'\n"
        "print(*(name for name in names.split() if name in sys.modules))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    text = subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=120, stdout=subprocess.PIPE)
    assert text.stdout.strip() == b""
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), wanted)


@pytest.mark.parametrize("zero", [0, 3])
def test_integer_products_with_small_weights_give_the_same_bits(tmp_path: Path, zero: int) -> None:
    path, rng = tmp_path / "integers.onnx", np.random.default_rng(0)
    w = rng.integers(-128, 128, (24, 20)).astype(np.int8)  # so few bytes are a constant of the graph
    x = rng.integers(0, 256, (5, 24)).astype(np.uint8)
    port = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w", "", "z"], ["y"])], "integers",
        [port("x", TensorProto.UINT8, x.shape)], [port("y", TensorProto.INT32, (5, 20))],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.int8(zero), "z")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    for _ in range(2):
        with rlx.onnx.load(path) as model:
            y = model.run({"x": x}, device=session())["y"]
        np.testing.assert_array_equal(y, x.astype(np.int32) @ (w.astype(np.int32) - zero))


def test_weights_that_the_user_replaced_are_not_kept_as_those_of_the_file(tmp_path: Path) -> None:
    path, device = written(tmp_path / "net.onnx"), session()
    with rlx.onnx.load(path, threads=2) as whole:
        wanted = whole.run({"x": X}, device=device)["y"]
    with rlx.onnx.load(path) as model:
        program = model.compile({"x": (1, 3, 8, 8)}, device=device).graph
        for name, t in program.graph.params.items():
            program.set_param(name, np.zeros(t.shape, np.float32))
        np.testing.assert_allclose(model.run({"x": X}, device=device)["y"], 1 / 40)
    with rlx.onnx.load(path) as model:
        np.testing.assert_array_equal(model.run({"x": X}, device=device)["y"], wanted)
