"""8-bit integers as the kernels of `gemm` read them: words of 32 bits, each with two or four neighbouring terms.

    sum of (x - zx)(w - zw) = sum of x·w - zx · sum of w, where zw is 0

With VNNI's instructions a word is four bytes, unsigned for x and signed for w: flipping the top bit adds 128 to an
element, and changes the zero point by as much. zx · sum of w is a number for each output, an operand of the epilogue.
Otherwise, and where w has zero points, a word is two i16, from which the zero points have been subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.gemm.product import Panels
from rlx.backends.cpu.ir import I8, I16, I32, Kernel, pointers, sizes
from rlx.backends.cpu.machine import Machine
from rlx.backends.cpu.step import Declined, EngineContext, EngineStep, address
from rlx.dtypes import i32
from rlx.ir import Tensor
from rlx.ir import expr as ex
from rlx.records import Record

_ITEM_BYTES = 1 << 14


def words_of_bytes(machine: Machine) -> bool:
    """Whether the machine multiplies words of four bytes."""
    wanted = {64: "avx512vnni", 32: "avxvnni"}.get(machine.vector_bytes)
    return machine.arch == "x86_64" and wanted in machine.features


class AdjustKernel(Record):
    """Bytes as a product reads them: with the top bit flipped where they are signed ("u8"), or as i16 minus the zero
    point. An item is a row; rows of x and of out lie `x_row` and `out_row` bytes apart."""

    lanes: int
    signed: bool
    wide: bool
    args = pointers("x", "out", "zero") + sizes("columns", "x_row", "out_row")

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        x, out, zero, columns, x_row, out_row = k.args("x", "out", "zero", "columns", "x_row", "out_row")
        less = k.splat(k.cast("trunc", k.load(I32, zero), I16), lanes) if self.wide else None
        with k.loop(k.first, k.last) as row:
            here, there = k.at(x, row * x_row), k.at(out, row * out_row)
            with k.loop(0, columns, lanes) as i:
                mask = k.tail(k.min(columns - i, lanes), lanes)
                values = k.load(I8.of(lanes), k.at(here, i), mask)
                if less is not None:
                    wide = k.cast("sext" if self.signed else "zext", values, I16)
                    k.store(wide - less, k.at(there, i, I16), mask)
                else:
                    k.store(values ^ -128 if self.signed else values, k.at(there, i), mask)
        return k.text()


class Form(Record):
    """How one product reads its operands: "vnni", "pairs" or "plain", and x's zero point in that form."""

    how: str
    signed: bool  # whether x is signed as it is given
    zero: int | None  # None: not known before a run

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in which the product reads x's elements."""
        return np.dtype(np.uint8 if self.how == "vnni" else np.int16)

    @property
    def around(self) -> int:
        """The value of padding around an image; not read where it does not fit a byte (`form_of`)."""
        return (self.zero or 0) & 255

    @property
    def in_word(self) -> int:
        return 4 // self.dtype.itemsize


def form_of(x: Tensor, zeros: Sequence[Tensor], w_signed: bool, machine: Machine, known: bool) -> Form:
    """The form for a product of x; `zeros` are x's single zero point and w's. `known`: x's must be a constant."""
    signed = x.dtype.name == "i8"
    sources = [_source(z).node for z in zeros]
    values = [n.attrs["value"].astype(np.int64) if n.op.is_constant else None for n in sources]
    for value, node in zip(values, sources, strict=True):
        cast = node.op.converts and node.inputs[0].dtype.name in ("i8", "u8")
        if not (cast if value is None else (abs(value) < 32_000).all()):
            raise Declined("zero points that may be beyond 16 bits")
    x_zero, w_zero = values
    if words_of_bytes(machine) and w_zero is not None and not (w_zero - 128 * (not w_signed)).any():
        zero = None if x_zero is None else int(x_zero.reshape(-1)[0]) + 128 * signed
        if not known or (zero is not None and 0 <= zero < 256):
            return Form("vnni", signed, zero)
    return Form("pairs" if machine.arch == "x86_64" else "plain", signed, 0)


def _source(t: Tensor) -> Tensor:
    while t.node.op.reshapes:
        t = t.node.inputs[0]
    return t


def adjusted(
    x: Array, zero: Array, form: Form, ctx: EngineContext, steps: list[EngineStep], row: int = 0
) -> Array:
    """x (rows, columns), rows contiguous, in the form's dtype; with `row`, in rows that are `row` elements apart and
    may be read past the last. x itself where it already has that form."""
    rows, columns = x.shape
    row = row or columns
    wide = form.how != "vnni"
    if not wide and not form.signed and row == columns:
        return x
    size = form.dtype.itemsize
    nbytes = rows * row * size + 64
    if row == columns:
        memory = ctx.borrow(nbytes)
    else:
        memory = ctx.acquire(nbytes)
        memory[...] = 0  # the elements past the columns stay zero
    if x.flags.c_contiguous and row == columns:
        count, rest = divmod(x.size, _ITEM_BYTES)
        flat, target = x.reshape(-1), memory.view(form.dtype)
        pieces = (slice(0, count * _ITEM_BYTES), count), (slice(count * _ITEM_BYTES, x.size), 1 if rest else 0)
        for part, lines in pieces:
            if lines:
                adjust_rows(
                    flat[part].reshape(lines, -1), target[part], _ITEM_BYTES * size, zero, form, ctx, steps
                )
    else:
        adjust_rows(x, memory, row * size, zero, form, ctx, steps)
    return memory[: rows * row * size].view(form.dtype).reshape(rows, row)


def adjust_rows(
    x: Array, out: Array, out_row: int, zero: Array, form: Form, ctx: EngineContext, steps: list[EngineStep]
) -> None:
    """Adds the step that writes the adjusted rows of x (rows, columns) to rows `out_row` bytes apart."""
    rows, columns = x.shape
    wide = form.how != "vnni"
    spec = AdjustKernel(ctx.machine.lanes(16 if wide else 8), form.signed, wide)
    args = spec.args(x=x, out=out, zero=zero, columns=columns, x_row=x.strides[0], out_row=out_row)
    steps.append(EngineStep(spec, args, rows, 1, (x, out, zero), name="adjust", cost_ns=columns / 20 + 2))


class Weights(Record):
    """Weights w (outputs, …), fixed, with w's and x's zero points. `sums` is the epilogue's operand that follows the
    product."""

    w: Array
    zeros: Sequence[Array]
    form: Form
    sums: Array | None
    totals: Array | None

    def read(self) -> Array:
        """The weights as products read them; also writes `sums`. Called when the weights change."""
        w, form = self.w, self.form
        if self.sums is None or self.totals is None:
            return w.astype(np.int16) - self.zeros[1].astype(np.int16).reshape(-1, *(1,) * (w.ndim - 1))
        signed = w if w.dtype == np.int8 else (w ^ 128).view(np.int8)
        self.totals[...] = signed.reshape(len(w), -1).sum(1, dtype=np.int64)
        if form.zero is not None:
            self.sums[...] = (-form.zero * self.totals.astype(np.int64)).astype(np.int32)
        return signed

    def operands(self) -> list[Array]:
        return [] if self.sums is None else [self.sums]


def weights(
    w: Array, zeros: Sequence[Array], form: Form, ctx: EngineContext, steps: list[EngineStep]
) -> Weights:
    if form.how != "vnni":
        return Weights(w, zeros, form, None, None)
    sums, totals = (ctx.acquire(4 * len(w)).view(np.int32) for _ in range(2))
    if form.zero is None:
        tree = -(ex.arg(1, i32) + ex.lit(128 * form.signed, i32)) * ex.arg(0, i32)
        step = tree_step([tree], [totals, zeros[0]], [sums], ctx)
        assert step is not None
        steps.append(step)
    return Weights(w, zeros, form, sums, totals)


def pack_words(weights: Weights, groups: int, taps: int, terms: int, width: int, ctx: EngineContext) -> Panels:
    """Panels of weights (outputs, terms, *taps), whose outputs are in groups. In the panels, taps come before terms."""
    form, outputs = weights.form, len(weights.w) // groups
    words, panels = -(-terms // form.in_word), -(-outputs // width)
    packed = ctx.acquire(groups * panels * taps * words * width * 4)
    target = packed.view(np.int8 if form.how == "vnni" else np.int16)
    target = target.reshape(groups, panels, taps, words, width, form.in_word)

    def prepare() -> None:
        filled = np.zeros((groups, panels * width, taps, words * form.in_word), target.dtype)
        whole = np.moveaxis(weights.read(), 1, -1)
        filled[:, :outputs, :, :terms] = whole.reshape(groups, outputs, taps, terms)
        parts = filled.reshape(groups, panels, width, taps, words, form.in_word)
        target[...] = parts.transpose(0, 1, 3, 4, 2, 5)

    step = width * 4
    panel = taps * words * step
    keep = (packed, weights.w, *weights.operands(), weights.totals)
    return Panels(address(packed), i32, step, panel, panels * panel, prepare=prepare, keep=keep)
