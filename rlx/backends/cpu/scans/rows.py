"""What the recurrences share: rows of states in vectors that are padded with zeros, sums of many rows at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.cpu import formulas
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import Kernel, Type, Value
from rlx.backends.cpu.machine import Machine
from rlx.backends.cpu.rowwise import LOADED, exp_of_difference, load_wide, name_of, sums_of_rows

MAX_VECTORS = 32  # loops over a row's vectors are unrolled


def held(kind: str) -> str:
    """The dtype in which a recurrence of this dtype is computed."""
    return "f64" if kind == "f64" else "f32"


def lanes_of(kind: str, machine: Machine) -> int:
    return machine.lanes(64 if kind == "f64" else 32)


def fits(arrays: Sequence[Array], row: int, kind: str, machine: Machine) -> bool:
    """Whether there are kernels for these arrays, and for states in rows of `row` elements."""
    plain = all(a.flags.c_contiguous and name_of(a) in LOADED for a in arrays)
    return plain and -(-row // lanes_of(kind, machine)) <= MAX_VECTORS


def exp(k: Kernel, v: Value) -> Value:
    """exp(v). In f32, where no lane's result is infinite or subnormal, its power of two is one factor, which takes
    fewer instructions and gives the same bits; the general function stands in a branch."""
    if v.type.scalar == "double":
        return formulas.apply(k, "p_exp_d", v)
    result = k.variable(exp_of_difference(k, v, near=True))
    with k.when(k.any(~k.cmp("olt", k.unary("fabs", v), 87.0))):
        result.value = formulas.apply(k, "p_exp_f", v)
    return result.value


def softplus(k: Kernel, v: Value) -> Value:
    """log(1 + exp v), without overflow."""
    rest = formulas.apply(
        k, "p_log1p_d" if v.type.scalar == "double" else "p_log1p_f", exp(k, -k.unary("fabs", v))
    )
    return k.max(v, 0.0) + rest


def silu(k: Kernel, v: Value) -> Value:
    return v / (exp(k, -v) + 1.0)


class Row:
    """A row of `size` elements in vectors; lanes beyond it hold zeros."""

    def __init__(self, k: Kernel, size: int, lanes: int) -> None:
        self.k, self.size, self.lanes = k, size, lanes
        self.count = -(-size // lanes)
        self.padded = self.count * lanes

    def mask(self, i: int) -> Value | None:
        """The lanes of vector i that lie in the row; None for all."""
        left = self.size - i * self.lanes
        return None if left >= self.lanes else self.k.tail(left, self.lanes)

    def load(self, base: Value, kind: str, at: Value | int) -> list[Value]:
        """The row that begins at element `at`."""
        return [load_wide(self.k, base, kind, at + i * self.lanes, self.lanes, self.mask(i)) for i in range(self.count)]

    def store(self, row: Sequence[Value], base: Value, at: Value | int) -> None:
        """Writes the row in the dtype that it is computed in."""
        for i, v in enumerate(row):
            self.k.store(v, self.k.at(base, at + i * self.lanes, v.type), self.mask(i))

    def inside(self, row: Sequence[Value]) -> list[Value]:
        """The row with zeros again in the lanes beyond it, where zeros times infinity gave NaN."""
        masks = (self.mask(i) for i in range(self.count))
        return [v if m is None else self.k.select(m, v, 0.0) for v, m in zip(row, masks, strict=True)]

    def padded_load(self, base: Value, kind: Type, at: Value | int) -> list[Value]:
        """A row that lies in memory with its padding."""
        return [
            self.k.load(kind.of(self.lanes), self.k.at(base, at + i * self.lanes, kind)) for i in range(self.count)
        ]

    def padded_store(self, row: Sequence[Value], base: Value, at: Value | int) -> None:
        for i, v in enumerate(row):
            self.k.store(v, self.k.at(base, at + i * self.lanes, v.type))

    def products(self, a: Sequence[Value], b: Sequence[Value]) -> Value:
        """The sum over vectors of a · b, lane by lane."""
        k = self.k
        total = a[0] * b[0]
        for x, y in zip(a[1:], b[1:], strict=True):
            total = k.fma(x, y, total)
        return total


class Sums:
    """Vectors on the stack, in `count` sets of as many vectors as lanes: they are stored one by one, and `total` adds
    up the lanes of all vectors of a set at once."""

    def __init__(self, k: Kernel, kind: Type, lanes: int, count: int = 1) -> None:
        self.k, self.kind, self.lanes = k, kind, lanes
        self.memory = k.reserve(kind.size * lanes * lanes * count)

    def put(self, v: Value, row: Value, slot: Value | int = 0) -> None:
        """Sets row `row` of set `slot`."""
        k = self.k
        at = (slot if isinstance(slot, Value) else k.const(row.type, slot)) * self.lanes + row
        k.store(v, k.at(self.memory, at * self.lanes, self.kind))

    def total(self, slot: Value | int = 0) -> Value:
        """The sum of each row of a set, row i's in lane i."""
        k, first = self.k, slot * (self.lanes * self.lanes)
        rows = [
            k.load(self.kind.of(self.lanes), k.at(self.memory, first + i * self.lanes, self.kind))
            for i in range(self.lanes)
        ]
        return sums_of_rows(k, rows)


def spread(k: Kernel, base: Value, at: Value | int, kind: Type, lanes: int) -> Value:
    """One number, in all lanes."""
    return k.splat(k.load(kind, k.at(base, at, kind)), lanes)


def each(k: Kernel, count: Value, width: int, body: Callable[[Value, Value], None]) -> None:
    """Calls body(first, n) for each run of up to `width` of `count` items: its first index and its length."""
    with k.loop(0, count, width) as start:
        body(start, k.min(count - start, width))
