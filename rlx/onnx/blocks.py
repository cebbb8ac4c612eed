"""The long data of an ONNX file's initializers, found in its bytes: apart from these a file is small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # protobuf's wire types
LARGE_BYTES = 1 << 16  # shorter data stays in the message
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # fields of ModelProto, of GraphProto, of TensorProto


def without_blocks(content: bytes, blocks: dict[int, memoryview]) -> bytes:
    """The message without the long raw_data of its initializers, which go to `blocks` by the initializers' numbers.

    A file with a repeated singular field, or one that cannot be parsed, is returned as it is."""
    view = memoryview(content)
    graphs = [part for part in _parts(content, 0, len(content)) if part.field == _GRAPH]
    if len(graphs) != 1 or graphs[0].inner is None:
        return content
    graph, at, number = graphs[0], graphs[0].inner, 0
    kept: list[bytes | memoryview] = []
    taken: dict[int, memoryview] = {}
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
                taken[number] = view[raw.inner : raw.end]
                at = part.end
        number += 1
    if not taken:
        return content
    blocks.update(taken)
    inner = _field(_GRAPH, *kept, view[at : graph.end])
    return b"".join((view[: graph.start], *inner, view[graph.end :]))


def place_of(block: memoryview) -> tuple[int, int]:
    """The offset of a part of a file's content in the file, and its number of bytes."""
    whole: Any = block.obj
    begun = np.frombuffer(block, np.uint8).ctypes.data - np.frombuffer(whole, np.uint8).ctypes.data
    return int(begun), len(block)


class _Part(NamedTuple):
    """A field of a message: its number, where it begins and ends, and for a length-delimited field where its content
    begins."""

    field: int
    start: int
    inner: int | None
    end: int


def _parts(content: bytes, at: int, end: int) -> Iterator[_Part]:
    """The fields of a message, up to the first that cannot be parsed."""
    while at < end:
        start = at
        tag, at = varint(content, at, end)
        wire, inner = tag & 7, None
        if wire == LENGTH:
            length, inner = varint(content, at, end)
            at = inner + length
        elif wire == VARINT:
            _, at = varint(content, at, end)
        elif wire in (FIXED32, FIXED64):
            at += 4 if wire == FIXED32 else 8
        else:
            return
        if at > end:
            return
        yield _Part(tag >> 3, start, inner, at)


def _field(number: int, *content: bytes | memoryview) -> Sequence[bytes | memoryview]:
    """A length-delimited field of this number and content, in pieces."""
    return _encoded(number << 3 | LENGTH), _encoded(sum(map(len, content))), *content


def _encoded(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def varint(content: bytes, at: int, end: int) -> tuple[int, int]:
    """A varint and the position after it, which is beyond `end` if the varint is cut off."""
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
