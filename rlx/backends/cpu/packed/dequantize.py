"""Binds `dequantize`: packed rows as floats."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.gemm.product import narrow_float
from rlx.backends.cpu.ir import Kernel, pointers, sizes
from rlx.backends.cpu.packed.decode import Rows, decodes
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, engine
from rlx.dtypes import DType, as_dtype, f32
from rlx.ir import Node
from rlx.records import Record


class DequantizeKernel(Record):
    """An item is a row."""

    lanes: int
    weight: DType
    lookup: bool
    out: DType = f32
    args = pointers("w", "out") + sizes("units", "w_row")

    def ir(self) -> str:
        k, elements = Kernel("kernel", self.args), self.weight.storage.elements
        w, out, units, w_row = k.args("w", "out", "units", "w_row")
        decoded = Rows(k, self.weight, self.lanes, self.lookup)
        with k.loop(k.first, k.last) as item:
            row, line = k.at(w, item * w_row), k.at(out, item * (units * (elements * self.out.itemsize)))
            planes = decoded.planes(row, units)
            with k.loop(0, units, decoded.most) as first:
                count = k.min(units - first, decoded.most)
                decoded.prepare(planes, first, count)
                with k.loop(0, count) as i:
                    block = decoded.block(planes, first, i)
                    at = k.at(line, (first + i) * (elements * self.out.itemsize))
                    for e in range(0, elements, self.lanes):
                        values = decoded.format.elements(block, e)
                        trees.store(k, values, self.out, k.at(at, e * self.out.itemsize), None)
        return k.text()


@engine("dequantize")
def bind_dequantize(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    (raw,), (out,), dtype, machine = ins, outs, node.inputs[0].dtype, ctx.machine
    if not decodes(dtype, machine) or not narrow_float(out.dtype):
        raise Declined(f"{dtype} as {out.dtype}")
    if not (raw.flags.c_contiguous and out.flags.c_contiguous) or not raw.size:
        raise Declined("strides")
    rows, columns = raw.size // raw.shape[-1], out.shape[-1]
    spec = DequantizeKernel(machine.lanes(), dtype, machine.has_lookup, as_dtype(out.dtype))
    args = spec.args(w=raw, out=out, units=columns // dtype.storage.elements, w_row=raw.shape[-1])
    return [EngineStep(spec, args, rows, 1, (raw, out), name=f"dequantize {dtype}", cost_ns=columns * 0.1)]
