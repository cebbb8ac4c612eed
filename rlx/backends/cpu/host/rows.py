"""Working dtypes: f16 and bf16 are computed in f32, in scratch memory of each thread; and sums over a first axis."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.half import widen

NpType = np.dtype[Any]
F32 = np.dtype(np.float32)
BLOCK = 1 << 17  # elements in one block of rows
_GROUP = 16  # rows that are added one after the other; their sums are then grouped in the same way


def working(dtype: NpType) -> NpType:
    """f32 for dtypes of 16 bits, else the dtype itself."""
    return F32 if dtype.itemsize == 2 else dtype


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
