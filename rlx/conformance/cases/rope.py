"""Conformance of rotary position embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import Made, is_float, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import FLOATS, label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, bf16, f16, f32, i32

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]
# (x, sequence axis, width, positions in the tables)
_SHAPES: tuple[tuple[Shape, int, int, int], ...] = (
    ((1, 2), 0, 2, 1), ((3, 1), 0, 0, 3), ((5, 7), 0, 6, 5), ((5, 8), 0, 8, 5), ((2, 3, 16), 1, 16, 3),
    ((2, 3, 16), 1, 8, 9), ((2, 4, 5, 6), 2, 6, 5), ((2, 4, 5, 64), 2, 64, 8), ((2, 5, 4, 64), 1, 64, 5),
    ((1, 2, 33, 32), 2, 24, 33), ((2, 2, 3, 80), 2, 32, 4), ((1, 1, 129, 4), 2, 4, 200), ((2, 3, 5, 9), 2, 4, 5),
    ((0, 3, 8), 1, 8, 3), ((2, 0, 8), 1, 8, 0), ((2, 3, 2, 7), 1, 2, 3), ((2, 2, 31, 10), 2, 10, 31),
    ((4, 3, 2, 3, 8), 3, 8, 3),    ((1, 1, 1, 128), 2, 128, 1), ((3, 2, 2, 12), 0, 12, 3),
)  # fmt: skip


def _cases() -> Iterator[Case]:
    def case(
        at: tuple[Shape, int, int, int], dtype: DType = f32, table: DType = f32, positions: Shape | None = None,
        reach: str = "index", domain: str = "normal", offset: int = 0, interleaved: bool = False, sections: int = 1,
        inverse: bool = False,
    ) -> Case:  # fmt: skip
        shape, axis, width, rows = at
        specs = [InputSpec(shape, dtype, domain)]
        specs += [InputSpec((rows, width // 2), table, "unit") for _ in range(2)]
        if positions is not None:
            specs.append(InputSpec(positions, i32, f"{reach}:{max(rows, 1)}"))
        name = f"{dtype}-{label(shape)}-axis{axis}-width{width}-rows{rows}-offset{offset}-{domain}"
        name += f"{'-pairs' if interleaved else ''}{'-inverse' if inverse else ''}"
        name += f"-sections{sections}" if sections > 1 else ""
        name += f"-positions_{label(positions)}_{reach}" if positions is not None else ""
        name += f"-table_{table}" if table != f32 else ""
        attrs = {"axis": axis, "offset": offset, "interleaved": interleaved, "sections": sections, "inverse": inverse}
        return Case("rope", name, tuple(specs), attrs, NORM)

    for i, at in enumerate(_SHAPES):
        yield case(at, inverse=i % 3 == 0)
        yield case(at, interleaved=True, inverse=i % 3 == 1)
    long = ((2, 3, 5, 16), 2, 12, 11)
    for interleaved in (False, True):
        for offset in (1, 6):
            yield case(long, offset=offset, interleaved=interleaved)
        for positions in ((), (5,), (2, 5)):
            for reach in ("index", "wild"):
                yield case(long, positions=positions, reach=reach, interleaved=interleaved)
            yield case(long, positions=positions, offset=6, interleaved=interleaved, inverse=True)
    for sections in (2, 3):
        yield case(long, sections=sections)
        yield case(((2, 9, 4, 24), 1, 24, 9), sections=sections, positions=(2, 9))
        yield case(((2, 9, 4, 24), 1, 24, 9), sections=sections, interleaved=True)
    yield case(((2, 9, 64), 1, 48, 9), sections=2)
    for positions in ((5,), (2, 5)):  # tables shorter than the sequence
        yield case(((2, 3, 5, 16), 2, 12, 3), positions=positions, reach="wild")
    for dtype in FLOATS:
        for domain in ("holes", "large", "zeros"):
            yield case(((2, 7, 2, 16), 1, 16, 7), dtype, domain=domain)
            yield case(((2, 7, 2, 16), 1, 8, 7), dtype, domain=domain, interleaved=True)
        yield case(((2, 2, 9, 64), 2, 64, 9), dtype)
        yield case(((2, 2, 9, 18), 2, 10, 9), dtype, interleaved=True)
    for dtype, table in ((f32, f16), (f16, f16), (bf16, bf16)):
        yield case(((2, 3, 4, 16), 2, 16, 5), dtype, table)


@rule("rope")
def _turned(b: Builder) -> Made:
    x = b.ranked(2, is_float)
    axis, size = b.below(x.ndim - 1), x.shape[-1]
    n, half = x.shape[axis], size // 2
    sections = 2 if half % 2 == 0 and half and b.chance(0.3) else 1
    extra = b.below(3)
    cos, sin = (b.leaf((n + extra, half), f32) for _ in range(2))
    positions = None
    if b.chance(0.5):
        shape = b.choose([(), (n,)] + ([(x.shape[0], n)] if axis else []))
        positions = b.leaf(shape, i32)
        if positions.node.op.is_constant:  # constants outside the tables are refused when the graph is built
            positions = None
    result = ops.rope(x, cos, sin, positions, axis=axis, offset=b.below(extra + 1), interleaved=b.chance(0.5),
                    sections=sections, inverse=b.chance(0.3))  # fmt: skip
    return (result,)


OPS = (Conformance("rope", (_cases,), (_turned,)),)
