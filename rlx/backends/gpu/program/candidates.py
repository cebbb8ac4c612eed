"""A choice as data: candidates are frozen records with a cost, one function chooses among them, tests overrule it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)
else:
    T = TypeVar("T")

# Compared number by number: first a rank between algorithms, as measured, then estimates within one.
Cost = tuple[float, ...]


class Candidate(Protocol):
    """One way to carry out an operation: an algorithm and its sizes."""

    @property
    def cost(self) -> Cost: ...


C = TypeVar("C", bound=Candidate)


class Choose(Protocol):
    """Takes one of the candidates for a problem, a record of all that they depend on besides the target. A tuner may
    also return one of them with other sizes (`dataclasses.replace`)."""

    def __call__(self, problem: Hashable, found: Sequence[C], /) -> C: ...


def cheapest(problem: Hashable, found: Sequence[C], /) -> C:
    """The candidate of the least estimated cost, the first of several."""
    return min(found, key=lambda candidate: candidate.cost)


def narrowed(found: Sequence[C], **wanted: object) -> Sequence[C]:
    """The candidates that have these fields, or lack them; of a field with a value that none has, or None, all."""
    for name, value in wanted.items():
        if value is not None and any(getattr(c, name, None) == value for c in found):
            found = [c for c in found if getattr(c, name, None) in (None, value)]
    return found


class Overruled(Generic[T]):
    """A record of what tests and benchmarks wish for; `nothing` leaves every choice to the rules."""

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
