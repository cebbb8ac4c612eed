"""Columns of text. Lines are as long as their content needs, on a terminal and in a pipe alike: nothing is cut."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


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


class Rows:
    """A table whose rows are printed as they come, so that they remain if the command is stopped.

    `widths`: the widths of columns whose cells are not known yet; a longer cell moves the rest of its line. Cells are
    two spaces apart."""

    def __init__(self, titles: Sequence[str], right: Collection[str], widths: Mapping[str, int]) -> None:
        self._titles = titles
        self._formats = [f"{'>' if t in right else '<'}{max(len(t), widths.get(t, 0))}" for t in titles]
        self._started = False

    def add(self, cells: Sequence[str]) -> None:
        """Prints a row, and before the first of them the titles."""
        for line in (cells,) if self._started else (self._titles, cells):
            made = [f"{cell:{form}}" for cell, form in zip(line, self._formats, strict=True)]
            print("  ".join(made).rstrip(), flush=True)
        self._started = True
