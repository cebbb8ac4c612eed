"""What `make test` keeps of the parameters of a test, and that a full run keeps all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import pytest

from rlx.conformance.case import Case, cases_of
from tests.full import FULL_ENV, count, covering, some, spread, thinned

GRID = [dict(zip("abc", one, strict=True)) for one in product(range(5), range(3), range(2))]


def test_a_sample_holds_every_value_and_many_pairs() -> None:
    for least in (1, 8, 30, 99):
        kept = [GRID[at] for at in spread(GRID, least)]
        assert len(kept) >= min(least, len(GRID))
        assert {item for one in kept for item in one.items()} == {
            item for one in GRID for item in one.items()
        }
    pairs = {pair for at in spread(GRID, 15) for pair in combinations(sorted(GRID[at].items()), 2)}
    assert len(pairs) >= 0.9 * len({pair for one in GRID for pair in combinations(sorted(one.items()), 2)})
    assert len(spread(GRID, 3, 3)) == 3 and spread(GRID, 0, 0) == set()
    assert spread(GRID, 8) == spread([dict(reversed(one.items())) for one in GRID], 8)


def test_only_a_full_run_takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FULL_ENV, raising=False)
    assert some(range(10), 4) == [0, 3, 6, 9] and some(range(3), 4) == [0, 1, 2] and some((), 4) == []
    assert count(2, 9) == 2
    monkeypatch.setenv(FULL_ENV, "1")
    assert some(range(10), 4) == list(range(10)) and count(2, 9) == 9


def test_cases_of_a_part_have_every_dtype_and_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken evenly, they would lose some: flags change with the innermost loop that makes cases."""
    monkeypatch.delenv(FULL_ENV, raising=False)
    given = cases_of("matmul")
    part = covering("matmul", 12)
    assert 12 <= len(part) < len(given) // 4

    def values(cases: Sequence[Case]) -> set[tuple[str, object]]:
        found: set[tuple[str, object]] = set()
        for case in cases:
            found |= {(name, case.attrs[name]) for name in ("transpose_a", "transpose_b", "activation")}
            found |= {(f"{i}", v) for i, spec in enumerate(case.inputs) for v in (spec.dtype, spec.domain)}
        return found

    assert values(part) == values(given)
    monkeypatch.setenv(FULL_ENV, "1")
    assert covering("matmul", 12) == given


def test_values_that_are_not_kept_are_marked() -> None:
    kept, left = thinned((1, 2), lambda value: value == 1)
    assert kept == 1 and [mark.name for mark in left.marks] == ["full"]
    with pytest.raises(AssertionError, match="nothing would be left"):
        thinned((1, 2), lambda value: value == 3)
