"""Depthwise convolution of channels-last images: each position's window is read through a table of addresses."""

from __future__ import annotations

from collections.abc import Iterable

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.gemm.kernel import Operand
from rlx.backends.cpu.ir import F32, I64, PTR, Arguments, Kernel, Value, pointers, sizes
from rlx.dtypes import DType, f32
from rlx.ir import Expr
from rlx.records import Record

# `table`: an address for each position and tap. Steps are in bytes; an item is `block` positions of a group of
# channels.
ARGS = pointers("table", "w", "out") + sizes("positions", "channels", "out_row", "w_row", "block")


def operand_names(count: int) -> tuple[str, ...]:
    """The names of the arguments for an epilogue's operands."""
    return tuple(f"operand{i}" for i in range(count))


def named_operands(arrays: Iterable[Array]) -> dict[str, Array]:
    """An epilogue's operands under the names of their arguments."""
    return {f"operand{i}": a for i, a in enumerate(arrays)}


class DepthwiseKernel(Record):
    """Sums over `taps` for `vectors` · `lanes` channels at once; `w` has the weights (taps, channels)."""

    lanes: int
    vectors: int
    taps: int
    masked: bool
    registers: int = 32
    operands: tuple[Operand, ...] = ()  # what the epilogue reads beside the sums
    epilogue: Expr | None = None
    out: DType = f32

    @property
    def args(self) -> Arguments:
        return ARGS + pointers(*operand_names(len(self.operands)))

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        vector, width = F32.of(lanes), self.lanes * self.vectors
        names = operand_names(len(self.operands))
        w = k.all_args(*names)
        groups = k.binary("udiv", w["channels"] + (width - 1), k.const(I64, width))
        held = self.taps * self.vectors <= self.registers * 7 // 8 - self.vectors - 1
        with k.loop(k.first, k.last) as item:
            block = k.binary("udiv", item, groups)
            channel = (item - block * groups) * width
            masks: list[Value | None] = [None] * self.vectors
            if self.masked:
                left = w["channels"] - channel
                counts = [k.min(k.max(left - n * lanes, 0), lanes) for n in range(self.vectors)]
                masks = [k.tail(c, lanes) for c in counts]
            weights = k.at(w["w"], channel, F32)

            def weight(tap: Value | int, n: int) -> Value:
                row = w["w_row"] * tap if isinstance(tap, int) else tap * w["w_row"]
                return k.load(vector, k.at(k.at(weights, row), n * lanes, F32), masks[n])

            factors = [[weight(t, n) for n in range(self.vectors)] for t in range(self.taps)] if held else []
            start = [k.const(vector, 0)] * self.vectors
            beside = []
            for name, operand in zip(names, self.operands, strict=True):
                size = operand.dtype.itemsize
                row = k.at(k.arg(name), channel * size)
                beside.append(
                    [
                        trees.load(k, operand.dtype, k.at(row, n * lanes * size), lanes, masks[n])
                        for n in range(self.vectors)
                    ]
                )
            first = block * w["block"]
            with k.loop(first, k.min(first + w["block"], w["positions"])) as position:
                table = k.at(w["table"], position * self.taps, I64)
                offset = channel * 4

                def pixel(tap: Value | int, n: int) -> Value:
                    at = k.at(k.load(PTR, k.at(table, tap, I64)), offset)
                    return k.load(vector, k.at(at, n * lanes, F32), masks[n])

                if held:
                    sums = list(start)
                    for t in range(self.taps):
                        sums = [k.fma(pixel(t, n), factors[t][n], s) for n, s in enumerate(sums)]
                else:
                    totals = [k.variable(s) for s in start]
                    with k.loop(0, self.taps) as tap:
                        for n, total in enumerate(totals):
                            total.value = k.fma(pixel(tap, n), weight(tap, n), total.value)
                    sums = [t.value for t in totals]
                size = self.out.itemsize
                out = k.at(w["out"], position * w["out_row"] + channel * size)
                for n, value in enumerate(sums):
                    if self.epilogue is not None:
                        (value,) = trees.print_trees(k, [self.epilogue], [value, *(b[n] for b in beside)])
                    trees.store(k, value, self.out, k.at(out, n * lanes * size), masks[n])
        return k.text()
