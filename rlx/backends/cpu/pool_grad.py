"""max_pool_grad: each window's gradient goes to the first of its largest elements, or to its first NaN.

An item is a vector of channels of a channels-last image, or one channel. It goes through all windows in order, so no
two items write the same element, and sums do not depend on threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, I32, I64, Kernel, Value, pointers, sizes
from rlx.backends.cpu.pooling import windows
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.ir import Node
from rlx.records import Record

_ARRAYS = ("x", "d", "out")
_AXES = ("image", "channel", "down", "row", "column")
_STRIDES = tuple(f"{x}_{a}" for x in _ARRAYS for a in _AXES)
_NUMBERS = tuple(f"{what}_{a}" for what in ("count", "size", "dilation") for a in _AXES[2:])
_TABLES = tuple(f"table_{a}" for a in _AXES[2:])


class MaxPoolGradient(Record):
    """The gradient of images (N, C, D, H, W), `lanes` neighbouring channels at a time. Strides are in bytes. Each table
    has (first element, taps) of the windows along an axis."""

    lanes: int
    args = pointers(*_ARRAYS, *_TABLES) + sizes(*_NUMBERS, "channels", *_STRIDES)

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        w = k.all_args()
        vector, numbers = F32.of(lanes), I32.of(lanes)
        blocks = k.binary("udiv", w["channels"] + (lanes - 1), k.const(I64, lanes))
        down, row, column = _AXES[2:]
        with k.loop(k.first, k.last) as item:
            image = k.binary("udiv", item, blocks)
            channel = (item - image * blocks) * lanes
            mask = None if lanes == 1 else k.tail(k.min(w["channels"] - channel, lanes), lanes)
            x, d, out = (k.at(w[a], image * w[f"{a}_image"] + channel * w[f"{a}_channel"]) for a in _ARRAYS)

            def place(base: Value, name: str, z: Value, y: Value, x: Value) -> Value:
                return k.at(base, z * w[f"{name}_{down}"] + y * w[f"{name}_{row}"] + x * w[f"{name}_{column}"])

            shape = [w[f"size_{a}"] for a in (down, row, column)]
            with k.loop(0, shape[0]) as z, k.loop(0, shape[1]) as y, k.loop(0, shape[2]) as i:
                k.store(k.const(vector, 0.0), place(out, "out", z, y, i), mask)
            counts = [w[f"count_{a}"] for a in (down, row, column)]
            with k.loop(0, counts[0]) as oz, k.loop(0, counts[1]) as oy, k.loop(0, counts[2]) as ox:
                at, taps = [], []
                for axis, o in zip((down, row, column), (oz, oy, ox), strict=True):
                    entry = k.at(w[f"table_{axis}"], o * 2, I64)
                    at.append(k.load(I64, entry))
                    taps.append(k.load(I64, k.at(entry, 1, I64)))
                steps = [w[f"dilation_{a}"] for a in (down, row, column)]
                value, chosen = k.variable(k.const(vector, -math.inf)), k.variable(k.const(numbers, -1))
                number = k.variable(k.const(I32, 0))
                with k.loop(0, taps[0]) as kz, k.loop(0, taps[1]) as ky, k.loop(0, taps[2]) as kx:
                    here = [a + t * s for a, t, s in zip(at, (kz, ky, kx), steps, strict=True)]
                    v = k.load(vector, place(x, "x", *here), mask)
                    held, best = value.value, chosen.value
                    better = k.cmp("ogt", v, held) | (k.cmp("uno", v, v) & k.cmp("ord", held, held))
                    better = better | k.cmp("slt", best, 0)
                    value.value = k.select(better, v, held)
                    chosen.value = k.select(better, k.splat(number.value, lanes), best)
                    number.value = number.value + 1
                share = k.load(vector, place(d, "d", oz, oy, ox), mask)
                number.value = k.const(I32, 0)
                with k.loop(0, taps[0]) as kz, k.loop(0, taps[1]) as ky, k.loop(0, taps[2]) as kx:
                    here = [a + t * s for a, t, s in zip(at, (kz, ky, kx), steps, strict=True)]
                    target = place(out, "out", *here)
                    mine = k.cmp("eq", chosen.value, k.splat(number.value, lanes))
                    old = k.load(vector, target, mask)
                    k.store(k.select(mine, old + share, old), target, mask)
                    number.value = number.value + 1
        return k.text()


@engine("max_pool_grad", images="follows")
def bind_max_pool_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    attrs, (x, d), out = node.attrs, ins, outs[0]
    spatial = x.ndim - 2
    if any(a.dtype != np.float32 for a in (x, d, out)) or not 1 <= spatial <= 3 or x.size == 0 or d.size == 0:
        return None
    if any(np.may_share_memory(a, out) for a in ins):
        return None
    geometry = zip(
        x.shape[2:], attrs["kernel"], attrs["strides"], attrs["dilations"], (p[0] for p in attrs["pads"]), d.shape[2:],
        strict=True,
    )  # fmt: skip
    missing = 3 - spatial
    tables = [windows(1, 1, 1, 1, 0, 1)] * missing + [windows(*axis) for axis in geometry]
    one = [1] * missing
    last = all(a.strides[1] == a.itemsize for a in (x, d, out))
    strides = [s for a in (x, d, out) for s in (*a.strides[:2], *([0] * missing), *a.strides[2:])]
    lanes = ctx.machine.lanes() if last else 1
    spec = MaxPoolGradient(lanes)
    numbers = (*one, *d.shape[2:], *one, *x.shape[2:], *one, *attrs["dilations"])
    args = spec.args(
        x=x, d=d, out=out, channels=x.shape[1], **dict(zip(_TABLES, tables, strict=True)),
        **dict(zip(_NUMBERS, numbers, strict=True)), **dict(zip(_STRIDES, strides, strict=True)),
    )  # fmt: skip
    cost = (math.prod(x.shape[2:]) + 2.0 * math.prod(d.shape[2:]) * math.prod(attrs["kernel"])) * 0.7
    items = x.shape[0] * -(-x.shape[1] // lanes)
    return [EngineStep(spec, args, items, 1, (x, d, out, *tables), cost_ns=cost)]
