"""Long weights are taken out of a file before protobuf reads it, whatever its fields are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import rlx
from rlx.errors import ModelFormatError
from rlx.onnx.blocks import LARGE_BYTES, without_blocks
from tests.onnx.models import info, node

LONG = np.arange(LARGE_BYTES // 4 + 5, dtype=np.float32)


def content(*arrays: np.ndarray[Any, Any]) -> bytes:
    """A model that adds its weights, which are of one length, to x; with a name behind the graph's field."""
    held = [numpy_helper.from_array(a, f"w{i}") for i, a in enumerate(arrays)]
    nodes = [node("Sum", " ".join(["x", *(i.name for i in held)]), "y")]
    shape = [LONG.size]
    graph = helper.make_graph(nodes, "sums", [info("x", shape)], [info("y", shape)], held)
    return bytes(helper.make_model(graph, producer_name="behind", opset_imports=[helper.make_opsetid("", 17)])
                 .SerializeToString())  # fmt: skip


def test_long_weights_are_taken_out_and_the_rest_stays() -> None:
    short, blocks = np.ones(1, np.float32), dict[int, memoryview]()
    whole = onnx.ModelProto.FromString(content(short, LONG, short, LONG * 2))
    rest = onnx.ModelProto.FromString(without_blocks(whole.SerializeToString(), blocks))
    assert {k: bytes(b) for k, b in blocks.items()} == {1: LONG.tobytes(), 3: (LONG * 2).tobytes()}
    for number in blocks:
        assert not rest.graph.initializer[number].HasField("raw_data")
        whole.graph.initializer[number].ClearField("raw_data")
    assert rest == whole


def test_values_are_those_of_the_file() -> None:
    x = np.ones_like(LONG)
    (y,) = rlx.onnx.load(content(LONG, LONG * 2)).run({"x": x}, device="cpu").values()
    assert np.array_equal(y, x + LONG + LONG * 2)


@pytest.mark.parametrize("twice", ["graph", "raw_data"])
def test_a_file_that_says_something_twice_is_left_to_protobuf(twice: str) -> None:
    data, blocks = content(LONG), dict[int, memoryview]()
    if twice == "graph":
        data += content(LONG)
    else:
        model = onnx.ModelProto.FromString(data)
        tensor = model.graph.initializer[0].SerializeToString()
        model.graph.ClearField("initializer")
        graph = model.graph.SerializeToString() + _field(5, tensor + _field(9, (LONG * 3).tobytes()))
        model.ClearField("graph")
        data = model.SerializeToString() + _field(7, graph)
    assert without_blocks(data, blocks) == data and not blocks


def _field(number: int, raw: bytes) -> bytes:
    length, out = len(raw), bytearray([number << 3 | 2])
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    return bytes(out) + bytes([length]) + raw


def test_long_weights_of_a_wrong_length_are_refused() -> None:
    model = onnx.ModelProto.FromString(content(LONG))
    model.graph.initializer[0].dims[0] = LONG.size + 1
    with pytest.raises(ModelFormatError, match="raw_data has"):
        rlx.onnx.load(model.SerializeToString())


@pytest.mark.parametrize("cut", [3, 1000, LARGE_BYTES // 2, 20])
def test_a_file_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(ModelFormatError):
        rlx.onnx.load(content(LONG)[:-cut])
