"""Times: how long each step of an executable's last run took, and what it moved and computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from rlx.errors import ArenaError, UnsupportedOp
from rlx.ir import Graph

Track = Literal["device", "host", "launch"]


class StepTime(NamedTuple):
    """A step of a run, by its name: kernel or op, and the node that it computes.

    `us`: how long it took; `start`: when it began, in µs from the beginning of the run. `nbytes`: the bytes that it
    reads and writes, each counted once. `operations`: the multiplications and additions of its node's products; other
    arithmetic is not counted. `track`: "device"; "host" for what the processor does within a GPU's program; "launch"
    for the processor's time until the device has the next steps, during which the device may be at work."""

    name: str
    us: float
    start: float
    nbytes: int = 0
    operations: int = 0
    track: Track = "device"


class Times:
    """An executable's record of times; `wanted` says whether its runs are measured."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self._last: list[StepTime] | None = None

    def measure(self, run: Callable[[], Iterable[StepTime]]) -> None:
        """Calls `run`, which returns the times of its steps, and keeps them; a run that fails leaves no times."""
        self._last = None
        self._last = list(run())

    def last(self, launches: bool = False) -> list[StepTime]:
        """The times of the last run, without those of launching unless asked for. Raises: UnsupportedOp if none is
        measured, ArenaError before the first."""
        if not self.wanted:
            raise UnsupportedOp("this program's runs are not timed; compile it in Session(..., timings=True)")
        if self._last is None:
            raise ArenaError("no timings of a program that has not run; run it first")
        return [step for step in self._last if launches or step.track != "launch"]


def operations(graph: Graph) -> dict[str, int]:
    """The multiplications and additions of products, by the name of the node."""
    from rlx.ops.control.steps import cost_of  # few programs are timed

    found = {node.name: 2 * cost_of(node).multiplications for node in graph.nodes if not node.op.leaf}
    return {name: n for name, n in found.items() if n}


def credited(steps: Iterable[tuple[str, StepTime]], work: Mapping[str, int]) -> list[StepTime]:
    """The steps, given with their nodes' names. The operations of a node are credited to its longest step."""
    pairs = list(steps)
    longest: dict[str, int] = {}
    for i, (node, step) in enumerate(pairs):
        if node in work and (node not in longest or step.us > pairs[longest[node]][1].us):
            longest[node] = i
    return [
        step._replace(operations=work[node]) if longest.get(node) == i else step
        for i, (node, step) in enumerate(pairs)
    ]
