"""rope on the CPU: pairs are rotated in blocks, by the cos and sin of their positions from the tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import BLOCK, target_part, wide_part, working
from rlx.ir import Node
from rlx.ops.rope.rotate import MAX_POSITIONS, halves


@cpu_kernel("rope")
def bind_rope(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    x, out = ins[0], outs[0]
    attrs = node.attrs
    axis, sections, interleaved = attrs["axis"], attrs["sections"], attrs["interleaved"]
    half, n, size = ins[1].shape[1], x.shape[axis], x.shape[-1]
    dtype = working(x.dtype)
    steps, tables = _tables(node, ins[1:], ctx, np.dtype(dtype))
    if attrs["inverse"]:
        turned = ctx.scratch(tables[1].shape, dtype)
        steps.append(partial(np.negative, tables[1], turned))
        tables[1] = turned
    per_batch = tables[0].ndim == 3
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 : -1])
    members = outer // x.shape[0] if axis else 1
    rows, results = (a.reshape(outer, n, inner, size) for a in (x, out))
    pair = (n, 1, sections, half // sections)
    step = max(1, min(members if per_batch else outer, BLOCK // max(n * inner * size, 1)))
    whole = members if per_batch else outer  # how many outer indices share the same rows of the tables
    blocks = [
        slice(first + i, first + min(i + step, whole))
        for first in range(0, outer, whole)
        for i in range(0, whole, step)
    ]
    marks = ctx.mark()

    def piece(number: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        part = blocks[number]
        source, calls = wide_part(rows[part], ctx, thread)
        target, after = target_part(results[part], ctx, thread)
        at = part.start // members if per_batch else ...
        c, s = (t[at].reshape(pair) for t in tables)
        a, b = halves(source, half, interleaved, sections)
        first, second = halves(target, half, interleaved, sections)
        ac, bs, bc = (ctx.scratch(a.shape, dtype, thread) for _ in range(3))
        # The first half is written last, since `target` may be the same memory as `source`.
        calls += [
            partial(np.multiply, a, c, ac),
            partial(np.multiply, b, s, bs),
            partial(np.multiply, b, c, bc),
            partial(np.subtract, ac, bs, ac),
            partial(np.multiply, a, s, bs),
            partial(np.add, bc, bs, second),
            partial(np.copyto, first, ac),
        ]
        if 2 * half < size and not np.may_share_memory(source, target):
            calls.append(partial(np.copyto, target[..., 2 * half :], source[..., 2 * half :]))
        return [*calls, *after]

    return steps + ctx.split(len(blocks), 2.0 * x.size, piece)


def _tables(
    node: Node, ins: Sequence[Array], ctx: BindContext, dtype: np.dtype[np.generic]
) -> tuple[list[Step], list[Array]]:
    """The rows of cos and sin for each position, (n, half) or (batch, n, half), in the working dtype."""
    cos, sin, *positions = ins
    axis, offset = node.attrs["axis"], node.attrs["offset"]
    n, last = node.inputs[0].shape[axis], max(cos.shape[0] - 1, 0)
    steps: list[Step] = []
    taken = []
    place = None
    if positions:
        (p,) = positions
        shape = p.shape if p.ndim else (n,)
        place = ctx.scratch(shape, np.intp)
        first = np.arange(n, dtype=np.intp) + offset if p.ndim == 0 else np.asarray(offset, np.intp)
        near, zero, end = (np.asarray(v, np.intp) for v in (MAX_POSITIONS, 0, last))
        steps = [
            partial(np.copyto, place, p, "same_kind"),
            partial(np.clip, place, -near, near, place),
            partial(np.add, place, first, place),
            partial(np.clip, place, zero, end, place),
        ]
    for table in (cos, sin):
        if place is None:
            rows = table[offset : offset + n]
        else:
            rows = ctx.scratch((*place.shape, table.shape[1]), table.dtype)
            steps.append(partial(table.take, place, 0, rows, "clip"))
        if rows.dtype != dtype:
            wide = ctx.scratch(rows.shape, dtype)
            steps.append(partial(np.copyto, wide, rows, "unsafe"))
            rows = wide
        taken.append(rows)
    return steps, taken
