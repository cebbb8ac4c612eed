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
_MANY = 8  # units of 16 bytes that a thread holds of x at most
_STEP_BYTES = 16 * 256  # each thread's unit
# Bytes of shared memory for rows of B. Where they are filled more than twice, a multiprocessor has room for two
# workgroups and no third: on an H200, 16384 rows of 4 KB take 15.5 µs then, and 21 where some hold three. Elsewhere
# there is room for a workgroup of the next kernel.
_RING, _FEW = 96 << 10, 64 << 10
_OTHER_SHARED_BYTES = 16 << 10  # a workgroup's other shared memory, and what the device keeps
_RESIDENT = 2


@dataclass(frozen=True, slots=True)
class Line:
    """The kernel for one row of A and a transposed B: `lanes` threads, a team, share a row of B, and a thread has
    `many` units of it. `depth` rows of each team are on their way at once. There are `resident` workgroups for each
    multiprocessor, or where it is 0 as many as load all of their rows at once."""

    algorithm: ClassVar[Literal["line"]] = "line"
    cost: Cost
    stored: tuple[DType, DType]
    lanes: int
    many: int
    depth: int
    resident: int

    def each(self, target: Target, n: int, sides: int) -> int:
        """The elements of C of a workgroup, where B has n rows and an element takes `sides` of them."""
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
    """The same, with the sizes that are given."""
    units = math.ceil(p.k * stored[1].itemsize / 16)
    if lanes is None:
        lanes = next((n for n in (32, 64, 128) if units <= 4 * n), 256)
    many = math.ceil(units / lanes)
    if many > _MANY:
        return None
    # Before sm_80, where there are no matrices of bf16 either, copies into shared memory wait for what they copy.
    first = bf16 in target.matrices.types and not target.software
    kernel = Line((-5 if first else 9,), stored, lanes, many, 1, _RESIDENT if resident is None else resident)
    if depth is None:
        few = kernel.each(target, p.n, 1) <= 2 * (_FEW // (many * _STEP_BYTES)) * (256 // lanes)
        ring = min(_FEW if few else _RING, target.shared_bytes // _RESIDENT - _OTHER_SHARED_BYTES)
        depth = max(1, ring // (many * _STEP_BYTES))
    return replace(kernel, depth=depth)
