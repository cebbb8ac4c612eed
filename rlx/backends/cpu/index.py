"""gather: numpy.take with the indices brought into range first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.kernels import cpu_kernel
from rlx.ir import Node


@cpu_kernel("gather")
def bind_gather(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    x, indices = ins
    axis = node.attrs["axis"]
    wanted, steps = in_range(indices, x.shape[axis], ctx)
    # NumPy takes by a byte pattern whatever the dtype; "clip" writes to `out` without a buffer between.
    return [*steps, partial(x.take, wanted, axis, outs[0], "clip")]


def in_range(indices: Array, n: int, ctx: BindContext) -> tuple[Array, list[Step]]:
    """The indices counted from the front and clamped to 0..n-1, and the calls that compute them."""
    wanted = ctx.scratch(indices.shape, np.intp)
    past = ctx.scratch(indices.shape, np.intp)
    zero, length, last = (np.asarray(v, np.intp) for v in (0, n, n - 1))
    return wanted, [
        partial(np.copyto, wanted, indices, "same_kind"),
        # A negative index counts from the end: add the length where it is below 0, without a branch.
        partial(np.right_shift, wanted, np.asarray(63, np.intp), past),
        partial(np.bitwise_and, past, length, past),
        partial(np.add, wanted, past, wanted),
        partial(np.clip, wanted, zero, last, wanted),
    ]
