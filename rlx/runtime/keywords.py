"""keywords: a decorator whose functions suggest the nearest known keyword for an unknown one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from rlx.errors import meant

P = ParamSpec("P")
R = TypeVar("R")


def keywords(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with a TypeError for unknown keywords that lists the known ones and suggests the nearest."""
    code = function.__code__
    known = set(code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]) - {"self"}
    what = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise TypeError(
                    f"{what}: there is no argument {name!r}{meant(name, known)}; it takes {', '.join(sorted(known))}"
                )
        return function(*args, **kwargs)

    return call
