"""Binds `packed_matmul_int8`, products with packed weights at the precision "int8" (`rlx.ops.packed_int8`): by integers
where the processor has VNNI's instruction, which multiplies unsigned by signed bytes and adds up four products, else as
`packed_matmul` of the rounded rows.

Rows of x become bytes with a scale for each 32 of them. A weight is read as bytes with a scale, and maybe a minimum,
for each group of 16 or 32: by few rows of x as it lies (`byte_dots.py`), by more in panels, some rows of the weight at
a time. A group's sum is an exact integer; it is scaled and added up in f32. Signed weights are read as unsigned ones,
128 greater: a group's sum begins with -128 times the sum of the bytes of x. What an element of the result is does not
depend on other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cpu import trees
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.gemm.kernel import multiplier
from rlx.backends.cpu.gemm.transpose import transposed
from rlx.backends.cpu.ir import F32, I8, I32, I64, Kernel, Value, pointers, sizes
from rlx.backends.cpu.machine import Machine
from rlx.backends.cpu.packed.bind import packed_steps, rows_of
from rlx.backends.cpu.packed.byte_dots import ROWS_PER_ITEM, ByteDots
from rlx.backends.cpu.packed.decode import ByteBlock, Rows
from rlx.backends.cpu.packed.rounded import SUMS, ByteKernel, rounded_to_bytes
from rlx.backends.cpu.step import EngineContext, EngineStep, address, engine
from rlx.dtypes import DType, as_dtype, f32
from rlx.ir import Node
from rlx.ops.packed_int8 import BLOCK
from rlx.records import Record

_FEW_ROWS = 3  # more rows of x are worth panels
_LANES = 16
_VECTORS = 2  # a panel has so many vectors of columns
_WIDTH = _VECTORS * _LANES
_ROWS = 6  # rows of x in a tile: its integers and its sums fill 24 registers
_PIECE = 512  # elements of a row that are decoded before they are transposed
_PITCH = _PIECE + 64  # puts the rows to be transposed into different cache sets
_BYTES_PER_STEP = 1 << 20  # a step reads so many bytes of panels
_SMALL_GROUPS = frozenset({"q2_k", "q3_k", "q6_k"})  # formats whose scales belong to 16 elements
_WITH_MINIMUMS = frozenset({"q4_1", "q5_1", "q2_k", "q4_k", "q5_k"})  # formats of unsigned integers


@engine("packed_matmul_int8")
def bind_packed_matmul_int8(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    (x, out), dtype = rows_of(node, ins, outs, ctx), node.inputs[1].dtype
    if by_bytes(dtype, ctx.machine):
        return byte_steps(x, ins[1], dtype, out, ctx, f"bytes {dtype}")
    rounded, step = rounded_to_bytes(x, ctx)
    return [step, *packed_steps(rounded, ins[1], dtype, out, ctx)]


def by_bytes(dtype: DType, machine: Machine) -> bool:
    """Whether a product is computed by integers."""
    return not machine.has_tiles and multiplier(machine) == "vnni" and "_zp" not in dtype.name


def group_of(dtype: DType) -> int:
    """How many elements share a scale in panels."""
    return 16 if dtype.family in _SMALL_GROUPS else BLOCK


class BytePanels(Record):
    """An item is 16 rows of the weight: a part of the width of a panel. `out` is the bytes of all panels, `scales` and
    `minimums`, over `SUMS`, their numbers by group and column."""

    weight: DType
    args = pointers("w", "out", "scales", "minimums") + sizes("first", "last", "units", "w_row")

    def ir(self) -> str:
        k, elements, group = Kernel("kernel", self.args), self.weight.storage.elements, group_of(self.weight)
        w = k.all_args()
        rows = Rows(k, self.weight, group, False, _PIECE // elements, ByteBlock)
        lines = k.reserve(_LANES * _PITCH)
        signed = self.weight.family not in _WITH_MINIMUMS
        length = w["units"] * elements
        with k.loop(k.first, k.last) as item:
            panel = k.binary("udiv", item, k.const(I64, _VECTORS))
            part = (item - panel * _VECTORS) * _LANES
            out = k.at(w["out"], panel * length * _WIDTH + part * 4)
            column = panel * k.binary("udiv", length, k.const(I64, group)) * _WIDTH + part
            top = w["first"] + item * _LANES
            with k.loop(0, w["units"], rows.most) as first:
                count = k.min(w["units"] - first, rows.most)
                with k.loop(0, _LANES) as r:
                    row = k.at(w["w"], k.min(top + r, w["last"] - 1) * w["w_row"])
                    planes = rows.planes(row, w["units"])
                    rows.prepare(planes, first, count)
                    line = k.at(lines, r * _PITCH)
                    with k.loop(0, count) as i:
                        block = rows.block(planes, first, i)
                        assert isinstance(block, ByteBlock)
                        for e in range(0, elements, group):
                            values = rows.format.elements(block, e)
                            k.store(values ^ -128 if signed else values, k.at(line, i * elements + e))
                            number = ((first + i) * (elements // group) + e // group) * _WIDTH + column + r
                            scale, minimum = block.scales
                            k.store(scale, k.at(w["scales"], number, F32))
                            if minimum is not None:
                                k.store(minimum * (1 / SUMS), k.at(w["minimums"], number, F32))
                with k.loop(0, count * elements, 4 * _LANES) as at:
                    words = [k.load(I32.of(_LANES), k.at(lines, at + r * _PITCH), align=4) for r in range(_LANES)]
                    target = k.at(out, (first * elements + at) * _WIDTH)
                    for n, turned in enumerate(transposed(k, words)):
                        with k.when(k.cmp("slt", at + 4 * n, count * elements)):
                            k.store(turned, k.at(target, n * 4 * _WIDTH), align=64)
        return k.text()


class ByteProduct(Record):
    """An item is a tile of the result: some rows of x times a panel. `x` is bytes, `x_scales` a number for each 32 of
    them, `starts` what the sum of each group begins with, `x_sums` the scaled sum of each group of x, times
    `SUMS`."""

    weight: DType
    out: DType = f32
    args = pointers("x", "x_scales", "starts", "x_sums", "panels", "scales", "minimums", "out") + sizes(
        "rows", "columns", "terms", "out_row", "tiles"
    )

    def ir(self) -> str:
        k, group = Kernel("kernel", self.args), group_of(self.weight)
        w, sums, numbers = k.all_args(), I32.of(_LANES), F32.of(_LANES)
        signed = self.weight.family not in _WITH_MINIMUMS
        groups = k.binary("udiv", w["terms"], k.const(I64, group))
        blocks = w["terms"] >> 5
        with k.loop(k.first, k.last) as item:
            panel = k.binary("udiv", item, w["tiles"])
            top, left = (item - panel * w["tiles"]) * _ROWS, panel * _WIDTH
            places = [k.min(top + r, w["rows"] - 1) for r in range(_ROWS)]
            x = [k.at(w["x"], place * w["terms"]) for place in places]
            panels = k.at(w["panels"], left * w["terms"])
            totals = [[k.variable(k.const(numbers, 0)) for _ in range(_VECTORS)] for _ in range(_ROWS)]
            with k.loop(0, groups) as g:
                kept = [self._start(k, w, place * groups + g, signed) for place in places]
                dots = [[start] * _VECTORS for start in kept]
                for word in range(group // 4):
                    at = k.at(panels, (g * (group // 4) + word) * (4 * _WIDTH))
                    factors = [k.load(sums, k.at(at, 64 * v), align=64) for v in range(_VECTORS)]
                    for r, line in enumerate(dots):
                        four = k.splat(k.load(I32, k.at(x[r], g * group + 4 * word)), _LANES)
                        for v, factor in enumerate(factors):
                            line[v] = self._added(k, line[v], factor, four)
                number = left * groups + g * _WIDTH
                by = [k.load(numbers, k.at(w["scales"], number + v * _LANES, F32), align=64) for v in range(_VECTORS)]
                block = g if group == BLOCK else g >> 1
                for r, line in enumerate(dots):
                    scale = k.splat(k.load(F32, k.at(w["x_scales"], places[r] * blocks + block, F32)), _LANES)
                    for v, dot in enumerate(line):
                        totals[r][v].value = k.fma(k.cast("sitofp", dot, F32) * by[v], scale, totals[r][v].value)
                if not signed:
                    places_of = [k.at(w["minimums"], number + v * _LANES, F32) for v in range(_VECTORS)]
                    less = [k.load(numbers, at, align=64) for at in places_of]
                    for r, total in enumerate(totals):
                        some = k.splat(k.load(F32, k.at(w["x_sums"], places[r] * groups + g, F32)), _LANES)
                        for v, minimum in enumerate(less):
                            total[v].value = k.fma(minimum, some, total[v].value)
            masks = [k.tail(k.min(k.max(w["columns"] - left - v * _LANES, 0), _LANES), _LANES) for v in range(_VECTORS)]
            for r, total in enumerate(totals):
                with k.when(k.cmp("slt", top + r, w["rows"])):
                    at = k.at(w["out"], (top + r) * w["out_row"] + left * self.out.itemsize)
                    for v, mask in enumerate(masks):
                        trees.store(k, total[v].value, self.out, k.at(at, v * _LANES * self.out.itemsize), mask)
        return k.text()

    def _start(self, k: Kernel, w: dict[str, Value], at: Value, signed: bool) -> Value:
        if not signed:
            return k.const(I32.of(_LANES), 0)
        return k.splat(k.load(I32, k.at(w["starts"], at, I32)), _LANES)

    def _added(self, k: Kernel, total: Value, unsigned: Value, signed: Value) -> Value:
        both = [k.cast("bitcast", v, I8.of(4 * _LANES)) for v in (unsigned, signed)]
        return k.call("llvm.x86.avx512.vpdpbusd.512", total.type, total, *both)


def byte_steps(x: Array, w: Array, dtype: DType, out: Array, ctx: EngineContext, name: str) -> list[EngineStep]:
    """x (m, k), a packed weight (n, bytes of a row), out (m, n) with contiguous rows."""
    (m, terms), n, group = x.shape, len(w), group_of(dtype)
    groups, per_row = terms // group, terms // BLOCK
    few = m <= _FEW_ROWS
    begins = m * (terms if few else 4 * groups)
    memory = ctx.borrow(m * (terms + 4 * per_row + 4 * groups) + begins)
    x_bytes = address(memory)
    x_scales = x_bytes + m * terms
    starts = x_scales + 4 * m * per_row
    x_sums = starts + begins
    cut = ByteKernel(group, few, as_dtype(x.dtype))
    args = cut.args(x=x, out=x_bytes, scales=x_scales, starts=starts, sums=x_sums)
    steps = [EngineStep(cut, args, m * per_row, 16, (x, memory), name="round to 8 bits", cost_ns=12.0)]
    signed = dtype.family not in _WITH_MINIMUMS
    x_parts = {"x": x_bytes, "x_scales": x_scales, "starts": starts, "x_sums": x_sums}
    units = terms // dtype.storage.elements
    if few:
        dots = ByteDots(dtype, m, group, signed, as_dtype(out.dtype))
        args = dots.args(**x_parts, w=w, out=out, columns=n, units=units, w_row=w.strides[0], out_row=out.strides[0])
        items, cost = -(-n // ROWS_PER_ITEM), ROWS_PER_ITEM * terms * (0.02 + 0.01 * m)
        return [*steps, EngineStep(dots, args, items, 1, (memory, w, out), name=name, cost_ns=cost)]
    panels = -(-n // _WIDTH)
    each = max(1, min(panels, _BYTES_PER_STEP // (terms * _WIDTH)))
    each = -(-panels // -(-panels // each))
    numbers = each * groups * _WIDTH
    decoded = ctx.borrow(each * terms * _WIDTH + 8 * numbers)
    scales = address(decoded) + each * terms * _WIDTH
    places = {"scales": scales, "minimums": scales + 4 * numbers}
    fill, multiply, tiles = BytePanels(dtype), ByteProduct(dtype, as_dtype(out.dtype)), -(-m // _ROWS)
    for start in range(0, panels, each):
        first, last = start * _WIDTH, min(n, (start + each) * _WIDTH)
        count = -(-(last - first) // _WIDTH)
        args = fill.args(w=w, out=decoded, **places, first=first, last=last, units=units, w_row=w.strides[0])
        items, keep = count * _VECTORS, (decoded, memory, w, out)
        steps.append(EngineStep(fill, args, items, 1, keep, name=f"decode {dtype}", cost_ns=terms * 2.0))
        args = multiply.args(
            **x_parts, **places, panels=decoded, out=out[:, first:last], rows=m, columns=last - first, terms=terms,
            out_row=out.strides[0], tiles=tiles,
        )  # fmt: skip
        cost = _ROWS * terms * 0.2
        steps.append(EngineStep(multiply, args, tiles * count, 1, keep, name=name, cost_ns=cost))
    return steps
