"""layer_norm, rms_norm and their forms with a residual, a row at a time."""

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
    grain_of,
    kept,
    load_wide,
    name_of,
    store_wide,
    total,
)
from rlx.backends.cpu.engine.step import EngineContext, EngineStep, address, engine, f32_word
from rlx.ir import Node


@engine("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
def bind_norm(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    residual = node.op.name.startswith("add_")
    operands, weights = ins[: 1 + residual], ins[1 + residual :]
    dtypes = [name_of(a) for a in (ins[0], *weights)]
    if not (set(dtypes) <= STORED.keys() and contiguous(*ins, *outs)):
        return None
    x, y, n = ins[0], outs[-1], ins[0].shape[-1]
    few = -(-n // 16)
    spec = Norm(
        dtypes[0], dtypes[1], dtypes[2] if len(weights) == 2 else None, node.op.centres, residual, len(outs) == 2,
        ctx.machine.lanes(),
    )  # fmt: skip
    places = [x, operands[-1], weights[0], weights[-1], outs[0], y]
    words = (
        *map(address, places), n, f32_word(node.attrs["eps"]), f32_word(1 / n), few, f32_word(1 / few),
    )  # fmt: skip
    return [EngineStep(spec, words, x.size // n, grain_of(n), cost_ns=n * 0.7)]


@dataclass(frozen=True, slots=True)
class Norm:
    """Rows of x, or of x + residual; `keep`: that sum is an output too. Words: x, residual, gamma, beta, sum, y,
    elements of a row, eps, 1 / elements, elements of the row's first sixteenth, its reciprocal.

    The sum is computed anew in every pass and stored in the last one, since an output may lie in either operand."""

    dtype: str
    gamma: str
    beta: str | None
    centre: bool
    residual: bool
    keep: bool
    lanes: int

    def ir(self) -> str:
        k, lanes = Kernel("kernel"), self.lanes
        given = [k.word(i, PTR) for i in range(6)]
        n, few = k.word(6), k.word(9)
        eps, of_n, of_few = k.word(7, F32), k.word(8, F32), k.word(10, F32)
        with k.loop(k.first, k.last) as row:
            x, residual, total_out, y = (k.at(given[p], row * n, STORED[self.dtype]) for p in (0, 1, 4, 5))

            def value(i: Value | int, mask: Value | None, x: Value = x, residual: Value = residual) -> Value:
                v = load_wide(k, x, self.dtype, i, lanes, mask)
                return v + load_wide(k, residual, self.dtype, i, lanes, mask) if self.residual else v

            def mean(count: Value, by: Value, shift: Value) -> Value:
                """The mean of the differences of the first `count` elements from `shift`."""
                sums = accumulators(k, lanes)

                def add(i: Value, u: int, mask: Value | None) -> None:
                    sums[u].value = sums[u].value + kept(k, value(i, mask) - shift, mask)

                blocks(k, count, lanes, add)
                return k.splat(total(k, sums) * by, lanes)

            # The mean is two numbers, as in `rlx.ops.numeric.centred`.
            shifts: list[Value] = []
            if self.centre:
                first = k.splat(k.extract(value(0, k.tail(k.const(n.type, 1), lanes)), 0), lanes)
                near = first + mean(few, of_few, first)
                shifts = [near, mean(n, of_n, near)]

            def centred(v: Value, shifts: list[Value] = shifts) -> Value:
                for shift in shifts:
                    v = v - shift
                return v

            squares = accumulators(k, lanes)

            def square(i: Value, u: int, mask: Value | None) -> None:
                c = kept(k, centred(value(i, mask)), mask)
                squares[u].value = k.fma(c, c, squares[u].value)

            blocks(k, n, lanes, square)
            root = k.unary("sqrt", total(k, squares) * of_n + eps)
            inverse = k.splat(k.const(F32, 1.0) / root, lanes)

            def write(
                i: Value, u: int, mask: Value | None, y: Value = y, total_out: Value = total_out
            ) -> None:
                v = value(i, mask)
                made = centred(v) * inverse * load_wide(k, given[2], self.gamma, i, lanes, mask)
                if self.beta is not None:
                    made = made + load_wide(k, given[3], self.beta, i, lanes, mask)
                if self.keep:
                    store_wide(k, v, total_out, self.dtype, i, mask)
                store_wide(k, made, y, self.dtype, i, mask)

            blocks(k, n, lanes, write, unroll=2)
        return k.text()
