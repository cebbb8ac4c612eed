"""Models whose shapes depend on values: cut there, right for every image in a row, with few programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlx
from rlx.onnx.ops import suppression
from rlx.onnx.ops.suppression import suppressed
from rlx.onnx.stages import operators
from rlx.onnx.stages import picked as lazily
from tests.onnx.models import I64, info, model, node

RNG = np.random.default_rng(11)
WEIGHT = RNG.standard_normal((12, 6)).astype(np.float32)
ONE = np.array([1])


def picked(x: np.ndarray) -> np.ndarray:
    """The numbers above 0 in rows of x @ WEIGHT, doubled."""
    made = x @ WEIGHT
    return 2 * made[made > 0]


Oracle = Callable[[np.ndarray], np.ndarray]
FLOAT, I32 = TensorProto.FLOAT, TensorProto.INT32
COUNTED: dict[str, tuple[list[Any], dict[str, np.ndarray], Oracle]] = {
    "NonZero": (
        [node("Greater", "h zero", "m"), node("NonZero", "m", "i"), node("Transpose", "i", "t"),
         node("GatherND", "h t", "g"), node("Add", "g g", "y")],
        {"zero": np.float32([0]).reshape(())}, picked,
    ),
    "Unique": (
        [node("Floor", "h", "f"), node("Unique", "f", "y")], {}, lambda x: np.unique(np.floor(x @ WEIGHT)),
    ),
    "Compress": (
        [node("ReduceMax", "h", "r", axes=[1], keepdims=0), node("Greater", "r two", "m"),
         node("Compress", "h m", "y", axis=0)],
        {"two": np.float32([2]).reshape(())}, lambda x: (x @ WEIGHT)[(x @ WEIGHT).max(1, initial=-9) > 2],
    ),
    "Slice, Range": (
        [node("ReduceSum", "h", "s", keepdims=0), node("Abs", "s", "a"), node("Mod", "a seven", "m", fmod=1),
         node("Cast", "m", "k", to=I64), node("Range", "nought k one", "q"), node("Cast", "q", "qf", to=FLOAT),
         node("Unsqueeze", "k front", "kk"), node("Slice", "w front kk", "part"), node("Mul", "qf part", "y")],
        {"seven": np.float32(7).reshape(()), "nought": np.array(0), "one": np.array(1), "front": np.array([0]),
         "w": np.arange(9, dtype=np.float32)},
        lambda x: np.arange(int(abs((x @ WEIGHT).sum(dtype=np.float32)) % 7)).astype(np.float32) ** 2,
    ),
    "TopK, Expand, ConstantOfShape": (
        [node("Greater", "h zero", "m"), node("Cast", "m", "c", to=I64), node("ReduceSum", "c", "n", keepdims=0),
         node("Reshape", "n minus", "k"), node("Reshape", "h minus", "flat"), node("TopK", "flat k", "v _"),
         node("ConstantOfShape", "k", "z"), node("Expand", "minus k", "e"), node("Cast", "e", "ef", to=FLOAT),
         node("Add", "v z", "vz"), node("Sub", "vz ef", "y")],
        {"zero": np.float32([0]).reshape(()), "minus": np.array([-1])},
        lambda x: np.sort((x @ WEIGHT)[x @ WEIGHT > 0])[::-1] + 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", COUNTED)
@pytest.mark.sample(3)
@pytest.mark.late("vulkan")
def test_every_image_has_its_own_answer(kind: str, device: str) -> None:
    """Twelve images of three sizes, also of zeros and of no rows; the product runs on the device, compiled once a
    size."""
    nodes, weights, oracle = COUNTED[kind]
    proto = model(
        [node("MatMul", "x weight", "h"), *nodes], {"x": ["n", 12]}, {"y": None}, {"weight": WEIGHT, **weights}, 13
    )
    with rlx.onnx.load(proto) as loaded:
        lengths = set()
        for k in range(12):
            x = np.random.default_rng(k).standard_normal((k % 3 * 6, 12)).astype(np.float32) * (k != 4)
            y = loaded.run({"x": x}, device=device)["y"]
            want = oracle(x)
            assert y.shape == want.shape
            np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
            lengths.add(len(want))
        assert len(lengths) > 2 and len(loaded.programs) == 3
        parts = loaded.programs[-1].parts
        assert [p.device == "host" for p in parts] == [False, True] and parts[0].compiled is None
        assert "matmul" in {d.op for d in loaded.programs[-1].report() if d.how == "native"}


def test_boxes_are_suppressed_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a loop over all pairs; classes that are moved apart, limits, thresholds, no boxes; pairs that share
    just the limit; areas beyond f32; each algorithm, and few boxes at a time."""

    def slowly(boxes: np.ndarray, scores: np.ndarray, limit: int, overlap: float, least: float) -> list[list[int]]:
        kept: list[int] = []
        low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
        area = (high - low).prod(1)
        for i in np.argsort(-scores, kind="stable"):
            shared = (np.minimum(high[i], high) - np.maximum(low[i], low)).clip(0).prod(1)
            inside = shared > overlap * (area + area[i] - shared)
            if scores[i] > least and len(kept) < limit and not inside[kept].any():
                kept.append(int(i))
        return [[0, 0, k] for k in kept]

    for seed in range(40):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(0, 120))
        boxes = (rng.random((n, 4)) * 30 + rng.integers(0, 6, (n, 1)) * (100 if seed % 2 else 8)).astype(np.float32)
        boxes = (np.round(boxes) if seed % 5 == 0 else boxes) * np.float32((1, 1e25, 1, 1e-25)[seed // 2 % 4])
        monkeypatch.setattr(suppression, "_LISTED_PAIRS", 1 << 19 if seed % 4 else -1)
        monkeypatch.setattr(suppression, "_AT_ONCE", 256 if seed % 3 else 5)
        monkeypatch.setattr(suppression, "_LARGE_TABLE_BOXES", 0 if seed % 8 else 1 << 13)
        scores = rng.integers(0, 40, n).astype(np.float32) / 40
        for limit, overlap, least in ((1000, 0.5, 0.2), (7, 0.1, 0.0), (0, 0.5, 0.0), (50, 0.0, 0.5)):
            got = suppressed(boxes[None], scores[None, None], limit, overlap, least, False)
            assert got.tolist() == slowly(boxes.astype(np.float64), scores, limit, overlap, least), (seed, limit)


def detector() -> tuple[Any, dict[str, np.ndarray]]:
    """Boxes and scores by products, suppression, and a layer on the features of the boxes that stay, behind an If for
    images without any."""
    rng = np.random.default_rng(1)
    layer = rng.standard_normal((16, 1 << 10)).astype(np.float32)
    weights = {
        "wb": rng.standard_normal((16, 4)).astype(np.float32), "ws": rng.standard_normal((16, 1)).astype(np.float32),
        "layer": layer, "limit": np.array([20]), "overlap": np.float32([0.4]), "least": np.float32([1.0]),
        "one": np.array(1), "nought": np.array(0), "first": np.array([0]), "two": np.array(2),
    }  # fmt: skip
    some = helper.make_graph(
        [node("Gather", "x chosen", "f", axis=0), node("MatMul", "f layer", "p"), node("Relu", "p", "q")],
        "some", [], [info("q", None)],
    )  # fmt: skip
    none = helper.make_graph([node("Gather", "layer empty", "e", axis=0)], "none", [], [info("e", None)])
    nodes = [
        node("MatMul", "x wb", "b"), node("Unsqueeze", "b first", "boxes"), node("MatMul", "x ws", "s"),
        node("Transpose", "s", "st"), node("Unsqueeze", "st first", "scores"),
        node("NonMaxSuppression", "boxes scores limit overlap least", "rows"),
        node("Gather", "rows two", "chosen", axis=1), node("Size", "chosen", "count"),
        node("Greater", "count nought", "any"), node("If", "any", "y", then_branch=some, else_branch=none),
    ]  # fmt: skip
    weights["empty"] = np.zeros(0, np.int64)
    return model(nodes, {"x": ["n", 16]}, {"y": None, "chosen": (None, I64)}, weights, opset=13), weights


def test_suppression_stops_where_only_the_first_boxes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind an If as torchvision writes it. All boxes where their number is read too, and in the run that gives
    another bound in place of the file's."""
    limits: list[int] = []

    def constant(name: str, values: list[int]) -> Any:
        return node("Constant", "", name, value=numpy_helper.from_array(np.array(values, np.int64)))

    def branch(nodes: list[Any], name: str) -> Any:
        return helper.make_graph(nodes, name, [], [info(name, [None], I64)])

    def suppressed_few(boxes: np.ndarray, scores: np.ndarray, limit: int, *more: Any) -> np.ndarray:
        limits.append(limit)
        return suppressed(boxes, scores, limit, *more)

    monkeypatch.setattr(operators, "suppressed", suppressed_few)
    inner = [
        constant("many", [1 << 40]), constant("two", [2]), constant("one", [1]),
        node("NonMaxSuppression", "some these many share", "found"),
        node("Gather", "found two", "column", axis=1), node("Squeeze", "column one", "keep"),
    ]  # fmt: skip
    nodes = [
        node("Reshape", "scores flat", "s"), node("Greater", "s nought", "m"), node("Size", "some", "size"),
        node("Compress", "boxes m", "some", axis=1), node("Compress", "scores m", "these", axis=2),
        node("Equal", "size zero", "none"),
        node("If", "none", "all",
             then_branch=branch([constant("nothing", [])], "nothing"), else_branch=branch(inner, "keep")),
        node("Slice", "all from to axis", "kept"), node("Cast", "kept", "as_i32", to=6),
    ]  # fmt: skip
    numbers = {"zero": np.array(0), "nought": np.float32(0).reshape(()), "flat": np.array([-1]),
               "share": np.float32([0.4]), **{k: np.array([v]) for k, v in
               (("from", 0), ("to", 7), ("axis", 0))}}  # fmt: skip
    rng = np.random.default_rng(0)
    low = rng.random((1, 80, 2)) * 9
    boxes, scores = np.concatenate([low, low + 2], 2).astype(np.float32), rng.random((1, 1, 80), np.float32)
    given, want = {"boxes": boxes, "scores": scores}, suppressed(boxes, scores, 80, 0.4, None, False)[:, 2]
    ports = {"boxes": [1, "n", 4], "scores": [1, 1, "n"], "to": ([1], I64)}
    for more, limit in (([], 7), ([node("Shape", "all", "count")], 1 << 40)):
        outputs = {"as_i32": (None, I32)} | {n.output[0]: (None, I64) for n in more}
        with rlx.onnx.load(model([*nodes, *more], ports, outputs, numbers, 18)) as loaded:
            for _ in range(2):
                got = loaded.run(given, device="cpu")
                assert got["as_i32"].tolist() == want[:7].tolist() and limits.pop() == limit
            assert "count" not in got or got["count"] == len(want)
            got = loaded.run({**given, "to": np.array([9])}, device="cpu")
            assert got["as_i32"].tolist() == want[:9].tolist() and limits.pop() == 1 << 40


def test_the_best_of_what_a_mask_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows at the places of the largest scores, which are neither listed nor copied before; equal scores, all kept,
    few kept; results that are the list itself, and the numbers in it."""
    nodes = [
        node("MatMul", "x weight", "h"), node("Reshape", "h minus", "s"), node("Greater", "s least", "m"),
        node("NonZero", "m", "i"), node("Transpose", "i", "t"), node("GatherND", "s t", "kept"),
        node("GatherND", "rows t", "near"), node("Split", "t one", "column", axis=1),
        node("Squeeze", "column one", "places"), node("TopK", "kept k", "best which"),
        node("Gather", "near which", "found"), node("Gather", "places which", "at"),
    ]  # fmt: skip
    rows = np.arange(240, dtype=np.float32).reshape(120, 2)
    weights = {"weight": np.round(WEIGHT), "rows": rows, "minus": -ONE, "one": ONE, "k": 5 * ONE}
    outputs = {"best": [None], "found": [None, None], **{n: ([None], I64) for n in ("at", "which", "places")}}
    for many in (0, 1 << 20):
        monkeypatch.setattr(lazily, "_MANY", many)
        monkeypatch.setattr(lazily, "_EVERY", 2)
        with rlx.onnx.load(model(nodes, {"x": [20, 12], "least": []}, outputs, weights, 13)) as loaded:
            for seed, least in ((0, 0), (1, -1e9), (2, 4), (3, 0)):
                x = np.round(np.random.default_rng(seed).standard_normal((20, 12)) * 2).astype(np.float32)
                scores = (x @ weights["weight"]).ravel()
                places = np.flatnonzero(scores > least)
                which = np.argsort(-scores[places], kind="stable")[:5]
                got = loaded.run({"x": x, "least": np.float32(least)}, device="cpu")
                want = {"which": which, "at": places[which], "places": places, "best": scores[places][which],
                        "found": rows[places[which]]}  # fmt: skip
                for name, value in want.items():
                    np.testing.assert_array_equal(got[name], value, name)


@pytest.mark.late("vulkan")
def test_fifty_images_make_few_programs_and_the_rest_runs_on_the_device(device: str) -> None:
    proto, weights = detector()
    with rlx.onnx.load(proto) as loaded:
        counts, compiled, last = set(), 0, []
        for k in range(50):
            x = np.random.default_rng(k).standard_normal((8, 16)).astype(np.float32) * (k % 10 != 3)
            made = loaded.run({"x": x}, device=device)
            boxes, scores = (x @ weights["wb"])[None], (x @ weights["ws"]).T[None]
            chosen = suppressed(boxes, scores, 20, 0.4, 1.0, False)[:, 2]
            assert np.array_equal(made["chosen"], chosen)
            want = np.maximum(x[chosen] @ weights["layer"], 0)
            np.testing.assert_allclose(made["y"], want, rtol=1e-4, atol=1e-4)
            counts.add(len(chosen))
            last = loaded.programs[-1].parts
            compiled += sum(p.compiled is not None for p in last)
        assert 0 in counts and len(counts) > 3
        # One for the image, one for the first number of boxes, one for each power of two up to the others.
        assert compiled <= 3 + max(counts).bit_length() and compiled < len(counts)
        assert [p.device == "host" for p in last] == [False, True, False]
        said = str(loaded.programs[-1].report())
        assert "reused" in said and "run by NumPy" in said


def test_a_few_numbers_become_part_of_a_program_until_they_change_often() -> None:
    proto = model([node("Exp", "x", "e"), node("TopK", "e k", "y _")], {"x": ["n"], "k": ([1], I64)}, {"y": [None]})
    with rlx.onnx.load(proto) as loaded:
        x = RNG.standard_normal(40).astype(np.float32)
        for k in range(30):
            y = loaded.run({"x": x, "k": ONE * k}, device="cpu")["y"]
            np.testing.assert_allclose(y, np.sort(np.exp(x))[::-1][:k], rtol=1e-6)
        assert [p.fixed for p in loaded.programs] == [("k",)] * 8 + [()]


def test_a_loop_that_grows_runs_behind_the_cut(device: str) -> None:
    body = helper.make_graph(
        [node("Concat", "v v", "w", axis=0), node("Identity", "go", "on"), node("ReduceSum", "w", "s", keepdims=0)],
        "body", [info("i", [], I64), info("go", [], TensorProto.BOOL), info("v", None)],
        [info("on", [], TensorProto.BOOL), info("w", None), info("s", [])],
    )  # fmt: skip
    nodes = [
        node("Relu", "x", "r"), node("Greater", "r zero", "m"), node("Cast", "m", "c", to=I64),
        node("ReduceSum", "c", "n", keepdims=0), node("Loop", "n _ r", "y sums", body=body),
    ]  # fmt: skip
    proto = model(nodes, {"x": [70]}, {"y": [None], "sums": [None]}, {"zero": np.float32([0]).reshape(())}, opset=13)
    with rlx.onnx.load(proto) as loaded:
        for count in (2, 0, 3):
            x = -np.ones(70, np.float32)
            x[:count] = 1 + np.arange(count)
            made = loaded.run({"x": x}, device=device)
            want = np.tile(np.maximum(x, 0), 1 << count)
            assert np.array_equal(made["y"], want)
            assert np.array_equal(made["sums"], [np.maximum(x, 0).sum() * 2 ** (k + 1) for k in range(count)])


def test_results_share_no_memory_with_what_the_model_keeps() -> None:
    proto = model(
        [node("NonZero", "x", "i"), node("Size", "i", "s"), node("Unsqueeze", "s nought", "k"),
         node("Slice", "w nought k", "y")],
        {"x": ["n"]}, {"y": None}, {"w": np.arange(9, dtype=np.float32), "nought": np.array([0])},
    )  # fmt: skip
    with rlx.onnx.load(proto) as loaded:
        for _ in range(2):
            made = loaded.run({"x": np.ones(3, np.float32)}, device="cpu")["y"]
            assert made.tolist() == [0, 1, 2]
            made[:] = 7
