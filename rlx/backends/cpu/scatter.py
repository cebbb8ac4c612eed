"""scatter and scatter_elements: updates go where their indices say, in the order of the indices.

An item is a vector of columns (positions on the axes after the scattered one), or one column: it applies all of their
updates, so no two items write the same element, and the order does not depend on threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import I32, I64, Kernel, Value, pointers, sizes
from rlx.backends.cpu.movement import copies
from rlx.backends.cpu.rowwise import contiguous
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.dtypes import DType, as_dtype
from rlx.ir import Node
from rlx.records import Record

_INDICES = {4: I32, 8: I64}


class Scatter(Record):
    """`count` updates of each of the `columns`, on an axis of `length` in out. `own`: each column has indices of its
    own. An index may count from the end; updates of one that is out of range are left out."""

    dtype: DType
    index: int
    reduction: str
    own: bool
    lanes: int
    args = pointers("indices", "updates", "out") + sizes("count", "length", "columns")

    def ir(self) -> str:
        k, lanes, size = Kernel("kernel", self.args), self.lanes, self.dtype.itemsize
        indices, updates, out = k.args("indices", "updates", "out")
        count, length, columns = k.args("count", "length", "columns")
        blocks = k.binary("udiv", columns + (lanes - 1), k.const(I64, lanes))
        kind = trees.stored_bits(self.dtype).of(lanes)
        with k.loop(k.first, k.last) as item:
            head = k.binary("udiv", item, blocks)
            column = (item - head * blocks) * lanes
            mask = None if lanes == 1 else k.tail(k.min(columns - column, lanes), lanes)
            source = k.at(updates, (head * count * columns + column) * size)
            target = k.at(out, (head * length * columns + column) * size)
            step = columns * size
            with k.loop(0, count) as i:
                at = (head * count + i) * columns + column if self.own else i
                row = k.load(_INDICES[self.index], k.at(indices, at, _INDICES[self.index]))
                place = k.cast("sext", row, I64)
                place = k.select(k.cmp("slt", place, 0), place + length, place)
                with k.when(k.cmp("ult", place, length)):
                    new, where = k.load(kind, k.at(source, i * step), mask), k.at(target, place * step)
                    if self.reduction != "none":
                        new = self._joined(k, k.load(kind, where, mask), new)
                    k.store(new, where, mask)
        return k.text()

    def _joined(self, k: Kernel, old: Value, new: Value) -> Value:
        if self.reduction in ("min", "max"):
            return k.min(old, new) if self.reduction == "min" else k.max(old, new)
        return old + new if self.reduction == "add" else old * new


@engine("scatter")
def bind_scatter(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    return _steps(node, ins, outs[0], ctx, False)


@engine("scatter_elements")
def bind_scatter_elements(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    return _steps(node, ins, outs[0], ctx, True)


def _steps(
    node: Node, ins: Sequence[Array], out: Array, ctx: EngineContext, own: bool
) -> list[EngineStep] | None:
    """`own`: each column has indices of its own."""
    indices, updates = ins[:2]
    axis, reduction = node.attrs["axis"], node.attrs["reduction"]
    dtype = as_dtype(out.dtype)
    ordered = reduction in ("min", "max")
    if not contiguous(*ins, out) or indices.itemsize not in _INDICES or dtype.itemsize not in (1, 2, 4, 8):
        return None
    if reduction != "none" and (dtype.is_half or (ordered and dtype.name.startswith("u"))):
        return None
    if any(np.may_share_memory(x, out) for x in ins[:2]):
        return None
    before = copies(ins[2] if len(ins) == 3 else np.broadcast_to(np.zeros(1, out.dtype), out.shape), out, ctx)
    if before is None:
        return None
    columns = math.prod(out.shape[axis + 1 :])
    heads, count = math.prod(out.shape[:axis]), indices.shape[axis] if own else indices.size
    lanes = 1 if own or columns == 1 else ctx.machine.lanes(8 * dtype.itemsize)
    spec = Scatter(dtype, indices.itemsize, reduction, own, lanes)
    args = spec.args(
        indices=indices, updates=updates, out=out, count=count, length=node.attrs["length"], columns=columns
    )
    items = heads * -(-columns // lanes)
    step = EngineStep(spec, args, items, 1, (indices, updates, out), name="scatter", cost_ns=2.0 * count + 1)
    return [*before, step] if updates.size else before
