"""Rewriting: a new graph out of an old one, node by node. What passes do not change is not inferred, and a graph in
which nothing changes is not copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rlx.ir.graph import Graph, Node, Tensor
from rlx.ir.op import Attrs, Op, get_op


class Rewriter:
    """Makes a new graph while a pass goes over the nodes of an old one: `keep` a node, or `add` others and `put` their
    tensors in the place of its outputs; a node for which neither is done is dropped. `finish` gives the new graph.

    Until something differs from the old graph there is no new one, and the old tensors stand for themselves; a pass may
    hand over old tensors afterwards too. What is kept keeps its id, so ids name the same tensors in both graphs, and
    what is added has an id of its own. Kept nodes share their attributes, which nobody may change.
    """

    def __init__(self, graph: Graph) -> None:
        self.old = graph
        self.label = ""  # for nodes that are added without one
        self._new: Graph | None = None
        self._kept = 0  # so many of the first nodes are kept, while there is no new graph
        self._made: dict[int, Tensor] = {}

    @property
    def graph(self) -> Graph:
        """The new graph, for leaves to be declared in. It exists from now on."""
        if self._new is None:
            self._new = Graph(self.old.name)
            self._new._next_id = self.old._next_id
            for node in self.old.nodes[: self._kept]:
                self._copy(node, self.inputs(node.inputs))
        return self._new

    def inputs(self, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """What stands for tensors of either graph now."""
        if self._new is None:
            return tuple(tensors)
        made, new = self._made, self._new
        return tuple([t if t.graph is new else made[t.id] for t in tensors])

    def placed(self, t: Tensor) -> bool:
        """Whether something stands for an old tensor in the new graph, which exists from now on."""
        return self.graph is t.graph or t.id in self._made

    def keep(self, node: Node) -> None:
        """Takes an old node over; a leaf keeps its place in the signature."""
        if self._new is None:
            if self._kept < len(self.old.nodes) and self.old.nodes[self._kept] is node:
                self._kept += 1
                return
            self.graph  # noqa: B018 - nodes were left out or change places: it is made here
        inputs = self.inputs(node.inputs)
        if all(a.type is b.type or a.type == b.type for a, b in zip(inputs, node.inputs, strict=True)):
            self._copy(node, inputs)
        else:
            self.put(node.outputs, self.graph._append(node.op, inputs, node.attrs, node.label))

    def add(
        self, op: Op | str, inputs: Iterable[Tensor], attrs: Attrs | None = None, label: str = ""
    ) -> tuple[Tensor, ...]:
        """Appends a node to the new graph and returns its outputs, whose types the op infers."""
        record = get_op(op) if isinstance(op, str) else op
        new = self.graph
        return new._append(record, self.inputs(inputs), attrs or {}, label or ("" if record.leaf else self.label))

    def put(self, old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
        """Says which tensors stand for old ones from now on."""
        self.graph  # noqa: B018 - made where it is not yet: there is a difference
        self._made.update(zip((t.id for t in old), self.inputs(new), strict=True))

    def finish(self) -> Graph:
        """The new graph with the old one's results; the old one where nothing differs."""
        if self._new is None and self._kept == len(self.old.nodes):
            return self.old
        new, made = self.graph, self._made
        new.outputs = {name: made[t.id] for name, t in self.old.outputs.items()}
        new.updates = {name: made[t.id] for name, t in self.old.updates.items()}
        return new

    def _copy(self, node: Node, inputs: tuple[Tensor, ...]) -> None:
        """The node on inputs of the types it has."""
        new = self._new
        assert new is not None
        copy = Node(node.op, inputs, node.attrs, node.label)
        copy.outputs = tuple([Tensor(new, t.id, t.type, copy, t.index) for t in node.outputs])
        new.nodes.append(copy)
        for t in copy.outputs:
            self._made[t.id] = t
        if node.op.declared:
            new.declared(node.op.leaf)[node.attrs["name"]] = copy.outputs[0]


Rewrite = Callable[[Rewriter, Node, tuple[Tensor, ...]], "Sequence[Tensor] | None"]


def rebuild(graph: Graph, rewrite: Rewrite, keep: set[int] | None = None) -> Graph:
    """The graph with every node rewritten: the base of most passes.

    `rewrite(new, old_node, inputs)` returns the tensors that replace the node's outputs, or None to keep it; nodes that
    it adds without a label take the old node's. `keep`, if given, holds the ids of the tensors whose nodes stay;
    inputs, params and states always stay.
    """
    new = Rewriter(graph)
    for node in graph.nodes:
        if keep is not None and not node.op.declared and not any(t.id in keep for t in node.outputs):
            continue
        new.label = node.label
        made = rewrite(new, node, new.inputs(node.inputs))
        if made is None:
            new.keep(node)
        else:
            new.put(node.outputs, made)
    return new.finish()


def copied(graph: Graph) -> Graph:
    """The same graph once more, for one of the two to be changed."""
    new = Rewriter(graph)
    new.graph  # noqa: B018 - though nothing differs
    for node in graph.nodes:
        new.keep(node)
    return new.finish()


def inline(
    body: Graph, into: Graph | Rewriter, given: Iterable[Tensor], label: str = ""
) -> tuple[Tensor, ...]:
    """Adds a graph's nodes to another, `given` in place of its inputs and then its params; gives its outputs. The nodes
    take `label`, or keep their own."""
    leaves = (*body.inputs.values(), *body.params.values())
    made = {leaf.id: t for leaf, t in zip(leaves, given, strict=True)}
    for node in body.nodes:
        if not node.op.declared:
            outs = into.add(node.op, [made[t.id] for t in node.inputs], node.attrs, label or node.label)
            made.update(zip((t.id for t in node.outputs), outs, strict=True))
    return tuple(made[t.id] for t in body.outputs.values())
