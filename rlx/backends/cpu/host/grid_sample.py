"""grid_sample on the CPU: for each image, indices and weights of all neighbours, then one gather for each neighbour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.elementwise.evaluate import bind_trees
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import working
from rlx.backends.cpu.host.windows import padded
from rlx.dtypes import DType, as_dtype, i64
from rlx.ir import Expr, Node
from rlx.ir import expr as ex
from rlx.ops.grid_sample import Exprs, axis_taps


@cpu_kernel("grid_sample")
def bind_grid_sample(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    x, grid, out = ins[0], ins[1], outs[0]
    dtype = working(out.dtype)
    steps: list[Step] = []
    x = padded(x, (), dtype, 0, ctx, steps)
    grid = padded(grid, (), dtype, 0, ctx, steps)
    corners = corners_of(node, x.shape[2:], dtype)
    count = math.prod(out.shape[2:])
    mark = ctx.mark()
    for n in range(len(x)):
        ctx.back_to(mark, 0)
        image = out[n].reshape(x.shape[1], count)
        steps += _image(corners, x[n].reshape(x.shape[1], -1), grid[n].reshape(count, -1), image, ctx)
    return steps


def corners_of(
    node: Node, sizes: tuple[int, ...], dtype: np.dtype[Any], index: DType = i64
) -> list[tuple[Expr, Expr | None, Expr | None]]:
    """The neighbours, each as expressions of the grid's columns: its flat index, its weight (None is 1), and whether it
    lies outside the image (None is never)."""
    kind = as_dtype(dtype)
    last = len(sizes) - 1
    axes = [axis_taps(Exprs, ex.arg(last - i, kind), size, node.attrs) for i, size in enumerate(sizes)]
    result = []
    for corner in product(*axes):
        place = weight = inside = None
        for size, (p, w, good) in zip(sizes, corner, strict=True):
            whole = ex.cast(p, index)
            place = whole if place is None else place * size + whole
            weight = w if weight is None else weight if w is None else weight * w
            inside = good if inside is None else ex.call("and", inside, good)
        assert place is not None
        result.append((place, weight, None if inside is None else ex.call("not", inside)))
    return result


def _image(
    corners: list[tuple[Expr, Expr | None, Expr | None]], x: Array, grid: Array, out: Array, ctx: BindContext
) -> list[Step]:
    columns = [grid[:, i] for i in range(grid.shape[1])]
    count = len(grid)
    trees: list[Expr] = []
    arrays: list[Array] = []

    def kept(tree: Expr | None, dtype: Any) -> Array | None:
        if tree is None:
            return None
        array = ctx.scratch((count,), dtype)
        trees.append(tree)
        arrays.append(array)
        return array

    parts = [(kept(p, np.int64), kept(w, x.dtype), kept(o, np.bool_)) for p, w, o in corners]
    steps = bind_trees(trees, columns, arrays, ctx)
    total = out if out.dtype == x.dtype else ctx.scratch(out.shape, x.dtype)
    term = ctx.scratch(out.shape, x.dtype)
    for number, (place, weight, outside) in enumerate(parts):
        value = term if number else total
        steps.append(partial(x.take, place, 1, value, "clip"))
        if weight is not None:
            steps.append(partial(np.multiply, value, weight, value))
        if outside is not None:
            steps.append(partial(np.copyto, value, np.zeros((), x.dtype), "same_kind", outside))
        if number:
            steps.append(partial(np.add, total, term, total))
    if total is not out:
        steps.append(partial(np.copyto, out, total, "unsafe"))
    return steps
