"""Conformance of ops that move data: every byte must arrive."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import MAX_ELEMENTS, Made, is_number, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import ALL, SHAPES, label
from rlx.conformance.tolerances import BITS
from rlx.dtypes import DType, bf16, f16, f32, i64, u8

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]


def _reshape() -> Iterator[Case]:
    def case(a: Shape, b: Shape, dtype: DType) -> Case:
        name = f"{dtype}-{label(a)}-to-{label(b)}"
        return Case("reshape", name, (InputSpec(a, dtype, "any"),), {"shape": b}, BITS)

    for shape in SHAPES:
        yield case(shape, (1, math.prod(shape)), f32)
    for a, b in (
        ((2, 3, 4), (4, 6)),
        ((24,), (2, 3, 4)),
        ((1,), ()),
        ((6, 0), (0, 5)),
        ((2, 3), (3, 1, 2, 1)),
    ):
        yield case(a, b, f32)
    for dtype in ALL:
        yield case((33, 5), (5, 33), dtype)


def _transpose() -> Iterator[Case]:
    def case(shape: Shape, perm: tuple[int, ...], dtype: DType) -> Case:
        name = f"{dtype}-{label(shape)}-by-{label(perm)}"
        return Case("transpose", name, (InputSpec(shape, dtype, "any"),), {"perm": perm}, BITS)

    for perm in itertools.permutations(range(3)):
        yield case((3, 5, 7), perm, f32)
    for shape in (
        (1, 1),
        (0, 3),
        (31, 33),
        (32, 32),
        (33, 31),
        (64, 64),
        (65, 129),
        (128, 1),
        (1, 128),
        (127, 129),
    ):
        yield case(shape, (1, 0), f32)
    for dtype in (f32, f16, bf16):
        yield case((136, 200), (1, 0), dtype)
        yield case((3, 56, 72), (0, 2, 1), dtype)
    for perm in ((0, 2, 1, 3), (3, 2, 1, 0), (0, 1, 3, 2), (2, 3, 0, 1), (1, 0, 2, 3)):
        yield case((2, 3, 4, 5), perm, f32)
    yield case((), (), f32)
    yield case((7,), (0,), f32)
    yield case((2, 3, 1, 4, 5), (4, 0, 3, 1, 2), f32)
    yield case((2, 1, 3, 2, 2, 3), (5, 3, 1, 0, 2, 4), f32)
    for dtype in ALL:
        yield case((33, 65), (1, 0), dtype)
        yield case((4, 3, 5), (1, 2, 0), dtype)
    for dtype in (f16, bf16):  # even sizes, which kernels move in pairs of elements
        yield case((66, 98), (1, 0), dtype)
        yield case((3, 34, 20), (0, 2, 1), dtype)


def _expand() -> Iterator[Case]:
    def case(a: Shape, b: Shape, dtype: DType) -> Case:
        name = f"{dtype}-{label(a)}-to-{label(b)}"
        return Case("expand", name, (InputSpec(a, dtype, "any"),), {"shape": b}, BITS)

    for a, b in (
        ((), ()), ((), (5,)), ((), (0,)), ((), (33, 65)), ((1,), (129,)), ((3,), (3,)), ((3,), (4, 3)),
        ((4, 1), (4, 33)), ((1, 3), (65, 3)), ((1, 1), (31, 32)), ((4, 1, 3), (4, 5, 3)), ((1, 5, 1), (3, 5, 7)),
        ((5, 1), (2, 5, 4)),
        ((1, 0), (3, 0)), ((0, 1), (0, 4)), ((1,), (0,)), ((2, 1, 4, 1), (2, 3, 4, 5)), ((7, 1, 1), (2, 7, 3, 1)),
    ):  # fmt: skip
        yield case(a, b, f32)
    for dtype in ALL:
        yield case((7, 1), (7, 33), dtype)
        yield case((9,), (5, 9), dtype)


def _slice() -> Iterator[Case]:
    def case(shape: Shape, parts: list[tuple[int, int, int]], dtype: DType) -> Case:
        starts, stops, steps = (tuple(p[i] for p in parts) for i in range(3))
        text = "_".join(f"{a}:{b}:{c}" for a, b, c in parts)
        attrs = {"starts": starts, "stops": stops, "steps": steps}
        return Case("slice", f"{dtype}-{label(shape)}-{text}", (InputSpec(shape, dtype, "any"),), attrs, BITS)

    whole = (0, 7, 1)
    for part in (
        whole, (0, 1, 1), (3, 3, 1), (2, 5, 1), (6, 7, 1), (0, 7, 2), (1, 7, 3), (0, 7, 7), (6, -1, -1), (5, 1, -2),
        (6, 0, -3), (0, -1, -1), (4, 4, 2), (2, 2, -1), (6, -1, -5),
    ):  # fmt: skip
        yield case((7,), [part], f32)
        yield case((5, 7), [(0, 5, 1), part], f32)
        yield case((7, 3), [part, (0, 3, 2)], f32)
    yield case((), [], f32)
    yield case((0, 4), [(0, 0, 1), (1, 3, 1)], f32)
    yield case((33, 65), [(1, 33, 1), (0, 65, 2)], f32)
    yield case((4, 5, 6), [(3, -1, -1), (1, 4, 2), (5, -1, -2)], f32)
    yield case((2, 3, 4, 5), [(1, 2, 1), (0, 3, 2), (3, -1, -1), (1, 5, 1)], f32)
    for dtype in ALL:
        yield case((9, 33), [(1, 8, 2), (32, -1, -3)], dtype)
        yield case((129,), [(1, 128, 1)], dtype)


def _concat() -> Iterator[Case]:
    def case(shapes: list[Shape], axis: int, dtype: DType) -> Case:
        name = f"{dtype}-{'-'.join(map(label, shapes))}-axis{axis}"
        return Case("concat", name, tuple(InputSpec(s, dtype, "any") for s in shapes), {"axis": axis}, BITS)

    joined: tuple[tuple[list[Shape], int], ...] = (
        ([(3,)], 0), ([(3,), (4,)], 0), ([(1,), (1,), (1,)], 0), ([(0,), (5,)], 0), ([(5,), (0,), (2,)], 0),
        ([(2, 3), (4, 3)], 0), ([(2, 3), (2, 5)], 1), ([(2, 0), (2, 3)], 1), ([(0, 3), (0, 2)], 1),
        ([(33, 31), (33, 34)], 1), ([(31, 65), (34, 65)], 0), ([(3, 5, 7), (3, 2, 7)], 1), ([(3, 5, 7), (3, 5, 1)], 2),
        ([(3, 5, 7), (1, 5, 7), (2, 5, 7)], 0), ([(2, 3, 4, 5), (2, 3, 1, 5)], 2), ([(128,), (1,), (127,)], 0),
    )  # fmt: skip
    for shapes, axis in joined:
        yield case(shapes, axis, f32)
    yield case([(i % 5, 3) for i in range(20)], 0, f32)
    for dtype in ALL:
        yield case([(7, 5), (7, 3), (7, 9)], 1, dtype)
    for dtype in (u8, bf16, i64):  # odd sizes, whose parts begin at unaligned offsets
        yield case([(1,), (3,), (5,), (2,)], 0, dtype)
        yield case([(3, 1021), (3, 7)], 1, dtype)


@rule("reshape")
def _reshaped(b: Builder) -> Made:
    x = b.any()
    dims = [d for d in (*x.shape, 1) if b.chance(0.8) or d != 1]
    for _ in range(b.below(3)):
        if len(dims) > 1:
            k = b.below(len(dims) - 1)
            dims[k : k + 2] = [dims[k] * dims[k + 1]]
    b.rng.shuffle(dims)
    return (ops.reshape(x, tuple(int(d) for d in dims)),)


@rule("transpose")
def _transposed(b: Builder) -> Made:
    x = b.any()
    return (ops.transpose(x, [int(p) for p in b.rng.permutation(x.ndim)]),)


@rule("expand")
def _expanded(b: Builder) -> Made:
    x = b.any()
    dims = [b.choose((1, 2, 5)) if d == 1 else d for d in x.shape]
    if b.chance(0.4):
        dims = [b.choose((1, 3)), *dims]
    return (ops.expand(x, tuple(dims)),) if math.prod(dims) <= MAX_ELEMENTS else (x,)


@rule("slice")
def _sliced(b: Builder) -> Made:
    x = b.any()
    key = []
    for n in x.shape:
        kind = b.choose(("all", "all", "head", "tail", "odd", "back", "one"))
        cut = b.below(n + 1)
        parts = {
            "head": slice(cut),
            "tail": slice(cut, None),
            "odd": slice(b.below(2), None, 2),
            "back": slice(None, None, -1),
        }
        key.append(b.below(n) if kind == "one" and n else parts.get(kind, slice(None)))
    return (x[tuple(key)],)


@rule("rows")
def _rows(b: Builder) -> Made:
    x = b.ranked(1)
    cut = b.below(x.shape[0] + 1)
    return x[:cut], x[cut:]


@rule("own_row")
def _own_row(b: Builder) -> Made:
    """An op on x and a view of x, which must not overwrite x in place while the view is still read."""
    x = ops.abs(b.ranked(1, is_number))
    return (ops.sub(x, x[: 1 if b.chance(0.7) else x.shape[0]]),)


@rule("concat")
def _concatenated(b: Builder) -> Made:
    x = b.ranked(1)
    axis = b.below(x.ndim)
    beside = [
        t
        for t in b.pool
        if t.ndim == x.ndim
        and all(p == q or i == axis for i, (p, q) in enumerate(zip(t.shape, x.shape, strict=True)))
    ]
    return (ops.concat([b.choose(beside) if beside else x for _ in range(1 + b.below(3))], axis),)


@rule("repeated")
def _repeated(b: Builder) -> Made:
    """Repeated elements, or a repeated tensor, which a fusion group reads without storing the repetition."""
    x = b.ranked(1, lambda t: t.dtype.is_float and t.size <= MAX_ELEMENTS // 8)
    axis = b.below(x.ndim)
    times = 2 + b.below(2)
    counts = tuple(times if i == axis else 1 for i in range(x.ndim))
    many = ops.repeat(x, times, axis) if b.chance(0.6) else ops.tile(x, counts)
    return (ops.add(ops.tanh(many), b.leaf(many.shape, x.dtype)),)


@rule("rearranged")
def _rearranged(b: Builder) -> Made:
    x = b.ranked(2)
    kind = b.choose(("flip", "roll", "tril", "diagonal"))
    if kind == "flip":
        return (ops.flip(x, b.below(x.ndim)),)
    if kind == "roll":
        return (ops.roll(x, b.below(7) - 3, b.below(x.ndim)),)
    return (ops.tril(x, b.below(3) - 1) if kind == "tril" else ops.diagonal(x, b.below(3) - 1),)


OPS = (
    Conformance("reshape", (_reshape,), (_reshaped,)),
    Conformance("transpose", (_transpose,), (_transposed, _rearranged)),
    Conformance("expand", (_expand,), (_expanded, _repeated)),
    Conformance("slice", (_slice,), (_sliced, _rows, _own_row, _rearranged)),
    Conformance("concat", (_concat,), (_concatenated, _rearranged)),
)
