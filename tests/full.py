"""What `make test` leaves out of the suite. Tests marked `late` are run by `make late`, and so by CI; tests marked
`full`, and the longer half of what is counted, by `make test-all` alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import Any

import pytest

from rlx.conformance.case import Case, cases_of

FULL_ENV = "RLX_TEST_FULL"
_DOMAINS = 30


def full() -> bool:
    """Whether this run leaves nothing out."""
    return os.environ.get(FULL_ENV, "0") not in ("", "0")


def count(few: int, many: int) -> int:
    """How many examples, seeds or runs a test makes: `many` where nothing is left out."""
    return many if full() else few


def some(values: Iterable[Any], most: int) -> list[Any]:
    """At most `most` of these, evenly spread from the first on; all where nothing is left out.

    Tests that compile for each of an op's cases take their part by it, so that a new op costs as much as any other."""
    given = list(values)
    return given if full() else given[:: max(1, -(-len(given) // most))]


def covering(op: str, least: int) -> Sequence[Case]:
    """At least `least` of an op's cases, in which every dtype and domain of each input and every flag and name among
    the attributes occurs; all where nothing is left out. Names of more values than `least`, such as equations, do not
    count, nor do more domains than `_DOMAINS`, which are data made for a single case."""
    return cases_of(op) if full() else _covering(op, least)


def budgeted(cases: Iterable[Case], least: int) -> list[Any]:
    """These cases as values of one parameter, with the mark `full` on all but at least `least`. In those occur every
    dtype of each op, with each rank that it has, and every domain, flag and name among the attributes.

    It is how a family tests the CUDA text of its kernels: another case or dtype costs nothing that is not new. Two in
    three of those that are chosen are late, but the first of each op."""
    given = list(cases)
    kept = _chosen(given, least)
    late = [case for op in dict.fromkeys(case.op for case in kept) for case in _late([c for c in kept if c.op == op])]
    return [pytest.param(c, marks=pytest.mark.late) if c in late else c for c in thinned(given, kept.__contains__)]


def _late(cases: Sequence[Case]) -> list[Case]:
    return [case for at, case in enumerate(cases) if at % 3]


@cache
def _covering(op: str, least: int) -> Sequence[Case]:
    return _chosen(cases_of(op), least)


def _chosen(given: Sequence[Case], least: int) -> Sequence[Case]:
    if len(given) <= least:
        return given
    several = len({case.op for case in given}) > 1
    names: dict[str, set[object]] = {}
    for case in given:
        for name, value in case.attrs.items():
            if value is None or isinstance(value, bool | str):
                names.setdefault(name, set()).add(value)
        for i, spec in enumerate(case.inputs):
            names.setdefault(f"domain {i}", set()).add(spec.domain)
    flags = {name for name, values in names.items() if len(values) <= (_DOMAINS if " " in name else least)}
    values = []
    for case in given:
        found: dict[str, object] = {name: case.attrs[name] for name in flags if name in case.attrs}
        if several:
            found[case.op] = (case.inputs[0].dtype.name, len(case.inputs[0].shape))
        for i, spec in enumerate(case.inputs):
            found |= {f"dtype {i} of {case.op}": spec.dtype.name}
            found |= {f"domain {i}": spec.domain} if f"domain {i}" in flags else {}
        values.append({name: v for name, v in found.items() if isinstance(v, Hashable)})
    return [given[at] for at in sorted(spread(values, least))]


def thinned(values: Sequence[Any], kept: Callable[[Any], bool]) -> list[Any]:
    """The values of one parameter, or tuples of several, with the mark `full` on all but those that are kept."""
    assert any(map(kept, values)), "nothing would be left to run"

    def left_out(value: Any) -> Any:
        return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.full)

    return [value if kept(value) else left_out(value) for value in values]


def spread(combinations_of: Sequence[Mapping[str, object]], least: int, most: int | None = None) -> set[int]:
    """The places of at least `least` combinations of parameters, each given by what the value of each name is.

    Every value of every parameter occurs in those that are chosen, and as many pairs of values as their number allows:
    a fault shows mostly at one value or at a pair of them; `most` ends the choice before that. It is the same in every
    run.
    """
    left = dict(enumerate(frozenset(one.items()) for one in combinations_of))
    pairs = {at: {frozenset(pair) for pair in combinations(items, 2)} for at, items in left.items()}
    missing = {item for items in left.values() for item in items}
    seen: set[frozenset[tuple[str, object]]] = set()
    used: Counter[tuple[str, object]] = Counter()
    chosen: set[int] = set()

    def rank(at: int) -> tuple[int, int, int, int]:
        return -len(left[at] & missing), -len(pairs[at] - seen), sum(used[item] for item in left[at]), at

    ranked = [rank(at) for at in left]
    heapify(ranked)
    while ranked and (missing or len(chosen) < least) and len(chosen) != most:
        best = heappop(ranked)[-1]
        now = rank(best)
        if ranked and now > ranked[0]:  # what was chosen meanwhile makes no combination worth more
            heappush(ranked, now)
            continue
        chosen.add(best)
        seen |= pairs[best]
        used.update(left[best])
        missing -= left[best]
    return chosen
