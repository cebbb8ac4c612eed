"""LLVM IR as text: a builder of functions whose values are scalars or vectors.

    args = pointers("x", "y") + floats("factor")
    k = Kernel("kernel", args)
    x, y, factor = k.args("x", "y", "factor")
    with k.loop(k.first, k.last) as i:
        v = k.load(F32, k.at(x, i, F32))
        k.store(v * factor, k.at(y, i, F32))
    text = k.text()
    words = args(x=source, y=target, factor=0.5)  # the words that a caller passes

Arguments are declared once, and given and read by name. Values have operators (`a + b`, `-a`, `a & b`); a Python number
beside a value becomes a constant of its type. Numbers that change in a loop are variables (`k.variable(start)`,
`v.value`), which LLVM keeps in registers. Floating-point arithmetic is IEEE's: nothing is contracted or reassociated,
and `fma` is asked for by name. """

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.backends.cpu.machine import Lookup
from rlx.dtypes import DType
from rlx.records import Record, field


class Type(Record):
    """An LLVM type: a scalar, or a vector of `lanes` scalars."""

    scalar: str
    lanes: int = 1

    def __str__(self) -> str:
        return self.scalar if self.lanes == 1 else f"<{self.lanes} x {self.scalar}>"

    def of(self, lanes: int) -> Type:
        """The vector of `lanes` scalars of this type."""
        return Type(self.scalar, lanes)

    @property
    def suffix(self) -> str:
        """The type as it stands in the name of an intrinsic."""
        short = _SUFFIX.get(self.scalar, self.scalar)
        return short if self.lanes == 1 else f"v{self.lanes}{short}"

    @property
    def is_float(self) -> bool:
        return self.scalar in ("float", "double", "half", "bfloat")

    @property
    def bits(self) -> int:
        """Bits of a scalar."""
        return _BITS.get(self.scalar) or int(self.scalar[1:])

    @property
    def size(self) -> int:
        """Bytes of a scalar in memory."""
        return max(1, self.bits // 8)


_SUFFIX = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}
_BITS = {"float": 32, "double": 64, "half": 16, "bfloat": 16, "ptr": 64}
F32, F64, F16, BF16 = Type("float"), Type("double"), Type("half"), Type("bfloat")
I1, I8, I16, I32, I64, PTR = Type("i1"), Type("i8"), Type("i16"), Type("i32"), Type("i64"), Type("ptr")
_OF_DTYPE = {
    "f32": F32, "f64": F64, "f16": F16, "bf16": BF16, "i8": I8, "u8": I8, "i16": I16, "u16": I16, "i32": I32,
    "u32": I32, "i64": I64, "u64": I64, "bool": I8,
}  # fmt: skip


def stored(dtype: DType) -> Type:
    """The type of a dtype's elements in memory; a bool is a byte of 0 or 1."""
    return _OF_DTYPE[dtype.name]


Number = bool | int | float


class Value:
    """A value of a function under construction."""

    __slots__ = ("k", "text", "type")

    def __init__(self, k: Kernel, type: Type, text: str) -> None:
        self.k, self.type, self.text = k, type, text

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    def _two(self, op: str, other: Value | Number, swapped: bool = False) -> Value:
        b = self.k.like(self, other)
        a, b = (b, self) if swapped else (self, b)
        return self.k.binary(op if not self.type.is_float else f"f{op}", a, b)

    def __add__(self, other: Value | Number) -> Value:
        return self._two("add", other)

    def __sub__(self, other: Value | Number) -> Value:
        return self._two("sub", other)

    def __mul__(self, other: Value | Number) -> Value:
        return self._two("mul", other)

    def __radd__(self, other: Number) -> Value:
        return self._two("add", other, swapped=True)

    def __rsub__(self, other: Number) -> Value:
        return self._two("sub", other, swapped=True)

    def __rmul__(self, other: Number) -> Value:
        return self._two("mul", other, swapped=True)

    def __truediv__(self, other: Value | Number) -> Value:
        """A quotient of floats; `k.binary("sdiv", a, b)` divides integers."""
        return self._two("div", other)

    def __rtruediv__(self, other: Number) -> Value:
        return self._two("div", other, swapped=True)

    def __and__(self, other: Value | Number) -> Value:
        return self.k.binary("and", self, self.k.like(self, other))

    def __or__(self, other: Value | Number) -> Value:
        return self.k.binary("or", self, self.k.like(self, other))

    def __xor__(self, other: Value | Number) -> Value:
        return self.k.binary("xor", self, self.k.like(self, other))

    def __lshift__(self, other: Value | Number) -> Value:
        return self.k.binary("shl", self, self.k.like(self, other))

    def __rshift__(self, other: Value | Number) -> Value:
        """A logical shift; `k.binary("ashr", a, b)` keeps the sign."""
        return self.k.binary("lshr", self, self.k.like(self, other))

    def __neg__(self) -> Value:
        return self.k.op(self.type, f"fneg {self}") if self.type.is_float else 0 - self

    def __invert__(self) -> Value:
        return self ^ (True if self.type.scalar == "i1" else -1)


class Variable:
    """A value that can be reassigned, also in a loop: `v.value = v.value + 1`."""

    __slots__ = ("_k", "_place", "type")

    def __init__(self, k: Kernel, type: Type) -> None:
        self._k, self.type = k, type
        self._place = k.name()
        k.places.append(f"{self._place} = alloca {type}")

    @property
    def value(self) -> Value:
        return self._k.op(self.type, f"load {self.type}, ptr {self._place}")

    @value.setter
    def value(self, value: Value | Number) -> None:
        held = value if isinstance(value, Value) else self._k.const(self.type, value)
        assert held.type == self.type, f"a variable of {self.type} is set to a {held.type}"
        self._k.line(f"store {held}, ptr {self._place}")


class Words(tuple[int, ...]):
    """The 8-byte words that a caller gives a kernel, made by calling its `Arguments`."""

    __slots__ = ()


class Arguments(Record):
    """The arguments of a kernel by name, in the order of their words in memory. Calling it packs values into words."""

    types: Mapping[str, Type] = field(default_factory=dict)

    def __add__(self, other: Arguments) -> Arguments:
        """These arguments followed by others. Raises: ValueError for a name that both have."""
        if both := self.types.keys() & other.types.keys():
            raise ValueError(f"kernel arguments are declared twice: {sorted(both)}")
        return Arguments({**self.types, **other.types})

    def __len__(self) -> int:
        return len(self.types)

    def __call__(self, **values: npt.NDArray[Any] | float | None) -> Words:
        """The words for values that are given by name: an address, an array or None (0) for a pointer, an integer for a
        size, a number for a float.

        Raises: ValueError for a name that is missing or unknown, TypeError for a value of another kind.
        """
        if values.keys() != self.types.keys():
            missing, unknown = self.types.keys() - values.keys(), values.keys() - self.types.keys()
            raise ValueError(
                f"kernel arguments: missing {sorted(missing)}, unknown {sorted(unknown)}; declared {list(self.types)}"
            )
        return Words(_word(type, values[name]) for name, type in self.types.items())


def _word(type: Type, value: npt.NDArray[Any] | float | None) -> int:
    if type.is_float:
        if not isinstance(value, (int, float, np.number)):
            raise TypeError(f"a float is expected, not {value!r}")
        return int.from_bytes(struct.pack("<f" if type == F32 else "<d", value), "little")
    if type == PTR and isinstance(value, np.ndarray):
        value = value.__array_interface__["data"][0]
    return index(0 if type == PTR and value is None else value)  # type: ignore[arg-type]  # it raises TypeError itself


def pointers(*names: str) -> Arguments:
    """Arguments that are addresses."""
    return Arguments(dict.fromkeys(names, PTR))


def sizes(*names: str) -> Arguments:
    """Arguments that are integers of 64 bits: sizes, strides, numbers of something."""
    return Arguments(dict.fromkeys(names, I64))


def floats(*names: str, type: Type = F32) -> Arguments:
    """Arguments that are floats, of 32 bits if not told otherwise."""
    return Arguments(dict.fromkeys(names, type))


class Kernel:
    """One function `void name(ptr args, i64 first, i64 last)`, which computes the work items first … last - 1.
    `arguments` describe the words that `args` points to. `lookup`: how the processor looks up floats in registers
    (`Machine.lookup`)."""

    def __init__(self, name: str, arguments: Arguments | None = None, lookup: Lookup = None) -> None:
        self.symbol, self.lookup = name, lookup
        self._arguments = arguments or Arguments()
        self.lines: list[str] = []
        self.places: list[str] = []  # the variables' allocas, at the start of the function
        self.declared: dict[str, None] = {}
        self.functions: dict[str, str] = {}  # other functions of the module, by name
        self._count = 0
        self._words: dict[tuple[int, Type], Value] = {}
        self._entry: list[str] = []  # loads of the words of args, once each
        self.first, self.last = Value(self, I64, "%first"), Value(self, I64, "%last")

    # -- text

    def text(self) -> str:
        """The module with this function."""
        head = f"define void @{self.symbol}(ptr noalias readonly %args, i64 %first, i64 %last) #0 {{\nstart:"
        body = "\n".join([head, *self.places, *self._entry, *self.lines, "ret void\n}"])
        return "\n".join([*self.declared, *self.functions.values(), body, ATTRIBUTES, ""])

    def name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def line(self, text: str) -> None:
        self.lines.append(text)

    def op(self, type: Type, text: str) -> Value:
        """An instruction whose result has that type."""
        value = Value(self, type, self.name())
        self.lines.append(f"{value.text} = {text}")
        return value

    def call(self, name: str, type: Type, *args: Value | str) -> Value:
        """A call of an intrinsic, which is declared here; text arguments ("i1 true") are constants."""
        self._declare(name, type, args)
        return self.op(type, f"call {type} @{name}({', '.join(map(str, args))})")

    def do(self, name: str, *args: Value | str) -> None:
        """A call of an intrinsic without a result."""
        self._declare(name, None, args)
        self.line(f"call void @{name}({', '.join(map(str, args))})")

    def _declare(self, name: str, type: Type | None, args: Sequence[Value | str]) -> None:
        types = ", ".join(str(a.type) if isinstance(a, Value) else a.partition(" ")[0] for a in args)
        self.declared[f"declare {type or 'void'} @{name}({types})"] = None

    # -- values

    def arg(self, name: str) -> Value:
        """An argument. Raises: ValueError for a name that is not declared."""
        types = self._arguments.types
        if name not in types:
            raise ValueError(f"kernel argument {name!r} is not declared; these are: {list(types)}")
        return self._word(list(types).index(name), types[name])

    def args(self, *names: str) -> tuple[Value, ...]:
        """Some arguments, loaded in this order."""
        return tuple(map(self.arg, names))

    def all_args(self, *but: str) -> dict[str, Value]:
        """All arguments by name, except those named, which the kernel reads by `arg` or not at all."""
        return {name: self.arg(name) for name in self._arguments.types if name not in but}

    def _word(self, index: int, type: Type) -> Value:
        """Word `index` of args: an address, an i64, or the bits of a smaller type."""
        key = (index, type)
        if key not in self._words:
            at, loaded = self.name(), self.name()
            self._entry += [
                f"{at} = getelementptr i64, ptr %args, i64 {index}",
                f"{loaded} = load {type}, ptr {at}",
            ]
            self._words[key] = Value(self, type, loaded)
        return self._words[key]

    def const(self, type: Type, number: Number) -> Value:
        """A constant; for a vector type, the same number in all lanes."""
        one = _literal(type, number)
        if type.lanes > 1:
            one = "<" + ", ".join([f"{type.scalar} {one}"] * type.lanes) + ">"
        return Value(self, type, one)

    def lanes(self, type: Type, numbers: Sequence[Number]) -> Value:
        """A constant vector."""
        inside = ", ".join(f"{type.scalar} {_literal(type, n)}" for n in numbers)
        return Value(self, type.of(len(numbers)), f"<{inside}>")

    def like(self, value: Value, number: Value | Number) -> Value:
        """The number as a value of the same type; a scalar value beside a vector is spread over its lanes."""
        if not isinstance(number, Value):
            return self.const(value.type, number)
        if number.type.lanes == 1 and value.type.lanes > 1:
            return self.splat(number, value.type.lanes)
        assert number.type == value.type, f"{value.type} beside {number.type}"
        return number

    def variable(self, start: Value | Number, type: Type | None = None) -> Variable:
        kind = type or (start.type if isinstance(start, Value) else I64)
        result = Variable(self, kind)
        result.value = start
        return result

    def reserve(self, nbytes: int) -> Value:
        """The address of memory on the stack, aligned to 64 bytes, with undefined contents."""
        place = self.name()
        self.places.append(f"{place} = alloca [{nbytes} x i8], align 64")
        return Value(self, PTR, place)

    def undefined(self, type: Type) -> Value:
        return Value(self, type, "poison")

    # -- arithmetic

    def binary(self, op: str, a: Value, b: Value) -> Value:
        assert a.type == b.type, f"{op} of {a.type} and {b.type}"
        return self.op(a.type, f"{op} {a}, {b.text}")

    def fma(self, a: Value, b: Value | Number, c: Value | Number) -> Value:
        """a · b + c, rounded once."""
        return self.call(f"llvm.fma.{a.type.suffix}", a.type, a, self.like(a, b), self.like(a, c))

    def unary(self, name: str, a: Value) -> Value:
        """An intrinsic of one argument: sqrt, fabs, floor, ceil, trunc, roundeven, ctpop, bswap."""
        return self.call(f"llvm.{name}.{a.type.suffix}", a.type, a)

    def cmp(self, how: str, a: Value, b: Value | Number) -> Value:
        """A comparison: "oeq", "olt", "une", "uno", … of floats, "eq", "slt", "ult", … of integers and addresses."""
        word = "fcmp" if a.type.is_float else "icmp"
        return self.op(I1.of(a.type.lanes), f"{word} {how} {a}, {self.like(a, b).text}")

    def select(self, condition: Value, a: Value, b: Value | Number) -> Value:
        """a where the condition holds, else b."""
        other = self.like(a, b)
        return self.op(a.type, f"select {condition}, {a}, {other}")

    def max(self, a: Value, b: Value | Number) -> Value:
        """The greater float, NaN where one is NaN, as np.maximum; a where they are equal."""
        b = self.like(a, b)
        if not a.type.is_float:
            return self.select(self.cmp("sgt", a, b), a, b)
        return self.select(self.cmp("oge", a, b) | self.cmp("uno", a, a), a, b)

    def min(self, a: Value, b: Value | Number) -> Value:
        """The lesser float, NaN where one is NaN, as np.minimum; a where they are equal."""
        b = self.like(a, b)
        if not a.type.is_float:
            return self.select(self.cmp("slt", a, b), a, b)
        return self.select(self.cmp("ole", a, b) | self.cmp("uno", a, a), a, b)

    def cast(self, how: str, a: Value, type: Type) -> Value:
        """An LLVM conversion: "fpext", "fptrunc", "sitofp", "uitofp", "sext", "zext", "trunc", "bitcast", …; `type`
        gets a's number of lanes, except in a bitcast."""
        kind = type if how == "bitcast" else type.of(a.type.lanes)
        return a if kind == a.type else self.op(kind, f"{how} {a} to {kind}")

    def bits(self, a: Value, scalar: Type) -> Value:
        """The bits of each lane reinterpreted as a type of the same size."""
        return self.cast("bitcast", a, scalar.of(a.type.lanes))

    def fence(self, a: Value) -> Value:
        """The same value, hidden from LLVM's optimizer: it does not see how it was computed.

        LLVM 22 miscompiles a select between a value and three-operand logic of its bits (on AVX-512 a masked
        `vpternlogd`, whose immediate is for another order of operands): results of such logic go through a fence.
        """
        if not a.type.is_float:
            kind = {32: F32, 64: F64}.get(a.type.bits)
            return a if kind is None else self.bits(self.fence(self.bits(a, kind)), a.type.of(1))
        return self.call(f"llvm.arithmetic.fence.{a.type.suffix}", a.type, a)

    # -- vectors

    def splat(self, a: Value, lanes: int) -> Value:
        if lanes == 1:
            return a
        kind = a.type.of(lanes)
        one = self.op(kind, f"insertelement {kind} poison, {a}, i32 0")
        return self.op(kind, f"shufflevector {one}, {kind} poison, <{lanes} x i32> zeroinitializer")

    def extract(self, a: Value, lane: int) -> Value:
        return a if a.type.lanes == 1 else self.op(a.type.of(1), f"extractelement {a}, i32 {lane}")

    def insert(self, a: Value, one: Value, lane: int) -> Value:
        return self.op(a.type, f"insertelement {a}, {one}, i32 {lane}")

    def shuffle(self, a: Value, b: Value | None, order: Sequence[int]) -> Value:
        """The lanes `order` of a followed by b."""
        other = b if b is not None else self.undefined(a.type)
        mask = ", ".join(f"i32 {i}" for i in order)
        return self.op(a.type.of(len(order)), f"shufflevector {a}, {other}, <{len(order)} x i32> <{mask}>")

    def joined(self, parts: Sequence[Value]) -> Value:
        """The lanes of all parts, whose number is a power of two, one part after the other."""
        vectors = list(parts)
        while len(vectors) > 1:
            n = 2 * vectors[0].type.lanes
            vectors = [self.shuffle(a, b, range(n)) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        return vectors[0]

    def halves(self, a: Value) -> tuple[Value, Value]:
        n = a.type.lanes // 2
        if n == 1:
            return self.extract(a, 0), self.extract(a, 1)
        return self.shuffle(a, None, range(n)), self.shuffle(a, None, range(n, 2 * n))

    def fold(self, a: Value, join: Any) -> Value:
        """All lanes reduced to a scalar, upper half with lower half first: `fold(v, lambda x, y: x + y)`. The order is
        fixed."""
        while a.type.lanes > 1:
            a = join(*self.halves(a))
        return a

    def any(self, mask: Value) -> Value:
        """Whether a lane of a mask is set."""
        if mask.type.lanes == 1:
            return mask
        whole = self.cast("bitcast", mask, Type(f"i{mask.type.lanes}"))
        return self.cmp("ne", whole, 0)

    def tail(self, count: Value | int, lanes: int) -> Value:
        """The mask of the first `count` lanes (an i64, at most `lanes`)."""
        if isinstance(count, int):
            return self.lanes(I1, [i < count for i in range(lanes)])
        numbers = self.lanes(I64, range(lanes))
        return self.cmp("ult", numbers, self.splat(count, lanes))

    # -- memory

    def at(self, base: Value, index: Value | int, type: Type = I8) -> Value:
        """The address of element `index` of an array of scalars of `type`."""
        where = index if isinstance(index, Value) else self.const(I64, index)
        return self.op(PTR, f"getelementptr {type.of(1)}, {base}, {where}")

    def load(self, type: Type, where: Value, mask: Value | None = None, align: int | None = None) -> Value:
        """A scalar or vector, with the alignment of its scalars unless `align` is given. Lanes outside the mask are not
        read and are zero."""
        align = align or type.size
        if mask is None:
            return self.op(type, f"load {type}, {where}, align {align}")
        return self.call(
            f"llvm.masked.load.{type.suffix}.p0", type, where, f"i32 {align}", mask, self.const(type, 0)
        )

    def store(self, value: Value, where: Value, mask: Value | None = None, align: int | None = None) -> None:
        """Stores the lanes of the mask, or all. With a constant mask of one lane, LLVM 22 stores too many bytes of a
        narrowed vector: such a lane (`tail(1, lanes)`) is stored as a scalar."""
        align = align or value.type.size
        if mask is not None and mask.text == self.tail(1, mask.type.lanes).text:
            value, mask = self.extract(value, 0), None
        if mask is None:
            self.line(f"store {value}, {where}, align {align}")
        else:
            self.do(f"llvm.masked.store.{value.type.suffix}.p0", value, where, f"i32 {align}", mask)

    def prefetch(self, where: Value, write: bool = False, locality: int = 3) -> None:
        self.do("llvm.prefetch.p0", where, f"i32 {int(write)}", f"i32 {locality}", "i32 1")

    # -- control

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: Value | int = 1) -> Iterator[Value]:
        """The body for each i = start, start + step, … < stop (i64, signed)."""
        begin, end, more = (x if isinstance(x, Value) else self.const(I64, x) for x in (start, stop, step))
        index = self.variable(begin)
        self._count += 1
        n = self._count
        self.line(f"br label %head{n}\nhead{n}:")
        i = index.value
        inside = self.cmp("slt", i, end)
        self.line(f"br {inside}, label %body{n}, label %done{n}\nbody{n}:")
        yield i
        index.value = i + more
        self.line(f"br label %head{n}\ndone{n}:")

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Runs the body where the condition (one i1) holds; results go into variables."""
        self._count += 1
        n = self._count
        self.line(f"br {condition}, label %then{n}, label %after{n}\nthen{n}:")
        yield
        self.line(f"br label %after{n}\nafter{n}:")

    @contextmanager
    def repeat(self) -> Iterator[Repeat]:
        """The body again and again: `with k.repeat() as again: again.whilst(condition); …` leaves it where the
        condition fails."""
        self._count += 1
        turn = Repeat(self, self._count)
        self.line(f"br label %turn{turn.number}\nturn{turn.number}:")
        yield turn
        self.line(f"br label %turn{turn.number}\nleft{turn.number}:")


class Repeat:
    """A loop that its body leaves."""

    __slots__ = ("_k", "number")

    def __init__(self, k: Kernel, number: int) -> None:
        self._k, self.number = k, number

    def whilst(self, condition: Value) -> None:
        self._k._count += 1
        n = self._k._count
        self._k.line(f"br {condition}, label %on{n}, label %left{self.number}\non{n}:")


# Kernels must refer to no other symbol: without this attribute LLVM would turn loops into calls of memset and memcpy.
ATTRIBUTES = 'attributes #0 = { nounwind "no-builtins" "no-stack-arg-probe" }'


def _literal(type: Type, number: Number) -> str:
    if type.scalar == "ptr":
        return "null" if not number else f"inttoptr (i64 {int(number)} to ptr)"
    if type.scalar == "i1":
        return "true" if number else "false"
    if not type.is_float:
        return str(int(number))
    if type.scalar in ("half", "bfloat"):
        wide = np.float32(number)
        if type.scalar == "half":
            return f"0xH{int(np.float16(wide).view(np.uint16)):04X}"
        return f"0xR{_brain(wide):04X}"
    held = float(np.float32(number)) if type.scalar == "float" else float(number)
    return f"0x{struct.unpack('>Q', struct.pack('>d', held))[0]:016X}"


def _brain(x: np.float32) -> int:
    """The bits of the bf16 nearest to x."""
    u = int(x.view(np.uint32))
    if np.isnan(x):
        return 0x7FC0
    return (u + 0x7FFF + ((u >> 16) & 1)) >> 16 & 0xFFFF
