"""Conformance of Fourier transforms: every kind of length, batches, truncated and zero-padded lines, both
directions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.conformance.case import Case, InputSpec
from rlx.conformance.f64_cases import finer, none
from rlx.conformance.random_rules import Made, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import label
from rlx.conformance.tolerances import NORM
from rlx.dtypes import DType, f32, f64
from rlx.ir import Attrs
from rlx.ops.fft import functions as transforms
from rlx.ops.fft.pairs import pair
from rlx.ops.fft.transform import half
from rlx.ops.numeric import Array

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

OPS_OF = ("fft", "rfft", "irfft")
# Every small length; products of the small primes of which stages and passes are made; primes and twice a prime, which
# are computed as convolutions; and powers of two with their neighbours.
_LENGTHS = (
    *range(1, 21), 21, 23, 25, 26, 27, 28, 30, 31, 32, 33, 36, 37, 44, 48, 49, 60, 63, 64, 65, 74, 77, 90, 97, 100, 104,
    121, 127, 128, 129, 143, 169, 210, 243, 255, 256, 257, 343, 360, 500, 512, 625, 720, 997, 1000, 1001, 1024,
)  # fmt: skip
_LARGE = (2000, 4095, 4096, 4099, 6000, 16384)


def _case(
    form: str,
    n: int,
    batch: tuple[int, ...] = (2,),
    dtype: DType = f32,
    *,
    length: int | None = None,
    inverse: bool | None = None,
    scale: float = 1.0,
    domain: str = "normal",
) -> Case:
    """`length`: the elements of a line before it is truncated or padded; by default as many as the transform needs."""
    inverse = form == "irfft" if inverse is None else inverse
    count = (half(n) if form == "irfft" else n) if length is None else length
    shape = (*batch, count) if form == "rfft" else (*batch, count, 2)
    words = f"n{n}{'-inverse' if inverse else ''}" + (f"-scale{scale:.4g}" if scale != 1.0 else "")
    name = f"{dtype}-{label(shape)}-{words}-{domain}"
    attrs = {"n": n, "inverse": inverse, "scale": scale}
    return Case(form, name, (InputSpec(shape, dtype, domain),), attrs, finer(NORM) if dtype == f64 else NORM)


def _lengths(form: str) -> Iterator[Case]:
    """All lengths in the first form, half of them in each of the two others."""
    first = OPS_OF.index(form)
    for i, n in enumerate(_LENGTHS):
        if first == 0 or i % 2 == first - 1:
            yield _case(form, n, ((2,), (3,))[i % 2], inverse=bool(i & 4))
        if i % 4 == first:
            yield _case(form, n, (2,), f64, inverse=bool(i & 8), scale=1.0 / n)
    for i, n in enumerate(_LARGE):
        if first == 0 or i == first:
            yield _case(form, n, (1,), scale=1.0 / math.sqrt(n))
    yield _case(form, 2048, (1,), f64)


def _forms(form: str) -> Iterator[Case]:
    """Lines that are cut or padded, many lines, no lines, other domains."""
    for dtype in (f32, f64):
        for n in (1, 4, 7, 16, 30, 34):
            for length in (1, 2, 3, 8, 21, 40):
                yield _case(form, n, (2,), dtype, length=length)
        for batch in ((0,), (2, 0), (5, 3), (67,), (2, 1, 3), (), (1,)):
            for n in (1, 6, 32):
                yield _case(form, n, batch, dtype, scale=0.5)
        for n in (5, 64, 12, 37):
            for domain in ("zeros", "large", "halves", "offset", "small"):
                yield _case(form, n, (3,), dtype, domain=domain, inverse=n == 64)
                yield _case(form, n, (2,), dtype, domain=domain, inverse=n == 64)
    for n, lines in ((2, 300), (8, 130), (100, 17)):
        yield _case(form, n, (lines,))
    for n in (2, 8):  # NaN and infinities in few of the lines
        yield _case(form, n, (130,), domain="holes")
    yield _case(form, 2048, (1,), length=1500)


def _fft_cases() -> Iterator[Case]:
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
    z = transforms.fft(pair(x), n, axis, norm, pairs=True)
    return z, transforms.ifft(z, None, axis, norm, pairs=True)


def _terms(form: str, inputs: Sequence[Array], attrs: Attrs) -> Any:
    """Every result is a sum over the whole line, of elements times factors of magnitude 1."""
    x, n = inputs[0], attrs["n"]
    count = half(n) if form == "irfft" else n
    lines = x[..., :count] if form == "rfft" else x[..., :count, :]
    size = attrs["scale"] * np.sqrt(np.sum(lines * lines, -1 if form == "rfft" else (-2, -1)))
    shape = {"fft": (n, 2), "rfft": (half(n), 2), "irfft": (n,)}[form]
    return np.broadcast_to(size.reshape(*size.shape, *(1 for _ in shape)), (*size.shape, *shape))


def _lines_of_nan(form: str, inputs: Sequence[Array], attrs: Attrs) -> Any:
    """Marks all results of lines with a number that is not finite: which results become NaN depends on the
    algorithm."""
    with np.errstate(all="ignore"):
        return ~np.isfinite(_terms(form, [x.astype(np.float64) for x in inputs], attrs))


OPS = tuple(
    Conformance(
        form, (_fft_cases,), (_transforms,), none, partial(_terms, form), undecided=partial(_lines_of_nan, form)
    )
    for form in OPS_OF
)
