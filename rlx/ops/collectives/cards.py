"""Cards: digests of their programs that ranks compare before they exchange data.

A rank's card is a digest of the node and of its whole graph, with constants by their bytes; the rank's own number is
left out. Where ranks have graphs that differ on purpose, the node's attribute `card` stands for the graph."""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from rlx.ir import Expr, Graph, Node, bodies
from rlx.ir.expr import linearize
from rlx.ranks.world import card_of

_KNOWN: WeakKeyDictionary[Graph, tuple[int, str]] = WeakKeyDictionary()


def told(node: Node) -> str:
    """The node and its graph as text, a line for each node."""
    out = node.outputs[0]
    ins = ", ".join(str(t.type) for t in node.inputs)
    head = f"{node.op.name} of {ins} along {', '.join(node.attrs['over'])}"
    card = node.attrs.get("card")
    if card is not None:
        return f"{head} in {card}"
    return f"{head} ({node.op.name}%{out.id} of {out.graph.name!r})\n{_text(out.graph)}"


def card(node: Node) -> bytes:
    """The digest of the node and its graph, as `told` writes them."""
    return card_of(told(node))


def _text(graph: Graph) -> str:
    known = _KNOWN.get(graph)
    if known is None or known[0] != len(graph.nodes):
        known = _KNOWN[graph] = len(graph.nodes), "\n".join(_lines(graph))
    return known[1]


def _lines(graph: Graph) -> list[str]:
    lines = []
    for node in graph.nodes:
        outs = ", ".join(f"%{t.id}: {t.type}" for t in node.outputs)
        ins = ", ".join(f"%{t.id}" for t in node.inputs)
        attrs = ", ".join(f"{k}={_value(v)}" for k, v in sorted(node.attrs.items()) if k != "rank")
        lines.append(f"{outs} = {node.op.name}({ins}) {{{attrs}}}")
        for body in bodies(node).values():
            lines += [f"  {line}" for line in _lines(body)]
    return lines + [
        f"{what} {name} = %{t.id}"
        for what, table in (("output", graph.outputs), ("update", graph.updates))
        for name, t in table.items()
    ]


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value)
        digest = hashlib.blake2b(data.reshape(-1).view(np.uint8).data, digest_size=8).hexdigest()
        return f"{value.item()!r}" if value.size == 1 else f"array{value.shape} {digest}"
    if isinstance(value, Expr):
        return _tree(value)
    if isinstance(value, Graph):
        return value.name
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_value, value))})"
    return repr(value)


def _tree(tree: Expr) -> str:
    """An expression as the list of its parts, so that a shared part is written once."""
    at: dict[Expr, int] = {}
    parts = []
    for e in linearize([tree]):
        at[e] = len(at)
        args = " ".join(str(at[a]) for a in e.args)
        parts.append(f"{e.prim}({args}{'' if e.value is None else repr(e.value)}){e.dtype}")
    return " ".join(parts)
