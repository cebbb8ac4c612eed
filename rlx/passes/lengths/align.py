"""Compares graphs of one function, traced at different lengths: whether they are one program, or where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.ir import Graph, Node, Tensor


def difference(a: Graph, b: Graph) -> str | None:
    """The first difference between two graphs in their ops or in which tensors the nodes read; None if there is none.
    Attributes, values and lengths are not compared."""
    if len(a.nodes) != len(b.nodes):
        return f"{len(a.nodes)} nodes beside {len(b.nodes)}"
    places: dict[int, tuple[int, int]] = {}
    others: dict[int, tuple[int, int]] = {}
    for i, (one, two) in enumerate(zip(a.nodes, b.nodes, strict=True)):
        if one.op is not two.op:
            return f"node {i} is {_called(one)} beside {_called(two)}"
        if [places[t.id] for t in one.inputs] != [others[t.id] for t in two.inputs]:
            return f"{_called(one)} reads other tensors"
        if one.op.declared and one.attrs["name"] != two.attrs["name"]:
            return f"{one.op.name} {one.attrs['name']!r} beside {two.attrs['name']!r}"
        if [_kind(t) for t in one.outputs] != [_kind(t) for t in two.outputs]:
            return f"{_called(one)} gives {one.outputs} beside {two.outputs}"
        places.update((t.id, (i, t.index)) for t in one.outputs)
        others.update((t.id, (i, t.index)) for t in two.outputs)
    for x, y in ((a.outputs, b.outputs), (a.updates, b.updates)):
        if {n: places[t.id] for n, t in x.items()} != {n: others[t.id] for n, t in y.items()}:
            return f"the results {list(x)} come from other nodes"
    return None


def aligned(a: Graph, b: Graph) -> tuple[Graph, Graph] | None:
    """The two graphs with the same structure. Movements that one graph lacks, because they change nothing at its length
    (a slice of the whole, an expansion to the same shape), are added to it. None if the graphs differ in more."""
    one, two = _Side(a), _Side(b)
    while not (one.done and two.done):
        pair = None if one.done or two.done or one.node.op is not two.node.op else _inputs(one, two)
        if pair is not None:
            one.take(pair)
            two.take(pair)
        elif not two.done and _moves(two.node) and one.stand_in(two):
            continue
        elif not (not one.done and _moves(one.node) and two.stand_in(one)):
            return None
    for results in ("outputs", "updates"):
        x, y = getattr(a, results), getattr(b, results)
        for name in x:
            place = _common(one.chain[x[name].id], two.chain[y[name].id]) if name in y else None
            if place is None:
                return None
            for side in (one, two):
                getattr(side.new, results)[name] = side.made[place]
    return one.new, two.new


class _Side:
    """One of two graphs being aligned; new tensors are made in both at the same time and get the same numbers."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes
        self.at = 0
        self.new = Graph(graph.name)
        self.new.budget = graph.budget
        self.made: list[Tensor] = []
        # The numbers of the new tensors that hold an old one's value: itself, and movements that changed nothing.
        self.chain: dict[int, list[int]] = {}

    @property
    def done(self) -> bool:
        return self.at == len(self.nodes)

    @property
    def node(self) -> Node:
        return self.nodes[self.at]

    def take(self, places: Sequence[int]) -> None:
        """Copies the next node, with these inputs."""
        node = self.node
        tensors = self.new._append(node.op, tuple(self.made[p] for p in places), node.attrs, node.label)
        if node.op.declared:
            self.new.declared(node.op.leaf)[node.attrs["name"]] = tensors[0]
        for old, t in zip(node.outputs, tensors, strict=True):
            self.chain[old.id] = [len(self.made)]
            self.made.append(t)
        self.at += 1

    def stand_in(self, other: _Side) -> bool:
        """Adds the other side's next node, a movement, to this side as one that changes nothing; False if it would
        change something."""
        node = other.node
        for place in reversed(other.chain[node.inputs[0].id]):
            x = self.made[place]
            if x.ndim != node.output.ndim:
                continue
            whole = {"starts": (0,) * x.ndim, "stops": x.shape, "steps": (1,) * x.ndim, "shape": x.shape}
            tensor = self.new._append(node.op, (x,), {n: whole[n] for n in node.attrs}, node.label)[0]
            for chain in self.chain.values():
                if place in chain:
                    chain.append(len(self.made))
            self.made.append(tensor)
            other.take([place])
            return True
        return False


def _moves(node: Node) -> bool:
    """Whether a node could be the identity at some length: a slice, an expansion or a reshape."""
    return node.op.moves_data and node.attrs.keys() <= {"starts", "stops", "steps", "shape"}


def _inputs(one: _Side, two: _Side) -> list[int] | None:
    order = []
    for x, y in zip(one.node.inputs, two.node.inputs, strict=False):
        place = _common(one.chain[x.id], two.chain[y.id])
        if place is None:
            return None
        order.append(place)
    return order if len(one.node.inputs) == len(two.node.inputs) else None


def _common(a: Sequence[int], b: Sequence[int]) -> int | None:
    return max({*a} & {*b}, default=None)


def equal(a: Any, b: Any) -> bool:
    """Whether two attributes are equal: arrays bit for bit, bodies node by node."""
    if a is b:
        return True
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return _same_array(np.asarray(a), np.asarray(b))
    if isinstance(a, Graph) and isinstance(b, Graph):
        return difference(a, b) is None and all(
            one.attrs.keys() == two.attrs.keys()
            and [t.type for t in one.outputs] == [t.type for t in two.outputs]
            and all(equal(one.attrs[n], two.attrs[n]) for n in one.attrs)
            for one, two in zip(a.nodes, b.nodes, strict=True)
        )
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    # Python counts 1 and True, and 0.0 and -0.0, as equal.
    return type(a) is type(b) and bool(a == b) and (not isinstance(a, float) or repr(a) == repr(b))


def _same_array(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    one, two = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return bool(np.array_equal(one, two))


def _kind(t: Tensor) -> tuple[Any, int]:
    return t.dtype, t.ndim


def _called(node: Node) -> str:
    return f"{node.op.name} ({node.label})" if node.label else node.op.name
