"""The Python operators and methods of Tensor, attached to the class when rlx.ops is imported."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from rlx.dtypes import DTypeLike
from rlx.errors import DTypeError, TracedValueError
from rlx.ir import Tensor
from rlx.ops import binary, bits, composite, division, linalg, movement, reduce, select, unary
from rlx.ops.index import take_rows

_PACKAGE = str(Path(__file__).resolve().parents[1])
_TAKEN = (Tensor, bool, int, float, np.ndarray, np.generic)


def _both(op: Callable[[Any, Any], Tensor], swap: bool = False) -> Callable[[Tensor, Any], Any]:
    def method(self: Tensor, other: Any) -> Any:
        if not isinstance(other, _TAKEN):
            return NotImplemented
        return op(other, self) if swap else op(self, other)

    return method


def _logic(op: Callable[[Any, Any], Tensor], sign: str) -> Callable[[Tensor, Any], Any]:
    def method(self: Tensor, other: Any) -> Any:
        if not isinstance(other, _TAKEN):
            return NotImplemented
        for x in (self, other):
            name = str(x.dtype) if isinstance(x, Tensor | np.ndarray | np.generic) else type(x).__name__
            if name != "bool":
                raise DTypeError(
                    f"operator {sign}: takes bool on both sides, got {name}; compare it first (`x != 0`)"
                )
        return op(self, other)

    return method


def _invert(self: Tensor) -> Tensor:
    if self.dtype.kind != "b":
        raise DTypeError(f"operator ~: takes bool, got {self.dtype}; compare it first (`x != 0`)")
    return unary.logical_not(self)


def _users_line() -> str:
    """File and line of the innermost frame outside rlx."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_PACKAGE):
            return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return "unknown line"


def _refuse(use: str, advice: str) -> Callable[..., NoReturn]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> NoReturn:
        where = _users_line()
        raise TracedValueError(f"{use} of {self!r}, whose value is known only in a run; {advice} ({where})")

    return method


def _args(values: tuple[Any, ...]) -> Any:
    """reshape(2, 3) and reshape((2, 3)) say the same."""
    return values[0] if len(values) == 1 and not isinstance(values[0], int) else values


def _reshape(self: Tensor, *shape: Any) -> Tensor:
    return movement.reshape(self, _args(shape))


def _transpose(self: Tensor, *perm: Any) -> Tensor:
    return movement.transpose(self, _args(perm) if perm else None)


def _getitem(self: Tensor, key: Any) -> Tensor:
    return take_rows(self, key) if isinstance(key, Tensor) else movement.index(self, key)


def _swap_last(self: Tensor) -> Tensor:
    return composite.swapaxes(self, -1, -2)


def _astype(self: Tensor, dtype: DTypeLike) -> Tensor:
    return select.cast(self, dtype)


def _flatten(self: Tensor) -> Tensor:
    return composite.flatten(self)


def _squeeze(self: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    return composite.squeeze(self, axis)


def _same(self: Tensor) -> Tensor:
    return self


_METHODS: dict[str, Any] = {
    "__add__": _both(binary.add), "__radd__": _both(binary.add, swap=True),
    "__sub__": _both(binary.sub), "__rsub__": _both(binary.sub, swap=True),
    "__mul__": _both(binary.mul), "__rmul__": _both(binary.mul, swap=True),
    "__truediv__": _both(binary.div), "__rtruediv__": _both(binary.div, swap=True),
    "__pow__": _both(binary.pow), "__rpow__": _both(binary.pow, swap=True),
    "__mod__": _both(division.mod), "__rmod__": _both(division.mod, swap=True),
    "__floordiv__": _both(division.floor_divide), "__rfloordiv__": _both(division.floor_divide, swap=True),
    "__lshift__": _both(bits.left_shift), "__rlshift__": _both(bits.left_shift, swap=True),
    "__rshift__": _both(bits.right_shift), "__rrshift__": _both(bits.right_shift, swap=True),
    "__matmul__": _both(linalg.matmul), "__rmatmul__": _both(linalg.matmul, swap=True),
    "__neg__": unary.neg, "__pos__": _same, "__abs__": unary.abs,
    "__eq__": _both(binary.equal), "__ne__": _both(binary.not_equal),
    "__lt__": _both(binary.less), "__le__": _both(binary.less_equal),
    "__gt__": _both(binary.greater), "__ge__": _both(binary.greater_equal),
    "__and__": _logic(binary.logical_and, "&"), "__rand__": _logic(binary.logical_and, "&"),
    "__or__": _logic(binary.logical_or, "|"), "__ror__": _logic(binary.logical_or, "|"),
    "__xor__": _logic(binary.logical_xor, "^"), "__rxor__": _logic(binary.logical_xor, "^"),
    "__invert__": _invert, "__getitem__": _getitem,
    "reshape": _reshape, "transpose": _transpose, "flatten": _flatten, "squeeze": _squeeze, "astype": _astype,
    "clip": select.clip, "sum": reduce.sum, "mean": reduce.mean, "prod": reduce.prod, "max": reduce.max,
    "min": reduce.min, "any": composite.any, "all": composite.all, "var": composite.var, "std": composite.std,
    "T": property(movement.transpose), "mT": property(_swap_last),
    "__bool__": _refuse("the truth value", "use rlx.where to choose element by element, rlx.cond to choose what runs"),
    "__iter__": _refuse("iteration", "index it (x[0], x[1]) or use rlx.split"),
    "__contains__": _refuse("the `in` test", "use rlx.any(x == value)"),
    "__int__": _refuse("int()", "use rlx.cast(x, 'i32')"),
    "__float__": _refuse("float()", "use rlx.cast(x, 'f32')"),
    "__index__": _refuse("use as an index", "use rlx.gather"),
    "__array__": _refuse("conversion to an array", "name it with Graph.output and run the graph"),
    "__array_ufunc__": None,  # ndarray + Tensor then asks Tensor.__radd__
}  # fmt: skip

for _name, _method in _METHODS.items():
    setattr(Tensor, _name, _method)
