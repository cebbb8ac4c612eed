"""Expression trees (`rlx.ir.Expr`) printed as LLVM IR, and the loads and stores of each dtype.

A value has the class that its dtype is computed in (`class_of`): f16 and bf16 are f32 values, i8 and u8 are i32 values
that wrap after each operation, a bool is an i1. Each primitive is the function `p_<primitive>_<class>` of `formulas`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rlx.backends.cpu import formulas
from rlx.backends.cpu.ir import (
    BF16,
    F16,
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    PTR,
    Kernel,
    Type,
    Value,
    stored,
)
from rlx.dtypes import DType, bool_
from rlx.ir.expr import PREDICATES, WORDS, Expr, linearize, to_f32

_FLOATS = frozenset(
    "abs acos acosh add asin asinh atan atan2 atanh cbrt ceil cos cosh div eq erf exp exp2 expm1 floor floordiv fmod "
    "ge gt isinf isnan le log log10 log1p log2 lt max min mod mul ne neg not pow recip round rsqrt select sign sin "
    "sinh sqrt sub tan tanh trunc".split()
)
_WHOLE = frozenset(
    "abs add and ceil div eq floor floordiv fmod ge gt isinf isnan le lt max min mod mul ne neg not or pow round "
    "select shl shr sign sub trunc xor".split()
)
_BOOLS = frozenset("abs add and eq ge gt isinf isnan le lt max min mul ne not or select xor".split())
# The primitives that the headers have a function for, by the letter of the class of values. A program whose kernels are
# in the cache needs this table alone: reading the headers takes longer than binding it.
PRINTED = {"b": _BOOLS, "f": _FLOATS, "d": _FLOATS, "i": _WHOLE | WORDS, "l": _WHOLE}
_CLASS_TYPES = {"f": F32, "d": F64, "i": I32, "l": I64, "b": I1}
# The primitives whose results may leave the range of u8 and i8.
_WRAPS = frozenset("neg abs add sub mul div pow shl mod fmod floordiv".split())


def letter(dtype: DType) -> str:
    """The letter of the class that a dtype is computed in, as `rlx.ir.expr` has them."""
    if dtype.kind == "b":
        return "b"
    wide = dtype.itemsize == 8
    return ("d" if wide else "f") if dtype.is_float else "l" if wide else "i"


def class_of(dtype: DType) -> Type:
    """The scalar type that values of a dtype have in registers."""
    return _CLASS_TYPES[letter(dtype)]


def printable(trees: Sequence[Expr], others: Collection[str] = ()) -> bool:
    """Whether there is a function for each primitive of the trees, but for those that the caller prints itself."""
    return all(
        e.prim in ("arg", "lit", "index", "cast", *others) or e.prim in PRINTED[letter(e.args[-1].dtype)]
        for e in linearize(trees)
        if not e.dtype.is_packed
    )


def print_trees(
    k: Kernel,
    trees: Sequence[Expr],
    args: Sequence[Value],
    index: Callable[[], Value] | None = None,
    lanes: int = 0,
) -> list[Value]:
    """The value of each tree, of the class of its dtype. `args[i]` is argument i, of its own dtype's class; a scalar is
    the same in all lanes. `index` gives the elements' indices (i64), for trees with the primitive "index"."""
    lanes = lanes or max((a.type.lanes for a in args), default=1)
    of: dict[Expr, Value] = {}
    for e in linearize(trees):
        of[e] = _node(k, e, [of[a] for a in e.args], args, lanes, index)
    return [of[t] for t in trees]


def node_value(k: Kernel, e: Expr, of: list[Value], lanes: int) -> Value:
    """The value of a node that is neither an argument nor an index, from the values of its own arguments."""
    return _node(k, e, of, (), lanes, None)


def _node(
    k: Kernel, e: Expr, of: list[Value], args: Sequence[Value], lanes: int, index: Callable[[], Value] | None
) -> Value:
    own = class_of(e.dtype).of(lanes)
    if e.prim == "arg":
        assert isinstance(e.value, int)
        arg = args[e.value]
        return arg if arg.type.lanes == lanes else k.splat(arg, lanes)
    if e.prim == "lit":
        assert e.value is not None
        return k.const(own, e.value)
    if e.prim == "index":
        assert index is not None
        return k.cast("trunc", index(), class_of(e.dtype))
    if e.prim == "cast":
        return convert(k, of[0], e.args[0].dtype, e.dtype)
    operand = e.args[-1].dtype
    if e.prim == "select":
        of = [convert(k, of[0], e.args[0].dtype, bool_), *of[1:]]
    result = formulas.apply(k, f"p_{e.prim}_{letter(operand)}", *of)
    if e.prim in ("and", "or", "xor") and e.dtype.is_int:
        result = k.fence(result)
    if e.prim not in PREDICATES and e.prim in _WRAPS:
        result = _wrapped(k, result, e.dtype)
    return result


def _wrapped(k: Kernel, x: Value, dtype: DType) -> Value:
    """An i32 value wrapped to the u8 or i8 of its low bits."""
    if dtype.name not in ("u8", "i8"):
        return x
    return k.cast("sext" if dtype.name == "i8" else "zext", k.cast("trunc", x, I8), I32)


def convert(k: Kernel, x: Value, source: DType, target: DType) -> Value:
    """A value of dtype `source` as `target`, by the rules of `rlx.ops.numeric.convert`."""
    a, b = letter(source), letter(target)
    if source == target:
        return x
    if b == "f":
        if a != "f":
            x = formulas.apply(k, f"p_{to_f32(source, target)}_{a}_f", x)
        return _rounded(k, x, target)
    if a in ("f", "d") and b in ("i", "l"):
        return formulas.apply(k, f"p_cast_{a}_{target.name if target.name in ('u8', 'i8') else b}", x)
    if a != b:
        x = formulas.apply(k, f"p_cast_{a}_{b}", x)
    narrows = b == "i" and (source.itemsize > target.itemsize or source.kind != target.kind) and a != "b"
    return _wrapped(k, x, target) if narrows else x


def _rounded(k: Kernel, x: Value, dtype: DType) -> Value:
    """An f32 rounded to f16 or bf16, and widened again."""
    if dtype.name == "f16":
        return k.cast("fpext", k.cast("fptrunc", x, F16), F32)
    return formulas.apply(k, "p_round_bf16", x) if dtype.name == "bf16" else x


def load(k: Kernel, dtype: DType, where: Value, lanes: int, mask: Value | None = None) -> Value:
    """`lanes` neighbouring elements of a dtype, as values of its class."""
    kind = stored_bits(dtype)
    return widen(k, k.load(kind.of(lanes), where, mask), dtype)


def gather(k: Kernel, dtype: DType, where: Value, stride: Value, lanes: int) -> Value:
    """Elements that lie `stride` bytes apart, as values of their class."""
    return gather_at(k, dtype, where, k.lanes(I64, range(lanes)) * stride)


def gather_at(k: Kernel, dtype: DType, where: Value, offsets: Value) -> Value:
    """Elements at these offsets in bytes, of i32 or i64, as values of their class."""
    kind, lanes = stored_bits(dtype), offsets.type.lanes
    places = k.op(PTR.of(lanes), f"getelementptr i8, {where}, {offsets}")
    name = f"llvm.masked.gather.{kind.of(lanes).suffix}.v{lanes}p0"
    all_of_them, none = k.const(I1.of(lanes), True), k.undefined(kind.of(lanes))
    return widen(k, k.call(name, kind.of(lanes), places, f"i32 {kind.size}", all_of_them, none), dtype)


def scatter(k: Kernel, value: Value, dtype: DType, where: Value, stride: Value) -> None:
    """Stores values of a dtype's class as elements that lie `stride` bytes apart."""
    narrowed = narrow(k, value, dtype)
    lanes = narrowed.type.lanes
    places = k.op(PTR.of(lanes), f"getelementptr i8, {where}, {k.lanes(I64, range(lanes)) * stride}")
    name = f"llvm.masked.scatter.{narrowed.type.suffix}.v{lanes}p0"
    k.do(name, narrowed, places, f"i32 {narrowed.type.size}", k.const(I1.of(lanes), True))


def store(k: Kernel, value: Value, dtype: DType, where: Value, mask: Value | None = None) -> None:
    """Stores values of a dtype's class as its elements, rounded to nearest even."""
    k.store(narrow(k, value, dtype), where, mask)


def stored_bits(dtype: DType) -> Type:
    """The type of elements in memory, halves as i16."""
    kind = stored(dtype)
    return I16 if kind in (BF16, F16) else kind


def widen(k: Kernel, raw: Value, dtype: DType) -> Value:
    """Elements as they are stored (halves as i16) as values of the dtype's class."""
    if dtype.name == "f16":
        return k.cast("fpext", k.bits(raw, F16), F32)
    if dtype.name == "bf16":
        return k.bits(k.cast("zext", raw, I32) << 16, F32)
    if dtype.kind == "b":
        return k.cmp("ne", raw, 0)
    if dtype.itemsize == 1:
        return k.cast("sext" if dtype.kind == "i" else "zext", raw, I32)
    return raw


def narrow(k: Kernel, value: Value, dtype: DType) -> Value:
    """Values of the dtype's class as they are stored."""
    if dtype.name == "f16":
        return k.bits(k.cast("fptrunc", value, F16), I16)
    if dtype.name == "bf16":
        return k.cast("trunc", formulas.apply(k, "p_bf16_bits", value), I16)
    if dtype.kind == "b":
        return k.cast("zext", value, I8)
    return k.cast("trunc", value, I8) if dtype.itemsize == 1 else value
