"""Control flow: cond as If, while_loop as Loop, scan as Scan. Captures are read from the enclosing graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, helper

from rlx.dtypes import bool_, i64
from rlx.ir import Graph, Node, TensorType
from rlx.onnx.writer.draft import Draft, Value, info
from rlx.onnx.writer.table import write_nodes, writes

_BOOL, _COUNT = TensorType((), bool_), TensorType((), i64)


def _graph(
    d: Draft, body: Graph, captured: Sequence[Value], own: int = 0, before: Sequence[TensorType] = ()
) -> GraphProto:
    """A body as an ONNX graph. Its ONNX inputs are unread ones of the types `before`, then the first `own` inputs of
    the body, which change at each step; `captured` are the values of the other inputs and of the captures."""
    inner = d.inner()
    leaves = [*body.inputs.values(), *body.params.values()]
    unread = [info(inner.name(f"{body.name}.unread"), t) for t in before]
    stepped = [Value(inner.name(f"{body.name}.given"), t.dtype) for t in leaves[:own]]
    values = dict(zip((t.id for t in leaves), [*stepped, *captured], strict=True))
    write_nodes(inner, body, values)
    results = [(inner.name(f"{body.name}.result"), t) for t in body.outputs.values()]
    inner.finish({n: values[t.id] for n, t in results})
    inputs = [*unread, *(info(v.name, t.type) for v, t in zip(stepped, leaves, strict=False))]
    return helper.make_graph(inner.nodes, body.name, inputs, [info(n, t.type) for n, t in results])


@writes("cond")
def cond(d: Draft, node: Node, inputs: list[Value]) -> Sequence[Value]:
    then, other = (_graph(d, node.attrs[k], inputs[1:]) for k in ("then", "otherwise"))
    dtypes = [t.dtype for t in node.outputs]
    return d.ops("If", inputs[:1], dtypes, then_branch=then, else_branch=other)


@writes("while_loop")
def while_loop(d: Draft, node: Node, inputs: list[Value]) -> Sequence[Value]:
    """A Loop without `max_steps`: at the limit ONNX would end the loop normally, while rlx fails the run."""
    n, dtypes = len(node.outputs), [t.dtype for t in node.outputs]
    body = _graph(d, node.attrs["body"], inputs[1 + n :], n, (_COUNT, _BOOL))
    return d.ops("Loop", [None, *inputs[: 1 + n]], dtypes, body=body)


@writes("scan")
def scan(d: Draft, node: Node, inputs: list[Value]) -> Sequence[Value]:
    a, body = node.attrs, node.attrs["body"]
    n, count, length = a["carries"], len(body.inputs), a["length"]
    dtypes = [t.dtype for t in node.outputs]
    if not length:
        empty = [d.const(np.zeros(t.shape, t.dtype.np), t.dtype) for t in node.outputs[n:]]
        return [*inputs[:n], *empty]
    graph = _graph(d, body, inputs[count:], count)
    rows = inputs[n:count]
    if not rows:  # Scan needs at least one sequence to iterate over
        rows = [d.const(np.arange(length))]
        graph.input.append(info(d.name(f"{body.name}.unread"), _COUNT))
    back = int(a["reverse"])
    ways: dict[str, Any] = {"scan_input_directions": [back] * len(rows)}
    if len(dtypes) > n:
        ways["scan_output_directions"] = [back] * (len(dtypes) - n)
    return d.ops("Scan", [*inputs[:n], *rows], dtypes, body=graph, num_scan_inputs=len(rows), **ways)
