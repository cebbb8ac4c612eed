"""Operators that read the characters of strings, computed at build time: their inputs become part of the program."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from rlx.dtypes import rounded
from rlx.ir.types import broadcast_shapes
from rlx.onnx.ops.regex import Regex
from rlx.onnx.reader.call import Call, Result, Value
from rlx.onnx.reader.elements import STRING, Array, ElementType, integer_range
from rlx.onnx.reader.string_table import MAX_STRINGS, STRINGS_A_STEP
from rlx.onnx.reader.table import op
from rlx.ops.control.steps import spend

_I64, _F64 = np.dtype(np.int64), np.dtype(np.float64)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_OTHERS = ("nan", "inf", "+inf", "-inf")
_TURKIC = ("tr", "az", "lt")  # languages whose letters change case by rules of their own


def _codes(c: Call, v: Value, what: str) -> Array:
    """The numbers of a tensor's strings. Raises: NeedsValues."""
    if v.tensor.size > MAX_STRINGS:
        raise c.unsupported(
            f"{what} has {v.tensor.size} elements; at most {MAX_STRINGS} strings are looked into"
        )
    return c.known_tensor(v.tensor)


def _value(c: Call, codes: Array) -> Value:
    t = c.tensor(np.asarray(codes, np.int64))
    return Value(t, STRING)


def _each(c: Call, function: Callable[[str], Any], dtype: Any = object) -> Array:
    """The results of a function on each string of the first input."""
    codes = _codes(c, c.value(0), "the input")
    results = np.empty(codes.size, dtype)
    results[:] = c.words.mapped(codes, function)
    return results.reshape(codes.shape)


@op("StringConcat")
def concat(c: Call) -> Result:
    a, b = (_codes(c, c.value(i), f"input {i}") for i in (0, 1))
    shape = broadcast_shapes(a.shape, b.shape)
    if math.prod(shape) > MAX_STRINGS:
        raise c.unsupported(f"makes {math.prod(shape)} strings; at most {MAX_STRINGS} are supported")
    pairs = np.stack([np.broadcast_to(v, shape).reshape(-1) for v in (a, b)])
    different, places = np.unique(pairs, axis=1, return_inverse=True)
    spend(c.where, different.shape[1] // STRINGS_A_STEP)
    joined = [c.words.made(c.words.word(int(p)) + c.words.word(int(q)), c.where) for p, q in different.T]
    return _value(c, np.asarray(joined, np.int64)[places.reshape(-1)].reshape(shape))


@op("StringSplit")
def split(c: Call) -> tuple[Result, ...]:
    delimiter, most = c.str("delimiter") or None, c.int("maxsplit")
    most = MAX_STRINGS if most is None or most < 0 else min(most, MAX_STRINGS)
    total = 0

    def pieces(word: str) -> list[int]:
        nonlocal total
        words = word.split(delimiter, most)
        total += len(words)
        if total > MAX_STRINGS:
            raise c.unsupported(f"makes more than {MAX_STRINGS} strings")
        return [c.words.made(w, c.where) for w in words]

    parts = _each(c, pieces)
    counts = np.array([len(p) for p in parts.reshape(-1)], np.int64)
    width = int(counts.max(initial=0))
    if counts.size * width > MAX_STRINGS:
        raise c.unsupported(f"makes {counts.size} times {width} strings; at most {MAX_STRINGS} are supported")
    table = np.zeros((counts.size, width), np.int64)
    for row, codes in zip(table, parts.reshape(-1), strict=True):
        row[: len(codes)] = codes
    return _value(c, table.reshape(*parts.shape, width)), c.tensor(counts.reshape(parts.shape), _I64)


@op("StringNormalizer")
def normalize(c: Call) -> Result:
    """The strings without stop words, in the requested case."""
    change, shape = c.str("case_change_action", "NONE"), c.x().shape
    if (
        change not in ("NONE", "LOWER", "UPPER")
        or len(shape) not in (1, 2)
        or (len(shape) == 2 and shape[0] != 1)
    ):
        raise c.bad(
            f"case_change_action {change!r} of {shape}; expected NONE, LOWER or UPPER of (n,) or (1, n)"
        )
    if c.str("locale", "").lower().startswith(_TURKIC):
        raise c.unsupported(f"the letters of locale {c.str('locale')!r} are not supported")
    fold: Callable[[str], str] = str if c.int("is_case_sensitive", 0) else str.lower
    stops = {fold(w) for w in c.ints("stopwords", [])}
    cases: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
    turned = cases[change]

    def normal(word: str) -> int:
        return -1 if fold(word) in stops else c.words.made(turned(word), c.where)

    words = _each(c, normal, np.int64).reshape(-1)
    words = words[words >= 0]
    words = words if words.size else np.zeros(1, np.int64)
    return _value(c, words.reshape(*shape[:-1], -1))


@op("RegexFullMatch")
def full_match(c: Call) -> Result:
    regex = Regex(c.str("pattern", ""), c.where)
    return c.tensor(_each(c, regex.matches, np.bool_))


def text(c: Call, v: Value) -> Value:
    """Numbers as strings: the shortest decimal that reads back as the same number, without an exponent."""
    held = c.words.from_carrier(_codes(c, v, "the input"), v.dtype)
    spend(c.where, held.size // STRINGS_A_STEP)
    whole = integer_range(held.dtype) is not None or held.dtype.kind == "b"
    decimal: Callable[[Any], str] = (lambda x: str(int(x))) if whole else _decimal
    words = [c.words.made(decimal(x), c.where) for x in held.reshape(-1)]
    return _value(c, np.asarray(words, np.int64).reshape(held.shape))


def _decimal(x: Any) -> str:
    if x != x:
        return "NaN"
    if abs(float(x)) == math.inf:
        return "INF" if x > 0 else "-INF"
    narrow = x if x.dtype.kind == "f" and x.dtype.itemsize > 1 else np.float32(x)
    return np.format_float_positional(narrow, trim="-")


def _double(plain: str) -> float:
    """A decimal as the f64 on either side whose last bit is 1, unless it is an f64: so a later rounding to fewer bits
    sees on which side of a tie it lies."""
    near = float(plain)
    if not math.isfinite(near) or near == 0:
        return near
    exact, bits = Fraction(plain), np.float64(near).view(np.int64)
    return near if exact == near or bits & 1 else math.nextafter(near, math.inf if exact > near else -math.inf)


def doubles(c: Call, v: Value) -> Value:
    """Strings as the f64 that round to any smaller float as the decimals do."""
    return numbers(c, v, _F64, narrower=True)


def numbers(c: Call, v: Value, to: ElementType, narrower: bool = False) -> Value:
    """Strings as numbers, plain or with an exponent; NaN, INF and -INF in any case. `narrower` as `doubles` says."""
    bounds = integer_range(to)
    read = _double if narrower or to != _F64 else float

    def parsed(word: str) -> Any:
        plain = word.strip()
        known = _NUMBER.fullmatch(plain) is not None or plain.lower() in _OTHERS
        if not known or len(plain) > 1000:
            raise c.bad(f"{word[:40]!r} is not a number")
        number: Any = float(plain) if bounds else read(plain)
        if bounds is None:
            return number
        whole = plain.lstrip("+-").isdecimal()
        if not whole and not math.isfinite(number):
            raise c.bad(f"{word[:40]!r} is no integer")
        number = int(plain) if whole else int(number)
        if not bounds[0] <= number <= bounds[1]:
            raise c.bad(f"{word[:40]!r} is out of the range of {to}")
        return number

    codes = _codes(c, v, "the input")
    parsed_words = c.words.mapped(codes, parsed)
    values = np.asarray(parsed_words, object if bounds else np.float64)
    return c.constant(rounded(values, to).reshape(codes.shape))
