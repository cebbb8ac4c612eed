"""Tokenizer of com.microsoft, by hand and beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rlx
from rlx.errors import ModelFormatError, RlxError
from tests.outside import outside

WORDS = {"mark": 0, "pad_value": "#", "mincharnum": 1}
TEXTS = ["ab c.d ", "a", ""]
# Attributes, strings, and their words.
CASES: list[tuple[dict[str, Any], Any, Any]] = [
    ({"tokenexp": "[a-z]+"}, TEXTS, [["ab", "c", "d"], ["a", "#", "#"], ["#"] * 3]),
    ({"tokenexp": "[a-z]+", "mincharnum": 2}, [["\u00e9a \u00e9", "aab xx"]], [[["#", "#"], ["aab", "xx"]]]),
    ({"tokenexp": "a|ab"}, ["aab xx", "b"], [["a", "ab"], ["#", "#"]]),  # the longest of those that begin first
    ({"tokenexp": "a*"}, TEXTS, [["a"], ["a"], ["#"]]),
    ({"separators": [" ", "[.]"]}, TEXTS, [["ab", "c", "d"], ["a", "#", "#"], ["#"] * 3]),
    ({"separators": [" ", "[.]"], "mincharnum": 2}, TEXTS, [["ab"], ["#"], ["#"]]),
    ({"separators": [""]}, ["\u00e9a \u00e9", "a"], [["\u00e9", "a", " ", "\u00e9"], ["a", "#", "#", "#"]]),
    ({"separators": ["x*"]}, TEXTS, [[], [], []]),
    ({"separators": ["b"], "tokenexp": "a"}, TEXTS, [["a", " c.d "], ["a", "#"], ["#", "#"]]),
    ({"separators": [" "], "mark": 1}, TEXTS,
     [["\x02", "ab", "c.d", "\x03"], ["\x02", "a", "\x03", "#"], ["\x02", "\x03", "#", "#"]]),
    ({"separators": [" "], "mark": 1}, [""], [[]]),
    ({"separators": [" "]}, [], []),
]  # fmt: skip


def tokenizer(shape: tuple[int, ...], **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **attributes)
    strings = TensorProto.STRING
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", strings, shape)],
                              [helper.make_tensor_value_info("y", strings, None)])  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


@pytest.mark.parametrize(("attributes", "texts", "want"), CASES, ids=[str(case[0]) for case in CASES])
def test_words(attributes: dict[str, Any], texts: Any, want: Any) -> None:
    x = np.array(texts, object)
    got = rlx.onnx.load(tokenizer(x.shape, **{**WORDS, **attributes})).run({"x": x}, device="cpu")["y"]
    assert got.tolist() == want


@pytest.mark.judged
def test_words_beside_onnxruntime() -> None:
    ort = outside("onnxruntime")
    for attributes, texts, want in CASES:
        x = np.array(texts, object)
        content = tokenizer(x.shape, **{**WORDS, **attributes}).SerializeToString()
        session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
        (theirs,) = session.run(None, {"x": x})
        ours = rlx.onnx.load(content).run({"x": x}, device="cpu")["y"]
        assert ours.shape == theirs.shape and theirs.tolist() == want, (attributes, texts)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"mincharnum": 0, "tokenexp": "a"}, "mincharnum is 0; expected 1 or more"),
        ({}, "neither separators nor tokenexp"),
        ({"separators": [""], "mincharnum": 2}, "words are single characters"),
        ({"tokenexp": "("}, "pattern"),
    ],
)
def test_attributes_that_are_refused(attributes: dict[str, Any], words: str) -> None:
    with pytest.raises(RlxError, match=words) as caught:
        rlx.onnx.load(tokenizer((1,), **{**WORDS, **attributes})).run({"x": np.array(["a"], object)}, device="cpu")
    assert isinstance(caught.value, ModelFormatError)
