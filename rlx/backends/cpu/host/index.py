"""gather and gather_elements (numpy.take after the indices are clamped), dynamic slices and one_hot."""

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


@cpu_kernel("gather")
def bind_gather(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    x, indices = ins
    axis = node.attrs["axis"]
    wanted, steps = in_range(indices, x.shape[axis], ctx)
    # With mode "clip" NumPy writes to `out` directly; its default mode writes to a buffer first.
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


@cpu_kernel("gather_elements")
def bind_gather_elements(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    x, indices = ins
    axis, out = node.attrs["axis"], outs[0]
    wanted, steps = in_range(indices, x.shape[axis], ctx)
    # Indices into the flattened x, so that one `take` reads everything.
    strides = np.cumprod([1, *reversed(x.shape[1:])])[::-1]
    scale = np.asarray(strides[axis], np.intp)
    steps.append(partial(np.multiply, wanted, scale, wanted))
    for i, n in enumerate(out.shape):
        if i != axis and n > 1:
            shape = [n if k == i else 1 for k in range(out.ndim)]
            lines = ctx.scratch((n,), np.intp)
            steps += [
                partial(np.copyto, lines, np.arange(n, dtype=np.intp) * strides[i]),
                partial(np.add, wanted, lines.reshape(shape), wanted),
            ]
    return [*steps, partial(x.reshape(-1).take, wanted, None, out, "clip")]


@cpu_kernel("dynamic_slice")
def bind_dynamic_slice(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    x, starts = ins
    out, sizes = outs[0], node.attrs["sizes"]

    def run() -> None:
        np.copyto(out, x[window(x.shape, sizes, starts)])

    return [run]


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
