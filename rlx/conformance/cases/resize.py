"""Conformance of resizing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import ALL, FLOATS, label
from rlx.conformance.tolerances import BITS, NORM
from rlx.dtypes import DType, f32
from rlx.ops.resize import COORDINATES, ROUNDING

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]
# Shape and new shape; the scales are their ratios.
_SIZES: tuple[tuple[Shape, Shape], ...] = (
    ((1, 1, 1), (1, 1, 1)),
    ((1, 2, 5), (1, 2, 10)),
    ((2, 1, 7), (2, 1, 3)),
    ((1, 1, 4, 4), (1, 1, 8, 8)),
    ((1, 3, 5, 7), (1, 3, 10, 14)),
    ((2, 2, 6, 6), (2, 2, 3, 3)),
    ((1, 2, 4, 5), (1, 2, 7, 3)),
    ((1, 2, 5, 5), (1, 2, 1, 1)),
    ((1, 2, 1, 1), (1, 2, 3, 4)),
    ((1, 1, 8, 9), (1, 1, 8, 4)),
    ((1, 3, 3, 3), (1, 3, 9, 12)),
    ((2, 4, 5, 3), (2, 9, 7, 3)),
    ((1, 1, 3, 4, 5), (1, 1, 6, 8, 10)),
    ((1, 2, 4, 3, 5), (1, 2, 3, 5, 4)),
    ((2, 3, 2, 2), (3, 5, 4, 3)),
    ((7,), (13,)),
    ((4, 6), (3, 11)),
    ((0, 3, 4), (0, 3, 8)),
    ((2, 3, 4), (2, 0, 4)),
)


def _cases() -> Iterator[Case]:
    def case(
        shape: Shape, sizes: Shape, mode: str, *, scales: tuple[float, ...] | None = None, dtype: DType = f32,
        coordinates: str = "half_pixel", rounding: str = "round_prefer_floor", a: float = -0.75, exclude: bool = False,
        domain: str = "normal",
    ) -> Case:  # fmt: skip
        factors = scales or tuple(float(m / n) if n and m else 1.0 for n, m in zip(shape, sizes, strict=True))
        attrs = {
            "sizes": sizes, "scales": factors, "mode": mode, "coordinates": coordinates, "rounding": rounding,
            "cubic_a": a, "exclude_outside": exclude,
        }  # fmt: skip
        words = [str(dtype), mode, label(shape), "to", label(sizes), coordinates]
        words += [rounding] if mode == "nearest" else []
        words += ["x" + "x".join(f"{s:g}" for s in scales)] if scales else []
        words += [f"a{a:g}"] if a != -0.75 else []
        words += ["exclude"] if exclude else []
        words += [domain] if domain != "normal" else []
        tolerance = BITS if mode == "nearest" else NORM
        return Case("resize", "-".join(words), (InputSpec(shape, dtype, domain),), attrs, tolerance)

    modes = [c for c in COORDINATES if c != "tf_half_pixel_for_nn"]
    for shape, sizes in _SIZES:
        yield case(shape, sizes, "nearest", coordinates="asymmetric", rounding="floor", domain="any")
        yield case(shape, sizes, "nearest")
        yield case(shape, sizes, "linear")
        yield case(shape, sizes, "cubic")
    for coordinates in modes:
        for number in (4, 5, 6, 7, 13):
            yield case(*_SIZES[number], "linear", coordinates=coordinates)
            if not (
                number == 7 and coordinates == "pytorch_half_pixel"
            ):  # the ONNX standard says 0, its reference implementation -0.5
                yield case(*_SIZES[number], "cubic", coordinates=coordinates)
        for rounding in ROUNDING:
            for number in (4, 6, 10):
                yield case(*_SIZES[number], "nearest", coordinates=coordinates, rounding=rounding)
    for number in (4, 5, 6, 13):
        yield case(*_SIZES[number], "nearest", coordinates="tf_half_pixel_for_nn", rounding="floor")
        yield case(*_SIZES[number], "cubic", a=-0.5)
        yield case(*_SIZES[number], "cubic", exclude=True)
        yield case(*_SIZES[number], "linear", exclude=True)
    for scales in ((1.0, 1.0, 1.5, 2.5), (1.0, 1.0, 0.6, 0.7), (1.0, 1.0, 2.0, 1.3)):
        sizes = tuple(int(n * s) for n, s in zip((1, 2, 5, 7), scales, strict=True))
        for coordinates in modes:
            yield case((1, 2, 5, 7), sizes, "linear", scales=scales, coordinates=coordinates)
            yield case((1, 2, 5, 7), sizes, "cubic", scales=scales, coordinates=coordinates)
    for dtype in ALL:
        domain = "normal" if dtype.kind == "b" else "any"
        for number in (1, 4, 6, 11):
            yield case(*_SIZES[number], "nearest", dtype=dtype, domain=domain)
    for dtype in FLOATS:
        for number in (4, 6, 12):
            for mode in ("linear", "cubic"):
                yield case(*_SIZES[number], mode, dtype=dtype, domain="offset")


@rule("resize")
def _resized(b: Builder) -> Made:
    x = b.picture()
    sizes = (1 + b.below(9), 1 + b.below(9))
    return ops.resize(x, sizes, mode=b.choose(("nearest", "linear", "cubic"))), ops.upsample2x(x)


OPS = (Conformance("resize", (_cases,), (_resized,)),)
