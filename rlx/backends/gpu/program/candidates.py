"""A choice as data: candidates are frozen records with a cost, one function chooses among them, tests override it."""

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
    """One entry of the list of algorithms for an operation: an algorithm and its sizes."""

    @property
    def cost(self) -> Cost: ...


C = TypeVar("C", bound=Candidate)


class Choose(Protocol):
    """Chooses one of the candidates for a problem, a record of all that they depend on besides the target. A tuner may
    also return one of them with other sizes (`dataclasses.replace`)."""

    def __call__(self, problem: Hashable, candidates: Sequence[C], /) -> C: ...


def cheapest(problem: Hashable, candidates: Sequence[C], /) -> C:
    """The candidate of the least estimated cost, the first of several."""
    return min(candidates, key=lambda candidate: candidate.cost)


def narrowed(candidates: Sequence[C], **wanted: object) -> Sequence[C]:
    """The candidates whose fields have these values, and those without such a field. A value that is None, or that no
    candidate has, excludes nothing."""
    for name, value in wanted.items():
        if value is not None and any(getattr(c, name, None) == value for c in candidates):
            candidates = [c for c in candidates if getattr(c, name, None) in (None, value)]
    return candidates


class Overrides(Generic[T]):
    """The record of the fields that tests and benchmarks fix; `nothing` leaves every choice to the rules."""

    def __init__(self, nothing: T) -> None:
        self._held = ContextVar(type(nothing).__module__, default=nothing)
        self._nothing = nothing

    def __call__(self) -> T:
        """The record in force."""
        return self._held.get()

    @contextmanager
    def forcing(self, **wishes: Any) -> Iterator[None]:
        """Inside, programs are lowered with these fields of the record wherever device and operands allow it."""
        token = self._held.set(replace(self._nothing, **wishes))
        try:
            yield
        finally:
            self._held.reset(token)
