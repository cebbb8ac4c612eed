"""sort, argsort and top_k by NumPy's functions, which allocate memory at each run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import working
from rlx.ir import Node

_FEW = 8  # top_k of at most 1/8 of an axis selects k elements first and sorts only these


def _widened(x: Array, ctx: BindContext) -> tuple[Array, list[Step]]:
    """x in its working dtype, since NumPy compares f16 and bf16 element by element, without vector instructions."""
    if x.dtype.kind in "iub" or x.dtype == working(x.dtype):
        return x, []
    wide = ctx.scratch(x.shape, np.float32)
    return wide, [partial(np.copyto, wide, x)]


@cpu_kernel("sort", "argsort", "top_k")
def bind_sort(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    attrs = node.attrs
    x, steps = _widened(ins[0], ctx)
    descending = attrs["largest" if "k" in attrs else "descending"]
    axis, n = attrs["axis"], x.shape[attrs["axis"]]
    keys = np.moveaxis(x, axis, -1)
    source = np.moveaxis(ins[0], axis, -1)
    index = np.moveaxis(outs[-1], axis, -1)
    values = np.moveaxis(outs[0], axis, -1) if len(outs) == 2 else None
    k = index.shape[-1]

    def run() -> None:
        order = _best(keys, k, descending) if k * _FEW <= n else _order(keys, descending)[..., :k]
        index[...] = order
        if values is not None:
            values[...] = np.take_along_axis(source, order, -1)

    return [*steps, run]


def _order(keys: Array, descending: bool) -> Array:
    """The stable order along the last axis."""
    if not descending:
        return np.argsort(keys, axis=-1, kind="stable")
    # The reversed axis is sorted and the result reversed, so that equal elements keep their order.
    back = np.argsort(keys[..., ::-1], axis=-1, kind="stable")
    np.subtract(keys.shape[-1] - 1, back, back)
    return back[..., ::-1]


def _best(keys: Array, k: int, descending: bool) -> Array:
    """The first k of the stable order: a partition finds the k-th value, then come all elements better than it, then
    the first of those equal to it."""
    result = np.empty((*keys.shape[:-1], k), np.intp)
    n = keys.shape[-1]
    for at in np.ndindex(keys.shape[:-1]):
        line = keys[at]
        edge = np.partition(line, n - k if descending else k - 1)[n - k if descending else k - 1]
        if edge != edge:
            same, better = np.isnan(line), np.zeros(n, np.bool_) if descending else ~np.isnan(line)
        else:
            same = line == edge
            better = (line > edge) | (line != line) if descending else line < edge
        places = np.flatnonzero(better)
        chosen = np.sort(np.concatenate([places, np.flatnonzero(same)[: k - places.size]]))
        result[at] = chosen[_order(line[chosen], descending)]
    return result
