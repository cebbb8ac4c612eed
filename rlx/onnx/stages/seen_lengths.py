"""SeenLengths: which lengths of the inputs of a model behind a cut vary, as far as its runs have shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.onnx.buckets import Axes
from rlx.runtime.dims import Dim

LONGEST = 1 << 30  # the length of an axis; a longer one would not fit a program anyway


class SeenLengths:
    """The axes whose lengths differed between runs. Axes that had equal lengths in every run share a dimension, until a
    run in which they differ. So the dimensions change at most as often as there are axes."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], int] = {}
        self._group: dict[tuple[str, int], tuple[int, ...]] = {}  # equal where all lengths have been
        self._varied: set[tuple[str, int]] = set()

    def add(self, arrays: Mapping[str, Any]) -> bool:
        """Takes the shapes of one more run; returns whether that changed which axes vary or which are equal."""
        dims = {(n, k): length for n, a in arrays.items() for k, length in enumerate(a.shape)}
        if dims.keys() != self._last.keys():  # the first run, or one of other ranks
            changed = bool(self._varied)
            self._last, self._varied = dims, set()
            self._group = {place: (length,) for place, length in dims.items()}
            return changed
        moved = {p for p in dims if dims[p] != self._last[p]} - self._varied
        parts: dict[tuple[int, ...], set[int]] = {}
        for place, group in self._group.items():
            parts.setdefault(group, set()).add(dims[place])
        split = {group for group, lengths in parts.items() if len(lengths) > 1}
        self._group = {p: (*g, dims[p]) if g in split else g for p, g in self._group.items()}
        self._last, self._varied = dims, self._varied | moved
        return bool(moved) or any(self._group[p][:-1] in split for p in self._varied)

    def dims(self) -> tuple[Axes, dict[str, Dim]]:
        """The dimensions of each input, by number or by the name of one that varies, and the latter."""
        names: dict[tuple[int, ...], str] = {}
        for place in sorted(self._varied):
            names.setdefault(self._group[place], f"n{len(names)}")
        axes: dict[str, tuple[Any, ...]] = {}
        for (name, axis), length in self._last.items():
            place = (name, axis)
            named = names[self._group[place]] if place in self._varied else length
            axes[name] = (*axes.get(name, ()), named)
        return axes, {n: Dim(n, max=LONGEST) for n in names.values()}
