"""Fusion groups that read an enlarged or repeated tensor without a copy: one node, the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.dtypes import f32
from rlx.ir import Graph, Tensor, verify
from rlx.passes import fuse_groups
from tests.passes.values import differences, names, results

SHAPE = (2, 3, 4, 5)
TWICE = (2, 3, 8, 10)


def check(build: Callable[[Graph], dict[str, Tensor]]) -> list[str]:
    """The ops after fusion except reshapes, after checking that the results are those of the graph before."""
    g = Graph("repeats")
    for name, t in build(g).items():
        g.output(name, t)
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {n: rng.standard_normal(t.shape).astype(t.dtype.np) for n, t in g.inputs.items()}
    after = fuse_groups(g)
    verify(after)
    assert differences(g, results(g, feeds), results(after, feeds)) == []
    return [n for n in names(after) if n != "reshape"]


def test_an_enlarged_image_is_read_in_place() -> None:
    def build(g: Graph) -> dict[str, Tensor]:
        x, skip, b = g.input("x", SHAPE), g.input("skip", TWICE), g.input("b", (3, 1, 1))
        return {"y": ops.relu(ops.upsample2x(x) + skip * b)}

    assert check(build) == ["fused"]


@pytest.mark.parametrize(
    "attrs",
    [
        {"coordinates": "asymmetric", "rounding": "floor"},
        {"coordinates": "half_pixel"},
        {"coordinates": "half_pixel", "rounding": "round_prefer_ceil"},
        {"coordinates": "pytorch_half_pixel"},
        {"coordinates": "half_pixel_symmetric"},
        {"coordinates": "tf_half_pixel_for_nn", "rounding": "floor"},
    ],
)
@pytest.mark.parametrize("scales", [(2.0, 2.0), (3.0, 4.0), (1.0, 2.0), (5.0, 1.0)])
def test_every_rule_that_is_a_whole_division(attrs: dict[str, str], scales: tuple[float, ...]) -> None:
    def build(g: Graph) -> dict[str, Tensor]:
        return {"y": ops.tanh(ops.resize(g.input("x", SHAPE), scales=scales, **attrs))}

    assert check(build) == ["fused"]


@pytest.mark.parametrize(
    "attrs",
    [
        {"scales": (2.0, 2.0), "coordinates": "align_corners"},
        {"scales": (2.0, 2.0), "coordinates": "asymmetric", "rounding": "ceil"},
        {"scales": (1.5, 2.0), "coordinates": "asymmetric", "rounding": "floor"},
        {"sizes": (3, 10)},
        {"scales": (2.0, 2.0), "mode": "linear"},
    ],
)
def test_other_resizing_stays(attrs: dict[str, Any]) -> None:
    def build(g: Graph) -> dict[str, Tensor]:
        return {"y": ops.tanh(ops.resize(g.input("x", SHAPE), **attrs))}

    assert check(build) == ["resize", "tanh"]


def test_repeat_and_tile_are_broadcasts_too() -> None:
    def build(g: Graph) -> dict[str, Tensor]:
        x, z = g.input("x", (4, 3)), g.input("z", (4, 6))
        return {"r": ops.exp(ops.repeat(x, 2, 1)) + z, "t": ops.tile(x, (1, 2)) * z}

    assert check(build) == ["fused", "fused"]


def test_an_enlarged_image_that_others_read_is_written() -> None:
    def build(g: Graph) -> dict[str, Tensor]:
        big = ops.upsample2x(g.input("x", SHAPE))
        return {"y": ops.tanh(big), "big": big}

    assert sorted(check(build)) == ["fused", "resize"]


def test_what_is_made_and_enlarged_is_in_memory_between() -> None:
    def build(g: Graph) -> dict[str, Tensor]:
        x = ops.exp(g.input("x", SHAPE))
        mean = ops.exp(g.input("m", (2, 3, 1, 1)))
        up = ops.upsample2x(x) * ops.resize(mean, sizes=(8, 10))
        return {"y": up + mean}

    assert check(build).count("fused") == 1


def test_two_enlargements_that_disagree_are_two_regions() -> None:
    def build(g: Graph) -> dict[str, Tensor]:
        a = ops.resize(g.input("a", (1, 1, 4, 4)), scales=(4.0, 4.0))
        b = ops.resize(g.input("b", (1, 1, 8, 8)), scales=(2.0, 2.0))
        return {"y": ops.tanh(a) + ops.exp(b)}

    assert check(build) == ["fused", "fused"]


def test_of_one_tensor_both_ways() -> None:
    def build(g: Graph) -> dict[str, Tensor]:
        x = g.input("x", (1, 2, 1, 1))
        y = g.input("y", (3, 2, 4, 4), f32)
        return {"y": ops.upsample2x(y) * x + ops.resize(x, sizes=(8, 8))}

    assert check(build) == ["fused"]
