"""group_norm of channels-last images: a group is not contiguous there, so row programs cannot read it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, Kernel, Value, floats, pointers, sizes
from rlx.backends.cpu.rowwise import STORED, contiguous, kept, load_wide, name_of, store_wide
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.ir import Node
from rlx.records import Record

_NS_PER_ELEMENT = 0.7
_PART = 512  # positions that one f32 accumulator adds up


@engine("group_norm", images="follows")
def bind_group_norm(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    (x, gamma, beta), y, groups = ins, outs[0], node.attrs["groups"]
    dtypes = [name_of(a) for a in ins]
    if not (set(dtypes) <= STORED.keys() and contiguous(gamma, beta)) or x.size == 0 or contiguous(x, y):
        return None
    if not all(np.moveaxis(a, 1, -1).flags.c_contiguous for a in (x, y)):
        return None
    per, inner, lanes = x.shape[1] // groups, math.prod(x.shape[2:]), ctx.machine.lanes()
    width = per if per > 1 else lanes
    last = GroupNormLast(dtypes[0], dtypes[1], dtypes[2], per > 1, lanes)
    few = -(-inner // 16)
    words = last.args(
        x=x, gamma=gamma, beta=beta, y=y, inner=inner, channels=x.shape[1], width=width, eps=node.attrs["eps"],
        of_n=1 / (inner * per if per > 1 else inner), few=few, of_few=1 / (few * per if per > 1 else few),
    )  # fmt: skip
    items = x.shape[0] * -(-x.shape[1] // width)
    return [EngineStep(last, words, items, 1, cost_ns=inner * max(width, lanes) * _NS_PER_ELEMENT)]


class GroupNormLast(Record):
    """group_norm of images (N, inner, C): an item is `width` channels: one group (`together`), or, where each channel
    is a group, a vector of groups. The mean of the first `few` positions shifts the mean; `of_n` and `of_few` are
    reciprocals."""

    dtype: str
    gamma: str
    beta: str
    together: bool
    lanes: int
    args = (
        pointers("x", "gamma", "beta", "y") + sizes("inner", "channels", "width") + floats("eps", "of_n")
        + sizes("few") + floats("of_few")
    )  # fmt: skip

    def ir(self) -> str:
        k, lanes, dtype = Kernel("kernel", self.args), self.lanes, self.dtype
        given = k.args("x", "gamma", "beta", "y")
        inner, channels, width, few = k.args("inner", "channels", "width", "few")
        eps, of_n, of_few = (k.splat(k.arg(name), lanes) for name in ("eps", "of_n", "of_few"))
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
                """Runs the body for each vector of channels of each position."""
                with k.loop(0, until) as p:
                    if self.together:
                        with k.loop(0, count, lanes) as c:
                            yield p, c, k.tail(k.min(count - c, lanes), lanes)
                    else:
                        yield p, 0, k.tail(count, lanes)

            def total(until: Value, term: Callable[[Value, Value, Value], Value]) -> Value:
                """The sum of a term over all elements, added up in f32 part by part."""
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

            # The mean is kept as the sum of two numbers, as in `rlx.ops.numeric.centred`.
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
