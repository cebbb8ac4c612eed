"""Conformance of padding: every byte must arrive, and the padding must be the constant or the right element."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import MAX_ELEMENTS, Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import ALL, label
from rlx.conformance.tolerances import BITS
from rlx.dtypes import DType, bf16, f16, f32, f64, i64, u8

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]
_MIRRORS = ("edge", "reflect", "symmetric", "wrap")
_VALUES = {"f": -2.5, "i": -3, "u": 200, "b": True}
_SHAPES: tuple[tuple[Shape, tuple[tuple[int, int], ...]], ...] = (
    ((1,), ((2, 3),)), ((7,), ((0, 0),)), ((7,), ((1, 0),)), ((7,), ((0, 1),)), ((31,), ((1, 1),)), ((32,), ((32, 0),)),
    ((64,), ((0, 64),)), ((127,), ((1, 3),)), ((1021,), ((3, 5),)), ((4, 3), ((1, 1), (0, 0))),
    ((4, 3), ((0, 0), (1, 2))), ((3, 5, 7), ((0, 0), (2, 1), (3, 2))), ((3, 5, 7), ((1, 2), (0, 0), (1, 1))),
    ((2, 3, 4, 5), ((0, 0), (0, 0), (1, 1), (2, 2))), ((2, 3, 4, 5), ((1, 0), (2, 1), (1, 3), (0, 2))),
    ((2, 3, 4, 8), ((0, 0), (1, 1), (2, 1), (0, 0))), ((2, 1, 3, 1, 2), ((0, 0), (1, 1), (0, 0), (2, 2), (1, 0))),
    ((33, 65), ((1, 1), (31, 32))), ((1, 1, 1), ((1, 1), (1, 1), (1, 1))), ((5, 16), ((2, 2), (0, 0))),
    ((3, 4, 4), ((1, 2), (2, 1), (0, 0))),
)  # fmt: skip


def _case(shape: Shape, pads: tuple[tuple[int, int], ...], mode: str, dtype: DType, value: Any = None) -> Case:
    value = _VALUES[dtype.kind] if value is None else value
    text = "_".join(f"{a}.{b}" for a, b in pads) or "none"
    name = f"{dtype}-{label(shape)}-{text}-{mode}" + (f"-{value}" if mode == "constant" else "")
    return Case("pad", name, (InputSpec(shape, dtype, "any"),), {"pads": pads, "mode": mode, "value": value}, BITS)


def _plain() -> Iterator[Case]:
    for shape, pads in _SHAPES:
        yield _case(shape, pads, "constant", f32)
    yield _case((), (), "constant", f32)
    for shape, pads in (
        ((0,), ((2, 1),)),
        ((0, 3), ((1, 1), (0, 2))),
        ((3, 0), ((0, 0), (0, 1))),
        ((2, 0), ((1, 1), (0, 0))),
    ):
        yield _case(shape, pads, "constant", f32)


def _mirrored() -> Iterator[Case]:
    for mode in _MIRRORS:
        for shape, pads in _SHAPES:
            short = tuple((min(a, 2 * n), min(b, 3 * n)) for n, (a, b) in zip(shape, pads, strict=True))
            yield _case(shape, short, mode, f32)
        yield _case((2,), ((7, 12),), mode, f32)
        yield _case((3, 2), ((8, 5), (5, 9)), mode, f32)
        yield _case((0, 3), ((0, 0), (1, 1)), mode, f32)
        yield _case((5, 3), ((200, 1), (0, 100)), mode, f32)


def _dtypes() -> Iterator[Case]:
    for dtype in (*ALL, f64):
        for mode in ("constant", *_MIRRORS):
            yield _case((5, 9), ((1, 2), (2, 1)), mode, dtype)
            yield _case((3, 16), ((2, 1), (0, 0)), mode, dtype)
        yield _case((3, 16), ((0, 0), (16, 32)), "constant", dtype)


def _values() -> Iterator[Case]:
    for value in (0.0, -0.0, math.nan, math.inf, -math.inf, 3.4e38, 1e-45):
        yield _case((3, 4), ((1, 1), (2, 0)), "constant", f32, value)
    for dtype in (f16, bf16):
        for value in (1 / 3, math.nan, -math.inf, 1e30):
            yield _case((3, 4), ((1, 1), (2, 0)), "constant", dtype, value)
    yield _case((3, 3), ((1, 1), (1, 1)), "constant", i64, -(2**63))
    yield _case((3, 3), ((1, 1), (1, 1)), "constant", i64, 2**62 + 12345)
    yield _case((3, 3), ((1, 1), (1, 1)), "constant", u8, 0)


@rule("pad")
def _padded(b: Builder) -> Made:
    x = b.any()
    mode = b.choose(("constant", "constant", "edge", "reflect", "symmetric", "wrap")) if x.size else "constant"
    pads = [(b.below(3), b.below(3)) if b.chance(0.5) else (0, 0) for _ in x.shape]
    if math.prod(n + p + q for n, (p, q) in zip(x.shape, pads, strict=True)) > MAX_ELEMENTS:
        return (x,)
    return (ops.pad(x, pads, mode, b.choose((0, 1))),)


OPS = (Conformance("pad", (_plain, _mirrored, _dtypes, _values), (_padded,)),)
