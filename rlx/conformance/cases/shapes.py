"""Shapes and dtypes that every family tries: where kernels go wrong."""

from __future__ import annotations

from rlx.dtypes import bf16, bool_, f16, f32, i8, i32, i64, u8

# Rank 0, empty, one element, primes, around the tiles of 32, 64 and 128, several axes, and one above a workgroup.
FLAT: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (1,),
    (7,),
    (31,),
    (32,),
    (33,),
    (64,),
    (127,),
    (128,),
    (129,),
    (1021,),
)
BLOCKS: tuple[tuple[int, ...], ...] = ((2, 0, 3), (1, 1, 1), (3, 5, 7), (65, 129), (2, 3, 4, 5))
SHAPES = FLAT + BLOCKS
FEW: tuple[tuple[int, ...], ...] = ((), (33,), (3, 5, 7))

HALVES = (f16, bf16)
FLOATS = (f32, f16, bf16)
INTS = (i32, i64, u8, i8)
NUMBERS = (*FLOATS, *INTS)
ALL = (*NUMBERS, bool_)

# Pairs that broadcast: scalars, rows, columns, both ways, empty, higher rank.
PAIRS = (
    ((), ()),
    ((5,), ()),
    ((), (4, 3)),
    ((4, 3), (3,)),
    ((4, 1), (1, 3)),
    ((1,), (33, 65)),
    ((33, 65), (33, 1)),
    ((2, 1, 4), (3, 1)),
    ((0, 3), (3,)),
    ((1, 0), (5, 1)),
    ((3, 5, 7), (3, 5, 7)),
    ((2, 3, 4, 5), (4, 1)),
    ((129,), (129,)),
    ((1, 1021), (2, 1)),
)


def label(shape: tuple[int, ...]) -> str:
    """A shape in a case's name: 3x5x7, scalar."""
    return "x".join(map(str, shape)) or "scalar"
