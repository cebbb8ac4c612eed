"""Regions of images and grids over them: RoiAlign, MaxRoiPool, AffineGrid, and Resize as opset 10 has it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.errors import UnsupportedOp
from tests.onnx.models import I64, model, node

RNG = np.random.default_rng(4)
IMAGES = RNG.standard_normal((2, 3, 9, 11)).astype(np.float32)
# Small and large ones, one without an area, ones that reach out of the image or lie outside.
REGIONS = np.array(
    [[0, 0, 3, 3], [1, 1, 4, 2], [0.5, 0.3, 8.4, 10.2], [3, 3, 2, 2], [-4, -3, 2, 30], [50, 50, 60, 60]], np.float32
)  # fmt: skip
IMAGE_OF = np.array([0, 1, 1, 0, 1, 0])


def beside_reference(proto: Any, feeds: dict[str, np.ndarray], device: str) -> tuple[str, ...]:
    """The one result is what onnx's reference gives; the inputs whose values were compiled in."""
    (want,) = ReferenceEvaluator(proto).run(None, feeds)
    with rlx.onnx.load(proto) as loaded:
        (got,) = loaded.run(feeds, device=device).values()
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        return loaded.programs[-1].fixed


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.sample(1, vulkan=0)
def test_roi_align_takes_as_many_samples_as_a_region_is_large(
    device: str, mode: str, coordinates: str
) -> None:
    """Without sampling_ratio the regions' values are compiled in, with it they are not."""
    for ratio, fixed in ((0, ("r",)), (2, ())):
        made = node(
            "RoiAlign", "x r b", "y", output_height=2, output_width=3, mode=mode, sampling_ratio=ratio,
            spatial_scale=0.9, coordinate_transformation_mode=coordinates,
        )  # fmt: skip
        proto = model([made], {"x": [2, 3, 9, 11], "r": ["n", 4], "b": (["n"], I64)}, {"y": None})
        assert beside_reference(proto, {"x": IMAGES, "r": REGIONS, "b": IMAGE_OF}, device) == fixed
        assert beside_reference(proto, {"x": IMAGES, "r": REGIONS[:0], "b": IMAGE_OF[:0]}, device) == fixed


@pytest.mark.parametrize("region", [[0, 0, 1e30, 4], [0, 0, math.nan, 4], [0, 0, 1e6, 1e6]])
def test_roi_align_of_huge_regions_is_refused_before_anything_is_made(region: list[float]) -> None:
    made = node("RoiAlign", "x r b", "y", name="align")
    proto = model([made], {"x": [2, 3, 9, 11], "r": [1, 4], "b": ([1], I64)}, {"y": None})
    feeds = {"x": IMAGES, "r": np.array([region], np.float32), "b": IMAGE_OF[:1]}
    with rlx.onnx.load(proto) as loaded, pytest.raises(UnsupportedOp, match=r"'align'.* samples; "):
        loaded.run(feeds, device="cpu")


def largest_in_bins(regions: np.ndarray, shape: tuple[int, int], scale: float) -> np.ndarray:
    """MaxRoiPool, bin by bin; halves round away from zero."""
    made = np.zeros((len(regions), 3, *shape))
    for r, (image, *corners) in enumerate(regions):
        u0, v0, u1, v1 = (int(math.copysign(math.floor(abs(v * scale) + 0.5), v)) for v in corners)
        for i in range(shape[0]):
            for j in range(shape[1]):
                spans = []
                for begin, end, k, bins, n in ((v0, v1, i, shape[0], 9), (u0, u1, j, shape[1], 11)):
                    step = np.float32(max(end - begin + 1, 1)) / np.float32(bins)
                    ends = (
                        math.floor(np.float32(k) * step) + begin,
                        math.ceil(np.float32(k + 1) * step) + begin,
                    )
                    spans.append(slice(*np.clip(ends, 0, n)))
                under = IMAGES[int(image)][:, spans[0], spans[1]]
                made[r, :, i, j] = under.max((1, 2)) if under.size else 0
    return made


@pytest.mark.parametrize(("shape", "scale"), [((2, 3), 1.0), ((7, 7), 0.5), ((1, 4), 2.25)])
@pytest.mark.sample(vulkan=1)
def test_max_roi_pool(device: str, shape: tuple[int, int], scale: float) -> None:
    regions = np.concatenate([IMAGE_OF[:, None], REGIONS], 1).astype(np.float32)
    made = node("MaxRoiPool", "x r", "y", pooled_shape=shape, spatial_scale=scale)
    proto = model([made], {"x": [2, 3, 9, 11], "r": ["n", 5]}, {"y": ["n", 3, *shape]}, opset=11)
    with rlx.onnx.load(proto) as loaded:
        for some in (regions, regions[:0]):
            got = loaded.run({"x": IMAGES, "r": some}, device=device)["y"]
            np.testing.assert_array_equal(got, largest_in_bins(some, shape, scale).astype(np.float32))


@pytest.mark.filterwarnings("ignore:divide by zero")  # in the reference, of an axis of one place
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [[1, 1, 2, 3], [2, 3, 4, 5], [1, 3, 2, 4, 5], [2, 1, 3, 2, 4]])
@pytest.mark.sample(2, vulkan=1)
def test_affine_grid(device: str, size: list[int], align: int) -> None:
    """A batch of one is a batch, which onnx's own function of the operator takes away."""
    rank = len(size) - 2
    theta = RNG.standard_normal((size[0], rank, rank + 1)).astype(np.float32)
    made = node("AffineGrid", "t s", "g", align_corners=align)
    proto = model([made], {"t": list(theta.shape)}, {"g": None}, {"s": np.array(size)})
    beside_reference(proto, {"t": theta}, device)


def test_resize_of_opset_10_rounds_up_where_it_shrinks(device: str) -> None:
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    for scales, want in (
        ([1, 1, 0.6, 0.6], [[1, 3]]), ([1, 1, 2, 0.6], [[1, 3], [1, 3], [5, 7], [5, 7]]),
        ([1, 1, 0.5, 1.5], [[1, 1, 2, 3, 3, 4]]),
    ):  # fmt: skip
        proto = model([node("Resize", "x s", "y")], {"x": [1, 1, 2, 4]}, {"y": None},
                      {"s": np.array(scales, np.float32)}, opset=10)  # fmt: skip
        with rlx.onnx.load(proto) as loaded:
            assert loaded.run({"x": x}, device=device)["y"][0, 0].tolist() == want


def test_a_scale_of_aligned_corners_is_the_references_in_files(device: str) -> None:
    """The standard's reference ends where the scale's fraction of an element says, rlx.resize at the last element."""
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    made = node("Resize", "x _ s", "y", mode="linear", coordinate_transformation_mode="align_corners")
    proto = model(
        [made], {"x": [1, 1, 1, 4]}, {"y": None}, {"s": np.array([1, 1, 1, 1.7], np.float32)}, opset=18
    )
    with rlx.onnx.load(proto) as loaded:
        got = loaded.run({"x": x}, device=device)["y"]
    np.testing.assert_allclose(got[0, 0, 0], np.arange(6) * 3 / 5.8, rtol=1e-6)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aligned_corners_of_sizes_that_keep_the_ratio(policy: str) -> None:
    """By the length of the result, as the operator's text and ONNX Runtime 1.32 have it: corners lie on corners."""
    rng = np.random.default_rng(3)
    near = {"floor": math.floor, "ceil": math.ceil, "round_prefer_floor": lambda at: math.ceil(at - Fraction(1, 2)),
            "round_prefer_ceil": lambda at: math.floor(at + Fraction(1, 2))}  # fmt: skip
    for rounding, rounded in near.items():
        for _ in range(6):
            shape, wanted = rng.integers(1, 8, 2).tolist(), rng.integers(1, 10, 2).tolist()
            ratio = (min if policy == "not_larger" else max)(map(Fraction, wanted, shape))
            sizes = [math.floor(n * ratio + Fraction(1, 2)) for n in shape]
            places = [
                [rounded(Fraction(i * (n - 1), max(size - 1, 1))) for i in range(size)]
                for n, size in zip(shape, sizes, strict=True)
            ]
            x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
            more = {"mode": "nearest", "nearest_mode": rounding}
            assert np.array_equal(aligned(x, wanted, policy, **more), x[np.ix_(*places)]), (shape, wanted, rounding)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [0, 1])
def test_aligned_corners_that_keep_the_ratio_are_the_same_from_both_ends(mode: str, antialias: int) -> None:
    x = np.random.default_rng(4).standard_normal((7, 9)).astype(np.float32)
    for wanted, policy in (([4, 3], "not_larger"), ([3, 8], "not_larger"), ([4, 3], "not_smaller")):
        more = {"mode": mode, "antialias": antialias}
        made, turned = (aligned(part, wanted, policy, **more) for part in (x, x[::-1, ::-1].copy()))
        np.testing.assert_allclose(made, turned[::-1, ::-1], rtol=0, atol=2e-6)


def aligned(x: np.ndarray, sizes: list[int], policy: str, **more: Any) -> np.ndarray:
    more |= {"coordinate_transformation_mode": "align_corners", "keep_aspect_ratio_policy": policy}
    proto = model([node("Resize", "x _ _ s", "y", **more)], {"x": [*x.shape]}, {"y": None}, {"s": np.array(sizes)})
    with rlx.onnx.load(proto) as loaded:
        return loaded.run({"x": x}, device="cpu")["y"]
