"""Packing floats on the host: for each block the scales whose rounded elements have the least squared error.

Each search tries some scales, rounds the block to each, and improves the best by least squares: given the rounded
elements, the scale (and minimum) of least error has a closed form. Scales are rounded to their stored form before an
error is measured. Formats of two levels find the scales of small groups first, then the block's scale for these, and
last try the neighbours of each stored scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rlx.dtypes import DTypeLike
from rlx.errors import DTypeError, ShapeError
from rlx.packed.array import PackedArray, check_packed
from rlx.packed.codebooks import E2M1, IQ4, TABLES
from rlx.packed.decode import split_planes

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]
Snap = Callable[[F32], F32]  # numbers in units of the scale -> the nearest ones that a block can hold
Fields = dict[str, Array]

_PIECE = 1 << 16  # elements packed at once; their temporaries stay in the cache


def quantize(x: npt.ArrayLike, dtype: DTypeLike) -> PackedArray:
    """The floats in packed blocks along their last axis, with about the least squared error that the format allows.

    Shape: (..., k), k a multiple of the block. Dtype: a name in letters of either case. GGUF's: q4_0, q4_1, q5_0, q5_1,
    q8_0, iq4_nl, mxfp4 (blocks of 32 elements), nvfp4 (64), q2_k, q3_k, q4_k, q5_k, q6_k, tq2_0, iq4_xs (256). Others:
    int8, int4, int8_zp, int4_zp (with a zero point), fp8_e4m3, fp8_e5m2, in blocks of 32, or of 128 with "_128" after
    the name; bitsandbytes' nf4 and fp4 in blocks of 32, or of 64 with "_64". Numbers beyond what the scales can
    express become the largest that they can. Raises: DTypeError for NaN or infinities, for values that are no real
    numbers and for a format without a quantizer, ShapeError for other shapes.

    >>> q = rlx.quantize(weight, "q4_k")  # weight (n, k)
    >>> rlx.jit(rlx.linear)(x, q)  # x (..., k) gives (..., n); the weight stays packed
    """
    kind = check_packed("quantize", dtype)
    pack = QUANTIZERS.get(kind.family)
    if pack is None:
        raise DTypeError(f"quantize: rlx has no quantizer for {kind}; it has {', '.join(QUANTIZERS)}")
    try:
        given = np.asarray(x)
    except ValueError as error:
        raise ShapeError(f"quantize: expected an array of floats; {error}") from None
    # The floats of ml_dtypes have the kind V too.
    if given.dtype.kind not in "fiuV" or given.dtype.type is np.void:
        raise DTypeError(f"quantize: expected floats, got {given.dtype}")
    made = np.empty(kind.array_shape(given.shape), np.uint8)
    storage = kind.storage
    rows = made.reshape(-1, made.shape[-1]) if made.size else made.reshape(0, storage.nbytes)
    source = (
        given.reshape(len(rows), -1, storage.elements) if made.size else np.empty((0, 1, storage.elements))
    )
    step = max(1, _PIECE // max(source.shape[1] * storage.elements, 1))
    for first in range(0, len(rows), step):
        planes = split_planes(kind, rows[first : first + step])
        blocks = np.ascontiguousarray(source[first : first + step], np.float32).reshape(-1, storage.elements)
        if not np.isfinite(blocks).all():
            raise DTypeError(
                "quantize: the array holds NaN or infinities (as f32); packed weights must be finite"
            )
        with np.errstate(all="ignore"):
            for name, field in pack(blocks).items():
                plane = planes[name]
                plane[...] = np.ascontiguousarray(field).view(np.uint8).reshape(plane.shape)
    return PackedArray(kind, given.shape, made)


# -- rounding


def _whole(low: int, high: int) -> Snap:
    return lambda v: np.clip(np.rint(v), low, high)


def _one_of(values: Array) -> Snap:
    """The nearest of small integers: a table holds it for each half, since the middles between integers are halves."""
    low, high = int(values.min()), int(values.max())
    halves = np.arange(2 * low, 2 * high + 1) / 2 + 0.25
    table = values[np.abs(halves[:, None] - values).argmin(1)].astype(np.float32)
    return lambda v: table[(np.clip(v, low, high) * 2 - 2 * low).astype(np.intp)]


def _nearest(values: Array) -> Snap:
    """The nearest of any numbers."""
    ascending = np.unique(values)
    middles = (ascending[1:] + ascending[:-1]) / 2
    return lambda v: ascending[np.searchsorted(middles, v)]


def _float8(kind: Any, most: float) -> Snap:
    return lambda v: np.clip(v, -most, most).astype(kind).astype(np.float32)


def _f16(d: F32) -> F32:
    return np.clip(d, -65504, 65504).astype(np.float16).astype(np.float32)


def _f32(d: F32) -> F32:
    return d


def _inverse(d: F32) -> F32:
    return np.where(np.abs(d) < 1e-38, np.float32(0), 1 / d)


def _dot(a: F32, b: F32) -> F32:
    return np.asarray(np.einsum("...i,...i->...", a, b)[..., None])


def _ratio(a: F32, b: F32) -> F32:
    return np.where(b == 0, np.float32(0), a / b)


def _least(found: Iterator[tuple[F32, ...]]) -> tuple[F32, ...]:
    """The scales of least error, group by group, among (error, scales…)."""
    least, *best = next(found)
    for error, *scales in found:
        better = error < least
        least = np.where(better, error, least)
        best = [np.where(better, new, old) for new, old in zip(scales, best, strict=True)]
    return tuple(best)


# -- one scale, and a scale with a minimum


def _scaled(x: F32, snap: Snap, tops: Sequence[float], store: Callable[[F32], F32] = _f16) -> tuple[F32, ...]:
    """The stored scale of each group, and its elements in units of it. `tops` are the numbers, in these units, that the
    largest element may be near: their sign is that of the scale times the element."""
    peak = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)

    def tried() -> Iterator[tuple[F32, ...]]:
        for top in tops:
            d = store(peak / np.float32(top))
            for _ in range(2):
                v = snap(x * _inverse(d))
                rest = x - d * v
                yield _dot(rest, rest), d
                d = store(_ratio(_dot(x, v), _dot(v, v)))

    (d,) = _least(tried())
    return d, snap(x * _inverse(d))


def _affine(
    x: F32, high: int, store: Callable[[F32], F32] = _f16, below: bool = False, steps: int = 8
) -> tuple[F32, ...]:
    """The stored scale and minimum of each group, and its elements from 0 to `high`: x ≈ scale · element + minimum.
    `below`: the minimum is 0 or less."""
    low, top = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    if below:
        low, top = np.minimum(low, 0), np.maximum(top, 0)
    n = np.float32(x.shape[-1])

    def rounded(d: F32, m: F32) -> F32:
        return np.asarray(np.clip(np.rint((x - m) * _inverse(d)), 0, high))

    def tried() -> Iterator[tuple[F32, ...]]:
        for i in range(steps):
            cut = np.float32(i / steps / (high + 1)) * (top - low)  # what is cut off at either end
            d, m = (
                store((top - low - 2 * cut) / high),
                store(np.minimum(low + cut, 0) if below else low + cut),
            )
            for _ in range(3):
                v = rounded(d, m)
                rest = x - d * v - m
                yield _dot(rest, rest), d, m
                sum_v, sum_x = v.sum(-1, keepdims=True), x.sum(-1, keepdims=True)
                xv, vv = _dot(x, v), _dot(v, v)
                slope = _ratio(n * xv - sum_x * sum_v, n * vv - sum_v * sum_v)
                shift = (sum_x - slope * sum_v) / n
                if below:
                    slope = np.where(shift > 0, _ratio(xv, vv), slope)
                    shift = np.minimum(shift, 0)
                d, m = store(slope), store(shift)

    d, m = _least(tried())
    return d, m, rounded(d, m)


# -- blocks of groups, whose scales are small integers in units of the block's


def _grouped_scales(
    x: F32, groups: int, snap: Snap, tops: Sequence[float], low: int, high: int
) -> tuple[F32, ...]:
    """The block's scale, the groups' scales (low to high) in units of it, and the elements in units of both."""
    parts = x.reshape(len(x), groups, -1)
    s, _ = _scaled(parts, snap, tops, _f32)
    peak = np.take_along_axis(s, np.abs(s).argmax(1)[:, None], 1)

    def fitted(d: F32) -> F32:
        """The best stored scale of each group beside a block's scale."""
        near = np.rint(s * _inverse(d))

        def tried() -> Iterator[tuple[F32, ...]]:
            for step in (0, -1, 1):
                sc = np.clip(near + step, low, high)
                v = snap(parts * _inverse(d * sc))
                rest = parts - d * sc * v
                yield _dot(rest, rest), sc

        return _least(tried())[0]

    def tried() -> Iterator[tuple[F32, ...]]:
        for top in (low, low * 0.92, high):
            d = _f16(peak / np.float32(top))
            for _ in range(2):
                sc = fitted(d)
                v = snap(parts * _inverse(d * sc))
                rest = (parts - d * sc * v).reshape(len(x), -1)
                yield _dot(rest, rest)[..., None], d, sc
                units = (sc * v).reshape(len(x), -1)
                d = _f16(_ratio(_dot(x, units), _dot(units, units)))[..., None]

    d, sc = _least(tried())
    return d[:, 0], sc[..., 0], snap(parts * _inverse(d * sc)).reshape(len(x), -1)


def _grouped_affine(x: F32, groups: int, high: int, most: int) -> tuple[F32, ...]:
    """The block's scale and minimum, the groups' (0 to most) in units of them, and the elements from 0 to `high`:
    x ≈ scale · group's scale · element - minimum · group's minimum."""
    parts = x.reshape(len(x), groups, -1)
    s, m, _ = _affine(parts, high, _f32, below=True)
    s, m = np.maximum(s, 0), -m

    def rounded(unit: F32, floor: F32) -> F32:
        return np.asarray(np.clip(np.rint((parts + floor) * _inverse(unit)), 0, high))

    def fitted(d: F32, dm: F32) -> tuple[F32, ...]:
        near, low = np.rint(s * _inverse(d)), np.rint(m * _inverse(dm))

        def tried() -> Iterator[tuple[F32, ...]]:
            for a, b in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1), (1, 1), (-1, -1)):
                sc, mn = np.clip(near + a, 0, most), np.clip(low + b, 0, most)
                unit, floor = d * sc, dm * mn
                rest = parts + floor - unit * rounded(unit, floor)
                yield _dot(rest, rest), sc, mn

        return _least(tried())

    def tried() -> Iterator[tuple[F32, ...]]:
        d, dm = (_f16(t.max(1, keepdims=True) / np.float32(most)) for t in (s, m))
        for _ in range(3):
            sc, mn = fitted(d, dm)
            v = rounded(d * sc, dm * mn)
            rest = (parts - d * sc * v + dm * mn).reshape(len(x), -1)
            yield _dot(rest, rest)[..., None], d, dm, sc, mn
            a, b = (sc * v).reshape(len(x), -1), np.broadcast_to(-mn, parts.shape).reshape(len(x), -1)
            aa, ab, bb, xa, xb = _dot(a, a), _dot(a, b), _dot(b, b), _dot(x, a), _dot(x, b)
            det = aa * bb - ab * ab
            solved = det > np.float32(1e-6) * aa * bb
            d = _f16(np.where(solved, (xa * bb - xb * ab) / det, _ratio(xa - ab * dm[:, 0], aa)))[..., None]
            dm = _f16(np.where(solved, (xb * aa - xa * ab) / det, dm[:, 0]))[..., None]

    d, dm, sc, mn = _least(tried())
    return d[:, 0], dm[:, 0], sc[..., 0], mn[..., 0], rounded(d * sc, dm * mn).reshape(len(x), -1)


# -- formats


def _pack(codes: Array, width: int, run: int) -> npt.NDArray[np.uint8]:
    """Codes of `width` bits as bytes, so that `decode._bits` reads them."""
    apart = codes.astype(np.uint8).reshape(len(codes), -1, 8 // width, run)
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    return np.asarray(np.bitwise_or.reduce(apart << shifts, 2).reshape(len(codes), -1))


def _codes(v: F32, values: Array) -> Array:
    """The number of each value in a table. Some hold 0 twice; the first one is taken."""
    order = np.argsort(values, kind="stable")
    return order[np.searchsorted(values[order], v)]


def _half(*d: F32) -> Array:
    return np.concatenate(d, -1).astype(np.float16)


def _tops(low: float, high: float, count: int) -> list[float]:
    """Numbers to try for the largest element: about the lowest or the highest that an element can be."""
    return [*np.linspace(low * 1.12, low * 0.8, count), *np.linspace(high * 1.12, high * 0.8, count)]


def _q4_0(x: F32) -> Fields:
    d, v = _scaled(x, _whole(-8, 7), [-8, *_tops(-8, 7, 9)])
    return {"d": _half(d), "qs": _pack(v + 8, 4, 16)}


def _q5_0(x: F32) -> Fields:
    d, v = _scaled(x, _whole(-16, 15), [-16, *_tops(-16, 15, 7)])
    return {"d": _half(d), "qs": _pack((v + 16) % 16, 4, 16), "qh": _pack((v + 16) // 16, 1, 1)}


def _q4_1(x: F32) -> Fields:
    d, m, v = _affine(x, 15)
    return {"dm": _half(d, m), "qs": _pack(v, 4, 16)}


def _q5_1(x: F32) -> Fields:
    d, m, v = _affine(x, 31)
    return {"dm": _half(d, m), "qs": _pack(v % 16, 4, 16), "qh": _pack(v // 16, 1, 1)}


def _q8_0(x: F32) -> Fields:
    d, v = _scaled(x, _whole(-128, 127), [127, -128, 127.3, 126.4])
    return {"d": _half(d), "qs": v.astype(np.int8)}


def _q2_k(x: F32) -> Fields:
    d, dm, sc, mn, v = _grouped_affine(x, 16, 3, 15)
    return {"dm": _half(d, dm), "scales": (sc + 16 * mn).astype(np.uint8), "qs": _pack(v, 2, 32)}


def _six_bits(sc: F32, mn: F32) -> Array:
    a, b = sc.astype(np.uint8), mn.astype(np.uint8)
    first, last = slice(0, 4), slice(4, 8)
    return np.concatenate(
        [
            a[:, first] | a[:, last] >> 4 << 6,
            b[:, first] | b[:, last] >> 4 << 6,
            a[:, last] & 15 | b[:, last] << 4,
        ],
        1,
    )


def _q4_k(x: F32) -> Fields:
    d, dm, sc, mn, v = _grouped_affine(x, 8, 15, 63)
    return {"dm": _half(d, dm), "scales": _six_bits(sc, mn), "qs": _pack(v, 4, 32)}


def _q5_k(x: F32) -> Fields:
    d, dm, sc, mn, v = _grouped_affine(x, 8, 31, 63)
    high = _pack(v // 16, 1, 32)
    return {"dm": _half(d, dm), "scales": _six_bits(sc, mn), "qs": _pack(v % 16, 4, 32), "qh": high}


def _q3_k(x: F32) -> Fields:
    d, sc, v = _grouped_scales(x, 16, _whole(-4, 3), _tops(-4, 3, 6), -32, 31)
    code, scale = (v + 4).astype(np.uint8), (sc + 32).astype(np.uint8)
    scales = np.concatenate([_pack(scale & 15, 4, 8), _pack(scale >> 4, 2, 4)], 1)
    return {"d": _half(d), "scales": scales, "qs": _pack(code & 3, 2, 32), "qh": _pack(code >> 2, 1, 32)}


def _q6_k(x: F32) -> Fields:
    d, sc, v = _grouped_scales(x, 16, _whole(-32, 31), _tops(-32, 31, 4), -128, 127)
    code = (v + 32).astype(np.uint8)
    high = _pack(code >> 4, 2, 32)
    return {"d": _half(d), "scales": sc.astype(np.int8), "ql": _pack(code & 15, 4, 64), "qh": high}


def _iq4_nl(x: F32) -> Fields:
    d, v = _scaled(x, _one_of(IQ4), _tops(-127, 113, 9))
    return {"d": _half(d), "qs": _pack(_codes(v, IQ4), 4, 16)}


def _iq4_xs(x: F32) -> Fields:
    d, sc, v = _grouped_scales(x, 8, _one_of(IQ4), _tops(-127, 113, 6), -32, 31)
    code = (sc + 32).astype(np.uint16)
    high = np.bitwise_or.reduce(code >> 4 << np.arange(0, 16, 2, dtype=np.uint16), 1)
    return {
        "d": _half(d),
        "scales_l": _pack(code & 15, 4, 1),
        "scales_h": high,
        "qs": _pack(_codes(v, IQ4), 4, 16),
    }


def _power(d: F32) -> F32:
    """The nearest power of two that an exponent of 8 bits stores; the elements are twice the values of e2m1."""
    exponent = np.rint(np.log2(np.maximum(np.abs(d), np.float32(1e-38))))
    return np.asarray(np.exp2(np.clip(exponent, -126, 126)), np.float32)


def _mxfp4(x: F32) -> Fields:
    d, v = _scaled(x, _one_of(E2M1), [4, 6, 8, 12, 16], _power)
    return {"e": (np.log2(d) + 128).astype(np.uint8), "qs": _pack(_codes(v, E2M1), 4, 16)}


def _nvfp4(x: F32) -> Fields:
    snap = _float8(ml_dtypes.float8_e4m3fn, 448)

    def store(d: F32) -> F32:
        return np.asarray(snap(np.abs(d) * 2) * np.float32(0.5))

    d, v = _scaled(x.reshape(len(x), 4, 16), _one_of(E2M1), [7, 8, 9, 10, 11, 12, 13], store)
    codes = _codes(v.reshape(len(x), -1), E2M1)
    return {"d": (d * 2).astype(ml_dtypes.float8_e4m3fn), "qs": _pack(codes, 4, 8)}


def _tq2_0(x: F32) -> Fields:
    d, v = _scaled(x, _whole(-1, 1), np.linspace(0.8, 4, 12).tolist())
    return {"d": _half(d), "qs": _pack(v + 1, 2, 32)}


def _int8(x: F32) -> Fields:
    d, v = _scaled(x, _whole(-128, 127), [127, -128, 127.3, 126.4], _f32)
    return {"s": d, "qs": v.astype(np.int8)}


def _int4(x: F32) -> Fields:
    d, v = _scaled(x, _whole(-8, 7), [-8, *_tops(-8, 7, 9)], _f32)
    return {"s": d, "qs": _pack(v + 8, 4, 1)}


def _with_zero(x: F32, high: int) -> tuple[F32, ...]:
    """The scale, zero point and elements (both from 0 to high) of each block: x ≈ scale · (element - zero point)."""
    low, top = np.minimum(x.min(-1, keepdims=True), 0), np.maximum(x.max(-1, keepdims=True), 0)

    def tried() -> Iterator[tuple[F32, ...]]:
        for keep in np.linspace(1.04, 0.76, 8, dtype=np.float32):
            d = (top - low) * keep / high
            middle = np.rint(-low * keep * _inverse(d))
            for step in (-1, 0, 1):
                z = np.clip(middle + step, 0, high)
                scale = d
                for _ in range(2):
                    units = np.clip(np.rint(x * _inverse(scale)) + z, 0, high) - z
                    rest = x - scale * units
                    yield _dot(rest, rest), scale, z
                    scale = _ratio(_dot(x, units), _dot(units, units))

    d, z = _least(tried())
    return d, z, np.clip(np.rint(x * _inverse(d)) + z, 0, high)


def _int8_zp(x: F32) -> Fields:
    d, z, v = _with_zero(x, 255)
    return {"s": d, "z": z.astype(np.uint8), "qs": v.astype(np.uint8)}


def _int4_zp(x: F32) -> Fields:
    d, z, v = _with_zero(x, 15)
    return {"s": d, "z": z.astype(np.uint8), "qs": _pack(v, 4, 1)}


def _fp8_e4m3(x: F32) -> Fields:
    kind = ml_dtypes.float8_e4m3fn
    d, v = _scaled(x, _float8(kind, 448), [448, 416, 384, 352, 320, 288, 256], _f32)
    return {"s": d, "qs": v.astype(kind)}


def _fp8_e5m2(x: F32) -> Fields:
    kind = ml_dtypes.float8_e5m2
    d, v = _scaled(x, _float8(kind, 57344), [57344, 49152, 45056, 40960, 36864, 32768], _f32)
    return {"s": d, "qs": v.astype(kind)}


def _of_table(name: str, tops: Sequence[float]) -> Callable[[F32], Fields]:
    def pack(x: F32) -> Fields:
        d, v = _scaled(x, _nearest(TABLES[name]), tops, _f32)
        return {"s": d, "qs": _pack(_codes(v, TABLES[name]), 4, 16)}

    return pack


QUANTIZERS: dict[str, Callable[[F32], Fields]] = {
    "q4_0": _q4_0, "q4_1": _q4_1, "q5_0": _q5_0, "q5_1": _q5_1, "q8_0": _q8_0, "q2_k": _q2_k, "q3_k": _q3_k,
    "q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k, "tq2_0": _tq2_0, "mxfp4": _mxfp4, "nvfp4": _nvfp4,
    "iq4_nl": _iq4_nl, "iq4_xs": _iq4_xs, "int8": _int8, "int8_zp": _int8_zp, "int4": _int4, "int4_zp": _int4_zp,
    "fp8_e4m3": _fp8_e4m3, "fp8_e5m2": _fp8_e5m2,
    "nf4": _of_table("nf4", [1, *_tops(-1, 1, 7)]), "fp4": _of_table("fp4", [1, 0.9, 0.8, 0.72, 0.66, 1.1]),
}  # fmt: skip
