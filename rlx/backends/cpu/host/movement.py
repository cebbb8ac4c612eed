"""Strided copies, the large ones by several threads."""

from __future__ import annotations

from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step

_NS_A_BYTE = 0.08
_LEAST_PIECE_BYTES = 1 << 18


def copies(source: Array, target: Array, ctx: BindContext) -> list[Step]:
    """target = source, of equal shapes. A large copy is split along its first axis of four elements or more.

    No call where both are the same memory; where they overlap otherwise, the source is copied to scratch first."""
    if np.may_share_memory(source, target):
        if source.__array_interface__ == target.__array_interface__:
            return []
        saved = ctx.scratch(source.shape, source.dtype)
        return [partial(np.copyto, saved, source), partial(np.copyto, target, saved)]
    if target.nbytes < 4 * _LEAST_PIECE_BYTES:
        return [partial(np.copyto, target, source)]
    axis = max(range(target.ndim), key=lambda i: (target.shape[i] >= 4, -i))
    n = target.shape[axis]
    pieces = min(n, target.nbytes // _LEAST_PIECE_BYTES)

    def bind(piece: int, thread: int) -> list[Step]:
        part = (slice(None),) * axis + (slice(piece * n // pieces, (piece + 1) * n // pieces),)
        return [partial(np.copyto, target[part], source[part])]

    return ctx.split(pieces, target.nbytes * _NS_A_BYTE, bind)
