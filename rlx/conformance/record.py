"""The conformance record of an op: its cases, its rules for random graphs, and what its errors are measured against.

The records of a family are in `OPS` of `rlx.conformance.cases.<family>`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx.conformance import cases
from rlx.conformance.f64_cases import f64_cases
from rlx.conformance.random_rules import Rule
from rlx.ir import Attrs, get_op

if TYPE_CHECKING:
    from rlx.conformance.case import Case

Array = npt.NDArray[Any]
Cases = Callable[[], Iterable["Case"]]


@dataclass(frozen=True)
class Conformance:
    """The record of one op.

    `cases`: generators of its cases; if a generator yields cases of other ops too, those are left out.
    `random`: the rules that add it to random graphs.
    `in_f64`: makes its f64 cases from the others.
    `terms`: gives √(Σ|terms|²) of each output element from the inputs (floats as float64) and the attributes; errors
    are measured against it where results may cancel. None: they are measured against the result.
    `order_dependent`: gives, from the same and the largest number that a sum may be, the output elements for which the
    order of adding decides whether partial sums exceed that number; None where there are none.
    `undecided`: gives, from the inputs and the attributes, the elements of the first output in which algorithms of the
    op may leave different infinities and NaN, since a term is not finite; any number is right there. None where there
    are none.
    `narrower`: the kinds of numbers (`domains.KINDS`) that a float input has from a narrower domain than other ops, as
    (input, kind): the domain, and why.
    `without`: the kinds of numbers that a float input has in no case, as (input, kind), and why.
    """

    op: str
    cases: tuple[Cases, ...]
    random: tuple[Rule, ...] = ()
    in_f64: Callable[[Sequence[Case]], Iterable[Case]] = f64_cases
    terms: Callable[[Sequence[Array], Attrs], Any] | None = None
    order_dependent: Callable[[Sequence[Array], Attrs, float], npt.NDArray[np.bool_] | None] | None = None
    undecided: Callable[[Sequence[Array], Attrs], npt.NDArray[np.bool_]] | None = None
    narrower: Mapping[tuple[int, str], tuple[str, str]] = field(default_factory=dict)
    without: Mapping[tuple[int, str], str] = field(default_factory=dict)


@functools.cache
def records_of(family: str) -> Mapping[str, Conformance]:
    """The records of a family by op."""
    records: tuple[Conformance, ...] = importlib.import_module(f"rlx.conformance.cases.{family}").OPS
    return {record.op: record for record in records}


def record_of(op: str) -> Conformance | None:
    """The record of an op; None for one that has none."""
    family = get_op(op).family
    return records_of(family).get(op) if family in families() else None


@functools.cache
def families() -> tuple[str, ...]:
    """The families that have records, in the order of their names."""
    return tuple(module.name for module in pkgutil.iter_modules(cases.__path__))


@functools.cache
def records() -> tuple[Conformance, ...]:
    """The records of all families."""
    return tuple(record for family in families() for record in records_of(family).values())
