"""Integer GEMMs by BLAS in f64: exact, and fifty times as fast as NumPy's loops over integers.

A sum of products that stays below 2^53 is exact in f64, in any order. For the 8-bit integers of quantized models one
GEMM always suffices; each run looks at the largest elements to decide. Larger numbers are split into parts of 16 bits,
whose products are combined with wrap-around in the result's dtype, as everywhere in rlx.
"""

from __future__ import annotations

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step

_EXACT = 1 << 53
_HALF = 16
_LONGEST = 1 << 20  # the products of 16-bit parts that add up exactly
_LEAST_PRODUCTS = 1 << 15  # conversion costs more than BLAS saves for fewer


def by_floats(a: Array, b: Array, out: Array) -> bool:
    """Whether a @ b is a product of integers of at most 32 bits that `multiply` computes exactly and faster."""
    small = all(x.dtype.kind in "iu" and x.dtype.itemsize <= 4 for x in (a, b, out))
    return small and out.size * a.shape[-1] >= _LEAST_PRODUCTS and a.shape[-1] <= _LONGEST


def multiply(a: Array, b: Array, out: Array, ctx: BindContext, thread: int = 0) -> Step:
    """out = a @ b, wrapped to the dtype of `out`. Requires: `by_floats`."""
    left, right = ctx.scratch(a.shape, np.float64, thread), ctx.scratch(b.shape, np.float64, thread)
    product, whole = ctx.scratch(out.shape, np.float64, thread), ctx.scratch(out.shape, np.int64, thread)

    def halves(shift_a: int, shift_b: int) -> None:
        np.copyto(left, _half(a, shift_a))
        np.copyto(right, _half(b, shift_b))
        np.matmul(left, right, product)
        np.copyto(whole, product, "unsafe")

    def run() -> None:
        if _largest(a) * _largest(b) * a.shape[-1] <= _EXACT:
            np.copyto(left, a)
            np.copyto(right, b)
            np.matmul(left, right, product)
            np.copyto(whole, product, "unsafe")
            np.copyto(out, whole, "unsafe")
            return
        halves(0, 0)
        np.copyto(out, whole, "unsafe")
        # The product of both upper parts is a multiple of 2^32, which out cannot hold.
        for shifts in ((0, _HALF), (_HALF, 0)):
            halves(*shifts)
            np.left_shift(whole, _HALF, whole)
            np.add(out, whole.astype(out.dtype), out)

    return run


def _largest(x: Array) -> int:
    return max(-int(x.min()), int(x.max()), 1)


def _half(x: Array, shift: int) -> Array:
    """The upper bits with their sign where there is a shift, else the lower 16 bits as an unsigned number."""
    wide = x.astype(np.int64)
    return wide >> shift if shift else wide & 0xFFFF
