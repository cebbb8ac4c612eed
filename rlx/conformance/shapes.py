"""Shapes and dtypes that the cases of several families use, chosen where kernels are likely to fail."""

from __future__ import annotations

from rlx.dtypes import DType, bf16, bool_, f16, f32, i8, i32, i64, u8

# Rank 0, empty, one element, primes, sizes around tiles of 32, 64 and 128, several axes, and one more than a workgroup.
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

# Pairs of shapes that broadcast: scalars, rows, columns, either or both inputs repeated, empty, of higher rank.
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
# (shape, axis): lines contiguous in memory, strided lines, lines longer than one workgroup handles, and no lines.
LINES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1,), 0), ((7,), 0), ((1, 1), 1), ((3, 1), 1), ((5, 31), 1), ((5, 33), 1), ((3, 128), 1), ((3, 129), 1),
    ((2, 1023), 1), ((2, 1024), 1), ((2, 1025), 1), ((67, 3), 1), ((33, 65), 0), ((3, 5, 7), 1), ((2, 3, 4, 5), 2),
    ((129, 2), 0), ((5, 0), 1), ((2, 0, 7), 0), ((300, 40), 0),
)  # fmt: skip
# Rows for gradients. None has two elements: layer norm of two is ±1 whatever they are, so the gradient cancels to 0.
GRADIENT_ROWS: tuple[tuple[int, ...], ...] = (
    (7,), (3, 1), (5, 31), (5, 32), (5, 33), (3, 128), (3, 129), (2, 3, 96), (65, 64), (600, 5), (1100, 36), (2, 1537),
    (1, 8193), (2, 8196), (0, 5), (2, 0, 7), (2, 3, 4, 5), (257, 3), (1, 33), (64, 4), (70, 33),
)  # fmt: skip
ROWS: tuple[tuple[int, ...], ...] = (
    (1,), (7,), (1, 1), (3, 1), (1, 129), (5, 31), (5, 32), (5, 33), (3, 127), (3, 128), (3, 129), (2, 3, 384),
    (65, 64), (2, 1024), (3, 1537), (2, 4099), (0, 5), (2, 0, 7), (2, 3, 4, 5), (257, 3),
)  # fmt: skip
# A shape, the number of indices along an axis, and the axis.
INDEXED: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((1,), 1, 0), ((7,), 3, 0), ((7,), 0, 0), ((5,), 33, 0), ((3, 1), 4, 1), ((33, 65), 7, 0), ((33, 65), 129, 1),
    ((3, 5, 7), 4, 1), ((3, 5, 7), 9, 0), ((2, 3, 4, 5), 6, 2), ((127, 3), 128, 0), ((1, 9, 16), 5, 1),
    ((0, 4), 3, 1), ((4, 0), 3, 0),
)  # fmt: skip


def label(shape: tuple[int, ...]) -> str:
    """A shape as text for a case's name: 3x5x7, scalar."""
    return "x".join(map(str, shape)) or "scalar"


def reach(index: DType, domain: str, n: int) -> str:
    return f"{domain}:{n}" if domain in ("index", "wild") else domain
