"""legalize: each node that the device has no kernel for is decomposed into ops with kernels, or left to the host."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from rlx.errors import UnsupportedOp
from rlx.ir import Graph, Node, Rewriter, bodies, inline
from rlx.passes.rewriting import SupportOf, parts_of
from rlx.records import Record, field

_DEPTH = 8  # limit on nested decompositions; more means that two ops are written with each other


class PassReport(Record, frozen=False):
    """How nodes will run, by label: `native` as they are, `decomposed` (labels of nodes split up), `host` on the CPU.

    `nodes` counts the graph's nodes after each pass, in order.
    """

    native: list[str] = field(default_factory=list)
    decomposed: list[str] = field(default_factory=list)
    host: list[str] = field(default_factory=list)
    nodes: list[tuple[str, int]] = field(default_factory=list)
    tensors: set[int] = field(default_factory=set)  # the first outputs of the native nodes, which keep their ids

    def add(self, inner: PassReport, name: str) -> None:
        """Adds the report of a body, its labels prefixed with `name`."""
        for mine, theirs in ((self.native, inner.native), (self.decomposed, inner.decomposed), (self.host, inner.host)):
            mine += [f"{name}/{label}" for label in theirs]


def legalize(
    graph: Graph, support: SupportOf, fallback: Literal["host", "error"] = "host"
) -> tuple[Graph, PassReport]:
    """Decomposes nodes that the device does not run into nodes that all run there; the others become host steps.

    Raises: UnsupportedOp listing every host node when `fallback` is "error".
    """
    report = PassReport()
    new = Rewriter(graph)
    refused: list[str] = []
    labels = Counter(node.label for node in graph.nodes)
    for node in graph.nodes:
        if node.op.leaf:
            new.keep(node)
            continue
        label = node.name
        if support(node) == "native":
            report.native.append(label)
            report.tensors.add(node.outputs[0].id)
            new.keep(node)
            continue
        body = decomposition(node, support)
        if body is None:
            report.host.append(label)
            refused.append(f"{label}: {node.op.name}({', '.join(str(t.type) for t in node.inputs)})")
            new.keep(node)
            continue
        if labels[label] > 1:  # other nodes of that label may run natively, so the report numbers them
            label = f"{label}: {node.op.name}"
        report.decomposed.append(label)
        new.put(node.outputs, inline(body, new, node.inputs, label))
    if refused and fallback == "error":
        raise UnsupportedOp(
            f"graph {graph.name!r}: the device has no kernel for {len(refused)} nodes: {'; '.join(refused)}. "
            'Use fallback="host" to run them with NumPy'
        )
    return new.finish(), report


def decomposition(node: Node, support: SupportOf, depth: int = 0) -> Graph | None:
    """A graph with inputs x0, x1, … that computes the node with native nodes only; None if no decomposition does."""
    body = parts_of(node) if depth <= _DEPTH else None
    if body is None:
        return None
    new = Rewriter(body)
    for piece in body.nodes:
        if piece.op.leaf or _runs(piece, support, depth):
            new.keep(piece)
            continue
        inner = decomposition(piece, support, depth + 1)
        if inner is None:
            return None
        new.put(piece.outputs, inline(inner, new, piece.inputs))
    return new.finish()


def _runs(node: Node, support: SupportOf, depth: int) -> bool:
    """Whether the device runs the node with all that its bodies hold: a host step in each step of a loop would take
    longer than the whole node as one host step."""
    inside = (n for body in bodies(node).values() for n in body.nodes if not n.op.leaf)
    return support(node) == "native" and all(
        _runs(n, support, depth) or decomposition(n, support, depth + 1) is not None for n in inside
    )
