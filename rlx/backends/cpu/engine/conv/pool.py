"""Binds `max_pool` and `avg_pool` of images whose channels lie last."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.engine.conv.depthwise import DepthwiseKernel
from rlx.backends.cpu.engine.conv.images import channels_last, window_addresses
from rlx.backends.cpu.engine.step import Declined, EngineContext, EngineStep, address, engine
from rlx.ir import Node
from rlx.ops.pool import divisors


@engine("max_pool", "avg_pool", images="follows")
def bind_pool(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, out = channels_last(ins[0]), channels_last(outs[0])
    if x is None or out is None or x.dtype != np.float32 or x.size == 0:
        raise Declined("channels first")
    attrs, c, lanes = node.attrs, x.shape[-1], ctx.machine.lanes()
    counts, kernel = out.shape[1:-1], attrs["kernel"]
    largest = node.op.joins == "max"
    beside = np.full(max(c, 64), -np.inf if largest else 0.0, np.float32)
    dilations = attrs.get("dilations", (1,) * len(kernel))
    table = window_addresses(x, kernel, attrs["strides"], dilations, attrs["pads"], counts, address(beside))
    parts = (
        beside if largest else np.tile(divisors(ins[0].shape, attrs).astype(np.float32).reshape(-1), len(x))
    )
    vectors = 2 if c > lanes else 1
    spec = DepthwiseKernel(
        lanes, vectors, math.prod(kernel), c % (vectors * lanes) != 0, how="max" if largest else "mean"
    )
    block = counts[-1]
    words = [
        address(table), address(parts), address(out), len(table), c, c * 4, 0, block
    ]  # fmt: skip
    items = len(table) // block * -(-c // (vectors * lanes))
    keep = (table, parts, beside, x, out)
    return [
        EngineStep(
            spec, words, items, 1, keep, name="pool", cost_ns=block * math.prod(kernel) * vectors / 3.0
        )
    ]
