"""The Python operators of Tensor, attached to the class when the first is used."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import numpy as np

from rlx.dtypes import DTypeLike
from rlx.errors import DTypeError, TracedValueError
from rlx.ir import Tensor
from rlx.ir.graph import leaked
from rlx.ir.number import TracedNumber
from rlx.ir.values import is_foreign
from rlx.ops import composite
from rlx.ops.base import tensors
from rlx.ops.elementwise import binary, bits, division, select, unary
from rlx.ops.index.arrays import getitem
from rlx.ops.matmul import matmul
from rlx.ops.movement import strided as movement
from rlx.ops.public import Complexes, any_complex

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TAKEN = (Tensor, bool, int, float, np.ndarray, np.generic)


def _both(op: Callable[[Any, Any], Tensor], swap: bool = False) -> Callable[[Tensor, Any], Any]:
    def method(self: Tensor, other: Any) -> Any:
        if any_complex((other,)):
            return Complexes.now(op.__name__, (other, self) if swap else (self, other))
        if not isinstance(other, _TAKEN) and not is_foreign(other):
            return NotImplemented
        return op(other, self) if swap else op(self, other)

    method.applies = op, swap  # type: ignore[attr-defined]  # read by code that applies the op to arrays
    return method


def _bits(of_bools: Callable[[Any, Any], Tensor], of_integers: Callable[[Any, Any], Tensor], sign: str) -> Any:
    def method(self: Tensor, other: Any) -> Any:
        if not isinstance(other, _TAKEN) and not is_foreign(other):
            return NotImplemented
        both = tensors(method.__name__, self, other)
        for x in both:
            _check_bits(method.__name__, x)
        return (of_bools if all(x.dtype.kind == "b" for x in both) else of_integers)(*both)

    method.__name__ = f"operator {sign}"
    return method


def _check_bits(operator: str, x: Tensor) -> None:
    if x.dtype.is_float:
        raise DTypeError(f"{operator}: takes bools or integers, got {x.dtype}; compare it first (`x != 0`)")


def _invert(self: Tensor) -> Tensor:
    _check_bits("operator ~", self)
    return unary.logical_not(self) if self.dtype.kind == "b" else bits.bitwise_not(self)


def users_line() -> str:
    """File and line of the innermost frame outside rlx."""
    import traceback  # only an error needs it

    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_PACKAGE):
            return f"{frame.filename}:{frame.lineno}" + (f": {frame.line}" if frame.line else "")
    return "unknown line"


def _refuse(use: str, advice: str, tensors: str = "") -> Callable[..., NoReturn]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> NoReturn:
        where = users_line()
        text = f"{advice}{tensors}"
        if self.graph.traced:
            raise TracedValueError(f"{use} of {self!r}, {leaked(self.graph)} ({where})")
        if isinstance(self, TracedNumber):
            text = f"{self.advice} builds a program for each value, or {advice}"
        raise TracedValueError(f"{use} of {self!r}, whose value is known only in a run; {text} ({where})")

    return method


_NUMPY_NAMES = {
    "absolute": "abs", "amax": "max", "amin": "min", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin",
    "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "divide": "div",
    "invert": "bitwise_not", "multiply": "mul", "negative": "neg", "power": "pow", "rint": "round",
    "subtract": "sub", "true_divide": "div",
}  # fmt: skip
_REFLECTED = {
    np.add: "__radd__", np.subtract: "__rsub__", np.multiply: "__rmul__", np.true_divide: "__rtruediv__",
    np.power: "__rpow__", np.remainder: "__rmod__", np.floor_divide: "__rfloordiv__", np.matmul: "__rmatmul__",
    np.left_shift: "__rlshift__", np.right_shift: "__rrshift__", np.bitwise_and: "__rand__",
    np.bitwise_or: "__ror__", np.bitwise_xor: "__rxor__", np.equal: "__eq__", np.not_equal: "__ne__",
    np.less: "__gt__", np.less_equal: "__ge__", np.greater: "__lt__", np.greater_equal: "__le__",
}  # fmt: skip


def _array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Handles `array + tensor`, which NumPy calls as np.add(array, tensor).

    Other NumPy functions are refused, since a tensor has no values while a graph is built.
    """
    if method == "__call__" and ufunc in _REFLECTED and not kwargs and not isinstance(inputs[0], Tensor):
        return getattr(self, _REFLECTED[ufunc])(inputs[0])
    if "out" in kwargs:
        return _refuse("writing into an array", "write y = y + x instead of y += x")(self)
    return _array_function(self, ufunc, (), (), {})


def _array_function(self: Tensor, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    if func in (np.shape, np.ndim, np.size):  # a tensor knows these without values
        return func.__wrapped__(*args, **kwargs)
    import rlx.ops as ops

    name, part = _NUMPY_NAMES.get(func.__name__, func.__name__), ""
    if (module := getattr(func, "__module__", "")) in ("numpy.linalg", "numpy.fft"):
        part = module.removeprefix("numpy.") + "."
    own = import_module(f"rlx.{part[:-1]}") if part else ops
    advice = f"use rlx.{part}{name}" if callable(getattr(own, name, None)) else "use rlx's own functions"
    return _refuse(f"np.{part}{func.__name__}", advice)(self)


def _args(values: tuple[Any, ...]) -> Any:
    """The arguments of a method as one value, so that reshape(2, 3) and reshape((2, 3)) mean the same."""
    return values[0] if len(values) == 1 and not isinstance(values[0], int) else values


def _reshape(self: Tensor, *shape: Any) -> Tensor:
    return movement.reshape(self, _args(shape))


def _transpose(self: Tensor, *perm: Any) -> Tensor:
    return movement.transpose(self, _args(perm) if perm else None)


def _swap_last(self: Tensor) -> Tensor:
    return composite.swapaxes(self, -1, -2)


def _astype(self: Tensor, dtype: DTypeLike) -> Tensor:
    return select.cast(self, dtype)


def _flatten(self: Tensor) -> Tensor:
    return composite.flatten(self)


def _squeeze(self: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    return composite.squeeze(self, axis)


_unformatted = _refuse("formatting", "name it with Graph.output and format the result")


def _format(self: Tensor, spec: str) -> str:
    """A tensor in a string is its description. Raises: TracedValueError for a number, whose digits would be meant."""
    return _unformatted(self) if spec or isinstance(self, TracedNumber) else str(self)


def _same(self: Tensor) -> Tensor:
    return self


_and = _bits(binary.logical_and, bits.bitwise_and, "&")
_or = _bits(binary.logical_or, bits.bitwise_or, "|")
_xor = _bits(binary.logical_xor, bits.bitwise_xor, "^")

TENSOR_METHODS: dict[str, Any] = {
    "__add__": _both(binary.add), "__radd__": _both(binary.add, swap=True),
    "__sub__": _both(binary.sub), "__rsub__": _both(binary.sub, swap=True),
    "__mul__": _both(binary.mul), "__rmul__": _both(binary.mul, swap=True),
    "__truediv__": _both(binary.div), "__rtruediv__": _both(binary.div, swap=True),
    "__pow__": _both(binary.pow), "__rpow__": _both(binary.pow, swap=True),
    "__mod__": _both(division.mod), "__rmod__": _both(division.mod, swap=True),
    "__floordiv__": _both(division.floor_divide), "__rfloordiv__": _both(division.floor_divide, swap=True),
    "__lshift__": _both(bits.left_shift), "__rlshift__": _both(bits.left_shift, swap=True),
    "__rshift__": _both(bits.right_shift), "__rrshift__": _both(bits.right_shift, swap=True),
    "__matmul__": _both(matmul), "__rmatmul__": _both(matmul, swap=True),
    "__neg__": unary.neg, "__pos__": _same, "__abs__": unary.abs,
    "__eq__": _both(binary.equal), "__ne__": _both(binary.not_equal),
    "__lt__": _both(binary.less), "__le__": _both(binary.less_equal),
    "__gt__": _both(binary.greater), "__ge__": _both(binary.greater_equal),
    "__and__": _and, "__rand__": _and, "__or__": _or, "__ror__": _or, "__xor__": _xor, "__rxor__": _xor,
    "__invert__": _invert, "__getitem__": getitem,
    "reshape": _reshape, "transpose": _transpose, "flatten": _flatten, "squeeze": _squeeze, "astype": _astype,
    "T": property(movement.transpose), "mT": property(_swap_last),
    "__bool__": _refuse("the truth value", "use rlx.where to choose element by element, rlx.cond to choose what runs"),
    "__iter__": _refuse("iteration", "index it (x[0], x[1]) or use rlx.split"),
    "__contains__": _refuse("the `in` test", "use rlx.any(x == value)"),
    "__int__": _refuse("int()", "use rlx.cast(x, 'i32')"),
    "__float__": _refuse("float()", "use rlx.cast(x, 'f32') for a dtype, rlx.exp(x) and the like for math's functions"),
    "__index__": _refuse("use as an index or a count",
                         "use rlx.gather to index, rlx.dynamic_slice to cut, rlx.while_loop to repeat",
                         "; a length or an axis is fixed in a trace: make it a static argument of jit; a list times a "
                         "tensor means it too: make the list a NumPy array"),
    "item": _refuse("item()", "return it from the function, whose results have numbers"),
    "tolist": _refuse("tolist()", "return it from the function, whose results have numbers"),
    "__format__": _format,
    "__array__": _refuse("conversion to an array", "name it with Graph.output and run the graph; of several in a tuple "
                         "give one, or make one of them by rlx.stack"),
    "__array_ufunc__": _array_ufunc, "__array_function__": _array_function,
    "__setitem__": _refuse("assignment to elements", "tensors never change: write x = x.at[key].set(values), which "
                            "gives a new one"),
}  # fmt: skip

def at(self: Any) -> Any:
    """x.at[key].set(values) and the like: new arrays, as jax.numpy's."""
    from rlx.ops.index.at import At

    return At(self)


for _name, _method in TENSOR_METHODS.items():
    setattr(Tensor, _name, _method)
setattr(Tensor, "at", property(at))  # noqa: B010  a type checker reads it in rlx/ir/methods.pyi
