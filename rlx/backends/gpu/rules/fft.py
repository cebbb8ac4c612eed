"""Lowering of Fourier transforms: one launch where a line fits into a workgroup, else one for each pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlx.backends.gpu.program.casts import MAX_ELEMENTS, native
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Ref
from rlx.dtypes import DType
from rlx.ir import Node
from rlx.ops.fft.transform import half
from rlx.ops.numeric import Array

_ARGS = (
    *reads(x="PAIR", reals="T", factors="PAIR", table="PAIR"),
    *writes(y="PAIR", parts="T"),
    *uints("lines", "given", "pitch", "size", "kept", "fine"),
)
_CONSTANTS = {
    "N": 16,
    "RADICES": 15,
    "USED": 1 << 15,
    "LINES": 1,
    "STRIDE": 1,
    "APART": 1,
    "BEFORE": 1,
    "FORM": 0,
}
FFT = declare(
    KernelDecl(
        "fft",
        about="Fourier transforms of lines of N complex numbers, or one pass of longer ones.",
        grid="a group of 256 for each LINES of `lines`",
        args=_ARGS,
        headers=("body64",),
        variants={"T": ("f32", "f64")},
        constants=_CONSTANTS,
        trials=((1155, 0x357B, 0x8A8, 1, 1191, 1, 1, 0x100), (26, 0x2D, 0x2004, 3, 27, 1, 1, 2)),
    )
)
_LINES_OF_POWERS = {
    "N": 16,
    "FIRST": 16,
    "LINES": 1,
    "STRIDE": 1,
    "APART": 1,
    "BEFORE": 1,
    "TURNS": 1,
    "FORM": 0,
}


def _powers(stem: str, threads: int, *trials: tuple[int, ...]) -> KernelDecl:
    return declare(
        KernelDecl(
            stem,
            about="Fourier transforms of lines of N complex numbers, a power of two, or one pass of longer ones.",
            grid=f"a group of {threads} for each LINES of `lines`",
            args=_ARGS,
            headers=("body64",),
            variants={"T": ("f32", "f64")},
            constants=_LINES_OF_POWERS,
            trials=trials,
            threads=threads,
            function="fft_body",
            unroll=True,
        )
    )


FFT_POWERS = _powers(
    "fft_powers",
    256,
    (256, 16, 8, 293, 256, 16, 1, 0x0C40),
    (32, 2, 4, 73, 1, 1, 2, 0x1110),
)
FFT_WIDE = _powers("fft_wide", 512, (8192, 2, 1, 4385, 1, 1, 4, 0x6000))

_THREADS = 256
_HELD_ELEMENTS = 16  # elements of a line that a thread holds in registers
_ACROSS = 4  # neighbouring elements that a pass reads and writes at once, at least
_ODD = (3, 5, 7, 11, 13)
# The bytes of a chunk of lines (at least one line); a chunk goes through all passes before the next, which bounds the
# workspaces. Smaller chunks, which stay in cache between passes, gained no more on an H200 than their launches cost.
CHUNK_BYTES = 256 << 20
_WORKGROUPS_AT_ONCE = 4  # workgroups that shared memory should hold
# Bits of FORM.
REALS, HALF, JOINED, PARTS, CONJUGATE_IN, FACTORS_IN = 1, 2, 3, 8, 16, 32
CONJUGATE, FACTORS_OUT, SCALE, CONJUGATE_OUT = 64, 128, 256, 512
READ_ACROSS, WRITE_ACROSS, SPLIT, ALL_GIVEN, ALL_KEPT = 1024, 2048, 4096, 8192, 16384


@dataclass(frozen=True, slots=True)
class Plan:
    """How a transform is carried out: the lengths of its passes. `convolved`: by Bluestein's algorithm; `length` and
    `passes` are those of the longer transform that computes its convolution."""

    length: int
    passes: tuple[int, ...]
    convolved: bool = False


@dataclass(frozen=True)
class Workgroup:
    """The limits of a workgroup: bytes of shared memory, bytes per number, log2 of the largest radix, and the largest
    number of threads. `several`: the shared memory in bytes that a multiprocessor's workgroups have together at least;
    0 if unknown."""

    shared: int
    itemsize: int
    digits: int = 4
    max_threads: int = 1024
    several: int = 0

    def radices(self, n: int) -> tuple[int, ...]:
        """The radices of the stages for a line of n; none where n has a prime factor above 13.

        Powers of two are distributed over as few stages as the largest radix allows.
        """
        rest, radices = n, []
        for prime in reversed(_ODD):
            while rest % prime == 0:
                radices.append(prime)
                rest //= prime
        twos = rest.bit_length() - 1
        if rest != 1 << twos:
            return ()
        stages = -(-twos // self.digits)
        radices += [1 << (twos + i) // stages for i in range(stages)]
        return tuple(sorted(radices, reverse=True)) or (1,)

    def in_registers(self, n: int) -> bool:
        """Whether lines of n are transformed by `fft_powers`, which holds them in registers."""
        return self.digits == 4 and n >= _HELD_ELEMENTS and n & (n - 1) == 0

    def threads(self, n: int) -> int:
        """The threads of the workgroups that take lines of n."""
        return 512 if self.in_registers(n) and n > _HELD_ELEMENTS * _THREADS else _THREADS

    def stride(self, n: int, lines: int, shared: bool = False) -> int:
        """The stride between lines in shared memory, padded against bank conflicts; an odd number. It is 1 for a line
        of one stage, which needs no shared memory unless it is `shared` afterwards."""
        if not shared and n == _HELD_ELEMENTS if self.in_registers(n) else len(self.radices(n)) == 1 and not shared:
            return 1
        if not self.in_registers(n):
            return (n + (n >> 5)) | 1
        if n < 256:
            return (n + (n >> 4)) | 1
        # Neighbouring threads, which hold neighbouring lines, then access different ones of the 32 banks.
        return (n + (n >> 4) + 31) // 32 * 32 + (max(1, 32 // lines) | 1)

    def nbytes(self, n: int, lines: int, turns: int = 1, shared: bool = False) -> int:
        """The bytes of shared memory for exchanging the numbers of `lines` lines in `turns` turns."""
        places = lines * self.stride(n // 2 if turns == 4 else n, lines, shared)
        return (2 if turns == 1 else 1) * self.itemsize * places

    def turns(self, n: int, lines: int, shared: bool = False) -> int:
        """The number of turns of an exchange: 1 if shared memory is then known to hold several workgroups. Otherwise
        more turns, which need fewer bytes, are better, except for lines that are exchanged only once."""
        if not self.in_registers(n):
            return 1
        if self.several:
            whole = self.nbytes(n, lines, 1, shared)
            if whole <= self.shared and _WORKGROUPS_AT_ONCE * whole <= self.several:
                return 1
        if n < 512 or (self.several and self.nbytes(n, lines, 2, shared) <= self.shared):
            return 2
        return 4

    def lines(self, n: int, limit: int, shared: bool = False) -> int:
        """The lines of n that a workgroup takes, a power of two up to `limit`; 0 where it cannot take one."""
        radices = (_HELD_ELEMENTS,) if self.in_registers(n) else self.radices(n)
        if not radices:
            return 0
        threads = self.threads(n)
        count = min(threads * (_HELD_ELEMENTS // r) * r for r in radices) // n if threads <= self.max_threads else 0
        count = 1 << min(count, max(limit, 1)).bit_length() - 1 if count else 0
        while count and self.nbytes(n, count, self.turns(n, count, shared), shared) > self.shared:
            count //= 2
        return count

    def plan(self, n: int) -> Plan:
        """The plan for a length."""
        if self.lines(n, 1):
            return Plan(n, (n,))
        passes = self._passes(n)
        if passes:
            return Plan(n, passes)
        longer = 1 << (2 * n - 2).bit_length()
        return Plan(longer, self.plan(longer).passes, True)

    def _passes(self, n: int) -> tuple[int, ...]:
        """Factors of n, as few as possible and near each other, that are lengths of passes; none where there are
        none."""
        if not self.radices(n):
            return ()
        fitting = [d for d in _divisors(n) if d > 1 and self.lines(d, _ACROSS) >= _ACROSS]
        splits = (_split(n, count, fitting) for count in range(2, 8))
        return tuple(sorted(next((f for f in splits if f), ()), reverse=True))


def _divisors(n: int) -> list[int]:
    """The divisors of a product of small primes."""
    divisors = [1]
    for p in (2, *_ODD):
        power, rest = [1], n
        while rest % p == 0:
            rest //= p
            power.append(power[-1] * p)
        divisors = [a * b for a in divisors for b in power]
    return sorted(divisors)


def _split(n: int, count: int, fitting: Sequence[int]) -> tuple[int, ...]:
    """n as a product of `count` of these numbers, each as near as possible to the root of what is left."""
    if count == 1:
        return (n,) if n in fitting else ()
    root = n ** (1 / count)
    for d in sorted((d for d in fitting if n % d == 0), key=lambda d: abs(math.log(d / root))):
        rest = _split(n // d, count - 1, fitting)
        if rest:
            return (d, *rest)
    return ()


def roots(n: int, at: Array) -> Array:
    """exp(-2πi at / n) as pairs, in f64; the angles are reduced as integers."""
    angle = -2.0 * np.pi * ((at % n).astype(np.float64) / n)
    return np.stack([np.cos(angle), np.sin(angle)], -1)


def _table(n: int, before: int, fine: int, scale: float) -> Array:
    parts = [np.array([[scale, 0.0]]), roots(n, np.arange(n))]
    if before > 1:
        order = n * before
        parts += [roots(order, np.arange(1 << fine)), roots(order, np.arange((order >> fine) + 1) << fine)]
    return np.concatenate(parts)


def _chirp(n: int) -> Array:
    """exp(-πi k² / n) as pairs: k² is reduced modulo 2 n as an integer."""
    k = np.arange(n, dtype=np.int64)
    return roots(2 * n, k * k % (2 * n))


def _filter(n: int, length: int) -> Array:
    """The spectrum of the conjugate chirp around 0, over the length of the transforms that use it."""
    chirp = _chirp(n) @ np.array([1.0, -1.0j])
    line = np.zeros(length, np.complex128)
    line[:n] = chirp
    line[length - n + 1 :] = chirp[:0:-1]
    spectrum = np.fft.fft(line) / length
    return np.stack([spectrum.real, spectrum.imag], -1)


_OF_INPUT = REALS | HALF | CONJUGATE_IN | FACTORS_IN


@dataclass(frozen=True, slots=True)
class _Lines:
    """Lines in memory, `pitch` elements apart: the first `given` elements are used, and zeros fill them up to
    `size`."""

    ref: Ref
    given: int
    pitch: int
    size: int


def _part(ref: Ref, batch: int, first: int, count: int) -> Ref:
    """Some of the lines that a range holds."""
    each = ref.nbytes // batch
    return Ref(ref.segment, ref.offset + first * each, count * each)


class _Transform:
    """The launches of one node, chunk by chunk."""

    def __init__(self, ctx: Lowering, dtype: DType, n: int) -> None:
        self.ctx, self.dtype, self.batch = ctx, dtype, 0
        # A software driver takes a second to compile a stage of radix 16.
        digits = 2 if ctx.target.software else 4
        limits = ctx.target.limits
        self.group = Workgroup(
            limits.shared_bytes, dtype.itemsize, digits, limits.max_group_threads, limits.dynamic_shared_bytes
        )
        self.plan = self.group.plan(n)
        self._buffers: list[Ref] = []
        self._tables: dict[tuple[int, int, int, float], Ref] = {}
        self._chirps: tuple[Ref, Ref] | None = None

    def chunks(self, batch: int) -> Iterator[tuple[int, int]]:
        """The first line and the number of lines of each chunk, in the order of their launches."""
        each = batch
        if len(self.plan.passes) > 1 or self.plan.convolved:
            each = min(batch, max(1, CHUNK_BYTES // (2 * self.dtype.itemsize * self.plan.length)))
        for first in range(0, batch, each):
            self.batch = min(each, batch - first)
            yield first, self.batch

    def block(self, table: Array) -> Ref:
        return self.ctx.block(np.ascontiguousarray(table.astype(self.dtype.np)))

    def chirps(self, n: int) -> tuple[Ref, Ref]:
        """The chirp; and the conjugated spectrum of the chirp filter, followed by the chirp."""
        if self._chirps is None:
            chirp = _chirp(n)
            conjugates = _filter(n, self.plan.length) * np.array([1.0, -1.0])
            self._chirps = self.block(chirp), self.block(np.concatenate([conjugates, chirp]))
        return self._chirps

    def lines(self, ref: Ref) -> _Lines:
        """Whole lines in a workspace."""
        return _Lines(ref, self.plan.length, self.plan.length, self.plan.length)

    def buffer(self, but: Ref) -> Ref:
        """A workspace for the lines of a chunk, other than `but`. The first chunk is the largest, so workspaces are
        reused."""
        result = next((b for b in self._buffers if b != but), None)
        if result is None:
            result = self.ctx.scratch(2 * self.dtype.itemsize * self.batch * self.plan.length)
            self._buffers.append(result)
        return result

    def table(self, n: int, before: int, fine: int, scale: float) -> Ref:
        key = n, before, fine, scale
        if key not in self._tables:
            self._tables[key] = self.block(_table(*key))
        return self._tables[key]

    def run(
        self,
        x: _Lines,
        form: int,
        y: Ref | None = None,
        kept: int = 0,
        scale: float = 1.0,
        factors: Ref | None = None,
    ) -> Ref:
        """All passes over x; the result lies in y, or in a workspace. `form` has the bits of the first pass and of the
        last one."""
        before, last = 1, len(self.plan.passes) - 1
        for i, n in enumerate(self.plan.passes):
            bits = (form & _OF_INPUT if i == 0 else 0) | (form & ~_OF_INPUT if i == last else 0)
            out = y if i == last and y is not None else self.buffer(x.ref)
            count = kept if out is y else self.plan.length
            self._pass(n, before, x, out, count, bits, scale, factors)
            x, before = self.lines(out), before * n
        return x.ref

    def _pass(
        self, n: int, before: int, x: _Lines, y: Ref, kept: int, bits: int, scale: float, factors: Ref | None
    ) -> None:
        length = self.plan.length
        lines = self.batch * (length // n)
        shared = bool(bits & SPLIT)
        each = self.group.lines(n, lines, shared)
        fine = (n * before).bit_length() // 2
        if n < length:
            bits |= READ_ACROSS
        if before > 1:
            bits |= WRITE_ACROSS
        if scale != 1.0 and before * n == length:
            bits |= SCALE
        if x.size == length and x.given == (half(length) if bits & 3 == HALF else length):
            bits |= ALL_GIVEN
        if kept == length:
            bits |= ALL_KEPT
        table = self.table(n, before, fine, scale)
        turns = self.group.turns(n, each, shared)
        constants: dict[str, str | int] = {
            "T": self.dtype.name,
            "N": n,
            "LINES": each,
            "APART": length // n,
            "BEFORE": before,
            "STRIDE": self.group.stride(n // 2 if turns == 4 else n, each, shared),
            "FORM": bits,
        }
        if self.group.in_registers(n):
            first = 1 << ((n.bit_length() - 2) % 4 + 1)
            kernel = (FFT_WIDE if self.group.threads(n) > _THREADS else FFT_POWERS)(
                **constants, FIRST=first, TURNS=turns
            )
        else:
            codes = [15 if r == 16 else r for r in self.group.radices(n)]
            kernel = FFT(
                **constants,
                RADICES=sum(code << 4 * i for i, code in enumerate(codes)),
                USED=sum(1 << code for code in set(codes)),
            )
        args = [x.ref, x.ref, table if factors is None else factors, table, y, y]
        numbers = [lines, x.given, x.pitch, x.size, kept, fine]
        self.ctx.launch(kernel, self.ctx.groups(math.ceil(lines / each)), [*args, *numbers])


def spectra(ctx: Lowering, x: Ref, dtype: DType, lines: int, length: int, n: int, scale: float) -> Ref:
    """The transforms of lines of `length` real numbers, zero-padded to n and multiplied by the scale, in a
    workspace."""
    result, transform = ctx.scratch(2 * dtype.itemsize * lines * n), _Transform(ctx, dtype, n)
    for first, count in transform.chunks(lines):
        part = _Lines(_part(x, lines, first, count), length, length, n)
        transform.run(part, REALS, _part(result, lines, first, count), n, scale)
    return result


def _batch(node: Node) -> int:
    """The number of lines that a node transforms."""
    x = node.inputs[0].shape
    return math.prod(x[:-1] if node.output.ndim > len(x) else x[:-2])


def _native(node: Node, features: frozenset[str]) -> bool:
    n = node.attrs["n"]
    return native(node, features, with_f64=True) and 8 * n * max(1, _batch(node)) < MAX_ELEMENTS


def _folds(group: Workgroup, n: int, length: int, reals: bool) -> bool:
    """Whether a transform from or to n real numbers can be one launch on n / 2 complex numbers, each made of two
    neighbours; all of them must be given."""
    whole = length >= n and length % 2 == 0 if reals else length >= half(n)
    return n % 2 == 0 and whole and group.lines(n // 2, 1, shared=True) > 0


@lowers("fft", "rfft", "irfft", when=_native)
def lower_fft(ctx: Lowering, node: Node) -> None:
    """The inverse transforms the conjugates; of a real result only the real parts are kept."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    n, batch, dtype = node.attrs["n"], _batch(node), ctx.storage(x)
    reals, parts = y.ndim > x.ndim, y.ndim < x.ndim
    length = x.shape[-1 if reals else -2]
    transform = _Transform(ctx, dtype, n)
    source, target = ctx.ref(x), ctx.ref(y)
    if source.offset % (2 * dtype.itemsize):
        # Pairs are read at once, which needs their alignment; a view may begin at any element.
        aligned = ctx.scratch(source.nbytes)
        ctx.copy(source, aligned)
        source = aligned
    folds = (reals or parts) and _folds(transform.group, n, length, reals)
    if folds:
        transform.plan = Plan(n // 2, (n // 2,))
        lines = _Lines(source, n // 2, length // 2 if reals else length, n // 2)
    else:
        lines = _Lines(source, min(length, half(n)) if parts else min(length, n), length, n)
    run = _folded if folds else _convolved if transform.plan.convolved else _plain
    for first, count in transform.chunks(batch):
        part = replace(lines, ref=_part(source, batch, first, count))
        run(transform, part, _part(target, batch, first, count), node, reals, parts)


def _folded(transform: _Transform, x: _Lines, y: Ref, node: Node, reals: bool, parts: bool) -> None:
    """A transform from or to n real numbers, as a complex transform of length n / 2 over pairs of neighbours."""
    n, inverse, scale = node.attrs["n"], node.attrs["inverse"], node.attrs["scale"]
    factors = transform.block(roots(n, np.arange(n // 2 + 1)))
    if reals:
        form = SPLIT | (CONJUGATE_OUT if inverse else 0)
        transform.run(x, form, y, half(n), scale / 2, factors)
    else:
        form = JOINED | CONJUGATE_OUT | (0 if inverse else CONJUGATE_IN)
        transform.run(x, form, y, n // 2, scale, factors)


def _forms(node: Node, reals: bool, parts: bool) -> tuple[int, int, int]:
    """The FORM bits of the first pass, those of the last pass, and the number of elements of a line that are kept."""
    n, inverse = node.attrs["n"], node.attrs["inverse"]
    into = (REALS if reals else 0) | (HALF if parts else 0) | (CONJUGATE_IN if inverse else 0)
    return into, (PARTS if parts else 0) | (CONJUGATE_OUT if inverse else 0), half(n) if reals else n


def _plain(transform: _Transform, x: _Lines, y: Ref, node: Node, reals: bool, parts: bool) -> None:
    into, out, kept = _forms(node, reals, parts)
    transform.run(x, into | out, y, kept, node.attrs["scale"])


def _convolved(transform: _Transform, x: _Lines, y: Ref, node: Node, reals: bool, parts: bool) -> None:
    """Bluestein: j k = (j² + k² - (k - j)²) / 2 makes the transform a convolution with a chirp."""
    into, out, kept = _forms(node, reals, parts)
    chirp, both = transform.chirps(node.attrs["n"])
    spectrum = transform.run(x, into | FACTORS_IN, factors=chirp)
    form = CONJUGATE_IN | FACTORS_IN | CONJUGATE | FACTORS_OUT | out
    transform.run(transform.lines(spectrum), form, y, kept, node.attrs["scale"], both)
