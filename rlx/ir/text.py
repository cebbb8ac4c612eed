"""The readable text form of a graph: one line per node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.ir.body import bodies
from rlx.ir.expr import Expr
from rlx.ir.graph import Graph

if TYPE_CHECKING:
    from rlx.ir.graph import Node


def to_text(graph: Graph) -> str:
    """The whole graph as text, the bodies of a control op indented below it, then outputs and updates.

    A node is `%id: type = op(%inputs) {attributes}  # label`."""
    lines = [f"graph {graph.name}:"]
    for node in graph.nodes:
        lines.append(f"  {node_text(node)}")
        for body in bodies(node).values():
            lines += [f"    {line}" for line in to_text(body).splitlines()]
    lines += [f"  output {name} = %{t.id}" for name, t in graph.outputs.items()]
    lines += [f"  update {name} = %{t.id}" for name, t in graph.updates.items()]
    return "\n".join(lines)


def node_text(node: Node) -> str:
    """One node as text."""
    outs = ", ".join(f"%{t.id}: {t.type}" for t in node.outputs)
    ins = ", ".join(f"%{t.id}" for t in node.inputs)
    attrs = ", ".join(f"{k}={_value(v)}" for k, v in node.attrs.items() if v is not None)
    text = f"{outs} = {node.op.name}({ins})"
    if attrs:
        text += f" {{{attrs}}}"
    return text + (f"  # {node.label}" if node.label else "")


def expr_text(e: Expr) -> str:
    """A scalar expression as text; a0, a1, … are its arguments."""
    if e.prim == "arg":
        return f"a{e.value}"
    if e.prim == "lit":
        return repr(e.value)
    name = f"cast_{e.dtype}" if e.prim == "cast" else e.prim
    return f"{name}({', '.join(expr_text(a) for a in e.args)})"


def _value(v: Any) -> str:
    if isinstance(v, np.ndarray):
        return str(v.item()) if v.size == 1 else f"array{v.shape}"
    if isinstance(v, Expr):
        return expr_text(v)
    if isinstance(v, Graph):
        return v.name
    if isinstance(v, tuple):
        return "(" + ", ".join(_value(x) for x in v) + ")"
    return str(v)
