"""gather_elements, scatters, dynamic windows and one_hot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.index import in_range
from rlx.backends.cpu.kernels import cpu_kernel
from rlx.backends.cpu.rows import working
from rlx.dtypes import as_dtype
from rlx.ir import Node
from rlx.ops.index.dynamic import window
from rlx.ops.numeric import convert

_UFUNCS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


@cpu_kernel("gather_elements")
def bind_gather_elements(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    x, indices = ins
    axis, out = node.attrs["axis"], outs[0]
    wanted, steps = in_range(indices, x.shape[axis], ctx)
    # The element's place in all of x, so that one flat `take` reads everything.
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


@cpu_kernel("scatter", "scatter_elements")
def bind_scatter(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    indices, updates = ins[:2]
    out, x = outs[0], ins[2] if len(ins) == 3 else None
    axis, n, reduction = node.attrs["axis"], node.attrs["length"], node.attrs["reduction"]
    dtype = out.dtype if reduction == "none" else working(out.dtype) if out.dtype.kind in "fV" else out.dtype
    made = out if out.dtype == dtype else ctx.scratch(out.shape, dtype)
    steps: list[Step] = [partial(np.copyto, made, np.zeros((), dtype) if x is None else x)]
    if x is not None and made is out and x.__array_interface__["data"] == out.__array_interface__["data"]:
        steps = []
    if updates.size:
        steps.append(_joined(node, indices, updates, made, axis, n, reduction))
    if made is not out:
        steps.append(partial(np.copyto, out, made, "unsafe"))
    return steps


def _joined(
    node: Node, indices: Array, updates: Array, made: Array, axis: int, n: int, reduction: str
) -> Step:
    """The updates in the order of the indices: NumPy's `at` takes them one by one, and assignment keeps the last."""
    if node.op.name == "scatter":
        head = int(np.prod(updates.shape[:axis], dtype=np.int64))
        source = updates.reshape(head, indices.size, -1).transpose(1, 0, 2)
        target = made.reshape(head, n, -1).transpose(1, 0, 2)
        flat = indices.reshape(-1)
        others: list[Array] = []
    else:
        source, target, flat = updates, made, indices
        others = list(np.indices(indices.shape, np.intp, sparse=True))

    def run() -> None:
        wanted = flat.astype(np.int64)
        wanted += np.where(wanted < 0, n, 0)
        valid = (wanted >= 0) & (wanted < n)
        whole = bool(valid.all())
        key: Any = wanted if whole else wanted[valid]
        if others:
            places = [key if i == axis else np.broadcast_to(o, flat.shape) for i, o in enumerate(others)]
            key = tuple(p if whole or i == axis else p[valid] for i, p in enumerate(places))
        given = source if whole else source[valid]
        if reduction == "none":
            target[key] = given
        else:
            _UFUNCS[reduction].at(target, key, given.astype(target.dtype, copy=False))

    return run


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
        # A negative index counts from the end: the length is added where the sign is set.
        partial(np.right_shift, front, np.asarray(63), past),
        partial(np.bitwise_and, past, np.asarray(depth), past),
        partial(np.add, front, past, front),
        partial(np.equal, front, places, hit),
        partial(np.copyto, out, off),
        partial(np.copyto, out, on, where=hit),
    ]
