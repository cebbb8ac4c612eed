"""Frames, their sum, power and transforms on the CPU, by strided views; convolution in blocks; peaks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.fft import complex_view, library
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import working
from rlx.ir import Node
from rlx.ops.signal.frames import frame_count
from rlx.ops.signal.peaks import find_peaks
from rlx.ops.signal.power import blocks, sides, weighted
from rlx.ops.signal.transforms import reaches

_NS_PER_BIT = 0.5  # time for a sample of a segment for each binary digit of the transform's length


def frames_of(x: Array, shape: tuple[int, ...], hop: int) -> Array:
    """The view of a signal as (..., frames, samples)."""
    return as_strided(x, (*x.shape[:-1], *shape), (*x.strides[:-1], hop * x.strides[-1], x.strides[-1]))


@cpu_kernel("overlap_add")
def bind_overlap_add(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """Adds parts of at most `hop` samples of every frame at once: within such a part no two frames overlap. The last
    part goes first, since an output gets the later samples of earlier frames."""
    x, out, hop = ins[0], outs[0], node.attrs["hop"]
    dtype = working(out.dtype)
    total = out if out.dtype == dtype else ctx.scratch(out.shape, dtype)
    steps: list[Step] = [partial(np.copyto, total, 0)]
    if x.size:
        for start in reversed(range(0, x.shape[-1], hop)):
            part = x[..., start : start + hop]
            where = frames_of(total[..., start:], part.shape[-2:], hop)
            steps.append(partial(np.add, where, part, where))
    if total is not out:
        steps.append(partial(np.copyto, out, total, "unsafe"))
    return steps


@cpu_kernel("segment_power")
def bind_segment_power(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """Transforms segments in blocks that fit into a cache, and adds up their powers."""
    (x, window), out = ins, outs[0]
    if out.size == 0:
        return []
    attrs, length = node.attrs, len(window)
    count = frame_count(x.shape[-1], length, attrs["hop"])
    seen = frames_of(x.reshape(-1, x.shape[-1]), (count, length), attrs["hop"])
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

    work = _NS_PER_BIT * x.size * max(1, length // attrs["hop"]) * attrs["nfft"].bit_length()
    return ctx.split(len(target), work, bind)


@cpu_kernel("segment_spectra")
def bind_segment_spectra(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """Transforms segments in blocks that fit into a cache, and writes each segment's spectrum as a column."""
    (x, window), out = ins, outs[0]
    if out.size == 0:
        return []
    hop, nfft, count, n, length = node.attrs["hop"], node.attrs["nfft"], out.shape[-2], x.shape[-1], len(window)
    signal, target = x.reshape(-1, n), complex_view(out).reshape(-1, *out.shape[-3:-1])
    wide = ctx.scratch((len(signal), max((count - 1) * hop + length, node.attrs["start"] + n)), x.dtype)
    seen = frames_of(wide, (count, length), hop)
    parts = blocks(count, nfft)

    def transform(row: int, part: slice) -> None:
        np.copyto(target[row, :, part], library().rfft(seen[row, part] * window, nfft).T, "same_kind")

    def bind(piece: int, thread: int) -> list[Step]:
        return [partial(transform, piece // len(parts), parts[piece % len(parts)])]

    begin = partial(_between_zeros, signal, wide, node.attrs["start"])
    work = _NS_PER_BIT * len(signal) * count * nfft * nfft.bit_length()
    return [begin, *ctx.split(len(signal) * len(parts), work, bind)]


def _between_zeros(x: Array, wide: Array, start: int) -> None:
    """Copies lines into longer ones, from index `start` on; the rest is 0."""
    wide[:, :start] = 0
    wide[:, start : start + x.shape[-1]] = x
    wide[:, start + x.shape[-1] :] = 0


@cpu_kernel("segment_signal")
def bind_segment_signal(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """Transforms spectra back to segments and adds them up where they overlap. Each block writes samples of its own;
    segments of earlier blocks that reach these are transformed again."""
    (z, window), out = ins, outs[0]
    if out.size == 0:
        return []
    hop, nfft, start, count, length = (
        node.attrs["hop"], node.attrs["nfft"], node.attrs["start"], z.shape[-2], len(window),
    )  # fmt: skip
    source, target = complex_view(z).reshape(-1, *z.shape[-3:-1]), out.reshape(-1, out.shape[-1])
    before = reaches(length, hop) - 1
    each = max(1, (1 << 16) // nfft)
    parts = range(0, -(-(start + target.shape[-1]) // hop), each)

    def transform(row: int, first: int) -> None:
        from_, to = max(0, first - before), min(count, first + each)
        low, high = max(first * hop, start), min((first + each) * hop, start + target.shape[-1])
        if high <= low:
            return
        total = np.zeros((first + each + before - from_) * hop + length, out.dtype)
        if to > from_:
            frames = library().irfft(source[row, :, from_:to].T, nfft)[:, :length] * window
            for i in range(0, length, hop):
                part = frames[:, i : i + hop]
                where = frames_of(total[i:], part.shape, hop)
                np.add(where, part, where, casting="same_kind")
        target[row, low - start : high - start] = total[low - from_ * hop : high - from_ * hop]

    def bind(piece: int, thread: int) -> list[Step]:
        return [partial(transform, piece // len(parts), parts[piece % len(parts)])]

    return ctx.split(len(source) * len(parts), _NS_PER_BIT * z.size * nfft.bit_length(), bind)


@cpu_kernel("block_convolution")
def bind_block_convolution(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """Blocks that stay in a cache, transformed by the library, times the filter's transform and back (overlap-save)."""
    (x, filters), out, nfft = ins, outs[0], node.attrs["nfft"]
    if out.size == 0:
        return []
    n, taps, size = x.shape[-1], filters.shape[-1], out.shape[-1]
    step = nfft - taps + 1
    count = -(-size // step)
    signal, target = x.reshape(-1, n), out.reshape(-1, size)
    wide = ctx.scratch((len(signal), count * step + taps - 1), x.dtype)
    seen = frames_of(wide, (count, nfft), step)
    parts = blocks(count, nfft)
    spectra: list[Array] = []

    def begin() -> None:
        _between_zeros(signal, wide, taps - 1)
        spectrum = library().rfft(filters.reshape(-1, taps), nfft)
        spectra[:] = np.broadcast_to(spectrum, (len(signal), spectrum.shape[-1]))

    def convolve(row: int, part: slice) -> None:
        block = library().irfft(library().rfft(seen[row, part]) * spectra[row], nfft)[:, taps - 1 :].reshape(-1)
        low, high = part.start * step, min(part.stop * step, size)
        target[row, low:high] = block[: high - low]

    def bind(piece: int, thread: int) -> list[Step]:
        return [partial(convolve, piece // len(parts), parts[piece % len(parts)])]

    work = 2 * _NS_PER_BIT * len(signal) * count * nfft * nfft.bit_length()
    return [begin, *ctx.split(len(signal) * len(parts), work, bind)]


@cpu_kernel("peaks")
def bind_peaks(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    def find() -> None:
        for out, result in zip(outs, find_peaks(ins[0]), strict=True):
            np.copyto(out, result)

    return [find] if ins[0].size else []
