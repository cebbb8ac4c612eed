"""Values that decide a shape and cannot: not finite, or too many. They come with a run, not with the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import ModelFormatError
from tests.onnx.models import I64, model, node

NAN, INF = np.float32(np.nan), np.float32(np.inf)


def refused(made: Any, inputs: dict[str, Any], text: str) -> None:
    """A run with these values names the node and says `text`."""
    codes = {np.dtype(np.float32): 1, np.dtype(np.uint8): 2, np.dtype(np.int64): I64}
    feeds = {n: np.asarray(v) for n, v in inputs.items()}
    proto = model(
        [made], {n: (list(a.shape), codes[a.dtype]) for n, a in feeds.items()}, {made.output[0]: None}
    )
    proto.graph.output[0].type.Clear()
    with (
        rlx.onnx.load(proto) as loaded,
        pytest.raises(ModelFormatError, match=rf"'it' \({made.op_type}\).*{text}"),
    ):
        loaded.run(feeds, device="cpu")


@pytest.mark.parametrize("ends", [(0, NAN, 1), (0, INF, 1), (0, 1, NAN), (-INF, 1, 1), (0, 1, 0)])
def test_ranges_without_an_end(ends: tuple[float, ...]) -> None:
    made = node("Range", "a b c", "y", name="it")
    refused(made, dict(zip("abc", np.float32(ends), strict=True)), "one finite number each, delta not 0")


@pytest.mark.parametrize("depth", [NAN, INF])
def test_a_depth_that_is_no_number(depth: np.float32) -> None:
    made = node("OneHot", "i d v", "y", name="it")
    refused(made, {"i": np.array([1]), "d": depth, "v": np.float32([0, 1])}, "expected a whole number")


def test_a_region_that_is_no_number() -> None:
    made = node(
        "Resize",
        "x roi s",
        "y",
        name="it",
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    )
    roi = np.float32([0, 0, 0, NAN, 1, 1, 1, 1])
    refused(
        made, {"x": np.ones((1, 1, 2, 2), np.float32), "roi": roi, "s": np.float32([1, 1, 2, 2])}, "finite"
    )


def test_more_results_than_parts() -> None:
    made = node("Split", "x", "a b c", name="it", num_outputs=2)
    refused(made, {"x": np.ones(6, np.float32)}, "num_outputs is 2, the node has 3")


def test_scales_and_zero_points_that_would_make_the_result_larger() -> None:
    byte, one = np.uint8(3), np.float32(1)
    x, w, four = np.ones((1, 1, 3, 3), np.uint8), np.ones((1, 1, 2, 2), np.uint8), np.ones(4, np.float32)
    conv = node("QLinearConv", "x xs xz w ws wz ys yz", "y", name="it")
    fed = {"x": x, "xs": one, "xz": byte, "w": w, "ws": four, "wz": byte, "ys": one, "yz": byte}
    refused(conv, fed, r"input 4 \(w_scale\) is \(4,\); expected a scalar or \(M,\) with M = 1")
    refused(conv, {**fed, "ws": one, "wz": np.ones(4, np.uint8)}, r"input 5 \(w_zero_point\) .*expected a scalar")
    product = node("MatMulInteger", "a b az", "y", name="it")
    a = np.ones((1, 2), np.uint8)
    refused(product, {"a": a, "b": a.T, "az": np.ones(4, np.uint8)}, r"a_zero_point\) is \(4,\); expected a scalar")


def test_an_image_without_axes() -> None:
    made = node("Col2Im", "x image block", "y", name="it")
    none = np.zeros(0, np.int64)
    refused(made, {"x": np.ones((1, 5, 5), np.float32), "image": none, "block": none}, "out of range")
