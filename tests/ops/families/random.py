"""Judges of the records that random numbers are made of: Threefry in Python's integers, SciPy's Gumbel distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx.dtypes import i32
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge, one_by_one, wrapped
from tests.outside import outside

_MASK = 0xFFFFFFFF
_TURNS = (13, 15, 26, 6, 17, 29, 16, 24)


def block(k0: int, k1: int, c0: int, c1: int) -> tuple[int, int]:
    """Threefry-2x32-20 as section 4.2 of the paper writes it: a key is added after every four of the rounds."""
    keys = [k0 & _MASK, k1 & _MASK, (k0 ^ k1 ^ 0x1BD11BDA) & _MASK]
    x, y = (c0 + k0) & _MASK, (c1 + k1) & _MASK
    for turn in range(20):
        bits = _TURNS[turn % 8]
        x = (x + y) & _MASK
        y = ((y << bits | y >> (32 - bits)) & _MASK) ^ x
        if turn % 4 == 3:
            s = turn // 4 + 1
            x, y = (x + keys[s % 3]) & _MASK, (y + keys[(s + 1) % 3] + s) & _MASK
    return x, y


def _word(k0: int, k1: int, c0: int, c1: int, word: str) -> int:
    x, y = block(k0, k1, c0, c1)
    return wrapped({"xor": x ^ y, "first": x, "second": y}[word], i32)


def _threefry(*arrays: Array, word: str) -> Array:
    return one_by_one(lambda *v: _word(*v, word), np.int32)(*arrays)


def _random_bits(
    k0: Array, k1: Array, offset: Array, *, shape: tuple[int, ...], axes: int, word: str, stream: int
) -> Array:
    k0, k1, offset = (np.broadcast_to(v, shape) for v in (k0, k1, offset))
    drawn = math.prod(shape[len(shape) - axes :])
    made = np.empty(math.prod(shape), np.int32)
    for i, at in enumerate(np.ndindex(shape)):
        place, which = i % drawn, word
        if word == "both":
            place, which = place // 2, ("first", "second")[i % 2]
        made[i] = _word(int(k0[at]), int(k1[at]), stream, int(offset[at]) + place, which)
    return made.reshape(shape)


def _multiply_high(a: Array, b: Array) -> Array:
    return one_by_one(lambda x, y: wrapped((x & _MASK) * (y & _MASK) >> 32, i32), np.int32)(a, b)


_F = np.float32
_LOG = [-0.07634429633617401, 0.12761549651622772, -0.131601944565773, 0.14201761782169342, -0.16623356938362122,
        0.20001226663589478, -0.250008225440979, 0.3333333134651184]  # fmt: skip


def _series(r: Any) -> Any:
    q = _F(_LOG[0])
    for c in _LOG[1:]:
        q = _F(_F(q * r) + _F(c))
    return _F(_F(_F(q * r) * _F(r * r)) - _F(_F(0.5) * _F(r * r)))


def _log(x: Any) -> Any:
    m, e = np.frexp(_F(x))  # m from 1/2 to 1
    small = m < _F(math.sqrt(0.5))
    m, e = np.where(small, 2 * m, m), np.where(small, e - 1, e)
    r = _F(m - 1)
    return _F(_F(_F(_series(r) + _F(_F(e) * _F(-2.12194440e-4))) + r) + _F(_F(e) * _F(0.693359375)))


def gumbel_of(words: Any) -> Any:
    """The steps of the definition, one IEEE operation each, written from its docstring; SciPy checks the values."""
    w = np.asarray(words, np.int64) & _MASK
    u = _F(_F((w >> 8) * 2.0**-24) + _F(_F((w & 255) * 2.0**-32) + _F(2.0**-33)))
    waited = np.where(u < _F(0.25), _F(u - _series(_F(-u))), -_log(np.maximum(_F(_F(1) - u), _F(2.0**-25))))
    return -_log(waited)


def _gumbel(word: Array) -> Array:
    made = np.asarray(gumbel_of(word), np.float32)
    u = (word.view(np.uint32).astype(np.float64) + 0.5) / 2**32
    exact = outside("scipy.stats").gumbel_r.ppf(1 - u) if word.size else made
    exact = np.where(u < 2.0**-20, -np.log(-np.log1p(-u)), exact)  # 1 - u has lost the digits of a small u
    inside = u < 1 - 2.0**-12  # nearer to 1, u rounded to f32 has lost digits of 1 - u
    np.testing.assert_allclose(made[inside], exact[inside], rtol=1e-4, atol=2e-4)
    return made


JUDGES: dict[str, Judge] = {
    "Salmon et al., rounds one by one": _threefry,
    "Salmon et al., rounds one by one, counting": _random_bits,
    "Python's integers": _multiply_high,
    "scipy.stats.gumbel_r.ppf": _gumbel,
}
GRADIENTS: Gradients = {}
