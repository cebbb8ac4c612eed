"""Conformance of cross-entropy and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, is_float, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, GRADIENT_ROWS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, f32, i32
from rlx.ir.graph import apply_multi

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]


def _cross_entropy() -> Iterator[Case]:
    def case(
        shape: Shape, dtype: DType, domain: str = "normal", labels: str = "index", ignore: int = -100
    ) -> Iterator[Case]:
        held = InputSpec(shape[:-1], i32, f"{labels}:{max(shape[-1], 1)}")
        specs = (InputSpec(shape, dtype, domain), held)
        name = f"{dtype}-{label(shape)}-{domain}-{labels}-ignore{ignore}"
        yield Case("cross_entropy", name, specs, {"ignore_index": ignore}, NORM)
        d = InputSpec(shape[:-1], f32)
        yield Case("cross_entropy_grad", name, (d, *specs), {"ignore_index": ignore}, NORM)

    for shape in ((1,), (3, 2), *GRADIENT_ROWS):
        yield from case(shape, f32)
    for dtype in FLOATS:
        for domain in ("large", "holes", "zeros", "masked", "far"):
            yield from case((33, 65), dtype, domain)
        yield from case((3, 9001), dtype)  # longer than the rows that threads hold in registers
        yield from case((40, 7), dtype, labels="wild", ignore=3)
        yield from case((40, 7), dtype, ignore=-2)
        yield from case((40, 3), dtype, labels="wild", ignore=0)


@rule("cross_entropy")
def _losses(b: Builder) -> Made:
    x = b.ranked(1, is_float)
    labels = b.graph.constant(b.rng.integers(0, x.shape[-1], x.shape[:-1]).astype(np.int32))
    d = b.leaf(labels.shape, f32 if x.dtype.is_half else x.dtype)
    loss = ops.cross_entropy(x, labels, ignore_index=b.choose((-100, 0)), reduction="none")
    if b.chance(0.5):
        return (loss,)
    return apply_multi("cross_entropy_grad", d, x, labels, ignore_index=-100)


OPS = (
    Conformance("cross_entropy", (_cross_entropy,), (_losses,)),
    Conformance("cross_entropy_grad", (_cross_entropy,), (_losses,)),
)
