"""Products of floats as an f64, or the sum of two, times a separate power of two: no partial product overflows or
underflows."""

from __future__ import annotations

from typing import NamedTuple

from rlx.backends.cpu.ir import F64, I64, Kernel, Type, Value

_FIELD = 0x7FF << 52  # the exponent bits of an f64


class Part(NamedTuple):
    """(high + low) · 2^power, with |high| in [1, 2), or zero, infinite or NaN."""

    high: Value
    low: Value
    power: Value


def normal(k: Kernel, x: Value) -> tuple[Value, Value, Value]:
    """The mantissa of x, its power of two, and whether x is a normal number; other numbers are their own mantissas."""
    bits = k.bits(x, I64)
    field = (bits & _FIELD) >> 52
    is_normal = k.cmp("ne", field, 0) & k.cmp("ne", field, 0x7FF)
    mantissa = k.bits(k.fence((bits & ~_FIELD) | (1023 << 52)), F64)
    return k.select(is_normal, mantissa, x), k.select(is_normal, field - 1023, 0), is_normal


def two_to(k: Kernel, power: Value) -> Value:
    """2^power, for -1023 < power < 1024."""
    return k.bits((power + 1023) << 52, F64)


def multiplied(k: Kernel, a: Part, b: Part) -> Part:
    """a · b. Where the product is zero, infinite or NaN, low is 0."""
    p = a.high * b.high
    rest = k.fma(a.low, b.high, k.fma(a.high, b.high, -p)) + a.high * b.low
    whole = p + rest
    high, more, is_normal = normal(k, whole)
    low = k.select(is_normal, ((p - whole) + rest) * two_to(k, -more), 0.0)
    return Part(k.select(is_normal, high, p), low, a.power + b.power + more)


class RunningProduct:
    """A running product: an f64, or the sum of two where `wide`, times a power of two, which is kept as two factors,
    since one f64 could not hold it. The number is scaled back into [1, 2) where it has left the middle of f64's range
    and is not zero, infinite or NaN; rounding does not depend on it."""

    def __init__(self, k: Kernel, kind: Type, wide: bool) -> None:
        self.k, self.wide = k, wide
        self.high = k.variable(k.const(kind, 1))
        self.low = k.variable(k.const(kind, 0))
        self.power = k.variable(k.const(I64.of(kind.lanes), 0))
        self.factors = [k.variable(k.const(kind, 1)) for _ in range(2)]

    def join(self, x: Value) -> None:
        k, old, rest = self.k, self.high.value, self.low.value
        if not self.wide:
            product = self.high.value = old * x  # x is an f32: two of these cannot leave the range
            size = k.unary("fabs", product)
            with k.when(k.any(~(k.cmp("ogt", size, 2.0**-600) & k.cmp("olt", size, 2.0**600)))):
                self.high.value, power, _ = normal(k, product)
                self._raise(power)
            return
        tiny = k.cmp("olt", k.unary("fabs", x), 2.0**-1022)  # 0 too
        x, power, _ = normal(k, k.select(tiny, x * 2.0**54, x))
        power = power + k.select(tiny, k.const(power.type, -54), 0)
        p = old * x
        rest = k.fma(rest, x, k.fma(old, x, -p))
        whole = p + rest
        high, more, is_normal = normal(k, whole)
        self.low.value = k.select(is_normal, ((p - whole) + rest) * two_to(k, -more), 0.0)
        self.high.value = k.select(is_normal, high, p)
        self._raise(power + more)

    def _raise(self, power: Value) -> None:
        self.power.value = self.power.value + power
        for factor, value in zip(self.factors, _factors(self.k, self.power.value), strict=True):
            factor.value = value

    def value(self) -> Value:
        """Rounded once, but twice below 2^-1022."""
        a, b = self.factors
        whole = self.high.value + self.low.value if self.wide else self.high.value
        return whole * a.value * b.value

    def part(self) -> Part:
        high, power, _ = normal(self.k, self.high.value)
        return Part(high, self.low.value, self.power.value + power)


def _factors(k: Kernel, power: Value) -> tuple[Value, Value]:
    """Two powers of two whose product is 2^power, or too large or small to make a difference to f64."""
    held = k.min(k.max(power, -1300), 1300)
    first = ((held + 2048) >> 1) - 1024
    return two_to(k, first), two_to(k, held - first)


def value_of(k: Kernel, part: Part) -> Value:
    """The number as f64, rounded once, or twice below 2^-1022."""
    a, b = _factors(k, part.power)
    return (part.high + part.low) * a * b


def folded_parts(k: Kernel, parts: list[Part]) -> Part:
    """The product, in a fixed order, of all lanes of all parts, whose number is a power of two: a part of one lane."""
    while len(parts) > 1:
        parts = [multiplied(k, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    (one,) = parts
    while one.high.type.lanes > 1:
        low, high = zip(*(k.halves(v) for v in one), strict=True)
        one = multiplied(k, Part(*low), Part(*high))
    return one
