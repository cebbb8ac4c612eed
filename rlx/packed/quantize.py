"""Packing floats on the host: blocks are searched (`search`) and their numbers and codes laid out as the format has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, DTypeLike
from rlx.errors import DTypeError, ShapeError
from rlx.packed.array import PackedArray, check_packed
from rlx.packed.decode import split_planes
from rlx.packed.search import SEARCHES, Search

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Fields = dict[str, Array]
# From a search and blocks (n, elements) to their numbers (numbers of a block, n) and codes (n, elements).
Finder = Callable[[Search, F32], tuple[F32, Bytes]]

_ELEMENTS_AT_ONCE = 1 << 18  # threads of NumPy wait for each other if pieces are smaller


def begun(x: npt.ArrayLike, dtype: DTypeLike) -> tuple[PackedArray, Iterator[Callable[[Finder], None]]]:
    """The packed array for x, still empty, and functions that each fill one part of it: called with a `Finder`, in any
    order, by any thread.

    Raises: as `rlx.quantize`; a piece may raise DTypeError."""
    kind = check_packed("quantize", dtype)
    if kind.family not in SEARCHES:
        raise DTypeError(f"quantize: rlx has no quantizer for {kind}; it has {', '.join(SEARCHES)}")
    try:
        values = np.asarray(x)
    except ValueError as error:
        raise ShapeError(f"quantize: expected an array of floats; {error}") from None
    # The floats of ml_dtypes have the kind V too.
    if values.dtype.kind not in "fiuV" or values.dtype.type is np.void:
        raise DTypeError(f"quantize: expected floats, got {values.dtype}")
    blocks = np.empty(kind.array_shape(values.shape), np.uint8)
    return PackedArray(kind, values.shape, blocks), _pieces(kind, values, blocks)


def _pieces(kind: DType, values: Array, blocks: Bytes) -> Iterator[Callable[[Finder], None]]:
    if not blocks.size:
        return
    rows = blocks.reshape(-1, blocks.shape[-1])
    source = values.reshape(len(rows), values.shape[-1])
    size = kind.storage.elements
    step = max(1, _ELEMENTS_AT_ONCE // source.shape[1])
    width = max(size, _ELEMENTS_AT_ONCE // size * size)
    for first in range(0, len(rows), step):
        for start in range(0, source.shape[1], width):
            part = source[first : first + step, start : start + width]
            planes = {
                name: plane[:, start // size : (start + width) // size]
                for name, plane in split_planes(kind, rows[first : first + step]).items()
            }
            yield partial(_pack, kind, part, planes)


def _pack(kind: DType, part: Array, planes: dict[str, Bytes], find: Finder) -> None:
    blocks = np.ascontiguousarray(part, np.float32).reshape(-1, kind.storage.elements)
    if not np.isfinite(blocks).all():
        raise DTypeError("quantize: the array holds NaN or infinities (as f32); packed weights must be finite")
    numbers, codes = find(SEARCHES[kind.family], blocks)
    with np.errstate(all="ignore"):
        # Finders may differ in the sign of a scale that is zero: all are stored as +0.
        for name, field in FIELDS[kind.family](np.ascontiguousarray(numbers.T) + np.float32(0), codes).items():
            plane = planes[name]
            plane[...] = np.ascontiguousarray(field).view(np.uint8).reshape(plane.shape)


# -- the fields of formats, from the numbers and codes of blocks


def _bits(codes: Array, width: int, run: int) -> Bytes:
    """Codes of `width` bits as bytes, so that `decode._bits` reads them."""
    apart = codes.reshape(len(codes), -1, 8 // width, run)
    packed = apart[:, :, 0] & ((1 << width) - 1)
    for place in range(1, 8 // width):
        packed |= (apart[:, :, place] & ((1 << width) - 1)) << (place * width)
    return np.asarray(packed.reshape(len(codes), -1))


def _half(*d: F32) -> Array:
    return np.concatenate(d, -1).astype(np.float16)


def _whole(numbers: F32) -> Bytes:
    """Numbers as bytes, modulo 256."""
    return numbers.astype(np.int32).astype(np.uint8)


def _six_bits(a: Bytes, b: Bytes) -> Bytes:
    first, last = slice(0, 4), slice(4, 8)
    return np.concatenate(
        [
            a[:, first] | a[:, last] >> 4 << 6,
            b[:, first] | b[:, last] >> 4 << 6,
            a[:, last] & 15 | b[:, last] << 4,
        ],
        1,
    )


def _q4_0(n: F32, v: Array) -> Fields:
    return {"d": _half(n), "qs": _bits(v + 8, 4, 16)}


def _q5_0(n: F32, v: Array) -> Fields:
    v = v + 16
    return {"d": _half(n), "qs": _bits(v, 4, 16), "qh": _bits(v >> 4, 1, 1)}


def _q4_1(n: F32, v: Array) -> Fields:
    return {"dm": _half(n), "qs": _bits(v, 4, 16)}


def _q5_1(n: F32, v: Array) -> Fields:
    return {"dm": _half(n), "qs": _bits(v, 4, 16), "qh": _bits(v >> 4, 1, 1)}


def _q8_0(n: F32, v: Array) -> Fields:
    return {"d": _half(n), "qs": v}


def _q2_k(n: F32, v: Array) -> Fields:
    return {"dm": _half(n[:, :2]), "scales": _whole(n[:, 2:18] + 16 * n[:, 18:]), "qs": _bits(v, 2, 32)}


def _q4_k(n: F32, v: Array) -> Fields:
    scales = _six_bits(_whole(n[:, 2:10]), _whole(n[:, 10:]))
    return {"dm": _half(n[:, :2]), "scales": scales, "qs": _bits(v, 4, 32)}


def _q5_k(n: F32, v: Array) -> Fields:
    return {**_q4_k(n, v), "qh": _bits(v >> 4, 1, 32)}


def _q3_k(n: F32, v: Array) -> Fields:
    code, scale = v + 4, _whole(n[:, 1:] + 32)
    scales = np.concatenate([_bits(scale, 4, 8), _bits(scale >> 4, 2, 4)], 1)
    return {"d": _half(n[:, :1]), "scales": scales, "qs": _bits(code, 2, 32), "qh": _bits(code >> 2, 1, 32)}


def _q6_k(n: F32, v: Array) -> Fields:
    code = v + 32
    high = _bits(code >> 4, 2, 32)
    return {"d": _half(n[:, :1]), "scales": _whole(n[:, 1:]), "ql": _bits(code, 4, 64), "qh": high}


def _iq4_nl(n: F32, v: Array) -> Fields:
    return {"d": _half(n), "qs": _bits(v, 4, 16)}


def _iq4_xs(n: F32, v: Array) -> Fields:
    code = _whole(n[:, 1:] + 32).astype(np.uint16)
    high = np.bitwise_or.reduce(code >> 4 << np.arange(0, 16, 2, dtype=np.uint16), 1)
    low = _bits(code.astype(np.uint8), 4, 1)
    return {"d": _half(n[:, :1]), "scales_l": low, "scales_h": high, "qs": _bits(v, 4, 16)}


def _mxfp4(n: F32, v: Array) -> Fields:
    # The elements are twice the values of e2m1, so that the exponent that is stored counts one more.
    return {"e": (n.view(np.uint32) >> 23).astype(np.uint8) + 1, "qs": _bits(v, 4, 16)}


def _nvfp4(n: F32, v: Array) -> Fields:
    import ml_dtypes  # imported where it is used

    return {"d": (n * 2).astype(ml_dtypes.float8_e4m3fn), "qs": _bits(v, 4, 8)}


def _tq2_0(n: F32, v: Array) -> Fields:
    return {"d": _half(n), "qs": _bits(v + 1, 2, 32)}


def _q1_0(n: F32, v: Array) -> Fields:
    return {"d": _half(n), "qs": _bits(v, 1, 1)}


def _bytes(n: F32, v: Array) -> Fields:
    return {"s": n, "qs": v}


def _int4(n: F32, v: Array) -> Fields:
    return {"s": n, "qs": _bits(v + 8, 4, 1)}


def _int8_zp(n: F32, v: Array) -> Fields:
    return {"s": n[:, :1], "z": _whole(n[:, 1:]), "qs": v}


def _int4_zp(n: F32, v: Array) -> Fields:
    return {"s": n[:, :1], "z": _whole(n[:, 1:]), "qs": _bits(v, 4, 1)}


def _of_table(n: F32, v: Array) -> Fields:
    return {"s": n, "qs": _bits(v, 4, 16)}


FIELDS: dict[str, Callable[[F32, Array], Fields]] = {
    "q4_0": _q4_0, "q4_1": _q4_1, "q5_0": _q5_0, "q5_1": _q5_1, "q8_0": _q8_0, "q2_k": _q2_k, "q3_k": _q3_k,
    "q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k, "tq2_0": _tq2_0, "mxfp4": _mxfp4, "nvfp4": _nvfp4,
    "iq4_nl": _iq4_nl, "iq4_xs": _iq4_xs, "int8": _bytes, "int8_zp": _int8_zp, "int4": _int4, "int4_zp": _int4_zp,
    "fp8_e4m3": _bytes, "fp8_e5m2": _bytes, "nf4": _of_table, "fp4": _of_table, "q1_0": _q1_0,
}  # fmt: skip
