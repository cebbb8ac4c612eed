"""The table of writers: op → function that writes its ONNX nodes; and the decompositions of ops without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlx.errors import UnsupportedOp
from rlx.ir import Graph, Node, Rewriter, Tensor, inline
from rlx.ir.body import bodies, map_bodies
from rlx.ir.op import Decompose
from rlx.onnx.writer.draft import Draft, Value

# Writes a node from the values of its inputs. Returns: the values of its outputs, in the outputs' dtypes.
Writer = Callable[[Draft, Node, "list[Value]"], "Value | Sequence[Value]"]

WRITERS: dict[str, tuple[Writer, Callable[[Node], bool]]] = {}
COMPOSITIONS: dict[str, Decompose] = {}  # takes precedence over the ops' own `decompose`


def writes(*ops: str, when: Callable[[Node], bool] = lambda node: True) -> Callable[[Writer], Writer]:
    """Registers the writer of these ops, for nodes on which `when` is true; other nodes are decomposed."""

    def register(writer: Writer) -> Writer:
        for op in ops:
            WRITERS[op] = (writer, when)
        return writer

    return register


def composes(op: str) -> Callable[[Decompose], Decompose]:
    """Registers a decomposition of an op into other ops, for writing."""

    def register(rule: Decompose) -> Decompose:
        COMPOSITIONS[op] = rule
        return rule

    return register


def writer_of(node: Node) -> Writer | None:
    """The writer of the node itself; None if the node is decomposed, or cannot be written."""
    writer, when = WRITERS.get(node.op.name, (None, None))
    if writer is not None and when is not None and when(node):
        return writer
    return WRITERS["elementwise"][0] if node.op.elementwise else None


def writable(node: Node) -> bool:
    """Whether the node has a writer, or nothing to compute; all others are decomposed."""
    return writer_of(node) is not None or all(t.size == 0 for t in node.outputs)


def composed(graph: Graph) -> Graph:
    """The graph in which nodes without a writer are replaced by nodes that have one, in bodies too.

    Raises: UnsupportedOp naming all nodes for which that is impossible.
    """
    refused = _refused(graph)
    if refused:
        listed = "; ".join(
            f"{n.name}: {n.op.name}({', '.join(str(t.type) for t in n.inputs)})" for n in refused
        )
        raise UnsupportedOp(f"graph {graph.name!r}: {len(refused)} nodes cannot be written in ONNX: {listed}")
    return _put_in(graph)


def _refused(graph: Graph) -> list[Node]:
    refused = [n for n in graph.nodes if not n.op.leaf and not writable(n) and _body(n) is None]
    return refused + [n for node in graph.nodes for body in bodies(node).values() for n in _refused(body)]


def _put_in(graph: Graph) -> Graph:
    new = Rewriter(graph)
    for node in graph.nodes:
        if bodies(node):
            attrs = map_bodies(node.attrs, _put_in)
            new.put(node.outputs, new.add(node.op, node.inputs, attrs, node.label))
        elif node.op.leaf or writable(node):
            new.keep(node)
        else:
            body = _body(node)
            assert body is not None, f"{node} was refused"
            new.put(node.outputs, inline(body, new, node.inputs, node.name))
    return new.finish()


def _body(node: Node) -> Graph | None:
    """A graph with inputs x0, x1, … that computes the node by nodes that have writers; None if there is none."""
    rule = COMPOSITIONS.get(node.op.name) or node.op.decompose
    if rule is None:
        return None
    body = Graph(node.op.name)
    inputs = [body.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(node.inputs)]
    results = rule(inputs, node.attrs)
    for i, t in enumerate((results,) if isinstance(results, Tensor) else results):
        body.output(f"y{i}", t)
    return None if _refused(body) else _put_in(body)


def write_nodes(draft: Draft, graph: Graph, values: dict[int, Value]) -> None:
    """Writes the nodes of a composed graph; `values` holds its inputs, params and states before, and all tensors
    after."""
    for node in graph.nodes:
        if node.op.is_constant:
            values[node.output.id] = draft.const(node.attrs["value"], node.output.dtype)
        elif not node.op.leaf:
            draft.label = node.label or node.op.name
            outputs = _outputs(draft, node, [values[t.id] for t in node.inputs])
            for t, v in zip(node.outputs, outputs, strict=True):
                assert v.dtype == t.dtype, f"{node}: written as {v.dtype}, not {t.dtype}"
                values[t.id] = v


def _outputs(draft: Draft, node: Node, inputs: list[Value]) -> list[Value]:
    if all(t.size == 0 for t in node.outputs):
        return [draft.const(np.zeros(t.shape, t.dtype.np), t.dtype) for t in node.outputs]
    if node.inputs and all(t.size == 0 for t in node.inputs) and not bodies(node):
        # Results of empty inputs (zeros, ones, NaN) are written as constants, since runtimes differ there.
        values = node.op.reference(*(np.zeros(t.shape, t.dtype.np) for t in node.inputs), **node.attrs)
        arrays = values if isinstance(values, tuple) else (values,)
        return [draft.const(np.asarray(a), t.dtype) for a, t in zip(arrays, node.outputs, strict=True)]
    writer = writer_of(node)
    assert writer is not None, f"{node} has no writer"
    results = writer(draft, node, inputs)
    return [results] if isinstance(results, Value) else list(results)
