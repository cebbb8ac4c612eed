"""Conformance of fake quantization and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, label
from rlx.conformance.tolerances import EQUAL
from rlx.dtypes import DType, bf16, f16, f32, i32
from rlx.ir.graph import apply_multi

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]


def _cases() -> Iterator[Case]:
    """Cases that must match bit for bit: a level that differs by one is an error of a whole quantization step."""

    def case(
        shape: Shape, scale: Shape, dtype: DType, low: int, high: int, zero: bool, domain: str = "large",
        scales: DType = f32,
    ) -> Iterator[Case]:  # fmt: skip
        specs = [InputSpec(shape, dtype, domain), InputSpec(scale, scales, "positive")]
        if zero:
            specs.append(InputSpec(scale, i32, "positive"))
        name = f"{dtype}-{label(shape)}-by{label(scale)}-{low}to{high}-{domain}{'-zero' if zero else ''}"
        name += "" if scales == f32 else f"-scale_{scales}"
        attrs = {"low": low, "high": high}
        yield Case("fake_quantize", name, tuple(specs), attrs, EQUAL)
        yield Case("fake_quantize_grad", name, (InputSpec(shape, dtype, "any"), *specs), attrs, EQUAL)

    per_tensor: tuple[Shape, ...] = ((), (0,), (1,), (31,), (33,), (1021,), (3, 5, 7), (65, 129))
    for i, shape in enumerate(per_tensor):
        yield from case(shape, (), f32, -128, 127, i % 2 == 0)
    for shape, scale in (
        ((4, 3), (4, 1)), ((4, 3), (3,)), ((2, 5, 7), (5, 1)), ((2, 0, 7), (0, 1)), ((2, 33, 4, 4), (33, 1, 1)),
        ((33, 65), (65,)),
    ):  # fmt: skip
        yield from case(shape, scale, f32, 0, 255, True)
        yield from case(shape, scale, f32, -8, 7, False)
    for dtype in FLOATS:
        for domain in ("halves", "normal", "holes", "zeros"):
            yield from case((5, 33), (5, 1), dtype, -127, 127, False, domain)
        yield from case((5, 33), (), dtype, 0, 15, False)
        yield from case((5, 33), (), dtype, 0, 15 + 16, True)
    for dtype, scales in ((f32, f16), (f16, f16), (bf16, bf16)):
        yield from case((5, 33), (33,), dtype, -128, 127, True, scales=scales)


@rule("fake_quantize", rough=True)
def _fake_quantize(b: Builder) -> Made:
    x = b.floating()
    zero = b.choose((None, 3))
    result = ops.fake_quantize(x, 0.25, zero, bits=b.choose((4, 8)), signed=b.chance(0.5))
    if b.chance(0.4):
        return (result,)
    d = b.leaf(x.shape, x.dtype)
    return apply_multi("fake_quantize_grad", d, x, b.graph.constant(np.float32(0.5)), low=-8, high=7)


OPS = (
    Conformance("fake_quantize", (_cases,), (_fake_quantize,)),
    Conformance("fake_quantize_grad", (_cases,), (_fake_quantize,)),
)
