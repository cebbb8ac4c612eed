"""ONNX Runtime as a judge of 8-bit products.

On x86 processors without VNNI its kernel for uint8 × int8 adds two products in 16 bits and saturates there, so that
sums are wrong. `session.x64quantprecision` = "1" avoids it for some operators alone (not QLinearMatMul of opset 21, nor
QLinearConv of com.microsoft), only where optimizations run, and leaves most of int8 × int8 without a kernel. `exact`
does the same to a model whatever the level: int8 weights and their zero points, both 128 greater, as uint8, for which
the kernel is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.outside import outside

# By operator the inputs that are: the other factor and its zero point, unless that is uint8 always, and each weight
# with its zero point.
PRODUCTS: dict[str, tuple[tuple[int, int] | None, tuple[tuple[int, int], ...]]] = {
    "MatMulInteger": ((0, 2), ((1, 3),)),
    "MatMulIntegerToFloat": ((0, 4), ((1, 5),)),
    "QLinearMatMul": ((0, 2), ((3, 5),)),
    "QLinearConv": ((0, 2), ((3, 5),)),
    "QGemm": ((0, 2), ((3, 5),)),
    "QAttention": ((0, 6), ((1, 7),)),
    "DynamicQuantizeMatMul": (None, ((1, 3),)),
    "DynamicQuantizeLSTM": (None, ((1, 9), (2, 11))),
    "DequantizeLinear": (None, ((0, 2),)),  # which optimizations join with what follows
}


def exact(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with constant int8 weights as uint8, where the other factor is uint8."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for graph in _graphs(made.graph):
        held = {w.name: w for w in graph.initializer}
        types = {i.name: i.type.tensor_type.elem_type for i in graph.input} | {n: w.data_type for n, w in held.items()}
        for node in graph.node:
            other, weights = PRODUCTS.get(node.op_type, (None, ()))
            if other is not None and any(types.get(_name(node, i)) == TensorProto.INT8 for i in other):
                continue
            for at, zero in weights:
                if types.get(_name(node, at)) == TensorProto.INT8 and _name(node, at) in held:
                    _as_bytes(graph, node, at, zero, held)
    return made


def session(proto: onnx.ModelProto, level: str = "ENABLE_ALL") -> Any:
    """A session of one thread for the model's exact form, with optimizations up to a level."""
    runtime = outside("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, f"ORT_{level}")
    return runtime.InferenceSession(exact(proto).SerializeToString(), options, providers=["CPUExecutionProvider"])


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _name(node: onnx.NodeProto, at: int) -> str:
    return node.input[at] if at < len(node.input) else ""


def _as_bytes(
    graph: onnx.GraphProto, node: onnx.NodeProto, at: int, zero: int, held: Mapping[str, TensorProto]
) -> None:
    """Gives a node other names for a weight and its zero point, and the graph what they stand for."""
    old = _name(node, zero)
    if old and old not in held:
        return
    scale = _name(node, 1) if node.op_type == "DequantizeLinear" else ""  # which has the zero point's shape
    if scale and scale not in held:
        return
    zeros = numpy_helper.to_array(held[old]) if old else np.zeros(list(held[scale].dims) if scale else [], np.int8)
    node.input.extend([""] * (zero + 1 - len(node.input)))
    for i, array in ((at, numpy_helper.to_array(held[node.input[at]])), (zero, zeros)):
        name = f"{node.input[i]} as bytes" if node.input[i] else f"{node.input[at]}, zero"
        if name not in {w.name for w in graph.initializer}:
            graph.initializer.append(numpy_helper.from_array((array.astype(np.int16) + 128).astype(np.uint8), name))
        node.input[i] = name
