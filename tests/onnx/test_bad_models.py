"""Models that lie: one exception class, the node named, nothing allocated on a claim alone."""

from __future__ import annotations

import os
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rlx
from rlx.errors import ModelFormatError, RlxError, UnsupportedOp
from tests.onnx.models import I64, info, model, node

X = {"x": [2, 3]}
RELU = node("Relu", "x", "y", name="first")


@pytest.fixture(autouse=True)
def guard() -> Iterator[None]:
    """A file that hangs fails its test instead of the whole run."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError("still at work after 60 s")

    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


def refused(proto: onnx.ModelProto | bytes, text: str, error: type[RlxError] = ModelFormatError) -> None:
    with pytest.raises(error, match=text):
        rlx.onnx.load(proto)


def refused_when_run(proto: onnx.ModelProto, text: str, feeds: dict[str, np.ndarray] | None = None) -> None:
    with pytest.raises(ModelFormatError, match=text):
        rlx.onnx.load(proto, strict=True).run(feeds or {"x": np.zeros((2, 3), np.float32)}, device="cpu")


def test_not_a_model(tmp_path: Path) -> None:
    refused(b"not a model at all", "is not an ONNX file")
    refused(b"", "has no graph")
    with pytest.raises(ModelFormatError, match="cannot be read"):
        rlx.onnx.load(tmp_path / "absent.onnx")
    with pytest.raises(ModelFormatError, match="not a regular file"):
        rlx.onnx.load(tmp_path)


def test_every_truncation() -> None:
    whole = model([RELU], X, {"y": [2, 3]}, {"w": np.ones(3, np.float32)}).SerializeToString()
    for n in range(len(whole)):
        with pytest.raises((ModelFormatError, UnsupportedOp)):
            rlx.onnx.load(whole[:n]).run({"x": np.zeros((2, 3), np.float32)}, device="cpu")


def test_opsets() -> None:
    newest = onnx.defs.onnx_opset_version()
    refused(model([RELU], X, {"y": None}, opset=newest + 1), f"opset {newest + 1}", UnsupportedOp)
    for version in (0, -1, 1 << 40):
        refused(model([RELU], X, {"y": None}, opset=version), "at version")
    twice = model([RELU], X, {"y": None})
    twice.opset_import.append(helper.make_opsetid("", 9))
    refused(twice, "twice")
    del twice.opset_import[:]
    refused(twice, "which opset")


def test_names_and_order() -> None:
    refused(
        model([node("Relu", "z", "y", name="n1")], X, {"y": None}), "'n1'.*takes 'z', which nothing makes"
    )
    cycle = [node("Add", "x b", "a", name="n1"), node("Neg", "a", "b", name="n2")]
    refused(
        model(cycle, X, {"a": None}), "form a cycle: node 'n1' \\(Add\\) → node 'n2' \\(Neg\\) → node 'n1'"
    )
    refused(
        model([RELU, node("Neg", "x", "y", name="n2")], X, {"y": None}),
        "'n2'.*makes 'y', which is there already",
    )
    refused(model([RELU], X, {"z": None}), "output 'z' is made by nothing")
    refused(model([RELU], X, {"": None}), "output")
    double = model([RELU], X, {"y": None}, {"w": np.ones(1, np.float32)})
    double.graph.initializer.append(double.graph.initializer[0])
    refused(double, "initializer 'w': named twice")
    double = model([RELU], X, {"y": None})
    double.graph.input.append(double.graph.input[0])
    refused(double, "input 'x': named twice")
    attributes = model([node("Elu", "x", "y", name="e", alpha=1.0)], X, {"y": None})
    attributes.graph.node[0].attribute.append(attributes.graph.node[0].attribute[0])
    refused(attributes, "'e'.*attribute 'alpha': named twice")


def test_text_that_is_no_text() -> None:
    """protobuf gives such strings as bytes."""
    whole = model(
        [node("Relu", "x", "yyyy", name="nnnn", domain="dddd")],
        {"x": ["ssss"]},
        {"yyyy": None},
        domains=["eeee"],
    )
    whole.graph.node[0].op_type = "oooo"
    content = whole.SerializeToString()
    plain = model([RELU], {"x": ["ssss"]}, {"y": None}).SerializeToString()
    assert b"ssss" in plain
    refused(plain.replace(b"ssss", b"\xff\xfe\xfd\xfc"), "UTF-8")
    for word in (b"yyyy", b"nnnn", b"dddd", b"eeee", b"oooo"):
        assert word in content
        refused(content.replace(word, b"\xff\xfe\xfd\xfc"), "UTF-8")


def test_unsupported_operators_are_all_named_at_once() -> None:
    nodes = [
        node("ImageDecoder", "x", "a", name="n1"), node("Relu", "x", "b"), node("Nothing", "x", "c", name="n2"),
        node("DictVectorizer", "x", "d", name="n3", domain="ai.onnx.ml"),
        node("Mine", "x", "e", name="n4", domain="elsewhere"),
    ]  # fmt: skip
    refused(
        model(nodes, X, {"b": None}, domains=["ai.onnx.ml"]),
        "4 of this model's operators .*'ImageDecoder' version 20 at node 'n1'.*'Nothing' version 21 at node 'n2'.*"
        "ai.onnx.ml 'DictVectorizer' version 1 at node 'n3'.*elsewhere 'Mine' of a domain that is not imported at node",
        UnsupportedOp,
    )


def nested(depth: int) -> onnx.GraphProto:
    made = helper.make_graph([node("Constant", "", "k", value_int=1)], "g", [], [info("k", [], I64)])
    for _ in range(depth):
        choice = node("If", "c", "k", then_branch=made, else_branch=made)
        nodes = [node("Constant", "", "t", value_int=1), node("Cast", "t", "c", to=TensorProto.BOOL), choice]
        made = helper.make_graph(nodes, "g", [], [info("k", [], I64)])
    return made


def test_depth() -> None:
    imports = [helper.make_opsetid("", 21)]
    proto = helper.make_model(nested(3), opset_imports=imports)
    assert rlx.onnx.load(proto).run(device="cpu")["k"] == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlx.onnx.reader.read.MAX_DEPTH", 3)
        refused(proto, "a graph in node .*If.*nested more than 3 deep")


def function(name: str, calls: str, times: int = 1) -> onnx.FunctionProto:
    nodes = [
        node(calls, "a" if k == 0 else f"t{k - 1}", f"t{k}", domain="f" if calls != "Neg" else "")
        for k in range(times)
    ]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, ["a"], [f"t{times - 1}"], nodes, imports)


def test_functions_that_call_themselves_or_multiply() -> None:
    call = [node("F0", "x", "y", domain="f")]
    refused(model(call, X, {"y": None}, functions=[function("F0", "F0")], domains=["f"]), "calls itself")
    ring = [function("F0", "F1"), function("F1", "F0")]
    refused(model(call, X, {"y": None}, functions=ring, domains=["f"]), "calls itself")
    chain = [*(function(f"F{k}", f"F{k + 1}") for k in range(40)), function("F40", "Neg")]
    refused(model(call, X, {"y": None}, functions=chain, domains=["f"]), "more than 32 deep")
    twice = [function("F0", "Neg"), function("F0", "Neg")]
    refused(model(call, X, {"y": None}, functions=twice, domains=["f"]), "'F0': defined twice")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlx.onnx.reader.build.MAX_NODES", 1000)
        bomb = [*(function(f"F{k}", f"F{k + 1}", 4) for k in range(12)), function("F12", "Neg")]
        refused_when_run(
            model(call, X, {"y": None}, functions=bomb, domains=["f"]), "make more than 1,000 nodes"
        )


def claims(change: Callable[[onnx.TensorProto], None]) -> onnx.ModelProto:
    proto = model([node("Add", "x w", "y")], X, {"y": None}, {"w": np.ones((2, 3), np.float32)})
    change(proto.graph.initializer[0])
    return proto


def test_initializers_that_lie() -> None:
    def dims(*values: int) -> Callable[[onnx.TensorProto], None]:
        def change(t: onnx.TensorProto) -> None:
            del t.dims[:]
            t.dims.extend(values)

        return change

    tracemalloc.start()
    for change in (dims(2, 4), dims(1 << 40, 1 << 20), dims(-2, -3), dims(*[1] * 33)):
        refused(claims(change), "initializer 'w'")
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()

    def two_fields(t: onnx.TensorProto) -> None:
        t.float_data.append(1.0)

    def short(t: onnx.TensorProto) -> None:
        t.raw_data = t.raw_data[:-1]

    def segment(t: onnx.TensorProto) -> None:
        t.segment.begin = 0

    for change in (two_fields, short, segment):
        refused(claims(change), "initializer 'w'")

    def unknown(t: onnx.TensorProto) -> None:
        t.data_type = 99

    def complex(t: onnx.TensorProto) -> None:
        t.data_type = TensorProto.COMPLEX64

    refused(claims(unknown), "number 99 is not supported", UnsupportedOp)
    refused(claims(complex), "COMPLEX64 is not supported", UnsupportedOp)


def external(tmp_path: Path, location: str, **entries: str) -> Path:
    def change(t: onnx.TensorProto) -> None:
        t.ClearField("raw_data")
        t.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **entries}.items():
            t.external_data.add(key=key, value=value)

    path = tmp_path / "m" / "m.onnx"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(claims(change).SerializeToString())
    return path


def test_external_data_stays_in_the_folder_of_the_model(tmp_path: Path) -> None:
    content = np.arange(6, dtype=np.float32).tobytes()
    (tmp_path / "secret").write_bytes(content)
    path = external(tmp_path, "good.bin", offset="0", length="24")
    (path.parent / "good.bin").write_bytes(content)
    x = np.zeros((2, 3), np.float32)
    for good in (path, external(tmp_path, "./good.bin")):
        assert rlx.onnx.load(good).run({"x": x}, device="cpu")["y"].reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]
    os.symlink(tmp_path / "secret", path.parent / "link")
    os.link(tmp_path / "secret", path.parent / "hard")
    os.symlink(tmp_path, path.parent / "folder")
    os.mkfifo(path.parent / "pipe")
    for location in (
        "../secret", str(tmp_path / "secret"), "link", "hard", "folder/secret", "pipe", "absent", "", ".", "a\\b",
        "good.bin\0", "./../secret",
    ):  # fmt: skip
        with pytest.raises(ModelFormatError):
            rlx.onnx.load(external(tmp_path, location))
    for entries in (
        {"offset": "1"},
        {"offset": "-1"},
        {"length": "23"},
        {"offset": "9" * 30},
        {"offset": "x"},
        {"else": "1"},
    ):
        with pytest.raises(ModelFormatError, match="initializer 'w'"):
            rlx.onnx.load(external(tmp_path, "good.bin", **entries))
    with pytest.raises(ModelFormatError, match="without a folder"):
        rlx.onnx.load(external(tmp_path, "good.bin").read_bytes())


@pytest.mark.parametrize(
    "made, text",
    [
        (node("Relu", "x x", "y", name="n"), "'n'.*has 2 inputs; expected 1$"),
        (node("Conv", "x", "y", name="n"), "'n'.*has 1 input; expected at least 2$"),
        (node("Clip", "x x x x", "y", name="n"), "'n'.*has 4 inputs; expected at most 3$"),
        (node("Relu", "_", "y", name="n"), "'n'.*left out"),
        (node("Relu", "x", "y z", name="n"), "'n'.*has 2 outputs"),
        (node("Relu", "x", "y", name="n", alpha=1.0), "'n'.*no attribute 'alpha'"),
        (node("Elu", "x", "y", name="n", alpha=1), "'n'.*attribute alpha is of kind"),
        (node("Concat", "x x", "y", name="n"), "'n'.*lacks the attribute axis"),
        (node("Concat", "x x", "y", name="n", axis=5), "'n'.*concat"),
        (node("Add", "x k", "y", name="n"), "'n'.*is tensor\\(int64\\); expected tensor\\(float\\)"),
        (node("BitwiseNot", "x", "y", name="n"), "'n'.*is tensor\\(float\\); version \\d+ of the operator takes "),
        (node("MatMul", "x x", "y", name="n"), "'n'.*matmul"),
        (node("Conv", "x x", "y", name="n"), "'n'.*expected"),
        (node("Reshape", "x k", "y", name="n"), "'n'.*6 elements"),
        (node("Expand", "x big", "y", name="n"), "'n'.*asks for shape"),
        (node("ConstantOfShape", "big", "y", name="n"), "'n'.*asks for shape"),
        (node("Tile", "x big", "y", name="n"), "'n'"),
        (node("Gather", "x k", "y", name="n", axis=1), "'n'.*gather"),
        (node("Transpose", "x", "y", name="n", perm=[0, 0]), "'n'.*transpose"),
    ],
    ids=lambda v: v.op_type if isinstance(v, onnx.NodeProto) else "",
)
def test_a_node_that_does_not_fit_is_named(made: onnx.NodeProto, text: str) -> None:
    proto = model([made], X, {"y": None}, {"k": np.array([7]), "big": np.array([1 << 40, 1 << 40])})
    proto.graph.output[0].type.Clear()
    refused_when_run(proto, text)


def test_declared_outputs_are_held_against_what_comes() -> None:
    refused_when_run(model([RELU], X, {"y": [2, 4]}), r"output 'y': is declared \[2, 4\]")
    refused_when_run(
        model([RELU], X, {"y": ([2, 3], I64)}),
        "output 'y': is declared tensor\\(int64\\), but is tensor\\(float\\)",
    )
    refused(model([RELU], {"x": [2, -3]}, {"y": None}), "'x': is declared with dimension -3")
    refused(model([RELU], {"x": [2, -(1 << 40)]}, {"y": None}), "'x': is declared with dimension -1099511627776")


HUGE = 1 << 40


def _grams(**attributes: object) -> onnx.NodeProto:
    whole: dict[str, object] = {
        "min_gram_length": 2, "max_gram_length": 2, "max_skip_count": 1 << 40, "mode": "TFIDF", "ngram_counts": [0, 0],
        "ngram_indexes": [0], "pool_int64s": [1, 2],
    }  # fmt: skip
    return node("TfIdfVectorizer", "k", "y", name="n", **{**whole, **attributes})


@pytest.mark.parametrize(
    "made, weights, text",
    [
        (node("Unique", "k", "y", name="n", axis=7), {}, "axis 7 is out of range"),
        (node("LpPool", "x4", "y", name="n", kernel_shape=[2, 2], p=0), {}, "p is 0"),
        (
            node("LpPool", "x4", "y", name="n", kernel_shape=[2, 2], pads=[0, 0, 1 << 27, 0]),
            {},
            "elements under all",
        ),
        (node("AveragePool", "x4", "y", name="n", kernel_shape=[HUGE, 1]), {}, "out of range"),
        (node("MaxPool", "x4", "y", name="n", kernel_shape=[2, 2], strides=[0, 1]), {}, "out of range"),
        (
            node("Range", "a b c", "y", name="n"),
            {"a": np.array(0), "b": np.array(HUGE), "c": np.array(1)},
            "has 1099511627776",
        ),
        (node("Range", "a b a", "y", name="n"), {"a": np.array(0), "b": np.array(9)}, "delta not 0"),
        (node("Pad", "x p", "y", name="n"), {"p": np.array([HUGE, 0, 0, 0])}, "asks for shape"),
        (
            node("OneHot", "k d v", "y", name="n"),
            {"d": np.array(HUGE), "v": np.ones(2, np.float32)},
            "asks for shape",
        ),
        (node("Split", "x", "y", name="n", num_outputs=1 << 40), {}, "num_outputs is"),
        (node("DFT", "x4 d", "y", name="n"), {"d": np.array(HUGE)}, "expected"),
        (node("EyeLike", "x", "y", name="n", k=HUGE), {}, ""),
        (
            node(
                "TfIdfVectorizer",
                "k",
                "y",
                name="n",
                max_gram_length=1 << 40,
                min_gram_length=1,
                max_skip_count=1 << 40,
                mode="TF",
                ngram_counts=[0],
                ngram_indexes=[1 << 40],
                pool_int64s=[7],
            ),
            {},
            "ngram_indexes reach",
        ),
        (_grams(ngram_indexes=[0, 1, 2], weights=[1.0]), {}, "has 1 weights for 3 n-grams"),
        (
            _grams(min_gram_length=300, max_gram_length=300, ngram_counts=[0] * 300, pool_int64s=list(range(300))),
            {"k": np.zeros(1 << 14, np.int64)},
            "its grams have more than 4,194,304 words",
        ),
    ],
    ids=lambda v: f"{v.op_type}" if isinstance(v, onnx.NodeProto) else "",
)
def test_absurd_numbers(made: onnx.NodeProto, weights: dict[str, np.ndarray], text: str) -> None:
    weights = {"k": np.array([7]), "x4": np.ones((1, 1, 4, 4), np.float32), **weights}
    proto = model([made], X, {"y": None}, weights)
    proto.graph.output[0].type.Clear()
    tracemalloc.start()
    try:
        if text:
            with pytest.raises((ModelFormatError, UnsupportedOp), match=f"'n'.*{text}"):
                rlx.onnx.load(proto).run({"x": np.zeros((2, 3), np.float32)}, device="cpu")
        else:
            rlx.onnx.load(proto).run({"x": np.zeros((2, 3), np.float32)}, device="cpu")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_loop_that_never_ends() -> None:
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Add", "v v", "w")],
        "body",
        [info("i", [], I64), info("go", [], TensorProto.BOOL), info("v", [2, 3])],
        [info("on", [], TensorProto.BOOL), info("w", [2, 3])],
    )
    proto = model([node("Loop", "_ t x", "y", name="n", body=body)], X, {"y": None}, {"t": np.array(True)})
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ModelFormatError, match=r"make more than 2,7.* nodes; max_steps="):
        rlx.onnx.load(proto).run({"x": x}, device="cpu")
    with pytest.raises(UnsupportedOp, match=r"'n'.*runs more than 2048 times"):
        rlx.onnx.load(proto, max_steps=1 << 20).run({"x": x}, device="cpu")


def test_strings_where_bits_or_numbers_belong() -> None:
    scales = {"q": np.ones(2, np.int8), "s": np.ones((), np.float32)}
    for made, text in (
        (node("BitCast", "x", "y", name="n", to=TensorProto.STRING), "element type is not supported"),
        (node("DequantizeLinear", "q s", "y", name="n", output_dtype=TensorProto.STRING), "output_dtype is object"),
    ):
        proto = model([made], X, {"y": None}, scales)
        proto.opset_import[0].version = onnx.defs.onnx_opset_version()
        with pytest.raises((ModelFormatError, UnsupportedOp), match=f"'n'.*{text}"):
            rlx.onnx.load(proto).run({"x": np.zeros((2, 3), np.float32)}, device="cpu")
