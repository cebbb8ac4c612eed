"""Data movement by strided copies: reshape, transpose, expand, slice and concat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.ir import Attrs, Node

_NS_A_BYTE = 0.08
_PIECE = 1 << 18  # bytes that one piece of a large copy has at least


def copies(source: Array, target: Array, ctx: BindContext) -> list[Step]:
    """target = source, of equal shapes. A large copy is split along its first axis of four elements or more.

    No call where both are the same memory; where they overlap otherwise, the source is copied to scratch first."""
    if np.may_share_memory(source, target):
        if source.__array_interface__ == target.__array_interface__:
            return []
        saved = ctx.scratch(source.shape, source.dtype)
        return [partial(np.copyto, saved, source), partial(np.copyto, target, saved)]
    if target.nbytes < 4 * _PIECE:
        return [partial(np.copyto, target, source)]
    axis = max(range(target.ndim), key=lambda i: (target.shape[i] >= 4, -i))
    n = target.shape[axis]
    pieces = min(n, target.nbytes // _PIECE)

    def bind(piece: int, thread: int) -> list[Step]:
        part = (slice(None),) * axis + (slice(piece * n // pieces, (piece + 1) * n // pieces),)
        return [partial(np.copyto, target[part], source[part])]

    return ctx.split(pieces, target.nbytes * _NS_A_BYTE, bind)


@cpu_kernel("reshape")
def bind_reshape(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    return copies(ins[0], outs[0].reshape(ins[0].shape), ctx)


@cpu_kernel("transpose")
def bind_transpose(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    return copies(ins[0].transpose(node.attrs["perm"]), outs[0], ctx)


@cpu_kernel("expand")
def bind_expand(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    return copies(np.broadcast_to(ins[0], outs[0].shape), outs[0], ctx)


@cpu_kernel("slice")
def bind_slice(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    return copies(ins[0][cut_of(node.attrs)], outs[0], ctx)


def cut_of(attrs: Attrs) -> tuple[slice, ...]:
    """The slices of the op `slice`."""
    return tuple(
        # A stop of -1 under a negative step means "past the front"; to Python it would mean the last element.
        slice(start, None if step < 0 and stop < 0 else stop, step)
        for start, stop, step in zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True)
    )


@cpu_kernel("concat")
def bind_concat(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    axis = node.attrs["axis"]
    steps: list[Step] = []
    at = 0
    for source in ins:
        n = source.shape[axis]
        if source.size:
            part = (slice(None),) * axis + (slice(at, at + n),)
            steps += copies(source, outs[0][part], ctx)
        at += n
    return steps
