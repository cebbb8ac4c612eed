"""Rewriting: a new graph out of an old one, node by node.

Types are not inferred again for nodes that a pass leaves as they are, and a graph in which nothing changes is not
copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rlx.ir.graph import Graph, Node, Tensor
from rlx.ir.op import Attrs, Op, get_op


class Rewriter:
    """Makes a new graph while a pass goes over the nodes of an old one.

    The pass calls `keep` for a node, or `add` for others and `put` to set their tensors in the place of its outputs;
    a node for which it calls neither is dropped. `finish` returns the new graph.

    Until something differs from the old graph there is no new one, and the old tensors stand for themselves; a pass
    may use old tensors afterwards too. A kept node keeps its ids, so that these name the same tensors in both graphs;
    an added node has new ids. Kept nodes share their attributes with the old graph, so nobody may change them.
    """

    def __init__(self, graph: Graph) -> None:
        self.old = graph
        self.label = ""  # given to nodes that are added without a label
        self._new: Graph | None = None
        self._kept = 0  # the count of leading nodes that are kept, while there is no new graph
        self._made: dict[int, Tensor] = {}

    @property
    def graph(self) -> Graph:
        """The new graph, for leaves to be declared in. Reading this makes it."""
        if self._new is None:
            self._new = Graph(self.old.name)
            self._new._next_id, self._new.budget = self.old._next_id, self.old.budget
            for node in self.old.nodes[: self._kept]:
                self._copy(node, self.inputs(node.inputs))
        return self._new

    def inputs(self, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """The tensors that now stand for these, which may be of either graph."""
        if self._new is None:
            return tuple(tensors)
        moved, new = self._made, self._new
        return tuple([t if t.graph is new else moved[t.id] for t in tensors])

    def placed(self, t: Tensor) -> bool:
        """Whether a tensor of the new graph stands for an old one. Reading this makes the new graph."""
        return self.graph is t.graph or t.id in self._made

    def keep(self, node: Node, inputs: tuple[Tensor, ...] | None = None) -> None:
        """Takes over an old node; a leaf keeps its place in the signature. `inputs`: the node's new inputs, if the
        caller has already asked the method `inputs` for them."""
        if self._new is None:
            if self._kept < len(self.old.nodes) and self.old.nodes[self._kept] is node:
                self._kept += 1
                return
            self.graph  # noqa: B018 - nodes were left out or change places, so the new graph must exist
            inputs = None  # they were the old graph's
        if inputs is None:
            inputs = self.inputs(node.inputs)
        for a, b in zip(inputs, node.inputs, strict=True):
            if a.type is not b.type and a.type != b.type:
                self.put(node.outputs, self.graph._append(node.op, inputs, node.attrs, node.label))
                return
        self._copy(node, inputs)

    def add(
        self, op: Op | str, inputs: Iterable[Tensor], attrs: Attrs | None = None, label: str = ""
    ) -> tuple[Tensor, ...]:
        """Appends a node to the new graph and returns its outputs, whose types the op infers."""
        record = get_op(op) if isinstance(op, str) else op
        new = self.graph
        return new._append(record, self.inputs(inputs), attrs or {}, label or ("" if record.leaf else self.label))

    def put(self, old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
        """Says which tensors stand for old ones from now on."""
        self.graph  # noqa: B018 - makes the new graph: from here on it differs
        self._made.update(zip((t.id for t in old), self.inputs(new), strict=True))

    def finish(self) -> Graph:
        """The new graph with the old one's results; the old one if nothing differs."""
        if self._new is None and self._kept == len(self.old.nodes):
            return self.old
        new, moved = self.graph, self._made
        new.outputs = {name: moved[t.id] for name, t in self.old.outputs.items()}
        new.updates = {name: moved[t.id] for name, t in self.old.updates.items()}
        return new

    def _copy(self, node: Node, inputs: tuple[Tensor, ...]) -> None:
        """Copies a node whose new inputs have the types of the old ones."""
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

    `rewrite(new, old_node, inputs)` returns the tensors that replace the node's outputs, or None to keep it; nodes
    that it adds without a label take the old node's. `keep`, if given, holds the ids of the tensors whose nodes stay;
    inputs, params and states always stay.
    """
    new = Rewriter(graph)
    for node in graph.nodes:
        if keep is not None and not node.op.declared and not any(t.id in keep for t in node.outputs):
            continue
        new.label, before = node.label, new._new
        inputs = new.inputs(node.inputs)
        results = rewrite(new, node, inputs)
        if results is None:
            new.keep(node, inputs if new._new is before else None)
        else:
            new.put(node.outputs, results)
    return new.finish()


def copied(graph: Graph) -> Graph:
    """A copy of the graph, so that one of the two can be changed."""
    new = Rewriter(graph)
    new.graph  # noqa: B018 - makes the new graph, though nothing differs
    for node in graph.nodes:
        new.keep(node)
    return new.finish()


def inline(
    body: Graph, into: Graph | Rewriter, feeds: Iterable[Tensor], label: str = ""
) -> tuple[Tensor, ...]:
    """Adds a graph's nodes to another, with `feeds` in place of its inputs and then its params; returns its outputs.
    The nodes take `label`, or keep their own."""
    leaves = (*body.inputs.values(), *body.params.values())
    tensors_of = {leaf.id: t for leaf, t in zip(leaves, feeds, strict=True)}
    for node in body.nodes:
        if not node.op.declared:
            outs = into.add(node.op, [tensors_of[t.id] for t in node.inputs], node.attrs, label or node.label)
            tensors_of.update(zip((t.id for t in node.outputs), outs, strict=True))
    return tuple(tensors_of[t.id] for t in body.outputs.values())
