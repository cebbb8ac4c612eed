"""Arrays as matrices, computed in blocks of rows: in f32 for f16 and bf16, with scratch memory for each thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.half import widen

NpType = np.dtype[Any]
F32 = np.dtype(np.float32)
BLOCK = 1 << 17  # elements in one block of rows
_GROUP = 16  # so many rows are added one after the other, then their sums likewise

# (rows of each input, rows of the output, thread) -> calls; all in the working dtype
BindRows = Callable[[list[Array], Array, int], "list[Step]"]


def working(dtype: NpType) -> NpType:
    """f32 for dtypes of 16 bits, else the dtype itself."""
    return F32 if dtype.itemsize == 2 else dtype


def by_rows(
    ins: Sequence[Array], out: Array, ctx: BindContext, ns_an_element: float, bind: BindRows
) -> list[Step]:
    """Calls `bind` on blocks of rows of matrices with equally many rows. f16 and bf16 are widened before it and rounded
    after it."""
    rows, columns = out.shape
    step = max(1, BLOCK // max(columns, 1))
    pieces = -(-rows // step)
    step = -(-rows // pieces)
    marks = ctx.mark()

    def piece(number: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        part = slice(number * step, min(rows, (number + 1) * step))
        steps: list[Step] = []
        given = []
        for x in ins:
            x = x[part]
            if x.dtype != working(x.dtype):
                wide = ctx.scratch(x.shape, F32, thread)
                steps += widen(x, wide, ctx, thread)
                x = wide
            given.append(x)
        result = out[part]
        made = result if out.dtype == working(out.dtype) else ctx.scratch(result.shape, F32, thread)
        steps += bind(given, made, thread)
        if made is not result:
            steps.append(partial(np.copyto, result, made, "unsafe"))
        return steps

    return ctx.split(-(-rows // step), out.size * ns_an_element, piece)


def row_vector(x: Array, dtype: NpType, ctx: BindContext) -> tuple[Array, list[Step]]:
    """A vector such as gamma in the working dtype, and the calls that convert it once, before the blocks of rows."""
    if x.dtype == dtype:
        return x, []
    wide = ctx.scratch(x.shape, dtype)
    return wide, [partial(np.copyto, wide, x, "unsafe")]


def centre_rows(x: Array, made: Array, column: Array, ctx: BindContext, thread: int) -> list[Step]:
    """made = each row less its mean, as `rlx.ops.numeric.centred`; made may be x. It first subtracts an estimate, the
    mean of the row's first sixteenth, then the mean of the differences: only this one needs a sweep over all of x."""
    n = x.shape[1]
    few = -(-n // 16)
    some = ctx.scratch((len(x), few), x.dtype, thread)
    first, near, count = x[:, :1], np.asarray(few, x.dtype), np.asarray(n, x.dtype)
    return [
        partial(np.subtract, x[:, :few], first, some),
        row_sums(some, column),
        partial(np.divide, column, near, column),
        partial(np.add, column, first, column),
        partial(np.subtract, x, column, made),
        row_sums(made, column),
        partial(np.divide, column, count, column),
        partial(np.subtract, made, column, made),
    ]


def row_sums(x: Array, total: Array) -> Step:
    """total[i, 0] = the pairwise sum of row i."""
    return partial(np.add.reduce, x, 1, None, total, True)


def sum_first_axis(x: Array, total: Array, ctx: BindContext, thread: int = 0) -> list[Step]:
    """total[0] = the sum over the first axis, in groups of groups: NumPy would add row after row and lose precision."""
    steps: list[Step] = []
    while len(x) > _GROUP:
        groups, rest = divmod(len(x), _GROUP)
        sums = ctx.scratch((groups + bool(rest), *x.shape[1:]), x.dtype, thread)
        whole = x[: groups * _GROUP].reshape(groups, _GROUP, *x.shape[1:])
        steps.append(partial(np.add.reduce, whole, 1, None, sums[:groups]))
        if rest:
            steps.append(partial(np.add.reduce, x[groups * _GROUP :], 0, None, sums[groups:], True))
        x = sums
    steps.append(partial(np.add.reduce, x, 0, None, total, True))
    return steps


def wide_part(x: Array, ctx: BindContext, thread: int) -> tuple[Array, list[Step]]:
    """x in the working dtype, and the calls that widen it."""
    dtype = working(x.dtype)
    if x.dtype == dtype:
        return x, []
    wide = ctx.scratch(x.shape, dtype, thread)
    return wide, widen(x, wide, ctx, thread)


def target_part(out: Array, ctx: BindContext, thread: int) -> tuple[Array, list[Step]]:
    """An array in the working dtype to compute `out` in, and the calls that round it to `out`."""
    dtype = working(out.dtype)
    if out.dtype == dtype:
        return out, []
    made = ctx.scratch(out.shape, dtype, thread)
    return made, [partial(np.copyto, out, made, "unsafe")]
