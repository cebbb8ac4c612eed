"""Columns of text. Lines are as long as their content needs, on a terminal and in a pipe alike: nothing is cut."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def format_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()
) -> list[str]:
    """A line of titles and one for each row, columns two spaces apart; those named in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    sides = [">" if title in right else "<" for title in titles]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in (titles, *rows)
    ]
