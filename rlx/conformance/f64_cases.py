"""Cases in f64: a few f32 cases of each op with f64 instead of f32.

The tolerance is that of the f32 case, in units of f64's last place instead of f32's. The oracle computes in f64 too, so
the tolerance also has to cover the oracle's own rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from rlx.conformance.tolerances import Tolerance
from rlx.dtypes import bf16, f16, f32, f64
from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.conformance.case import Case

_MOST = 10  # the largest number of f64 cases of an op
_LEAST = 12  # cases with fewer elements are taken only for kinds without a larger case
_LARGEST = 1 << 18
_FINER = 2e-9  # the last place of f64 over that of f32: 2^-29, rounded up
_TINIER = 2.0 ** (126 - 1022)  # the smallest normal f64 over the smallest normal f32


def finer(tolerance: Tolerance) -> Tolerance:
    """The tolerance in f64 that corresponds to one in f32.

    A floor above 1e-30 is for rounding and scales with the last place; a smaller one is for results that are nearly
    subnormal, and scales with the smallest normal number.
    """
    floor = tolerance.floor * (_FINER if tolerance.floor > 1e-30 else _TINIER)
    return replace(
        tolerance, floor=floor, nmse=tolerance.nmse * _FINER**2, max_error=tolerance.max_error * _FINER
    )


def f64_cases(cases: Iterable[Case]) -> Iterator[Case]:
    """Up to ten cases in f64, made from an op's f32 cases; none where the op does not take f64."""
    wide = []
    for case in cases:
        kinds = {s.dtype for s in case.inputs}
        if f32 in kinds and not kinds & {f16, bf16}:
            wide.append(case)
    wide_cases = (_in_f64(case) for case in _picked(wide))
    yield from (case for case in wide_cases if case is not None)


def none(cases: Iterable[Case]) -> Iterator[Case]:
    """No f64 cases, for ops for which `f64_cases` cannot make any."""
    return iter(())


def _size(case: Case) -> int:
    return sum(math.prod(s.shape) for s in case.inputs)


def _shows(case: Case) -> tuple[object, ...]:
    """The kind of a case: the domains of its inputs, and those attributes that are strings, bools or None."""
    words = tuple((k, v) for k, v in case.attrs.items() if v is None or isinstance(v, bool | str | Enum))
    return (tuple(s.domain for s in case.inputs), words)


def _picked(cases: Iterable[Case]) -> list[Case]:
    """The smallest case of each kind, if possible not below `_LEAST`; of too many kinds an even selection."""
    picked: dict[tuple[object, ...], Case] = {}
    for case in sorted(cases, key=lambda c: (_size(c) < _LEAST, _size(c), c.id)):
        if _size(case) <= _LARGEST:
            picked.setdefault(_shows(case), case)
    kinds = list(picked.values())
    step = max(1.0, len(kinds) / _MOST)
    return [kinds[int(i * step)] for i in range(min(len(kinds), _MOST))]


def _in_f64(case: Case) -> Case | None:
    """The case in f64; None where the op does not take f64."""
    inputs = tuple(replace(s, dtype=f64) if s.dtype == f32 else s for s in case.inputs)
    name = case.name.replace("f32", "f64") if "f32" in case.name else f"f64-{case.name}"
    attrs = {k: f64 if v == f32 else v for k, v in case.attrs.items()}
    result = replace(case, name=name, inputs=inputs, attrs=attrs, tolerance=finer(case.tolerance))
    try:
        result.graph()
    except RlxError:
        return None
    return result
