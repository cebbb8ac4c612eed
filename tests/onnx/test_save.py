"""rlx graphs as ONNX models: right in other engines and in rlx again, names and dtypes kept, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import rlx
from rlx.conformance.case import all_cases
from rlx.conformance.runner import sample
from rlx.errors import DTypeError, GraphError, ModelFormatError, ShapeError, UnsupportedOp
from rlx.ir import REGISTRY, Tensor
from tests.full import full
from tests.onnx.models import model, node
from tests.onnx.save_cases import engines, save_case
from tests.outside import outside

OPS = sorted({c.op for c in all_cases()})
# Of numbers that leave the range midway, other engines find infinity or NaN; of rows that hardly differ from their mean
# they lose the digits that differ.
_MIDWAY = {"swings", "top", "reciprocals", "shifted"}
RUNS = engines()
pytestmark = pytest.mark.judged


@pytest.mark.parametrize("op", OPS)
def test_cases_mean_the_same_elsewhere(op: str) -> None:
    """Saved, checked in full, run by rlx again, and by at least one engine that is not rlx."""
    cases = [c for c in all_cases() if c.op == op and _MIDWAY.isdisjoint(s.domain for s in c.inputs)]
    for case in sample(cases, 3 if full() else 1):
        saved = save_case(case, RUNS, 21)
        if not saved.right and "onnxruntime" not in RUNS and saved.results.get("rlx") == "pass":
            outside("onnxruntime")  # the reference cannot run this case
        assert saved.right, f"{case.id}: {saved.message or saved.results}"


def test_every_op_can_be_saved() -> None:
    assert {op.name for op in REGISTRY.values() if not op.leaf and op.family != "custom"} == set(OPS)


@pytest.mark.parametrize("opset", [18, 19, 20, 22, 23, onnx.defs.onnx_opset_version()])
def test_opsets(opset: int) -> None:
    g = rlx.Graph("g")
    x = g.input("x", (2, 4, 6, 8))
    y = rlx.gelu(rlx.silu(x)) + rlx.rms_norm(x, g.constant(np.ones(8, np.float32)))
    grid = g.input("grid", (2, 3, 3, 2))
    g.output("y", rlx.grid_sample(y, grid, mode="linear"))
    made = rlx.onnx.to_model(g, opset=opset)
    onnx.checker.check_model(made, full_check=True)
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((2, 4, 6, 8), np.float32),
        "grid": rng.uniform(-1, 1, (2, 3, 3, 2)).astype(np.float32),
    }
    expected = rlx.Session("cpu").compile(g).run(feeds)["y"]
    np.testing.assert_allclose(RUNS["rlx"](made, feeds)["y"], expected, atol=1e-5)


def small() -> tuple[rlx.Graph, dict[str, Any]]:
    g = rlx.Graph("small")
    x = g.input("x", (2, 3))
    w, b = g.param("layer.weight", (4, 3)), g.param("layer.bias", (4,))
    y = rlx.matmul(x, w, b, transpose_b=True, activation="relu")
    g.output("y", y)
    g.output("again", y)
    g.output("given", x)
    rng = np.random.default_rng(1)
    return g, {
        "layer.weight": rng.standard_normal((4, 3), np.float32), "layer.bias": rng.standard_normal(4, np.float32),
    }  # fmt: skip


def test_names_types_and_weights_are_kept() -> None:
    g, weights = small()
    made = rlx.onnx.to_model(g, weights)
    onnx.checker.check_model(made, full_check=True)
    assert [i.name for i in made.graph.input] == ["x"]
    assert [o.name for o in made.graph.output] == ["y", "again", "given"]
    held = {i.name: numpy_helper.to_array(i) for i in made.graph.initializer}
    for name, value in weights.items():
        np.testing.assert_array_equal(held[name], value)
    x = np.ones((2, 3), np.float32)
    found = RUNS["reference"](made, {"x": x})
    expected = np.maximum(x @ weights["layer.weight"].T + weights["layer.bias"], 0)
    np.testing.assert_allclose(found["y"], expected, rtol=1e-6)
    np.testing.assert_array_equal(found["again"], found["y"])
    np.testing.assert_array_equal(found["given"], x)


def test_half_weights_stay_half() -> None:
    g, weights = small()
    compiled = rlx.Session("cpu").compile(g)
    compiled.set_param("layer.weight", weights["layer.weight"], dtype="bf16")
    compiled.set_param("layer.bias", weights["layer.bias"])
    made = rlx.onnx.to_model(compiled)
    types = {i.name: i.data_type for i in made.graph.initializer}
    assert types["layer.weight"] == TensorProto.BFLOAT16 and types["layer.bias"] == TensorProto.FLOAT
    x = np.ones((2, 3), np.float32)
    for run in RUNS.values():
        np.testing.assert_allclose(run(made, {"x": x})["y"], compiled.run({"x": x})["y"], rtol=1e-6)


def test_a_function_is_traced() -> None:
    def f(a: Tensor, b: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return rlx.matmul(a, b["w"]), rlx.sum(a)

    a, w = np.ones((2, 3), np.float32), np.full((3, 4), 2, np.float32)
    for function in (f, rlx.jit(f)):
        made = rlx.onnx.to_model(function, args=(a, {"w": w}))
        found = RUNS["reference"](made, {"a": a, "b.w": w})
        assert found["y0"].tolist() == (a @ w).tolist() and found["y1"] == 6


def test_state_becomes_past_and_present() -> None:
    g = rlx.Graph("count")
    x, s = g.input("x", (2,)), g.state("total", (2,))
    g.update("total", s + x)
    g.output("before", s)
    made = rlx.onnx.to_model(g)
    assert [i.name for i in made.graph.input] == ["x", "past.total"]
    assert [o.name for o in made.graph.output] == ["before", "present.total"]
    for run in RUNS.values():
        found = run(made, {"x": np.array([1, 2], np.float32), "past.total": np.array([10, 20], np.float32)})
        assert found["before"].tolist() == [10, 20] and found["present.total"].tolist() == [11, 22]


def test_missing_and_wrong_weights_are_named(tmp_path: Path) -> None:
    g, weights = small()
    with pytest.raises(GraphError, match=r"2 weights.*layer\.bias.*layer\.weight"):
        rlx.onnx.save(g, tmp_path / "m.onnx")
    with pytest.raises(ShapeError, match=r"layer\.bias.*\(5,\)"):
        rlx.onnx.save(g, tmp_path / "m.onnx", weights={**weights, "layer.bias": np.ones(5, np.float32)})
    with pytest.raises(DTypeError, match=r"layer\.bias.*i64"):
        rlx.onnx.save(g, tmp_path / "m.onnx", weights={**weights, "layer.bias": np.ones(4, np.int64)})
    with pytest.raises(UnsupportedOp, match="opset 17"):
        rlx.onnx.save(g, tmp_path / "m.onnx", weights=weights, opset=17)
    with pytest.raises(GraphError, match="expected a Graph"):
        rlx.onnx.save(7, tmp_path / "m.onnx")
    with pytest.raises(ModelFormatError, match="cannot be written"):
        rlx.onnx.save(g, tmp_path / "absent" / "m.onnx", weights=weights)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_named_at_once(tmp_path: Path) -> None:
    twice = rlx.custom_op("rlx_test_save", numpy=lambda x: x * 2, infer=lambda types, attrs: types[0])

    g = rlx.Graph("g")
    x: Tensor = g.input("x", (2,))
    g.output("y", twice(rlx.exp(twice(x))))
    with pytest.raises(UnsupportedOp, match=r"2 nodes cannot be written.*rlx_test_save.*rlx_test_save"):
        rlx.onnx.save(g, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_external_data(tmp_path: Path) -> None:
    g = rlx.Graph("g")
    x, w = g.input("x", (1, 300)), g.param("w", (300, 4))
    g.output("y", rlx.reshape(rlx.matmul(x, w), (4,)))
    rng = np.random.default_rng(2)
    weights = {"w": rng.standard_normal((300, 4), np.float32)}
    path = tmp_path / "m.onnx"
    for _ in range(2):  # over an older pair of files too
        rlx.onnx.save(g, path, weights=weights, external_data=True)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
        onnx.checker.check_model(str(path), full_check=True)
        value = rng.standard_normal((1, 300), np.float32)
        with rlx.onnx.load(path) as again:
            np.testing.assert_allclose(
                again.run({"x": value}, device="cpu")["y"], (value @ weights["w"])[0], rtol=1e-4
            )
    assert (tmp_path / "m.onnx.data").stat().st_size == 4800


def test_what_a_file_cannot_hold_goes_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g = rlx.Graph("g")
    g.output("y", g.input("x", (600,)) * g.param("w", (600,)))
    monkeypatch.setattr("rlx.onnx.writer.model.MAX_INSIDE_BYTES", 2000)
    rlx.onnx.save(g, tmp_path / "m.onnx", weights={"w": np.full(600, 3, np.float32)})
    assert (tmp_path / "m.onnx.data").stat().st_size == 2400
    with rlx.onnx.load(tmp_path / "m.onnx") as again:
        assert again.run({"x": np.ones(600, np.float32)}, device="cpu")["y"].tolist() == [3.0] * 600


def test_a_file_that_cannot_be_finished_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    g, weights = small()
    path = tmp_path / "m.onnx"
    path.write_bytes(b"before")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlx.onnx.writer.model.os.fsync", full)
    with pytest.raises(ModelFormatError, match="No space left"):
        rlx.onnx.save(g, path, weights=weights)
    assert path.read_bytes() == b"before" and [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("taken", ["m.onnx", "m.onnx.data"])
def test_a_folder_in_the_way_leaves_everything(tmp_path: Path, taken: str) -> None:
    g, weights = small()
    (tmp_path / "m.onnx").mkdir() if taken == "m.onnx" else (tmp_path / "m.onnx").write_bytes(b"before")
    (tmp_path / taken).mkdir(exist_ok=True)
    there = sorted(tmp_path.iterdir())
    with pytest.raises(ModelFormatError, match=f"{taken}: cannot be written: a folder has this name"):
        rlx.onnx.save(g, tmp_path / "m.onnx", weights=weights, external_data=True)
    assert sorted(tmp_path.iterdir()) == there
    assert taken == "m.onnx" or (tmp_path / "m.onnx").read_bytes() == b"before"


def test_bf16_weights_go_beside_the_model(tmp_path: Path) -> None:
    g = rlx.Graph("g")
    g.output("y", g.input("x", (600,)) * g.param("w", (600,)))
    weights = {"w": np.full(600, 1.5, rlx.dtypes.bf16.np)}
    rlx.onnx.save(g, tmp_path / "m.onnx", weights=weights, external_data=True)
    assert (tmp_path / "m.onnx.data").stat().st_size == 1200
    with rlx.onnx.load(tmp_path / "m.onnx") as again:
        assert again.run({"x": np.ones(600, np.float32)}, device="cpu")["y"].tolist() == [1.5] * 600


def test_a_function_without_its_arguments_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"missing a required argument: 'b'; .* args=\(array, …\)"):
        rlx.onnx.save(lambda a, b: a + b, tmp_path / "m.onnx", args=(np.ones(2, np.float32),))


def test_an_imported_model_can_be_saved_again(tmp_path: Path) -> None:
    proto = model(
        [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"), node("GlobalAveragePool", "r", "y")],
        {"x": [1, 2, 5, 5]}, {"y": None}, {"w": np.ones((3, 2, 3, 3), np.float32)},
    )  # fmt: skip
    x = np.random.default_rng(3).standard_normal((1, 2, 5, 5), np.float32)
    with rlx.onnx.load(proto) as first:
        compiled = first.compile({"x": x.shape}, device="cpu").graph
        expected = first.run({"x": x}, device="cpu")["y"]
        rlx.onnx.save(compiled, tmp_path / "m.onnx")
    with rlx.onnx.load(tmp_path / "m.onnx") as second:
        np.testing.assert_allclose(second.run({"x": x}, device="cpu")["y"], expected, rtol=1e-6)


def test_indices_out_of_range_and_odd_casts_keep_their_meaning() -> None:
    g = rlx.Graph("g")
    table, index = g.input("t", (4,)), g.input("i", (5,), "i32")
    g.output("read", rlx.gather(table, index))
    g.output("whole", rlx.cast(g.input("f", (5,)), "i32"))
    feeds = {
        "t": np.arange(4, dtype=np.float32), "i": np.array([-9, -1, 0, 3, 9], np.int32),
        "f": np.array([np.nan, np.inf, -np.inf, -2.7, 3e9], np.float32),
    }  # fmt: skip
    made = rlx.onnx.to_model(g)
    for run in RUNS.values():
        found = run(made, feeds)
        assert found["read"].tolist() == [0, 3, 0, 3, 3]
        assert found["whole"].tolist() == [0, 2**31 - 1, -(2**31), -2, 2**31 - 1]
