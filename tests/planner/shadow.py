"""An independent judge of memory plans: it runs a graph on shadow memory whose bytes record which tensor wrote them.

It shares no code with the planner and knows no live_ranges. Every byte of every segment carries a tag, the element of
the tensor that was written there last. Before a node reads an input, the input's bytes must still carry its tags;
after the last node the results' bytes must too. At a node that may end the run every state must still be the old one.
An op that moves elements unchanged (MOVES) passes their tags on.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlx.driver import MemoryPlan, Slot
from rlx.dtypes import bool_, i8, u8
from rlx.ir import Graph, Node, Tensor
from tests.planner.toys import MOVES

Tags = npt.NDArray[np.int64]


def faults(graph: Graph, plan: MemoryPlan, *, failsafe: bool = True) -> list[str]:
    """The faults of the plan, one a line; empty when there are none."""
    return Shadow(graph, plan, failsafe).run()


class Shadow:
    def __init__(self, graph: Graph, plan: MemoryPlan, failsafe: bool) -> None:
        self.graph, self.plan, self.failsafe = graph, plan, failsafe
        self.found: list[str] = []
        self.memory: dict[str, Tags] = {name: np.empty(0, np.int64) for name in plan.segments}
        self.tags: dict[int, Tags] = {}  # tensor id -> one tag for each element
        for t in graph.tensors():
            slot = plan.slots[t.id]
            size = plan.segments.get(slot.segment)
            if size is None:  # a store's segment: as large as its slots
                size = max(slot.end, len(self.memory.setdefault(slot.segment, np.empty(0, np.int64))))
            elif slot.end > size:
                self.found.append(f"%{t.id} ends at {slot.end} past segment {slot.segment} of {size}")
                size = slot.end
            if len(self.memory[slot.segment]) < size:
                self.memory[slot.segment] = np.full(size, -1, np.int64)
            if slot.nbytes != t.type.nbytes or slot.dtype != t.dtype:
                self.found.append(f"%{t.id} is {t.type} but has slot {slot}")

    def run(self) -> list[str]:
        for node in self.graph.nodes:
            if node.op.leaf:
                self._make(node)
        for t in (*self.graph.inputs.values(), *self.graph.params.values(), *self.graph.states.values()):
            self._write(t)
        for node in self.graph.nodes:
            if node.op.name == "constant":
                self._write(node.outputs[0])
        for node in self.graph.nodes:
            if not node.op.leaf:
                for x in node.inputs:
                    self._read(x, f"{node} reads")
                self._make(node)
                self._check_overlaps(node)
                for t in node.outputs:
                    self._write(t)
                for t in node.outputs:
                    self._read(t, f"{node} wrote")
                if node.op.fallible and not node.attrs.get("spoils") and self.failsafe:
                    for t in self.graph.states.values():
                        self._read(t, f"{node} fails and leaves")
        self._finish()
        return self.found

    def _finish(self) -> None:
        """Copies new values that do not lie in their state's slot into the states; then reads the outputs."""
        for name, t in self.graph.updates.items():
            new, state = (self.plan.slots[x.id] for x in (t, self.graph.states[name]))
            if (new.segment, new.offset) != (state.segment, state.offset):
                self._bytes(state)[:] = self._bytes(new)
        for name, t in self.graph.updates.items():
            self._check(self.graph.states[name], self._as_bytes(t), f"update {name!r} leaves")
        for name, t in self.graph.outputs.items():
            self._read(t, f"output {name!r} reads")
        for t in (*self.graph.inputs.values(), *self.graph.params.values()):
            self._read(t, "the next run reads leaf")
        for name, t in self.graph.states.items():
            if name not in self.graph.updates:
                self._read(t, "the next run reads state")

    def _make(self, node: Node) -> None:
        for t in node.outputs:
            moved = node.op.name in MOVES or (node.op.name == "cast" and _keeps_bits(node))
            if moved:
                source = self.tags[node.inputs[0].id]
                rule = (lambda x: x) if node.op.name == "cast" else node.op.reference
                attrs = {} if node.op.name == "cast" else node.attrs
                self.tags[t.id] = np.array(rule(source, **attrs), order="C")
            else:
                self.tags[t.id] = (t.id << 32) + np.arange(t.size, dtype=np.int64).reshape(t.shape)

    def _bytes(self, slot: Slot) -> Tags:
        return self.memory[slot.segment][slot.offset : slot.end]

    def _as_bytes(self, t: Tensor) -> Tags:
        size = t.dtype.itemsize
        return (self.tags[t.id].reshape(-1, 1) * size + np.arange(size)).reshape(-1)

    def _write(self, t: Tensor) -> None:
        self._bytes(self.plan.slots[t.id])[:] = self._as_bytes(t)

    def _read(self, t: Tensor, what: str) -> None:
        self._check(t, self._as_bytes(t), what)

    def _check(self, t: Tensor, tags: Tags, what: str) -> None:
        if not np.array_equal(self._bytes(self.plan.slots[t.id]), tags):
            self.found.append(f"{what} %{t.id}: its bytes were overwritten")

    def _check_overlaps(self, node: Node) -> None:
        slots = self.plan.slots
        for t in node.outputs:
            if t.type.nbytes and np.array_equal(self._bytes(slots[t.id]), self._as_bytes(t)):
                continue  # an alias: its bytes are written already
            for k, x in enumerate(node.inputs):
                if _overlap(slots[x.id], slots[t.id]) and not self._in_place(node, t, k):
                    self.found.append(f"{node}: output {t.index} overlaps input {k} and may not")
            for other in node.outputs[: t.index]:
                if _overlap(slots[other.id], slots[t.id]):
                    self.found.append(f"{node}: outputs {other.index} and {t.index} overlap")

    def _in_place(self, node: Node, t: Tensor, k: int) -> bool:
        x, slots = node.inputs[k], self.plan.slots
        same = (
            slots[x.id].offset == slots[t.id].offset
            and x.size == t.size
            and x.dtype.itemsize == t.dtype.itemsize
        )
        renewed = node.op.renews(node.attrs) if node.op.renews else ()
        if same and renewed:
            return (k, t.index) in renewed and sum(y is x for y in node.inputs) == 1
        listed = any(j in node.op.inplace for j, y in enumerate(node.inputs) if y is x)
        if not same or not listed:
            return False
        for j, y in enumerate(node.inputs):
            if j != k and _overlap(slots[y.id], slots[t.id]) and not (y is x and _pointwise(node)):
                return False
        return len(node.outputs) == 1 or _pointwise(node)


def _pointwise(node: Node) -> bool:
    return node.op.expr is not None or node.op.name == "fused"


def _keeps_bits(node: Node) -> bool:
    a, b = node.inputs[0].dtype, node.outputs[0].dtype
    return a == b or (a in (u8, i8) and b in (u8, i8)) or (a == bool_ and b in (u8, i8))


def _overlap(a: Slot, b: Slot) -> bool:
    return a.segment == b.segment and max(a.offset, b.offset) < min(a.end, b.end)
