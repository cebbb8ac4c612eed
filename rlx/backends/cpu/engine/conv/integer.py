"""Binds `integer_conv`: as an indirect product of words, each of which holds neighbouring channels of a pixel.

    sum of (x - zx)(w - zw) = sum of x·w - zx · sum of w, where zw is 0

With VNNI's instructions a word is four bytes. x has no sign there and w has one: to change the top bit of either is to
add 128, and changes its zero point. What w's sum takes away is a number for each output, an operand of the epilogue;
what stands around the image is x's zero point. Otherwise, and where w has zero points, a word is two i16, from which
the zero points have been taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.engine.conv.bind import beside_image
from rlx.backends.cpu.engine.conv.images import (
    channels_last,
    from_channels_last,
    room_for_rows,
    to_channels_last,
    window_addresses,
)
from rlx.backends.cpu.engine.conv.integer_depthwise import IntegerDepthwise
from rlx.backends.cpu.engine.gemm.kernel import Operand
from rlx.backends.cpu.engine.gemm.product import (
    Panels,
    Product,
    choose_tile,
    product_steps,
    with_following,
)
from rlx.backends.cpu.engine.ir import I8, I16, I32, I64, PTR, Kernel
from rlx.backends.cpu.engine.machine import Machine
from rlx.backends.cpu.engine.step import Declined, EngineContext, EngineStep, address, engine
from rlx.dtypes import as_dtype, i32
from rlx.ir import Expr, Node, Tensor
from rlx.ir import expr as ex

_FEW_CHANNELS = 8  # up to so many, a row of the filter is one tap of an image with zero points around it
_PIECE = 1 << 14  # bytes of a copy that are an item


def words_of_bytes(machine: Machine) -> bool:
    """Whether the machine multiplies words of four bytes."""
    wanted = {64: "avx512vnni", 32: "avxvnni"}.get(machine.vector_bytes)
    return machine.arch == "x86_64" and wanted in machine.features


@dataclass(frozen=True, slots=True)
class AdjustKernel:
    """Bytes as a product reads them: with the top bit changed where they have a sign ("u8"), or as i16 less the zero
    point. An item is a row. Words: x, out, zero point, columns, bytes from row to row of x and of out."""

    lanes: int
    signed: bool
    wide: bool

    def ir(self) -> str:
        k, lanes = Kernel("kernel"), self.lanes
        x, out, zero = (k.word(i, PTR) for i in range(3))
        columns, x_row, out_row = (k.word(i, I64) for i in range(3, 6))
        less = k.splat(k.cast("trunc", k.load(I32, zero), I16), lanes) if self.wide else None
        with k.loop(k.first, k.last) as row:
            here, there = k.at(x, row * x_row), k.at(out, row * out_row)
            with k.loop(0, columns, lanes) as i:
                mask = k.tail(k.min(columns - i, lanes), lanes)
                found = k.load(I8.of(lanes), k.at(here, i), mask)
                if less is not None:
                    wide = k.cast("sext" if self.signed else "zext", found, I16)
                    k.store(wide - less, k.at(there, i, I16), mask)
                else:
                    k.store(found ^ -128 if self.signed else found, k.at(there, i), mask)
        return k.text()


@dataclass(frozen=True, slots=True)
class Form:
    """How the operands of one product are read. `zero` is x's zero point in that form."""

    how: str
    signed: bool  # x, as it is given
    zero: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of x's elements, as the product reads them."""
        return np.dtype(np.uint8 if self.how == "vnni" else np.int16)

    @property
    def in_word(self) -> int:
        return 4 // self.dtype.itemsize


def form_of(x: Tensor, zeros: Sequence[Tensor], w_signed: bool, machine: Machine) -> Form:
    """The form for a product of x; zero points are x's and w's."""
    signed = x.dtype.name == "i8"
    known = [z.node.attrs["value"].astype(np.int64) if z.node.op.is_constant else None for z in zeros]
    for z, t in zip(known, zeros, strict=True):
        inside = _from_bytes(t) if z is None else bool((abs(z) < 1 << 15).all() and abs(z).max() < 32_000)
        if not inside:
            raise Declined("zero points that may be beyond 16 bits")
    x_zero, w_zero = known
    if words_of_bytes(machine) and x_zero is not None and w_zero is not None:
        zero = int(x_zero.reshape(-1)[0]) + 128 * signed
        if 0 <= zero < 256 and not (w_zero - 128 * (not w_signed)).any():
            return Form("vnni", signed, zero)
    return Form("pairs" if machine.arch == "x86_64" else "plain", signed, 0)


def _from_bytes(t: Tensor) -> bool:
    """Whether a tensor is made of integers of 8 bits by a cast."""
    while t.node.op.reshapes:
        t = t.node.inputs[0]
    return t.node.op.name == "cast" and t.node.inputs[0].dtype.name in ("i8", "u8")


def adjusted(
    x: Array, zero: Array, form: Form, ctx: EngineContext, steps: list[EngineStep], row: int = 0
) -> Array:
    """x (rows, columns), rows contiguous, in the form's dtype; with `row` in rows of so many elements, which may be
    read beyond the last. x itself where it is as it should be."""
    rows, columns = x.shape
    row = row or columns
    wide = form.how != "vnni"
    if not wide and not form.signed and row == columns:
        return x
    size = form.dtype.itemsize
    made = ctx.acquire(rows * row * size + 64)
    made[...] = 0
    whole = x.flags.c_contiguous and row == columns
    words = (
        (address(x), address(made), address(zero), _PIECE, _PIECE, _PIECE * size)
        if whole
        else (address(x), address(made), address(zero), columns, x.strides[0], row * size)
    )
    spec = AdjustKernel(ctx.machine.lanes(8 * size), form.signed, wide)
    keep = (x, made, zero)
    count, rest = divmod(x.size, _PIECE) if whole else (rows, 0)
    if count:
        steps.append(EngineStep(spec, words, count, 1, keep, name="adjust", cost_ns=words[3] / 20))
    if rest:
        at = count * _PIECE
        ends = (words[0] + at, words[1] + at * size, words[2], rest, 0, 0)
        steps.append(EngineStep(spec, ends, 1, 1, keep, name="adjust", cost_ns=rest / 20))
    return made[: rows * row * size].view(form.dtype).reshape(rows, row)


@engine("integer_conv", takes_following=True, images="makes")
def bind_integer_conv(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    (x, w, *zeros), out, following = ins, outs[0], ctx.following
    if w.size == 0 or x.size == 0:
        raise Declined("no elements")
    if not ctx.is_fixed(node.inputs[1]):
        raise Declined("a weight that is computed")
    form = form_of(node.inputs[0], node.inputs[2:], w.dtype == np.int8, ctx.machine)
    if form.how != "vnni" and not ctx.is_fixed(node.inputs[3]):
        raise Declined("zero points of the weight that are computed")
    tree: Expr | None = ex.arg(0, i32)
    beside: list[tuple[Array, bool]] = []
    if form.how == "vnni":
        beside = [(ctx.acquire(4 * len(w)).view(np.int32), False)]
        tree = ex.arg(0, i32) + ex.arg(1, i32)
    tree = with_following(tree, len(beside), following)
    if following is not None:
        beside += [beside_image(a, out) for a in following.operands]
        out = following.out
    steps: list[EngineStep] = []
    last = channels_last(out)
    made = last
    if made is None:
        made = ctx.acquire(out.nbytes).view(out.dtype).reshape(out.shape[0], *out.shape[2:], out.shape[1])
    groups = node.attrs["groups"]
    alone = groups > 1 and groups == w.shape[0] == x.shape[1]
    if alone and any(matrix for _, matrix in beside):
        raise Declined("an image beside a depthwise convolution")
    bind = _depthwise if alone else _dense
    bind(node, x, w, zeros, made, beside, tree if following is not None or beside else None, form, ctx, steps)
    if last is None:
        steps.append(from_channels_last(made, out, ctx))
    return steps


def _image(
    x: Array, zero: Array, form: Form, ctx: EngineContext, steps: list[EngineStep],
    room: Sequence[tuple[int, int]] | None, wide: int,
) -> Array:  # fmt: skip
    """x as (N, *S, C) in the form's dtype, with `room` around it, or else with at least `wide` channels."""
    found, (n, c, *sizes) = channels_last(x), x.shape
    if found is None:
        if not x.flags.c_contiguous:
            raise Declined("strides of the image")
        flat = adjusted(x.reshape(1, -1), zero, form, ctx, steps).reshape(x.shape)
        found = to_channels_last(flat, ctx, steps, room, form.zero)
        if room is not None or wide == c:
            return found
        size = form.dtype.itemsize
        as_bytes = found.view(np.uint8).reshape(-1, c * size)
        rows = adjusted(as_bytes, zero, Form("vnni", False, 0), ctx, steps, wide * size).view(form.dtype)
    else:
        rows = adjusted(found.reshape(-1, c), zero, form, ctx, steps, wide)
    return rows.reshape(n, *sizes, wide)


def _dense(
    node: Node, x: Array, w: Array, zeros: Sequence[Array], made: Array, beside: Sequence[tuple[Array, bool]],
    tree: Expr | None, form: Form, ctx: EngineContext, steps: list[EngineStep],
) -> None:  # fmt: skip
    attrs, groups, lanes = node.attrs, node.attrs["groups"], ctx.machine.lanes()
    kernel, c, (o, inner) = w.shape[2:], x.shape[1], w.shape[:2]
    counts, pads, strides, dilations = made.shape[1:-1], attrs["pads"], attrs["strides"], attrs["dilations"]
    few = groups == 1 and c <= _FEW_CHANNELS and kernel[-1] > 1 and dilations[-1] == 1 and len(kernel) <= 2
    border = np.full(c + 64, form.zero, form.dtype)
    if few and x.flags.c_contiguous:
        image = _image(x, zeros[0], form, ctx, steps, room_for_rows(node, x, kernel, counts), c)
        nothing = [(0, 0)] * len(kernel)
        rows = window_addresses(image, (*kernel[:-1], 1), strides, dilations, nothing, counts, 0)
        taps, terms = math.prod(kernel[:-1]), kernel[-1] * c
    else:
        # The last word of a pixel may have channels behind those of its group, whose weights are 0.
        beyond = -inner % form.in_word
        image = _image(x, zeros[0], form, ctx, steps, None, -(-(c + beyond) // form.in_word) * form.in_word)
        rows = window_addresses(image, kernel, strides, dilations, pads, counts, address(border))
        taps, terms = math.prod(kernel), inner
    tile = choose_tile(ctx.machine, len(rows), o // groups)
    width, words = tile.vectors * lanes, -(-terms // form.in_word)
    panels = -(-o // groups // width)
    packed = ctx.acquire(groups * panels * taps * words * width * 4)
    target = packed.view(np.int8 if form.how == "vnni" else np.int16)
    target = target.reshape(groups, panels, taps, words, width, form.in_word)
    sums = beside[0][0] if form.how == "vnni" else None

    def prepare() -> None:
        whole = np.moveaxis(_weights(w, zeros, form, sums), 1, -1).reshape(groups, o // groups, taps, terms)
        filled = np.zeros((groups, panels * width, taps, words * form.in_word), target.dtype)
        filled[:, : o // groups, :, :terms] = whole
        parts = filled.reshape(groups, panels, width, taps, words, form.in_word)
        target[...] = parts.transpose(0, 1, 3, 4, 2, 5)

    step = width * 4
    b = Panels(
        address(packed), i32, step, taps * words * step, panels * taps * words * step, prepare=prepare, keep=(packed, w)
    )  # fmt: skip
    operands = [(a, o * a.itemsize * matrix, o // groups * a.itemsize) for a, matrix in beside]
    result = made.reshape(-1, groups, o // groups).transpose(1, 0, 2)
    product = Product(
        rows, words, 4, result, inner * form.dtype.itemsize, tree, operands, (border, image, *zeros), form.how
    )
    steps += product_steps(product, b, tile, ctx, f"integer conv {form.how} {tile.rows}x{tile.vectors}")


def _weights(w: Array, zeros: Sequence[Array], form: Form, sums: Array | None) -> Array:
    """w as the products read it, and in `sums` what x's zero point makes of it."""
    if form.how != "vnni":
        return w.astype(np.int16) - zeros[1].astype(np.int16).reshape(-1, *(1,) * (w.ndim - 1))
    signed = w if w.dtype == np.int8 else (w ^ 128).view(np.int8)
    assert sums is not None
    total = signed.reshape(len(w), -1).sum(1, dtype=np.int64)
    sums[...] = (-form.zero * total).astype(np.int32)
    return signed


def _depthwise(
    node: Node, x: Array, w: Array, zeros: Sequence[Array], made: Array, beside: Sequence[tuple[Array, bool]],
    tree: Expr | None, form: Form, ctx: EngineContext, steps: list[EngineStep],
) -> None:  # fmt: skip
    attrs, c, kernel, lanes = node.attrs, x.shape[1], w.shape[2:], ctx.machine.lanes()
    image = _image(x, zeros[0], form, ctx, steps, None, c)
    border = np.full(c + 64, form.zero, form.dtype)
    counts, taps = made.shape[1:-1], math.prod(kernel)
    each = form.in_word  # taps of a word; those behind the last have the weight 0
    found = window_addresses(
        image, kernel, attrs["strides"], attrs["dilations"], attrs["pads"], counts, address(border)
    )
    words = -(-taps // each)
    table = np.full((len(found), words * each), address(border), np.int64)
    table[:, :taps] = found
    wide = -(-c // lanes) * lanes
    packed = ctx.acquire(words * wide * 4)
    target = packed.view(np.int8 if form.how == "vnni" else np.int16).reshape(words, wide, each)
    sums = beside[0][0] if form.how == "vnni" else None

    def prepare() -> None:
        filled = np.zeros((wide, words * each), target.dtype)
        filled[:c, :taps] = _weights(w, zeros, form, sums).reshape(c, taps)
        target[...] = filled.reshape(wide, words, each).transpose(1, 0, 2)

    operands = tuple(Operand(as_dtype(a.dtype)) for a, _ in beside)
    spec = IntegerDepthwise(lanes, words, form.how, c % lanes != 0, operands, tree, as_dtype(made.dtype))
    positions = len(table)
    block = max(1, min(counts[-1], positions))
    args = [
        address(table), address(packed), address(made), positions, c, c * made.itemsize, wide * 4, block,
        *(address(a) for a, _ in beside),
    ]  # fmt: skip
    items = -(-positions // block) * (wide // lanes)
    keep = (table, packed, w, image, made, border, *zeros, *(a for a, _ in beside))
    name = f"integer conv depthwise {form.how}"
    steps.append(EngineStep(spec, args, items, 1, keep, prepare, name, block * taps))
