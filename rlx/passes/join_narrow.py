"""join_narrow: products of one x by several narrow matrices, such as the low-rank corrections of queries, keys and
values, become one product; so do their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx.dtypes import f32
from rlx.ir import Graph, Node, Rewriter, Tensor, get_op
from rlx.passes.rewriting import remove_dead

_MOST = 64  # columns of a product that counts as narrow
_LEAST = 16  # how many times as many x has rows, and terms of each sum

_Turn = tuple[bool, bool]  # transpose_a and transpose_b


@dataclass
class _Group:
    """Products that become one. `terms`: the products by which each gradient reaches that of x, where they are
    joined. `late`: nodes that read a member before all d are known, and are computed behind these."""

    x: Tensor
    members: list[Node]
    terms: list[Node] = field(default_factory=list)
    late: list[Node] = field(default_factory=list)
    whole: Tensor | None = None


def join_narrow(graph: Graph) -> Graph:
    """Joins products of f32 in three places, so that x is read once where each of n products read it, and its gradient
    has one term where it had n:

    - x Aᵢᵀ for several Aᵢ becomes [A₁; A₂; …] xᵀ, whose rows are the parts, each contiguous;
    - dᵢᵀ x, the gradients of these Aᵢ, become [d₁, d₂, …]ᵀ x;
    - d₁ A₁ + d₂ A₂ + …, what x's gradient has of them, becomes [d₁, d₂, …] [A₁; A₂; …].

    The dᵢ and x Aᵢᵀ are then computed transposed, which the products that read them undo. Each element of the first two
    is the same sum as before; the third adds up in one sum what elementwise additions added.
    """
    finder = _Finder(graph)
    forward, backward = finder.forward(), finder.backward()
    return remove_dead(_Joined(graph, forward, backward, finder).run(), graph) if forward or backward else graph


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.product = graph, get_op("matmul")
        self.place = {id(node): i for i, node in enumerate(graph.nodes)}
        self.readers: dict[int, list[Node]] = {}
        for node in graph.nodes:
            for t in node.inputs:
                self.readers.setdefault(t.id, []).append(node)
        self.results = {t.id for t in graph.results()}

    def turn(self, node: Node) -> _Turn | None:
        """The transpositions of a plain product of two matrices of f32; None for any other node."""
        if node.op is not self.product or len(node.inputs) != 2 or node.attrs["activation"] is not None:
            return None
        if any(t.ndim != 2 or t.dtype != f32 for t in node.inputs):
            return None
        return node.attrs["transpose_a"], node.attrs["transpose_b"]

    def forward(self) -> list[_Group]:
        by_input: dict[int, _Group] = {}
        for node in self.graph.nodes:
            if self.turn(node) == (False, True) and _narrow(node.inputs[0], node.output.shape[1]):
                x, a = node.inputs
                if self._turnable(node.output):
                    group = by_input.setdefault(x.id, _Group(x, []))
                    first = group.members[0] if group.members else node
                    needs = a.node.inputs if a.node.op.family == "elementwise" else (a,)  # that node can come earlier
                    if all(self.place[id(t.node)] < self.place[id(first)] for t in needs):
                        group.members.append(node)
        groups = [g for g in by_input.values() if len(g.members) > 1]
        for group in groups:
            group.members.sort(key=lambda node: node.inputs[1].id)
        return groups

    def backward(self) -> list[_Group]:
        by_input: dict[int, _Group] = {}
        for node in self.graph.nodes:
            if self.turn(node) != (True, False) or not _narrow(node.inputs[1], node.output.shape[0]):
                continue
            d, x = node.inputs
            if self.turn(d.node) is not None and self._turnable(d):
                by_input.setdefault(x.id, _Group(x, [])).members.append(node)
        return [g for g in by_input.values() if self._complete(g)]

    def _complete(self, group: _Group) -> bool:
        """Whether a group has members whose results are read only when all d are known; finds its terms."""
        made = [node.inputs[0] for node in group.members]
        if len({d.id for d in made}) < max(2, len(made)):
            return False
        last = max(self.place[id(d.node)] for d in made)
        for member in group.members:
            for node in self._readers(member):
                if self.place[id(node)] > last:
                    continue
                beside = [t.node.op.leaf for t in node.inputs if t.node is not member]
                if node.op.family != "elementwise" or not all(beside):
                    return False
                if any(self.place[id(r)] <= last for r in self._readers(node)):
                    return False
                group.late.append(node)
        group.late = list({id(node): node for node in group.late}.values())
        terms = [self._term(node.inputs[0], group.x, last) for node in group.members]
        known = [t for t in terms if t is not None]
        if len(known) == len(terms) and self._meet(known):
            pairs = sorted(zip(known, group.members, strict=True), key=lambda pair: pair[0].inputs[1].id)
            group.terms, group.members = [t for t, _ in pairs], [n for _, n in pairs]
        return True

    def _term(self, d: Tensor, x: Tensor, last: int) -> Node | None:
        """The only product of d that has the shape of x."""
        readers = [r for r in self.readers[d.id] if self.turn(r) == (False, False) and r.inputs[0] is d]
        if len(readers) != 1 or readers[0].output.shape != x.shape:
            return None
        return readers[0] if self.place[id(readers[0].inputs[1].node)] < last else None

    def _meet(self, terms: Sequence[Node]) -> bool:
        """Whether additions add up all terms, and nothing else reads them or a part of that sum."""
        chains = [{id(node) for node in self._sums(term.output)} for term in terms]
        return bool(set.intersection(*chains))

    def _sums(self, t: Tensor) -> Iterable[Node]:
        while t.id not in self.results and len(self.readers.get(t.id, ())) == 1:
            (node,) = self.readers[t.id]
            if not node.op.adds or any(x.type != t.type for x in (*node.inputs, *node.outputs)):
                return
            yield node
            t = node.output

    def _readers(self, node: Node) -> list[Node]:
        return [r for t in node.outputs for r in self.readers.get(t.id, ())]

    def _turnable(self, t: Tensor) -> bool:
        """Whether only products of two matrices read a tensor, which can read it transposed."""
        return t.id not in self.results and all(self.turn(r) is not None for r in self.readers.get(t.id, ()))


def _narrow(x: Tensor, columns: int) -> bool:
    return columns <= _MOST and min(x.shape) >= _LEAST * columns


class _Joined:
    def __init__(self, graph: Graph, forward: list[_Group], backward: list[_Group], finder: _Finder) -> None:
        self.graph, self.finder, self.new = graph, finder, Rewriter(graph)
        self.firsts = {id(min(g.members, key=self._place)): g for g in forward}
        self.d = {n.inputs[0].id for g in backward for n in g.members}
        self.lasts = {id(max((n.inputs[0].node for n in g.members), key=self._place)): g for g in backward}
        self.sums = {id(max(g.terms, key=self._place)): g for g in backward if g.terms}
        gone = [n for g in forward for n in g.members] + [n for g in backward for n in (*g.members, *g.terms)]
        self.gone = {id(n) for n in gone}
        self.turned: dict[int, Tensor] = {}  # id of a tensor -> its transpose, computed in its place
        self.left: set[int] = set()  # ids of terms that are part of another
        self.moved = {id(n) for g in backward for n in g.late}  # ids of nodes that have another place
        self.stacks: dict[tuple[int, ...], Tensor] = {}

    def _place(self, node: Node) -> int:
        return self.finder.place[id(node)]

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if id(node) in self.moved:
                continue
            if id(node) in self.firsts:
                self._forward(self.firsts[id(node)])
            elif id(node) in self.sums:
                self._sum(node, self.sums[id(node)])
            elif id(node) in self.gone:
                if node.inputs[0].id in self.d and self.finder.turn(node) == (False, False):
                    self.left.add(node.output.id)
            elif node.op.adds and any(t.id in self.left for t in node.inputs):
                kept = [t for t in node.inputs if t.id not in self.left]
                if kept:
                    self.new.put(node.outputs, self.new.inputs(kept[:1]))
                else:
                    self.left.add(node.output.id)
            elif node.outputs and node.outputs[0].id in self.d:
                self._transposed(node)
            elif any(t.id in self.turned for t in node.inputs):
                self.new.put(node.outputs, self._product(node.inputs, self.finder.turn(node), node.label))
            else:
                self.new.keep(node)
            if id(node) in self.lasts:
                self._backward(self.lasts[id(node)])
        return self.new.finish()

    def _product(self, pair: Sequence[Tensor], turn: _Turn | None, label: str) -> tuple[Tensor, ...]:
        """A product of tensors of which some are computed transposed."""
        assert turn is not None
        sides = zip(pair, turn, strict=True)
        operands = [(self.turned[t.id], not side) if t.id in self.turned else (t, side) for t, side in sides]
        (a, ta), (b, tb) = operands
        attrs: dict[str, Any] = {"transpose_a": ta, "transpose_b": tb, "activation": None}
        return self.new.add(self.finder.product, (a, b), attrs, label)

    def _stacked(self, tensors: Sequence[Tensor], label: str) -> Tensor:
        key = tuple(t.id for t in tensors)
        if key not in self.stacks:
            self.stacks[key] = self.new.add("concat", tensors, {"axis": 0}, label)[0]
        return self.stacks[key]

    def _parts(self, whole: Tensor, sizes: Iterable[int], label: str) -> Iterable[Tensor]:
        start, columns = 0, whole.shape[1]
        for n in sizes:
            attrs = {"starts": (start, 0), "stops": (start + n, columns), "steps": (1, 1)}
            yield self.new.add("slice", (whole,), attrs, label)[0]
            start += n

    def _forward(self, group: _Group) -> None:
        label = group.members[0].label
        for node in group.members:
            a_node = node.inputs[1].node
            if not self.new.placed(a_node.output):
                self.new.keep(a_node)
                self.moved.add(id(a_node))
        a = self._stacked([node.inputs[1] for node in group.members], label)
        (whole,) = self._product((a, group.x), (False, True), label)
        parts = self._parts(whole, [node.output.shape[1] for node in group.members], label)
        for node, part in zip(group.members, parts, strict=True):
            self.turned[node.output.id] = part

    def _transposed(self, node: Node) -> None:
        turn = self.finder.turn(node)
        assert turn is not None
        (d,) = self._product(node.inputs[::-1], (not turn[1], not turn[0]), node.label)
        self.turned[node.output.id] = d

    def _backward(self, group: _Group) -> None:
        label = group.members[0].label
        group.whole = self._stacked([self.turned[node.inputs[0].id] for node in group.members], label)
        (whole,) = self._product((group.whole, group.x), (False, False), label)
        parts = self._parts(whole, [node.output.shape[0] for node in group.members], label)
        for node, part in zip(group.members, parts, strict=True):
            self.new.put(node.outputs, (part,))
        for node in group.late:
            self.new.keep(node)

    def _sum(self, last: Node, group: _Group) -> None:
        assert group.whole is not None
        a = self._stacked([term.inputs[1] for term in group.terms], last.label)
        self.new.put(last.outputs, self._product((group.whole, a), (True, False), last.label))
