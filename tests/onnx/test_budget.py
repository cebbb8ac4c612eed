"""The budget of bytes and steps of an ONNX file: small files that ask for much are refused before anything is made."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import rlx
from rlx.errors import (
    ByteLimitExceeded,
    ModelFormatError,
    OutOfDeviceMemory,
    RlxError,
    ShapeError,
    StepLimitExceeded,
)
from rlx.onnx.reader import control
from rlx.onnx.reader.budget import budget_of
from tests.full import full
from tests.onnx.models import I64, info, model, node
from tests.onnx.mutant_bombs import field, varint
from tests.onnx.mutants import peak_of_process, run, summary, wrong

X = np.ones((2, 3), np.float32)
BOOL = 9
MIB = 1 << 20
on_linux = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc"
)


def fails(proto: onnx.ModelProto | bytes, text: str, error: type[RlxError], **limits: Any) -> None:
    with pytest.raises(error, match=text), rlx.onnx.load(proto, **limits) as loaded:
        loaded.run({i.name: np.ones(i.shape, np.float32) for i in loaded.inputs}, device="cpu")


def refused(proto: onnx.ModelProto | bytes, text: str, error: type[RlxError], **limits: Any) -> None:
    """Loading or running is refused so, and takes less than 64 MiB."""
    tracemalloc.start()
    try:
        fails(proto, text, error, **limits)
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()


def grown(step: Any, start: np.ndarray, count: int = 64) -> onnx.ModelProto:
    """A loop whose state v becomes v2 in every step."""
    body = helper.make_graph(
        [step, node("Identity", "go", "on")], "b",
        [info("i", [], I64), info("go", [], BOOL), info("v", None, I64)],
        [info("on", [], BOOL), info("v2", None, I64)],
    )  # fmt: skip
    weights = {"m": np.array(count), "true": np.array(True), "s": start, "zero": np.array([0])}
    return model([node("Loop", "m true s", "y", body=body)], {}, {"y": (None, I64)}, weights)


def test_a_loop_that_doubles_its_state() -> None:
    """To 4 GiB; and until no array is so long."""
    step, start = node("Concat", "v v", "v2", axis=0), np.ones(2, np.int64)
    refused(grown(step, start, 28), "max_bytes", ByteLimitExceeded)
    refused(grown(step, start), "Concat.*no array can have", ModelFormatError)


def test_a_loop_that_adds_axes() -> None:
    refused(grown(node("Unsqueeze", "v zero", "v2"), np.ones(2, np.int64)), "has 33 axes", ModelFormatError)


def test_non_zero_as_the_state_of_a_loop() -> None:
    refused(
        grown(node("NonZero", "v", "v2"), np.ones((40, 40), np.int64)),
        "max_bytes",
        RlxError,
        max_bytes=16 * MIB,
    )


def filled(tail: list[Any], shape: list[int], more: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    nodes = [node("ConstantOfShape", "s", "t"), *tail]
    return model(nodes, {}, {"y": None}, {"s": np.array(shape), **(more or {})})


def test_a_length_that_no_array_has_beside_one_of_zero() -> None:
    for shape in ([0, 1 << 62], [1 << 62, 0, 4]):
        refused(filled([node("Neg", "t", "y")], shape), "no array can have", ModelFormatError)


def test_what_is_worked_out_while_building_is_counted() -> None:
    """A mask of 2^28 elements that Compress needs the value of."""
    tail = [node("Cast", "t", "c", to=BOOL), node("Compress", "t c", "y")]
    refused(filled(tail, [1 << 28]), r"Compress.*(max_bytes|steps)", RlxError)
    refused(filled(tail, [1 << 20]), "Compress.*max_bytes", ByteLimitExceeded, max_bytes=MIB)


def expanded(count: int) -> onnx.ModelProto:
    nodes = [node("Expand", "x s", "t"), node("Neg", "t", "y")]
    return model(nodes, {"x": [2, 3]}, {"y": None}, {"s": np.array([count, 1, 1])})


def test_what_a_program_declares_is_counted() -> None:
    proto = model(
        [node("Expand", "x s", "t"), node("Neg", "t", "y")],
        {"x": [2, 3]},
        {"y": None},
        {"s": np.array([10**7, 1, 1])},
    )
    refused(proto, "the program: it needs .*largest tensors", ByteLimitExceeded, max_bytes=16 * MIB)
    assert issubclass(ByteLimitExceeded, OutOfDeviceMemory)
    with rlx.onnx.load(proto, max_bytes=16 * MIB) as loaded, pytest.raises(ByteLimitExceeded):
        loaded.compile(device="cpu")
    with pytest.raises(ByteLimitExceeded):
        rlx.onnx.InferenceSession(proto, device="cpu", max_bytes=16 * MIB).run(None, {"x": X})


def test_what_is_within_the_budget_runs() -> None:
    proto = model(
        [node("Expand", "x s", "t"), node("Neg", "t", "y")],
        {"x": [2, 3]},
        {"y": None},
        {"s": np.array([1000, 1, 1])},
    )
    with rlx.onnx.load(proto, max_bytes=MIB) as loaded:
        assert loaded.run({"x": X}, device="cpu")["y"].shape == (1000, 2, 3)


@pytest.mark.parametrize("bad", [-1, 1.5, "many", True])
def test_a_budget_is_a_number(bad: Any) -> None:
    proto = model([node("Neg", "x", "y")], {"x": [2, 3]}, {"y": None})
    for name in ("max_bytes", "max_steps"):
        with pytest.raises(ShapeError, match=f"{name}: is .*whole number"):
            rlx.onnx.load(proto, **{name: bad})


def resized(scale: float, mode: str, **more: Any) -> onnx.ModelProto:
    scales = np.array([1, scale], np.float32)
    roi = np.array([0, 0, 1, 1], np.float32)
    nodes = [node("Resize", "x roi s", "y", mode=mode, **more)]
    return model(nodes, {"x": [2, 3]}, {"y": None}, {"s": scales, "roi": roi})


def test_resizing_a_millionfold_is_one_table() -> None:
    with rlx.onnx.load(resized(1e6, "linear")) as loaded:
        y = loaded.run({"x": np.float32([[0, 1, 2], [3, 4, 5]])}, device="cpu")["y"]
    assert y.shape == (2, 3_000_000)
    np.testing.assert_allclose(y[:, [0, 1_500_000, -1]], [[0, 1, 2], [3, 4, 5]], atol=1e-6)


@pytest.mark.parametrize("more", [{"antialias": 1}, {"coordinate_transformation_mode": "tf_crop_and_resize"}])
def test_tables_of_resizing_are_counted(more: dict[str, Any]) -> None:
    refused(resized(1e6, "cubic", **more), "Resize.*max_bytes", ByteLimitExceeded, max_bytes=8 * MIB)


def ifs(count: int) -> onnx.ModelProto:
    def branch(op: str, k: int) -> Any:
        made = node(op, f"t{k - 1}" if k else "x", f"{op}{k}")
        return helper.make_graph([made], "g", [], [helper.make_empty_tensor_value_info(f"{op}{k}")])

    nodes = [
        node("If", "c", f"t{k}", then_branch=branch("Neg", k), else_branch=branch("Identity", k))
        for k in range(count)
    ]
    return model(nodes, {"x": [2, 3], "c": ([], BOOL)}, {f"t{count - 1}": None})


def test_more_branches_than_are_compiled_make_their_predicate_part_of_the_program() -> None:
    count = control.MAX_BODIES // 2 + 7
    with rlx.onnx.load(ifs(count)) as loaded:
        for taken in (True, False):
            y = loaded.run({"x": X, "c": np.array(taken)}, device="cpu")[f"t{count - 1}"]
            np.testing.assert_array_equal(y, X * (-1) ** count if taken else X)
        assert [p.fixed for p in loaded.programs] == [("c",)] * 2
    with rlx.onnx.load(ifs(5)) as loaded:
        loaded.run({"x": X, "c": np.array(True)}, device="cpu")
        assert loaded.programs[0].fixed == ()


def wrapped(graph: bytes) -> bytes:
    return varint(1 << 3) + varint(10) + field(8, varint(2 << 3) + varint(21)) + field(7, graph)


@on_linux
def test_parts_are_counted_before_they_are_objects() -> None:
    """The system's count of the memory tells it: with tracemalloc the counting takes ten times as long."""
    neg = field(1, b"x") + field(2, b"y") + field(4, b"Neg")
    for content, text in [
        (wrapped(field(1, b"") * 110_000), "more than 100,000 nodes"),
        (wrapped(field(1, neg + field(5, b"") * 300_000)), "fewer and larger parts"),
        (wrapped(field(11, b"") * 300_000), "fewer and larger parts"),
    ]:
        with peak_of_process() as grown:
            fails(content, text, ModelFormatError)
        assert grown[0] < 64 * MIB


def test_nodes_that_functions_make_of_few() -> None:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    made = []
    for k in range(12):
        name, domain = (f"F{k + 1}", "f") if k < 11 else ("Neg", "")
        inside = [node(name, f"t{i - 1}" if i else "a", f"t{i}", domain=domain) for i in range(4)]
        made.append(helper.make_function("f", f"F{k}", ["a"], ["t3"], inside, imports))
    proto = model(
        [node("F0", "x", "y", domain="f")], {"x": [2, 3]}, {"y": None}, functions=made, domains=["f"]
    )
    refused(proto, "written out make more than", ModelFormatError)


@pytest.mark.late
def test_a_node_that_becomes_many() -> None:
    proto = model([node("Sum", " ".join(["x"] * 9000), "y")], {"x": [2, 3]}, {"y": None})
    refused(proto, "max_steps", StepLimitExceeded)


def test_layers_over_a_large_image_are_no_bomb() -> None:
    """A network of 33 convolutions, as for super-resolution, over a megapixel: 1.2 * 10^12 multiplications."""
    g, c, weights = rlx.Graph("layers"), 64, 0
    x = y = g.input("x", (1, 3, 1024, 1024))
    for k in range(33):
        shape = (c, y.shape[1], 3, 3)
        y = rlx.conv(y, g.param(f"w{k}", shape), pads=1)
        weights += 4 * math.prod(shape)
    g.output("y", y)
    image = x.type.nbytes
    compiled = rlx.Session("cpu").compile(g)
    budget_of(None, None, image, weights, 33).hold(compiled)
    for budget in (budget_of(None, 1 << 20, image, weights, 33), budget_of(None, None, image, weights // 64, 33)):
        with pytest.raises(StepLimitExceeded, match="one run takes"):
            budget.hold(compiled)


def test_large_steps_of_loops_count_as_several() -> None:
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Sin", "v", "v2")], "b",
        [info("i", [], I64), info("go", [], BOOL), info("v", [1 << 20])], [info("on", [], BOOL), info("v2", [1 << 20])],
    )  # fmt: skip
    nodes = [node("Expand", "one s", "e"), node("Loop", "m true e", "y", body=body)]
    weights = {
        "m": np.array(100_000),
        "true": np.array(True),
        "one": np.float32([1]),
        "s": np.array([1 << 20]),
    }
    refused(model(nodes, {}, {"y": None}, weights), "steps", StepLimitExceeded)


def test_multiplications_are_counted() -> None:
    """Products within the bytes that would take minutes: of matrices, of windows, in a loop."""
    square = [node("MatMul", "t t", "y")]
    refused(filled_in_a_run(square, [4096, 4096]), "multiplications of a product", StepLimitExceeded)
    convolved = [node("Expand", "x v", "w"), node("Conv", "t w", "y")]
    kernel = {"v": np.array([64, 64, 31, 31])}
    refused(filled_in_a_run(convolved, [1, 64, 192, 192], kernel), "multiplications", StepLimitExceeded)
    body = helper.make_graph(
        [node("MatMul", "v v", "v2"), node("Identity", "go", "on")], "b",
        [info("i", [], I64), info("go", [], BOOL), info("v", [512, 512])],
        [info("on", [], BOOL), info("v2", [512, 512])],
    )  # fmt: skip
    looped = [node("Loop", "m true t", "y", body=body)]
    many = {"m": np.array(3000), "true": np.array(True)}
    refused(filled_in_a_run(looped, [512, 512], many), "steps", StepLimitExceeded)


def filled_in_a_run(
    tail: list[Any], shape: list[int], more: dict[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    """As `filled`, of an input, so that nothing is worked out while building."""
    inputs = {"x": [1] * len(shape)}
    return model(
        [node("Expand", "x s", "t"), *tail], inputs, {"y": None}, {"s": np.array(shape), **(more or {})}
    )


@pytest.mark.late
def test_boxes_that_none_suppresses() -> None:
    """Side by side along x, and alike along y: each of 100,000 is held against all before it."""
    count = 100_000
    nodes = [
        node("ConstantOfShape", "t", "scores"),
        node("NonMaxSuppression", "boxes scores most", "y"),
    ]
    boxes = np.zeros((1, count, 4), np.float32)
    boxes[0, :, 1] = np.arange(count)
    boxes[0, :, 2] = 1
    boxes[0, :, 3] = boxes[0, :, 1] + 1
    weights = {"boxes": boxes, "t": np.array([1, 1, count]), "most": np.array([1 << 40])}
    refused(model(nodes, {}, {"y": (None, I64)}, weights), "NonMaxSuppression.*steps", StepLimitExceeded)


@on_linux
def test_bombs_run_or_are_refused(tmp_path: Path) -> None:
    first, number = 0 if full() else 124, 200 if full() else 20
    entries = run(first, number, tmp_path / "outcomes.jsonl", 0, "bombs")
    assert len(entries) == number
    assert not [e for e in entries if wrong(e)], summary(entries)
    assert len({e["kind"] for e in entries}) > (25 if full() else 12)
    assert {"ran", "ModelFormatError", "OutOfDeviceMemory", "StepLimitExceeded"} <= {
        e["outcome"] for e in entries
    }
