"""softmax along the last axis, a row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.engine.ir import F32, PTR, Kernel, Value
from rlx.backends.cpu.engine.rowwise import (
    STORED,
    accumulators,
    blocks,
    contiguous,
    exp_of_difference,
    folded,
    grain_of,
    greater,
    kept,
    load_wide,
    name_of,
    store_wide,
    total,
)
from rlx.backends.cpu.engine.step import EngineContext, EngineStep, address, engine
from rlx.ir import Node


@engine("softmax")
def bind_softmax(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, y = ins[0], outs[0]
    n, dtype = x.shape[-1] if x.ndim else 1, name_of(x)
    if dtype not in STORED or node.attrs["axis"] != x.ndim - 1 or not contiguous(x, y):
        return None
    spec = Softmax(dtype, ctx.machine.lanes())
    words = (address(x), address(y), n)
    return [EngineStep(spec, words, x.size // n, grain_of(n), cost_ns=n * 0.7)]


@dataclass(frozen=True, slots=True)
class Softmax:
    """Rows of a dtype. Words: x, y, elements of a row. An f32 result holds the exponentials between the two passes;
    exponentials of halves are computed twice, since they must not be rounded before they are summed."""

    dtype: str
    lanes: int

    def ir(self) -> str:
        k, dtype, lanes = Kernel("kernel"), self.dtype, self.lanes
        xs, ys, n = k.word(0, PTR), k.word(1, PTR), k.word(2)
        with k.loop(k.first, k.last) as row:
            x, y = (k.at(p, row * n, STORED[dtype]) for p in (xs, ys))
            tops = accumulators(k, lanes, float("-inf"))

            def top(i: Value, u: int, mask: Value | None, x: Value = x) -> None:
                v = load_wide(k, x, dtype, i, lanes, mask, float("-inf"))
                tops[u].value = greater(k, v, tops[u].value)

            # A NaN may be lost here; its own exponential is NaN again, and so is the sum.
            blocks(k, n, lanes, top)
            best = k.splat(folded(k, tops, lambda a, b: greater(k, a, b)), lanes)
            sums = accumulators(k, lanes)

            def exponential(i: Value, mask: Value | None, x: Value = x) -> Value:
                return exp_of_difference(k, load_wide(k, x, dtype, i, lanes, mask) - best)

            def add(i: Value, u: int, mask: Value | None, y: Value = y) -> None:
                e = exponential(i, mask)
                if dtype == "f32":
                    store_wide(k, e, y, dtype, i, mask)
                sums[u].value = sums[u].value + kept(k, e, mask)

            blocks(k, n, lanes, add)
            inverse = k.splat(k.const(F32, 1.0) / total(k, sums), lanes)

            def scale(i: Value, u: int, mask: Value | None, y: Value = y) -> None:
                e = load_wide(k, y, dtype, i, lanes, mask) if dtype == "f32" else exponential(i, mask)
                store_wide(k, e * inverse, y, dtype, i, mask)

            blocks(k, n, lanes, scale)
        return k.text()
