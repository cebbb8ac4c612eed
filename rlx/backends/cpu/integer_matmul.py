"""Matrix products of 8-bit integers with zero points, exact in i32. A fixed b is packed; otherwise both operands are
read in place, along their rows.

    sum of (a - za)(b - zb) = sum of a·b - za · sum of b - zb · sum of a + k · za · zb

A tile is some rows of a times four rows of b; each of its sums is a vector, whose lanes are added up last. VNNI's
instructions need one unsigned and one signed operand: adding 128 to a, or subtracting it from b, flips one bit of each
element and changes the zero point by as much.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.gemm.kernel import multiplier
from rlx.backends.cpu.gemm.matmul import beside
from rlx.backends.cpu.gemm.product import Product, choose_tile, product_steps, with_epilogue
from rlx.backends.cpu.integers import adjusted, form_of, pack_words, weights
from rlx.backends.cpu.ir import I8, I16, I32, I64, Kernel, Value, pointers, sizes
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, address, engine
from rlx.dtypes import i32
from rlx.ir import Node, Tensor
from rlx.ir import expr as ex
from rlx.records import Record

_COLUMNS = 4  # rows of b in a tile


class RowSums(Record):
    """The sum of each row of integers of 8 bits. An item is a row."""

    lanes: int
    signed: bool
    args = pointers("x", "sums") + sizes("k", "row")

    def ir(self) -> str:
        k = Kernel("kernel", self.args)
        x, sums, length, row = k.args("x", "sums", "k", "row")
        with k.loop(k.first, k.last) as item:
            total = k.variable(k.const(I32.of(self.lanes), 0))
            here = k.at(x, item * row)
            with k.loop(0, length, self.lanes) as i:
                mask = k.tail(k.min(length - i, self.lanes), self.lanes)
                values = k.load(I8.of(self.lanes), k.at(here, i), mask)
                total.value = total.value + k.cast("sext" if self.signed else "zext", values, I32)
            k.store(k.fold(total.value, lambda p, q: p + q), k.at(sums, item, I32))
        return k.text()


class IntegerKernel(Record):
    """`how` multiplies: "vnni": 4 products of bytes a lane, "pairs": 2 of i16 a lane, "plain": one of i32 a lane. Steps
    are in bytes; those of zero points are 0 where all rows share one."""

    lanes: int
    how: str
    a_signed: bool
    b_signed: bool
    args = pointers("a", "b", "out", "a_sums", "b_sums", "a_zero", "b_zero") + sizes(
        "m", "n", "k", "a_row", "b_row", "out_row", "a_zero_step", "b_zero_step"
    )

    @property
    def rows(self) -> int:
        """Rows of a in a tile: so many that its sums can be transposed as squares of vectors."""
        return self.lanes // _COLUMNS

    def ir(self) -> str:
        k, lanes, rows = Kernel("kernel", self.args), self.lanes, self.rows
        w = k.all_args()
        step = lanes * {"vnni": 4, "pairs": 2, "plain": 1}[self.how]
        tops = k.binary("udiv", w["m"] + (rows - 1), k.const(I64, rows))
        with k.loop(k.first, k.last) as item:
            left = k.binary("udiv", item, tops)
            top = (item - left * tops) * rows
            left = left * _COLUMNS
            a = [k.at(w["a"], k.min(top + i, w["m"] - 1) * w["a_row"]) for i in range(rows)]
            b = [k.at(w["b"], k.min(left + j, w["n"] - 1) * w["b_row"]) for j in range(_COLUMNS)]
            sums = [[k.variable(k.const(I32.of(lanes), 0)) for _ in b] for _ in a]
            whole = k.binary("udiv", w["k"], k.const(I64, step)) * step
            with k.loop(0, whole, step) as i:
                self._add(k, sums, [k.at(x, i) for x in a], [k.at(x, i) for x in b], step, None)
            with k.loop(whole, w["k"], step) as i:
                mask = k.tail(w["k"] - i, step)
                self._add(k, sums, [k.at(x, i) for x in a], [k.at(x, i) for x in b], step, mask)
            products = self._folded(k, [v.value for line in sums for v in line])
            self._store(k, w, products, top, left)
        return k.text()

    def _add(
        self, k: Kernel, sums: list[list], a: Sequence[Value], b: Sequence[Value], step: int, mask: Value | None  # type: ignore[type-arg]
    ) -> None:  # fmt: skip
        wide = I16 if self.how == "pairs" else I32

        def read(x: Value, signed: bool, first: bool) -> Value:
            result = k.load(I8.of(step), x, mask)
            if self.how != "vnni":
                return k.cast("sext" if signed else "zext", result, wide)
            if first == signed:
                result = result ^ -128
                if first and mask is not None:
                    result = k.select(mask, result, 0)
            return result

        right = [read(x, self.b_signed, False) for x in b]
        for x, line in zip(a, sums, strict=True):
            left = read(x, self.a_signed, True)
            for y, total in zip(right, line, strict=True):
                total.value = self._products(k, total.value, left, y)

    def _products(self, k: Kernel, total: Value, a: Value, b: Value) -> Value:
        """`total` plus the products of the elements of a and b, lane by lane."""
        if self.how == "vnni":
            return k.call("llvm.x86.avx512.vpdpbusd.512", total.type, total, a, b)
        if self.how == "pairs":
            name = "avx512.pmaddw.d.512" if self.lanes == 16 else "avx2.pmadd.wd"
            return total + k.call(f"llvm.x86.{name}", total.type, a, b)
        return total + a * b

    def _folded(self, k: Kernel, vectors: Sequence[Value]) -> Value:
        """One vector whose lane i is the sum of the lanes of vector i; there are as many vectors as lanes."""
        lanes, vectors_left = self.lanes, list(vectors)
        while len(vectors_left) > 1:
            pairs = zip(vectors_left[::2], vectors_left[1::2], strict=True)
            even, odd = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
            vectors_left = [k.shuffle(x, y, even) + k.shuffle(x, y, odd) for x, y in pairs]
        return vectors_left[0]

    def _store(self, k: Kernel, w: dict[str, Value], dots: Value, top: Value, left: Value) -> None:
        kind = I32.of(_COLUMNS)
        kept = k.tail(k.min(w["n"] - left, _COLUMNS), _COLUMNS)
        length = k.cast("trunc", w["k"], I32)
        # Offsets that were added to the operands are added to their zero points and sums too.
        more_a = 128 if self.how == "vnni" and self.a_signed else 0
        more_b = -128 if self.how == "vnni" and not self.b_signed else 0
        b_sums = k.load(kind, k.at(w["b_sums"], left, I32), kept) + k.splat(length * more_b, _COLUMNS)
        one = k.splat(k.load(I32, w["b_zero"]), _COLUMNS)
        several = k.cmp("ne", w["b_zero_step"], 0)
        zero_point = k.variable(one)
        with k.when(several):
            zero_point.value = k.load(kind, k.at(w["b_zero"], left, I32), kept)
        b_zero = zero_point.value + more_b
        for i in range(self.rows):
            with k.when(k.cmp("slt", top + i, w["m"])):
                row = top + i
                a_zero = k.load(I32, k.at(w["a_zero"], row * w["a_zero_step"])) + more_a
                a_sum = k.load(I32, k.at(w["a_sums"], row, I32)) + length * more_a
                products = k.shuffle(dots, None, range(i * _COLUMNS, (i + 1) * _COLUMNS))
                value = products - b_sums * k.splat(a_zero, _COLUMNS)
                value = value - b_zero * k.splat(a_sum - length * a_zero, _COLUMNS)
                k.store(value, k.at(k.at(w["out"], row * w["out_row"]), left, I32), kept)


def is_zero(t: Tensor) -> bool:
    """Whether a tensor is a constant of zeros."""
    return t.node.op.is_constant and not np.frombuffer(bytes(t.node.attrs["value"]), np.uint8).any()


@engine("integer_matmul", takes_epilogue=True)
def bind_integer_matmul(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    if not all(x.flags.c_contiguous for x in (*ins, outs[0])) or min(ins[0].size, ins[1].size) == 0:
        raise Declined("strides, or no elements")
    if ctx.is_fixed(node.inputs[1]) and len(ins[2]) == 1:
        return _packed(node, ins, outs[0], ctx)
    if ctx.epilogue is not None:
        raise Declined("a second operand that is computed")
    return _as_they_lie(node, ins, outs[0], ctx)


def _packed(node: Node, ins: Sequence[Array], out: Array, ctx: EngineContext) -> list[EngineStep]:
    """A product with a fixed b, whose rows are packed as the columns of a GEMM's second operand."""
    (a, b, *zeros), following = ins, ctx.epilogue
    form = form_of(node.inputs[0], node.inputs[2:], b.dtype == np.int8, ctx.machine, False)
    if form.how != "vnni" and not ctx.is_fixed(node.inputs[3]):
        raise Declined("zero points that are computed")
    steps: list[EngineStep] = []
    weight = weights(b, zeros, form, ctx, steps)
    operands = [(x, 0, 0) for x in weight.operands()]
    tree = with_epilogue(
        ex.arg(0, i32) + ex.arg(1, i32) if operands else None, len(operands), following, i32
    )
    if following is not None:
        if not following.out.flags.c_contiguous:
            raise Declined("strides of the result")
        operands += [beside(x, out) for x in following.operands]
        out = following.out
    (m, k), n = a.shape, len(b)
    words = -(-k // form.in_word)
    x = adjusted(a, zeros[0], form, ctx, steps, words * form.in_word)
    rows = (address(x) + np.arange(m, dtype=np.int64) * x.strides[0])[:, None]
    tile = choose_tile(ctx.machine, m, n)
    panels = pack_words(weight, 1, 1, k, tile.vectors * ctx.machine.lanes(), ctx)
    product = Product(rows, words, 4, out[None], 0, tree, operands, (x,), form.how)
    return [*steps, *product_steps(product, panels, tile, ctx, f"integers {form.how}")]


def _as_they_lie(node: Node, ins: Sequence[Array], out: Array, ctx: EngineContext) -> list[EngineStep]:
    a, b, a_zero, b_zero = ins
    lanes, (m, k), n = ctx.machine.lanes(), a.shape, len(b)
    steps, sums = [], []
    vnni = multiplier(ctx.machine) == "vnni"
    for x, other, unsigned in ((a, 3, True), (b, 2, False)):
        column_sums = ctx.acquire(4 * len(x)).view(np.int32)
        # An operand's sums are multiplied by the other operand's zero point, as it is after the change of sign.
        as_given = not vnni or (node.inputs[other - 2].dtype.name == "u8") != unsigned
        if as_given and is_zero(node.inputs[other]):
            column_sums[...] = 0
            sums.append(column_sums)
            continue
        spec = RowSums(lanes, x.dtype == np.int8)
        args = spec.args(x=x, sums=column_sums, k=k, row=x.strides[0])
        steps.append(EngineStep(spec, args, len(x), 16, (x, column_sums), name="row sums", cost_ns=k / 10))
        sums.append(column_sums)
    kernel = IntegerKernel(lanes, multiplier(ctx.machine), a.dtype == np.int8, b.dtype == np.int8)
    args = kernel.args(
        a=a, b=b, out=out, a_sums=sums[0], b_sums=sums[1], a_zero=a_zero, b_zero=b_zero, m=m, n=n, k=k,
        a_row=a.strides[0], b_row=b.strides[0], out_row=out.strides[0], a_zero_step=4 * (len(a_zero) > 1),
        b_zero_step=4 * (len(b_zero) > 1),
    )  # fmt: skip
    items = -(-m // kernel.rows) * -(-n // _COLUMNS)
    cost = kernel.rows * _COLUMNS * k / 100
    steps.append(
        EngineStep(kernel, args, items, 4, (*ins, out, *sums), name=f"integers {kernel.how}", cost_ns=cost)
    )
    return steps
