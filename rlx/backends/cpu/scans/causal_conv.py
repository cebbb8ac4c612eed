"""causal_conv: an item is a step of a sequence and a part of its channels, which lie along the lanes.

The filter is read tap by tap: it is transposed beforehand, only once where it is a weight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.ir import Kernel, Value, pointers, sizes
from rlx.backends.cpu.rowwise import (
    LOADED,
    blocks,
    computed,
    contiguous,
    load_wide,
    name_of,
    store_wide,
)
from rlx.backends.cpu.scans.rows import held, lanes_of, silu
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.dtypes import as_dtype
from rlx.ir import Node
from rlx.ir import expr as ex
from rlx.ops.scans import conv
from rlx.ops.scans.operands import optional
from rlx.records import Record

_CHANNELS_PER_ITEM = 4096


class CausalConv(Record):
    """`w` is the transposed filter; an item is a part of a step's channels."""

    kind: str
    width: int
    operands: tuple[str, ...]
    activation: bool
    lanes: int
    args = pointers("x", "w", "bias", "state", "y") + sizes("length", "channels", "parts")

    def ir(self) -> str:
        k, lanes, kind = Kernel("kernel", self.args), self.lanes, self.kind
        x, w, bias, state, y = k.args("x", "w", "bias", "state", "y")
        length, channels, parts = k.args("length", "channels", "parts")
        zero, before = k.const(computed(kind).of(lanes), 0.0), self.width - 1
        with k.loop(k.first, k.last) as item:
            step = k.binary("udiv", item, parts)
            first = (item - step * parts) * _CHANNELS_PER_ITEM
            batch = k.binary("udiv", step, length)
            t = step - batch * length
            count = k.min(channels - first, _CHANNELS_PER_ITEM)
            # The rows that each tap reads: of x, or of the state where they lie before it.
            rows, there = [], []
            for j in range(self.width):
                inside = k.cmp("sge", t + j, before)
                own = k.at(x, (step + j - before) * channels + first, LOADED[kind])
                if "state" in self.operands:
                    old = k.at(state, (batch * before + t + j) * channels + first, LOADED[kind])
                    own = k.select(inside, own, old)
                rows.append(own)
                there.append(inside)

            def vector(i: Value, u: int, mask: Value | None) -> None:
                total = load_wide(k, bias, kind, first + i, lanes, mask) if "bias" in self.operands else zero
                convolved = k.variable(total)
                for j, own in enumerate(rows):
                    if "state" in self.operands or j == before:
                        element = load_wide(k, own, kind, i, lanes, mask)
                    else:
                        read = k.variable(zero)  # zeros are multiplied too: times an infinite weight they give NaN
                        with k.when(there[j]):
                            read.value = load_wide(k, own, kind, i, lanes, mask)
                        element = read.value
                    weight = load_wide(k, w, held(kind), first + i + j * channels, lanes, mask)
                    convolved.value = k.fma(weight, element, convolved.value)
                activated = silu(k, convolved.value) if self.activation else convolved.value
                store_wide(k, activated, y, kind, step * channels + first + i, mask)

            blocks(k, count, lanes, vector)
        return k.text()


@engine("causal_conv")
def bind_causal_conv(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, w = ins[:2]
    kind, width = name_of(x), w.shape[1]
    if kind not in LOADED or not contiguous(*ins, *outs):
        return None
    operands = optional("causal_conv", ins, 2, conv.NAMES, node.attrs["operands"])
    batch, length, channels = x.shape
    lanes = lanes_of(kind, ctx.machine)
    steps: list[EngineStep] = []
    fixed = ctx.is_fixed(node.inputs[1])
    wide = np.dtype(np.float64 if kind == "f64" else np.float32)
    memory = (ctx.acquire if fixed else ctx.borrow)(w.size * wide.itemsize)
    taps = memory[: w.size * wide.itemsize].view(wide).reshape(width, channels)
    if not fixed:
        turned = tree_step([ex.cast(ex.arg(0, as_dtype(w.dtype)), as_dtype(wide))], [w.T], [taps], ctx)
        if turned is None:
            return None
        steps.append(turned)
    spec = CausalConv(kind, width, node.attrs["operands"], bool(node.attrs["activation"]), lanes)
    parts = -(-channels // _CHANNELS_PER_ITEM)
    args = spec.args(
        x=x, w=taps, bias=operands.get("bias"), state=operands.get("state"), y=outs[0], length=length,
        channels=channels, parts=parts,
    )  # fmt: skip
    many = min(channels, _CHANNELS_PER_ITEM)
    steps.append(
        EngineStep(
            spec, args, batch * length * parts, max(1, (1 << 14) // many), (*ins, *outs, taps),
            partial(np.copyto, taps, w.T, "unsafe") if fixed else None,
            cost_ns=many * (0.2 + 0.05 * width),
        )
    )  # fmt: skip
    last, count = outs[1], min(width - 1, length)
    copies: list[tuple[Array | None, Array]] = [(x[:, length - count :], last[:, width - 1 - count :])]
    if count < width - 1:
        old = operands["state"][:, length:] if "state" in operands else None
        copies.append((old, last[:, : width - 1 - count]))
    for source, target in copies:
        if not target.size:
            continue
        value = ex.arg(0, as_dtype(x.dtype)) if source is not None else ex.lit(0, as_dtype(x.dtype))
        copy = tree_step([value], [] if source is None else [source], [target], ctx)
        if copy is None:
            return None
        steps.append(copy)
    return steps
