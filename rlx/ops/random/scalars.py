"""NumPy's definitions of the primitives that random numbers are made of; `device_code/random32.h` has the same steps.

Each is a fixed sequence of operations that are exact or rounded once (integers that wrap, f32 additions and
multiplications that nothing contracts), so every device gives the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

PARITY = 0x1BD11BDA
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
# (log(1 + r) - r + r²/2) / r³ for 1 + r from √½ to √2: a minimax fit of degree 7, within 2^-27 of log(1 + r).
# Highest power first.
LOG = (
    -0.07634429633617401, 0.12761549651622772, -0.131601944565773, 0.14201761782169342, -0.16623356938362122,
    0.20001226663589478, -0.250008225440979, 0.3333333134651184,
)  # fmt: skip
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is log(2); the first has 10 bits


def _unsigned(x: Any) -> Array:
    return np.asarray(x).astype(np.int32, copy=False).view(np.uint32)


def threefry2x32(key0: Any, key1: Any, count0: Any, count1: Any) -> tuple[Array, Array]:
    """The two words of Threefry-2x32-20 of a key and a counter, all i32, which hold the bits of unsigned words."""
    k0, k1 = _unsigned(key0), _unsigned(key1)
    keys = (k0, k1, np.asarray(k0 ^ k1 ^ np.uint32(PARITY)))
    shape = np.broadcast_shapes(k0.shape, k1.shape, np.shape(count0), np.shape(count1))
    x0, x1, left = (np.empty(shape, np.uint32) for _ in range(3))
    np.add(_unsigned(count0), k0, out=x0)
    np.add(_unsigned(count1), k1, out=x1)
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            np.add(x0, x1, out=x0)
            np.left_shift(x1, np.uint32(rotation), out=left)
            np.right_shift(x1, np.uint32(32 - rotation), out=x1)
            np.bitwise_or(x1, left, out=x1)
            np.bitwise_xor(x1, x0, out=x1)
        np.add(x0, keys[(group + 1) % 3], out=x0)
        np.add(x1, keys[(group + 2) % 3], out=x1)
        np.add(x1, np.uint32(group + 1), out=x1)
    return x0.view(np.int32), x1.view(np.int32)


def threefry(key0: Any, key1: Any, count0: Any, count1: Any) -> Array:
    """Both words, combined by exclusive or."""
    x0, x1 = threefry2x32(key0, key1, count0, count1)
    return np.asarray(x0 ^ x1)


def threefry_first(key0: Any, key1: Any, count0: Any, count1: Any) -> Array:
    return threefry2x32(key0, key1, count0, count1)[0]


def threefry_second(key0: Any, key1: Any, count0: Any, count1: Any) -> Array:
    return threefry2x32(key0, key1, count0, count1)[1]


def multiply_high(a: Any, b: Any) -> Array:
    """The upper 32 bits of the product of unsigned words."""
    wide = _unsigned(a).astype(np.uint64) * _unsigned(b).astype(np.uint64)
    return np.asarray(wide >> np.uint64(32)).astype(np.uint32).view(np.int32)


def _log_near_1(r: Array) -> Array:
    """log(1 + r) without its first term, for 1 + r from √½ to √2."""
    q = np.full_like(r, LOG[0])
    for c in LOG[1:]:
        q = q * r + np.float32(c)
    square = r * r
    return np.asarray(q * r * square - np.float32(0.5) * square)


def _log(x: Array) -> Array:
    """log(x) of positive normal f32 numbers."""
    bits = x.view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    r = (bits - (exponent << np.int32(23))).view(np.float32) - np.float32(1)
    e = exponent.astype(np.float32)
    return np.asarray((_log_near_1(r) + e * np.float32(LN2_LOW) + r) + e * np.float32(LN2_HIGH))


def gumbel(word: Any) -> Array:
    """-log(-log(1 - u)) as f32 for u = (word + ½) / 2³², the word unsigned: a number with Gumbel's distribution.

    u is rounded to f32; 1 - u is at least 2^-25.
    """
    w = np.atleast_1d(_unsigned(word))
    upper, lower = (w >> np.uint32(8)).astype(np.float32), (w & np.uint32(255)).astype(np.float32)
    u = upper * np.float32(2.0**-24) + (lower * np.float32(2.0**-32) + np.float32(2.0**-33))
    rest = np.maximum(np.float32(1) - u, np.float32(2.0**-25))
    small = np.where(u < np.float32(0.25), u, np.float32(0))
    waited = np.where(u < np.float32(0.25), small - _log_near_1(-small), -_log(rest))
    return np.asarray(-_log(waited)).reshape(np.shape(word))
