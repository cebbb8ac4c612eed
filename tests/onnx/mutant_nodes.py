"""Changes of a model's nodes: what they are called, read and give, their order, operators, attributes, functions."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.onnx.models import node
from tests.onnx.mutant_bases import some_base, whole
from tests.onnx.mutant_fields import FLOATS, NUMBERS, TEXTS, Rng, graphs, nodes, pick


def names(model: onnx.ModelProto, rng: Rng) -> None:
    """Names given twice, never, too late, to itself, or to nothing."""
    known = [n for m in nodes(model) for n in (*m.input, *m.output)] + ["", "nothing", "x", "y"]
    item = pick(rng, nodes(model))
    if item is None:
        return
    field = rng.choice((item.input, item.output))
    if field and rng.random() < 0.7:
        field[rng.randrange(len(field))] = rng.choice(known)
    elif rng.random() < 0.5:
        field.append(rng.choice(known))
    elif field:
        del field[rng.randrange(len(field))]


def listed(model: onnx.ModelProto, rng: Rng) -> None:
    """Inputs, outputs and initializers renamed, repeated, taken away."""
    graph = rng.choice([g for g in graphs(model) if hasattr(g, "initializer")])
    field = getattr(graph, rng.choice(("input", "output", "initializer", "value_info")))
    if not field:
        return
    at = rng.randrange(len(field))
    match rng.randrange(3):
        case 0:
            field[at].name = rng.choice((*TEXTS, "x", "w"))
        case 1:
            field.append(field[at])
        case _:
            del field[at]


def order(model: onnx.ModelProto, rng: Rng) -> None:
    graph = rng.choice(graphs(model))
    shuffled = list(graph.node)
    rng.shuffle(shuffled)
    del graph.node[:]
    graph.node.extend(shuffled)


def cycle(model: onnx.ModelProto, rng: Rng) -> None:
    item = pick(rng, [n for n in nodes(model) if n.input and n.output])
    if item is not None:
        item.input[rng.randrange(len(item.input))] = rng.choice(item.output)


def copies(model: onnx.ModelProto, rng: Rng) -> None:
    graph = rng.choice(graphs(model))
    item = pick(rng, graph.node)
    if item is not None:
        graph.node.extend([item] * rng.choice((1, 2, 50)))


def removed(model: onnx.ModelProto, rng: Rng) -> None:
    graph = rng.choice(graphs(model))
    if graph.node:
        del graph.node[rng.randrange(len(graph.node))]


@functools.cache
def _kinds() -> list[tuple[str, str]]:
    return sorted({(s.domain, s.name) for s in onnx.defs.get_all_schemas()})


def operators(model: onnx.ModelProto, rng: Rng) -> None:
    item = pick(rng, nodes(model))
    if item is not None:
        item.domain, item.op_type = rng.choice(_kinds())
        if rng.random() < 0.2:
            item.domain = rng.choice(("", "ai.onnx", "f", "elsewhere"))


def versions(model: onnx.ModelProto, rng: Rng) -> None:
    if model.opset_import and rng.random() < 0.8:
        rng.choice(model.opset_import).version = rng.choice((*range(1, 27), 0, -1, 1 << 40))
    else:
        model.opset_import.add(domain=rng.choice(("", "ai.onnx", "f")), version=rng.choice((1, 9, 21)))


def attribute_values(model: onnx.ModelProto, rng: Rng) -> None:
    attribute = pick(rng, [a for n in nodes(model) for a in n.attribute])
    if attribute is None:
        return
    kinds = onnx.AttributeProto
    if attribute.type == kinds.INT:
        attribute.i = rng.choice(NUMBERS)
    elif attribute.type == kinds.FLOAT:
        attribute.f = rng.choice(FLOATS)
    elif attribute.type == kinds.STRING:
        attribute.s = rng.choice((*(t.encode() for t in TEXTS), b"\xff\xfe"))
    elif attribute.type == kinds.INTS and attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
        if rng.random() < 0.3:
            attribute.ints.extend([1] * rng.choice((1, 30)))


def attribute_types(model: onnx.ModelProto, rng: Rng) -> None:
    attribute = pick(rng, [a for n in nodes(model) for a in n.attribute])
    if attribute is None:
        return
    if rng.random() < 0.5:
        attribute.type = rng.choice(list(onnx.AttributeProto.AttributeType.values()))
    else:
        attribute.CopyFrom(_attribute(attribute.name, rng))


def _attribute(name: str, rng: Rng) -> onnx.AttributeProto:
    made: Any = rng.choice((
        rng.choice(NUMBERS), rng.choice(FLOATS), rng.choice(TEXTS), [rng.choice(NUMBERS) for _ in range(3)],
        [1.0, math.nan],
        numpy_helper.from_array(np.ones((2, 2), np.float32)), helper.make_graph([], "g", [], []), ["a", "b"],
    ))  # fmt: skip
    return helper.make_attribute(name, made)


def attribute_names(model: onnx.ModelProto, rng: Rng) -> None:
    item = pick(rng, nodes(model))
    if item is None:
        return
    schemas = [s for s in onnx.defs.get_all_schemas() if s.name == item.op_type and s.domain == item.domain]
    wanted = [*(schemas[0].attributes if schemas else ()), "alpha", "axis", "nothing", ""]
    match rng.randrange(4):
        case 0 if item.attribute:
            del item.attribute[rng.randrange(len(item.attribute))]
        case 1 if item.attribute:
            item.attribute.append(item.attribute[rng.randrange(len(item.attribute))])
        case 2 if item.attribute:
            rng.choice(item.attribute).ref_attr_name = rng.choice(("alpha", "axis", "nothing"))
        case _:
            item.attribute.append(_attribute(rng.choice(wanted), rng))


def calls(model: onnx.ModelProto, rng: Rng) -> None:
    """Nodes that call functions, some of them the one they stand in."""
    item = pick(rng, nodes(model))
    if item is None:
        return
    if model.functions:
        function = rng.choice(model.functions)
        item.domain, item.op_type = function.domain, function.name
        if rng.random() < 0.3:
            model.functions.append(function)
        return
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    inner = node("Mine", "a", "b", domain="f") if rng.random() < 0.5 else node("Neg", "a", "b")
    model.functions.append(helper.make_function("f", "Mine", ["a"], ["b"], [inner], imports))
    model.opset_import.append(helper.make_opsetid("f", 1))
    item.domain, item.op_type = "f", "Mine"


def spliced(model: onnx.ModelProto, rng: Rng) -> None:
    """A node of another model."""
    other = onnx.ModelProto.FromString(whole(some_base(rng)))
    graph = rng.choice(graphs(model))
    graph.node.insert(rng.randrange(len(graph.node) + 1), rng.choice(nodes(other)))
