"""keywords: functions that say which keyword was meant by one that they do not have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from rlx.errors import meant

P = ParamSpec("P")
R = TypeVar("R")


def keywords(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose TypeError for an unknown keyword names those it has and the nearest."""
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
