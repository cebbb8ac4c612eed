"""Fourier transforms by pocketfft: scipy.fft where SciPy is installed (it transforms several lines at once, in the
vectors of the processor), else numpy.fft."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.ir import Node

_PIECE = (
    1 << 15
)  # elements of the lines that one call transforms, about: its result is copied while in a cache
_NS_PER_BIT = 0.4  # time for an element of a line for each binary digit of the line's length

Transform = Callable[..., Any]


@cache
def library() -> Any:
    """scipy.fft, or numpy.fft where SciPy is missing."""
    try:
        return importlib.import_module("scipy.fft")
    except ImportError:
        return np.fft


def _norm(n: int, inverse: bool, scale: float) -> tuple[str, float]:
    """The library's `norm` that applies `scale`, or else the one that applies no factor; and the factor that remains to
    be applied."""
    ways = {1.0: "forward" if inverse else "backward", 1.0 / n: "backward" if inverse else "forward"}
    if scale in ways:
        return ways[scale], 1.0
    return ("ortho", 1.0) if scale == 1.0 / math.sqrt(n) else (ways[1.0], scale)


def complex_view(x: Array) -> Array:
    """Pairs as complex numbers, in the same memory."""
    return x.view(np.complex128 if x.dtype == np.float64 else np.complex64)[..., 0]


def _run(call: Transform, x: Array, out: Array, conjugate: tuple[bool, bool], factor: float) -> None:
    spectrum = call(np.conj(x) if conjugate[0] else x)
    if conjugate[1]:
        np.conj(spectrum, out=out, casting="same_kind")
    else:
        np.copyto(out, spectrum, "same_kind")
    if factor != 1.0:
        np.multiply(out, out.real.dtype.type(factor), out)


def _bind(
    node: Node, x: Array, out: Array, ctx: BindContext, kind: str, conjugate: tuple[bool, bool], inverse: bool
) -> list[Step]:
    """Transforms the rows of x by the FFT library's function `kind`."""
    n = node.attrs["n"]
    norm, factor = _norm(n, inverse, node.attrs["scale"])
    call = partial(getattr(library(), kind), n=n, norm=norm)
    count = max(1, _PIECE // n)
    rows = len(out)

    def piece(number: int, thread: int) -> list[Step]:
        part = slice(number * count, min(rows, (number + 1) * count))
        return [partial(_run, call, x[part], out[part], conjugate, factor)]

    return ctx.split(-(-rows // count), _NS_PER_BIT * rows * n * math.log2(n + 1), piece)


@cpu_kernel("fft")
def bind_fft(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    steps, x = _contiguous(ins[0], ctx)
    if outs[0].size == 0:
        return []
    inverse = node.attrs["inverse"]
    x, out = (complex_view(a.reshape(-1, *a.shape[-2:])) for a in (x, outs[0]))
    return steps + _bind(node, x, out, ctx, "ifft" if inverse else "fft", (False, False), inverse)


@cpu_kernel("rfft")
def bind_rfft(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """The inverse direction is the conjugate of the result."""
    steps, x = _contiguous(ins[0], ctx)
    if outs[0].size == 0:
        return []
    out = complex_view(outs[0].reshape(-1, *outs[0].shape[-2:]))
    x = x.reshape(-1, x.shape[-1])
    return steps + _bind(node, x, out, ctx, "rfft", (False, node.attrs["inverse"]), False)


@cpu_kernel("irfft")
def bind_irfft(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    """The forward direction is that of the conjugate input."""
    steps, x = _contiguous(ins[0], ctx)
    if outs[0].size == 0:
        return []
    x = complex_view(x.reshape(-1, *x.shape[-2:]))
    out = outs[0].reshape(-1, outs[0].shape[-1])
    return steps + _bind(node, x, out, ctx, "irfft", (not node.attrs["inverse"], False), True)


def _contiguous(x: Array, ctx: BindContext) -> tuple[list[Step], Array]:
    """x with its elements side by side, and the steps that copy them."""
    if x.flags.c_contiguous:
        return [], x
    packed = ctx.scratch(x.shape, x.dtype)
    return [partial(np.copyto, packed, x)], packed
