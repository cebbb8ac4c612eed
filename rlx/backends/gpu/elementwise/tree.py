"""A TreeKernel as a linear list of loads, function calls and stores, which both emitters print.

Functions are those of `prims.h`, of `prims64.h` for f64, and, for memory, `load_<dtype>` and `store_<dtype>`. A value
belongs to class `f`, `d`, `i`, `l` or `b` (see `rlx.ir.expr`).
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rlx.backends.gpu.program.steps import TreeKernel
from rlx.dtypes import DType, Storage, as_dtype
from rlx.ir.expr import PREDICATES, PRIMS, WORDS, Expr, linearize, to_f32

Class = Literal["f", "d", "i", "l", "b"]

PACK = 4  # neighbouring elements that a thread takes at once
WIDE_PACK = 8  # the same where all elements have 16 bits
THROUGH_META = ("strided", "repeated", "doubled")

# Primitives of many instructions. A tree with more than MAX_HEAVY of them is bound by arithmetic, not by memory: on
# Vulkan, and where operands are strided, it takes elements one by one, not in packs.
_HEAVY = frozenset({"exp", "expm1", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
                    "erf", "pow", "atan2", "fmod", "mod", "floordiv", "exp2", "log2", "log10", "cbrt", "asinh", "acosh",
                    "atanh", "gumbel", "threefry", "threefry_first", "threefry_second"})  # fmt: skip
MAX_HEAVY = 4

# Primitives with a variant of suffix h, for f32 values whose results are rounded to 16 bits: less exact, but cheap
# enough that memory bandwidth stays the limit.
_SHORT = frozenset({"exp", "tanh", "one_plus_erf", "gelu", "logistic", "div", "recip"})

# Sixteen bits moved without conversion: data movement must not touch the payload of a NaN.
RAW16 = DType("u16", Storage(1, 2), "u", np.dtype(np.uint16))

_LOGIC = frozenset({"not", "isnan", "isinf", "add", "mul", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "select"})
_BITS = frozenset({"and", "or", "xor", "shl", "shr"})
_WHOLE = frozenset({"neg", "abs", "sign", "floor", "ceil", "round", "trunc", "sub", "div", "pow", "mod", "fmod",
                    "floordiv"})  # fmt: skip
# The primitives that prims.h and prims64.h have for each class of arguments.
_FLOAT = frozenset(PRIMS) - _BITS - WORDS - {"cast", "index"}
DEFINED: dict[Class, frozenset[str]] = {
    "f": _FLOAT,
    "d": _FLOAT,
    "i": _LOGIC | _BITS | _WHOLE | WORDS,
    "l": _LOGIC | _BITS | _WHOLE,
    "b": _LOGIC | {"abs", "and", "or", "xor"},
}

# The primitives whose u8 and i8 results may overflow and must be wrapped.
_WRAPPED = frozenset({"neg", "abs", "add", "sub", "mul", "div", "pow", "shl", "mod", "fmod", "floordiv"})


@dataclass(frozen=True, slots=True)
class Const:
    """A literal."""

    cls: Class
    value: int | float | bool


@dataclass(frozen=True, slots=True)
class Load:
    """Element of input `operand`, stored as `storage`."""

    cls: Class
    operand: int
    storage: DType


@dataclass(frozen=True, slots=True)
class Index:
    """The number of the element, in the row-major order of the outputs."""

    cls: Class


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the function `name` of prims.h or prims64.h with earlier values."""

    cls: Class
    name: str
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """Stores value number `value` to output `operand`, as dtype `storage`."""

    operand: int
    value: int
    storage: DType


Instr = Const | Load | Index | Call


@dataclass(frozen=True, slots=True)
class Program:
    """`values[i]` computes value i from earlier ones; the stores follow, one for each output."""

    values: tuple[Instr, ...]
    stores: tuple[Store, ...]

    @property
    def wide(self) -> bool:
        """Whether a value is an f64."""
        return any(v.cls == "d" for v in self.values)


def class_of(dtype: DType) -> Class:
    """The class a dtype is computed in."""
    if dtype.kind == "b":
        return "b"
    if dtype.is_float:
        return "d" if dtype.itemsize == 8 else "f"
    return "l" if dtype.itemsize == 8 else "i"


@functools.lru_cache(1 << 12)
def computable(trees: tuple[Expr, ...], features: frozenset[str]) -> bool:
    """Whether a device with these features can compute the trees: f64 and i64 only where it has them, and every
    primitive is one that prims.h or prims64.h has for its arguments."""
    for e in linearize(trees):
        if e.dtype.itemsize == 8 and not eight_bytes(e.dtype) <= features:
            return False
        if (
            e.prim not in ("arg", "lit", "cast", "index")
            and e.prim not in DEFINED[class_of(e.args[-1].dtype)]
        ):
            return False
    return True


def eight_bytes(dtype: DType) -> frozenset[str]:
    """The features needed to compute in a dtype of eight bytes: prims64.h takes f64 apart as 64-bit integers."""
    return frozenset({"f64", "i64"}) if dtype.is_float else frozenset({"i64"})


@functools.lru_cache(1 << 12)
def heavy(trees: tuple[Expr, ...]) -> bool:
    """Whether four elements at a time would cost more to compile than they save in memory accesses."""
    return sum(e.prim in _HEAVY for e in linearize(trees)) > MAX_HEAVY


def heavy_prim(prim: str) -> bool:
    """Whether a primitive takes many instructions."""
    return prim in _HEAVY


@functools.lru_cache(1 << 12)
def has_functions(trees: tuple[Expr, ...]) -> bool:
    """Whether the trees have a primitive of `_HEAVY` or `_SHORT`, not only simple arithmetic and selects."""
    return any(e.prim in _HEAVY | _SHORT for e in linearize(trees))


def lanes(kernel: TreeKernel) -> int:
    """The elements of a pack: 8 where no operand is strided and all flat ones have 16 bits, else 4."""
    flat = [o.storage.itemsize for o in (*kernel.inputs, *kernel.outputs) if o.access == "flat"]
    return WIDE_PACK if kernel.rank == 0 and set(flat) == {2} else PACK


def ends_short(kernel: TreeKernel) -> bool:
    """Whether every float output has 16 bits, and so has every float input unless `kernel.short` marks the inputs as
    intermediate values: then no result shows more precision."""
    inputs = () if kernel.short else kernel.inputs
    floats = [o.storage for o in (*inputs, *kernel.outputs) if o.storage.is_float]
    return bool(floats) and all(s.is_half for s in floats) and any(o.storage.is_half for o in kernel.outputs)


def _joined(trees: Sequence[Expr]) -> tuple[Expr, ...]:
    """The trees with gelu, a / (1 + exp(-x)) and any remaining 1 + erf(x) each replaced by one primitive."""
    done: dict[Expr, Expr] = {}
    for e in linearize(trees):
        args = tuple(done[a] for a in e.args)
        inner = [a for a in args if a.prim == "erf"]
        ones = [a for a in args if a.prim == "lit" and a.value == 1]
        if e.prim == "add" and inner and ones and class_of(e.dtype) == "f":
            done[e] = Expr("one_plus_erf", inner[0].args, e.dtype)
        else:
            done[e] = _gelu(_logistic(e if args == e.args else Expr(e.prim, args, e.dtype, e.value)))
    return tuple(done[t] for t in trees)


def _gelu(e: Expr) -> Expr:
    """e, or gelu(x) where e is (x / 2) (1 + erf(x / sqrt(2)))."""
    if e.prim != "mul" or e.args[1].prim != "one_plus_erf":
        return e
    x, inner = _other_factor(e.args[0], 0.5), _other_factor(e.args[1].args[0], math.sqrt(0.5))
    return Expr("gelu", (x,), e.dtype) if x is not None and x == inner else e


def _logistic(e: Expr) -> Expr:
    """e, or logistic(a, x) where e is a / (1 + exp(-x))."""
    if e.prim != "div" or e.args[1].prim != "add" or class_of(e.dtype) != "f":
        return e
    one, power = sorted(e.args[1].args, key=lambda term: term.prim != "lit")
    if one.prim != "lit" or one.value != 1 or power.prim != "exp" or power.args[0].prim != "neg":
        return e
    return Expr("logistic", (e.args[0], power.args[0].args[0]), e.dtype)


def _other_factor(e: Expr, factor: float) -> Expr | None:
    """y where e is factor · y, else None."""
    if e.prim == "mul":
        for lit, other in (e.args, e.args[::-1]):
            if lit.prim == "lit" and lit.value == factor:
                return other
    return None


def _doubles(e: Expr, dtype: DType) -> bool:
    """Whether e is an f32 product of a value of this 16-bit dtype and a power of two ≥ 1. Such a product is exact in
    the dtype unless it overflows; bf16 overflows no sooner than f32."""
    if e.prim != "mul" or e.dtype.name != "f32":
        return False
    lits = [a.args[0] if a.prim == "cast" else a for a in e.args]
    factors = [a.value for a in lits if a.prim == "lit" and isinstance(a.value, float) and math.isfinite(a.value)]
    halves = [a for a in e.args if a.prim == "cast" and a.args[0].dtype == dtype and a.args[0].prim != "lit"]
    return bool(halves and factors) and abs(factors[0]) >= 1 and math.frexp(factors[0])[0] in (0.5, -0.5)


def program(kernel: TreeKernel) -> Program:
    """The kernel as a program; equal subtrees are computed once."""
    if len(kernel.trees) != len(kernel.outputs):
        raise ValueError(f"tree kernel: {len(kernel.trees)} trees for {len(kernel.outputs)} outputs")
    short = ends_short(kernel)
    builder = _Builder(kernel, short)
    trees = _joined(kernel.trees) if short else kernel.trees
    of: dict[Expr, int] = {}
    for e in linearize(trees):
        of[e] = builder.node(e, [of[a] for a in e.args])
    stores = tuple(
        Store(i, builder.stored(of[t], t.dtype, out.storage), out.storage)
        for i, (t, out) in enumerate(zip(trees, kernel.outputs, strict=True))
    )
    return _reached(builder.values, stores)


def _reached(values: Sequence[Instr], stores: Sequence[Store]) -> Program:
    """The program without the values that no store needs, such as a rounding that the store repeats."""
    alive = {s.value for s in stores}
    for k in reversed(range(len(values))):
        v = values[k]
        if k in alive and isinstance(v, Call):
            alive.update(v.args)
    place = {k: i for i, k in enumerate(sorted(alive))}
    kept = [values[k] for k in place]
    moved = [replace(v, args=tuple(place[a] for a in v.args)) if isinstance(v, Call) else v for v in kept]
    return Program(tuple(moved), tuple(replace(s, value=place[s.value]) for s in stores))


def literal_bits(value: float) -> int:
    """The bits of a Python float rounded to f32, overflow to infinity."""
    if math.isfinite(value):
        try:
            packed = struct.pack("<f", value)
        except OverflowError:
            packed = struct.pack("<f", math.copysign(math.inf, value))
    else:
        packed = struct.pack("<f", value)
    bits: int = struct.unpack("<I", packed)[0]
    return bits


def double_bits(value: float) -> int:
    """The bits of a Python float."""
    bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return bits


class _Builder:
    def __init__(self, kernel: TreeKernel, short: bool) -> None:
        self.kernel = kernel
        self.short = short
        self.values: list[Instr] = []

    def add(self, instr: Instr) -> int:
        self.values.append(instr)
        return len(self.values) - 1

    def call(self, cls: Class, name: str, *args: int) -> int:
        return self.add(Call(cls, name, args))

    def node(self, e: Expr, args: list[int]) -> int:
        cls = class_of(e.dtype)
        if e.prim == "arg":
            assert isinstance(e.value, int)
            storage = self.kernel.inputs[e.value].storage
            loaded = self.add(Load(class_of(storage), e.value, storage))
            return self.convert(loaded, storage, e.dtype)
        if e.prim == "lit":
            assert e.value is not None
            return self.add(Const(cls, e.value))
        if e.prim == "index":
            return self.add(Index("i"))
        if e.prim == "cast" and e.dtype.is_half and _doubles(e.args[0], e.dtype):
            return args[0] if e.dtype.name == "bf16" else self.call(cls, "p_bound_f16", args[0])
        if e.prim == "cast":
            return self.convert(args[0], e.args[0].dtype, e.dtype)
        operand = e.args[-1].dtype
        if e.prim == "select":
            args = [self.convert(args[0], e.args[0].dtype, as_dtype("bool")), *args[1:]]
        of = class_of(operand)
        suffix = "h" if self.short and of == "f" and e.prim in _SHORT else of
        result = self.call("b" if e.prim in PREDICATES else cls, f"p_{e.prim}_{suffix}", *args)
        return self.wrap(result, e.dtype) if e.prim in _WRAPPED else result

    def wrap(self, value: int, dtype: DType) -> int:
        return self.call("i", f"p_wrap_{dtype.name}", value) if dtype.name in ("u8", "i8") else value

    def convert(self, value: int, source: DType, target: DType) -> int:
        """Value of dtype `source` as `target`, by the rules of `rlx.ops.numeric.convert`."""
        a, b = class_of(source), class_of(target)
        if source == target:
            return value
        if b == "f":
            value = value if a == "f" else self.call("f", f"p_{to_f32(source, target)}_{a}_f", value)
            return self.call("f", f"p_round_{target.name}", value) if target.is_half else value
        if b == "d":
            return value if a == "d" else self.call("d", f"p_cast_{a}_d", value)
        if a in ("f", "d"):
            to = target.name if target.name in ("u8", "i8") else b
            return self.call(b, f"p_cast_{a}_{to}", value)
        if a != b:
            value = self.call(b, f"p_cast_{a}_{b}", value)
        narrows = b == "i" and (source.itemsize > target.itemsize or source.kind != target.kind) and a != "b"
        return self.wrap(value, target) if narrows else value

    def stored(self, value: int, dtype: DType, storage: DType) -> int:
        """The value that is stored: rounded to its own dtype first where the storage is wider."""
        if dtype.is_half and storage.is_float and storage.itemsize > 2:
            return self.call("f", f"p_round_{dtype.name}", value)
        if dtype.is_float and class_of(dtype) == class_of(storage):  # the store rounds
            node = self.values[value]
            return node.args[0] if isinstance(node, Call) and node.name == f"p_round_{storage.name}" else value
        return self.convert(value, dtype, storage)
