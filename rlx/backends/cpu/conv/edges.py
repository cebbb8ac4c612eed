"""The edges of transposed convolutions with weights that are not finite.

A product reads zeros where a tap lies outside of the image, and zero times infinity is NaN, while the tap adds nothing
to a transposed convolution. Where a weight is infinite or NaN, the elements with such taps are computed again.
"""

from __future__ import annotations

import math

import numpy as np

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.conv.depthwise import named_operands, operand_names
from rlx.backends.cpu.ir import F32, I1, I32, I64, PTR, Arguments, Kernel, pointers, sizes
from rlx.backends.cpu.rowwise import load_wide, name_of
from rlx.backends.cpu.step import EngineContext, EngineStep
from rlx.dtypes import DType, as_dtype
from rlx.ir import Expr
from rlx.records import Record


class NotFinite(Record):
    """Whether one of n elements is infinite or NaN, as an i32. There is one item."""

    dtype: str
    lanes: int
    args = pointers("x", "flag") + sizes("n")

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        x, flag, n = k.args("x", "flag", "n")
        with k.loop(k.first, k.last):
            outside = k.variable(k.const(I1.of(self.lanes), False))
            with k.loop(0, n, self.lanes) as i:
                v = load_wide(k, x, self.dtype, i, self.lanes, k.tail(k.min(n - i, self.lanes), self.lanes))
                outside.value = outside.value | ~k.cmp("olt", k.unary("fabs", v), math.inf)
            k.store(k.cast("zext", k.any(outside.value), I32), flag)
        return k.text()


class EdgeKernel(Record):
    """Recomputes the elements of out (positions, groups · inner) with a tap at the address `outside`, from their other
    taps. An item is a position; nothing is done where the flag is 0. Steps are in bytes, in w: from one channel of the
    image to the next, and from one output to the next."""

    dtype: DType
    bias: tuple[DType, ...]
    epilogue: Expr | None
    out: DType

    @property
    def args(self) -> Arguments:
        numbers = sizes("outside", "taps", "rows", "inner", "groups", "w_row", "w_column")
        return (
            pointers("flag", "table", "out", "w", "offsets") + numbers + pointers(*operand_names(len(self.bias)))
        )

    def ir(self) -> str:
        k, names = Kernel("kernel", self.args), operand_names(len(self.bias))
        w = k.all_args(*names)
        with k.when(k.cmp("ne", k.load(I32, w["flag"]), 0)), k.loop(k.first, k.last) as position:
            places = k.at(w["table"], position * w["taps"], I64)
            lacks = k.variable(k.const(I1, False))
            with k.loop(0, w["taps"]) as tap:
                lacks.value = lacks.value | k.cmp("eq", k.load(I64, k.at(places, tap, I64)), w["outside"])
            with k.when(lacks.value), k.loop(0, w["groups"]) as group, k.loop(0, w["inner"]) as column:
                total = k.variable(k.const(F32, 0.0))
                with k.loop(0, w["taps"]) as tap:
                    place = k.at(places, tap, I64)
                    with k.when(k.cmp("ne", k.load(I64, place), w["outside"])), k.loop(0, w["rows"]) as row:
                        channel = group * w["rows"] + row
                        at = channel * w["w_row"] + column * w["w_column"] + k.load(I64, k.at(w["offsets"], tap, I64))
                        factor = trees.load(k, self.dtype, k.at(w["w"], at), 1)
                        x = k.load(F32, k.at(k.load(PTR, place), channel, F32))
                        total.value = k.fma(x, factor, total.value)
                result, output = total.value, group * w["inner"] + column
                beside = [
                    trees.load(k, d, k.at(k.arg(name), output * d.itemsize), 1)
                    for name, d in zip(names, self.bias, strict=True)
                ]
                if self.epilogue is not None:
                    (result,) = trees.print_trees(k, [self.epilogue], [result, *beside])
                place = (position * (w["groups"] * w["inner"]) + output) * self.out.itemsize
                trees.store(k, result, self.out, k.at(w["out"], place))
        return k.text()


class Edges:
    """The steps for one weight (C, O / groups, *K)."""

    def __init__(
        self, w: Array, groups: int, bias: tuple[Array, ...], epilogue: Expr | None, fixed: bool, ctx: EngineContext
    ) -> None:  # fmt: skip
        self.w, self.groups, self.bias, self.epilogue = w, groups, bias, epilogue
        self.fixed, self.ctx = fixed, ctx
        self._flag: Array | None = None

    def steps(self, table: Array, outside: int, part: Array, out: Array) -> list[EngineStep]:
        """The steps to run after those that write a phase: `table` has the addresses (positions, taps), `part` is the
        phase's view (C, O / groups, *taps) of the weight."""
        if not (table == outside).any():
            return []
        steps: list[EngineStep] = []
        prepare = None
        if self._flag is None:
            flag = self._flag = self.ctx.acquire(4).view(np.int32)
            if self.fixed:

                def prepare() -> None:
                    flag[0] = not np.isfinite(self.w).all()
            else:
                spec = NotFinite(name_of(self.w), self.ctx.machine.lanes())
                args = spec.args(x=self.w, flag=flag, n=self.w.size)
                steps.append(EngineStep(spec, args, 1, 1, (self.w, flag), name="finite", cost_ns=self.w.size / 10))
        offsets: Array = np.zeros(part.shape[2:], np.int64)
        for axis, stride in enumerate(part.strides[2:]):
            behind = (1,) * (offsets.ndim - 1 - axis)
            offsets += (np.arange(part.shape[2 + axis]) * stride).reshape((-1, *behind))
        places = np.ascontiguousarray(table)
        c, inner, taps = *part.shape[:2], offsets.size
        beside = tuple(as_dtype(b.dtype) for b in self.bias)
        kernel = EdgeKernel(as_dtype(part.dtype), beside, self.epilogue, as_dtype(out.dtype))
        args = kernel.args(
            flag=self._flag, table=places, out=out, w=part, offsets=offsets, outside=outside, taps=taps,
            rows=c // self.groups, inner=inner, groups=self.groups, w_row=part.strides[0], w_column=part.strides[1],
            **named_operands(self.bias),
        )  # fmt: skip
        keep = (self._flag, places, offsets, self.w, out, *self.bias)
        steps.append(EngineStep(kernel, args, len(places), 64, keep, prepare, "edges", 1.0))
        return steps
