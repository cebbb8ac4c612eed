"""The checks of indices that a graph has as hidden outputs (`rlx.ir.checks`): when a run reads them, and who is told.

An index that integers of the caller's own arrays give is computed on the host before the run, which does not begin
where it is outside. Any other is read with the run's outputs. After a `launch` that is when one of its results is read,
or waited for; a later run that reads these results, or the same states, passes the question on to its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.driver import DeviceArena
from rlx.errors import CapacityExceeded, GraphError
from rlx.ir import Graph, Leaf, Node, Tensor, bodies
from rlx.ir.checks import NOTHING, checks_of, fault
from rlx.runtime.array import Array, again, stored
from rlx.runtime.custom import FAMILY as CUSTOM
from rlx.runtime.ports import Given, OutputPort

_FEW_NODES, _FEW_ELEMENTS = 32, 4096  # the size of what the host computes before a run
_MOST_UNREAD = 64  # checks of earlier launches that a launch passes on; before more it waits for them
_BEFORE = "the run was not begun"
_AFTER = "the run's results, and the states that it wrote, are void"


class HostCheck:
    """One check of a graph, as far as the host computes it from inputs."""

    def __init__(self, what: str, index: Tensor, limits: Tensor) -> None:
        self.what = what
        self._index, self._limits = index, limits
        self._nodes = _host_nodes(index, limits)
        if limits.shape != (4,) or not limits.dtype.is_int:
            raise GraphError(f"the limits of {what!r} are {limits.type}; expected four integers")

    def _value(self, t: Tensor, feeds: Mapping[str, Given]) -> npt.NDArray[Any] | None:
        """A value that follows from the inputs given as NumPy arrays; None where it does not."""
        nodes = self._nodes.get(t.id)
        if nodes is None:
            return None
        from rlx.ops.interpret import evaluate_node  # imported with the first check, not by `import rlx`

        values: dict[int, Any] = {}
        for node in nodes:
            if node.op.leaf is Leaf.INPUT and not isinstance(feeds.get(node.attrs["name"]), np.ndarray):
                return None
            with np.errstate(all="ignore"):
                results = evaluate_node(node, values, feeds, upcast=False)
            values.update(zip((u.id for u in node.outputs), results, strict=True))
        result: npt.NDArray[Any] = values[t.id]
        return result

    def index(self, feeds: Mapping[str, Given]) -> npt.NDArray[Any] | None:
        """The index that inputs given as NumPy arrays say; None where they do not."""
        return self._value(self._index, feeds)

    def inputs(self) -> set[str]:
        """The inputs from which the host computes the index; none where it does not."""
        nodes = self._nodes.get(self._index.id, [])
        return {node.attrs["name"] for node in nodes if node.op.leaf is Leaf.INPUT}

    def limits(self, feeds: Mapping[str, Given]) -> npt.NDArray[Any]:
        result = self._value(self._limits, feeds)
        if result is None:
            raise GraphError(f"the limits of {self.what!r} are no constant")
        return result

    def before(self, feeds: Mapping[str, Given]) -> bool:
        """Whether the inputs alone say that the index is inside. Raises: CapacityExceeded where it is not."""
        index = self.index(feeds)
        if index is not None:
            verify(self.what, index, self.limits(feeds), _BEFORE)
        return index is not None


class IndexCheck(HostCheck):
    """One check of a program; `port` reads the index after a run."""

    def __init__(self, what: str, index: Tensor, limits: Tensor, port: OutputPort) -> None:
        super().__init__(what, index, limits)
        self.port = port

    def after(self, feeds: Mapping[str, Given]) -> None:
        """Raises: CapacityExceeded where the index of the run that has ended was outside."""
        verify(self.what, self.port.take(), self.limits(feeds), _AFTER)


def verify(what: str, index: npt.NDArray[Any], limits: npt.NDArray[Any], then: str) -> None:
    """Raises: CapacityExceeded for an index outside of its limits."""
    wrong = fault(what, index, limits)
    if wrong is not None:
        advice = "" if limits[2] == NOTHING else ". Give a longer cache, or begin it anew"
        raise CapacityExceeded(f"{wrong}; {then}{advice}")


def checks_in(declared: Graph, planned: Graph, arena: DeviceArena) -> list[IndexCheck]:
    """The checks of a program that is recorded for a graph."""
    ends = checks_of(planned)
    return [
        IndexCheck(what, index, limits, OutputPort(what, index.type, ends[what][0], arena))
        for what, (index, limits) in checks_of(declared).items()
    ]


def _host_nodes(*tensors: Tensor) -> dict[int, list[Node]]:
    """The nodes by which the host computes each tensor, in order; none for one that needs more than little
    arithmetic of integers on inputs."""
    result = {}
    for t in tensors:
        nodes: dict[int, Node] = {}
        stack = [t]
        while stack and len(nodes) <= _FEW_NODES:
            node = stack.pop().node
            if not all(u.dtype.kind in "iub" and u.size <= _FEW_ELEMENTS for u in node.outputs):
                break
            if node.op.leaf not in (None, Leaf.INPUT) and not node.op.is_constant:
                break
            if node.op.family == CUSTOM or bodies(node):
                break
            nodes[node.outputs[0].id] = node
            stack += node.inputs
        else:
            if not stack:
                result[t.id] = [n for n in t.graph.nodes if n.outputs[0].id in nodes]
    return result


class _Pending:
    """The index of a launch, on the device until it is read."""

    __slots__ = ("index", "limits", "read", "what")

    def __init__(self, check: IndexCheck, index: Array, limits: npt.NDArray[Any]) -> None:
        self.what, self.index, self.limits, self.read = check.what, index, limits, False


class Unread:
    """The checks that the results of a launch depend on and that nobody has read: its own, and those of the launches
    before it whose results or states it read."""

    def __init__(self, own: Sequence[_Pending], earlier: Iterable[Unread]) -> None:
        self._pending: list[_Pending] = list(dict.fromkeys(p for u in earlier for p in u._pending if not p.read))
        self._pending += own
        self._error: Exception | None = None

    def __len__(self) -> int:
        return sum(not p.read for p in self._pending)

    def read(self) -> None:
        """Waits for the launches and reads their checks. Raises: CapacityExceeded, at each call."""
        if self._error is not None:
            raise again(self._error)
        for p in self._pending:
            if not p.read:
                try:
                    verify(p.what, p.index.numpy(), p.limits, _AFTER)
                except CapacityExceeded as error:
                    self._error = stored(error)
                    raise again(self._error) from None
                p.read = True
        self._pending = []


def unread(
    checks: Sequence[IndexCheck], feeds: Mapping[str, Given], earlier: Sequence[Unread], device: Any
) -> Unread | None:
    """What the results of a launch that has begun depend on; None where that is nothing."""
    if not checks and not earlier:
        return None
    return Unread([_Pending(c, c.port.give(device), c.limits(feeds)) for c in checks], earlier)


def earlier_launches(values: Iterable[Given], states: Unread | None) -> list[Unread]:
    """The unread checks of launches whose results, or states, a run is to read."""
    result = [v._unread for v in values if isinstance(v, Array) and v._unread]
    if states:
        result.append(states)
    for u in result:
        if len(u) > _MOST_UNREAD:
            u.read()
    return result
