"""The table of writers: op → function that writes its ONNX nodes; and the ops written with others first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlx.errors import UnsupportedOp
from rlx.formats.onnx.save_draft import Draft, Value
from rlx.ir import Graph, Node, Tensor
from rlx.ir.op import Decompose
from rlx.passes.rewriting import Maker, inline

# Writes a node from the values of its inputs; gives those of its outputs, in the outputs' dtypes.
Writer = Callable[[Draft, Node, "list[Value]"], "Value | Sequence[Value]"]

WRITERS: dict[str, tuple[Writer, Callable[[Node], bool]]] = {}
COMPOSITIONS: dict[str, Decompose] = {}  # beside the ops' own `decompose`, and before it


def writes(*ops: str, when: Callable[[Node], bool] = lambda node: True) -> Callable[[Writer], Writer]:
    """Registers the writer of these ops, for the nodes that `when` takes; the others are composed."""

    def register(writer: Writer) -> Writer:
        for op in ops:
            WRITERS[op] = (writer, when)
        return writer

    return register


def composes(op: str) -> Callable[[Decompose], Decompose]:
    """Registers how an op is written with other ops."""

    def register(made: Decompose) -> Decompose:
        COMPOSITIONS[op] = made
        return made

    return register


def writer_of(node: Node) -> Writer | None:
    """What writes the node as it is; None where it is composed, or cannot be written."""
    writer, when = WRITERS.get(node.op.name, (None, None))
    if writer is not None and when is not None and when(node):
        return writer
    return WRITERS["elementwise"][0] if node.op.elementwise else None


def writable(node: Node) -> bool:
    """Whether the node has a writer, or nothing to compute: all others are composed."""
    return writer_of(node) is not None or all(t.size == 0 for t in node.outputs)


def composed(graph: Graph) -> Graph:
    """The graph with every node that has no writer written with nodes that have one.

    Raises: UnsupportedOp naming all that cannot be.
    """
    bodies = {id(n): _body(n) for n in graph.nodes if not n.op.leaf and not writable(n)}
    refused = [n for n in graph.nodes if id(n) in bodies and bodies[id(n)] is None]
    if refused:
        listed = "; ".join(
            f"{n.name}: {n.op.name}({', '.join(str(t.type) for t in n.inputs)})" for n in refused
        )
        raise UnsupportedOp(f"graph {graph.name!r}: {len(refused)} nodes cannot be written in ONNX: {listed}")
    return _put_in(graph, bodies)


def _put_in(graph: Graph, bodies: Mapping[int, Graph | None]) -> Graph:
    maker = Maker(graph)
    for node in graph.nodes:
        body = bodies.get(id(node))
        if body is None:
            maker.copy(node)
            continue
        given = {f"x{i}": t for i, t in enumerate(maker.inputs(node.inputs))}
        maker.put(node.outputs, inline(maker.new, body, given, node.name))
    return maker.finish()


def _body(node: Node) -> Graph | None:
    """A graph with inputs x0, x1, … that does the same with nodes that have writers; None when there is none."""
    rule = COMPOSITIONS.get(node.op.name) or node.op.decompose
    if rule is None:
        return None
    body = Graph(node.op.name)
    inputs = [body.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(node.inputs)]
    made = rule(inputs, node.attrs)
    for i, t in enumerate((made,) if isinstance(made, Tensor) else made):
        body.output(f"y{i}", t)
    inner = {id(n): _body(n) for n in body.nodes if not n.op.leaf and not writable(n)}
    return None if None in inner.values() else _put_in(body, inner)
