"""Fusion of a row's RMS norm into the product that reads it, and of the gate that follows: a model that makes one token
after the other takes as long for each of them as for a small product."""

from __future__ import annotations

from rlx.ir import Graph, Node, Rewriter, Tensor, node_of
from rlx.ops.matmul import activation_of
from rlx.passes.rewriting import SupportOf, native_everywhere, remove_dead, use_counts


def fuse_normed(graph: Graph, support: SupportOf = native_everywhere) -> Graph:
    """Fuses rms_norm, a matmul that alone reads it, and act(first half) · second half of that, into normed_linear.

    Only where x is one row: of many rows, each workgroup would norm all again. Nothing is rounded in between."""
    uses = use_counts(graph)
    new = Rewriter(graph)
    for node in graph.nodes:
        product, gate = _gated(node, uses) or (node, None)
        made = _fused(new, product, gate, uses, support, node.label)
        if made is None:
            new.keep(node)
        else:
            new.put(node.outputs, made)
    return remove_dead(new.finish())


def _fused(
    new: Rewriter, product: Node, gate: str | None, uses: dict[int, int], support: SupportOf, label: str
) -> tuple[Tensor, ...] | None:
    """The node that takes the place of a product of a norm, and of its gate."""
    if product.op.name != "matmul" or len(product.inputs) != 2 or product.attrs["activation"] is not None:
        return None
    normed, weight = product.inputs
    norm = normed.node
    one = normed.ndim == 2 and normed.shape[0] == 1 and weight.ndim == 2 and uses[normed.id] == 1
    if not one or norm.op.name != "rms_norm" or len(norm.inputs) != 2 or product.output.dtype != normed.dtype:
        return None
    if product.attrs["transpose_a"] or not product.attrs["transpose_b"]:
        return None
    inputs, attrs = (*norm.inputs, weight), {"eps": norm.attrs["eps"], "gate": gate}
    if (gate is not None and weight.shape[0] % 2) or support(
        node_of("normed_linear", [t.type for t in inputs], attrs)
    ) != "native":
        return None
    return new.add("normed_linear", inputs, attrs, label or product.label or norm.label)


def _gated(node: Node, uses: dict[int, int]) -> tuple[Node, str] | None:
    """The product whose first half, by an activation, this node multiplies with the other half."""
    if node.op.name != "mul":
        return None
    for k in (0, 1):
        act, up = node.inputs[k].node, node.inputs[1 - k]
        name = activation_of(act)
        if name is None or uses[act.output.id] != 1:
            continue
        gate = act.inputs[0]
        whole = gate.node.inputs[0] if gate.node.op.name == "slice" else None
        if whole is None or up.node.op.name != "slice" or up.node.inputs[0] is not whole or uses[whole.id] != 2:
            continue
        half = whole.shape[-1] // 2
        alone = uses[gate.id] == uses[up.id] == 1 and whole.shape == (1, 2 * half)
        if alone and _is_part(gate.node, 0, half) and _is_part(up.node, half, 2 * half):
            return whole.node, name
    return None


def _is_part(node: Node, start: int, stop: int) -> bool:
    """Whether a slice takes these columns of its only row."""
    attrs = node.attrs
    return (tuple(attrs["starts"]), tuple(attrs["stops"]), tuple(attrs["steps"])) == ((0, start), (1, stop), (1, 1))
