"""Cases in f64: of an op, a few of its f32 cases with f64 in the place of f32.

The tolerance is that of the f32 case, the last place of f64 standing for that of f32. The oracle computes in f64 too,
so its own rounding is part of what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rlx.conformance.tolerances import Tolerance
from rlx.dtypes import bf16, f16, f32, f64
from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.conformance.case import Case

_MOST = 10  # cases of an op
_LEAST = 12  # elements, below which one is not told from another
_LARGEST = 1 << 18
_FINER = 2e-9  # the last place of f64 beside that of f32: 2^-29, rounded up
_TINIER = 2.0 ** (126 - 1022)  # the smallest normal f64 beside the smallest f32


def finer(tolerance: Tolerance) -> Tolerance:
    """What a tolerance of f32 is in f64. A floor is either of rounding or of what overflows or is nearly subnormal."""
    floor = tolerance.floor * (_FINER if tolerance.floor > 1e-30 else _TINIER)
    return replace(
        tolerance, floor=floor, nmse=tolerance.nmse * _FINER**2, max_error=tolerance.max_error * _FINER
    )


def doubled(cases: Iterable[Case]) -> Iterator[Case]:
    """Up to ten of an op's cases in f64; none where the op does not take it."""
    wide = []
    for case in cases:
        kinds = {s.dtype for s in case.inputs}
        if f32 in kinds and not kinds & {f16, bf16}:
            wide.append(case)
    made = (_in_f64(case) for case in _picked(wide))
    yield from (case for case in made if case is not None)


def none(cases: Iterable[Case]) -> Iterator[Case]:
    """No case in f64."""
    return iter(())


def _size(case: Case) -> int:
    return sum(math.prod(s.shape) for s in case.inputs)


def _shows(case: Case) -> tuple[object, ...]:
    """What a case is the example of: its domains, ranks and the words and flags among its attributes."""
    words = tuple((k, v) for k, v in case.attrs.items() if v is None or isinstance(v, bool | str))
    return (tuple(s.domain for s in case.inputs), words)


def _picked(cases: Iterable[Case]) -> list[Case]:
    """The smallest case of each kind that is not tiny, some of the kinds where there are many."""
    found: dict[tuple[object, ...], Case] = {}
    for case in sorted(cases, key=lambda c: (_size(c) < _LEAST, _size(c), c.id)):
        if _size(case) <= _LARGEST:
            found.setdefault(_shows(case), case)
    kinds = list(found.values())
    step = max(1.0, len(kinds) / _MOST)
    return [kinds[int(i * step)] for i in range(min(len(kinds), _MOST))]


def _in_f64(case: Case) -> Case | None:
    """The case in f64; None where the op does not take it."""
    inputs = tuple(replace(s, dtype=f64) if s.dtype == f32 else s for s in case.inputs)
    name = case.name.replace("f32", "f64") if "f32" in case.name else f"f64-{case.name}"
    attrs = {k: f64 if v == f32 else v for k, v in case.attrs.items()}
    made = replace(case, name=name, inputs=inputs, attrs=attrs, tolerance=finer(case.tolerance))
    try:
        made.graph()
    except RlxError:
        return None
    return made
