"""Division with a remainder: mod, fmod, floor_divide."""

from __future__ import annotations

from typing import Any

from rlx.ir import Op, Tensor, apply, register
from rlx.ir import expr as ex
from rlx.ops.base import TensorLike, cast_to, check_number, infer_binary, tensors
from rlx.ops.elementwise.binary import Local, local_vjp
from rlx.ops.elementwise.prims import PRIM_FUNCTIONS, slow_cost
from rlx.ops.numeric import computed


def _mod_rule(d: Tensor, a: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return d, -d * apply("floor_divide", cast_to(a, d.dtype), cast_to(b, d.dtype))


def _fmod_rule(d: Tensor, a: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a, b = cast_to(a, d.dtype), cast_to(b, d.dtype)
    return d, -d * apply("round", (a - y) / b)


def _floor_rule(d: Tensor, a: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return d * 0, d * 0


def _register(name: str, prim: str, rule: Local, **traits: Any) -> None:
    register(
        Op(name, "elementwise", infer_binary(name, check_number), computed(common=True)(PRIM_FUNCTIONS[prim]),
           f"numpy.{name}", local_vjp(rule), lambda args, attrs: ex.call(prim, args[0], args[1]), inplace=(0, 1),
           **traits)
    )  # fmt: skip


_register("mod", "mod", _mod_rule, cost=slow_cost)
_register("fmod", "fmod", _fmod_rule, cost=slow_cost)
_register("floor_divide", "floordiv", _floor_rule, cost=slow_cost)


def mod(a: TensorLike, b: TensorLike) -> Tensor:
    """The remainder of a / b rounded down: it has the sign of b, as in Python and NumPy.

    Shape: broadcast. Dtype: promoted; two bools are refused. Gradient: d and -d·⌊a/b⌋. Numerics: the remainder is
    exact, and adding b to it rounds once; where b = 0 the result is NaN, or 0 for integers.
    """
    return apply("mod", *tensors("mod", a, b))


remainder = mod


def fmod(a: TensorLike, b: TensorLike) -> Tensor:
    """The remainder of a / b rounded toward 0: it has the sign of a, as in C.

    Shape: broadcast. Dtype: promoted; two bools are refused. Gradient: d and -d·trunc(a/b). Numerics: exact; where
    b = 0 the result is NaN, or 0 for integers.
    """
    return apply("fmod", *tensors("fmod", a, b))


def floor_divide(a: TensorLike, b: TensorLike) -> Tensor:
    """a / b rounded down, so that a = b·floor_divide(a, b) + mod(a, b).

    Shape: broadcast. Dtype: promoted; two bools are refused. Gradient: 0. Numerics: as numpy.floor_divide; integers
    wrap, and give 0 where b = 0.
    """
    return apply("floor_divide", *tensors("floor_divide", a, b))


__all__ = ["floor_divide", "fmod", "mod", "remainder"]
