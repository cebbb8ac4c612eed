"""Depthwise convolution on the CPU: sums of shifted images, one einsum for all taps in a column of the kernel.

An image is laid out so that a shift is an offset in memory and inner loops are as long as the image: rows follow one
another, and elements one stride apart are neighbours (they form a phase). Where a row of the result is no shorter than
a phase's rows, these have no padding, and the elements that a shift brings in from the neighbouring row are cleared.
Elsewhere rows are padded, and the results at the end of every row are not used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.records import Record

_BLOCK_ELEMENTS = 1 << 17
_NS_A_TAP = 0.16
_AXES = "ij"

# (sums of some channels, result, these output channels, thread) -> calls of the epilogue
Finish = Callable[[Array, Array, slice, int], "list[Step]"]


class _Run(Record):
    """Taps along an axis that read one phase: their shifts start at `first` and are `step` apart."""

    phase: int
    first: int
    step: int
    taps: slice


class _Axis:
    """A spatial axis laid out by phase: position i of phase p holds element i · stride + p of the padded image, or,
    when `tight`, of the image itself."""

    def __init__(
        self, n: int, count: int, kernel: int, stride: int, dilation: int, before: int, last: bool
    ) -> None:
        self.tight = last and all(len(range(p, n, stride)) <= count for p in range(min(stride, n)))
        self._n, self._stride, self._before = n, stride, 0 if self.tight else before
        offset = before if self.tight else 0
        self._taps = [divmod(k * dilation - offset, stride) for k in range(kernel)]  # (shift, phase)
        self.phases = sorted({phase for _, phase in self._taps})
        self.count = count
        self.reach = max(abs(shift) for shift, _ in self._taps)
        self.size = count if self.tight else count + max(shift for shift, _ in self._taps)

    def held(self, phase: int) -> tuple[slice, slice]:
        """(positions of a phase that hold elements of the image, these elements); the other positions are padding."""
        first = max(0, -(-(self._before - phase) // self._stride))
        start = first * self._stride + phase - self._before
        length = min(max(self.size - first, 0), len(range(start, self._n, self._stride)))
        return slice(first, first + length), slice(start, start + length * self._stride, self._stride)

    def runs(self) -> list[_Run]:
        """The taps of each phase as one run: their shifts are evenly spaced."""
        return [self._run([k for k, (_, p) in enumerate(self._taps) if p == phase]) for phase in self.phases]

    def singles(self) -> list[_Run]:
        """Every tap as a run of its own. A tap of shift 0, which needs no clearing, comes first where there is one."""
        return sorted((self._run([k]) for k in range(len(self._taps))), key=lambda r: abs(r.first))

    def _run(self, taps: list[int]) -> _Run:
        (first, phase), *others = (self._taps[k] for k in taps)
        every = taps[1] - taps[0] if others else 1
        return _Run(phase, first, others[0][0] - first if others else 1, slice(taps[0], taps[-1] + 1, every))

    def foreign(self, shift: int) -> slice | None:
        """The positions that a shift fills from a neighbouring row; None where it fills none, or rows are padded."""
        if not self.tight or shift == 0:
            return None
        return slice(0, min(-shift, self.count)) if shift < 0 else slice(max(0, self.count - shift), None)


def bind_depthwise(
    attrs: Any, x: Array, w: Array, out: Array, ctx: BindContext, finish: Finish
) -> list[Step]:
    """x (N, C, *S) without padding and w (C·each, 1, *K) in the working dtype; `finish` writes the sums to `out`."""
    kernel, counts = w.shape[2:], out.shape[2:]
    channels, each, rank = x.shape[1], w.shape[0] // x.shape[1], len(kernel)
    axes = [
        _Axis(n, c, k, s, d, before, i == rank - 1)
        for i, (n, c, k, s, d, (before, _)) in enumerate(
            zip(x.shape[2:], counts, kernel, attrs["strides"], attrs["dilations"], attrs["pads"], strict=True)
        )
    ]
    sizes = tuple(a.size for a in axes)
    plane = math.prod(sizes)
    pitch = [math.prod(sizes[i + 1 :]) for i in range(rank)]
    length = sum((c - 1) * p for c, p in zip(counts, pitch, strict=True)) + 1
    factors = w.reshape(channels, each, *kernel)
    target = out.reshape(len(out), channels, each, *counts)
    block = max(1, min(_BLOCK_ELEMENTS // plane, -(-channels // 2)))
    parts = [slice(i, min(channels, i + block)) for i in range(0, channels, block)]
    pieces = [(n, part) for n in range(len(out)) for part in parts]
    taps = list(itertools.product(*(a.runs() for a in axes[:-1]), axes[-1].singles()))
    marks = ctx.mark()

    def bind(piece: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        n, part = pieces[piece]
        planes, steps = _laid_out(x[n, part], axes, ctx, thread)
        count = part.stop - part.start
        total, term = (ctx.scratch((count, length), x.dtype, thread) for _ in range(2))
        moves = (total.strides[0], *(p * x.itemsize for p in pitch))
        for j in range(each):
            for number, reaches in enumerate(taps):
                into = term if number else total
                at = axes[-1].reach + sum(r.first * p for r, p in zip(reaches, pitch, strict=True))
                weights = factors[(part, j, *(r.taps for r in reaches[:-1]), reaches[-1].taps.start)]
                apart = [r.step * p for r, p in zip(reaches[:-1], pitch, strict=False)]
                start = planes[tuple(r.phase for r in reaches)][at:]
                steps.append(_summed(start, plane, apart, weights, into))
                foreign = axes[-1].foreign(reaches[-1].first)
                if foreign is not None:
                    rows = as_strided(into, (count, *counts), moves)
                    steps.append(partial(np.copyto, rows[..., foreign], np.zeros((), x.dtype)))
                if number:
                    steps.append(partial(np.add, total, term, total))
            every = slice(part.start * each + j, (part.stop - 1) * each + j + 1, each)
            sums = as_strided(total, (count, *counts), moves)
            steps += finish(sums, target[n, part, j], every, thread)
        return steps

    work = len(out) * channels * each * length * math.prod(kernel) * _NS_A_TAP
    return ctx.split(len(pieces), work, bind)


def _laid_out(
    x: Array, axes: Sequence[_Axis], ctx: BindContext, thread: int
) -> tuple[dict[tuple[int, ...], Array], list[Step]]:
    """Planes (channels, *sizes) in scratch by combination of phases, with a margin before and after them as long as the
    longest shift along the last axis; and the calls that fill the planes."""
    sizes = tuple(a.size for a in axes)
    margin, numel = axes[-1].reach, len(x) * math.prod(sizes)
    planes: dict[tuple[int, ...], Array] = {}
    steps: list[Step] = []
    zero = np.zeros((), x.dtype)
    for phases in itertools.product(*(a.phases for a in axes)):
        planes[phases] = ctx.scratch((numel + 2 * margin,), x.dtype, thread)
        held = planes[phases][margin : margin + numel].reshape(len(x), *sizes)
        inside: tuple[slice, ...] = (slice(None),)
        source: tuple[slice, ...] = (slice(None),)
        for axis, phase in zip(axes, phases, strict=True):
            to, of = axis.held(phase)
            for border in (slice(0, to.start), slice(to.stop, axis.size)):
                if border.start < border.stop:
                    steps.append(partial(np.copyto, held[(*inside, border)], zero))
            inside, source = (*inside, to), (*source, of)
        steps.append(partial(np.copyto, held[inside], x[source]))
    return planes, steps


def _summed(start: Array, channel: int, moves: Sequence[int], weights: Array, out: Array) -> Step:
    """out[c, l] = the sum over the taps t of weights[c, t] · start[c · channel + t · moves + l]."""
    size = start.itemsize
    strides = (channel * size, *(m * size for m in moves), size)
    seen = as_strided(start, (*weights.shape, out.shape[1]), strides)
    taps = _AXES[: len(moves)]
    return partial(np.einsum, f"c{taps}l,c{taps}->cl", seen, weights, out=out)
