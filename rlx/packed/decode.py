"""What the bits of packed blocks mean: each format as a function from its planes to scales and integers.

A block's elements are `scale · quant - minimum`, where groups of consecutive elements share scale and minimum. Scales
are at most 11 bits of an f16 times a small integer and quants at most 8 bits, so that f32 holds every product exactly
and only the subtraction rounds: any order of the factors, and a fused multiplication, gives the same bits. Where scales
are f32 (int8, int4, fp8, nf4, fp4) there is one rounding too, that of the product. A scale that is infinite or NaN
gives infinity and NaN as IEEE 754 says (infinity times 0 is NaN).

The formats are those of ggml (`ggml-common.h`), MXFP4 and e4m3, e5m2 those of the OCP specifications, nf4 and fp4 those
of bitsandbytes, whose quants are numbers of a table in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import PACKED, DType
from rlx.packed.codebooks import E2M1, IQ4, TABLES, codebook

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Planes = Mapping[str, Bytes]
# scales (…, groups), quants (…, elements), minimums (…, groups) or None
Parts = tuple[Array, Array, Array | None]

_ELEMENTS_AT_ONCE = 1 << 18  # elements decoded at once: temporaries take up to 30 bytes for each


def split_planes(dtype: DType, rows: Bytes) -> dict[str, Bytes]:
    """Views of the planes of packed rows: (rows, row bytes) -> field name -> (rows, blocks, bytes of the field)."""
    storage, result, at = dtype.storage, {}, 0
    blocks = rows.shape[1] // storage.nbytes
    for plane in storage.planes:
        end = at + blocks * plane.nbytes
        result[plane.name] = rows[:, at:end].reshape(len(rows), blocks, plane.nbytes)
        at = end
    return result


def decode_rows(dtype: DType, rows: Bytes, out: npt.NDArray[np.float32]) -> None:
    """Writes the elements of packed rows (rows, row bytes) into `out` (rows, elements), in pieces of bounded size."""
    if not out.size:
        return
    step = max(1, _ELEMENTS_AT_ONCE // max(out.shape[1], 1))
    blocks = max(1, _ELEMENTS_AT_ONCE // dtype.storage.elements)
    decode = FORMATS[dtype.name]
    with np.errstate(all="ignore"):
        for first in range(0, len(rows), step):
            planes = split_planes(dtype, rows[first : first + step])
            target = out[first : first + step].reshape(
                -1, out.shape[1] // dtype.storage.elements, dtype.storage.elements
            )
            for at in range(0, target.shape[1], blocks):
                part = slice(at, at + blocks)
                scale, quants, low = decode({name: plane[:, part] for name, plane in planes.items()})
                grouped = target[:, part].reshape(*scale.shape, -1)
                np.multiply(quants.reshape(grouped.shape), scale[..., None], grouped)
                if low is not None:
                    grouped -= low[..., None]
                target[:, part] = grouped.reshape(quants.shape)


# -- fields


def _bits(x: Bytes, width: int, run: int) -> Bytes:
    """Numbers of `width` bits. Each run of bytes holds first the numbers in its lowest bits, then those in the next."""
    runs = x.reshape(*x.shape[:-1], -1, run)
    apart = np.empty((*runs.shape[:-1], 8 // width, run), np.uint8)
    for place in range(8 // width):  # a loop of few steps, since NumPy is slow along short axes
        np.right_shift(runs, np.uint8(place * width), apart[..., place, :])
    apart &= np.uint8((1 << width) - 1)
    return apart.reshape(*x.shape[:-1], -1)


def _int(x: Array, less: int = 0) -> npt.NDArray[np.int8]:
    return np.asarray(x.astype(np.int8) - np.int8(less))


def _half(x: Bytes) -> npt.NDArray[np.float32]:
    return x.view(np.float16).astype(np.float32)


def _words(x: Bytes, dtype: str) -> Array:
    return np.ascontiguousarray(x).view(dtype)


def _signs(bits: Bytes) -> npt.NDArray[np.int8]:
    """1 or -1 for each bit, the lowest first."""
    return _int(1 - 2 * _bits(bits, 1, 1).astype(np.int8))


def _even(codes: Array) -> Bytes:
    """Sign bits from 7-bit codes; the eighth bit makes the number of set bits even."""
    c = codes.astype(np.uint8)
    odd = c ^ (c >> 4)
    odd = odd ^ (odd >> 2)
    return np.asarray(c | ((odd ^ (odd >> 1)) & 1) << 7)


def _looked_up(book: str, codes: Array) -> npt.NDArray[np.int8]:
    return codebook(book)[codes].reshape(*codes.shape[:-1], -1)


# -- GGUF's plain types


def _q4_0(p: Planes) -> Parts:
    return _half(p["d"]), _int(_bits(p["qs"], 4, 16), 8), None


def _q4_1(p: Planes) -> Parts:
    dm = _half(p["dm"])
    return dm[..., :1], _bits(p["qs"], 4, 16), -dm[..., 1:]


def _five(p: Planes) -> Bytes:
    return np.asarray(_bits(p["qs"], 4, 16) | _bits(p["qh"], 1, 1) << 4)


def _q5_0(p: Planes) -> Parts:
    return _half(p["d"]), _int(_five(p), 16), None


def _q5_1(p: Planes) -> Parts:
    dm = _half(p["dm"])
    return dm[..., :1], _five(p), -dm[..., 1:]


def _q8_0(p: Planes) -> Parts:
    return _half(p["d"]), p["qs"].view(np.int8), None


# -- GGUF's K types


def _q2_k(p: Planes) -> Parts:
    dm, scales = _half(p["dm"]), p["scales"]
    return dm[..., :1] * (scales & 15), _bits(p["qs"], 2, 32), dm[..., 1:] * (scales >> 4)


def _q3_k(p: Planes) -> Parts:
    low, high = _bits(p["scales"][..., :8], 4, 8), _bits(p["scales"][..., 8:], 2, 4)
    quants = _int(_bits(p["qs"], 2, 32) | _bits(p["qh"], 1, 32) << 2, 4)
    return _half(p["d"]) * _int(low | high << 4, 32), quants, None


def _six_bits(p: Planes) -> tuple[Array, Array]:
    """The 8 scales and 8 minimums of q4_k and q5_k, of 6 bits: four of each in one piece, four split over two bytes."""
    dm = _half(p["dm"])
    d, m, both = (p["scales"][..., i : i + 4] for i in (0, 4, 8))
    scale = np.concatenate([d & 63, both & 15 | d >> 2 & 48], -1)
    low = np.concatenate([m & 63, both >> 4 | m >> 2 & 48], -1)
    return dm[..., :1] * scale, dm[..., 1:] * low


def _q4_k(p: Planes) -> Parts:
    scale, low = _six_bits(p)
    return scale, _bits(p["qs"], 4, 32), low


def _q5_k(p: Planes) -> Parts:
    scale, low = _six_bits(p)
    return scale, _bits(p["qs"], 4, 32) | _bits(p["qh"], 1, 32) << 4, low


def _q6_k(p: Planes) -> Parts:
    quants = _bits(p["ql"], 4, 64) | _bits(p["qh"], 2, 32) << 4
    return _half(p["d"]) * p["scales"].view(np.int8), _int(quants, 32), None


# -- GGUF's ternary and 4-bit float types


def _tq1_0(p: Planes) -> Parts:
    """Five base-3 digits in a byte: they are the digits of the fraction byte / 256."""
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
    parts = [(p["qs"][..., :32], 5), (p["qs"][..., 32:], 5), (p["qh"], 4)]
    digits = [(x[..., None, :] * powers[:n]).reshape(*x.shape[:-1], -1) for x, n in parts]
    return _half(p["d"]), _int(np.concatenate(digits, -1).astype(np.uint16) * 3 >> 8, 1), None


def _tq2_0(p: Planes) -> Parts:
    return _half(p["d"]), _int(_bits(p["qs"], 2, 32), 1), None


def _q1_0(p: Planes) -> Parts:
    return _half(p["d"]), -_signs(p["qs"]), None


def _mxfp4(p: Planes) -> Parts:
    e = p["e"].astype(np.uint32)
    half = np.where(
        e < 2, np.uint32(0x200000) << (e & 1), (np.maximum(e, 1) - 1) << 23
    )  # half of 2^(e - 127)
    return half.astype(np.uint32).view(np.float32), E2M1[_bits(p["qs"], 4, 16)], None


def _nvfp4(p: Planes) -> Parts:
    e, m = p["d"] >> 3 & 15, (p["d"] & 7).astype(np.float32)
    scale = np.ldexp(np.where(e == 0, m, m + 8), np.maximum(e, 1).astype(np.int32) - 11)
    return np.where(p["d"] == 0x7F, np.float32(0), scale), E2M1[_bits(p["qs"], 4, 8)], None


# -- GGUF's IQ types


def _fourths(p: Planes) -> Array:
    """16 scales of 4 bits: d · (scale + 1/2) / 4."""
    return np.asarray(
        _half(p["d"]) * (_bits(p["scales"], 4, 1).astype(np.float32) * 2 + 1) * np.float32(0.125)
    )


def _iq2_xxs(p: Planes) -> Parts:
    words = _words(p["qs"], "<u4").reshape(*p["qs"].shape[:-1], 8, 2)
    codes = np.ascontiguousarray(words[..., 0]).view(np.uint8)
    rest = words[..., 1]
    scale = _half(p["d"]) * ((rest >> 28).astype(np.float32) * 2 + 1) * np.float32(0.125)
    return scale, _looked_up("iq2_xxs", codes) * _signs(_sevens(rest)), None


def _sevens(words: Array) -> Bytes:
    """The sign bits of four codes of 7 bits in each word."""
    codes = words[..., None] >> np.array([0, 7, 14, 21], np.uint32) & 127
    return _even(codes.reshape(*words.shape[:-1], -1))


def _iq2_xs(p: Planes) -> Parts:
    codes = _words(p["qs"], "<u2")
    return _fourths(p), _looked_up("iq2_xs", codes & 511) * _signs(_even(codes >> 9)), None


def _iq2_s(p: Planes) -> Parts:
    codes = p["qs"] | _bits(p["qh"], 2, 1).astype(np.uint16) << 8
    return _fourths(p), _looked_up("iq2_s", codes) * _signs(p["signs"]), None


def _iq3_xxs(p: Planes) -> Parts:
    rest = _words(p["signs"], "<u4")
    scale = _half(p["d"]) * ((rest >> 28).astype(np.float32) * 2 + 1) * np.float32(0.25)
    return scale, _looked_up("iq3_xxs", p["qs"]) * _signs(_sevens(rest)), None


def _iq3_s(p: Planes) -> Parts:
    codes = p["qs"] | _bits(p["qh"], 1, 1).astype(np.uint16) << 8
    scale = _half(p["d"]) * (1 + 2 * _bits(p["scales"], 4, 1).astype(np.float32))
    return scale, _looked_up("iq3_s", codes) * _signs(p["signs"]), None


def _three(words: Array) -> Array:
    """Four numbers of 3 bits in each word."""
    return (words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(*words.shape[:-1], -1)


def _ternary(codes: Array, negative: Array) -> npt.NDArray[np.int8]:
    """Eight times a vector of iq1 moved by an eighth, for each code; `negative` says in which direction."""
    moved = _looked_up("iq1", codes).reshape(*codes.shape, 8) * np.int8(8)
    return _int(moved + np.where(negative, -1, 1).astype(np.int8)[..., None]).reshape(*codes.shape[:-1], -1)


def _iq1_s(p: Planes) -> Parts:
    high = _words(p["qh"], "<u2")
    codes = p["qs"] | _three(high) << 8
    scale = _half(p["d"]) * (2 * (high >> 12 & 7) + 1).astype(np.float32) * np.float32(0.125)
    return scale, _ternary(codes, np.repeat(high >> 15, 4, -1)), None


def _iq1_m(p: Planes) -> Parts:
    words = _words(p["scales"], "<u2")
    d = np.bitwise_or.reduce((words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16), -1, keepdims=True)
    high = _bits(p["qh"], 4, 1)
    codes = p["qs"] | (high & 7).astype(np.uint16) << 8
    scale = (
        d.view(np.float16).astype(np.float32) * (2 * _three(words) + 1).astype(np.float32) * np.float32(0.125)
    )
    return scale, _ternary(codes, high >> 3), None


def _iq4_nl(p: Planes) -> Parts:
    return _half(p["d"]), IQ4[_bits(p["qs"], 4, 16)], None


def _iq4_xs(p: Planes) -> Parts:
    high = _words(p["scales_h"], "<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scale = _half(p["d"]) * _int(_bits(p["scales_l"], 4, 1) | high << 4, 32)
    return scale, IQ4[_bits(p["qs"], 4, 16)], None


# -- blocks with scales in f32; elements of int4 lie two in a byte, the first in the low bits


def _scale(p: Planes) -> Array:
    return _words(p["s"], "<f4")


def _int8(p: Planes) -> Parts:
    return _scale(p), p["qs"].view(np.int8), None


def _int8_zp(p: Planes) -> Parts:
    return _scale(p), p["qs"].astype(np.int16) - p["z"], None


def _int4(p: Planes) -> Parts:
    return _scale(p), _int(_bits(p["qs"], 4, 1), 8), None


def _int4_zp(p: Planes) -> Parts:
    return _scale(p), _bits(p["qs"], 4, 1).astype(np.int16) - p["z"], None


def _fp8_e4m3(p: Planes) -> Parts:
    import ml_dtypes  # imported where it is used

    return _scale(p), p["qs"].view(ml_dtypes.float8_e4m3fn).astype(np.float32), None


def _fp8_e5m2(p: Planes) -> Parts:
    import ml_dtypes  # imported where it is used

    return _scale(p), p["qs"].view(ml_dtypes.float8_e5m2).astype(np.float32), None


def _nf4(p: Planes) -> Parts:
    return _scale(p), TABLES["nf4"][_bits(p["qs"], 4, 16)], None


def _fp4(p: Planes) -> Parts:
    return _scale(p), TABLES["fp4"][_bits(p["qs"], 4, 16)], None


FORMATS: dict[str, Callable[[Planes], Parts]] = {
    name: globals()[f"_{dtype.family}"] for name, dtype in PACKED.items()
}
