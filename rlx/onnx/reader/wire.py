"""The memory that parsing a file takes, counted in its bytes before protobuf parses it: two bytes may be an object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import onnx

from rlx.errors import ModelFormatError

SMALL_BYTES = 1 << 18  # a smaller file cannot become large
MAX_NODES = 100_000
# Bytes of memory for a message, a string and a packed number in protobuf, including the copy that is kept.
MESSAGE, TEXT, NUMBER = 300, 40, 8
MAX_PARSED_BYTES = 48 << 20  # such objects take at most this, plus TIMES_FILE times the file
TIMES_FILE = 8
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


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
            tag, at = (content[at], at + 1) if content[at] < 128 else _varint(content, at, end)
            wire = tag & 7
            if wire == _LENGTH:
                short = at < end and content[at] < 128
                length, at = (content[at], at + 1) if short else _varint(content, at, end)
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
            elif wire == _VARINT:
                _, at = _varint(content, at, end)
                total += NUMBER
            elif wire in (_FIXED32, _FIXED64):
                at += 4 if wire == _FIXED32 else 8
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


LARGE_BYTES = 1 << 16  # shorter data stays in the message
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # fields of ModelProto, of GraphProto, of TensorProto


def without_blocks(content: bytes, blocks: dict[int, memoryview]) -> bytes:
    """The message without the long raw_data of its initializers, which go to `blocks` by the initializers' numbers.

    A file that says something twice, or that no parser takes, is returned as it is."""
    view = memoryview(content)
    graphs = [part for part in _parts(content, 0, len(content)) if part.field == _GRAPH]
    if len(graphs) != 1 or graphs[0].inner is None:
        return content
    graph, at, number = graphs[0], graphs[0].inner, 0
    kept: list[bytes | memoryview] = []
    found: dict[int, memoryview] = {}
    for part in _parts(content, at, graph.end):
        if part.field != _INITIALIZER or part.inner is None:
            continue
        if part.end - part.inner > LARGE_BYTES:
            fields = list(_parts(content, part.inner, part.end))
            if not fields or fields[-1].end != part.end:
                return content
            raws = [f for f in fields if f.field == _RAW_DATA]
            if len(raws) == 1 and raws[0].inner is not None and raws[0].end - raws[0].inner > LARGE_BYTES:
                raw = raws[0]
                rest = view[part.inner : raw.start], view[raw.end : part.end]
                kept += [view[at : part.start], *_field(_INITIALIZER, *rest)]
                found[number] = view[raw.inner : raw.end]
                at = part.end
        number += 1
    if not found:
        return content
    blocks.update(found)
    inner = _field(_GRAPH, *kept, view[at : graph.end])
    return b"".join((view[: graph.start], *inner, view[graph.end :]))


def place_of(block: memoryview) -> tuple[int, int]:
    """Where a part of a file's content begins in it, and its bytes."""
    whole: Any = block.obj
    begun = np.frombuffer(block, np.uint8).ctypes.data - np.frombuffer(whole, np.uint8).ctypes.data
    return int(begun), len(block)


class _Part(NamedTuple):
    """A field of a message: its number, where it begins and ends, and where the content of one with a length begins."""

    field: int
    start: int
    inner: int | None
    end: int


def _parts(content: bytes, at: int, end: int) -> Iterator[_Part]:
    """The fields of a message, up to one that no parser takes."""
    while at < end:
        start = at
        tag, at = _varint(content, at, end)
        wire, inner = tag & 7, None
        if wire == _LENGTH:
            length, inner = _varint(content, at, end)
            at = inner + length
        elif wire == _VARINT:
            _, at = _varint(content, at, end)
        elif wire in (_FIXED32, _FIXED64):
            at += 4 if wire == _FIXED32 else 8
        else:
            return
        if at > end:
            return
        yield _Part(tag >> 3, start, inner, at)


def _field(number: int, *content: bytes | memoryview) -> Sequence[bytes | memoryview]:
    """A field of this content."""
    return _encoded(number << 3 | _LENGTH), _encoded(sum(map(len, content))), *content


def _encoded(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def _varint(content: bytes, at: int, end: int) -> tuple[int, int]:
    """A number and the position after it, which is beyond `end` where the number is cut off."""
    number = shift = 0
    while at < end:
        byte = content[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            break
    return number, end
