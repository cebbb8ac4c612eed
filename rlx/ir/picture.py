"""Graphs as pictures, for notebooks: a small graph is drawn, a large one is summarized by its blocks and ops.

Names may come from untrusted files, so all text is escaped. Pictures have a white background, which is readable in a
dark notebook too; tables take the notebook's colours.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from rlx.ir.body import bodies
from rlx.ir.graph import Graph, Node, Tensor
from rlx.records import Record, field

DRAWN = 100  # a graph of more nodes is summarized
_ROWS = 16  # the rows of a table
_LETTER, _LINE, _PAD = 6.4, 14, 6
_GAP, _LAYER = 18, 34
_FILLS = {"input": "#cfe8cf", "state": "#fbe3b5", "op": "#d6e4f5", "output": "#ecd7ee"}


def shortened(text: str, most: int = 40) -> str:
    """The text on one line, its middle left out where it is long; characters that XML does not have are replaced."""
    line = re.sub(r"[^\x20-\ud7ff\ue000-\ufffd]+", "\ufffd", text)
    return line if len(line) <= most else f"{line[: most // 2]}…{line[-(most - most // 2 - 1) :]}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as an HTML table that shows only the first ones."""
    listed = list(rows)
    shown = [f"<tr>{''.join(f'<td>{escape(shortened(str(v), 80))}</td>' for v in row)}</tr>" for row in listed[:_ROWS]]
    if len(listed) > _ROWS:
        shown.append(f"<tr><td colspan='{len(head)}'>… and {len(listed) - _ROWS:,} more</td></tr>")
    heading = "".join(f"<th style='text-align:left'>{escape(h)}</th>" for h in head)
    style = "display:inline-table;vertical-align:top;margin:4px 16px 4px 0;text-align:left"
    return f"<table style='{style}'><tr>{heading}</tr>{''.join(shown)}</table>"


def port_tables(kinds: Mapping[str, Mapping[str, object]]) -> str:
    """Tables of names and types by kind, those that are not empty."""
    return "".join(table([kind, "type"], ports.items()) for kind, ports in kinds.items() if ports)


def listed(types: Mapping[str, object], most: int = 8) -> str:
    """Names with their types on one line, of which only the first ones are shown where there are many."""
    parts = [f"{shortened(n)}: {t}" for n, t in itertools.islice(types.items(), most)]
    return ", ".join([*parts, *([f"… {len(types) - most:,} more"] if len(types) > most else [])])


def html(graph: Graph) -> str:
    """A graph as HTML: its ports, then its picture or, where it is large, a summary."""
    head = f"<p><b>{escape(shortened(graph.name))}</b>: {len(graph.nodes):,} nodes</p>"
    declared = {"inputs": graph.inputs, "params": graph.params, "states": graph.states, "outputs": graph.outputs}
    ports = port_tables({kind: {n: t.type for n, t in types.items()} for kind, types in declared.items()})
    body = svg(graph) if len(_drawn(graph)) <= DRAWN else summary(graph)
    return f"<div>{head}{ports}<div style='overflow:auto'>{body}</div></div>"


def summary(graph: Graph) -> str:
    """The numbers of nodes by op, and by block, as their labels name it."""
    nodes = [n for n in graph.nodes if n.op.leaf is None]
    ops = Counter(n.op.name for n in nodes)
    result = table(["op", "nodes"], ((op, f"{count:,}") for op, count in ops.most_common()))
    blocks = _blocks([n.label for n in nodes if n.label])
    if blocks:
        result += table(["block", "nodes"], ((name, f"{count:,}") for name, count in blocks.items()))
    return result


def _blocks(labels: Sequence[str]) -> dict[str, int]:
    """Node counts grouped by the first parts of the labels: by as many parts as give at most twice a table's rows."""
    largest: dict[str, int] = {}
    parts = [[p for p in re.split(r"[/.]", label) if p] for label in labels]
    for depth in range(1, 7):
        counts = Counter("/".join(p[:depth]) for p in parts)
        if len(counts) > 2 * _ROWS:
            break
        largest = dict(counts) if len(counts) > len(largest) else largest
    return largest if len(largest) > 1 else {}


# -- the picture of a small graph


class _Box(Record, frozen=False, eq=False):
    """A node of the picture or, without lines of text, the point where a long edge crosses a layer."""

    kind: str
    lines: list[str]
    says: str = ""
    layer: int = 0
    x: float = 0.0  # its middle
    above: list[_Box] = field(default_factory=list)
    below: list[_Box] = field(default_factory=list)

    @property
    def width(self) -> float:
        return max((len(line) for line in self.lines), default=0) * _LETTER + 2 * _PAD if self.lines else 4

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 2 * _PAD - 2


def _drawn(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if not _within(n)]


def _within(node: Node) -> bool:
    """Whether a node is shown as a line within the boxes that use it: weights, constants, and broadcast numbers."""
    op = node.op
    if op.broadcasts or op.converts:
        return all(_within(t.node) for t in node.inputs)
    return op.is_constant or (op.declared and op.name == "param")


def _line(t: Tensor) -> str:
    """A weight or constant, as the box of its reader names it."""
    node = t.node
    while node.inputs:
        node = node.inputs[0].node
    if node.op.is_constant:
        value = node.attrs["value"]
        return shortened(f"· {value.item()!r}" if value.size == 1 else f"· constant {t.type}", 32)
    return shortened(f"· {node.attrs['name']} {t.type}", 32)


def _boxes(graph: Graph) -> list[_Box]:
    """The boxes with their edges, layer by layer from the inputs: a box stands below all that it reads."""
    box_of: dict[int, _Box] = {}
    boxes: list[_Box] = []
    for node in _drawn(graph):
        if node.op.declared:
            box = _Box(node.op.name, [shortened(node.attrs["name"], 32), str(node.outputs[0].type)])
        else:
            weights = list(dict.fromkeys(_line(t) for t in node.inputs if _within(t.node)))
            name = node.op.name
            label = [shortened(node.label, 32)] if node.label not in ("", name) else []
            inner = [f"{k}: {len(b.nodes)} nodes" for k, b in bodies(node).items()]
            types = [str(t.type) for t in node.outputs]
            more = [f"· {len(weights) - 3} more"] if len(weights) > 3 else []
            box = _Box("op", [name, *label, *inner, *weights[:3], *more, *types[:2]])
        box.says = f"{node.name}: {', '.join(f'%{t.id} {t.type}' for t in node.outputs)}"
        sources = dict.fromkeys(id(box_of[t.id]) for t in node.inputs if t.id in box_of)
        box.above = [b for b in boxes if id(b) in sources]
        box.layer = 1 + max((b.layer for b in box.above), default=-1)
        box_of.update((t.id, box) for t in node.outputs)
        boxes.append(box)
    for kind, results in (("output", graph.outputs), ("state", graph.updates)):
        for name, t in results.items():
            source = [box_of[t.id]] if t.id in box_of else []
            says = f"{'output' if kind == 'output' else 'update of state'} {name}: %{t.id} {t.type}"
            lines = [shortened(f"{'' if kind == 'output' else 'new '}{name}", 32), str(t.type)]
            boxes.append(_Box(kind, lines, says, 1 + max((b.layer for b in source), default=-1), above=source))
    return _joined(boxes)


def _joined(boxes: list[_Box]) -> list[_Box]:
    """The boxes plus a crossing point for each layer that an edge passes; `below` becomes the reverse of `above`."""
    places = []
    for box in boxes:
        for i, source in enumerate(box.above):
            last = source
            for layer in range(source.layer + 1, box.layer):
                place = _Box("edge", [], layer=layer, above=[last])
                last.below.append(place)
                places.append(place)
                last = place
            box.above[i] = last
            last.below.append(box)
    return [*boxes, *places]


def _arranged(boxes: Sequence[_Box]) -> list[list[_Box]]:
    """The layers, each ordered by the mean position of its boxes' neighbours (Sugiyama et al., 1981), with x
    positions."""
    layers: list[list[_Box]] = [[] for _ in range(1 + max((b.layer for b in boxes), default=-1))]
    for box in boxes:
        layers[box.layer].append(box)
    for layer in layers:
        _spread(layer)
    for sweep in range(8):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = []
            for box in layer:
                near = box.above if sweep % 2 == 0 else box.below
                wanted.append(sum(b.x for b in near) / len(near) if near else box.x)
            for box, x in zip(layer, wanted, strict=True):
                box.x = x
            layer.sort(key=lambda b: b.x)
            _spread(layer)
    return layers


def _spread(layer: Sequence[_Box]) -> None:
    """Moves overlapping boxes of a layer apart, keeping the layer as a whole about where it was."""
    if not layer:
        return
    middle = sum(b.x for b in layer)
    for a, b in itertools.pairwise(layer):
        b.x = max(b.x, a.x + (a.width + b.width) / 2 + _GAP)
    shift = (sum(b.x for b in layer) - middle) / len(layer)
    for box in layer:
        box.x -= shift


def svg(graph: Graph) -> str:
    """The picture: inputs above, outputs below, an edge from each tensor to its readers. A box holds the op, its label,
    the weights and constants it reads, and the types of its outputs; the tooltip has the whole label."""
    boxes = _boxes(graph)
    layers = _arranged(boxes)
    left = min((b.x - b.width / 2 for b in boxes), default=0) - _GAP
    right = max((b.x + b.width / 2 for b in boxes), default=0) + _GAP
    tops, y = [], _GAP + 2.0 * _LINE
    for layer in layers:
        tops.append(y)
        y += max(b.height for b in layer) + _LAYER
    height = y - _LAYER + _GAP
    width = max(right - left, 420.0)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{left:.1f} 0 {width:.1f} {height:.1f}" font-family="sans-serif" font-size="11" fill="#111">',
        f'<rect x="{left:.1f}" y="0" width="{width:.1f}" height="{height:.1f}" rx="6" fill="#fff"/>',
        *_legend(left + _GAP),
    ]
    for box in boxes:
        for source in box.above:
            drawn.append(_edge(source, box, tops, max(b.height for b in layers[source.layer])))
    drawn += [_box_svg(box, tops[box.layer]) for box in boxes if box.lines]
    return "\n".join([*drawn, "</svg>"])


def _legend(x: float) -> list[str]:
    shapes = []
    for kind, fill in _FILLS.items():
        shapes.append(
            f'<rect x="{x:.1f}" y="10" width="12" height="12" rx="2" fill="{fill}" stroke="#555"/>'
            f'<text x="{x + 17:.1f}" y="20">{kind}</text>'
        )
        x += 30 + _LETTER * len(kind)
    return [*shapes, f'<text x="{x:.1f}" y="20">· weight or constant read</text>']


def _edge(source: _Box, box: _Box, tops: Sequence[float], deep: float) -> str:
    y1, y2 = tops[source.layer] + (source.height if source.lines else 0), tops[box.layer]
    bend = tops[source.layer] + deep
    middle = (bend + y2) / 2
    path = f"M{source.x:.1f},{y1:.1f}L{source.x:.1f},{bend:.1f}C{source.x:.1f},{middle:.1f} {box.x:.1f},{middle:.1f} "
    return f'<path d="{path}{box.x:.1f},{y2:.1f}" fill="none" stroke="#888"/>'


def _box_svg(box: _Box, top: float) -> str:
    x, rows = box.x - box.width / 2, []
    for i, line in enumerate(box.lines):
        weight, y = ' font-weight="bold"' if i == 0 else "", top + _PAD + (i + 1) * _LINE - 5
        rows.append(f'<text x="{box.x:.1f}" y="{y:.1f}" text-anchor="middle"{weight}>{escape(line)}</text>')
    return (
        f'<g><title>{escape(shortened(box.says, 400))}</title><rect x="{x:.1f}" y="{top:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="4" fill="{_FILLS[box.kind]}" stroke="#555"/>{"".join(rows)}</g>'
    )
