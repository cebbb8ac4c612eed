"""Checks of a run's indices: hidden outputs of a graph, which a run compares with their limits and does not return.

If a node writes rows into a cache from an index on that is known only at run time, rows that do not fit must not be
dropped silently. The index becomes an output of the graph under a name that only this module gives; its limits become
another output, a constant. So passes, planners and files treat them as any output, and no backend has a kernel for
them; the runtime (`rlx.runtime.checks`) reads the index, on the host before the run where it follows from inputs
alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import ShapeError
from rlx.ir.body import TracedBody
from rlx.ir.graph import HIDDEN, Graph, Tensor

_INDEX, _LIMITS = f"{HIDDEN}the index of ", f"{HIDDEN}the limits of "
NOTHING = -1  # takes the place of the number of rows in a check of an input's range
_LAST = np.iinfo(np.int32).max


def visible(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs that a run returns."""
    return {name: t for name, t in outputs.items() if not name.startswith(HIDDEN)}


def checks_of(graph: Graph) -> dict[str, tuple[Tensor, Tensor]]:
    """The index and the limits of each check, by what is checked."""
    outputs = graph.outputs
    names = [n.removeprefix(_LIMITS) for n in outputs if n.startswith(_LIMITS)]
    return {what: (outputs[_INDEX + what], outputs[_LIMITS + what]) for what in names if _INDEX + what in outputs}


def is_index(name: str) -> bool:
    """Whether an output is the index of a check."""
    return name.startswith(_INDEX)


def limits_of(count: int, length: int | None, least: int = 0) -> npt.NDArray[np.int32]:
    """(least index, greatest index, count, length): the indices at which `count` rows fit into a cache of `length`
    rows. A length of None is that of a ring, which has a row for every index from 0 on."""
    most = _LAST if length is None else length - count
    return np.array([least, most, count, 0 if length is None else min(length, _LAST)], np.int32)


def between(least: int, most: int) -> npt.NDArray[np.int32]:
    """The limits of an input's values, in the form of `limits_of` but for values that index no cache."""
    return np.array([least, most, NOTHING, 0], np.int32)


def fault(what: str, index: npt.NDArray[Any], limits: npt.NDArray[Any]) -> str | None:
    """What is wrong with the first index outside of the limits; None where all are inside."""
    least, most, count, length = (int(n) for n in limits)
    outside = (index < least) | (index > most)
    if not outside.any():
        return None
    place = np.unravel_index(int(np.argmax(outside)), outside.shape)
    row = int(place[-1]) if place else 0
    expected = f"{least} to {most}" if most != least else str(least)
    at = int(index[place])
    if count == NOTHING:
        return f"{what}: row {row} has {at}; expected {expected}"
    into, expected = (f"a cache of length {length}", expected) if length else ("a ring", f"at least {least}")
    many = "1 position" if count == 1 else f"{count} positions from there on"
    return f"{what}: row {row} has index {at} and writes {many} into {into}; expected an index of {expected}"


def check_writes(what: str, index: Tensor, count: int, length: int | None, least: int = 0) -> None:
    """Makes runs fail with CapacityExceeded if, for any sequence's `index`, `count` rows from there on do not fit into
    a cache of `length` rows. Raises: ShapeError for such a constant index."""
    check_limits(what, index, limits_of(count, length, least))


def check_limits(what: str, index: Tensor, limits: npt.NDArray[np.int32]) -> None:
    """As `check_writes`, with the limits that `limits_of` and `between` give."""
    graph = index.graph.open_graph(what)
    index = graph.reach(index, what)
    if index.node.op.is_constant:
        wrong = fault(what, index.node.attrs["value"], limits)
        if wrong is not None:
            raise ShapeError(wrong)
        return
    add_check(graph, what, index, limits)


def add_check(graph: Graph, what: str, index: Tensor, limits: npt.NDArray[Any]) -> None:
    """Adds a check to a graph or to a body that is traced, unless it has the same one already."""
    if isinstance(graph, TracedBody):
        if not any(t is index and np.array_equal(l, limits) for _, t, l in graph.checks):
            graph.checks.append((what, index, limits))
        return
    taken = checks_of(graph)
    if any(t is index and np.array_equal(l.node.attrs["value"], limits) for t, l in taken.values()):
        return
    name, k = what, 1
    while name in taken:
        name, k = f"{what} ({(k := k + 1)})", k
    graph.outputs[_INDEX + name], graph.outputs[_LIMITS + name] = index, graph.constant(limits)
    graph._changes += 1
