"""The searches of packed formats (`packed.search`) as kernels: each lane of a vector works on its own block.

An item is as many blocks as a vector has lanes. They are transposed onto the stack; a sum is a loop over a group's
elements that computes each term from the element, so that only sums leave the registers. Results for each group stay on
the stack between loops over a block's groups.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.backends.cpu.choice import usable
from rlx.backends.cpu.compile import addresses
from rlx.backends.cpu.ir import F16, F32, I8, I32, Kernel, Type, Value, pointers, sizes
from rlx.backends.cpu.machine import this_machine
from rlx.backends.cpu.rowwise import transposed
from rlx.packed.search import SEARCHES, Search
from rlx.records import Record

_ELEMENTS_PER_TURN = 4
_ARGS = pointers("x", "numbers", "codes") + sizes("total")
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class SearchSpec(Record):
    """A kernel given as text, since what it is made from is outside this folder. For `total` = items · lanes blocks, x
    (total, elements) is in f32, numbers (numbers of a block, total) in f32; codes are (total, elements)."""

    text: str
    args = _ARGS

    def ir(self) -> str:
        return self.text


class _Number:
    """A number for each lane: a value, or a function that computes it for an element of a group."""

    __slots__ = ("at", "lanes", "value")

    def __init__(self, lanes: VectorLanes, value: Value | None, at: Callable[[], Value] | None = None) -> None:
        self.lanes, self.value, self.at = lanes, value, at

    def _two(self, op: str, other: Any, swapped: bool = False) -> _Number:
        def apply(a: Value, b: Value) -> Value:
            return a._two(op, b, swapped)

        return self.lanes.apply(apply, self, other)

    def __add__(self, other: Any) -> _Number:
        return self._two("add", other)

    def __sub__(self, other: Any) -> _Number:
        return self._two("sub", other)

    def __mul__(self, other: Any) -> _Number:
        return self._two("mul", other)

    def __rmul__(self, other: Any) -> _Number:
        return self._two("mul", other, swapped=True)

    def __truediv__(self, other: Any) -> _Number:
        return self._two("div", other)

    def __rtruediv__(self, other: Any) -> _Number:
        return self._two("div", other, swapped=True)

    def __neg__(self) -> _Number:
        return self.lanes.apply(lambda a: -a, self)

    def __and__(self, other: Any) -> _Number:
        return self.lanes.apply(lambda a, b: a & b, self, other)

    def __or__(self, other: Any) -> _Number:
        return self.lanes.apply(lambda a, b: a | b, self, other)

    def __lshift__(self, other: Any) -> _Number:
        return self.lanes.apply(lambda a, b: a << b, self, other)

    def __rshift__(self, other: Any) -> _Number:
        return self.lanes.apply(lambda a, b: a >> b, self, other)

    def __lt__(self, other: Any) -> _Number:
        return self.lanes.compared("olt", self, other)

    def __gt__(self, other: Any) -> _Number:
        return self.lanes.compared("ogt", self, other)

    def __eq__(self, other: Any) -> _Number:  # type: ignore[override]
        return self.lanes.compared("oeq", self, other)

    __hash__ = None  # type: ignore[assignment]


class _Stored(Record):
    """Numbers on the stack: one for each group of a block, or for each element."""

    place: Value
    each: int  # elements of a group
    type: Type


class VectorLanes:
    """The `search.Lanes` that writes a kernel."""

    def __init__(self, k: Kernel, lanes: int, groups: int, inside: int) -> None:
        self.k, self.lanes, self.count, self.inside = k, lanes, groups, inside
        self._memo: dict[int, Value] = {}
        self._kept: list[_Number] = []  # keeps numbers alive, so that their ids in the memo stay unique

    # -- numbers

    def apply(self, f: Callable[..., Value], *args: Any) -> _Number:
        """Applies f to values at once; for numbers that depend on the element, f is called later, wherever one is
        needed."""
        numbers = [a for a in args if isinstance(a, _Number)]
        if all(a.value is not None for a in numbers):
            return _Number(self, f(*self._values(args)))
        return _Number(self, None, lambda: f(*self._values(args)))

    def _values(self, args: Sequence[Any]) -> list[Value]:
        values = [self._value(a) if isinstance(a, _Number) else a for a in args]
        kind = next(a for a in values if isinstance(a, Value)).type
        return [a if isinstance(a, Value) else self.k.const(kind, a) for a in values]

    def _value(self, number: _Number) -> Value:
        if number.value is not None:
            return number.value
        assert number.at is not None
        if id(number) not in self._memo:
            self._kept.append(number)
            self._memo[id(number)] = number.at()
        return self._memo[id(number)]

    def compared(self, how: str, a: Any, b: Any) -> _Number:
        return self.apply(lambda a, b: self.k.cmp(how, a, b), a, b)

    def where(self, condition: _Number, a: Any, b: Any) -> _Number:
        def chosen(c: Value, *options: Any) -> Value:
            x, y = (self._value(n) if isinstance(n, _Number) else n for n in (a, b))
            kind = next(v.type for v in (x, y) if isinstance(v, Value))
            x, y = (v if isinstance(v, Value) else self.k.const(kind, v) for v in (x, y))
            return self.k.select(c, x, y)

        if all(n.value is not None for n in (condition, a, b) if isinstance(n, _Number)):
            return _Number(self, chosen(self._value(condition)))
        return _Number(self, None, lambda: chosen(self._value(condition)))

    def least(self, a: _Number, b: float) -> _Number:
        return self.apply(lambda a, b: self.k.select(self.k.cmp("olt", a, b), a, b), a, b)

    def most(self, a: _Number, b: float) -> _Number:
        return self.apply(lambda a, b: self.k.select(self.k.cmp("ogt", a, b), a, b), a, b)

    def rint(self, x: _Number) -> _Number:
        return self.apply(lambda a: self.k.unary("roundeven", a), x)

    def absolute(self, x: _Number) -> _Number:
        return self.apply(lambda a: self.k.unary("fabs", a), x)

    def half(self, x: _Number) -> _Number:
        near = self.least(self.most(x, -65504.0), 65504.0)
        return self.apply(lambda a: self.k.cast("fpext", self.k.cast("fptrunc", a, F16), F32), near)

    def bits(self, x: _Number) -> _Number:
        return self.apply(lambda a: self.k.bits(a, I32), x)

    def number(self, bits: _Number) -> _Number:
        return self.apply(lambda a: self.k.bits(self.k.fence(a), F32), bits)

    def looked_up(self, x: _Number, limits: Sequence[float], values: Sequence[float]) -> _Number:
        def chosen(v: Value) -> Value:
            result = self.k.const(v.type, values[0])
            for limit, value in zip(limits, values[1:], strict=True):
                result = self.k.select(self.k.cmp("oge", v, limit), self.k.const(v.type, value), result)
            return result

        return self.apply(chosen, x)

    # -- loops

    def _each(self, n: int, body: Callable[[Value, int], None]) -> None:
        """Runs the body for each element, several in an iteration of the loop."""
        several = _ELEMENTS_PER_TURN if n % _ELEMENTS_PER_TURN == 0 else 1
        with self.k.loop(0, n, several) as i:
            for u in range(several):
                self._at = i + u
                self._memo = {}
                body(i + u, u)
        self._memo = {}

    def elements(self, place: Value) -> _Number:
        """The elements of the group whose first element is at `place`."""

        def read() -> Value:
            return self.k.load(F32.of(self.lanes), self.k.at(place, self._at * self.lanes, F32), align=4 * self.lanes)

        return _Number(self, None, read)

    def sums(self, *terms: _Number) -> tuple[_Number, ...]:
        kind = F32.of(self.lanes)
        held = [self.k.variable(self.k.const(kind, 0.0)) for _ in terms]

        def add(i: Value, u: int) -> None:
            for to, term in zip(held, terms, strict=True):
                to.value = to.value + self._value(term)

        self._each(self.inside, add)
        return tuple(_Number(self, h.value) for h in held)

    def ends(self, x: _Number) -> tuple[_Number, _Number]:
        k, kind = self.k, F32.of(self.lanes)
        low, high = k.variable(k.const(kind, np.inf)), k.variable(k.const(kind, -np.inf))

        def join(i: Value, u: int) -> None:
            v = self._value(x)
            low.value = k.select(k.cmp("olt", v, low.value), v, low.value)
            high.value = k.select(k.cmp("ogt", v, high.value), v, high.value)

        self._each(self.inside, join)
        return _Number(self, low.value), _Number(self, high.value)

    def groups(self, f: Callable[..., tuple[_Number, ...]], *arrays: _Stored) -> tuple[_Stored, ...]:
        k, outputs = self.k, []
        with k.loop(0, self.count) as g:
            inputs = []
            for a in arrays:
                place = k.at(a.place, g * (a.each * self.lanes), a.type)
                if a.each > 1:
                    inputs.append(self.elements(place))
                else:
                    inputs.append(_Number(self, k.load(a.type.of(self.lanes), place, align=4 * self.lanes)))
            for number in f(*inputs):
                if number.value is not None:
                    to = self.room(1)
                    k.store(number.value, k.at(to, g * self.lanes, F32), align=4 * self.lanes)
                    outputs.append(_Stored(to, 1, F32))
                else:
                    to = self.room(self.inside)
                    kind = self.keep(number, k.at(to, g * (self.inside * self.lanes), F32))
                    outputs.append(_Stored(to, self.inside, kind))
        return tuple(outputs)

    def keep(self, number: _Number, to: Value) -> Type:
        """Stores the number of each element; returns its type."""
        kinds: list[Type] = []

        def store(i: Value, u: int) -> None:
            v = self._value(number)
            kinds.append(v.type.of(1))
            self.k.store(v, self.k.at(to, i * self.lanes, F32), align=4 * self.lanes)

        self._each(self.inside, store)
        return kinds[0]

    def total(self, *numbers: _Stored) -> tuple[_Number, ...]:
        return tuple(self._over(n, lambda a, b: a + b) for n in numbers)

    def greatest(self, x: _Stored) -> _Number:
        return self._over(x, lambda a, b: self.k.select(self.k.cmp("ogt", b, a), b, a))

    def _over(self, x: _Stored, join: Callable[[Value, Value], Value]) -> _Number:
        kind = F32.of(self.lanes)
        held = self.k.variable(self.k.const(kind, 0.0))
        with self.k.loop(0, self.count) as g:
            place = self.k.at(x.place, g * self.lanes, F32)
            held.value = join(held.value, self.k.load(kind, place, align=4 * self.lanes))
        return _Number(self, held.value)

    def room(self, each: int) -> Value:
        """Memory for `each` numbers of every group."""
        return self.k.reserve(4 * each * self.count * self.lanes)


def kernel_text(search: Search, elements: int, lanes: int) -> str:
    """The kernel's text of a search for blocks of `elements` elements."""
    k, inside = Kernel("kernel", _ARGS), elements // search.groups
    v = VectorLanes(k, lanes, search.groups, inside)
    x, numbers, codes, total = k.args("x", "numbers", "codes", "total")
    kind = F32.of(lanes)
    scratch = v.room(inside)
    with k.loop(k.first, k.last) as item:
        first = item * lanes
        with k.loop(0, elements, lanes) as e:
            rows = [
                k.load(kind, k.at(x, (first + b) * elements + e, F32), align=4) for b in range(lanes)
            ]
            for i, row in enumerate(transposed(k, rows)):
                k.store(row, k.at(scratch, (e + i) * lanes, F32), align=4 * lanes)
        whole: Any = v.elements(scratch) if search.groups == 1 else _Stored(scratch, inside, F32)
        results, code = search.find(v, whole, inside)
        if isinstance(code, _Number):
            to = v.room(inside)
            code = _Stored(to, inside, v.keep(code, to))
        at = 0
        for number, of in zip(results, search.numbers, strict=True):
            for g in range(of):
                value = (
                    number.value if isinstance(number, _Number)
                    else k.load(kind, k.at(number.place, g * lanes, F32), align=4 * lanes)
                )  # fmt: skip
                assert value is not None
                k.store(value, k.at(numbers, total * (at + g) + first, F32), align=4)
            at += of
        with k.loop(0, elements, lanes) as e:
            columns = []
            for i in range(lanes):
                raw = k.load(code.type.of(lanes), k.at(code.place, (e + i) * lanes, F32), align=4 * lanes)
                columns.append(k.cast("fptosi", raw, I32) if raw.type.is_float else raw)
            for b, row in enumerate(transposed(k, columns)):
                k.store(k.cast("trunc", row, I8), k.at(codes, (first + b) * elements + e), align=1)
    return k.text()


@cache
def _kernel(family: str, elements: int) -> tuple[Any, int]:
    """The function of a format's kernel, and its lanes."""
    machine = this_machine()
    assert machine is not None
    lanes = machine.lanes(32)
    (address,) = addresses([SearchSpec(kernel_text(SEARCHES[family], elements, lanes))], machine)
    return _CALL(address), lanes


def finder(
    family: str, elements: int
) -> Callable[[Search, npt.NDArray[np.float32]], tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]] | None:
    """The compiled search of a format for blocks of `elements` elements, with the results of
    `packed.lanes.find_blocks`; None where there is no compiler."""
    if not usable(None):
        return None
    call, lanes = _kernel(family, elements)

    def find_block(search: Search, blocks: npt.NDArray[np.float32]) -> tuple[Any, Any]:
        count = len(blocks)
        whole = -(-count // lanes) * lanes
        if whole > count:
            blocks = np.concatenate([blocks, np.zeros((whole - count, elements), np.float32)])
        numbers = np.empty((sum(search.numbers), whole), np.float32)
        codes = np.empty((whole, elements), np.uint8)
        words = np.array(_ARGS(x=blocks, numbers=numbers, codes=codes, total=whole), np.int64)
        call(words.ctypes.data, 0, whole // lanes)
        return numbers[:, :count], codes[:count]

    return find_block
