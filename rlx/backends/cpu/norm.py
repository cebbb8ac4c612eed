"""layer_norm, rms_norm, their forms with a residual and group_norm, a row at a time; layer_norm over channels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, I64, PTR, Kernel, Type, Value
from rlx.backends.cpu.rowwise import (
    LOADED,
    STORED,
    accumulators,
    added,
    alike,
    blocks,
    computed,
    contiguous,
    float_word,
    grain_of,
    kept,
    load_wide,
    name_of,
    store_wide,
)
from rlx.backends.cpu.step import EngineContext, EngineStep, address, engine, f32_word
from rlx.ir import Node

_NS = 0.7  # of an element
_PART = 512  # positions whose elements are added up in f32 by one sum


@engine("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
def bind_norm(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    residual = node.op.name.startswith("add_")
    operands, weights = ins[: 1 + residual], ins[1 + residual :]
    dtypes = [name_of(a) for a in (ins[0], *weights)]
    if not (alike(dtypes) and contiguous(*ins, *outs)):
        return None
    x, y, n, kind = ins[0], outs[-1], ins[0].shape[-1], computed(dtypes[0])
    spec = Norm(
        dtypes[0], dtypes[1], dtypes[2] if len(weights) == 2 else None, node.op.centres, residual, len(outs) == 2,
        False, ctx.machine.lanes(kind.bits),
    )  # fmt: skip
    places = [x, operands[-1], weights[0], weights[-1], outs[0], y]
    words = (*map(address, places), *_sizes(node, n, kind))
    return [EngineStep(spec, words, x.size // n, grain_of(n), cost_ns=n * _NS)]


@engine("group_norm", images="follows")
def bind_group_norm(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    (x, gamma, beta), y, groups = ins, outs[0], node.attrs["groups"]
    dtypes = [name_of(a) for a in ins]
    if not (set(dtypes) <= STORED.keys() and contiguous(gamma, beta)) or x.size == 0:
        return None
    per, inner = x.shape[1] // groups, math.prod(x.shape[2:])
    n = per * inner
    if not contiguous(x, y):
        if not all(np.moveaxis(a, 1, -1).flags.c_contiguous for a in (x, y)):
            return None
        lanes = ctx.machine.lanes()
        width = per if per > 1 else lanes
        last = GroupNormLast(dtypes[0], dtypes[1], dtypes[2], per > 1, lanes)
        few = -(-inner // 16)
        words = (
            *map(address, (x, gamma, beta, y)), inner, x.shape[1], width, f32_word(node.attrs["eps"]),
            f32_word(1 / (inner * per if per > 1 else inner)), few, f32_word(1 / (few * per if per > 1 else few)),
        )  # fmt: skip
        items = x.shape[0] * -(-x.shape[1] // width)
        return [EngineStep(last, words, items, 1, cost_ns=inner * max(width, lanes) * _NS)]
    spec = Norm(dtypes[0], dtypes[1], dtypes[2], True, False, False, True, ctx.machine.lanes())
    words = (*map(address, (x, x, gamma, beta, y, y)), *_sizes(node, n), groups, per, inner)
    return [EngineStep(spec, words, x.size // n, grain_of(n), cost_ns=n * _NS)]


@engine("layer_norm_channels")
def bind_layer_norm_channels(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    (x, gamma, beta), y = ins, outs[0]
    dtypes = [name_of(a) for a in ins]
    if not (set(dtypes) <= STORED.keys() and contiguous(gamma, beta)) or x.size == 0:
        return None
    n, inner, lanes = x.shape[1], math.prod(x.shape[2:]), ctx.machine.lanes()
    places = (x, x, gamma, beta, y, y)
    if all(np.moveaxis(a, 1, -1).flags.c_contiguous for a in (x, y)):  # channels last, or one pixel
        rows = Norm(dtypes[0], dtypes[1], dtypes[2], True, False, False, False, lanes)
        words = (*map(address, places), *_sizes(node, n))
        return [EngineStep(rows, words, x.size // n, grain_of(n), cost_ns=n * _NS)]
    if not contiguous(x, y):
        return None
    words = (*map(address, places), *_sizes(node, n), inner)
    columns = NormChannels(dtypes[0], dtypes[1], dtypes[2], lanes)
    items = x.shape[0] * -(-inner // lanes)
    return [EngineStep(columns, words, items, grain_of(n * lanes), cost_ns=n * lanes * _NS)]


def _sizes(node: Node, n: int, kind: Type = F32) -> tuple[int, ...]:
    """The words behind the addresses."""
    few = -(-n // 16)
    eps, of_n, of_few = (float_word(kind, x) for x in (node.attrs["eps"], 1 / n, 1 / few))
    return n, eps, of_n, few, of_few


@dataclass(frozen=True, slots=True)
class Norm:
    """Rows of x, or of x + residual; `keep`: that sum is an output too. Words: x, residual, gamma, beta, sum, y,
    elements of a row, eps, 1 / elements, elements of the row's first sixteenth, its reciprocal. `by_channel`: a row is
    a group of channels, which gamma and beta have an element for; then the number of groups, a group's channels, and a
    channel's elements follow.

    The sum is computed anew in every pass and stored in the last one, since an output may lie in either operand."""

    dtype: str
    gamma: str
    beta: str | None
    centre: bool
    residual: bool
    keep: bool
    by_channel: bool
    lanes: int

    def ir(self) -> str:
        k, lanes, number = Kernel("kernel"), self.lanes, computed(self.dtype)
        given = [k.word(i, PTR) for i in range(6)]
        n, few = k.word(6), k.word(9)
        eps, of_n, of_few = k.word(7, number), k.word(8, number), k.word(10, number)
        with k.loop(k.first, k.last) as row:
            x, residual, total_out, y = (k.at(given[p], row * n, LOADED[self.dtype]) for p in (0, 1, 4, 5))

            def value(i: Value | int, mask: Value | None, x: Value = x, residual: Value = residual) -> Value:
                v = load_wide(k, x, self.dtype, i, lanes, mask)
                return v + load_wide(k, residual, self.dtype, i, lanes, mask) if self.residual else v

            def mean(count: Value, by: Value, shift: Value) -> Value:
                """The mean of the differences of the first `count` elements from `shift`."""
                sums = accumulators(k, lanes, type=number)

                def add(i: Value, u: int, mask: Value | None) -> None:
                    sums[u].value = sums[u].value + kept(k, value(i, mask) - shift, mask)

                return k.splat(added(k, count, lanes, sums, add) * by, lanes)

            # The mean is two numbers, as in `rlx.ops.numeric.centred`.
            shifts: list[Value] = []
            if self.centre:
                first = k.splat(k.extract(value(0, k.tail(1, lanes)), 0), lanes)
                near = first + mean(few, of_few, first)
                shifts = [near, mean(n, of_n, near)]

            def centred(v: Value, shifts: list[Value] = shifts) -> Value:
                for shift in shifts:
                    v = v - shift
                return v

            squares = accumulators(k, lanes, type=number)

            def square(i: Value, u: int, mask: Value | None) -> None:
                c = kept(k, centred(value(i, mask)), mask)
                squares[u].value = k.fma(c, c, squares[u].value)

            root = k.unary("sqrt", added(k, n, lanes, squares, square) * of_n + eps)
            inverse = k.splat(k.const(number, 1.0) / root, lanes)

            def write(
                i: Value, mask: Value | None, gamma: Value, beta: Value | None,
                y: Value = y, total_out: Value = total_out, inverse: Value = inverse,
            ) -> None:  # fmt: skip
                v = value(i, mask)
                made = centred(v) * inverse * gamma
                if beta is not None:
                    made = made + beta
                if self.keep:
                    store_wide(k, v, total_out, self.dtype, i, mask)
                store_wide(k, made, y, self.dtype, i, mask)

            if self.by_channel:
                groups, per, inner = (k.word(i) for i in (11, 12, 13))
                first_channel = (row - k.binary("udiv", row, groups) * groups) * per
                with k.loop(0, per) as c:
                    gamma, beta = self._weights(k, first_channel + c, None, 1)

                    def write_channel(
                        i: Value,
                        u: int,
                        mask: Value | None,
                        c: Value = c,
                        gamma: Value = gamma,
                        beta: Value | None = beta,
                    ) -> None:
                        write(c * inner + i, mask, gamma, beta)

                    blocks(k, inner, lanes, write_channel, unroll=2)
            else:

                def write_row(i: Value, u: int, mask: Value | None) -> None:
                    write(i, mask, *self._weights(k, i, mask, lanes))

                blocks(k, n, lanes, write_row, unroll=2)
        return k.text()

    def _weights(self, k: Kernel, at: Value, mask: Value | None, lanes: int) -> tuple[Value, Value | None]:
        """gamma and beta from an element on; one of them, over all lanes, for a channel."""
        found: list[Value | None] = []
        for number, dtype in ((2, self.gamma), (3, self.beta)):
            if dtype is None:
                found.append(None)
                continue
            if lanes == 1:
                mask = k.tail(1, self.lanes)
            v = load_wide(k, k.word(number, PTR), dtype, at, self.lanes, mask)
            found.append(k.splat(k.extract(v, 0), self.lanes) if lanes == 1 else v)
        gamma = found[0]
        assert gamma is not None
        return gamma, found[1]


@dataclass(frozen=True, slots=True)
class NormChannels:
    """layer_norm over the channels of (N, C, inner): an item is a vector of neighbouring positions. Words: as Norm's,
    and inner."""

    dtype: str
    gamma: str
    beta: str
    lanes: int

    def ir(self) -> str:
        k, lanes = Kernel("kernel"), self.lanes
        x, y = k.word(0, PTR), k.word(5, PTR)
        n, few, inner = k.word(6), k.word(9), k.word(11)
        eps, of_n, of_few = (k.splat(k.word(i, F32), lanes) for i in (7, 8, 10))
        count = k.binary("udiv", inner + (lanes - 1), k.const(I64, lanes))
        nothing = k.const(F32.of(lanes), 0.0)
        with k.loop(k.first, k.last) as item:
            outer = k.binary("udiv", item, count)
            column = (item - outer * count) * lanes
            left = inner - column
            mask = k.tail(k.select(k.cmp("slt", left, lanes), left, lanes), lanes)
            base = outer * n * inner + column

            def value(c: Value | int, base: Value = base, mask: Value = mask) -> Value:
                at = base if isinstance(c, int) else base + c * inner
                return load_wide(k, x, self.dtype, at, lanes, mask)

            def mean(until: Value, by: Value, shift: Value) -> Value:
                added = k.variable(nothing)
                with k.loop(0, until) as c:
                    v = value(c) - shift
                    added.value = added.value + v
                return added.value * by

            near = value(0)
            near = near + mean(few, of_few, near)
            far = mean(n, of_n, near)
            squares = k.variable(nothing)
            with k.loop(0, n) as c:
                v = value(c) - near - far
                squares.value = k.fma(v, v, squares.value)
            inverse = 1.0 / k.unary("sqrt", squares.value * of_n + eps)
            one = k.tail(1, lanes)
            with k.loop(0, n) as c:
                gamma, beta = (
                    k.splat(k.extract(load_wide(k, k.word(i, PTR), dtype, c, lanes, one), 0), lanes)
                    for i, dtype in ((2, self.gamma), (3, self.beta))
                )
                made = (value(c) - near - far) * inverse * gamma + beta
                store_wide(k, made, y, self.dtype, base + c * inner, mask)
        return k.text()


@dataclass(frozen=True, slots=True)
class GroupNormLast:
    """group_norm of images (N, inner, C): an item is a group of channels (`together`), or, where each channel is a
    group, a vector of them. Words: x, gamma, beta, y, inner, channels, channels of an item, eps, 1 / elements of a
    group, positions of its first sixteenth, the reciprocal of their elements' number."""

    dtype: str
    gamma: str
    beta: str
    together: bool
    lanes: int

    def ir(self) -> str:
        k, lanes, dtype = Kernel("kernel"), self.lanes, self.dtype
        given = [k.word(i, PTR) for i in range(4)]
        inner, channels, width, few = (k.word(i) for i in (4, 5, 6, 9))
        eps, of_n, of_few = (k.splat(k.word(i, F32), lanes) for i in (7, 8, 10))
        groups = k.binary("udiv", channels + width - 1, width)
        nothing = k.const(F32.of(lanes), 0.0)
        with k.loop(k.first, k.last) as item:
            image = k.binary("udiv", item, groups)
            first = (item - image * groups) * width
            count = k.min(channels - first, width)
            base = image * inner * channels + first

            def value(p: Value | int, c: Value | int, mask: Value | None, base: Value = base) -> Value:
                at = base + c if isinstance(p, int) else base + p * channels + c
                return load_wide(k, given[0], dtype, at, lanes, mask)

            @contextmanager
            def vectors(until: Value, count: Value = count) -> Iterator[tuple[Value, Value | int, Value]]:
                """The body for each vector of channels of each position."""
                with k.loop(0, until) as p:
                    if self.together:
                        with k.loop(0, count, lanes) as c:
                            yield p, c, k.tail(k.min(count - c, lanes), lanes)
                    else:
                        yield p, 0, k.tail(count, lanes)

            def total(until: Value, term: Callable[[Value, Value, Value], Value]) -> Value:
                """The sum of a term of each element, of which part after part is added up in f32."""
                whole = k.variable(nothing)
                with k.loop(0, until, _PART) as start:
                    part = k.variable(nothing)
                    with vectors(k.min(until - start, _PART)) as (p, c, mask):
                        part.value = term(value(start + p, c, mask), part.value, mask)
                    whole.value = whole.value + part.value
                made = whole.value
                return k.splat(k.fold(made, lambda a, b: a + b), lanes) if self.together else made

            def mean(until: Value, by: Value, shifts: Sequence[Value]) -> Value:
                return by * total(until, lambda v, held, mask: held + kept(k, _less(v, shifts), mask))

            # The mean is two numbers, as in `rlx.ops.numeric.centred`.
            start = value(0, 0, k.tail(k.min(count, lanes), lanes))
            start = k.splat(k.extract(start, 0), lanes) if self.together else start
            near = start + mean(few, of_few, [start])
            shifts = [near, mean(inner, of_n, [near])]

            def square(v: Value, held: Value, mask: Value, shifts: Sequence[Value] = shifts) -> Value:
                c = kept(k, _less(v, shifts), mask)
                return k.fma(c, c, held)

            inverse = 1.0 / k.unary("sqrt", total(inner, square) * of_n + eps)
            with vectors(inner) as (p, c, mask):
                gamma, beta = (
                    load_wide(k, given[i], kind, first + c, lanes, mask)
                    for i, kind in ((1, self.gamma), (2, self.beta))
                )
                made = _less(value(p, c, mask), shifts) * inverse * gamma + beta
                store_wide(k, made, given[3], dtype, base + p * channels + c, mask)
        return k.text()


def _less(v: Value, shifts: Sequence[Value]) -> Value:
    for shift in shifts:
        v = v - shift
    return v
