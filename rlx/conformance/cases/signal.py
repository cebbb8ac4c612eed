"""Conformance of frames and their sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import MAX_ELEMENTS, Made, is_float, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import ALL, FLOATS, label
from rlx.conformance.terms import over_squares
from rlx.conformance.tolerances import BITS, NORM
from rlx.dtypes import DType, f32, f64
from rlx.ops.signal.frames import frame, frame_count, overlap_add

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]
# A signal's shape, the length of a frame, and the distance from one to the next: one sample, one frame, frames side by
# side, overlapping by half, by a quarter, by all but one sample, with gaps, with samples left over, of prime sizes.
_FRAMES: tuple[tuple[Shape, int, int], ...] = (
    ((1,), 1, 1), ((7,), 7, 1), ((7,), 7, 9), ((8,), 4, 4), ((12,), 4, 2), ((13,), 4, 2), ((16,), 8, 2), ((33,), 5, 1),
    ((31,), 3, 7), ((3, 64), 16, 8), ((2, 3, 40), 10, 5), ((1021,), 127, 31), ((2, 1024), 256, 128), ((0, 9), 4, 2),
    ((5, 129), 128, 1), ((257,), 2, 300), ((1, 4, 1, 20), 6, 3), ((3, 515), 64, 48), ((2, 2049), 512, 300),
)  # fmt: skip


def _case(shape: Shape, length: int, hop: int, dtype: DType, domain: str) -> Case:
    name = f"{dtype}-{label(shape)}-{length}-every{hop}-{domain}"
    return Case("frame", name, (InputSpec(shape, dtype, domain),), {"length": length, "hop": hop}, BITS)


def _frames() -> Iterator[Case]:
    for shape, length, hop in _FRAMES:
        yield _case(shape, length, hop, f32, "any")
        yield _case(shape, length, hop, f64, "any")
    for dtype in ALL:
        for number in (4, 5, 7, 8, 10, 16):
            yield _case(*_FRAMES[number], dtype, "any")


def _sum(shape: Shape, length: int, hop: int, dtype: DType, domain: str, extra: int) -> Case:
    count = frame_count(shape[-1], length, hop)
    size = (count - 1) * hop + length + extra
    name = f"{dtype}-{label(shape[:-1])}-{count}of{length}-every{hop}-in{size}-{domain}"
    frames = InputSpec((*shape[:-1], count, length), dtype, domain)
    return Case("overlap_add", name, (frames,), {"hop": hop, "size": size}, NORM)


def _sums() -> Iterator[Case]:
    for i, frames in enumerate(_FRAMES):
        yield _sum(*frames, f32, "normal", i % 3)
        yield _sum(*frames, f64, "normal", 0)
    for dtype in FLOATS:
        for number in (4, 6, 7, 8, 9, 10, 13):
            for domain in ("normal", "offset", "holes", "zeros"):
                yield _sum(*_FRAMES[number], dtype, domain, number % 2)
    for dtype in FLOATS:
        for shape in ((0, 4), (4, 0), (2, 0, 5)):
            name = f"{dtype}-{label(shape)}-nothing"
            yield Case("overlap_add", name, (InputSpec(shape, dtype),), {"hop": 3, "size": 7}, NORM)


@rule("frame")
def _framed(b: Builder) -> Made:
    x = b.ranked(1, is_float)
    n = x.shape[-1]
    if not n:
        return (x,)
    length = 1 + b.below(n)
    hop = 1 + b.below(length)
    if x.size // n * frame_count(n, length, hop) * length > MAX_ELEMENTS:
        return (x,)
    frames = frame(x, length, hop)
    return frames, overlap_add(frames, hop, size=n)


OPS = (
    Conformance("frame", (_frames,), (_framed,)),
    Conformance("overlap_add", (_sums,), (_framed,), terms=over_squares("overlap_add")),
)
