"""Choices between algorithms as data: candidates are frozen records with a cost, one function chooses, tests override.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from rlx.dtypes import DType

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)
else:
    T = TypeVar("T")

# Costs are compared lexicographically: first a measured rank between algorithms, then estimates within one algorithm.
Cost = tuple[float, ...]


class Candidate(Protocol):
    """One entry of the list of algorithms for an operation: an algorithm and its sizes."""

    @property
    def cost(self) -> Cost: ...


C = TypeVar("C", bound=Candidate)


class Choose(Protocol):
    """Chooses one of the candidates for a problem. The problem is a record of everything besides the target that the
    candidates depend on, or, where several choices share a record, a tuple of a word and the record. A tuner may also
    return a candidate with other sizes."""

    def __call__(self, problem: Hashable, candidates: Sequence[C], /) -> C: ...


def cheapest(problem: Hashable, candidates: Sequence[C], /) -> C:
    """The candidate of the least estimated cost, the first of several."""
    return min(candidates, key=lambda candidate: candidate.cost)


def text_of(record: object) -> str:
    """A problem or a candidate as a line of text that is the same in every process: the family or the algorithm, then
    the fields that are neither zero nor None, without the cost. Two candidates for a problem have different lines."""
    if isinstance(record, tuple):
        word, problem = record
        family, _, rest = text_of(problem).partition(" ")
        return f"{family} {word} {rest}"
    words = [w for w in type(record).__module__.split(".") if w != "choice"]
    return " ".join([getattr(record, "algorithm", words[-1]), *_fields(record)])


def _fields(record: Any) -> Iterator[str]:
    for field in fields(record):
        name, value = field.name, getattr(record, field.name)
        if name == "cost" or not value:
            continue
        if is_dataclass(value) and not isinstance(value, DType):
            yield from _fields(value)
        else:
            yield name if value is True else f"{name}={_value(value)}"


def _value(value: object) -> str:
    return "x".join(map(_value, value)) if isinstance(value, tuple) else str(value)


class Decision(NamedTuple):
    """A choice made during lowering: the node's name, the candidates, and the chosen one."""

    node: str
    problem: Hashable
    candidates: Sequence[Any]
    chosen: Any


class Chooser:
    """Chooses by `choices`, which map the line of a problem to the line of a candidate (`text_of`), and by `rule` where
    they have no entry or name no candidate.

    `node`: the name of the node being lowered. `decisions`: all choices made; `applied`: those taken from `choices`.
    """

    def __init__(self, rule: Choose, choices: Mapping[str, str] | None = None) -> None:
        self._rule, self._choices = rule, choices or {}
        self._known: dict[Hashable, str | None] = {}
        self.node = ""
        self.decisions: list[Decision] = []
        self.applied: dict[str, str] = {}

    def __call__(self, problem: Hashable, candidates: Sequence[C], /) -> C:
        wanted = self._wanted(problem) if self._choices else None
        chosen = None if wanted is None else next((c for c in candidates if text_of(c) == wanted), None)
        if chosen is None:
            chosen = self._rule(problem, candidates)
        elif wanted is not None:
            self.applied[text_of(problem)] = wanted
        self.decisions.append(Decision(self.node, problem, candidates, chosen))
        return chosen

    def _wanted(self, problem: Hashable) -> str | None:
        if problem not in self._known:
            self._known[problem] = self._choices.get(text_of(problem))
        return self._known[problem]


def narrowed(candidates: Sequence[C], **wanted: object) -> Sequence[C]:
    """The candidates whose fields have these values, and those without such a field. A value that is None, or that no
    candidate has, excludes nothing."""
    for name, value in wanted.items():
        if value is not None and any(getattr(c, name, None) == value for c in candidates):
            candidates = [c for c in candidates if getattr(c, name, None) in (None, value)]
    return candidates


class Overrides(Generic[T]):
    """Holds the record of fields that tests and benchmarks fix; `nothing` leaves every choice to the rules."""

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
