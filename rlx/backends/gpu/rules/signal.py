"""Lowering of the ops of signals: frames (strided reads), overlapping sums and spectra of frames, and peaks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.program.casts import cast_ref, groups_for, native
from rlx.backends.gpu.program.kernel import KernelDecl, declare, floats, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Language, Ref
from rlx.backends.gpu.program.target import Target
from rlx.backends.gpu.rules.fft import spectra
from rlx.backends.gpu.rules.movement import move, moves_natively
from rlx.dtypes import f32
from rlx.ir import Node, Tensor
from rlx.ir import expr as ex
from rlx.ops.signal.frames import frame_count
from rlx.ops.signal.transforms import reaches

OVERLAP_ADD = declare(
    KernelDecl(
        "overlap_add",
        about="y = the sum of frames of x, each `hop` samples after the one before.",
        grid="a thread for each element of y, in groups of 256",
        # x (rows, count, length), y (rows, size), total = rows * size.
        args=(*reads(x="T"), *writes(y="T"), *uints("total", "size", "count", "length", "hop")),
        headers=("body64",),
        variants={"T": ("f32", "f64", "f16", "bf16")},
    )
)

SEGMENT_POWER = declare(
    KernelDecl(
        "segment_power",
        about="y = the one-sided power of `count` windowed segments of x (rows, n), added up in `parts` parts.",
        grid="a group for each part of `each` pairs of segments of each row",
        # x, window, turns (see the body), y (rows, parts, N / 2 + 1), …, share = 1 / length.
        args=(
            *reads(x="f32", window="f32", turns="f32"),
            *writes(y="f32"),
            *uints("rows", "parts", "n", "count", "length", "hop", "each"),
            *floats("share"),
        ),
        variants={"HELD": ("16", "32")},
        constants={"N": 256, "DETREND": True, "PADDED": False, "HALVES": False, "SPREAD": 0, "AHEAD": True},
        trials=((256, True, False, True, 1, True), (512, False, True, False, 2, True),
                (1024, True, True, False, 0, True), (2048, True, False, False, 2, True),
                (4096, True, False, True, 1, True)),
        threads=128,
        resident="(H == 16u ? 5 : 4)",  # registers would spill to memory if there were more workgroups
        unroll=True,
        subgroups=True,
    )
)
SEGMENT_POWER_SUM = declare(
    KernelDecl(
        "segment_power_sum",
        about="y (rows, bins) = the sum of the parts of x (rows, parts, bins).",
        grid="a group for each four bins of each row",
        args=(*reads(x="f32"), *writes(y="f32"), *uints("rows", "parts", "bins")),
    )
)
SEGMENT_SPECTRA = declare(
    KernelDecl(
        "segment_spectra",
        about="y = the transforms of `count` windowed segments of x (rows, n), frequencies first.",
        grid="a group for each 256 HELD / N segments of each row",
        # x, window, turns (see the body), y (rows, N / 2 + 1, count) pairs, …
        args=(
            *reads(x="f32", window="f32", turns="f32"),
            *writes(y="b8"),
            *uints("rows", "n", "count", "length", "hop", "start"),
        ),
        variants={"HELD": ("16", "32")},
        constants={"N": 256, "PADDED": False, "HALVES": False, "SPREAD": 1},
        trials=((256, False, True, 1), (512, True, False, 2), (1024, False, True, 2), (2048, False, False, 1)),
        threads=128,
        resident="(H == 16u ? 6 : 4)",
        unroll=True,
        subgroups=True,
    )
)
SEGMENT_SIGNAL = declare(
    KernelDecl(
        "segment_signal",
        about="y = the sum of `count` windowed segments whose transforms are x, in their places.",
        grid="a group for each blocks * hop samples of each row",
        # x (rows, N / 2 + 1, count) pairs, window, turns (see the body), y (rows, size), …
        args=(
            *reads(x="b8", window="f32", turns="f32"),
            *writes(y="f32"),
            *uints("rows", "count", "length", "hop", "start", "size", "blocks"),
        ),
        variants={"HELD": ("16", "32")},
        constants={"N": 256, "PADDED": False, "SPREAD": 1},
        trials=((256, False, 1), (512, True, 2), (1024, False, 2), (2048, False, 1)),
        threads=128,
        resident="(H == 16u ? 6 : 5)",
        unroll=True,
        subgroups=True,
    )
)
BLOCK_CONVOLUTION = declare(
    KernelDecl(
        "block_convolution",
        about="y = the convolution of x with a filter of `taps` numbers that is given by its transform.",
        grid="a group for each 256 HELD / N blocks of each row",
        # x (rows, n), spectrum (rows or 1, N) pairs, turns (see the body), y (rows, n + taps - 1), …
        args=(
            *reads(x="f32", spectrum="b8", turns="f32"),
            *writes(y="f32"),
            *uints("rows", "n", "taps", "apart"),
        ),
        variants={"HELD": ("16", "32")},
        constants={"N": 256, "SPREAD": 1},
        trials=((256, 1), (512, 0), (1024, 2), (2048, 0), (4096, 2)),
        threads=128,
        resident="(H == 16u ? 5 : 3)",
        unroll=True,
        subgroups=True,
    )
)
PEAKS = declare(
    KernelDecl(
        "peaks",
        about="y = the local maxima of the lines of x, elsewhere -inf, and the places in their middle.",
        grid="a thread for each element, in groups of 256",
        # x (rows, n), y, place, total = rows * n.
        args=(*reads(x="T"), *writes(y="T", place="i32"), *uints("total", "n")),
        headers=("body64",),
        variants={"T": ("f32", "f64", "f16", "bf16")},
    )
)
_WORKGROUPS_PER_UNIT = {16: 5, 32: 4}  # keys: the elements that a thread holds
_SHARED_BYTES = 19 << 10  # a workgroup that exchanges one part at a time has this memory: 4736 floats and more
_AT_ONCE_BYTES = 40 << 10  # this much exchanges real and imaginary parts at once


@lowers("frame", when=moves_natively)
def lower_frame(ctx: Lowering, node: Node) -> None:
    """A strided copy in which two axes step through the same samples."""
    y = node.output
    move(ctx, y.shape, _framed(ctx, node), View(ctx.ref(y), ctx.storage(y), contiguous(y.shape)))


def _framed(ctx: Lowering, node: Node) -> View:
    """The node's first input as frames."""
    x = node.inputs[0]
    return View(ctx.ref(x), ctx.storage(x), (*contiguous(x.shape)[:-1], node.attrs["hop"], 1))


@lowers("windowed_frames", when=lambda node, features: native(node, features, with_f64=True))
def lower_windowed_frames(ctx: Lowering, node: Node) -> None:
    """A product that reads the signal as frames."""
    x, window = node.inputs
    y = node.output
    weights = View(ctx.ref(window), ctx.storage(window), (0,) * (len(y.shape) - 1) + (1,))
    tree = ex.call("mul", ex.arg(0, x.dtype), ex.arg(1, x.dtype))
    target = View(ctx.ref(y), ctx.storage(y), contiguous(y.shape))
    launch_tree(ctx, [tree], y.shape, [_framed(ctx, node), weights], [target])


@lowers("overlap_add", when=lambda node, features: native(node, features, with_f64=True))
def lower_overlap_add(ctx: Lowering, node: Node) -> None:
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    stored = ctx.storage(y)
    source = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size)
    sizes = (y.shape[-1], *x.shape[-2:], node.attrs["hop"])
    ctx.launch(OVERLAP_ADD(T=stored.name), groups_for(ctx, y.size), [source, ctx.ref(y), y.size, *sizes])


def _factors(base: npt.NDArray[np.float64], k: int) -> npt.NDArray[np.float64]:
    """The twiddle factors of a transform of k numbers as fractions of a turn, (k / 2, ...), layer by layer. They
    include a rotation of the i-th number by i times `base`."""
    rows = [base * (k // 2)]
    for m in (4 << i for i in range(k.bit_length() - 2)):
        rows += [base * (k // m) + q / m for q in range(m // 4)]
    return np.stack(rows)


def _turns(n: int, held: int) -> npt.NDArray[np.float32]:
    """The twiddle factors of the stages after the first (see fft_registers.h)."""
    lanes = n // held
    thread, sets = np.arange(lanes), np.arange(held)[:, None]
    if lanes <= held:
        stages = [_factors((thread + lanes * sets[: held // lanes]) / n, lanes)]
    else:
        r = lanes // held
        p, first = thread // r, thread % r
        stages = [
            _factors(r * p[None] / n, held),
            _factors((p + held * (first + r * sets[: held // r])) / n, r),
        ]
    turns = np.stack([stage.swapaxes(0, 1).reshape(held // 4, 2, lanes) for stage in stages])
    factors = np.stack([np.cos(2 * np.pi * turns), -np.sin(2 * np.pi * turns)], -1)  # (stage, quad, of two, lane, part)
    return np.ascontiguousarray(factors.swapaxes(2, 3)).astype(np.float32)


def _form(target: Target, size: int) -> tuple[int, int]:
    """(numbers that a thread holds, how they are exchanged)."""
    if target.software:  # software drivers take seconds to compile the longer text
        return (16, 0) if size < 4096 else (32, 0)
    if target.language is Language.CUDA:
        return (16 if size == 256 else 32), (2 if target.shared_bytes >= _AT_ONCE_BYTES else 0)
    return (32 if size in (1024, 4096) else 16), 0  # measured: more workgroups at once, or fewer exchanges


def _beside(target: Target, small: bool) -> tuple[int, int]:
    """As `_form`, for kernels that exchange real and imaginary parts of all numbers at once. `small`: on Vulkan the
    kernel was measured to be faster with 16 numbers per thread than with 32."""
    if target.software or target.shared_bytes < _AT_ONCE_BYTES:
        return 16, 1
    return (32, 2) if target.language is Language.CUDA else (16 if small else 32, 1)


def _compiles(node: Node, features: frozenset[str]) -> bool:
    """Devices without 16-bit storage are software drivers, which never finish compiling this kernel."""
    return native(node, features) and "16bit_storage" in features


@lowers("segment_power", when=_compiles, shared=_SHARED_BYTES)
def lower_segment_power(ctx: Lowering, node: Node) -> None:
    """Parts of the segments by workgroups that fill the device, then the sum of the parts."""
    x, window = node.inputs
    y, attrs = node.output, node.attrs
    if y.size == 0:
        return
    source, weight = (cast_ref(ctx, ctx.ref(t), ctx.storage(t), f32, t.size) for t in (x, window))
    size, n, length = attrs["nfft"], x.shape[-1], window.shape[0]
    rows, count = x.size // n, frame_count(n, length, attrs["hop"])
    held, spread = _form(ctx.target, size)
    across = 128 * held // size
    steps = -(-(count + 1) // 2 // across)
    each = max(1, -(-steps * rows // (_WORKGROUPS_PER_UNIT[held] * ctx.target.units)))
    parts = max(1, -(-steps // each))
    target = ctx.ref(y) if parts == 1 else ctx.scratch(4 * rows * parts * y.shape[-1])
    hop = attrs["hop"]
    kernel = SEGMENT_POWER(
        HELD=str(held), N=size, DETREND=attrs["detrend"] is not None, PADDED=length < size,
        HALVES=2 * hop == length == size, SPREAD=spread,
        AHEAD=ctx.target.language is Language.SPIRV and not ctx.target.software,
    )  # fmt: skip
    sizes = (rows, parts, n, count, length, hop, each * across)
    turns = ctx.block(_turns(size, held))
    ctx.launch(kernel, ctx.groups(rows * parts), [source, weight, turns, target, *sizes, 1.0 / length])
    if parts > 1:
        bins = y.shape[-1]
        ctx.launch(SEGMENT_POWER_SUM(), ctx.groups(rows * -(-bins // 4)), [target, ctx.ref(y), rows, parts, bins])


@lowers("segment_spectra", when=_compiles, shared=_SHARED_BYTES)
def lower_segment_spectra(ctx: Lowering, node: Node) -> None:
    """One launch, which reads the signal and writes the spectra."""
    x, window = node.inputs
    y, attrs = node.output, node.attrs
    if y.size == 0:
        return
    size, n, length, hop, count = attrs["nfft"], x.shape[-1], window.shape[0], attrs["hop"], attrs["count"]
    rows = x.size // n
    held, spread = _beside(ctx.target, size < 1024)
    kernel = SEGMENT_SPECTRA(
        HELD=str(held), N=size, PADDED=length < size, HALVES=2 * hop == length == size, SPREAD=spread
    )
    groups = rows * -(-count // (256 * held // size))
    refs = [ctx.ref(x), ctx.ref(window), ctx.block(_turns(size, held)), ctx.ref(y)]
    ctx.launch(kernel, ctx.groups(groups), [*refs, rows, n, count, length, hop, attrs["start"]])


def _pairs(ctx: Lowering, x: Tensor) -> Ref:
    """A tensor of pairs, copied if it is not aligned to whole pairs, as a view may not be: kernels read a pair at
    once."""
    source = ctx.ref(x)
    if source.offset % 8 == 0:
        return source
    aligned = ctx.scratch(source.nbytes)
    ctx.copy(source, aligned)
    return aligned


@lowers("segment_signal", when=_compiles, shared=_SHARED_BYTES)
def lower_segment_signal(ctx: Lowering, node: Node) -> None:
    """One launch, which reads the spectra and writes the signal."""
    x, window = node.inputs
    y, attrs = node.output, node.attrs
    if y.size == 0:
        return
    size, (*_, bins, count, _), length, hop = attrs["nfft"], x.shape, window.shape[0], attrs["hop"]
    held, spread = _beside(ctx.target, 4096 // size >= 2 * reaches(length, hop))
    blocks = 256 * held // size + 1 - reaches(length, hop)
    rows = x.size // (2 * bins * count)
    kernel = SEGMENT_SIGNAL(HELD=str(held), N=size, PADDED=length < size, SPREAD=spread)
    groups = rows * -(-(attrs["start"] + y.shape[-1]) // (blocks * hop))
    refs = [_pairs(ctx, x), ctx.ref(window), ctx.block(_turns(size, held)), ctx.ref(y)]
    numbers = [rows, count, length, hop, attrs["start"], y.shape[-1], blocks]
    ctx.launch(kernel, ctx.groups(groups), [*refs, *numbers])


@lowers("block_convolution", when=_compiles, shared=_SHARED_BYTES)
def lower_block_convolution(ctx: Lowering, node: Node) -> None:
    """The filter's transform, then one launch, which reads the signal and writes the convolution."""
    x, filters = node.inputs
    y, taps, size = node.output, filters.shape[-1], node.attrs["nfft"]
    if y.size == 0:
        return
    n = x.shape[-1]
    rows, lines = x.size // n, filters.size // taps
    spectrum = spectra(ctx, ctx.ref(filters), f32, lines, taps, size, 1.0 / size)
    held, spread = _form(ctx.target, size)
    blocks = -(-y.shape[-1] // (size - taps + 1))
    groups = rows * -(-blocks // (256 * held // size))
    kernel = BLOCK_CONVOLUTION(HELD=str(held), N=size, SPREAD=min(spread, 1))
    refs = [ctx.ref(x), spectrum, ctx.block(_turns(size, held)), ctx.ref(y)]
    ctx.launch(kernel, ctx.groups(groups), [*refs, rows, n, taps, size if lines > 1 else 0])


@lowers("peaks", when=lambda node, features: native(node, features, with_f64=True))
def lower_peaks(ctx: Lowering, node: Node) -> None:
    x, (y, place) = node.inputs[0], node.outputs
    if y.size == 0:
        return
    stored = ctx.storage(y)
    source = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size)
    ctx.launch(
        PEAKS(T=stored.name), groups_for(ctx, y.size), [source, ctx.ref(y), ctx.ref(place), y.size, y.shape[-1]]
    )
