"""Sliding windows on the CPU: padded copies in scratch, and views of the elements under every window."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from rlx.backends.cpu.context import Array, BindContext, Step

Ints = tuple[int, ...]
Pads = Sequence[tuple[int, int]]


def room_for(sizes: Ints, kernel: Ints, strides: Ints, dilations: Ints, pads: Pads, counts: Ints) -> Pads:
    """(begin, end) padding large enough for every window, also for one that ends beyond `pads` (ceil mode)."""
    return [
        (before, max(after, (c - 1) * s + d * (k - 1) + 1 - before - n))
        for n, k, s, d, (before, after), c in zip(
            sizes, kernel, strides, dilations, pads, counts, strict=True
        )
    ]


def padded(
    x: Array, pads: Pads, dtype: np.dtype[Any], fill: Any, ctx: BindContext, steps: list[Step]
) -> Array:
    """x with its last axes padded, as `dtype`; x itself where neither changes it. Appends the calls to `steps`."""
    if x.dtype == dtype and not any(map(any, pads)):
        return x
    first = x.ndim - len(pads)
    shape = (*x.shape[:first], *(a + n + b for n, (a, b) in zip(x.shape[first:], pads, strict=True)))
    result = ctx.scratch(shape, dtype)
    value = np.asarray(fill, dtype)
    inside: tuple[slice, ...] = (slice(None),) * first
    for before, after in pads:
        for border in (slice(0, before), slice(-after, None)):
            if border != slice(0, 0) and border != slice(0, None):
                steps.append(partial(np.copyto, result[(*inside, border)], value))
        inside = (*inside, slice(before, -after or None))
    steps.append(partial(np.copyto, result[inside], x, "unsafe"))
    return result


def view_windows(x: Array, kernel: Ints, strides: Ints, dilations: Ints, counts: Ints) -> Array:
    """A view (leading axes, *kernel, *counts) of a padded array: the elements under every window, without a copy."""
    first = x.ndim - len(kernel)
    own = x.strides[first:]
    taps = [st * d for st, d in zip(own, dilations, strict=True)]
    moves = [st * s for st, s in zip(own, strides, strict=True)]
    return as_strided(x, (*x.shape[:first], *kernel, *counts), (*x.strides[:first], *taps, *moves))


def at_tap(tap: Sequence[int], strides: Ints, dilations: Ints, counts: Ints) -> tuple[slice, ...]:
    """Slices of the padded spatial axes: the elements at offset `tap` of every window."""
    return tuple(
        slice(t * d, t * d + (c - 1) * s + 1, s)
        for t, s, d, c in zip(tap, strides, dilations, counts, strict=True)
    )
