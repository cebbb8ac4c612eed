"""Sequences and optionals: lists and None on the caller's side, named tensors on the program's.

A nest is the structure of an input or output: the name of a tensor, a list of nests, None, or, for outputs, a tensor
with a key for each column, whose rows become a list of dicts. The model's type, `optional(seq(tensor(float)))` for
example, says which of them it is.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

import onnx

from rlx.onnx.reader.call import AnyValue, Maps, Maybe, Series, Value
from rlx.onnx.reader.elements import CODES, ELEMENTS, NAMES, Array, ElementType, key_name
from rlx.onnx.reader.string_table import as_array
from rlx.records import Record


class Columns(Record):
    """A tensor whose rows are maps with these keys."""

    name: str
    keys: tuple[Any, ...]


Structure = Any  # str | list[Structure] | None | Columns
BY_NAME: dict[str, ElementType] = {name: dtype for dtype, name in NAMES.items()}


def inner(kind: str) -> str:
    """The type inside a container type: tensor(float) of seq(tensor(float))."""
    return kind[kind.index("(") + 1 : -1]


def flattened(inputs: Mapping[str, Any], taken: Container[str]) -> tuple[dict[str, Array], dict[str, Structure]]:
    """The tensors of inputs by name, and each input's nest. The items of `xs` are `xs[0]`, `xs[1]` …, with a
    mark where an input in `taken` has that name."""
    leaves: dict[str, Array] = {}

    def walk(name: str, value: Any, top: bool) -> Structure:
        if value is None:
            return None
        if isinstance(value, list):
            return [walk(f"{name}[{k}]", v, False) for k, v in enumerate(value)]
        while not top and (name in taken or name in leaves):
            name += "'"
        leaves[name] = value
        return name

    return leaves, {name: walk(name, value, True) for name, value in inputs.items()}


def arrays_in(value: Any, nested: bool) -> Any:
    """A caller's value as arrays: for a nested input its items."""
    if nested and (value is None or isinstance(value, list | tuple)):
        return None if value is None else [arrays_in(v, True) for v in value]
    return as_array(value)


def assembled(nest: Structure, leaf: Callable[[str], Any]) -> Any:
    """The caller's result: arrays, lists of them, None."""
    if nest is None:
        return None
    if isinstance(nest, Columns):
        return [dict(zip(nest.keys, row, strict=True)) for row in leaf(nest.name).tolist()]
    return [assembled(n, leaf) for n in nest] if isinstance(nest, list) else leaf(nest)


def held(nest: Structure, leaves: Mapping[str, Value], kind: str) -> AnyValue:
    """An input in the builder's form."""
    if kind.startswith("seq("):
        return Series(tuple(held(n, leaves, inner(kind)) for n in nest), inner(kind))
    if kind.startswith("optional("):
        return Maybe(None if nest is None else held(nest, leaves, inner(kind)), inner(kind))
    return leaves[nest]


def accepted(value: AnyValue, declared: Any) -> AnyValue:
    """The value for a graph's input of that TypeProto: a plain value becomes an optional where one is declared."""
    if declared.WhichOneof("value") == "optional_type" and not isinstance(value, Maybe):
        return Maybe(value, value.kind)
    return value


def structure_of(name: str, value: AnyValue, leaf: Callable[[str, Value], None]) -> Structure:
    """The nest of an output; `leaf` is called with each tensor's name."""
    if isinstance(value, Series):
        return [structure_of(f"{name}[{k}]", item, leaf) for k, item in enumerate(value.items)]
    if isinstance(value, Maps):
        leaf(name, value.rows)
        return Columns(name, tuple(value.keys.tolist()))
    if isinstance(value, Maybe):
        return None if value.item is None else structure_of(name, value.item, leaf)
    leaf(name, value)
    return name


def kind_of(proto: Any) -> str | None:
    """A TypeProto as ONNX writes it; None where it leaves part of the type open."""
    word = proto.WhichOneof("value")
    if word in ("sequence_type", "optional_type"):
        element = kind_of(getattr(proto, word).elem_type)
        return None if element is None else f"{'seq' if word == 'sequence_type' else word[:8]}({element})"
    if word == "map_type":
        value = kind_of(proto.map_type.value_type)
        return None if value is None else f"map({key_name(proto.map_type.key_type)},{value})"
    if word != "tensor_type" or proto.tensor_type.elem_type not in ELEMENTS:
        return None
    return NAMES[ELEMENTS[proto.tensor_type.elem_type]]


def proto_of(value: AnyValue | str) -> Any:
    """The TypeProto of a value in the builder's form, or of a type as ONNX writes it."""
    proto = onnx.TypeProto()
    kind = value if isinstance(value, str) else value.kind
    for word, field in (("seq(", "sequence_type"), ("optional(", "optional_type")):
        if kind.startswith(word):
            getattr(proto, field).elem_type.CopyFrom(proto_of(inner(kind)))
            return proto
    proto.tensor_type.elem_type = CODES[BY_NAME[kind]]
    if isinstance(value, Value):
        proto.tensor_type.shape.SetInParent()
        for n in value.tensor.shape:
            proto.tensor_type.shape.dim.add().dim_value = n
    return proto
