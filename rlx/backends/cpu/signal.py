"""frame and overlap_add on the CPU, by strided views."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.kernels import cpu_kernel
from rlx.backends.cpu.movement import copies
from rlx.backends.cpu.rows import working
from rlx.ir import Node


def _frames(x: Array, shape: tuple[int, ...], hop: int) -> Array:
    """The view of a signal as (..., frames, samples)."""
    return as_strided(x, (*x.shape[:-1], *shape), (*x.strides[:-1], hop * x.strides[-1], x.strides[-1]))


@cpu_kernel("frame")
def bind_frame(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    if outs[0].size == 0:
        return []
    return copies(_frames(ins[0], outs[0].shape[-2:], node.attrs["hop"]), outs[0], ctx)


@cpu_kernel("overlap_add")
def bind_overlap_add(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """Adds parts of at most `hop` samples of every frame at once: within such a part no two frames overlap. The last
    part goes first, since an output's earlier frames reach it with their later samples."""
    x, out, hop = ins[0], outs[0], node.attrs["hop"]
    dtype = working(out.dtype)
    total = out if out.dtype == dtype else ctx.scratch(out.shape, dtype)
    steps: list[Step] = [partial(np.copyto, total, 0)]
    if x.size:
        for start in reversed(range(0, x.shape[-1], hop)):
            part = x[..., start : start + hop]
            where = _frames(total[..., start:], part.shape[-2:], hop)
            steps.append(partial(np.add, where, part, where))
    if total is not out:
        steps.append(partial(np.copyto, out, total, "unsafe"))
    return steps
