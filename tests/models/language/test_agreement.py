"""What counts as texts that part, in the command that compares devices."""

from __future__ import annotations

import pytest

from tests.models.language import agreement


def test_texts_that_part_are_counted_with_the_difference_there(capsys: pytest.CaptureFixture[str]) -> None:
    row, asked = agreement.Row("tiny", "cpu", 3, 3), []

    def gap(index: int, ids: list[int], one: int, other: int) -> float:
        asked.append((index, ids, one, other))
        return 0.25 * index

    texts = [[5, 6, 7], [5, 6, 7], [5, 6, 7]]
    agreement.compared(row, "batch", [[1], [2], [3, 4]], [[5, 6, 7], [5, 8, 7], [9, 9, 9]], texts, gap)
    assert asked == [(1, [2, 5], 8, 6), (2, [3, 4], 9, 5)]
    assert row.parted == {"batch": 2} and row.largest == 0.5 > agreement.LIMIT
    assert "tiny on cpu, batch: text 2 parts at token 0: 5.00e-01" in capsys.readouterr().out
