"""`rlx.quantize`: floats into packed blocks on all cores, by a compiled search where there is a compiler."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DTypeLike
from rlx.packed import PackedArray

if TYPE_CHECKING:
    from rlx.packed.quantize import Finder

_COMPILED_ELEMENTS = 1 << 20  # the search is compiled from this many elements on
_PIECES_PER_TURN = 4  # pieces that each thread searches between two checks for Ctrl-C


def quantize(x: npt.ArrayLike, dtype: DTypeLike) -> PackedArray:
    """The floats in packed blocks along their last axis, with about the least squared error that the format allows.

    Shape: (..., k), k a multiple of the block. Dtype: a name in letters of either case. GGUF's: q4_0, q4_1, q5_0, q5_1,
    q8_0, iq4_nl, mxfp4 (blocks of 32 elements), nvfp4 (64), q1_0 (128), q2_k, q3_k, q4_k, q5_k, q6_k, tq2_0, iq4_xs
    (256). Others: int8, int4, int8_zp, int4_zp (with a zero point), fp8_e4m3, fp8_e5m2, in blocks of 32, or of 128 with
    "_128" after the name; bitsandbytes' nf4 and fp4 in blocks of 32, or of 64 with "_64". Numbers beyond what the
    scales can express become the largest that they can. The bytes are the same with and without the CPU's compiler.
    Raises: DTypeError for NaN or infinities, for values that are no real numbers and for a format without a quantizer,
    ShapeError for other shapes.

    >>> q = rlx.quantize(weight, "q4_k")  # weight (n, k)
    >>> rlx.jit(rlx.linear)(x, q)  # x (..., k) gives (..., n); the weight stays packed
    """
    from rlx.backends.cpu.threads import POOL  # few programs quantize
    from rlx.host.processors import available_threads
    from rlx.packed.quantize import begun

    result, pieces = begun(x, dtype)
    find = _finder(result)
    threads = available_threads()

    def work(part: list[Callable[[Finder], None]]) -> None:
        for piece in part:
            piece(find)

    while batch := list(islice(pieces, _PIECES_PER_TURN * threads)):
        each = -(-len(batch) // threads)
        POOL.run([lambda part=batch[i : i + each]: work(part) for i in range(0, len(batch), each)])  # type: ignore[misc]
    return result


def _finder(packed: PackedArray) -> Finder:
    from rlx.packed.lanes import find_blocks

    if np.prod(packed.shape, dtype=np.float64) < _COMPILED_ELEMENTS:
        return find_blocks
    from rlx.backends.cpu.quantize import finder

    return finder(packed.dtype.family, packed.dtype.storage.elements) or find_blocks
