"""How tests and benchmarks overrule a rule: one frozen record a family of kernels, in force inside a `with`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)
else:
    T = TypeVar("T")


class Overruled(Generic[T]):
    """A record of what is overruled; `nothing` leaves every choice to the rules."""

    def __init__(self, nothing: T) -> None:
        self._held = ContextVar(type(nothing).__module__, default=nothing)
        self._nothing = nothing

    def __call__(self) -> T:
        """The record in force."""
        return self._held.get()

    @contextmanager
    def forcing(self, **wishes: Any) -> Iterator[None]:
        """Programs lowered inside are made so wherever the device and the operands allow it; `wishes` are fields."""
        token = self._held.set(replace(self._nothing, **wishes))
        try:
            yield
        finally:
            self._held.reset(token)
