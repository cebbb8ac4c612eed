"""Changes of a model's tensors and of the types it declares: sizes, lengths, element types, numbers, ranks."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

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


def pick(rng: Rng, items: Any) -> Any:
    """One of the items; None where there is none."""
    listed = list(items)
    return rng.choice(listed) if listed else None


def dims(model: onnx.ModelProto, rng: Rng) -> None:
    tensor = pick(rng, tensors(model))
    if tensor is None:
        return
    if tensor.dims and rng.random() < 0.7:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
    else:
        tensor.dims[:] = [rng.choice(NUMBERS) for _ in range(rng.choice((0, 1, 2, 5, 40)))]


def lengths(model: onnx.ModelProto, rng: Rng) -> None:
    tensor = pick(rng, tensors(model))
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
        tensor = pick(rng, tensors(model))
        if tensor is not None:
            tensor.data_type = code
    else:
        info = pick(rng, infos(model))
        if info is not None:
            info.type.tensor_type.elem_type = code


_VALUES: dict[int, type] = {
    TensorProto.INT64: np.int64,
    TensorProto.INT32: np.int32,
    TensorProto.FLOAT: np.float32,
}


def values(model: onnx.ModelProto, rng: Rng) -> None:
    """Numbers that shapes, axes and counts depend on."""
    tensor = pick(rng, [t for t in tensors(model) if t.data_type in _VALUES and 0 < len(t.raw_data) <= 4096])
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


def ranks(model: onnx.ModelProto, rng: Rng) -> None:
    info = pick(rng, infos(model))
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
    info = pick(rng, infos(model))
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
