"""Integers of every operator at the ends of their types, odd attributes, shapes that an operator's text excludes."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.errors import ModelFormatError
from rlx.onnx.reader.elements import CODES
from tests.onnx.models import I64, model, node
from tests.onnx.sweep import attributes

U64 = np.uint64
TOP = 2**64 - 1


def run(kind: str, feeds: dict[str, np.ndarray], device: str = "cpu", **attrs: object) -> np.ndarray:
    opset = int(attrs.pop("opset", 25))  # type: ignore[call-overload]
    one = node(kind, " ".join(feeds), "y", **attrs)
    inputs = {n: (list(a.shape), CODES[a.dtype]) for n, a in feeds.items()}
    proto = model([one], inputs, {"y": (None, 0)}, opset=opset)
    return rlx.onnx.load(proto, strict=True).run(feeds, device=device)["y"]


@pytest.mark.parametrize(
    ("kind", "values", "want"),
    [("Abs", [TOP, 0, 1], [TOP, 0, 1]), ("Sign", [TOP, 0, 1], [1, 0, 1]), ("ReduceL1", [TOP], [TOP]),
     ("ReduceMean", [TOP, TOP], [TOP]), ("ReduceMean", [2**53 + 1, 2**53 + 1], [2**53 + 1])],
)  # fmt: skip
def test_unsigned_integers_of_64_bits(kind: str, values: list[int], want: list[int]) -> None:
    assert run(kind, {"x": np.array(values, U64)}, opset=18).reshape(-1).tolist() == want


def test_means_of_integers_are_exact() -> None:
    for dtype in (np.int32, np.uint32, np.int64, np.uint64):
        assert run("ReduceMean", {"x": np.array([16777217] * 2, dtype)}).tolist() == [16777217]
    low = np.iinfo(np.int64).min
    assert run("ReduceMean", {"x": np.array([low, low, low + 1])}).tolist() == [low + 1]


def test_scatter_and_casts_of_large_unsigned_integers() -> None:
    feeds = {"x": np.array([1, TOP], U64), "i": np.array([0, 1]), "u": np.array([TOP, 5], U64)}
    assert run("ScatterElements", feeds, reduction="max", opset=18).tolist() == [TOP, TOP]
    assert run("ScatterElements", feeds, reduction="min", opset=18).tolist() == [1, 5]
    assert run("Cast", {"x": np.array([2.0**63, 1.5 * 2.0**63])}, to=CODES[np.dtype(U64)]).tolist() == [
        2**63,
        3 * 2**62,
    ]


def test_integers_that_no_f32_holds() -> None:
    x = np.array([16777217, 2**31 - 1], np.int32)
    assert run("Shrink", {"x": x}, lambd=1.0, bias=1.0).tolist() == [16777216, 2**31 - 2]
    assert run("Pow", {"x": x, "e": np.float32([1, 1])}).tolist() == x.tolist()


def test_celu_follows_its_text() -> None:
    assert np.allclose(run("Celu", {"x": np.float32([-1, 2])}, alpha=-2.0, opset=12), [-1.2974426, 2])
    for case in [c for c in attributes.activations() if c.kind == "Celu" and c.opset == 12]:
        assert not attributes.wrong(case, "cpu")


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("kind", "feeds"),
    [("SwiGLU", {"a": f32(2, 3), "b": f32(3)}), ("Clip", {"x": f32(2, 3), "lo": f32(3)}),
     ("PRelu", {"x": f32(3), "s": f32(2, 3)}), ("Gemm", {"a": f32(1, 3), "b": f32(3, 4), "c": f32(2, 4)})],
)  # fmt: skip
def test_shapes_that_the_text_excludes_are_refused(kind: str, feeds: dict[str, np.ndarray]) -> None:
    with pytest.raises(ModelFormatError, match="expected"):
        run(kind, feeds, opset=28)


def test_resize_keeps_the_ratio_as_a_fraction() -> None:
    one = node(
        "Resize", "x _ _ s", "y", mode="nearest", nearest_mode="ceil", keep_aspect_ratio_policy="not_larger"
    )
    proto = model([one], {"x": [4, 5]}, {"y": None}, {"s": np.array([7, 3])})
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    assert rlx.onnx.load(proto).run({"x": x}, device="cpu")["y"].tolist() == [[6, 7, 9], [11, 12, 14]]


def test_scatter_nd_with_index_tuples_of_length_0() -> None:
    one = node("ScatterND", "x i u", "y", reduction="add")
    proto = model([one], {"x": [3], "i": ([2, 0], I64), "u": [2, 3]}, {"y": [3]})
    feeds = {"x": f32(3), "i": np.zeros((2, 0), np.int64), "u": f32(2, 3)}
    assert rlx.onnx.load(proto).run(feeds, device="cpu")["y"].tolist() == [3, 3, 3]
