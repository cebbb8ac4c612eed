"""cross_entropy and its gradient, in blocks of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import BLOCK, row_sums, target_part, wide_part, working
from rlx.ir import Node


@cpu_kernel("cross_entropy")
def bind_cross_entropy(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    return _bind(node, ins[0], ins[1], None, outs[0], ctx)


@cpu_kernel("cross_entropy_grad")
def bind_cross_entropy_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    return _bind(node, ins[1], ins[2], ins[0], outs[0], ctx)


def _bind(node: Node, x: Array, labels: Array, d: Array | None, out: Array, ctx: BindContext) -> list[Step]:
    """Binds the losses or, where their gradient `d` is given, the gradient of the logits."""
    n = x.shape[-1]
    x, labels = x.reshape(-1, n), labels.reshape(-1)
    results = out.reshape(len(x), -1)
    dtype = working(x.dtype)
    step = max(1, BLOCK // n)
    ignored = np.asarray(node.attrs["ignore_index"], labels.dtype)
    zero, last, one = np.asarray(0, np.intp), np.asarray(n - 1, np.intp), np.asarray(1, dtype)
    starts = np.arange(min(step, len(x)), dtype=np.intp) * n
    marks = ctx.mark()

    def piece(number: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        part = slice(number * step, min(len(x), (number + 1) * step))
        logits, calls = wide_part(x[part], ctx, thread)
        rows = len(logits)
        made, after = target_part(results[part], ctx, thread)
        shifted = ctx.scratch(logits.shape, dtype, thread)
        column, picked = (ctx.scratch((rows, 1), dtype, thread) for _ in range(2))
        skipped = ctx.scratch((rows, 1), np.bool_, thread)
        place = ctx.scratch((rows,), np.intp, thread)
        flat = shifted.reshape(-1)
        calls += [
            partial(np.copyto, place, labels[part], "same_kind"),
            partial(np.clip, place, zero, last, place),
            partial(np.add, place, starts[:rows], place),
            partial(np.equal, labels[part], ignored, skipped.reshape(-1)),
            partial(np.maximum.reduce, logits, 1, None, column, True),
            partial(np.subtract, logits, column, shifted),
        ]
        if d is None:
            calls += [
                partial(flat.take, place, None, picked.reshape(-1), "clip"),
                partial(np.exp, shifted, shifted),
                row_sums(shifted, column),
                partial(np.log, column, column),
                partial(np.subtract, column, picked, made),
            ]
        else:
            calls += [
                partial(np.exp, shifted, shifted),
                row_sums(shifted, column),
                partial(np.divide, shifted, column, shifted),
                partial(flat.take, place, None, picked.reshape(-1), "clip"),
                partial(np.subtract, picked, one, picked),
                partial(flat.put, place, picked.reshape(-1), "clip"),
                partial(np.multiply, shifted, d.reshape(-1, 1)[part], made),
            ]
        return [*calls, partial(np.copyto, made, zero, "unsafe", skipped), *after]

    return ctx.split(-(-len(x) // step), 3.0 * x.size, piece)
