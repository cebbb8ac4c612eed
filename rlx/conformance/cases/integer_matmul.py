"""Conformance of products of 8-bit integers: signs, zero points for each row, lengths that are no whole words."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.f64_cases import none
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.tolerances import BITS
from rlx.dtypes import DType, i8, i32, u8

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

_SIZES = (
    (1, 19, 64),
    (2, 7, 3),
    (3, 33, 50),
    (5, 8, 17),
    (8, 1, 128),
    (16, 20, 31),
    (17, 40, 16),
    (33, 5, 100),
)


def _case(
    m: int,
    n: int,
    k: int,
    a: DType,
    b: DType,
    zeros: tuple[int, int] = (1, 1),
    domain: str = "any",
    drawn: str = "normal",
) -> Case:
    inputs = (
        InputSpec((m, k), a, domain), InputSpec((n, k), b, domain),
        InputSpec((zeros[0],), i32, drawn), InputSpec((zeros[1],), i32, drawn),
    )  # fmt: skip
    return Case(
        "integer_matmul", f"{a}-{b}-{m}x{n}x{k}-{zeros[0]}-{zeros[1]}-{domain}-{drawn}", inputs, {}, BITS
    )


def _cases() -> Iterator[Case]:
    for a, b in product((i8, u8), repeat=2):
        for i, (m, n, k) in enumerate(_SIZES):
            yield _case(m, n, k, a, b)
            yield _case(m, n, k, a, b, (m, n) if i % 2 else (1, n))
        yield _case(4, 6, 9, a, b, (4, 1), drawn="zeros")
        yield _case(2, 3, 5000, a, b, (1, 3))
        for m, n, k in ((0, 3, 4), (3, 0, 4), (2, 5, 0), (1, 1, 1), (70, 130, 40)):
            yield _case(m, n, k, a, b)
        yield _case(5, 6, 33, a, b, domain="zeros")
    yield _case(3, 4, 40, u8, i8, (1, 4), drawn="any")  # full-range 32-bit zero points: sums wrap


@rule("integer_matmul")
def _random(b: Builder) -> Made:
    k = 1 + b.below(40)
    left, right = (
        b.leaf((1 + b.below(5), k), b.choose((i8, u8))),
        b.leaf((1 + b.below(6), k), b.choose((i8, u8))),
    )
    return (ops.integer_matmul(left, right, b.below(200) - 100, b.leaf((right.shape[0],), i32)),)


OPS = (Conformance("integer_matmul", (_cases,), (_random,), in_f64=none),)
