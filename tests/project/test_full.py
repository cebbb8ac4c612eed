"""What `make test` keeps of the parameters of a test, and that a full run keeps all."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.full import FULL_ENV, count, some, spread, thinned

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
    assert spread(GRID, 8) == spread([dict(reversed(one.items())) for one in GRID], 8)


def test_only_a_full_run_takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FULL_ENV, raising=False)
    assert some(range(10), 4) == [0, 3, 6, 9] and some(range(3), 4) == [0, 1, 2] and some((), 4) == []
    assert count(2, 9) == 2
    monkeypatch.setenv(FULL_ENV, "1")
    assert some(range(10), 4) == list(range(10)) and count(2, 9) == 9


def test_values_that_are_not_kept_are_marked() -> None:
    kept, left = thinned((1, 2), lambda value: value == 1)
    assert kept == 1 and [mark.name for mark in left.marks] == ["full"]
    with pytest.raises(AssertionError, match="nothing would be left"):
        thinned((1, 2), lambda value: value == 3)
