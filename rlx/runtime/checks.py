"""Index checks, which a graph has as hidden outputs (`rlx.ir.checks`): when a run reads them, and who gets the error.

An index that follows from integers in the caller's NumPy arrays is computed on the host before the run; if it is out of
range, the run does not begin. Any other index is read with the run's outputs: after a `launch`, when one of its results
is read or waited for. A later launch that uses these results, or the same states, takes over the unread checks."""

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

_FEW_NODES, _FEW_ELEMENTS = 32, 4096  # limits on what the host computes before a run
_MOST_UNREAD = 64  # limit on the unread checks that a launch takes over from earlier ones; above it, they are read
_BEFORE = "the run was not begun"
_AFTER = "the run's results, and the states that it wrote, are void"


class HostCheck:
    """One check of a graph, which the host computes from inputs where it can."""

    def __init__(self, what: str, index: Tensor, limits: Tensor) -> None:
        self.what = what
        self._index, self._limits = index, limits
        self._nodes = _host_nodes(index, limits)
        if limits.shape != (4,) or not limits.dtype.is_int:
            raise GraphError(f"the limits of {what!r} are {limits.type}; expected four integers")

    def _value(self, t: Tensor, feeds: Mapping[str, Given]) -> npt.NDArray[Any] | None:
        """The value of a tensor, computed from inputs given as NumPy arrays; None if the host cannot compute it."""
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
        """The index, computed from inputs given as NumPy arrays; None if the host cannot compute it."""
        return self._value(self._index, feeds)

    def inputs(self) -> set[str]:
        """The inputs from which the host computes the index; empty if it cannot."""
        nodes = self._nodes.get(self._index.id, [])
        return {node.attrs["name"] for node in nodes if node.op.leaf is Leaf.INPUT}

    def limits(self, feeds: Mapping[str, Given]) -> npt.NDArray[Any]:
        result = self._value(self._limits, feeds)
        if result is None:
            raise GraphError(f"the limits of {self.what!r} are no constant")
        return result

    def before(self, feeds: Mapping[str, Given]) -> bool:
        """Whether the host could check the index before the run. Raises: CapacityExceeded if it is out of range."""
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
        """Checks the index of a run that has ended. Raises: CapacityExceeded if it was out of range."""
        verify(self.what, self.port.take(), self.limits(feeds), _AFTER)


def verify(what: str, index: npt.NDArray[Any], limits: npt.NDArray[Any], then: str) -> None:
    """Checks an index against its limits. Raises: CapacityExceeded."""
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
    """The nodes by which the host computes each tensor, in order, by tensor id. Tensors that need more than a few small
    integer ops on inputs and constants are left out."""
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
    """The index of one check of a launch; it stays on the device until it is read."""

    __slots__ = ("index", "limits", "read", "what")

    def __init__(self, check: IndexCheck, index: Array, limits: npt.NDArray[Any]) -> None:
        self.what, self.index, self.limits, self.read = check.what, index, limits, False


class Unread:
    """The unread checks that the results of a launch depend on: its own, and those of earlier launches whose results or
    states it used."""

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
    """The unread checks that the results of a launch that has begun depend on; None if there are none."""
    if not checks and not earlier:
        return None
    return Unread([_Pending(c, c.port.give(device), c.limits(feeds)) for c in checks], earlier)


def earlier_launches(values: Iterable[Given], states: Unread | None) -> list[Unread]:
    """The unread checks of launches whose results or states a run will use; read at once where they are too many."""
    result = [v._unread for v in values if isinstance(v, Array) and v._unread]
    if states:
        result.append(states)
    for u in result:
        if len(u) > _MOST_UNREAD:
            u.read()
    return result
