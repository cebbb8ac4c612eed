"""Small files that ask for much: depth, nodes, steps, elements."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.onnx.models import node
from tests.onnx.mutant_bases import whole

Rng = random.Random


def field(number: int, content: bytes) -> bytes:
    """A field of bytes as protobuf writes it."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(n: int) -> bytes:
    made = bytearray()
    while n > 127:
        made.append(n & 127 | 128)
        n >>= 7
    return bytes([*made, n])


@functools.cache
def nested(depth: int) -> bytes:
    """Graphs inside graphs: attribute g (6) of node (1), by hand, since no library builds them so deep."""
    graph = b""
    for _ in range(depth):
        attribute = field(1, b"then_branch") + field(6, graph) + varint(20 << 3) + varint(5)
        graph = field(1, field(1, b"c") + field(2, b"y") + field(4, b"If") + field(5, attribute)) + field(
            2, b"g"
        )
    return varint(1 << 3) + varint(10) + field(8, varint(2 << 3) + varint(21)) + field(7, graph)


def _deep(rng: Rng) -> bytes:
    return nested(rng.choice((10, 31, 33, 60, 200, 1000, 10_000)))


def _deep_types(rng: Rng) -> bytes:
    """Sequences of sequences of …, as an input's type."""
    kind = varint(1 << 3) + varint(1)
    kind = field(1, kind)
    for _ in range(rng.choice((5, 40, 1000, 10_000))):
        kind = field(4, field(1, kind))
    value = field(1, b"s") + field(2, kind)
    return field(8, varint(2 << 3) + varint(21)) + field(7, field(2, b"g") + field(11, value))


def _doubling(rng: Rng) -> bytes:
    """Functions that each call the next several times."""
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    times, depth = rng.choice((2, 4, 16)), rng.choice((8, 20, 31, 40))
    made = []
    for k in range(depth):
        name, domain = (f"F{k + 1}", "f") if k + 1 < depth else ("Neg", "")
        inside = [node(name, "a" if i == 0 else f"t{i - 1}", f"t{i}", domain=domain) for i in range(times)]
        made.append(helper.make_function("f", f"F{k}", ["a"], [f"t{times - 1}"], inside, imports))
    model = onnx.ModelProto.FromString(whole("functions"))
    del model.functions[:]
    del model.graph.node[:]
    model.functions.extend(made)
    model.graph.node.append(node("F0", "x", "y", domain="f"))
    return model.SerializeToString()


def _many(rng: Rng) -> bytes:
    """Nodes in a row."""
    model = onnx.ModelProto.FromString(whole("tiny"))
    del model.graph.node[:]
    count = rng.choice((1000, 3000))
    chain = [
        node(rng.choice(("Neg", "Relu", "Identity")), f"t{k - 1}" if k else "x", f"t{k}")
        for k in range(count)
    ]
    model.graph.node.extend([*chain, node("Relu", f"t{count - 1}", "y")])
    return model.SerializeToString()


def _growing(rng: Rng) -> bytes:
    """Each node doubles what the one before made: little at first, then more than any device has."""
    model = onnx.ModelProto.FromString(whole("tiny"))
    del model.graph.node[:]
    kind, count = rng.choice(("Concat", "Tile", "Expand", "Einsum")), rng.choice((4, 9, 40, 60))
    two = numpy_helper.from_array(np.array([1, 2]), "two")
    model.graph.initializer.append(two)
    for k in range(count):
        before, after = f"t{k - 1}" if k else "x", f"t{k}"
        if kind == "Concat":
            model.graph.node.append(node("Concat", f"{before} {before}", after, axis=0))
        elif kind == "Tile":
            model.graph.node.append(node("Tile", f"{before} two", after))
        elif kind == "Expand":
            model.graph.node.append(node("Unsqueeze", f"{before} zero", f"u{k}"))
            model.graph.node.append(node("Concat", f"u{k} u{k}", after, axis=0))
        else:
            model.graph.node.append(node("Einsum", f"{before} {before}", after, equation="...a,...b->...ab"))
    if kind == "Expand":
        model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "zero"))
    model.graph.node.append(node("Identity", f"t{count - 1}", "y"))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model.SerializeToString()


def _endless(rng: Rng) -> bytes:
    """Loops in loops, of many steps each."""
    steps = rng.choice((3, 1000, 1 << 40))
    model = onnx.ModelProto.FromString(whole("loops"))
    for tensor in model.graph.initializer:
        if tensor.name == "m":
            tensor.CopyFrom(numpy_helper.from_array(np.array(steps), "m"))
    loop = model.graph.node[0]
    if rng.random() < 0.4:  # only the condition ends it, and never does
        loop.input[0] = ""
        again = loop.attribute[0].g.node[1]
        again.CopyFrom(node("GreaterOrEqual", "i zero", "on"))
        model.graph.initializer.append(numpy_helper.from_array(np.array(0), "zero"))
        if rng.random() < 0.5:  # nor does anything grow
            del loop.output[1:], loop.attribute[0].g.output[2:], model.graph.output[0:], model.graph.node[1:]
            model.graph.output.append(helper.make_tensor_value_info("l", onnx.TensorProto.FLOAT, [2, 3]))
            return model.SerializeToString()
    for level in range(rng.choice((0, 1, 2))):
        body = loop.attribute[0].g
        add = next(n for n in body.node if n.op_type == "Add")
        inner = onnx.NodeProto()
        inner.CopyFrom(loop)
        _apart(inner.attribute[0].g, f"_{level}")
        inner.input[2] = add.input[0]
        inner.output[:] = [f"l{level}", f"r{level}"]
        add.input[0] = f"l{level}"
        body.node.insert(list(body.node).index(add), inner)
    return model.SerializeToString()


def _shape_loops(rng: Rng) -> bytes:
    """Loops that know all they read, and on which a shape depends: they are worked out while compiling."""
    model = onnx.ModelProto.FromString(whole("tiny"))
    top, boolean, i64 = rng.choice((5, 1000, 1 << 40)), onnx.TensorProto.BOOL, onnx.TensorProto.INT64
    loop: Any = None
    for level in range(rng.choice((1, 2, 3))):
        v, add = f"v{level}", node("Add", f"v{level} one", f"a{level}")
        nodes = [add, node("Less", f"a{level} top", f"o{level}")]
        if loop is not None:  # the loop inside begins anew in every step
            loop.input[2] = v
            nodes = [loop, node("Sub", f"{loop.output[0]} {loop.output[0]}", f"z{level}"), *nodes]
            add.input[1] = f"w{level}"
            nodes.insert(2, node("Add", f"z{level} one", f"w{level}"))
        ins = [
            helper.make_tensor_value_info(n, t, []) for n, t in ((f"i{level}", i64), (f"c{level}", boolean))
        ]
        outs = [
            helper.make_tensor_value_info(f"o{level}", boolean, []),
            helper.make_tensor_value_info(f"a{level}", i64, []),
        ]
        graph = helper.make_graph(nodes, "body", [*ins, helper.make_tensor_value_info(v, i64, [])], outs)
        loop = node("Loop", "_ true one", f"l{level}", body=graph)
    del model.graph.node[:]
    shape = [loop, node("Mod", f"{loop.output[0]} seven", "m"), node("Unsqueeze", "m axis", "n")]
    model.graph.node.extend([*shape, node("ConstantOfShape", "n", "e"), node("ReduceSum", "e", "r", keepdims=0),
                             node("Add", "x r", "y")])  # fmt: skip
    values = {"one": 1, "top": top, "seven": 7, "axis": [0], "true": True}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(a), n) for n, a in values.items())
    return model.SerializeToString()


def _apart(graph: Any, suffix: str) -> None:
    """Gives all names that the graph makes another ending."""
    made = {o for n in graph.node for o in n.output} | {i.name for i in graph.input}
    for n in graph.node:
        n.input[:] = [i + suffix if i in made else i for i in n.input]
        n.output[:] = [o + suffix for o in n.output]
    for item in (*graph.input, *graph.output):
        item.name = item.name + suffix if item.name in made else item.name


BOMBS: dict[str, Callable[[Rng], bytes]] = {
    "nested graphs": _deep, "nested types": _deep_types, "doubling functions": _doubling, "many nodes": _many,
    "growing": _growing, "loops": _endless, "loops in shapes": _shape_loops,
}  # fmt: skip
