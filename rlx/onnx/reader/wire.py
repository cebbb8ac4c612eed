"""The memory that parsing a file takes, counted in its bytes before protobuf parses it: two bytes may be an object."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx

from rlx.errors import ModelFormatError
from rlx.onnx.blocks import FIXED32, FIXED64, LENGTH, VARINT, varint

SMALL_BYTES = 1 << 18  # a smaller file cannot become large
MAX_NODES = 100_000
# Bytes of memory for a message, a string and a packed number in protobuf, including the copy that is kept.
MESSAGE, TEXT, NUMBER = 300, 40, 8
MAX_PARSED_BYTES = 48 << 20  # such objects take at most this, plus TIMES_FILE times the file
TIMES_FILE = 8


@cache
def _fields(kind: str) -> dict[int, str]:
    """The fields by number that hold more than integers: the type of a message field, "text" for a string, "plain" for
    a float."""
    result = {}
    for field in _descriptor(kind).fields:
        if field.message_type is not None:
            result[field.number] = str(field.message_type.full_name)
        elif field.cpp_type == field.CPPTYPE_STRING:
            result[field.number] = "text"
        elif field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
            result[field.number] = "plain"
    return result


@cache
def _descriptor(kind: str) -> Any:
    return onnx.ModelProto.DESCRIPTOR.file.message_types_by_name.get(kind.removeprefix("onnx.")) or _nested(kind)


def _nested(kind: str) -> Any:
    outer, _, name = kind.rpartition(".")
    return _descriptor(outer).nested_types_by_name[name]


def check_parsable(content: bytes, what: str) -> None:
    """Raises: ModelFormatError for a file of too many nodes, or one that would become many times as large in memory.
    Errors in the encoding are left to the parser."""
    if len(content) <= SMALL_BYTES:
        return
    limit = MAX_PARSED_BYTES + TIMES_FILE * len(content)
    total = nodes = 0
    stack = [(0, len(content), "onnx.ModelProto")]
    while stack:
        at, end, kind = stack.pop()
        fields = _fields(kind)
        while at < end:
            tag, at = (content[at], at + 1) if content[at] < 128 else varint(content, at, end)
            wire = tag & 7
            if wire == LENGTH:
                short = at < end and content[at] < 128
                length, at = (content[at], at + 1) if short else varint(content, at, end)
                inner = fields.get(tag >> 3, "number")
                if inner == "number":
                    total += NUMBER * length * (1 if kind == "onnx.TensorProto" else 2)  # tensors are not copied
                elif inner in ("text", "plain"):
                    total += TEXT
                else:
                    total += MESSAGE
                    nodes += inner == "onnx.NodeProto"
                    if length:
                        stack.append((at, min(at + length, end), inner))
                at += length
            elif wire == VARINT:
                _, at = varint(content, at, end)
                total += NUMBER
            elif wire in (FIXED32, FIXED64):
                at += 4 if wire == FIXED32 else 8
                total += NUMBER
            else:
                return
            if nodes > MAX_NODES:
                raise ModelFormatError(f"{what}: the model has more than {MAX_NODES:,} nodes")
            if total > limit:
                raise ModelFormatError(
                    f"{what}: its {len(content):,} bytes would become more than {limit:,} in memory; expected a file "
                    "of fewer and larger parts"
                )
