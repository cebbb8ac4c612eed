"""Lowering of Fourier transforms: one launch where a line fits into a workgroup, else one for each pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
FFT_POWERS = declare(
    KernelDecl(
        "fft_powers",
        about="Fourier transforms of lines of N complex numbers, a power of two, or one pass of longer ones.",
        grid="a group of 256 for each LINES of `lines`",
        args=_ARGS,
        headers=("body64",),
        variants={"T": ("f32", "f64")},
        constants=_CONSTANTS,
        trials=((256, 0xFF, 1 << 15, 8, 265, 256, 16, 0x0C40), (32, 0x48, 0x110, 4, 33, 1, 1, 0x1100)),
        function="fft_body",
        unroll=True,
    )
)

_THREADS = 256
_HELD = 16  # elements of a line that a thread holds
_ACROSS = 4  # neighbouring elements that a pass reads and writes at once, at least
_ODD = (3, 5, 7, 11, 13)
# Bits of FORM.
REALS, HALF, JOINED, PARTS, CONJUGATE_IN, FACTORS_IN = 1, 2, 3, 8, 16, 32
CONJUGATE, FACTORS_OUT, SCALE, CONJUGATE_OUT = 64, 128, 256, 512
READ_ACROSS, WRITE_ACROSS, SPLIT, ALL_GIVEN, ALL_KEPT = 1024, 2048, 4096, 8192, 16384


@dataclass(frozen=True, slots=True)
class Plan:
    """How a transform is carried out: the lengths of its passes. `convolved`: they are those of a longer transform, by
    which the convolution of Bluestein's algorithm is computed."""

    length: int
    passes: tuple[int, ...]
    convolved: bool = False


@dataclass(frozen=True)
class Workgroup:
    """What a workgroup can do on a device: the bytes of its shared memory, the bytes of a number, and the binary digits
    of the largest radix."""

    shared: int
    itemsize: int
    digits: int = 4

    def radices(self, n: int) -> tuple[int, ...]:
        """The radices of the stages for a line of n; none where n has a prime factor above 13.

        Powers of two are distributed over as few stages as the largest radix allows.
        """
        rest, found = n, []
        for prime in reversed(_ODD):
            while rest % prime == 0:
                found.append(prime)
                rest //= prime
        twos = rest.bit_length() - 1
        if rest != 1 << twos:
            return ()
        stages = -(-twos // self.digits)
        found += [1 << (twos + i) // stages for i in range(stages)]
        return tuple(sorted(found, reverse=True)) or (1,)

    def stride(self, n: int, shared: bool = False) -> int:
        """The places of a line in shared memory, of which one in 32 is empty; an odd number. A line of one stage takes
        none, unless it is `shared` after it."""
        return (n + (n >> 5)) | 1 if shared or len(self.radices(n)) > 1 else 1

    def lines(self, n: int, most: int, shared: bool = False) -> int:
        """The lines of n that a workgroup takes, a power of two up to `most`; 0 where it cannot take one."""
        found = self.radices(n)
        if not found:
            return 0
        count = min(_THREADS * (_HELD // r) * r for r in found) // n
        if shared or len(found) > 1:
            count = min(count, self.shared // (2 * self.itemsize * self.stride(n, shared)))
        return 1 << min(count, max(most, 1)).bit_length() - 1 if count else 0

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
        found = (_split(n, count, fitting) for count in range(2, 8))
        return tuple(sorted(next((f for f in found if f), ()), reverse=True))


def _divisors(n: int) -> list[int]:
    """The divisors of a product of small primes."""
    found = [1]
    for p in (2, *_ODD):
        power, rest = [1], n
        while rest % p == 0:
            rest //= p
            power.append(power[-1] * p)
        found = [a * b for a in found for b in power]
    return sorted(found)


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
    made = np.fft.fft(line) / length
    return np.stack([made.real, made.imag], -1)


_OF_INPUT = REALS | HALF | CONJUGATE_IN | FACTORS_IN


@dataclass(frozen=True, slots=True)
class _Lines:
    """Lines in memory: `pitch` elements each, of which the first `given` count, and the length they are filled to."""

    ref: Ref
    given: int
    pitch: int
    size: int


class _Transform:
    """The launches of one node."""

    def __init__(self, ctx: Lowering, dtype: DType, batch: int, n: int) -> None:
        self.ctx, self.dtype, self.batch = ctx, dtype, batch
        # A driver that compiles for a processor takes a second for a stage of radix 16.
        digits = 2 if ctx.target.software else 4
        self.group = Workgroup(ctx.target.limits.shared_bytes, dtype.itemsize, digits)
        self.plan = self.group.plan(n)
        self._buffers: list[Ref] = []

    def block(self, table: Array) -> Ref:
        return self.ctx.block(np.ascontiguousarray(table.astype(self.dtype.np)))

    def lines(self, ref: Ref) -> _Lines:
        """Whole lines in a workspace."""
        return _Lines(ref, self.plan.length, self.plan.length, self.plan.length)

    def buffer(self, but: Ref) -> Ref:
        """A workspace for all lines, another than the one given."""
        found = next((b for b in self._buffers if b != but), None)
        if found is None:
            found = self.ctx.scratch(2 * self.dtype.itemsize * self.batch * self.plan.length)
            self._buffers.append(found)
        return found

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
        each = self.group.lines(n, lines, bool(bits & SPLIT))
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
        table = self.block(_table(n, before, fine, scale))
        codes = [15 if r == 16 else r for r in self.group.radices(n)]
        unrolled = n > 1 and n & (n - 1) == 0 and not self.ctx.target.software
        kernel = (FFT_POWERS if unrolled else FFT)(
            T=self.dtype.name,
            N=n,
            RADICES=sum(code << 4 * i for i, code in enumerate(codes)),
            USED=sum(1 << code for code in set(codes)),
            LINES=each,
            APART=length // n,
            BEFORE=before,
            STRIDE=self.group.stride(n, bool(bits & SPLIT)),
            FORM=bits,
        )
        args = [x.ref, x.ref, table if factors is None else factors, table, y, y]
        numbers = [lines, x.given, x.pitch, x.size, kept, fine]
        self.ctx.launch(kernel, self.ctx.groups(math.ceil(lines / each)), [*args, *numbers])


def spectra(ctx: Lowering, x: Ref, dtype: DType, lines: int, given: int, n: int, scale: float) -> Ref:
    """The transforms of lines of `given` real numbers, filled to n with zeros, times the scale, in a workspace."""
    made = ctx.scratch(2 * dtype.itemsize * lines * n)
    return _Transform(ctx, dtype, lines, n).run(_Lines(x, given, given, n), REALS, made, n, scale)


def _batch(node: Node) -> int:
    """The lines of a node."""
    x = node.inputs[0].shape
    return math.prod(x[:-1] if node.output.ndim > len(x) else x[:-2])


def _native(node: Node, features: frozenset[str]) -> bool:
    n = node.attrs["n"]
    return native(node, features, with_f64=True) and 8 * n * max(1, _batch(node)) < MAX_ELEMENTS


def _folds(group: Workgroup, n: int, given: int, reals: bool) -> bool:
    """Whether a transform from or to n real numbers is one launch for half as many pairs of neighbours, which are all
    there."""
    whole = given >= n and given % 2 == 0 if reals else given >= half(n)
    return n % 2 == 0 and whole and group.lines(n // 2, 1, shared=True) > 0


def _folded(ctx: Lowering, transform: _Transform, lines: _Lines, node: Node) -> None:
    n, inverse, scale = node.attrs["n"], node.attrs["inverse"], node.attrs["scale"]
    transform.plan = Plan(n // 2, (n // 2,))
    factors = transform.block(roots(n, np.arange(n // 2 + 1)))
    y = ctx.ref(node.output)
    if node.output.ndim > node.inputs[0].ndim:
        form = SPLIT | (CONJUGATE_OUT if inverse else 0)
        transform.run(lines, form, y, half(n), scale / 2, factors)
    else:
        form = JOINED | CONJUGATE_OUT | (0 if inverse else CONJUGATE_IN)
        transform.run(lines, form, y, n // 2, scale, factors)


@lowers("fft", "rfft", "irfft", when=_native)
def lower_fft(ctx: Lowering, node: Node) -> None:
    """The other direction is the transform of the conjugates; real results are the parts that are needed."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    n, inverse, scale = node.attrs["n"], node.attrs["inverse"], node.attrs["scale"]
    dtype = ctx.storage(x)
    reals, parts = y.ndim > x.ndim, y.ndim < x.ndim
    given = x.shape[-1 if reals else -2]
    transform = _Transform(ctx, dtype, _batch(node), n)
    plan = transform.plan
    source = ctx.ref(x)
    if source.offset % (2 * dtype.itemsize):
        # Pairs are read at once, which needs their alignment; a view may begin at any element.
        aligned = ctx.scratch(source.nbytes)
        ctx.copy(source, aligned)
        source = aligned
    if (reals or parts) and _folds(transform.group, n, given, reals):
        _folded(ctx, transform, _Lines(source, n // 2, given // 2 if reals else given, n // 2), node)
        return
    lines = _Lines(source, min(given, half(n)) if parts else min(given, n), given, n)
    kept = half(n) if reals else n
    into = (REALS if reals else 0) | (HALF if parts else 0) | (CONJUGATE_IN if inverse else 0)
    out = (PARTS if parts else 0) | (CONJUGATE_OUT if inverse else 0)
    if not plan.convolved:
        transform.run(lines, into | out, ctx.ref(y), kept, scale)
        return
    # Bluestein: j k = (j² + k² - (k - j)²) / 2 makes the transform a convolution with a chirp.
    chirp = _chirp(n)
    spectrum = transform.run(lines, into | FACTORS_IN, factors=transform.block(chirp))
    conjugates = _filter(n, plan.length) * np.array([1.0, -1.0])
    both = transform.block(np.concatenate([conjugates, chirp]))
    form = CONJUGATE_IN | FACTORS_IN | CONJUGATE | FACTORS_OUT | out
    transform.run(transform.lines(spectrum), form, ctx.ref(y), kept, scale, both)
