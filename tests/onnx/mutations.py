"""Mutants: sound models damaged in ways that a seed decides. The same seed is the same file."""

from __future__ import annotations

import functools
import math
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.onnx.models import node
from tests.onnx.mutant_bases import some_base, whole
from tests.onnx.mutant_bombs import BOMBS

NUMBERS = (
    0,
    -1,
    1,
    2,
    3,
    7,
    1 << 15,
    1 << 20,
    1 << 31,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 40,
    1 << 62,
    (1 << 63) - 1,
    -(1 << 63),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e30, 1e-30, 0.5, 3e9)
TEXTS = (
    "",
    "x",
    "y",
    "w",
    "nearest",
    "linear",
    "reflect",
    "SAME_UPPER",
    "VALID",
    "..",
    "a" * 300,
    "\u0000",
    "é",
)
Rng = random.Random
Change = Callable[[onnx.ModelProto, Rng], Any]


@dataclass(frozen=True)
class Mutant:
    """What was done to which model, and the file that came of it; `lay` puts other files beside it."""

    kind: str
    base: str
    content: bytes
    lay: Callable[[Path], None] | None = None


def mutant(seed: int) -> Mutant:
    """The mutant of a seed: the first ones cut the smallest model at each of its bytes."""
    if seed < len(whole("tiny")):
        return Mutant("cut at every byte", "tiny", whole("tiny")[:seed])
    rng = Rng(seed)
    draw = rng.random()
    if draw < 0.25:
        base = some_base(rng)
        return Mutant("bytes", base, damaged(whole(base), rng))
    if draw < 0.33:
        return outside(rng)
    if draw < 0.38:
        name, made = rng.choice(list(BOMBS.items()))
        return Mutant(name, "bomb", made(rng))
    base = some_base(rng)
    model = onnx.ModelProto.FromString(whole(base))
    names = rng.choices(list(CHANGES), k=rng.choice((1, 1, 1, 2, 3)))
    for name in names:
        CHANGES[name](model, rng)
    content = model.SerializeToString()
    return Mutant(names[0], base, damaged(content, rng) if rng.random() < 0.05 else content)


def damaged(content: bytes, rng: Rng) -> bytes:
    """Bytes changed, put in, taken out, copied from elsewhere, cut off."""
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(made) or 1)
        match rng.randrange(7):
            case 0:
                made[at : at + 1] = bytes([rng.randrange(256)])
            case 1 if made:
                made[at] ^= 1 << rng.randrange(8)
            case 2:
                made[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                del made[at : at + rng.randrange(1, 9)]
            case 4:
                start = rng.randrange(len(made) or 1)
                made[at:at] = made[start : start + rng.randrange(1, 40)]
            case 5:
                made[at:at] = b"\xff" * rng.randrange(1, 10) + b"\x01"  # a number of many bytes
            case _:
                del made[rng.randrange(len(made) + 1) :]
    return bytes(made)


# -- changes of fields


def graphs(model: onnx.ModelProto) -> list[Any]:
    """Every graph, those inside nodes too; functions have nodes as well."""
    found: list[Any] = [model.graph, *model.functions]
    for graph in found:
        for n in graph.node:
            found += [a.g for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    return found


def nodes(model: onnx.ModelProto) -> list[Any]:
    return [n for g in graphs(model) for n in g.node]


def tensors(model: onnx.ModelProto) -> list[Any]:
    held = [a.t for n in nodes(model) for a in n.attribute if a.type == onnx.AttributeProto.TENSOR]
    return [*held, *(t for g in graphs(model) if hasattr(g, "initializer") for t in g.initializer)]


def infos(model: onnx.ModelProto) -> list[Any]:
    return [
        i
        for g in graphs(model)
        if hasattr(g, "initializer")
        for f in ("input", "output", "value_info")
        for i in getattr(g, f)
    ]


def _pick(rng: Rng, items: Any) -> Any:
    """One of the items; None where there is none."""
    listed = list(items)
    return rng.choice(listed) if listed else None


def dims(model: onnx.ModelProto, rng: Rng) -> None:
    tensor = _pick(rng, tensors(model))
    if tensor is None:
        return
    if tensor.dims and rng.random() < 0.7:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
    else:
        tensor.dims[:] = [rng.choice(NUMBERS) for _ in range(rng.choice((0, 1, 2, 5, 40)))]


def lengths(model: onnx.ModelProto, rng: Rng) -> None:
    tensor = _pick(rng, tensors(model))
    if tensor is None:
        return
    match rng.randrange(5):
        case 0:
            tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
        case 1:
            tensor.raw_data = tensor.raw_data + rng.randbytes(rng.randrange(1, 9))
        case 2:
            tensor.ClearField("raw_data")
        case 3:
            getattr(tensor, rng.choice(("float_data", "int32_data", "int64_data", "double_data"))).extend(
                [1, 2, 3]
            )
        case _:
            tensor.string_data.append(b"\xff\xfe")


def element_types(model: onnx.ModelProto, rng: Rng) -> None:
    code = rng.choice([*range(28), 99, -1, 1 << 30])
    if rng.random() < 0.5:
        tensor = _pick(rng, tensors(model))
        if tensor is not None:
            tensor.data_type = code
    else:
        info = _pick(rng, infos(model))
        if info is not None:
            info.type.tensor_type.elem_type = code


_VALUES: dict[int, type] = {
    TensorProto.INT64: np.int64,
    TensorProto.INT32: np.int32,
    TensorProto.FLOAT: np.float32,
}


def values(model: onnx.ModelProto, rng: Rng) -> None:
    """Numbers that shapes, axes and counts depend on."""
    tensor = _pick(rng, [t for t in tensors(model) if t.data_type in _VALUES and 0 < len(t.raw_data) <= 4096])
    if tensor is None:
        return
    dtype = np.dtype(_VALUES[tensor.data_type])
    array = np.frombuffer(
        tensor.raw_data[: len(tensor.raw_data) // dtype.itemsize * dtype.itemsize], dtype
    ).copy()
    if array.size:
        number = rng.choice(FLOATS) if dtype.kind == "f" else rng.choice(NUMBERS)
        kept = number if dtype != np.int32 else max(-(1 << 31), min(int(number), (1 << 31) - 1))
        array[rng.randrange(array.size)] = kept
    if rng.random() < 0.3:
        array = array[: rng.randrange(array.size + 1)]
        tensor.dims[:] = [array.size]
    tensor.raw_data = array.tobytes()


def names(model: onnx.ModelProto, rng: Rng) -> None:
    """Names given twice, never, too late, to itself, or to nothing."""
    known = [n for m in nodes(model) for n in (*m.input, *m.output)] + ["", "nothing", "x", "y"]
    item = _pick(rng, nodes(model))
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
    item = _pick(rng, [n for n in nodes(model) if n.input and n.output])
    if item is not None:
        item.input[rng.randrange(len(item.input))] = rng.choice(item.output)


def copies(model: onnx.ModelProto, rng: Rng) -> None:
    graph = rng.choice(graphs(model))
    item = _pick(rng, graph.node)
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
    item = _pick(rng, nodes(model))
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
    attribute = _pick(rng, [a for n in nodes(model) for a in n.attribute])
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
    attribute = _pick(rng, [a for n in nodes(model) for a in n.attribute])
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
    item = _pick(rng, nodes(model))
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


def ranks(model: onnx.ModelProto, rng: Rng) -> None:
    info = _pick(rng, infos(model))
    if info is None:
        return
    shape = info.type.tensor_type.shape
    match rng.randrange(4):
        case 0:
            shape.dim.add().dim_value = rng.choice(NUMBERS)
        case 1 if shape.dim:
            del shape.dim[rng.randrange(len(shape.dim))]
        case 2 if shape.dim:
            rng.choice(shape.dim).dim_value = rng.choice(NUMBERS)
        case _:
            info.type.tensor_type.ClearField("shape")


def kinds_of_type(model: onnx.ModelProto, rng: Rng) -> None:
    """Sequences, optionals, maps, sparse tensors, strings, or no type at all."""
    info = _pick(rng, infos(model))
    if info is None:
        return
    element = onnx.TypeProto()
    element.CopyFrom(info.type)
    info.type.Clear()
    match rng.randrange(6):
        case 0:
            info.type.sequence_type.elem_type.CopyFrom(element)
        case 1:
            info.type.optional_type.elem_type.CopyFrom(element)
        case 2:
            info.type.map_type.key_type = TensorProto.STRING
            info.type.map_type.value_type.CopyFrom(element)
        case 3:
            info.type.sparse_tensor_type.elem_type = TensorProto.FLOAT
        case 4:
            info.type.tensor_type.elem_type = TensorProto.STRING
        case _:
            nested = info.type
            for _ in range(rng.choice((3, 40))):
                nested = (
                    nested.sequence_type.elem_type if rng.random() < 0.5 else nested.optional_type.elem_type
                )
            nested.CopyFrom(element)


def sparse(model: onnx.ModelProto, rng: Rng) -> None:
    made = model.graph.sparse_initializer.add()
    made.dims[:] = [rng.choice(NUMBERS)]
    made.values.CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), rng.choice(("w", "s"))))


def calls(model: onnx.ModelProto, rng: Rng) -> None:
    """Nodes that call functions, some of them the one they stand in."""
    item = _pick(rng, nodes(model))
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


CHANGES: dict[str, Change] = {
    f.__name__: f
    for f in (
        dims, lengths, element_types, values, values, names, listed, order, cycle, copies, removed, operators, versions,
        attribute_values, attribute_types, attribute_names, ranks, kinds_of_type, sparse, calls, spliced,
    )
}  # fmt: skip


# -- external data


def outside(rng: Rng) -> Mutant:
    """External data that leads elsewhere, lies about its length, or is no plain file."""
    model = onnx.ModelProto.FromString(whole("outside"))
    entries = {e.key: e for e in model.graph.initializer[0].external_data}
    places = (
        "weights.bin", "../secret", "/etc/passwd", "link", "hard", "folder/weights.bin", "inside/weights.bin", "pipe",
        "absent", "", ".", "..", "a\\b", "weights.bin\0", "./weights.bin", "inside/../weights.bin", "~/x", "a" * 5000,
        "mutant.onnx", "/dev/zero", "inside",
    )  # fmt: skip
    match rng.randrange(4):
        case 0 | 1:
            entries["location"].value = rng.choice(places)
        case 2:
            number = rng.choice((*map(str, NUMBERS), "", "x", "0x10", " 8", "9" * 40, "+8", "٣"))
            entries[rng.choice(("offset", "length"))].value = number
        case _:
            change = rng.choice((dims, element_types, lengths, ranks))
            change(model, rng)
    if rng.random() < 0.2:
        model.graph.initializer[0].external_data.add(
            key=rng.choice(("location", "checksum", "else")), value="x"
        )
    return Mutant("external data", "outside", model.SerializeToString(), lay)


def lay(folder: Path) -> None:
    """The files that mutants of external data point to."""
    content = np.arange(8, dtype=np.float32).tobytes()
    (folder / "weights.bin").write_bytes(content)
    (folder.parent / "secret").write_bytes(content)
    (folder / "inside").mkdir(exist_ok=True)
    (folder / "inside" / "weights.bin").write_bytes(content)
    for name, make in (
        ("link", lambda p: os.symlink(folder.parent / "secret", p)),
        ("hard", lambda p: os.link(folder.parent / "secret", p)),
        ("folder", lambda p: os.symlink(folder.parent, p)),
        ("pipe", os.mkfifo),
    ):
        if not (folder / name).is_symlink() and not (folder / name).exists():
            make(folder / name)
