"""Depthwise convolution of several neighbouring positions at once: a pixel that their windows share is loaded once."""

from __future__ import annotations

from rlx.backends.cpu import trees
from rlx.backends.cpu.conv.depthwise import operand_names
from rlx.backends.cpu.gemm.kernel import Operand
from rlx.backends.cpu.ir import F32, I64, PTR, Arguments, Kernel, Type, Value, pointers, sizes
from rlx.backends.cpu.machine import Machine
from rlx.dtypes import DType, f32
from rlx.ir import Expr
from rlx.records import Record

# `table`: for each row of the result and each row of the filter, the addresses of the `span` pixels that the row of the
# result reads. The first `whole` positions of a row are computed `across` at a time. Steps are in bytes.
_ARGS = pointers("table", "w", "out") + sizes("span", "whole", "width", "channels", "out_row", "w_row")


class DepthwiseRows(Record):
    """Sums over `rows` · `columns` taps for `vectors` · `lanes` channels; `w` has the weights (rows, columns, C).
    An item is a row of the result for a group of channels. Sums are in the order of the taps."""

    lanes: int
    vectors: int
    rows: int
    columns: int
    stride: int
    dilation: int
    across: int
    tail: int  # positions after the whole groups of a row
    masked: bool
    operands: tuple[Operand, ...] = ()  # what the epilogue reads beside the sums
    epilogue: Expr | None = None
    out: DType = f32
    element: Type = F32  # the type of images and weights

    @property
    def args(self) -> Arguments:
        return _ARGS + pointers(*operand_names(len(self.operands)))

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        width = lanes * self.vectors
        names = operand_names(len(self.operands))
        w = k.all_args(*names)
        groups = k.binary("udiv", w["channels"] + (width - 1), k.const(I64, width))
        with k.loop(k.first, k.last) as item:
            row = k.binary("udiv", item, groups)
            channel = (item - row * groups) * width
            masks: list[Value | None] = [None] * self.vectors
            if self.masked:
                left = w["channels"] - channel
                counts = [k.min(k.max(left - n * lanes, 0), lanes) for n in range(self.vectors)]
                masks = [k.tail(c, lanes) for c in counts]
            beside = [
                [self._operand(k, name, operand, channel, n, masks[n]) for n in range(self.vectors)]
                for name, operand in zip(names, self.operands, strict=True)
            ]
            table = k.at(w["table"], row * (w["span"] * self.rows), I64)
            out = k.at(w["out"], row * w["width"] * w["out_row"] + channel * self.out.itemsize)
            weights = k.at(w["w"], channel, self.element)

            def positions(first: Value, count: int) -> None:
                sums = self._sums(k, w, k.at(table, first * self.stride, I64), weights, channel, masks, count)
                for j, line in enumerate(sums):
                    place = k.at(out, (first + j) * w["out_row"])
                    for n, total in enumerate(line):
                        if self.epilogue is not None:
                            (total,) = trees.print_trees(k, [self.epilogue], [total, *(b[n] for b in beside)])
                        trees.store(k, total, self.out, k.at(place, n * lanes * self.out.itemsize), masks[n])

            with k.loop(0, w["whole"], self.across) as first:
                positions(first, self.across)
            if self.tail:
                positions(w["whole"], self.tail)
        return k.text()

    def _operand(
        self, k: Kernel, name: str, operand: Operand, channel: Value, n: int, mask: Value | None
    ) -> Value:
        size = operand.dtype.itemsize
        at = k.at(k.arg(name), channel * size)
        return trees.load(k, operand.dtype, k.at(at, n * self.lanes * size), self.lanes, mask)

    def _sums(
        self, k: Kernel, w: dict[str, Value], table: Value, weights: Value, channel: Value,
        masks: list[Value | None], count: int,
    ) -> list[list[Value]]:  # fmt: skip
        """The sums of `count` positions, whose first pixel is the first of `table`."""
        element, vector = self.element, self.element.of(self.lanes)
        sums = [[k.const(vector, 0)] * self.vectors for _ in range(count)]
        users: dict[int, list[tuple[int, int]]] = {}  # the (position, column of the filter) pairs that use each pixel
        for j in range(count):
            for column in range(self.columns):
                users.setdefault(j * self.stride + column * self.dilation, []).append((j, column))
        for row in range(self.rows):
            line = k.at(table, w["span"] * row, I64)
            first = row * self.columns
            factors = [
                [
                    k.load(vector, k.at(k.at(weights, w["w_row"] * (first + c)), n * self.lanes, element), masks[n])
                    for n in range(self.vectors)
                ]
                for c in range(self.columns)
            ]
            for pixel in sorted(users):
                at = k.at(k.load(PTR, k.at(line, pixel, I64)), channel, element)
                for n in range(self.vectors):
                    x = k.load(vector, k.at(at, n * self.lanes, element), masks[n])
                    for j, column in users[pixel]:
                        sums[j][n] = k.fma(x, factors[column][n], sums[j][n])
        return sums


def vectors_at_once(machine: Machine, taps: int, channels: int, lanes: int) -> int:
    """2 where two vectors of channels can share the loads of addresses: if registers hold both vectors' weights, and
    neither is empty; else 1."""
    even = -(-channels // lanes) % 2 == 0
    return 2 if machine.registers == 32 and taps <= 9 and even else 1


def positions_at_once(machine: Machine, taps: int, columns: int, vectors: int, width: int) -> int:
    """How many positions of a row are computed at once: as many as registers hold sums for besides all weights, or
    besides those of one row of the filter."""
    held = taps if taps * vectors <= machine.registers - 7 else columns
    return max(1, min(4, (machine.registers - 2) // vectors - held, width))
