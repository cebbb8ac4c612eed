"""Cases of softmax, layer_norm and rms_norm."""

from __future__ import annotations

from collections.abc import Iterator

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bf16, f16, f32

Shape = tuple[int, ...]

_ROWS: tuple[Shape, ...] = (
    (1,), (7,), (1, 1), (3, 1), (1, 129), (5, 31), (5, 32), (5, 33), (3, 127), (3, 128), (3, 129), (2, 3, 384),
    (65, 64), (2, 1024), (3, 1537), (2, 4099), (0, 5), (2, 0, 7), (2, 3, 4, 5), (257, 3),
)  # fmt: skip
# Rows of one number and rows far from 0, in every way a row is held.
FAR_LENGTHS = (1, 2, 7, 64, 1000, 4096)
FAR = ("constant", "shifted")


def _softmax() -> Iterator[Case]:
    def case(shape: Shape, axis: int, dtype: DType, domain: str) -> Case:
        name = f"{dtype}-{label(shape)}-axis{axis}-{domain}"
        return Case("softmax", name, (InputSpec(shape, dtype, domain),), {"axis": axis}, NORM)

    for shape in _ROWS:
        yield case(shape, len(shape) - 1, f32, "normal")
    for shape in ((5, 33), (3, 5, 7), (3, 129, 2), (33, 2, 3), (2, 3, 4, 5), (4, 0)):
        for axis in range(len(shape) - 1):
            yield case(shape, axis, f32, "normal")
    for dtype in FLOATS:
        for domain in ("large", "holes", "masked", "zeros", "far"):
            yield case((33, 65), 1, dtype, domain)
        yield case((12, 2), 1, dtype, "masked")
        yield case((2, 12, 16), 2, dtype, "normal")
        yield case((9, 130), 0, dtype, "normal")


def _norm(op: str, beta: bool) -> Iterator[Case]:
    def case(
        shape: Shape,
        dtype: DType,
        domain: str = "normal",
        eps: float = 1e-5,
        weights: DType | None = None,
    ) -> Case:
        d = shape[-1:]
        specs = [InputSpec(shape, dtype, domain), InputSpec(d, weights or dtype)]
        if beta:
            specs.append(InputSpec(d, weights or dtype))
        name = f"{dtype}-{label(shape)}-{domain}-eps{eps:g}{'-beta' if beta else ''}"
        name += f"-weights_{weights}" if weights else ""
        return Case(op, name, tuple(specs), {"eps": eps}, NORM)

    for shape in _ROWS:
        # A row of one element is all mean: only eps keeps layer_norm from 0 / 0.
        yield case(shape, f32)
    for dtype in FLOATS:
        for shape in ((9, 384), (5, 33), (2, 3, 128)):
            yield case(shape, dtype, eps=1e-12)
        yield case((7, 65), dtype, "offset")
        yield case((7, 65), dtype, "holes")
        yield case((7, 65), dtype, "zeros")
        yield case((7, 65), dtype, "large", eps=1e-6)
    for dtype, weights in ((f32, bf16), (f32, f16), (f16, f32), (bf16, f32)):
        yield case((9, 130), dtype, weights=weights)
    yield case((9, 257), f32, "far")
    for domain in FAR:
        for dtype in FLOATS:
            for n in FAR_LENGTHS:
                yield case((5, n), dtype, domain)
        for shape in ((3, 9001), (2, 50_000), (2100, 96), (2100, 130), (1000,)):
            yield case(shape, f32, domain)


def cases() -> list[Case]:
    return [*_softmax(), *_norm("layer_norm", True), *_norm("rms_norm", False), *_norm("rms_norm", True)]
