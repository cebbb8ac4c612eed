"""Scalar expressions as NumPy calls: trees become a list of ufunc calls on registers.

A register is a row of scratch elements. Most primitives are one ufunc; the rest are written out here: erf by a
polynomial, `select` as bit operations (NumPy's masked copies take fifty times longer), conversions to integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from rlx.backends.cpu.host import half
from rlx.dtypes import DType, as_dtype, bool_, f32, is_narrow, promote, to_odd
from rlx.ir.expr import PREDICATES, Expr, linearize
from rlx.ops.elementwise.prims import PRIM_FUNCTIONS, places
from rlx.ops.numeric import maximum, minimum, working
from rlx.records import Record

NpType = np.dtype[Any]


class Operand(Record):
    """What a call reads or writes: the argument, output or register of number `index`, or a constant.

    `dtype` may differ from the register's own: the same bits are then read as integers, for example.
    """

    kind: Literal["arg", "out", "reg", "lit"]
    index: int
    dtype: NpType
    value: Any = None


class Call(Record):
    """One call: `fn(*sources, target)`, or a converting copy where `fn` is None. `cost` is in ns an element; unless
    `shares`, the target must not be in the memory of a source."""

    fn: Callable[..., Any] | None
    sources: tuple[Operand, ...]
    target: Operand
    cost: float = 0.07
    shares: bool = True


# Measured on AVX-512, ns an element; only their order of magnitude matters (when to use threads).
_COSTS = {
    "exp": 0.35, "log": 0.35, "tanh": 0.2, "sin": 0.45, "cos": 0.45, "sqrt": 0.3, "rsqrt": 0.4, "pow": 2.0, "div": 0.1,
    "sign": 0.3, "expm1": 5.0, "log1p": 5.0, "tan": 5.0, "asin": 2.0, "acos": 2.0, "atan": 2.0, "sinh": 5.0,
    "cosh": 5.0, "mod": 5.0, "fmod": 5.0, "atan2": 5.0,
    "floordiv": 5.0, "exp2": 0.5, "log2": 0.5, "log10": 2.0, "cbrt": 5.0, "asinh": 5.0, "acosh": 5.0, "atanh": 5.0,
}  # fmt: skip
_HALF_COST = 1.3


_UFUNCS: dict[str, Callable[..., Any]] = {
    **{name: fn for name, fn in PRIM_FUNCTIONS.items() if isinstance(fn, np.ufunc)},
    "div": np.divide,
    "max": maximum,
    "min": minimum,
}

# erf(x) = tanh(x · P(x²)): atanh(erf(x)) / x is smooth, and a relative error of tanh's argument counts less the nearer
# erf is to 1. Minimax fit of degree 7 in x² on |x| ≤ 4 (where erf rounds to 1), weighted by that: 7.1e-8 relative;
# with f32 arithmetic and a tanh good to 1 ULP, within 3.1 ULP. Lowest power first.
_ERF = (
    1.128379225730896, 0.1027698665857315, -0.00019529028213582933, -0.000614836229942739, 8.459567470708862e-05,
    -4.794405413122149e-06, 2.75555152029483e-08, 5.422388316134175e-09,
)  # fmt: skip
_ERF_END = 4.0
_BITS: dict[int, NpType] = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}


class Code:
    """The calls that compute `trees` from arguments of the given dtypes.

    `large` says that arrays are large enough for more calls to pay off. `spread` numbers the broadcast arguments to
    copy before they are used. After the last call `results` hold the values of the trees: each a register, an argument
    or a constant.
    """

    def __init__(
        self, trees: Sequence[Expr], arguments: Sequence[NpType], large: bool = True,
        spread: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        self.calls: list[Call] = []
        self.registers: list[NpType] = []
        self._arguments = arguments
        self._large = large
        self._spread = spread
        self._loaded: dict[int, Operand] = {}
        self._values: dict[Expr, Operand] = {}
        # A final cast to f16 or bf16 is dropped: the copy to the output rounds.
        roots = [t.args[0] if t.prim == "cast" and t.dtype.is_half else t for t in trees]
        for e in linearize(_scaled_erf(roots)):
            self._values[e] = self._lower(e)
        values = (self._values[r] for r in _scaled_erf(roots))
        self.results = [self._fit(x, t.dtype) for x, t in zip(values, trees, strict=True)]

    # -- building blocks

    def register(self, dtype: NpType) -> Operand:
        self.registers.append(dtype)
        return Operand("reg", len(self.registers) - 1, dtype)

    def lit(self, value: Any, dtype: NpType) -> Operand:
        # The index of a constant is its bits, so that -0.0 and 0.0 are different constants.
        array = np.asarray(value, dtype)
        return Operand("lit", int.from_bytes(array.tobytes(), "little"), dtype, array)

    def emit(
        self, fn: Callable[..., Any], *sources: Operand, dtype: NpType | None = None, into: Operand | None = None,
        cost: float = 0.07, shares: bool = True,
    ) -> Operand:  # fmt: skip
        target = into if into is not None else self.register(dtype or sources[0].dtype)
        self.calls.append(Call(fn, sources, target, cost, shares))
        return target

    def copy(self, source: Operand, dtype: NpType, into: Operand | None = None) -> Operand:
        """Emits a converting copy by NumPy's own cast."""
        half = np.dtype(np.float16)
        cost = _HALF_COST if half in (source.dtype, dtype) and source.dtype != dtype else 0.1
        target = into if into is not None else self.register(dtype)
        # In the same memory, elements of different sizes would overwrite sources not yet read.
        self.calls.append(Call(None, (source,), target, cost, source.dtype.itemsize == dtype.itemsize))
        return target

    # -- lowering

    def _lower(self, e: Expr) -> Operand:
        target = working(e.dtype).np
        if e.prim == "arg":
            assert isinstance(e.value, int)
            return self._argument(e.value, target)
        if e.prim == "lit":
            return self.lit(e.value, target)
        if e.prim == "index":
            return self.emit(write_places, dtype=target, cost=0.7)
        args = [self._values[a] for a in e.args]
        if e.prim == "cast":
            return self._cast(args[0], e.args[0].dtype, e.dtype)
        if e.prim == "select":
            return self._select(args[0], *(self._as(a, target) for a in args[1:]))
        common = promote(*(a.dtype for a in e.args))
        args = [self._as(a, working(common).np) for a in args]
        result = self._primitive(e, args, working(common))
        return self._as(result, target)

    def _argument(self, index: int, target: NpType) -> Operand:
        if index not in self._loaded:
            dtype = self._arguments[index]
            operand = Operand("arg", index, dtype)
            if index in self._spread:
                operand = self.copy(operand, dtype)
            if dtype == half.F16 and target == f32.np and self._large:
                self._loaded[index] = self._widened(operand)
            else:
                self._loaded[index] = operand if dtype == target else self.copy(operand, target)
        return self._as(self._loaded[index], target)

    def _widened(self, x: Operand) -> Operand:
        """Converts f16 to f32 by integer operations, as `half.widen` does."""
        i32, u16 = np.dtype(np.int32), np.dtype(np.uint16)
        bits = self.copy(self._reread(x, np.dtype(np.int16)), i32)
        self.emit(np.left_shift, bits, self.lit(half.SHIFT, i32), into=bits)
        self.emit(np.bitwise_and, bits, self.lit(half.KEEP, i32), into=bits)
        wide = self._reread(bits, f32.np)
        self.emit(np.multiply, wide, self.lit(half.REBIAS, f32.np), into=wide)
        top = self.emit(np.bitwise_and, self._reread(x, u16), self.lit(half.TOP, u16))
        is_top = self.emit(np.equal, top, self.lit(half.TOP, u16), dtype=bool_.np)
        fix = self.copy(is_top, i32)
        self.emit(np.multiply, fix, self.lit(half.ALL_ONES, i32), into=fix)
        self.emit(np.bitwise_or, bits, fix, into=bits)
        return wide

    def _as(self, x: Operand, dtype: NpType) -> Operand:
        if x.dtype == dtype:
            return x
        if x.kind == "lit":
            return self.lit(np.asarray(x.value).astype(dtype), dtype)
        return self.copy(x, dtype)

    def _primitive(self, e: Expr, args: list[Operand], kind: DType) -> Operand:
        prim = e.prim
        dtype = kind.np
        gives = bool_.np if prim in PREDICATES or prim == "not" else dtype
        if kind.is_float:
            if prim == "recip":
                return self.emit(np.divide, self.lit(1, dtype), args[0], dtype=dtype, cost=0.1)
            if prim == "rsqrt":
                root = self.emit(np.sqrt, args[0], cost=0.3)
                return self.emit(np.divide, self.lit(1, dtype), root, dtype=dtype, cost=0.1)
            if prim == "erf" and kind == f32:
                return self._erf(args[0], 1.0 if e.value is None else float(e.value))
        fn = _UFUNCS.get(prim)
        if fn is None or (prim == "div" and not kind.is_float):
            gives = f32.np if prim == "gumbel" else gives
            cost = _COSTS[prim] if prim == "pow" and kind.is_float else 20.0
            return self.emit(_stored(PRIM_FUNCTIONS[prim]), *args, dtype=gives, cost=cost)
        return self.emit(fn, *args, dtype=gives, cost=_COSTS.get(prim, 0.07))

    def _erf(self, x: Operand, scale: float) -> Operand:
        """erf(scale · x), with the scale multiplied into the coefficients."""
        d, end = x.dtype, abs(_ERF_END / scale)
        coefficients = [c * scale ** (2 * k + 1) for k, c in enumerate(_ERF)]
        held = self.emit(np.clip, x, self.lit(-end, d), self.lit(end, d))
        square = self.emit(np.multiply, held, held)
        total = self.emit(np.multiply, square, self.lit(coefficients[-1], d))
        for c in coefficients[-2:0:-1]:
            self.emit(np.add, total, self.lit(c, d), into=total)
            self.emit(np.multiply, total, square, into=total)
        self.emit(np.add, total, self.lit(coefficients[0], d), into=total)
        self.emit(np.multiply, total, held, into=total)
        return self.emit(np.tanh, total, into=total, cost=0.2)

    def _select(self, cond: Operand, a: Operand, b: Operand) -> Operand:
        """b ^ ((a ^ b) & mask) on the bits, which keeps every value as it is, NaN payloads included."""
        cond = self._as(cond, bool_.np)
        dtype: NpType = a.dtype
        bits: NpType = _BITS[a.dtype.itemsize]
        mask = self.copy(cond, bits)
        self.emit(np.negative, mask, into=mask)
        a, b = (self._reread(x, bits) for x in (a, b))
        picked = self.emit(np.bitwise_xor, a, b)
        self.emit(np.bitwise_and, picked, mask, into=picked)
        self.emit(np.bitwise_xor, picked, b, into=picked)
        return self._reread(picked, dtype)

    def _reread(self, x: Operand, dtype: NpType) -> Operand:
        if x.kind == "lit":
            return self.lit(np.asarray(x.value).view(dtype), dtype)
        return Operand(x.kind, x.index, dtype)

    def _cast(self, x: Operand, source: DType, target: DType) -> Operand:
        if x.kind == "lit":
            x = self.copy(x, x.dtype)
        held = as_dtype(x.dtype)  # values of f16 and bf16 are in f32 registers
        if target.kind == "b":
            return self.emit(np.not_equal, x, self.lit(0, x.dtype), dtype=bool_.np)
        if held.is_float and target.is_int:
            return self._to_integer(x, held, target)
        if target.is_half:
            return x if source == target else self.copy(self.copy(self._fit(x, target), target.np), f32.np)
        return self._as(x, target.np)

    def _fit(self, x: Operand, target: DType) -> Operand:
        """x, changed if needed so that NumPy's own conversion to `target` rounds as `rlx.dtypes.rounded` does."""
        wide = x.dtype.kind in "iuf" and x.dtype.itemsize >= 4 and x.dtype != f32.np
        return self.emit(_odd, x, dtype=f32.np, cost=3.0, shares=False) if wide and is_narrow(target.np) else x

    def _to_integer(self, x: Operand, held: DType, target: DType) -> Operand:
        """Rounds toward zero and saturates at the ends of the range; NaN gives 0."""
        info, dtype = np.iinfo(target.np), held.np
        low, high = held.np.type(info.min), held.np.type(info.max)
        exact = int(high) == info.max
        if not exact:  # the nearest float is past the end: clamp below, and select the end itself beyond
            high = np.nextafter(high, held.np.type(0))
        number = self.emit(np.equal, x, x, dtype=bool_.np)
        safe = self._select(number, x, self.lit(0, dtype))
        held_in = self.emit(np.clip, safe, self.lit(low, dtype), self.lit(high, dtype))
        result = self.copy(held_in, target.np)
        if exact:
            return result
        beyond = self.emit(np.greater, safe, self.lit(high, dtype), dtype=bool_.np)
        return self._select(beyond, self.lit(info.max, target.np), result)


def _scaled_erf(trees: Sequence[Expr]) -> list[Expr]:
    """The trees with each erf(x · c) as one node that carries c, which saves a pass over the elements."""
    done: dict[Expr, Expr] = {}
    for e in linearize(trees):
        args = tuple(done[a] for a in e.args)
        value = e.value
        if e.prim == "erf" and e.dtype == f32 and args[0].prim == "mul" and args[0].dtype == f32:
            for x, factor in (args[0].args, args[0].args[::-1]):
                if factor.prim == "lit" and factor.value and 1e-3 < abs(float(factor.value)) < 1e3:
                    args, value = (x,), float(factor.value)
                    break
        done[e] = Expr(e.prim, args, e.dtype, value)
    return [done[t] for t in trees]


def write_places(start: int, target: Any) -> None:
    """Writes the indices of a block's elements; the first has the index `start`."""
    target[...] = places(start, target.shape)


def _odd(x: Any, target: Any) -> None:
    target[...] = to_odd(x)


def _stored(fn: Callable[..., Any]) -> Callable[..., None]:
    """Wraps a function without `out`: copies its result, which it allocates. Used only for primitives that are no ufunc
    and not written out here, such as power, integer division and erf of f64."""

    def call(*args: Any) -> None:
        *sources, target = args
        target[...] = fn(*sources)

    return call
