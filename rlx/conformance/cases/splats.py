"""Conformance of Gaussian splatting: lists of tiles, blending and its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import label
from rlx.conformance.tolerances import BITS, NORM
from rlx.dtypes import f32, i32
from rlx.ir import Attrs, Tensor
from rlx.ir.graph import apply_multi
from rlx.ops.splats.blend import FIELDS, tiles_of

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

# Sizes around those that a workgroup counts and sorts, and 0.
_COUNTS = (0, 1, 2, 5, 31, 33, 64, 130, 255, 257, 511, 1023, 2047, 2049, 4100)
_GRIDS = ((1, 1), (3, 2), (5, 4), (17, 3), (1, 40))


def _tile_case(
    n: int, grid: tuple[int, int], pairs: int, depth: str = "normal", rects: str = "rects"
) -> Case:
    across, down = grid
    domain = rects if rects in ("any", "zeros") else f"rects:{min(across, 5)}"
    attrs = {"across": across, "down": down, "max_pairs": pairs}
    name = f"{n}-{across}x{down}-pairs{pairs}-{depth}-{rects}"
    return Case(
        "splat_tiles", name, (InputSpec((n,), f32, depth), InputSpec((n, 4), i32, domain)), attrs, BITS
    )


def _tiles() -> Iterator[Case]:
    for i, n in enumerate(_COUNTS):
        for grid in (_GRIDS[i % 5], _GRIDS[(i + 2) % 5]):
            yield _tile_case(n, grid, max(1, 4 * n))
            yield _tile_case(n, grid, 1 + n // 2, "ties")
    for n in (6, 65, 300):
        for depth in ("any", "special", "holes", "zeros", "wide", "constant"):
            yield _tile_case(n, (4, 3), 3 * n, depth)
        for pairs in (1, 2, 63, 64, 255, 256, 257, 2048, 2049, 5000):
            yield _tile_case(n, (5, 5), pairs)
        for grid in _GRIDS:
            yield _tile_case(n, grid, 40 * n, rects="any")
            yield _tile_case(n, grid, n, rects="zeros")


_PICTURES = ((1, 1), (16, 16), (17, 5), (5, 33), (40, 24), (48, 48), (100, 3))


def _inputs(width: int, height: int, n: int, pairs: int, lists: str) -> tuple[InputSpec, ...]:
    across, down = tiles_of(width, height)
    return (
        InputSpec((n, FIELDS), f32, f"splats:{max(width, height)}"),
        InputSpec((pairs,), i32, f"entries:{n}"),
        InputSpec((across * down + 1,), i32, "zeros" if lists == "empty" else f"ascending:{pairs}"),
        InputSpec((pairs,), i32, f"entries:{pairs}"),
        InputSpec((n, 2), i32, f"spans:{pairs}"),
    )


def _pictures(op: str, *gradient: str) -> Iterator[Case]:
    """Cases of blending, or of its gradient, where `gradient` is the domain of the picture's gradient."""

    def case(width: int, height: int, n: int, pairs: int, lists: str = "lists", seed: int = 0) -> Case:
        specs = _inputs(width, height, n, pairs, lists)
        specs = (*(InputSpec((height, width, 4), f32, domain) for domain in gradient), *specs)
        name = f"{label((width, height))}-{n}-pairs{pairs}-{lists}{f'-{seed}' if seed else ''}"
        return Case(op, name, specs, {"width": width, "height": height}, NORM)

    for width, height in _PICTURES:
        across, down = tiles_of(width, height)
        tiles = across * down
        for each in (1, 3, 9, 33, 70):
            yield case(width, height, max(1, 2 * each), tiles * each)
        for seed in range(1, 5):
            yield case(width, height, 7, tiles * 5, seed=seed)
        yield case(width, height, 3, tiles * 4, "empty")
        yield case(width, height, 0, 4)
        yield case(width, height, 5, 1)
        if not gradient:  # torch's gradient is NaN where a pixel skips a splat: 0 times the derivative of its exp
            torn = case(width, height, 9, tiles * 9)
            specs = [replace(spec, domain=spec.domain.replace("splats", "torn")) for spec in torn.inputs]
            yield replace(torn, name=f"{torn.name}-torn", inputs=tuple(specs))
    for pairs in (8, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 600):
        yield case(16, 16, 12, pairs)
        yield case(20, 12, 400, pairs)


def _lists(b: Builder) -> tuple[Tensor, tuple[Tensor, ...], dict[str, int]]:
    """Splats, lists of them, and the size of a picture."""
    n, size = b.below(6), {"width": 1 + b.below(40), "height": 1 + b.below(20)}
    across, down = tiles_of(**size)
    depth, splats = b.leaf((n,), f32), b.leaf((n, FIELDS), f32)
    corner = b.rng.integers(-1, 3, (n, 2))
    rects = b.graph.constant(
        np.concatenate([corner, corner + b.rng.integers(0, 3, (n, 2))], 1).astype(np.int32)
    )
    lists = apply_multi("splat_tiles", depth, rects, across=across, down=down, max_pairs=1 + b.below(20))
    return splats, lists, size


@rule("splats", rough=True)
def _blended(b: Builder) -> Made:
    splats, lists, size = _lists(b)
    return *lists, *apply_multi("splat_blend", splats, *lists[:4], **size)


@rule("splat_gradients", rough=True)
def _gradient(b: Builder) -> Made:
    splats, lists, size = _lists(b)
    d = b.leaf((size["height"], size["width"], 4), f32)
    return apply_multi("splat_blend_grad", d, splats, *lists[:4], **size)


def _of_nan(inputs: Sequence[npt.NDArray[Any]], attrs: Attrs) -> Any:
    """The gradients of splats that are not finite: they may be products of such numbers with 0, or be left out."""
    return ~np.isfinite(inputs[1]).all(-1, keepdims=True)


OPS = (
    Conformance("splat_tiles", (_tiles,), (_blended,)),
    Conformance("splat_blend", (partial(_pictures, "splat_blend"),), (_blended,)),
    Conformance(
        "splat_blend_grad", (partial(_pictures, "splat_blend_grad", "normal"),), (_gradient,), undecided=_of_nan,
        without={(0, "special"): "a splat's weight of 0 meets the infinite gradients of pixels, or leaves them out"},
    ),
)
