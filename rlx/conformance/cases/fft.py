"""Conformance of Fourier transforms: every kind of length, several lines, cut and filled lines, both directions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.f64_cases import finer, none
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, f32, f64
from rlx.ops.fft import functions as transforms
from rlx.ops.fft.pairs import pair
from rlx.ops.fft.transform import half

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

OPS_OF = ("fft", "rfft", "irfft")
# Every length up to the small products, then primes, products of small primes, powers of two and their neighbours, and
# lengths about the largest that a workgroup transforms.
_LENGTHS = (
    *range(1, 34), 35, 36, 37, 41, 45, 48, 49, 50, 53, 60, 63, 64, 65, 67, 70, 72, 75, 77, 81, 91, 96, 97, 98, 99, 100,
    101, 105, 108, 110, 120, 121, 125, 127, 128, 129, 131, 143, 144, 169, 180, 192, 210, 211, 225, 240, 243, 250, 251,
    255, 256, 257, 289, 315, 323, 343, 360, 375, 384, 385, 400, 420, 441, 480, 500, 509, 511, 512, 513, 521, 539, 600,
    625, 640, 720, 729, 768, 840, 900, 960, 997, 1000, 1001, 1009, 1023, 1024, 1025,
)  # fmt: skip
_LONG = (1155, 1280, 1331, 1500, 1536, 1920, 2000, 2039, 2047, 2048, 2187, 2310, 3125, 4093, 4095, 4096, 4097)
_LARGE = (5000, 6561, 8191, 8192, 8193, 16384, 20000)


def _case(
    form: str,
    n: int,
    batch: tuple[int, ...] = (2,),
    dtype: DType = f32,
    *,
    given: int | None = None,
    inverse: bool | None = None,
    scale: float = 1.0,
    domain: str = "normal",
) -> Case:
    """`given`: the elements of a line before it is cut or filled; as many as the transform needs unless said."""
    inverse = form == "irfft" if inverse is None else inverse
    count = (half(n) if form == "irfft" else n) if given is None else given
    shape = (*batch, count) if form == "rfft" else (*batch, count, 2)
    words = f"n{n}{'-inverse' if inverse else ''}" + (f"-scale{scale:.4g}" if scale != 1.0 else "")
    name = f"{dtype}-{label(shape)}-{words}-{domain}"
    attrs = {"n": n, "inverse": inverse, "scale": scale}
    return Case(form, name, (InputSpec(shape, dtype, domain),), attrs, finer(NORM) if dtype == f64 else NORM)


def _lengths(form: str) -> Iterator[Case]:
    for i, n in enumerate(_LENGTHS):
        yield _case(form, n, ((2,), (1,), (3,), ())[i % 4], inverse=bool(i & 1))
        if i % 3 == 0:
            yield _case(form, n, (2,), f64, inverse=bool(i & 2), scale=1.0 / n)
    for i, n in enumerate(_LONG):
        yield _case(form, n, (1 + i % 2,), inverse=bool(i & 1), scale=1.0 / math.sqrt(n))
        if i % 2:
            yield _case(form, n, (1,), f64, inverse=bool(i & 2))
    for i, n in enumerate(_LARGE):
        yield _case(form, n, (1,), f64 if i % 4 == 3 else f32)


def _forms(form: str) -> Iterator[Case]:
    """Lines cut and filled, many lines, none, other numbers."""
    for dtype in (f32, f64):
        for n in (1, 4, 7, 16, 30, 34):
            for given in (1, 3, 8, 21):
                yield _case(form, n, (2,), dtype, given=given, inverse=bool(given & 2))
        for batch in ((0,), (2, 0), (5, 3), (67,), (2, 1, 3)):
            for n in (1, 6, 32):
                yield _case(form, n, batch, dtype, scale=0.5)
        for n in (5, 64, 12, 37):
            for domain in ("zeros", "large", "halves", "offset", "small"):
                yield _case(form, n, (3,), dtype, domain=domain, inverse=n == 64)
    for n, lines in ((2, 300), (8, 130), (64, 40), (100, 17), (128, 9)):
        yield _case(form, n, (lines,))
        yield _case(form, n, (lines,), inverse=form != "irfft", scale=1.0 / n)
    for n, given in ((2048, 1500), (1000, 1200), (4096, 100), (1021, 700)):
        yield _case(form, n, (1,), given=given)


def _fft_lengths() -> Iterator[Case]:
    for form in OPS_OF:
        yield from _lengths(form)
        yield from _forms(form)


@rule("fourier")
def _transforms(b: Builder) -> Made:
    """A transform there and back, of a few numbers, along any axis."""
    dtype = b.choose((f32, f32, f64))
    shape = tuple(1 + b.below(6) for _ in range(1 + b.below(3)))
    axis = b.below(len(shape))
    n = None if b.chance(0.5) else 1 + b.below(9)
    norm = b.choose(("backward", "ortho", "forward"))
    x = b.leaf(shape, dtype)
    if b.chance(0.5):
        z = transforms.rfft(x, n, axis, norm)
        return z, transforms.irfft(z, 1 + b.below(9), axis, "ortho")
    z = transforms.fft(pair(x), n, axis, norm)
    return z, transforms.ifft(z, None, axis, norm)


OPS = tuple(Conformance(form, (_fft_lengths,), (_transforms,), none) for form in OPS_OF)
