"""Behind a cut, lengths that vary from image to image are rounded up: few programs, and the results of exact ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.onnx.ops.suppression import suppressed
from rlx.onnx.stages.seen_lengths import SeenLengths
from tests.onnx.models import model, node

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(2)


def _weight(*shape: int) -> Array:
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


WEIGHTS = {
    "wf": _weight(16, 3, 3, 3), "wr": _weight(16, 16, 3, 3), "wd": _weight(256, 32), "wb": _weight(32, 4),
    "limit": np.array([100]), "overlap": np.float32([0.5]), "least": np.float32([0.3]), "two": np.array(2),
    "first": np.array([0]), "nought": np.array(0), "wm": _weight(256, 64), "zero": np.array(0),
}  # fmt: skip
ROI = {"output_height": 4, "output_width": 4, "sampling_ratio": 2}


def two_stages(again: bool = False) -> Any:
    """Features, suppression, RoiAlign of the boxes that stay, a convolution and products for each; with `again` the
    boxes that these give are suppressed and read in the same way."""
    nodes = [
        node("Conv", "x wf", "f", pads=[1] * 4), node("Relu", "f", "features"),
        node("NonMaxSuppression", "boxes scores limit overlap least", "rows"),
        node("Gather", "rows two", "chosen", axis=1), node("Gather", "rows nought", "image", axis=1),
        node("Squeeze", "boxes first", "all"), node("Gather", "all chosen", "rois"),
        node("RoiAlign", "features rois image", "r", **ROI), node("Conv", "r wr", "c", pads=[1] * 4),
        node("Relu", "c", "cr"), node("Flatten", "cr", "fl"), node("MatMul", "fl wd", "d"), node("Tanh", "d", "p"),
        node("MatMul", "p wb", "delta"), node("Add", "rois delta", "refined"),
    ]  # fmt: skip
    outs: dict[str, Any] = {"p": [None, 32], "refined": [None, 4]}
    if again:
        nodes += [
            node("ReduceMax", "p", "s", axes=[1]), node("Transpose", "s", "st"), node("Unsqueeze", "st first", "ss"),
            node("Unsqueeze", "refined first", "rb"),
            node("NonMaxSuppression", "rb ss limit overlap least", "rows2"),
            node("Gather", "rows2 two", "chosen2", axis=1), node("Mul", "chosen2 zero", "image2"),
            node("Gather", "refined chosen2", "final"), node("RoiAlign", "features final image2", "r2", **ROI),
            node("Flatten", "r2", "fl2"), node("MatMul", "fl2 wm", "mask"),
        ]  # fmt: skip
        outs |= {"final": [None, 4], "mask": [None, 64]}
    return model(nodes, {"x": [1, 3, 32, 32], "boxes": [1, 60, 4], "scores": [1, 1, 60]}, outs, WEIGHTS, opset=16)


def image(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    low, size = rng.random((60, 2)) * 22, 2 + rng.random((60, 2)) * 8
    scores = rng.random((1, 1, 60)) * (0 if seed % 17 == 3 else rng.random() * 1.6)
    made = {"x": rng.random((1, 3, 32, 32)), "boxes": np.concatenate([low, low + size], 1)[None], "scores": scores}
    return {n: a.astype(np.float32) for n, a in made.items()}


def _conv(x: Array, weight: Array) -> Array:
    around = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weight.astype(np.float64))


def _pooled(features: Array, rois: Array) -> Array:
    """RoiAlign of 4 by 4 bins of 2 by 2 samples, of boxes within the image."""
    corners = rois.astype(np.float64) - 0.5
    at = (np.arange(8) + 0.5) / 8
    x, y = (
        (corners[:, k, None] + (corners[:, k + 2] - corners[:, k])[:, None] * at).clip(0, 31) for k in (0, 1)
    )
    low = [np.minimum(v.astype(int), 30) for v in (y, x)]
    fy, fx = y - low[0], x - low[1]
    found: Array = np.zeros((len(rois), 8, 8, 16))
    for dy in (0, 1):
        for dx in (0, 1):
            part = features[0].transpose(1, 2, 0)[low[0][:, :, None] + dy, low[1][:, None, :] + dx]
            share = (fy if dy else 1 - fy)[:, :, None] * (fx if dx else 1 - fx)[:, None, :]
            found += part * share[..., None]
    return found.reshape(-1, 4, 2, 4, 2, 16).mean((2, 4)).transpose(0, 3, 1, 2)


def expected(given: dict[str, Array], again: bool = False) -> dict[str, Array]:
    w = WEIGHTS
    features = np.maximum(_conv(given["x"].astype(np.float64), w["wf"]), 0)
    rois = given["boxes"][0][suppressed(given["boxes"], given["scores"], 100, 0.5, 0.3, False)[:, 2]]
    head = np.maximum(_conv(_pooled(features, rois), w["wr"]), 0).reshape(len(rois), 256)
    p = np.tanh(head @ w["wd"])
    made = {"p": p, "refined": rois + p @ w["wb"]}
    if again:
        boxes, scores = made["refined"].astype(np.float32), p.max(1, initial=-2).astype(np.float32)
        chosen = suppressed(boxes[None], scores[None, None], 100, 0.5, 0.3, False)[:, 2]
        made["final"] = made["refined"][chosen]
        made["mask"] = _pooled(features, made["final"]).reshape(len(chosen), 256) @ w["wm"]
    return made


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.late
def test_a_stream_of_images_makes_few_programs(again: bool) -> None:
    compiled, counts = 0, set()
    with rlx.onnx.load(two_stages(again)) as loaded:
        for seed in range(16 if again else 25):
            given = image(seed)
            made, want = loaded.run(given, device="cpu"), expected(given, again)
            for name in want:
                assert made[name].shape == want[name].shape
                np.testing.assert_allclose(made[name], want[name], atol=2e-5)
            compiled += sum(p.compiled is not None for p in loaded.programs[-1].parts)
            counts.add(tuple(map(len, made.values())))
    # One for the image and, for each stage, none, the first count, and the powers of two from 4 to 64.
    assert compiled <= 1 + 7 * (1 + again) and compiled < len(counts)


@pytest.mark.full
def test_the_same_on_a_device(device: str) -> None:
    with rlx.onnx.load(two_stages(True)) as loaded:
        for seed in range(8):
            given = image(seed)
            made, want = loaded.run(given, device=device), expected(given, True)
            for name in want:
                np.testing.assert_allclose(made[name], want[name], atol=2e-5)


def test_what_cannot_be_padded_has_exact_programs() -> None:
    """A pooling over an axis of unknown length, for which the lengths have no rule."""
    table = np.random.default_rng(0).random((1, 64, 4096), dtype=np.float32)
    proto = model(
        [node("NonZero", "x", "i"), node("Squeeze", "i first", "k"), node("Gather", "table k", "part", axis=2),
         node("LpPool", "part", "y", kernel_shape=[2])],
        {"x": [4096]}, {"y": None}, {"table": table, "first": np.array([0])}, opset=18,
    )  # fmt: skip
    with rlx.onnx.load(proto) as loaded:
        for count in (300, 301, 302, 300):
            x = (np.arange(4096) < count).astype(np.float32)
            part = table[:, :, :count].astype(np.float64)
            want = np.sqrt(part[..., 1:] ** 2 + part[..., :-1] ** 2)
            np.testing.assert_allclose(loaded.run({"x": x}, device="cpu")["y"], want, rtol=1e-5)


def test_axes_that_were_equal_share_a_dimension_until_they_differ() -> None:
    def shapes(**given: tuple[int, ...]) -> dict[str, Array]:
        return {n: np.zeros(shape) for n, shape in given.items()}

    seen = SeenLengths()
    assert not seen.add(shapes(a=(4, 4), b=(4,)))
    assert not seen.add(shapes(a=(4, 4), b=(4,)))
    assert seen.add(shapes(a=(7, 4), b=(7,)))
    assert seen.dims()[0] == {"a": ("n0", 4), "b": ("n0",)}
    assert not seen.add(shapes(a=(9, 4), b=(9,))) and not seen.add(shapes(a=(4, 4), b=(4,)))
    assert seen.add(shapes(a=(9, 4), b=(8,)))
    axes, dims = seen.dims()
    assert axes == {"a": ("n0", 4), "b": ("n1",)} and [*dims] == ["n0", "n1"]
    assert not seen.add(shapes(a=(1, 4), b=(1,)))
    assert seen.add(shapes(a=(1,), b=(1,))) and seen.dims() == ({"a": (1,), "b": (1,)}, {})
