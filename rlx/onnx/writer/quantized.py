"""Packed weights, for which ONNX has no type: they are dequantized, exactly, to f32."""

from __future__ import annotations

from rlx.dtypes import f32
from rlx.ir import REGISTRY, Graph, Leaf, Node, Op, Rewriter, Tensor, bodies, get_op, inline
from rlx.ir.body import map_bodies
from rlx.packed import PackedArray


def unpacked(graph: Graph) -> Graph:
    """The graph with packed weights as f32 tensors, in bodies too; the graph itself if it has none."""
    if not any(t.dtype.is_packed for t in graph.tensors()):
        return graph
    new, integers = Rewriter(graph), _integers()
    for node in graph.nodes:
        inputs = new.inputs(node.inputs)
        if node.op.leaf and node.output.dtype.is_packed:
            new.put(node.outputs, (_leaf(new.graph, node),))
        elif bodies(node):
            attrs = map_bodies(node.attrs, unpacked)
            new.put(node.outputs, new.add(node.op, inputs, attrs, node.label))
        elif node.op.moves_data:  # the same op moves the f32 elements
            new.put(node.outputs, new.add(node.op, inputs, node.attrs, node.label))
        elif node.op in integers or _is_of_several(node):
            new.put(node.outputs, _decomposed(new, node, inputs))
        elif node.op.packed:
            new.put(node.outputs, (_computed(new, node, inputs),))
        else:
            new.keep(node)
    return new.finish()


def _leaf(graph: Graph, node: Node) -> Tensor:
    t = node.output
    if node.op.is_constant:
        return graph.constant(PackedArray(t.dtype, t.shape, node.attrs["value"]).dequantize())
    declare = {Leaf.INPUT: graph.input, Leaf.PARAM: graph.param, Leaf.STATE: graph.state}[
        node.op.leaf or Leaf.INPUT
    ]
    return declare(node.attrs["name"], t.shape, f32)


def _integers() -> frozenset[Op]:
    """The integer products among the ops registered so far."""
    return frozenset(get_op(op.integers) for op in REGISTRY.values() if op.integers)


def _is_of_several(node: Node) -> bool:
    """Whether the node reads a packed weight and is neither a plain product with it nor its dequantization."""
    return bool(node.op.packed) and len(node.inputs) > 1 and "transpose_q" not in node.attrs


def _decomposed(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The ops that the node decomposes into; for an integer product, an f32 product of rounded activations."""
    body = Graph(node.op.name)
    leaves = [body.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(node.inputs)]
    assert node.op.decompose is not None
    results = node.op.decompose(leaves, node.attrs)
    body.output("y", results if isinstance(results, Tensor) else results[0])
    return inline(unpacked(body), new, inputs, node.label)


def _computed(new: Rewriter, node: Node, inputs: tuple[Tensor, ...]) -> Tensor:
    """The node's result: the dequantized weight, or a product with it."""
    wanted = node.output.dtype
    product = inputs[0]
    if node.op.contracts and len(inputs) == 3:
        product = new.add("grouped_matmul", inputs, {"transpose_w": node.attrs["transpose_q"]}, node.label)[0]
    elif node.op.contracts:
        attrs = {"transpose_a": False, "transpose_b": node.attrs["transpose_q"], "activation": None}
        product = new.add("matmul", inputs, attrs, node.label)[0]
    return product if product.dtype == wanted else new.add("cast", (product,), {"dtype": wanted}, node.label)[0]
