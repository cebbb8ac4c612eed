"""simplify: constants folded, equal nodes shared, identities removed, dead nodes dropped. Results keep every bit."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType
from rlx.ir import Attrs, Expr, Graph, Node, Op, Tensor, bodies, get_op, rebuild
from rlx.ir.body import inline_body
from rlx.passes.rewriting import remove_dead

Array = npt.NDArray[Any]
FOLD_BYTES = 1 << 20  # a folded constant may be this large, or as large as what it is made of
_ROUNDS = 8


def simplify(graph: Graph) -> Graph:
    """Rewrites until nothing changes (at most a few rounds)."""
    for _ in range(_ROUNDS):
        before = len(graph.nodes)
        round_ = _Round()
        graph = remove_dead(rebuild(graph, round_.rewrite)[0])
        if not round_.changed and len(graph.nodes) == before:
            break
    return graph


class _Round:
    """One sweep over a graph: every node goes through folding, the identities, and the table of equal nodes."""

    def __init__(self) -> None:
        self.changed = False
        self._known: dict[Hashable, tuple[Tensor, ...]] = {}

    def rewrite(self, new: Graph, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        if node.op.declared:
            return None
        if node.op.control is not None and not node.op.control.repeats and inputs[0].node.op.is_constant:
            self.changed = True
            taken = node.attrs["then" if inputs[0].node.attrs["value"] else "otherwise"]
            return inline_body(taken, new, inputs[1:])
        if not node.op.leaf:
            folded = _fold(node, inputs)
            if folded is not None:
                self.changed = True
                return [self.add(new, get_op("constant"), (), {"value": v}, node.label)[0] for v in folded]
            if node.op.identity is not None:
                found = node.op.identity(
                    node, inputs, lambda op, xs, attrs: self.add(new, get_op(op), xs, attrs, node.label)[0]
                )
                if found is not None:
                    self.changed = True
                    return (found,)
        return self.add(new, node.op, inputs, node.attrs, node.label)

    def add(self, new: Graph, op: Op, inputs: Sequence[Tensor], attrs: Attrs, label: str) -> tuple[Tensor, ...]:
        """Appends a node unless the graph has the same one."""
        key = (op.name, tuple(t.id for t in inputs), attrs_key(attrs))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = new.add(op, inputs, attrs, label)
        return found


def attrs_key(attrs: Attrs) -> Hashable:
    """Attributes as a key: equal keys mean the same bits (0.0 and -0.0 differ, and so do 1, 1.0 and True)."""
    return tuple((name, _value_key(attrs[name])) for name in sorted(attrs))


def _value_key(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        raw = np.ascontiguousarray(value)
        digest = hashlib.blake2b(raw.reshape(-1).view(np.uint8).data, digest_size=16).digest() if raw.size else b""
        return "array", value.dtype, value.shape, digest
    if isinstance(value, tuple | list):
        return tuple(_value_key(v) for v in value)
    if value is None or isinstance(value, DType | Expr | Graph):  # a body is equal to itself alone
        return value
    return type(value), repr(value)


def _fold(node: Node, inputs: Sequence[Tensor]) -> list[Any] | None:
    """The node's outputs as arrays when all its inputs are constants and the result is not too large."""
    if not inputs or bodies(node) or not all(t.node.op.is_constant for t in inputs):
        return None
    if node.op.broadcasts:  # cheaper to read as a broadcast than from memory
        return None
    made = sum(t.type.nbytes for t in node.outputs)
    if made > FOLD_BYTES and made > sum(t.type.nbytes for t in inputs):
        return None
    if not made:  # references may count along dimensions that no memory holds
        return [_frozen(np.empty(t.shape, t.dtype.np)) for t in node.outputs]
    with np.errstate(all="ignore"):
        results = node.op.reference(*(t.node.attrs["value"] for t in inputs), **node.attrs)
    arrays = list(results) if isinstance(results, tuple) else [results]
    return [
        _frozen(np.array(array, dtype=t.dtype.np, order="C").reshape(t.shape))
        for array, t in zip(arrays, node.outputs, strict=True)
    ]


def _frozen(value: Array) -> Array:
    value.flags.writeable = False
    return value
