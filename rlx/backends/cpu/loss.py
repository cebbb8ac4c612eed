"""cross_entropy and its gradient, a row of logits at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.formulas import apply
from rlx.backends.cpu.ir import F32, I32, I64, PTR, Kernel, Value
from rlx.backends.cpu.machine import Lookup
from rlx.backends.cpu.rowwise import (
    accumulators,
    added,
    alike,
    blocks,
    computed,
    contiguous,
    exp_of_difference,
    folded,
    grain_of,
    kept,
    larger,
    load_wide,
    name_of,
    store_wide,
)
from rlx.backends.cpu.step import EngineContext, EngineStep, address, engine
from rlx.ir import Node

_NS = 0.8  # of a logit


@engine("cross_entropy")
def bind_cross_entropy(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    return _bind(node, ins, None, outs, ctx)


@engine("cross_entropy_grad")
def bind_cross_entropy_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    return _bind(node, ins, ins[0], outs, ctx)


def _bind(
    node: Node, ins: Sequence[Array], d: Array | None, outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    """The losses' step or, where their gradient `d` is given, that of the gradient of the logits."""
    x, labels = ins[-2:]
    kinds = [name_of(a) for a in (x, outs[0], *([] if d is None else [d]))]
    if not alike(kinds) or labels.dtype not in (np.int32, np.int64) or x.size == 0:
        return None
    if not contiguous(*ins, *outs) or (d is None and any(np.may_share_memory(a, outs[0]) for a in ins)):
        return None
    n = x.shape[-1]
    spec = CrossEntropy(
        kinds[0], kinds[1], kinds[2] if d is not None else None, labels.itemsize,
        ctx.machine.lanes(computed(*kinds).bits), ctx.machine.lookup,
    )
    words = (
        address(x),
        address(labels),
        address(outs[0]),
        n,
        node.attrs["ignore_index"],
        address(d if d is not None else x),
    )
    return [EngineStep(spec, words, x.size // n, grain_of(n), (*ins, *outs), cost_ns=n * _NS)]


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """log Σ exp(x) - x[label] of each row, or, with `gradient`, the dtype of the losses' gradients d, its gradient
    (softmax - one-hot) · d, which may lie over x. Words: x, labels, result, logits of a row, the label that is
    ignored, d."""

    dtype: str
    result: str
    gradient: str | None
    label_bytes: int
    lanes: int
    lookup: Lookup

    def ir(self) -> str:
        k, lanes, dtype = Kernel("kernel", self.lookup), self.lanes, self.dtype
        given, labels, made = (k.word(i, PTR) for i in range(3))
        n, ignored = k.word(3), k.word(4)
        kind = I64 if self.label_bytes == 8 else I32
        own = computed(dtype)
        one = k.tail(1, lanes)
        with k.loop(k.first, k.last) as row:
            label = k.cast("sext", k.load(kind, k.at(labels, row, kind)), I64)
            base = row * n

            def value(i: Value, mask: Value | None, base: Value = base) -> Value:
                return load_wide(k, given, dtype, base + i, lanes, mask)

            tops = accumulators(k, lanes, -math.inf, own)

            def raise_top(i: Value, u: int, mask: Value | None) -> None:
                tops[u].value = larger(k, tops[u].value, kept(k, value(i, mask), mask, -math.inf))

            blocks(k, n, lanes, raise_top)
            top = k.splat(folded(k, tops, lambda a, b: larger(k, a, b)), lanes)
            sums = accumulators(k, lanes, type=own)

            def add(i: Value, u: int, mask: Value | None, top: Value = top) -> None:
                e = kept(k, exp_of_difference(k, value(i, mask) - top), mask)
                sums[u].value = sums[u].value + e

            total = k.splat(added(k, n, lanes, sums, add), lanes)
            counts = k.cmp("ne", label, ignored)
            place = k.max(k.min(label, n - 1), 0)
            shifted = value(place, one) - top
            if self.gradient is None:
                loss = apply(k, "m_log" if own == F32 else "d_log", total) - shifted
                store_wide(k, k.select(k.splat(counts, lanes), loss, 0.0), made, self.result, row, one)
            else:
                self._slopes(k, row, base, place, counts, top, total, shifted)
        return k.text()

    def _slopes(
        self, k: Kernel, row: Value, base: Value, place: Value, counts: Value, top: Value, total: Value,
        shifted: Value,
    ) -> None:  # fmt: skip
        """Writes the gradient of a row, whose largest logit and sum are given; `shifted` is its label's logit."""
        lanes, made, n = self.lanes, k.word(2, PTR), k.word(3)
        assert self.gradient is not None
        one = k.tail(1, lanes)
        factor = k.splat(k.extract(load_wide(k, k.word(5, PTR), self.gradient, row, lanes, one), 0), lanes)
        picked = (exp_of_difference(k, shifted) / total - 1.0) * factor

        def write(i: Value, u: int, mask: Value | None) -> None:
            v = load_wide(k, k.word(0, PTR), self.dtype, base + i, lanes, mask)
            store_wide(k, exp_of_difference(k, v - top) / total * factor, made, self.result, base + i, mask)

        def clear(i: Value, u: int, mask: Value | None) -> None:
            store_wide(k, k.const(computed(self.dtype).of(lanes), 0.0), made, self.result, base + i, mask)

        with k.when(counts):
            blocks(k, n, lanes, write)
            store_wide(k, picked, made, self.result, base + place, one)
        with k.when(~counts):
            blocks(k, n, lanes, clear)
