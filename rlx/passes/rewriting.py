"""What the passes share: who uses a tensor, dead-code removal, copying nodes from graph to graph, trial nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from rlx.ir import Attrs, Graph, Leaf, Node, Op, Tensor, TensorType, rebuild

Support = Literal["native", "host"]  # what a device says of a node (rlx.driver.Device.support)
SupportOf = Callable[[Node], Support]


def native_everywhere(node: Node) -> Support:
    """The support rule of a device that runs every op."""
    return "native"


def use_counts(graph: Graph) -> dict[int, int]:
    """How often each tensor is read, by nodes and as a result."""
    counts = {t.id: 0 for t in graph.tensors()}
    for node in graph.nodes:
        for t in node.inputs:
            counts[t.id] += 1
    for t in graph.results():
        counts[t.id] += 1
    return counts


def remove_dead(graph: Graph) -> Graph:
    """The graph without nodes that no result needs. Inputs, params and states stay: they are the signature."""
    needed = {t.id for t in graph.results()}
    for node in reversed(graph.nodes):
        if any(t.id in needed for t in node.outputs):
            needed.update(t.id for t in node.inputs)
    return rebuild(graph, keep=needed)[0]


class Maker:
    """Builds a new graph out of an old one in any order of the old nodes: the mapping so far is open to the pass."""

    def __init__(self, graph: Graph) -> None:
        self.old = graph
        self.new = Graph(graph.name)
        self.made: dict[int, Tensor] = {}

    def inputs(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The new tensors that stand for old ones."""
        return tuple(self.made[t.id] for t in tensors)

    def put(self, old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
        """Says which new tensors stand for old ones from now on."""
        for a, b in zip(old, new, strict=True):
            self.made[a.id] = b

    def copy(self, node: Node) -> None:
        """Copies a node; a leaf keeps its place in the signature."""
        made = self.new.add(node.op, self.inputs(node.inputs), node.attrs, node.label)
        if node.op.declared:
            self.new.declared(node.op.leaf)[node.attrs["name"]] = made[0]
        self.put(node.outputs, made)

    def finish(self) -> Graph:
        """The new graph, with the old one's results."""
        self.new.outputs = {name: self.made[t.id] for name, t in self.old.outputs.items()}
        self.new.updates = {name: self.made[t.id] for name, t in self.old.updates.items()}
        return self.new


def trial(op: Op | str, types: Sequence[TensorType], attrs: Attrs) -> Node:
    """The node that an op of such inputs would be, in a graph of its own: to ask a device whether it runs it."""
    graph = Graph("trial")
    inputs = [graph.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)]
    return graph.add(op, inputs, attrs)[0].node


def inline(graph: Graph, body: Graph, inputs: Mapping[str, Tensor], label: str) -> tuple[Tensor, ...]:
    """Copies the nodes of `body` into `graph`, its inputs replaced by name; gives its outputs in order."""
    made: dict[int, Tensor] = {t.id: inputs[name] for name, t in body.inputs.items()}
    for node in body.nodes:
        if node.op.leaf is not Leaf.INPUT:
            outs = graph.add(node.op, [made[t.id] for t in node.inputs], node.attrs, label)
            made.update(zip((t.id for t in node.outputs), outs, strict=True))
    return tuple(made[t.id] for t in body.outputs.values())
