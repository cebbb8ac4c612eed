"""Python numbers among the arguments of a traced function, which have new values in each call.

Arithmetic between such a number and Python's own stays in Python: a tape records it and repeats it at each call.
Combined with a tensor, the number becomes an input of rank 0, of the dtype that a constant would have there. That takes
no step on the device.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, bool_, f32, i64, rounded
from rlx.errors import GraphError, TracedValueError
from rlx.ir.graph import Graph, Node, Tensor
from rlx.ir.op import get_op
from rlx.ir.types import TensorType
from rlx.ir.values import as_array, exactly

Number = bool | int | float
ALONE: dict[type[Number], DType] = {float: f32, int: i64, bool: bool_}
COMPUTED = "a number computed of "


class NumberTape:
    """The tape of what one traced call computes from its numbers.

    `slots` hold the values of that call: its arguments, then the result of each step."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.slots: list[Number] = []
        self.closed = False  # set once the call is traced and its graph may be compiled
        self.steps: list[tuple[Callable[..., Any], tuple[Any, ...], TracedNumber]] = []
        self._made: dict[tuple[int, DType], Tensor] = {}
        self.inputs: dict[str, tuple[TracedNumber, DType]] = {}

    def argument(self, value: int | float, label: str, static: str) -> TracedNumber:
        """A number whose value each call gives; `static` is the option of `jit` that would compile its value into the
        program."""
        return self._number(value, label, (static,))

    def step(self, function: Callable[..., Any], *operands: Any) -> TracedNumber:
        """The number that a Python function returns for the operands, evaluated now and again at each call."""
        used = [x for x in operands if isinstance(x, TracedNumber)]
        if any(x.tape is not self for x in used):
            raise GraphError(f"{used} are of different calls; a traced number is good only in its own call")
        plain = tuple(x if isinstance(x, TracedNumber) else _plain(x) for x in operands)
        labels = dict.fromkeys(x.label.removeprefix(COMPUTED) for x in used)
        label = COMPUTED + " and ".join(labels)
        result = self._number(
            function(*_values(plain, self.slots)), label, tuple(dict.fromkeys(s for x in used for s in x.static))
        )
        self.steps.append((function, plain, result))
        return result

    def _number(self, value: Number, label: str, static: tuple[str, ...]) -> TracedNumber:
        if type(value) not in ALONE:
            raise TracedValueError(f"{label} is {value!r}; expected a bool, an int or a float")
        self.slots.append(value)
        return TracedNumber(self, len(self.slots) - 1, label, static)

    def tensor(self, number: TracedNumber, dtype: DType) -> Tensor:
        """The input that holds the number as `dtype`. Raises: DTypeError where the dtype cannot hold it."""
        result = self._made.get((number.slot, dtype))
        if result is None:
            if self.closed:
                raise GraphError(f"{number!r} is of a call that has been traced; what leaves a function is its result")
            held(number, dtype, self.slots)
            name = f"n{len(self.inputs)}"
            while name in self.graph.inputs:  # an argument has this name
                name += "_"
            attrs = {"name": name, "shape": (), "dtype": dtype}
            # It goes straight to the outermost graph, also while the function of a control op is traced.
            (result,) = self.graph._append(get_op("input"), (), attrs, name)
            self.graph.inputs[name] = self._made[number.slot, dtype] = result
            self.inputs[name] = (number, dtype)
        return result

    def replay(self, numbers: Sequence[Number]) -> list[Number]:
        """The values of all slots, recomputed for other arguments.

        Raises: whatever Python raises; TracedValueError for a result whose type is not the one the program was built
        for."""
        slots = list(numbers)
        for function, operands, number in self.steps:
            value = function(*_values(operands, slots))
            if type(value) is not number.weak:
                raise TracedValueError(
                    f"{number.label} is {value!r} in this call; the program was built for a {number.weak.__name__}: "
                    f"{number.advice} builds one for each value"
                )
            slots.append(value)
        return slots

    def feeds(self, slots: Sequence[Number]) -> dict[str, npt.NDArray[Any]]:
        """The graph's inputs for these slots. Raises: DTypeError where a dtype cannot hold its number."""
        return {name: held(number, dtype, slots) for name, (number, dtype) in self.inputs.items()}


class TracedNumber(Tensor):
    """A Python number of a traced call; `weak` is its Python type, `label` its name in errors.

    Where it is used as a tensor without another beside it, its dtype is f32, i64 or bool."""

    __slots__ = ("label", "slot", "static", "tape", "weak")

    def __init__(self, tape: NumberTape, slot: int, label: str, static: tuple[str, ...]) -> None:
        self.tape = tape
        self.graph = tape.graph
        self.slot = slot
        self.label = label
        self.static = static
        self.weak: type[Number] = type(tape.slots[slot])

    def as_dtype(self, dtype: DType) -> Tensor:
        return self.tape.tensor(self, dtype)

    def concrete(self) -> Tensor:
        return self.tape.tensor(self, self.dtype)

    @property
    def dtype(self) -> DType:
        return ALONE[self.weak]

    @property
    def type(self) -> TensorType:  # type: ignore[override]
        return TensorType((), self.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def id(self) -> int:  # type: ignore[override]
        return self.concrete().id

    @property
    def node(self) -> Node:  # type: ignore[override]
        return self.concrete().node

    @property
    def index(self) -> int:  # type: ignore[override]
        return 0

    @property
    def advice(self) -> str:
        """The options of `jit` that compile the value into the program, for error messages."""
        return " with ".join(self.static)

    def __repr__(self) -> str:
        return f"TracedNumber({self.label})"

    def __hash__(self) -> int:
        raise TracedValueError(
            f"the hash of {self!r}, whose value comes with each call; {self.advice} builds a program for each value"
        )


def _values(operands: Sequence[Any], slots: Sequence[Number]) -> Iterator[Number]:
    return (slots[x.slot] if isinstance(x, TracedNumber) else x for x in operands)


def held(number: TracedNumber, dtype: DType, slots: Sequence[Number]) -> npt.NDArray[Any]:
    """The number's value among these slots, as `dtype`. Raises: DTypeError where the dtype cannot hold it."""
    value = slots[number.slot]
    if 0 <= value <= 127 and not (dtype.is_int and number.weak is float):  # the usual case: every dtype holds the value
        return rounded(np.asarray(value), dtype.np)
    return exactly(as_array(value, number.label), dtype, number.label)


def _plain(value: Any) -> Number:
    """A number of a subclass, such as np.float64, as Python's own type."""
    if isinstance(value, bool):
        return value
    return int(value) if isinstance(value, int) else float(value)


def _invert(x: Any) -> Any:
    return not x if isinstance(x, bool) else ~x


def _attach(name: str, function: Callable[..., Any], reflected: str = "") -> None:
    def method(self: TracedNumber, *others: Any) -> Any:
        if all(isinstance(x, bool | int | float | TracedNumber) for x in others):
            return self.tape.step(function, self, *others)
        return getattr(Tensor, name)(self, *others)

    def swapped(self: TracedNumber, other: Any) -> Any:
        if isinstance(other, bool | int | float | TracedNumber):
            return self.tape.step(function, other, self)
        return getattr(Tensor, reflected)(self, other)

    setattr(TracedNumber, name, method)
    if reflected:
        setattr(TracedNumber, reflected, swapped)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor"):
    _function = getattr(operator, f"{_name}_" if _name in ("and", "or") else _name)
    _attach(f"__{_name}__", _function, f"__r{_name}__")
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs"):
    _attach(f"__{_name}__", getattr(operator, _name))
_attach("__invert__", _invert)
for _name, _function in (("round", round), ("floor", math.floor), ("ceil", math.ceil), ("trunc", math.trunc)):
    _attach(f"__{_name}__", _function)
