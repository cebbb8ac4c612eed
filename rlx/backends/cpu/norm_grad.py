"""layer_norm_grad and rms_norm_grad: numbers of each row, sums of columns, then dx, which may lie over an input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import I64, Arguments, Kernel, Type, Value, floats, pointers, sizes
from rlx.backends.cpu.rowwise import (
    accumulators,
    added,
    alike,
    blocks,
    computed,
    contiguous,
    grain_of,
    kept,
    load_wide,
    name_of,
    store_wide,
)
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.ir import Node

_STATS = 8  # numbers of a row: its mean in two parts, 1 / deviation, the means of dy · y and of dy
_PART = 512  # rows whose terms are added up by one sum


@engine("layer_norm_grad", "rms_norm_grad")
def bind_norm_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    d, x, gamma = ins
    kinds = tuple(name_of(a) for a in (*ins, *outs))
    if not alike(kinds) or not contiguous(*ins, *outs) or x.size == 0:
        return None
    if any(np.may_share_memory(a, o) for a in ins for o in outs[1:]):
        return None
    kind = computed(*kinds)
    n, lanes, centre = x.shape[-1], ctx.machine.lanes(kind.bits), bool(node.op.centres)
    rows = x.size // n
    stats = ctx.borrow(kind.size * _STATS * rows)
    few = -(-n // 16)
    words = _args(kind)(
        d=d, x=x, gamma=gamma, stats=stats, dx=outs[0], n=n, rows=rows, eps=node.attrs["eps"], of_n=1 / n, few=few,
        of_few=1 / few, dgamma=outs[1], dbeta=outs[2] if len(outs) > 2 else None,
    )  # fmt: skip
    keep = (*ins, *outs, stats)
    made = kinds[4:]
    return [
        EngineStep(RowStats(kinds[:3], centre, lanes), words, rows, grain_of(n), keep, cost_ns=n * 0.5),
        EngineStep(
            WeightSums(kinds[:2], made, centre, lanes), words, -(-n // lanes), 1, keep, cost_ns=rows * 3.0
        ),
        EngineStep(InputGradient(kinds[:4], centre, lanes), words, rows, grain_of(n), keep, cost_ns=n * 0.3),
    ]


_GIVEN, _OF_WEIGHTS = ("d", "x", "gamma"), ("dgamma", "dbeta")


def _args(kind: Type) -> Arguments:
    """Those of the three kernels: `stats` are the numbers of rows, `few` the elements of a row's first sixteenth."""
    return (
        pointers(*_GIVEN, "stats", "dx") + sizes("n", "rows") + floats("eps", "of_n", type=kind) + sizes("few")
        + floats("of_few", type=kind) + pointers(*_OF_WEIGHTS)
    )  # fmt: skip


class _Row:
    """What the three kernels read."""

    def __init__(self, k: Kernel, kinds: Sequence[str], centre: bool, lanes: int) -> None:
        self.k, self.kinds, self.centre, self.lanes = k, kinds, centre, lanes
        self.kind = computed(*kinds)
        self.n = k.arg("n")

    def stats(self, row: Value) -> Value:
        return self.k.at(self.k.arg("stats"), row * _STATS, self.kind)

    def given(self, which: int, row: Value, i: Value | int, mask: Value | None) -> Value:
        start = row * self.n if which < 2 else self.k.const(I64, 0)
        return load_wide(self.k, self.k.arg(_GIVEN[which]), self.kinds[which], start + i, self.lanes, mask)

    def number(self, stats: Value, which: int) -> Value:
        return self.k.splat(self.k.load(self.kind, self.k.at(stats, which, self.kind)), self.lanes)

    def normalized(self, v: Value, stats: Sequence[Value]) -> Value:
        for shift in stats[:2] if self.centre else ():
            v = v - shift
        return v * stats[2]


@dataclass(frozen=True, slots=True)
class RowStats:
    """The numbers of each row."""

    kinds: tuple[str, ...]
    centre: bool
    lanes: int

    @property
    def args(self) -> Arguments:
        return _args(computed(*self.kinds))

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        r = _Row(k, self.kinds, self.centre, lanes)
        eps, of_n, few, of_few = k.args("eps", "of_n", "few", "of_few")
        zero = k.const(r.kind, 0.0)

        def total(count: Value, term: Callable[[Value, Value | None, Value], Value]) -> Value:
            """The sum of a term, which is added to what its last argument holds."""
            sums = accumulators(k, lanes, type=r.kind)

            def add(i: Value, u: int, mask: Value | None) -> None:
                sums[u].value = term(i, mask, sums[u].value)

            return added(k, count, lanes, sums, add)

        with k.loop(k.first, k.last) as row:
            shifts: list[Value] = []

            def centred(
                i: Value, mask: Value | None, row: Value = row, shifts: list[Value] = shifts
            ) -> Value:
                v = r.given(1, row, i, mask)
                for shift in shifts:
                    v = v - k.splat(shift, lanes)
                return kept(k, v, mask)

            def dy(i: Value, mask: Value | None, row: Value = row) -> Value:
                return kept(k, r.given(0, row, i, mask) * r.given(2, row, i, mask), mask)

            of_dy = zero
            if self.centre:  # the mean is two numbers, as in `rlx.ops.numeric.centred`
                first = k.extract(r.given(1, row, 0, k.tail(1, lanes)), 0)
                shifts.append(first)
                shifts[:] = [first + total(few, lambda i, mask, held: held + centred(i, mask)) * of_few]
                shifts.append(total(r.n, lambda i, mask, held: held + centred(i, mask)) * of_n)
                of_dy = total(r.n, lambda i, mask, held: held + dy(i, mask)) * of_n
            squares = total(r.n, lambda i, mask, held: k.fma(centred(i, mask), centred(i, mask), held))
            inverse = 1.0 / k.unary("sqrt", squares * of_n + eps)
            products = total(r.n, lambda i, mask, held: k.fma(dy(i, mask), centred(i, mask), held))
            numbers = [*(shifts or [zero, zero]), inverse, products * inverse * of_n, of_dy]
            for i, v in enumerate(numbers):
                k.store(v, k.at(r.stats(row), i, r.kind))
        return k.text()


@dataclass(frozen=True, slots=True)
class WeightSums:
    """dgamma, and dbeta where there is one: an item is a vector of columns."""

    kinds: tuple[str, ...]
    made: tuple[str, ...]
    centre: bool
    lanes: int

    @property
    def args(self) -> Arguments:
        return _args(computed(*self.kinds))

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        r = _Row(k, self.kinds, self.centre, lanes)
        rows, zero = k.arg("rows"), k.const(r.kind.of(lanes), 0.0)
        with k.loop(k.first, k.last) as item:
            column = item * lanes
            mask = k.tail(k.min(r.n - column, lanes), lanes)
            totals = [k.variable(zero) for _ in self.made]
            with k.loop(0, rows, _PART) as start:
                parts = [k.variable(zero) for _ in self.made]
                with k.loop(start, k.min(start + _PART, rows)) as row:
                    at = r.stats(row)
                    stats = [r.number(at, i) for i in range(3)]
                    d = r.given(0, row, column, mask)
                    parts[0].value = k.fma(
                        d, r.normalized(r.given(1, row, column, mask), stats), parts[0].value
                    )
                    for part in parts[1:]:
                        part.value = part.value + d
                for whole, part in zip(totals, parts, strict=True):
                    whole.value = whole.value + part.value
            for name, whole, kind in zip(_OF_WEIGHTS, totals, self.made, strict=False):
                store_wide(k, whole.value, k.arg(name), kind, column, mask)
        return k.text()


@dataclass(frozen=True, slots=True)
class InputGradient:
    """dx = (dy - y · mean(dy · y) - mean(dy)) / deviation, row by row."""

    kinds: tuple[str, ...]
    centre: bool
    lanes: int

    @property
    def args(self) -> Arguments:
        return _args(computed(*self.kinds))

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        r = _Row(k, self.kinds, self.centre, lanes)
        with k.loop(k.first, k.last) as row:
            at = r.stats(row)
            stats = [r.number(at, i) for i in range(5)]

            def write(
                i: Value, u: int, mask: Value | None, row: Value = row, stats: list[Value] = stats
            ) -> None:
                dy = r.given(0, row, i, mask) * r.given(2, row, i, mask)
                made = dy - r.normalized(r.given(1, row, i, mask), stats) * stats[3]
                made = made - stats[4] if self.centre else made
                store_wide(k, made * stats[2], k.arg("dx"), self.kinds[3], row * r.n + i, mask)

            blocks(k, r.n, lanes, write)
        return k.text()
