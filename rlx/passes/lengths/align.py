"""Whether graphs that one function gives for different lengths are the same program, and where they differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir import Graph, Node, Tensor


def difference(a: Graph, b: Graph) -> str | None:
    """What tells the structures of two graphs apart: their nodes and which tensors these read. None where they are
    the same; attributes, values and lengths are not compared."""
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
