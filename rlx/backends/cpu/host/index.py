"""one_hot, and dynamic_update_slice, whose reference would copy the array that is updated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.dtypes import as_dtype
from rlx.ir import Node
from rlx.ops.index.dynamic import window
from rlx.ops.numeric import convert


@cpu_kernel("dynamic_update_slice")
def bind_dynamic_update(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    x, update, starts = ins
    out = outs[0]
    same = x.__array_interface__["data"] == out.__array_interface__["data"]

    def run() -> None:
        out[window(x.shape, update.shape, starts)] = update

    return [run] if same else [partial(np.copyto, out, x), run]


@cpu_kernel("one_hot")
def bind_one_hot(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    axis, depth = node.attrs["axis"], node.attrs["depth"]
    out = outs[0]
    on, off = (convert(np.asarray(node.attrs[k]), as_dtype(out.dtype)) for k in ("on", "off"))
    indices = np.expand_dims(ins[0], axis)
    places = np.arange(depth, dtype=np.int64).reshape([depth if i == axis else 1 for i in range(out.ndim)])
    front, past = (ctx.scratch(indices.shape, np.int64) for _ in range(2))
    hit = ctx.scratch(out.shape, np.bool_)
    return [
        partial(np.copyto, front, indices),
        # A negative index counts from the end: add the depth where it is below 0, without a branch.
        partial(np.right_shift, front, np.asarray(63), past),
        partial(np.bitwise_and, past, np.asarray(depth), past),
        partial(np.add, front, past, front),
        partial(np.equal, front, places, hit),
        partial(np.copyto, out, off),
        partial(np.copyto, out, on, where=hit),
    ]
