"""Pooling on the CPU, as elementwise operations on strided views of the image.

The forward pass reads the image once for each offset along each axis of the window; the gradient of max_pool once for
each offset of the whole window.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import working
from rlx.backends.cpu.host.windows import at_tap, padded, room_for
from rlx.ir import Attrs, Node
from rlx.ops.pool import divisors

_BLOCK_ELEMENTS = 1 << 15
_NS_A_TAP = 0.1


def _room(x: Array, attrs: Attrs, counts: tuple[int, ...]) -> Any:
    return room_for(x.shape[2:], attrs["kernel"], attrs["strides"], _dilations(attrs), attrs["pads"], counts)


def _dilations(attrs: Attrs) -> tuple[int, ...]:
    return tuple(attrs.get("dilations", (1,) * len(attrs["kernel"])))


@cpu_kernel("max_pool", "avg_pool")
def bind_pool(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """Pools one axis at a time. The first goes first: slices along it are contiguous, and less is left for the last."""
    attrs, x, out = node.attrs, ins[0], outs[0]
    largest = node.op.joins == "max"
    dtype = working(out.dtype)
    counts = out.shape[2:]
    steps: list[Step] = []
    x = padded(x, _room(x, attrs, counts), dtype, -np.inf if largest else 0.0, ctx, steps)
    x = x.reshape(-1, *x.shape[2:])
    target = out.reshape(-1, *counts)
    held = None if largest else divisors(ins[0].shape, attrs).astype(dtype)
    join = np.maximum if largest else np.add
    geometry = list(zip(attrs["kernel"], attrs["strides"], _dilations(attrs), counts, strict=True))
    block = max(1, _BLOCK_ELEMENTS // max(1, int(np.prod(counts))))
    parts = [slice(i, min(len(x), i + block)) for i in range(0, len(x), block)]
    marks = ctx.mark()

    def bind(piece: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        seen, result = x[parts[piece]], target[parts[piece]]
        calls: list[Step] = []
        for axis, (kernel, stride, dilation, count) in enumerate(geometry, 1):
            lead = (slice(None),) * axis
            taps = [seen[(*lead, *at_tap((k,), (stride,), (dilation,), (count,)))] for k in range(kernel)]
            last = axis == len(geometry) and result.dtype == dtype
            joined = result if last else ctx.scratch(taps[0].shape, dtype, thread)
            if kernel == 1:
                calls.append(partial(np.copyto, joined, taps[0]))
            for number, tap in enumerate(taps[1:]):
                calls.append(partial(join, joined if number else taps[0], tap, out=joined))
            seen = joined
        if held is not None:
            calls.append(partial(np.divide, seen, held, seen))
        if seen is not result:
            calls.append(partial(np.copyto, result, seen, "unsafe"))
        return calls

    return steps + ctx.split(len(parts), x.size * sum(attrs["kernel"]) * _NS_A_TAP, bind)


@cpu_kernel("max_pool_grad")
def bind_max_pool_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    """Finds the offset of each window's largest element, then adds the gradient offset by offset.

    Offsets are compared in the reference's order, which decides ties. At one offset no two windows read the same
    element, so a plain addition is correct.
    """
    attrs, x, d, out = node.attrs, ins[0], ins[1], outs[0]
    dtype = working(out.dtype)
    counts = d.shape[2:]
    pads = _room(x, attrs, counts)
    if d.size == 0:
        return [partial(np.copyto, out, 0, "unsafe")]
    steps: list[Step] = []
    wide = padded(x, pads, working(x.dtype), -np.inf, ctx, steps)
    d = padded(d, (), dtype, 0, ctx, steps)
    real = np.zeros((1, 1, *wide.shape[2:]), bool)
    kept = tuple(slice(a, a + n) for n, (a, _) in zip(x.shape[2:], pads, strict=True))
    real[(slice(None), slice(None), *kept)] = True
    value, chosen = ctx.scratch(d.shape, wide.dtype), ctx.scratch(d.shape, np.int32)
    better, other, fresh = (ctx.scratch(d.shape, np.bool_) for _ in range(3))
    total, share = ctx.scratch((*out.shape[:2], *wide.shape[2:]), dtype), ctx.scratch(d.shape, dtype)
    zero = np.zeros((), dtype)
    places = [
        (slice(None), slice(None), *at_tap(t, attrs["strides"], _dilations(attrs), counts))
        for t in np.ndindex(*attrs["kernel"])
    ]
    steps += [partial(np.copyto, value, np.asarray(-np.inf, value.dtype)), partial(np.copyto, chosen, -1)]
    for number, place in enumerate(places):
        seen, inside = wide[place], real[place]
        steps += [
            partial(np.greater, seen, value, better),
            partial(np.isnan, seen, other),
            partial(np.equal, value, value, fresh),
            partial(np.logical_and, other, fresh, other),
            partial(np.logical_or, better, other, better),
            partial(np.less, chosen, 0, fresh),
            partial(np.logical_or, better, fresh, better),
            partial(np.logical_and, better, inside, better),
            partial(np.copyto, value, seen, "same_kind", better),
            partial(np.copyto, chosen, number, "same_kind", better),
        ]
    steps.append(partial(np.copyto, total, zero))
    for number, place in enumerate(places):
        where = total[place]
        steps += [
            partial(np.equal, chosen, number, better),
            partial(np.copyto, share, zero),
            partial(np.copyto, share, d, "same_kind", better),
            partial(np.add, where, share, where),
        ]
    steps.append(partial(np.copyto, out, total[(slice(None), slice(None), *kept)], "unsafe"))
    return steps
