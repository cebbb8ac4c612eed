"""Strings: moved and compared on devices as numbers, looked into while building; what is refused, and limits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rlx
from rlx.errors import DTypeError, ModelFormatError, RlxError, ShapeError, UnsupportedOp
from rlx.onnx.reader.string_table import StringTable
from tests.onnx.models import I64, info, model, node

TEXT, F32, BOOL = TensorProto.STRING, TensorProto.FLOAT, TensorProto.BOOL


def words(name: str, values: list[str]) -> onnx.TensorProto:
    return helper.make_tensor(name, TEXT, [len(values)], [v.encode() for v in values])


def texts(*values: str) -> np.ndarray:
    return np.array(values, object)


def test_labels_picked_by_what_a_device_computes(device: str) -> None:
    """A classifier that says the name of its class: one program, whatever the values."""
    labels = [f"class {k}" for k in range(700)]  # as numbers too large to be a constant of the graph
    nodes = [node("ArgMax", "x", "k", axis=1, keepdims=0), node("Gather", "labels k", "y")]
    proto = model(nodes, {"x": ["n", 700]}, {"y": (["n"], TEXT)})
    proto.graph.initializer.append(words("labels", labels))
    loaded = rlx.onnx.load(proto)
    assert loaded.outputs[0].type == "tensor(string)" and loaded.outputs[0].dtype == np.dtype(object)
    rng = np.random.default_rng(5)
    for n in (3, 3, 2):
        x = rng.standard_normal((n, 700)).astype(np.float32)
        y = loaded.run({"x": x}, device=device)["y"]
        assert y.dtype == object and y.tolist() == [labels[k] for k in x.argmax(1)]
    assert len(loaded.programs) == 2 and loaded.programs[0].fixed == ()


def test_strings_that_come_in_are_compared_and_moved_without_compiling_again(device: str) -> None:
    nodes = [
        node("Equal", "x wanted", "same"), node("Where", "same x other", "y"), node("Concat", "y x", "z", axis=0),
    ]  # fmt: skip
    proto = model(
        nodes, {"x": (["n"], TEXT), "wanted": ([1], TEXT)}, {"same": (["n"], BOOL), "z": (None, TEXT)}
    )
    proto.graph.initializer.append(words("other", ["?"]))
    loaded = rlx.onnx.load(proto)
    for x, wanted in (["a", "b"], "b"), (["", "ünï"], "ünï"), (["a", "new"], "neither"):
        made = loaded.run({"x": np.array(x), "wanted": [wanted]}, device=device)
        assert made["same"].tolist() == [v == wanted for v in x]
        assert made["z"].tolist() == [v if v == wanted else "?" for v in x] + x
    assert len(loaded.programs) == 1
    program = loaded.compile({"x": (1,), "wanted": (1,)}, device=device)
    assert program.run({"x": ["q"], "wanted": ["q"]})["z"].tolist() == ["q", "q"]
    with pytest.raises(DTypeError, match="'x': holds 3, a int; expected strings"):
        loaded.run({"x": np.array(["a", 3], object), "wanted": ["a"]}, device=device)
    with pytest.raises(DTypeError, match="is int64, expected object"):
        loaded.run({"x": np.array([1, 2]), "wanted": ["a"]}, device=device)


def test_what_looks_into_strings_makes_them_part_of_the_program(device: str) -> None:
    nodes = [node("StringSplit", "x", "parts n", delimiter=","), node("StringConcat", "x bang", "y")]
    proto = model(nodes, {"x": (["n"], TEXT)}, {"parts": (None, TEXT), "n": (None, I64), "y": (["n"], TEXT)})
    proto.graph.initializer.append(words("bang", ["!"]))
    loaded = rlx.onnx.load(proto)
    for x in (["a,b", "c"], [",,", ""], [",,", ""]):
        made = loaded.run({"x": np.array(x)}, device=device)
        counts = [len(v.split(",")) for v in x]
        rows = [v.split(",") + [""] * (max(counts) - n) for v, n in zip(x, counts, strict=True)]
        assert made["parts"].tolist() == rows and made["n"].tolist() == counts
        assert made["y"].tolist() == [v + "!" for v in x]
    assert len(loaded.programs) == 2 and loaded.programs[0].fixed == ("x",)
    with pytest.raises(ShapeError, match="compiled for its value"):
        loaded.programs[0].run({"x": texts("no", "no")})


def one(made: onnx.NodeProto, x: np.ndarray, code: int, to: int, opset: int = 21) -> np.ndarray:
    proto = model([made], {"x": (None, code)}, {"y": (None, to)}, opset=opset)
    return rlx.onnx.load(proto).run({"x": x}, device="cpu")["y"]


def test_numbers_to_strings_and_back() -> None:
    x = np.float32([1, 0.1, 314.15926, 1e-7, 16777216, -0.5, np.nan, np.inf, -np.inf])
    made = one(node("Cast", "x", "y", to=TEXT), x, F32, TEXT)
    assert made.tolist() == ["1", "0.1", "314.15927", "0.0000001", "16777216", "-0.5", "NaN", "INF", "-INF"]
    assert np.array_equal(one(node("Cast", "x", "y", to=F32), made, TEXT, F32), x, equal_nan=True)
    big = np.array([2**63 - 1, -(2**63)])
    made = one(node("Cast", "x", "y", to=TEXT), big, I64, TEXT)
    assert np.array_equal(one(node("Cast", "x", "y", to=I64), made, TEXT, I64), big)
    assert one(node("Cast", "x", "y", to=F32), texts(" 1E3", "+inf", ".5"), TEXT, F32).tolist() == [
        1000,
        np.inf,
        0.5,
    ]
    for word in ("", "one", "1_000", "0x10", "infinity", "1e", "--1"):
        with pytest.raises(ModelFormatError, match="is not a number"):
            one(node("Cast", "x", "y", to=F32), texts(word), TEXT, F32)
    with pytest.raises(ModelFormatError, match="out of the range of int8"):
        one(node("Cast", "x", "y", to=TensorProto.INT8), texts("300"), TEXT, TensorProto.INT8)


def test_unique_normalized_counted_and_filled() -> None:
    x = texts("b", "a", "b", "Z")
    assert one(node("Unique", "x", "y"), x, TEXT, TEXT).tolist() == ["Z", "a", "b"]
    grid = texts("b", "a", "b", "a").reshape(2, 2)
    assert one(node("Unique", "x", "y", axis=0), grid, TEXT, TEXT).tolist() == [["b", "a"]]
    lower = node("StringNormalizer", "x", "y", case_change_action="LOWER", stopwords=["B"])
    assert one(lower, x, TEXT, TEXT).tolist() == ["a", "z"]
    counted = node(
        "TfIdfVectorizer", "x", "y", mode="TF", min_gram_length=1, max_gram_length=2, max_skip_count=0,
        ngram_counts=[0, 2], ngram_indexes=[0, 1, 2], pool_strings=["a", "b", "a", "b"],
    )  # fmt: skip
    assert one(counted, texts("b", "a", "b", "a", "b"), TEXT, F32).tolist() == [2, 3, 2]
    pads = model([node("Pad", "x p", "y")], {"x": ([1], TEXT)}, {"y": ([3], TEXT)}, {"p": np.array([1, 1])})
    assert rlx.onnx.load(pads).run({"x": texts("q")}, device="cpu")["y"].tolist() == ["", "q", ""]
    given = model([node("Constant", "", "y", value_strings=["é", ""])], {}, {"y": ([2], TEXT)})
    assert rlx.onnx.load(given).run(device="cpu")["y"].tolist() == ["é", ""]


def test_sequences_of_strings() -> None:
    nodes = [node("SplitToSequence", "x", "xs", keepdims=0)]
    proto = model(nodes, {"x": (["n"], TEXT)}, {})
    of_text = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TEXT, []))
    proto.graph.output.append(helper.make_value_info("xs", of_text))
    made = rlx.onnx.load(proto).run({"x": texts("a", "b")}, device="cpu")["xs"]
    assert [v.item() for v in made] == ["a", "b"]


def test_strings_where_they_make_no_sense() -> None:
    resize = node("Resize", "x _ s", "y", name="n", mode="linear")
    proto = model([resize], {"x": ([2], TEXT)}, {"y": (None, TEXT)}, {"s": np.float32([2])})
    with pytest.raises(UnsupportedOp, match=r"'n'.*is not supported on strings"):
        rlx.onnx.load(proto).run({"x": texts("a", "b")}, device="cpu")
    add = model([node("Add", "x x", "y", name="n")], {"x": ([1], TEXT)}, {})
    with pytest.raises(ModelFormatError, match=r"'n'.*is tensor\(string\); version \d+"):
        rlx.onnx.load(add).run({"x": texts("a")}, device="cpu")


def test_a_file_whose_strings_lie() -> None:
    def of(change: object) -> onnx.ModelProto:
        proto = model([node("Identity", "w", "y")], {}, {"y": (None, TEXT)})
        proto.graph.initializer.append(words("w", ["a", "b"]))
        return proto

    short = of(None)
    short.graph.initializer[0].string_data.pop()
    raw = of(None)
    raw.graph.initializer[0].raw_data = b"ab"
    bytes_ = of(None)
    bytes_.graph.initializer[0].string_data[0] = b"\xff\xfe"
    for proto, text in (
        (short, "expected 2 strings"),
        (raw, "expected 2 strings"),
        (bytes_, "not valid UTF-8"),
    ):
        with pytest.raises(ModelFormatError, match=f"initializer 'w': .*{text}"):
            rlx.onnx.load(proto)


def doubled(times: int, first: str, **weights: np.ndarray) -> onnx.ModelProto:
    nodes = [node("StringConcat", f"t{k} t{k}", f"t{k + 1}") for k in range(times)]
    return model(
        [node("Expand", "x n", "t0"), *nodes], {"x": ([1], TEXT)}, {f"t{times}": (None, TEXT)}, weights
    )


def test_bombs() -> None:
    long = doubled(40, "ab", n=np.array([1]))
    with pytest.raises(UnsupportedOp, match="strings of more than 16,777,216 characters"):
        rlx.onnx.load(long).run({"x": texts("ab")}, device="cpu")
    wide = doubled(1, "ab", n=np.array([1 << 27]))
    with pytest.raises(UnsupportedOp, match="at most 1048576 strings are looked into"):
        rlx.onnx.load(wide).run({"x": texts("ab")}, device="cpu")
    nodes = [node("Expand", "x n", "t"), node("Unique", "t", "y")]
    unique = model(nodes, {"x": ([1], TEXT)}, {"y": (None, TEXT)}, {"n": np.array([1 << 27])})
    with pytest.raises(UnsupportedOp, match="at most 1048576 strings are looked into"):
        rlx.onnx.load(unique).run({"x": texts("ab")}, device="cpu")
    split = model([node("StringSplit", "x", "y n", delimiter=",")], {"x": (["n"], TEXT)}, {"n": (None, I64)})
    with pytest.raises(UnsupportedOp, match="makes more than 1048576 strings"):
        rlx.onnx.load(split).run({"x": texts("," * 3_000_000, *["a"] * 4)}, device="cpu")


def test_runs_do_not_fill_the_table_of_strings() -> None:
    proto = model([node("Identity", "x", "y")], {"x": (["n"], TEXT)}, {"y": (["n"], TEXT)})
    loaded = rlx.onnx.load(proto)
    for k in range(50):
        assert loaded.run({"x": texts(f"word {k}")}, device="cpu")["y"].tolist() == [f"word {k}"]
    (program,) = loaded.programs
    assert len(program._words) == 1  # not even the strings that came when it was compiled
    assert loaded.built({"x": texts("a word")}).feeds["x"].tolist() == [1]
    table = StringTable()
    over = StringTable(table)
    assert over.decode(over.encode(texts("x", "", "x"))).tolist() == ["x", "", "x"] and len(table) == 1


def test_refused_in_one_class() -> None:
    for made in (
        node("StringNormalizer", "x", "y", case_change_action="TITLE"),
        node("StringNormalizer", "x", "y", locale="tr_TR"),
        node("RegexFullMatch", "x", "y", pattern="(a"),
    ):
        with pytest.raises(RlxError):
            one(made, texts("a"), TEXT, BOOL if made.op_type[0] == "R" else TEXT)
    assert info("x", None, TEXT).type.tensor_type.elem_type == TEXT
