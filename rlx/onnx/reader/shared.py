"""Large constants of a built graph become weights: folded where they depend on weights alone, then shared by name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from rlx.dtypes import DType
from rlx.ir import Graph, Node, Rewriter, Tensor, rebuild
from rlx.onnx.reader.budget import reference_bytes, take
from rlx.onnx.reader.elements import Array
from rlx.packed import PackedArray
from rlx.passes.simplify import known_inputs

SMALL_BYTES = 4096  # a constant up to this size stays in the graph, where the optimizer can read it
_FOLD_BYTES = 1 << 20  # a folded result may be this large, or as large as its inputs


def share_weights(graph: Graph) -> tuple[Graph, dict[str, Array | PackedArray]]:
    """The graph with every large constant as a parameter, and the parameters' values by name.

    A constant that is an initializer keeps its name; a computed one is named by its content, so that the
    graphs of all input shapes share it.
    """
    used = _used(graph)
    graph = rebuild(graph, _folded, used)
    used = _used(graph)
    arrays: dict[str, Array | PackedArray] = {}

    def rewrite(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        if not node.op.is_constant or node.attrs["value"].nbytes <= SMALL_BYTES:
            return None
        value, t = node.attrs["value"], node.output
        name = f"weight {node.label}" if node.label else f"constant {_digest(value, t.dtype)}"
        if name not in arrays:
            arrays[name] = PackedArray(t.dtype, t.shape, value) if t.dtype.is_packed else value
            new.graph.param(name, t.shape, t.dtype)
        return (new.graph.params[name],)

    shared = rebuild(graph, rewrite, used)
    return shared, arrays


def _used(graph: Graph) -> set[int]:
    """The ids of the tensors that a result needs."""
    needed = {t.id for t in graph.results()}
    for node in reversed(graph.nodes):
        if any(t.id in needed for t in node.outputs):
            needed.update(t.id for t in node.inputs)
    return needed


def _folded(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
    values = known_inputs(node, inputs)
    if values is None:
        return None
    size = sum(t.type.nbytes for t in node.outputs)
    if size > _FOLD_BYTES and size > sum(t.type.nbytes for t in set(inputs)):
        return None
    take(reference_bytes(node), node.name)
    with np.errstate(all="ignore"):
        results = node.op.reference(*values, **node.attrs)
    tensors = []
    for result, t in zip(results if isinstance(results, tuple) else (results,), node.outputs, strict=True):
        value = np.array(result, dtype=t.dtype.np, order="C").reshape(t.shape)
        value.flags.writeable = False
        tensors.append(new.add("constant", (), {"value": value})[0])
    return tensors


def _digest(value: Array, dtype: DType) -> str:
    head = f"{dtype if dtype.is_packed else value.dtype}{value.shape}".encode()
    raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return hashlib.blake2b(
        raw.data, digest_size=16, key=hashlib.blake2b(head, digest_size=32).digest()
    ).hexdigest()
