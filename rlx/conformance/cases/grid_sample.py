"""Conformance of sampling at the coordinates of a grid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, label
from rlx.conformance.tolerances import Tolerance
from rlx.dtypes import DType, f16, f32

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]
_REASON = (
    "places are computed in f32, to 6e-8 of the axis's length, and a step of one is a whole difference"
)
_TOLERANCE = Tolerance("norm", nmse=1e-10, max_error=1e-4)
_IMAGES: tuple[tuple[Shape, Shape], ...] = (
    ((1, 1, 4, 4), (1, 3, 3, 2)),
    ((2, 3, 5, 7), (2, 4, 6, 2)),
    ((1, 5, 1, 1), (1, 2, 3, 2)),
    ((1, 9, 6, 1), (1, 7, 5, 2)),
    ((2, 1, 16, 17), (2, 9, 31, 2)),
)
_VOLUMES: tuple[tuple[Shape, Shape], ...] = (
    ((1, 2, 3, 4, 5), (1, 2, 3, 4, 3)),
    ((2, 3, 4, 1, 3), (2, 3, 2, 5, 3)),
)


def _cases() -> Iterator[Case]:
    def case(
        shape: Shape, grid: Shape, mode: str, padding: str, align: bool, domain: str, dtype: DType = f32,
        other: DType | None = None,
    ) -> Case:  # fmt: skip
        attrs = {"mode": mode, "padding": padding, "align_corners": align}
        name = f"{dtype}-{mode}-{padding}-{label(shape)}-{label(grid)}-{domain}"
        name += ("-align" if align else "") + (f"-grid_{other}" if other else "")
        specs = (InputSpec(shape, dtype), InputSpec(grid, other or dtype, domain))
        return Case("grid_sample", name, specs, attrs, _TOLERANCE, _REASON)

    for padding in ("zeros", "border", "reflection"):
        for align in (False, True):
            for mode in ("linear", "nearest", "cubic"):
                for shape, grid in _IMAGES:
                    yield case(shape, grid, mode, padding, align, "normal")
                yield case(*_IMAGES[1], mode, padding, align, "unit")
            for mode in ("linear", "nearest"):
                for shape, grid in _VOLUMES:
                    yield case(shape, grid, mode, padding, align, "normal")
            yield case(*_IMAGES[1], "linear", padding, align, "halves")
    for dtype in FLOATS:
        yield case(*_IMAGES[1], "linear", "zeros", False, "normal", dtype, f32)
        yield case(*_IMAGES[3], "cubic", "border", True, "normal", dtype, f32)
        yield case(*_VOLUMES[0], "linear", "reflection", False, "normal", dtype, f32)
    yield case(*_IMAGES[1], "linear", "border", False, "normal", f16)
    yield case(*_IMAGES[1], "linear", "zeros", False, "zeros")
    yield case((1, 0, 3, 3), (1, 2, 2, 2), "linear", "zeros", False, "normal")
    yield case((1, 2, 3, 3), (1, 0, 2, 2), "nearest", "border", False, "normal")


@rule("grid_sample", rough=True)
def _sampled(b: Builder) -> Made:
    x = b.picture()
    grid = b.leaf((x.shape[0], 1 + b.below(4), 1 + b.below(4), 2), x.dtype)
    padding = b.choose(("zeros", "border", "reflection"))
    return (ops.grid_sample(x, grid, mode=b.choose(("linear", "nearest")), padding=padding),)


OPS = (Conformance("grid_sample", (_cases,), (_sampled,)),)
