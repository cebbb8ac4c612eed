"""fft, rfft and irfft of many lines in f32: each vector lane has its own line, so a transform needs no shuffles.

An item transforms its lines group by group in its own scratch, where vector c holds float c of each line of the group:
lines are transposed on the way in and out. Stages are Stockham's, of radix 4, 2, 3, 5 and 7 (Van Loan, "Computational
Frameworks for the Fast Fourier Transform", 1992, ch. 1.7). A real line of even length n is transformed as a complex one
of length n / 2. An inverse transform is a forward one with real and imaginary parts swapped. Other lengths, few lines,
and f64 are left to NumPy's binder, which calls pocketfft."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.ir import F32, I64, Kernel, Value, floats, pointers, sizes
from rlx.backends.cpu.rowwise import contiguous, transposed
from rlx.backends.cpu.step import EngineContext, EngineStep, engine
from rlx.driver.device import Bytes
from rlx.ir import Node
from rlx.records import Record

_RADICES = (4, 2, 3, 5, 7)
_MAX_ELEMENTS = 1 << 14  # longer transforms do not fit into the second-level cache
_SHORT_ELEMENTS = 128  # 16 lines of this length fit into the first-level cache: longer ones go 8 at a time
_MAX_ITEMS = 16  # each item has memory of its own
_STAGE_WORDS = 4  # radix, m, s, offset of its factors
_SIZES = ("lines", "groups", "read", "pitch", "out_pitch", "n", "written")


class Transform(Record):
    """Lines of n complex numbers, or of floats. An item takes `groups` groups of lines. `read` floats of each line of x
    are read, `written` floats of each line of y are written; `pitch` and `out_pitch` are the distances between lines in
    floats. `turns` are the twiddle factors of real lines.

    `radices`: of the stages. `real`: "in" where x is real, "out" where y is. `inverse`: the inverse transform;
    `conjugate`: conjugates the complex side of a real one. `segments`: lines of x are multiplied by the window, and y
    is transposed: number k of all lines, then number k + 1."""

    radices: tuple[int, ...]
    real: str
    inverse: bool
    conjugate: bool
    lanes: int
    segments: bool = False
    args = (
        pointers("x", "y", "stages") + sizes("count") + pointers("factors", "turns", "memory") + sizes(*_SIZES)
        + floats("scale") + pointers("window")
    )  # fmt: skip

    def ir(self) -> str:
        k, lanes = Kernel("kernel", self.args), self.lanes
        x, y, stages = k.args("x", "y", "stages")
        count, factors, turns, memory = k.args("count", "factors", "turns", "memory")
        lines, groups, in_pitch, pitch, out_pitch, n, out_size = k.args(*_SIZES)
        scale = k.splat(k.arg("scale"), lanes)
        size = (n + 1) * (2 * lanes)  # floats of a buffer, of which an item has two
        with k.loop(k.first, k.last) as item:
            whole = k.binary("udiv", lines + (lanes - 1), k.const(I64, lanes))
            with k.loop(item * groups, k.min((item + 1) * groups, whole)) as group:
                first = group * lanes
                here = k.variable(k.at(memory, item * 2 * size, F32))
                there = k.variable(k.at(memory, (item * 2 + 1) * size, F32))

                def swap(here: object = here, there: object = there) -> None:
                    here.value, there.value = there.value, here.value  # type: ignore[attr-defined]

                # irfft reads n + 1 numbers and makes n of them.
                wanted = (n + 1) * 2 if self.real == "out" else n * 2
                self._read(k, x, first, lines, pitch, in_pitch, wanted, here.value)
                if self.real == "out":
                    self._fold(k, here.value, there.value, n, turns)
                    swap()
                with k.loop(0, count) as number:
                    stage = k.at(stages, number * _STAGE_WORDS, I64)
                    radix, m, s, at = (k.load(I64, k.at(stage, i, I64)) for i in range(_STAGE_WORDS))
                    for r in self.radices:
                        with k.when(k.cmp("eq", radix, r)):
                            self._stage(k, r, here.value, there.value, m, s, k.at(factors, at, F32))
                    swap()
                if self.real == "in":
                    self._unfold(k, here.value, there.value, n, turns)
                    swap()
                if self.segments:
                    self._write_across(k, here.value, y, first, lines, n + 1)
                else:
                    self._write(k, here.value, y, first, lines, out_pitch, out_size, scale)
        return k.text()

    # -- lines

    def _row(self, k: Kernel, base: Value, line: Value, lines: Value, pitch: Value) -> Value:
        return k.at(base, k.min(line, lines - 1) * pitch, F32)

    def _read(
        self, k: Kernel, x: Value, first: Value, lines: Value, pitch: Value, size: Value, wanted: Value, to: Value
    ) -> None:  # fmt: skip
        """Float c of all lines becomes vector c of `wanted` vectors; vectors from `size` on are zero."""
        lanes = self.lanes
        rows = [self._row(k, x, first + i, lines, pitch) for i in range(lanes)]

        def square(c: Value, mask: Value | None, count: Value | None) -> None:
            block = [k.load(F32.of(lanes), k.at(r, c, F32), mask) for r in rows]
            if self.segments:
                window = k.load(F32.of(lanes), k.at(k.arg("window"), c, F32), mask)
                block = [v * window for v in block]
            for i, v in enumerate(transposed(k, block)):
                if count is None:
                    k.store(v, k.at(to, (c + i) * lanes, F32))
                    continue
                with k.when(k.cmp("sgt", count, i)):
                    k.store(v, k.at(to, (c + i) * lanes, F32))

        plain = size & -lanes
        with k.loop(0, plain, lanes) as c:
            square(c, None, None)
        with k.when(k.cmp("slt", plain, size)):
            square(plain, k.tail(size - plain, lanes), size - plain)
        with k.loop(size, wanted) as c:
            k.store(k.const(F32.of(lanes), 0.0), k.at(to, c * lanes, F32))

    def _write(
        self, k: Kernel, source: Value, y: Value, first: Value, lines: Value, pitch: Value, size: Value, scale: Value
    ) -> None:  # fmt: skip
        lanes = self.lanes
        signs = [1.0] * lanes
        if self.conjugate and self.real == "in":
            signs = [1.0, -1.0] * (lanes // 2)

        def square(c: Value, mask: Value | None) -> None:
            # The last loads reach into memory after the last float that was written; those lanes are not stored.
            rows = transposed(k, [k.load(F32.of(lanes), k.at(source, (c + i) * lanes, F32)) for i in range(lanes)])
            for i, v in enumerate(rows):
                with k.when(k.cmp("slt", first + i, lines)):
                    k.store(v * (scale * k.lanes(F32, signs)), k.at(y, (first + i) * pitch + c, F32), mask)

        plain = size & -lanes
        with k.loop(0, plain, lanes) as c:
            square(c, None)
        with k.when(k.cmp("slt", plain, size)):
            square(plain, k.tail(size - plain, lanes))

    def _write_across(self, k: Kernel, source: Value, y: Value, first: Value, lines: Value, count: Value) -> None:
        """Writes y as (count, lines): each number of all lines, then the next number."""
        lanes = self.lanes
        left = k.min(lines - first, lanes) * 2
        masks = [k.tail(k.min(k.max(left - shift, 0), lanes), lanes) for shift in (0, lanes)]
        order = [i // 2 + i % 2 * lanes for i in range(2 * lanes)]
        with k.loop(0, count) as i:
            a, b = self._load(k, source, i, True)
            for half, mask in enumerate(masks):
                pairs = k.shuffle(a, b, order[half * lanes : (half + 1) * lanes])
                k.store(pairs, k.at(y, (i * lines + first) * 2 + half * lanes, F32), mask)

    # -- complex vectors

    def _load(self, k: Kernel, base: Value, i: Value, plain: bool = False) -> tuple[Value, Value]:
        """The real and imaginary parts of number i of all lines; swapped for an inverse transform."""
        a, b = (k.load(F32.of(self.lanes), k.at(base, (i * 2 + j) * self.lanes, F32)) for j in (0, 1))
        return (b, a) if self.inverse and not plain else (a, b)

    def _store(self, k: Kernel, v: tuple[Value, Value], base: Value, i: Value, plain: bool = False) -> None:
        parts = v[::-1] if self.inverse and not plain else v
        for j, part in enumerate(parts):
            k.store(part, k.at(base, (i * 2 + j) * self.lanes, F32))

    def _spread(self, k: Kernel, base: Value, i: Value) -> tuple[Value, Value]:
        """A complex factor, the same for all lines."""
        a, b = (k.splat(k.load(F32, k.at(base, i * 2 + j, F32)), self.lanes) for j in (0, 1))
        return a, b

    def _stage(self, k: Kernel, r: int, x: Value, y: Value, m: Value, s: Value, factors: Value) -> None:
        """y[q + s (r p + j)] = w^(p j) · Σ_i x[q + s (p + m i)] e^(-2πi ij / r), for p < m and q < s."""
        with k.loop(0, m) as p:
            turned = [self._spread(k, factors, p * (r - 1) + j) for j in range(r - 1)]
            with k.loop(0, s) as q:
                points = [self._load(k, x, (p + m * i) * s + q) for i in range(r)]
                for j, v in enumerate(_butterfly(k, r, points)):
                    self._store(k, v if j == 0 else _times(k, v, turned[j - 1]), y, (p * r + j) * s + q)

    def _unfold(self, k: Kernel, z: Value, x: Value, n: Value, turns: Value) -> None:
        """The n + 1 numbers of a real line of 2 n floats, from the transform of its n pairs: X[k] = E[k] + W^k O[k]."""
        first = self._load(k, z, k.const(I64, 0), True)
        zero = k.const(first[0].type, 0.0)
        self._store(k, (first[0] + first[1], zero), x, k.const(I64, 0), True)
        self._store(k, (first[0] - first[1], zero), x, n, True)
        with k.loop(1, n) as i:
            (a, b), (c, d) = self._load(k, z, i, True), self._load(k, z, n - i, True)
            even = (a + c) * 0.5, (b - d) * 0.5
            odd = _times(k, ((b + d) * 0.5, (c - a) * 0.5), self._spread(k, turns, i))
            self._store(k, (even[0] + odd[0], even[1] + odd[1]), x, i, True)

    def _fold(self, k: Kernel, x: Value, z: Value, n: Value, turns: Value) -> None:
        """The transform of the n pairs of a real line of 2 n floats, from the line's n + 1 numbers: 2 Z[k], where Z[k]
        = E[k] + i W^-k O[k]."""
        for i in (k.const(I64, 0), n):  # a real line does not have these imaginary parts
            a, _ = self._load(k, x, i, True)
            self._store(k, (a, k.const(a.type, 0.0)), x, i, True)
        with k.loop(0, n) as i:
            (a, b), (c, d) = self._load(k, x, i, True), self._load(k, x, n - i, True)
            if self.conjugate:
                b, d = -b, -d
            w, v = self._spread(k, turns, i)
            odd = _times(k, (a - c, b + d), (w, -v))
            self._store(k, (a + c - odd[1], b - d + odd[0]), z, i, True)


Complex = tuple[Value, Value]


def _times(k: Kernel, a: Complex, b: Complex) -> Complex:
    return k.fma(a[0], b[0], -(a[1] * b[1])), k.fma(a[0], b[1], a[1] * b[0])


def _butterfly(k: Kernel, r: int, x: Sequence[Complex]) -> list[Complex]:
    """The transform of r numbers."""

    def plus(a: Complex, b: Complex) -> Complex:
        return a[0] + b[0], a[1] + b[1]

    def minus(a: Complex, b: Complex) -> Complex:
        return a[0] - b[0], a[1] - b[1]

    if r == 2:
        return [plus(*x), minus(*x)]
    if r == 4:
        a, b, c, d = plus(x[0], x[2]), minus(x[0], x[2]), plus(x[1], x[3]), minus(x[1], x[3])
        return [plus(a, c), (b[0] + d[1], b[1] - d[0]), minus(a, c), (b[0] - d[1], b[1] + d[0])]
    half = range(1, (r + 1) // 2)
    sums, differences = ([f(x[j], x[r - j]) for j in half] for f in (plus, minus))
    first = x[0]
    for v in sums:
        first = plus(first, v)
    outputs: dict[int, Complex] = {0: first}
    for i in half:
        c, s = x[0], (k.const(x[0][0].type, 0.0),) * 2
        for j, a, b in zip(half, sums, differences, strict=True):
            angle = 2 * math.pi * (i * j % r) / r
            c = k.fma(a[0], math.cos(angle), c[0]), k.fma(a[1], math.cos(angle), c[1])
            s = k.fma(b[0], math.sin(angle), s[0]), k.fma(b[1], math.sin(angle), s[1])
        outputs[i], outputs[r - i] = (c[0] + s[1], c[1] - s[0]), (c[0] - s[1], c[1] + s[0])
    return [outputs[i] for i in range(r)]


def stages_of(n: int) -> list[int] | None:
    """The radices of a transform's stages; None for a length with other factors."""
    radices = []
    for r in _RADICES:
        while n % r == 0:
            radices.append(r)
            n //= r
    return radices if n == 1 else None


def _unit(numerator: Array, n: int) -> Array:
    """e^(-2πi numerator / n) as pairs of f32."""
    angle = -2 * np.pi / n * (numerator % n)
    return np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)


def transform_step(
    x: Array, y: Array, n: int, lines: int, ctx: EngineContext, *, real: str = "", inverse: bool = False,
    scale: float = 1.0, window: Array | None = None, hop: int = 0, borrow: Callable[[int], Bytes] | None = None,
) -> EngineStep | None:  # fmt: skip
    """The step that transforms lines of x into y; None for lengths and numbers of lines that the kernel does not do.
    `real`: "in" or "out", the side whose lines are real. With a window, the lines of a real x are segments of a signal,
    `hop` apart, and y is (frequencies, segments, 2). `borrow` gives the step's memory, as ctx does."""
    size = n // 2 if real else n
    lanes = ctx.machine.lanes() if size <= _SHORT_ELEMENTS else min(8, ctx.machine.lanes())
    radices = stages_of(size) if 2 <= size <= _MAX_ELEMENTS else None
    if radices is None or 2 * lines < lanes or (real and n % 2):
        return None
    in_size = math.prod(x.shape[-1:] if real == "in" else x.shape[-2:])
    out_size = math.prod(y.shape[-1:] if real == "out" else y.shape[-2:])
    pitch, in_size = (in_size, in_size) if window is None else (hop, window.size)
    todo, s, m = [], 1, size
    factors, at = [], 0
    for r in radices:
        m //= r
        todo += [r, m, s, at]
        factors.append(_unit(np.outer(np.arange(m), np.arange(1, r)), r * m).reshape(-1))
        at += factors[-1].size
        s *= r
    stages, table = np.array(todo, np.int64), np.concatenate(factors)
    turns = _unit(np.arange(size), 2 * size).reshape(-1)
    groups = -(-lines // lanes)
    each = -(-groups // _MAX_ITEMS)
    items = -(-groups // each)
    memory = (borrow or ctx.borrow)(4 * (items * 2 * (size + 1) * 2 * lanes + lanes * lanes))
    spec = Transform(
        tuple(r for r in _RADICES if r in radices), real, real == "out" or (not real and inverse),
        inverse if real == "in" else not inverse, lanes, window is not None,
    )  # fmt: skip
    read = 2 * (size + 1) if real == "out" else 2 * size
    args = spec.args(
        x=x, y=y, stages=stages, count=len(radices), factors=table, turns=turns, memory=memory, lines=lines,
        groups=each, read=min(in_size, read), pitch=pitch, out_pitch=out_size, n=size, written=out_size, scale=scale,
        window=window,
    )  # fmt: skip
    cost = each * lanes * size * (2.0 + len(radices)) * 0.4
    return EngineStep(spec, args, items, 1, (x, y, stages, table, turns, memory, window), cost_ns=cost)


def _bind(
    real: str, node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    x, y, attrs = ins[0], outs[0], node.attrs
    if x.dtype != np.float32 or not contiguous(x, y) or x.size == 0:
        return None
    lines = math.prod(y.shape[:-1] if real == "out" else y.shape[:-2])
    step = transform_step(x, y, attrs["n"], lines, ctx, real=real, inverse=attrs["inverse"], scale=attrs["scale"])
    return None if step is None else [step]


for _op, _real in (("fft", ""), ("rfft", "in"), ("irfft", "out")):
    engine(_op)(partial(_bind, _real))
