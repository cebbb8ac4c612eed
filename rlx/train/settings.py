"""The settings of an optimizer as text, read from the closure variables of its functions. They tell apart checkpoints
of optimizers whose states have the same types."""

from __future__ import annotations

from collections.abc import Mapping
from types import CellType, FunctionType
from typing import Any

import numpy as np

from rlx.optim import Optimizer

_DEPTH = 20


def settings_of(optimizer: Optimizer) -> str:
    """The settings, such as "adamw(b1=0.9, …, learning_rate=0.001)"."""
    return _text(optimizer.update, 0)


def _text(value: Any, depth: int) -> str:
    if depth > _DEPTH:
        return "…"
    if isinstance(value, Optimizer):
        return _text(value.update, depth)
    if isinstance(value, FunctionType):
        named = dict(zip(value.__code__.co_freevars, map(_held, value.__closure__ or ()), strict=True))
        named |= dict(zip(_defaulted(value), value.__defaults__ or (), strict=True)) | (value.__kwdefaults__ or {})
        name = value.__qualname__.removesuffix(".update").replace(".<locals>", "").lstrip("_")
        inner = ", ".join(f"{n}={_text(v, depth + 1)}" for n, v in sorted(named.items()) if v is not None)
        # All lambdas have one name; the constants in their code tell them apart.
        consts = ", ".join(repr(c) for c in value.__code__.co_consts if isinstance(c, int | float))
        consts = consts if "<lambda>" in name else ""
        return f"{name}({', '.join(filter(None, [inner, consts]))})"
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}{value.tolist() if value.size < 17 else list(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_text(v, depth + 1)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(_text(v, depth + 1) for v in value) + ")"
    return repr(value) if _plain(value) else type(value).__name__


def _held(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not set yet
        return None


def _defaulted(function: FunctionType) -> tuple[str, ...]:
    code, count = function.__code__, len(function.__defaults__ or ())
    return code.co_varnames[code.co_argcount - count : code.co_argcount]


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | None)
