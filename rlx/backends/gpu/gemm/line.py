"""The sizes of the kernel for one row whose rows of weights go through shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from rlx.backends.gpu.gemm.product import Product
from rlx.backends.gpu.program.candidates import Cost
from rlx.backends.gpu.program.target import Target
from rlx.dtypes import DType, bf16

_MAX_ROWS = 256  # rows of B for a workgroup: MOST in bodies/matmul_line.h
_MANY = 8  # the most units of 16 bytes of x that a thread holds
_STEP_BYTES = 16 * 256  # one unit of 16 bytes for each thread
# Bytes of shared memory for rows of B. The larger size, used when rows fill it more than twice, lets a multiprocessor
# hold two workgroups and no third: 16384 rows of 4 KB then take 15.5 µs on an H200, and 21 if some multiprocessors hold
# three. The smaller one leaves room for a workgroup of the next kernel.
_RING, _FEW = 96 << 10, 64 << 10
_OTHER_SHARED_BYTES = 16 << 10  # a workgroup's other shared memory, and what the device keeps
_RESIDENT = 2


@dataclass(frozen=True, slots=True)
class Line:
    """The kernel for one row of A and a transposed B: a team of `lanes` threads shares a row of B, of which a thread
    takes `many` units of 16 bytes. Each team has `depth` rows in flight. The grid has `resident` workgroups per
    multiprocessor; if that is 0, enough workgroups for each to load all of its rows at once."""

    algorithm: ClassVar[Literal["line"]] = "line"
    cost: Cost
    stored: tuple[DType, DType]
    lanes: int
    many: int
    depth: int
    resident: int

    def each(self, target: Target, n: int, sides: int) -> int:
        """The elements of C per workgroup, for a B of n rows and `sides` rows per element."""
        outputs, most = n // sides, _MAX_ROWS // sides
        if self.resident == 0:
            return min(most, max(1, self.depth * (256 // self.lanes) // sides))
        groups = target.units * self.resident
        return math.ceil(outputs / (groups * math.ceil(outputs / (groups * most))))


def line(target: Target, p: Product, stored: tuple[DType, DType]) -> Line | None:
    """The kernel's sizes, as measured on an H200; None where a row is too long for it."""
    return sized(target, p, stored, None, None, None)


def sized(
    target: Target, p: Product, stored: tuple[DType, DType], lanes: int | None, depth: int | None, resident: int | None
) -> Line | None:
    """As `line`, with the sizes that are not None."""
    units = math.ceil(p.k * stored[1].itemsize / 16)
    if lanes is None:
        lanes = next((n for n in (32, 64, 128) if units <= 4 * n), 256)
    many = math.ceil(units / lanes)
    if many > _MANY:
        return None
    # Before sm_80, which also lacks bf16 matrices, there are no asynchronous copies into shared memory.
    first = bf16 in target.matrices.types and not target.software
    kernel = Line((-5 if first else 9,), stored, lanes, many, 1, _RESIDENT if resident is None else resident)
    if depth is None:
        few = kernel.each(target, p.n, 1) <= 2 * (_FEW // (many * _STEP_BYTES)) * (256 // lanes)
        ring = min(_FEW if few else _RING, target.shared_bytes // _RESIDENT - _OTHER_SHARED_BYTES)
        depth = max(1, ring // (many * _STEP_BYTES))
    return replace(kernel, depth=depth)
