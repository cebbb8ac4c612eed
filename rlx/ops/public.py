"""Public functions: what a call does outside a trace, and errors for keywords that say which one was meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import numpy as np

from rlx.errors import meant
from rlx.ir import Tensor
from rlx.ir.graph import TRACING
from rlx.lazy import listed_in, unknown_in
from rlx.ops.spellings import parameters, respelled

P = ParamSpec("P")
R = TypeVar("R")
Function = Callable[..., Any]
_COMPLEX = frozenset((complex, np.complex64, np.complex128, np.clongdouble))
# Types of arguments that are never complex, which settles most calls at once; rlx.runtime adds Array.
REAL: set[type] = {Tensor, int, float, bool, str, tuple, type(None)}
# By module: functions that handle complex numbers themselves, and those that take any pytree.
_TAKING = {
    "rlx.ops": frozenset(
        ("angle", "complex", "conj", "imag", "real", "view_as_real", "associative_scan", "cond", "fori_loop", "map",
         "scan", "while_loop")
    ),
    "rlx.signal": frozenset(("zpk2sos", "zpk2tf")),
}  # fmt: skip
_ELSEWHERE = {
    "dim": "axis", "dims": "axes", "keepdim": "keepdims", "dim0": "axis1", "dim1": "axis2", "other": "b",
    "size": "shape", "is_causal": "causal", "attn_mask": "mask", "n_fft": "nfft", "win_length": "nperseg",
    "lr": "learning_rate", "betas": "b1", "near_plane": "near", "backgrounds": "background", "viewmats": "view",
    "quats": "rotations",
}  # fmt: skip
_NOT_HERE = {
    "device": 'rlx.array(x, device="vulkan") puts an array on a device; jit has device=',
    "requires_grad": "gradients are functions: rlx.grad(f)(x)", "out": "nothing is written in place",
    "inplace": "nothing is written in place",
}  # fmt: skip


class Outside:
    """How a call outside a trace is computed if its first argument is not a tensor of a graph; set by rlx.runtime."""

    compute: Callable[[Function, Sequence[Any], Mapping[str, Any]], Any] | None = None


class Complexes:
    """How a public function is computed if an argument is complex; set by rlx.ops.complex_numbers."""

    type: Any = None
    of_numpy: Callable[[Any], Any] | None = None
    dispatch: Callable[[str, str, Function, Sequence[Any], Mapping[str, Any]], Any] | None = None

    @classmethod
    def now(cls, name: str, args: Sequence[Any]) -> Any:
        """The result of the function of that name for complex arguments."""
        return cls.called("rlx.ops", name, len, args, {})

    @classmethod
    def called(cls, module: str, name: str, call: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of a public function for complex arguments; NotImplemented if it needs no special treatment."""
        cls.load()
        assert cls.dispatch is not None
        return cls.dispatch(module, name, call, args, kwargs)

    @staticmethod
    def load() -> None:
        """Imports the functions of complex numbers, which few programs need."""
        import_module("rlx.ops.complex_numbers")


def any_complex(args: Iterable[Any]) -> bool:
    """Whether an argument is a complex number or an array of these."""
    for x in args:
        kind: Any = type(x)
        if kind in REAL:
            continue
        if kind in _COMPLEX or kind is Complexes.type or (kind is np.ndarray and x.dtype.kind == "c"):
            return True
        if kind is list and any_complex(x):
            return True
    return False


def public(module: str, name: str, function: Function) -> Any:
    """The function as users call it, under its public name.

    Within a trace, and beside tensors of a graph, it adds to the graph; elsewhere it computes at once. Keywords may
    have NumPy's, JAX's and SciPy's names. An error for one that it does not take says which was meant: Python does from
    3.13."""

    # Of a result whose length the values decide (rlx.ops.composed.selecting.sized), and of calls that mean another
    # function.
    sizes, instead = getattr(function, "sizes", None), getattr(function, "instead", None)
    takes_complex = name in _TAKING.get(module, ())

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs and not kwargs.keys() <= parameters(function):
            kwargs = dict(respelled(name, function, kwargs))
        try:
            if (any_complex(args) or (kwargs and any_complex(kwargs.values()))) and not takes_complex:
                result = Complexes.called(module, name, call, args, kwargs)
                if result is not NotImplemented:
                    return result
            compute = Outside.compute
            if sizes is not None:
                kwargs = sizes(args, kwargs)
            elif instead is not None and (other := instead(args, kwargs)) is not None:
                return other(*args, **kwargs)
            if TRACING.graph is not None or TRACING.body is not None or compute is None:
                return function(*args, **kwargs)
            if args and isinstance(args[0], Tensor):
                return function(*args, **kwargs)
            return compute(function, args, kwargs)
        except TypeError as error:
            if "missing" in str(error) and (whole := unpacked(args)):
                raise TypeError(f"{error}{whole}") from None
            known = inspect.signature(function).parameters if kwargs else {}
            wrong = next((k for k in kwargs if k not in known), None)
            if wrong is None or any(p.kind is p.VAR_KEYWORD for p in known.values()):
                raise
            near = f" ({_NOT_HERE[wrong]})" if wrong in _NOT_HERE else meant(_ELSEWHERE.get(wrong, wrong), known)
        text = f"{name}() got an unexpected keyword argument {wrong!r}{near}"
        raise TypeError(f"{text}; it takes {', '.join(known)}")

    call.__module__, call.__name__, call.__qualname__ = module, name, name  # pickle finds it by these
    return call


def unpacked(args: Sequence[Any]) -> str:
    """A hint in parentheses for a container that was passed as one argument in place of several; "" if there is
    none."""
    for arg in args:
        kind = type(arg).__name__
        if hasattr(arg, "_fields"):
            return f" (did you mean *: the {len(arg)} arrays of {kind}, each an argument?)"
        if hasattr(arg, "keys") and not isinstance(arg, dict):
            return f" (did you mean **: what {kind} holds, by name?)"
    return ""


def with_hint(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with a hint of what may have been meant in TypeErrors for missing and for unknown arguments."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            known = inspect.signature(function).parameters
            wrong = next((k for k in kwargs if k not in known), None)
            hint = meant(_ELSEWHERE.get(wrong, wrong), known) if wrong else ""
            if "missing" in str(error):
                hint = unpacked(args)
            if hint:
                raise TypeError(f"{error}{hint}") from None
            raise

    return call


def make_public(names: dict[str, Any], listed: Sequence[str]) -> None:
    """Makes the listed functions of a module's globals public ones. An unknown name there is an error that says what
    was meant."""
    names.setdefault("__getattr__", unknown_in(names["__name__"]))
    names.setdefault("__dir__", listed_in(names["__name__"]))
    for name in listed:
        names[name] = public(names["__name__"], name, names[name])
