"""Frames, their sum and their power on the CPU, by strided views; peaks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.fft import library
from rlx.backends.cpu.kernels import cpu_kernel
from rlx.backends.cpu.movement import copies
from rlx.backends.cpu.rows import working
from rlx.ir import Node
from rlx.ops.signal.frames import frame_count
from rlx.ops.signal.peaks import find_peaks
from rlx.ops.signal.power import blocks, sides, weighted

_NS = 0.5  # a sample of a segment takes about so many nanoseconds for each binary digit of the transform's length


def _frames(x: Array, shape: tuple[int, ...], hop: int) -> Array:
    """The view of a signal as (..., frames, samples)."""
    return as_strided(x, (*x.shape[:-1], *shape), (*x.strides[:-1], hop * x.strides[-1], x.strides[-1]))


@cpu_kernel("frame")
def bind_frame(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    if outs[0].size == 0:
        return []
    return copies(_frames(ins[0], outs[0].shape[-2:], node.attrs["hop"]), outs[0], ctx)


@cpu_kernel("windowed_frames")
def bind_windowed_frames(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    (x, window), out = ins, outs[0]
    return [partial(np.multiply, _frames(x, out.shape[-2:], node.attrs["hop"]), window, out)] if out.size else []


@cpu_kernel("overlap_add")
def bind_overlap_add(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """Adds parts of at most `hop` samples of every frame at once: within such a part no two frames overlap. The last
    part goes first, since an output's earlier frames reach it with their later samples."""
    x, out, hop = ins[0], outs[0], node.attrs["hop"]
    dtype = working(out.dtype)
    total = out if out.dtype == dtype else ctx.scratch(out.shape, dtype)
    steps: list[Step] = [partial(np.copyto, total, 0)]
    if x.size:
        for start in reversed(range(0, x.shape[-1], hop)):
            part = x[..., start : start + hop]
            where = _frames(total[..., start:], part.shape[-2:], hop)
            steps.append(partial(np.add, where, part, where))
    if total is not out:
        steps.append(partial(np.copyto, out, total, "unsafe"))
    return steps


@cpu_kernel("segment_power")
def bind_segment_power(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """Blocks of segments that stay in a cache, each transformed by the library and added."""
    (x, window), out = ins, outs[0]
    if out.size == 0:
        return []
    attrs, length = node.attrs, len(window)
    count = frame_count(x.shape[-1], length, attrs["hop"])
    seen = _frames(x.reshape(-1, x.shape[-1]), (count, length), attrs["hop"])
    target = out.reshape(-1, out.shape[-1])
    weight = sides(attrs["nfft"]).astype(out.dtype)
    parts = blocks(count, length)

    def add(row: int) -> None:
        total = np.zeros(len(weight))
        for part in parts:
            z = library().rfft(weighted(seen[row, part], window, attrs["detrend"]), attrs["nfft"])
            total += np.sum(z.real * z.real + z.imag * z.imag, 0)
        np.multiply(total, weight, target[row], casting="same_kind")

    def bind(row: int, thread: int) -> list[Step]:
        return [partial(add, row)]

    return ctx.split(len(target), _NS * x.size * max(1, length // attrs["hop"]) * attrs["nfft"].bit_length(), bind)


@cpu_kernel("peaks")
def bind_peaks(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    def find() -> None:
        for out, found in zip(outs, find_peaks(ins[0]), strict=True):
            np.copyto(out, found)

    return [find] if ins[0].size else []
