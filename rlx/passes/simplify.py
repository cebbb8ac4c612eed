"""simplify: constants folded, equal nodes shared, identities removed, dead nodes dropped. Results keep every bit."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import LinAlgError
from rlx.ir import Attrs, Graph, Node, Op, Rewriter, Tensor, bodies, get_op, inline, rebuild
from rlx.passes.attributes import attrs_key
from rlx.passes.bodies import change_bodies
from rlx.passes.rewriting import remove_dead

Array = npt.NDArray[Any]
FOLD_BYTES = 1 << 20  # a folded constant is at most this large, or as large as its inputs together
_ROUNDS = 8


def simplify(graph: Graph) -> Graph:
    """Rewrites until nothing changes, in at most `_ROUNDS` rounds."""
    return simplified(graph)[0]


def simplified(graph: Graph) -> tuple[Graph, bool]:
    """The graph rewritten, and whether nothing would change in another round."""
    keys = _Keys()
    for _ in range(_ROUNDS):
        sweep = _Round(keys)
        simpler = remove_dead(rebuild(graph, sweep.rewrite), graph)
        if simpler is graph or not sweep.added:
            return simpler, True
        graph = simpler
    return graph, False


def without_rules(graph: Graph) -> Graph:
    """The graph, bodies included, without nodes that exist only for their differentiation rules: for graphs that will
    not be differentiated and are compared with others."""

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        return inputs[: len(node.outputs)] if node.op.forwards else None

    return rebuild(change_bodies(graph, lambda _, body: without_rules(body)), rewrite)


class _Keys:
    """Keys of attributes, cached since graphs rewritten from each other share them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Attrs, Hashable]] = {}

    def of(self, attrs: Attrs) -> Hashable:
        entry = self._known.get(id(attrs))
        if entry is None:
            entry = self._known[id(attrs)] = attrs, attrs_key(attrs)  # keeps attrs alive, so its id stays its own
        return entry[1]


class _Round:
    """One sweep over a graph: every node goes through constant folding, identities, and the table of equal nodes.

    `added`: whether the result has nodes, other than constants, that have not gone through these steps. Nodes with
    replaced inputs have gone through them with the new inputs."""

    def __init__(self, keys: _Keys) -> None:
        self.added = False
        self._keys = keys
        self._known: dict[Hashable, Sequence[Tensor]] = {}

    def rewrite(self, new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        op = node.op
        if op.declared:
            return None
        if op.control is not None and not op.control.repeats and inputs[0].node.op.is_constant:
            self.added = True
            return inline(node.attrs["then" if inputs[0].node.attrs["value"] else "otherwise"], new, inputs[1:])
        if op.forwards:
            return inputs[: len(node.outputs)]
        if not op.leaf:
            folded = _fold(node, inputs)
            if folded is not None:
                return [self._add(new, get_op("constant"), (), {"value": v})[0] for v in folded]
            if op.identity is not None:
                tensor = op.identity(node, inputs, lambda op, xs, attrs: self._add(new, get_op(op), xs, attrs)[0])
                if tensor is not None:
                    return (tensor,)
        key = self._key(op, inputs, self._keys.of(node.attrs))
        equal = self._known.setdefault(key, node.outputs)
        return None if equal is node.outputs else equal

    def _add(self, new: Rewriter, op: Op, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
        """Appends a node, or returns the outputs of an equal one that the graph has."""
        key = self._key(op, inputs, attrs_key(attrs))
        result = self._known.get(key)
        if result is None:
            self.added = self.added or not op.leaf
            result = self._known[key] = new.add(op, inputs, attrs, new.label)
        return result

    def _key(self, op: Op, inputs: Sequence[Tensor], attrs: Hashable) -> Hashable:
        return id(op), tuple([t.id for t in inputs]), attrs


def known_inputs(node: Node, inputs: Sequence[Tensor]) -> list[Array] | None:
    """The values of a node's inputs if a constant may take its place, else None: each is a constant, or an expanded one
    that is not large.

    An expanded constant is not folded, since reading its source is cheaper than reading it from memory. Nor is an
    elementwise node of one, if its result is larger than its other constants."""
    op = node.op
    if not inputs or op.broadcasts or op.meets is not None or bodies(node):
        return None
    held = [t for t in inputs if t.node.op.is_constant]
    if len(held) < len(inputs) and (op.reshapes or op.expr is not None):
        size = node.outputs[0].size
        if all(t.size != size for t in held):
            return None
    values = [_known(t) for t in inputs]
    return None if any(v is None for v in values) else values  # type: ignore[return-value]


def _known(t: Tensor) -> Array | None:
    """The value of a constant, or of one that is expanded and reshaped to at most FOLD_BYTES."""
    node = t.node
    if t.dtype.is_packed:
        return None
    if node.op.is_constant:
        value: Array = node.attrs["value"]
        return value
    if not (node.op.broadcasts or node.op.reshapes) or t.type.nbytes > FOLD_BYTES:
        return None
    source = _known(node.inputs[0])
    return None if source is None else np.asarray(node.op.reference(source, **node.attrs))


def _fold(node: Node, inputs: Sequence[Tensor]) -> list[Any] | None:
    """The node's outputs as arrays if its inputs are known and the outputs are not too large; else None."""
    values = known_inputs(node, inputs)
    if values is None:
        return None
    nbytes = sum(t.type.nbytes for t in node.outputs)
    if nbytes > FOLD_BYTES and nbytes > sum(t.type.nbytes for t in inputs):
        return None
    if not nbytes:  # nothing to compute; a reference might still loop over the other dimensions
        return [_frozen(np.empty(t.shape, t.dtype.np)) for t in node.outputs]
    with np.errstate(all="ignore"):
        try:
            results = node.op.reference(*values, **node.attrs)
        except LinAlgError:
            return None  # a run that reaches the node raises the error
    arrays = list(results) if isinstance(results, tuple) else [results]
    return [
        _frozen(np.array(array, dtype=t.dtype.np, order="C").reshape(t.shape))
        for array, t in zip(arrays, node.outputs, strict=True)
    ]


def _frozen(value: Array) -> Array:
    value.flags.writeable = False
    return value
