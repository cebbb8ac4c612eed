"""Conformance of the ops of signals: frames, overlapping sums and spectra of frames, and peaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.f64_cases import finer, none
from rlx.conformance.random_rules import MAX_ELEMENTS, Made, is_float, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import ALL, FLOATS, label
from rlx.conformance.terms import over_squares
from rlx.conformance.tolerances import BITS, EQUAL, NORM, ROUNDED
from rlx.dtypes import DType, f32, f64
from rlx.ir import Attrs, apply
from rlx.ir.graph import apply_multi
from rlx.ops.numeric import Array
from rlx.ops.signal.blocks import block_convolution
from rlx.ops.signal.frames import frame, frame_count, overlap_add
from rlx.ops.signal.power import segment_power
from rlx.ops.signal.transforms import segment_signal, segment_spectra

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]
# (shape of the signal, frame length, hop): one sample, one frame, adjacent frames, frames that overlap by half, by a
# quarter and by all but one sample, frames with gaps, samples left over, prime sizes.
_FRAMES: tuple[tuple[Shape, int, int], ...] = (
    ((1,), 1, 1), ((7,), 7, 1), ((7,), 7, 9), ((8,), 4, 4), ((12,), 4, 2), ((13,), 4, 2), ((16,), 8, 2), ((33,), 5, 1),
    ((31,), 3, 7), ((3, 64), 16, 8), ((2, 3, 40), 10, 5), ((1021,), 127, 31), ((2, 1024), 256, 128), ((0, 9), 4, 2),
    ((5, 129), 128, 1), ((257,), 2, 300), ((1, 4, 1, 20), 6, 3), ((3, 515), 64, 48), ((2, 2049), 512, 300),
)  # fmt: skip


def _case(shape: Shape, length: int, hop: int, dtype: DType, domain: str) -> Case:
    name = f"{dtype}-{label(shape)}-{length}-every{hop}-{domain}"
    return Case("frame", name, (InputSpec(shape, dtype, domain),), {"length": length, "hop": hop}, BITS)


def _frames() -> Iterator[Case]:
    for shape, length, hop in _FRAMES:
        yield _case(shape, length, hop, f32, "any")
        yield _case(shape, length, hop, f64, "any")
    for dtype in ALL:
        for number in (4, 5, 7, 8, 10, 16):
            yield _case(*_FRAMES[number], dtype, "any")


def _windowed() -> Iterator[Case]:
    for shape, length, hop in _FRAMES:
        for dtype in (*FLOATS, f64):
            name = f"{dtype}-{label(shape)}-{length}-every{hop}"
            inputs = (InputSpec(shape, dtype), InputSpec((length,), dtype, "normal", 1))
            tolerance = finer(ROUNDED) if dtype == f64 else ROUNDED
            yield Case("windowed_frames", name, inputs, {"hop": hop}, tolerance)


def _sum(shape: Shape, length: int, hop: int, dtype: DType, domain: str, extra: int) -> Case:
    count = frame_count(shape[-1], length, hop)
    size = (count - 1) * hop + length + extra
    name = f"{dtype}-{label(shape[:-1])}-{count}of{length}-every{hop}-in{size}-{domain}"
    frames = InputSpec((*shape[:-1], count, length), dtype, domain)
    return Case("overlap_add", name, (frames,), {"hop": hop, "size": size}, NORM)


def _sums() -> Iterator[Case]:
    for i, frames in enumerate(_FRAMES):
        yield _sum(*frames, f32, "normal", i % 3)
        yield _sum(*frames, f64, "normal", 0)
    for dtype in FLOATS:
        for number in (4, 6, 7, 8, 9, 10, 13):
            for domain in ("normal", "offset", "holes", "zeros"):
                yield _sum(*_FRAMES[number], dtype, domain, number % 2)
    for dtype in FLOATS:
        for shape in ((0, 4), (4, 0), (2, 0, 5)):
            name = f"{dtype}-{label(shape)}-nothing"
            yield Case("overlap_add", name, (InputSpec(shape, dtype),), {"hop": 3, "size": 7}, NORM)


# (samples, segment length, hop, transform length, detrending): every transform; one segment, two, an odd number,
# several per thread; zero-padded segments. Lengths from 512 on have few variants, since software drivers take seconds
# to compile each.
_EITHER: tuple[str | None, ...] = ("constant", None)
_SEGMENTS: tuple[tuple[Shape, int, int, int, tuple[str | None, ...]], ...] = (
    ((256,), 256, 128, 256, _EITHER), ((512,), 256, 256, 256, _EITHER), ((3, 700), 256, 128, 256, _EITHER),
    ((2, 9000), 256, 100, 256, _EITHER), ((600,), 200, 50, 256, _EITHER), ((1000,), 1, 7, 256, _EITHER),
    ((40, 256), 256, 128, 256, _EITHER), ((300, 300), 256, 22, 256, _EITHER), ((0, 300), 256, 128, 256, _EITHER),
    ((2, 3, 1600), 512, 256, 512, ("constant",)), ((9001,), 512, 128, 512, ("constant",)),
    ((512,), 512, 1, 512, ("constant",)), ((2, 4000), 1024, 512, 1024, (None,)), ((20_000,), 1024, 700, 1024, (None,)),
    ((1025,), 1024, 1, 1024, (None,)), ((2, 1500), 700, 350, 1024, ("constant",)),
    ((1, 7000), 2048, 1024, 2048, (None,)), ((3, 2048), 2048, 5, 2048, (None,)),
    ((2, 9000), 4096, 2048, 4096, ("constant",)), ((12_289,), 4096, 4096, 4096, ("constant",)),
    ((9000,), 3000, 1500, 4096, (None,)), ((1,), 1, 1, 256, _EITHER), ((5, 70), 9, 3, 256, _EITHER),
    ((4, 3, 260), 250, 1, 256, _EITHER), ((70, 257), 256, 1, 256, _EITHER), ((3, 5000), 256, 64, 256, _EITHER),
)  # fmt: skip


def _power(shape: Shape, length: int, hop: int, nfft: int, dtype: DType, domain: str, detrend: str | None) -> Case:
    words = f"{label(shape)}-{length}-every{hop}-of{nfft}{'' if detrend is None else '-' + detrend}"
    inputs = (InputSpec(shape, dtype, domain), InputSpec((length,), dtype, "positive"))
    attrs = {"hop": hop, "nfft": nfft, "detrend": detrend}
    tolerance = finer(NORM) if dtype == f64 else NORM
    return Case("segment_power", f"{dtype}-{words}-{domain}", inputs, attrs, tolerance)


def _powers() -> Iterator[Case]:
    for shape, length, hop, nfft, detrends in _SEGMENTS:
        for detrend in detrends:
            for domain in ("normal", "zeros", "near_one"):
                yield _power(shape, length, hop, nfft, f32, domain, detrend)
            if nfft == 256 and len(shape) < 3 and shape[-1] < 1000 and shape[0] != 300:
                yield _power(shape, length, hop, nfft, f64, "normal", detrend)


# (samples, segment length, hop, transform length, zeros before the first sample, number of segments): for each length
# whole and partial workgroups; segments that reach over both ends, end within the signal, or lie outside it; adjacent,
# half overlapping, and with gaps.
_SPECTRA: tuple[tuple[Shape, int, int, int, int, int], ...] = (
    ((300,), 256, 128, 256, 128, 4), ((256,), 256, 128, 256, 0, 1), ((2, 5000), 256, 128, 256, 128, 40),
    ((2, 3, 700), 256, 64, 256, 0, 7), ((1000,), 200, 50, 256, 100, 21), ((5,), 9, 3, 256, 4, 3),
    ((1,), 1, 1, 256, 0, 1), ((70,), 256, 300, 256, 500, 4), ((0, 300), 256, 128, 256, 128, 4),
    ((9000,), 250, 125, 256, 0, 71),
    ((2, 3000), 512, 256, 512, 256, 12), ((4001,), 512, 100, 512, 0, 35), ((3, 900), 400, 200, 512, 200, 5),
    ((9000,), 1024, 512, 1024, 512, 18), ((2, 1500), 700, 350, 1024, 350, 5), ((1024,), 1024, 1024, 1024, 0, 1),
    ((2, 9000), 2048, 1024, 2048, 1024, 9), ((4096,), 2048, 500, 2048, 7, 5), ((3000,), 1500, 700, 2048, 0, 3),
)  # fmt: skip


def _spectra() -> Iterator[Case]:
    for shape, length, hop, nfft, start, count in _SPECTRA:
        for dtype in (f32, f64):
            domains = ("normal", "offset", "zeros", *(("hole",) if count == 40 else ()))
            for domain in domains if dtype == f32 else ("normal",):
                name = f"{dtype}-{label(shape)}-{count}of{length}-every{hop}-from{start}-of{nfft}-{domain}"
                inputs = (InputSpec(shape, dtype, domain), InputSpec((length,), dtype, "normal", 1))
                attrs = {"hop": hop, "nfft": nfft, "start": start, "count": count}
                yield Case("segment_spectra", name, inputs, attrs, finer(NORM) if dtype == f64 else NORM)


# (leading shape, segments, segment length, hop, transform length, samples cut off): all segments in one workgroup, in
# several, one segment, gaps between segments.
_SIGNALS: tuple[tuple[Shape, int, int, int, int, int], ...] = (
    ((), 4, 256, 128, 256, 128), ((2,), 40, 256, 128, 256, 0), ((), 45, 256, 16, 256, 240), ((), 1, 256, 256, 256, 0),
    ((2, 1), 7, 200, 50, 256, 100), ((), 3, 9, 4, 256, 2), ((0,), 4, 256, 128, 256, 128), ((), 5, 256, 300, 256, 7),
    ((3,), 12, 512, 256, 512, 256), ((), 21, 400, 101, 512, 0), ((), 18, 1024, 512, 1024, 512),
    ((2,), 9, 1024, 256, 1024, 768), ((), 2, 700, 350, 1024, 350), ((2,), 9, 2048, 1024, 2048, 1024),
    ((), 3, 1500, 1400, 2048, 0),
)  # fmt: skip


def _signals() -> Iterator[Case]:
    for shape, count, length, hop, nfft, start in _SIGNALS:
        size = (count - 1) * hop + length - 2 * start if count > 1 else length
        for dtype in (f32, f64):
            domains = ("normal", "offset", "zeros", *(("hole",) if count == 40 else ()))
            for domain in domains if dtype == f32 else ("normal",):
                name = f"{dtype}-{label((*shape, count))}of{length}-every{hop}-of{nfft}-from{start}-{domain}"
                inputs = (
                    InputSpec((*shape, nfft // 2 + 1, count, 2), dtype, domain),
                    InputSpec((length,), dtype, "normal", 1),
                )
                attrs = {"hop": hop, "nfft": nfft, "start": start, "size": size}
                yield Case("segment_signal", name, inputs, attrs, finer(NORM) if dtype == f64 else NORM)


# (shape of the signal, taps, transform length, whether every row has its own filter): signals shorter than a block, of
# one block, of two, for several workgroups; as many taps as the transform length.
_BLOCKS: tuple[tuple[Shape, int, int, bool], ...] = (
    ((300,), 17, 256, False), ((1,), 1, 256, False), ((240,), 17, 256, False), ((2, 9000), 31, 256, True),
    ((2, 3, 700), 100, 256, True), ((50,), 256, 256, False), ((0, 300), 9, 256, True), ((3, 5000), 63, 512, False),
    ((9001,), 128, 1024, False), ((2, 5000), 200, 2048, True), ((9000,), 1023, 4096, False),
    ((2, 3073), 1024, 4096, True),
)  # fmt: skip


def _convolutions() -> Iterator[Case]:
    for shape, taps, nfft, own in _BLOCKS:
        for dtype in (f32, f64):
            domains = ("normal", "offset", *(("hole",) if shape[-1] >= 5000 and nfft < 1024 else ()))
            for domain in domains if dtype == f32 else ("normal",):
                line = (*(shape[:-1] if own else ()), taps)
                name = f"{dtype}-{label(shape)}-{taps}-of{nfft}{'-own' if own else ''}-{domain}"
                inputs = (InputSpec(shape, dtype, domain), InputSpec(line, dtype, "normal", 1))
                tolerance = finer(NORM) if dtype == f64 else NORM
                yield Case("block_convolution", name, inputs, {"nfft": nfft}, tolerance)


def _peaks() -> Iterator[Case]:
    shapes: tuple[Shape, ...] = (
        (7,), (0,), (1,), (2,), (3,), (64,), (255,), (257,), (1021,), (3, 5, 7), (0, 5), (2, 0), (40, 33), (2, 4099),
    )  # fmt: skip
    for shape in shapes:
        for dtype in (*FLOATS, f64):
            for domain in ("normal", "ties", "any", "zeros"):
                name = f"{dtype}-{label(shape)}-{domain}"
                yield Case("peaks", name, (InputSpec(shape, dtype, domain),), {}, EQUAL)


@rule("peaks", rough=True)
def _peaked(b: Builder) -> Made:
    return apply_multi("peaks", b.ranked(1, is_float))


@rule("segment_power", rough=True)
def _measured(b: Builder) -> Made:
    x = b.ranked(1, lambda t: t.dtype in (f32, f64))
    n = x.shape[-1]
    if not n or x.size // n * 129 > MAX_ELEMENTS:
        return (x,)
    window = np.hanning(3 + b.below(min(n, 256)))[1:-1]
    return (segment_power(x, window, 1 + b.below(len(window)), 256, b.choose(("constant", None))),)


@rule("segment_spectra", rough=True)
def _transformed(b: Builder) -> Made:
    x = b.ranked(1, lambda t: t.dtype in (f32, f64))
    n = x.shape[-1]
    count = 1 + b.below(5)
    if not n or x.size // n * count * 258 > MAX_ELEMENTS:
        return (x,)
    window = np.hanning(3 + b.below(254))[1:-1]
    hop = -(-len(window) // (1 + b.below(16)))
    z = segment_spectra(x, window, hop, 256, b.below(len(window)), count)
    start = b.below(len(window))
    return (z, segment_signal(z, window, hop, 256, start, (count - 1) * hop + len(window) - start))


@rule("block_convolution", rough=True)
def _convolved(b: Builder) -> Made:
    x = b.ranked(1, lambda t: t.dtype in (f32, f64))
    taps = 1 + b.below(40)
    if not x.size or x.shape[-1] < taps:
        return (x,)
    return (block_convolution(x, x[(0,) * (x.ndim - 1)][:taps], 256),)


@rule("frame")
def _framed(b: Builder) -> Made:
    x = b.ranked(1, is_float)
    n = x.shape[-1]
    if not n:
        return (x,)
    length = 1 + b.below(n)
    hop = 1 + b.below(length)
    if x.size // n * frame_count(n, length, hop) * length > MAX_ELEMENTS:
        return (x,)
    frames = frame(x, length, hop)
    windowed = apply("windowed_frames", x, frames[(0,) * (frames.ndim - 1)], hop=hop) if x.size else frames
    return frames, windowed, overlap_add(frames, hop, size=n)


def _segments_of_nan(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """The spectra of segments with a number that is not finite: which of their sums are NaN depends on the
    algorithm."""
    x, window = inputs
    end = (attrs["count"] - 1) * attrs["hop"] + len(window)
    none = [(0, 0)] * (x.ndim - 1)
    holes = np.pad(np.asarray(~np.isfinite(x)), [*none, (attrs["start"], max(0, end))])[..., :end]
    frames = np.lib.stride_tricks.sliding_window_view(holes, len(window), -1)[..., :: attrs["hop"], :]
    return np.asarray(frames.any(-1))[..., None, :, None]


def _samples_of_nan(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """The samples within a segment whose spectrum has a NaN or infinity, or within its neighbour: kernels compute two
    segments by one complex transform."""
    z, window = inputs
    count, length, hop = z.shape[-2], len(window), attrs["hop"]
    touched = np.zeros((*z.shape[:-3], (count - 1) * hop + length), bool)
    for *row, _, i, _ in np.argwhere(~np.isfinite(z)):
        first, last = max(0, i - 1), min(count - 1, i + 1)
        touched[(*row, slice(first * hop, last * hop + length))] = True
    return touched[..., attrs["start"] : attrs["start"] + attrs["size"]]


def _blocks_of_nan(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """The results that the block of a sample that is not finite affects, or the neighbouring block: kernels compute two
    blocks by one complex transform."""
    x, filters = inputs
    result = np.zeros((*x.shape[:-1], x.shape[-1] + filters.shape[-1] - 1), bool)
    for at in np.argwhere(~np.isfinite(x)):
        row, sample = tuple(at[:-1]), int(at[-1])
        result[(*row, slice(max(0, sample - 2 * attrs["nfft"]), sample + 2 * attrs["nfft"]))] = True
    return result


_LARGE = ("roots", "partial sums of a transform, or its squares, leave f32")
_NO_SEGMENT = {(1, "special"): "every segment is multiplied by the window: none would be left in which NaN must not be"}
OPS = (
    Conformance("frame", (_frames,), (_framed,)),
    Conformance("windowed_frames", (_windowed,), (_framed,), in_f64=none),
    Conformance("segment_power", (_powers,), (_measured,), in_f64=none, narrower={(0, "wide"): _LARGE}),
    Conformance(
        "segment_spectra", (_spectra,), (_transformed,), in_f64=none, undecided=_segments_of_nan, without=_NO_SEGMENT,
    ),
    Conformance(
        "segment_signal", (_signals,), (_transformed,), in_f64=none, undecided=_samples_of_nan,
        narrower={(0, "wide"): _LARGE},
    ),
    Conformance(
        "block_convolution", (_convolutions,), (_convolved,), in_f64=none, undecided=_blocks_of_nan,
        narrower={(i, "wide"): _LARGE for i in (0, 1)},
    ),
    Conformance("peaks", (_peaks,), (_peaked,), in_f64=none),
    Conformance("overlap_add", (_sums,), (_framed,), terms=over_squares("overlap_add")),
)
