"""GGUF files written byte by byte, and the table of those that are wrong: a name, the bytes, words of the message."""

from __future__ import annotations

import struct
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "B",
    U64: "Q",
    I64: "q",
    F64: "d",
}


def text(value: str | bytes, length: int | None = None) -> bytes:
    """A string; `length` is what the file says it has."""
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(content) if length is None else length) + content


def number(kind: int, value: Any) -> bytes:
    return struct.pack("<" + _CODES[kind], value)


def key(name: str | bytes, kind: int, content: Any) -> bytes:
    """An entry of the metadata; `content` is a number, or the bytes of the value."""
    return (
        text(name)
        + struct.pack("<I", kind)
        + (content if isinstance(content, bytes) else number(kind, content))
    )


def array(kind: int, content: bytes, count: int) -> bytes:
    return struct.pack("<IQ", kind, count) + content


def info(name: str | bytes, dims: tuple[int, ...], kind: int, offset: int, rank: int | None = None) -> bytes:
    rank = len(dims) if rank is None else rank
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", rank, *dims, kind, offset)


def blob(
    keys: list[bytes] | None = None,
    infos: list[bytes] | None = None,
    data: bytes = bytes(64),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_keys: int | None = None,
    n_infos: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file; the counts are what its head says."""
    keys = [key("general.architecture", STRING, text("llama"))] if keys is None else keys
    infos = [info("a", (8,), 0, 0), info("b", (4, 2), 0, 32)] if infos is None else infos
    head = magic + struct.pack(
        "<IQQ", version, len(infos) if n_infos is None else n_infos, len(keys) if n_keys is None else n_keys
    )
    made = head + b"".join(keys) + b"".join(infos)
    return made + bytes(-len(made) % alignment) + data


def deep(depth: int) -> bytes:
    """Arrays in arrays; the innermost holds a byte."""
    return array(U8, b"\1", 1) if depth == 1 else array(ARRAY, deep(depth - 1), 1)


A, B = info("a", (8,), 0, 0), info("b", (4, 2), 0, 32)
ALIGN = "general.alignment"
MALFORMED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "no GGUF file"),
    "half a magic": (b"GG", "no GGUF file"),
    "the magic alone": (b"GGUF", "the version"),
    "another magic": (blob(magic=b"GGUX"), "GGUX"),
    "a magic of other case": (blob(magic=b"gguf"), "no GGUF file"),
    "an older format of ggml": (blob(magic=b"tjgg"), "GGJT"),
    "a torch archive": (blob(magic=b"PK\3\4"), "ZIP"),
    "a pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    "an HTML page": (b"<!DOCTYPE html><html></html>", "HTML"),
    "version 0": (blob(version=0), "version 0"),
    "version 1": (blob(version=1), "version 1"),
    "version 4": (blob(version=4), "version 4"),
    "the largest version": (blob(version=2**32 - 1), "version 4294967295"),
    "big-endian, version 3": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "big-endian, version 2": (b"GGUF" + struct.pack(">IQQ", 2, 0, 0) + bytes(64), "big-endian"),
    "counts cut off": (blob()[:20], "the count of keys"),
    "a count of tensors that wraps": (blob(n_infos=2**64 - 1), "tensors"),
    "a count of tensors beyond the file": (blob(n_infos=20), "cannot hold them"),
    "one tensor too many": (blob(n_infos=3), "tensor"),
    "a count of keys that wraps": (blob(n_keys=2**64 - 1), "keys"),
    "a count of keys of 2^63": (blob(n_keys=2**63), "keys"),
    "a count of keys beyond the file": (blob(n_keys=20), "cannot hold them"),
    "a key too few": (blob([key("a", U8, 1), key("b", U8, 1)], n_keys=1), "tensor"),
    "a key's length that wraps": (blob([text("x", 2**64 - 1)]), "key 0"),
    "a key longer than keys may be": (blob([key("k" * 65_536, U8, 1)]), "65,535"),
    "a key longer than the file": (blob([text("x", 60_000)], []), "the file ends"),
    "a key that is not UTF-8": (blob([key(b"\xff\xfe", U8, 1)]), "UTF-8"),
    "the same key twice": (blob([key("k", U8, 1), key("k", U8, 1)]), "twice"),
    "an unknown type of value": (blob([key("k", 13, b"\0" * 8)]), "type 13"),
    "the largest type of value": (blob([key("k", 2**32 - 1, b"")]), "type 4294967295"),
    "a bool of 2": (blob([key("k", BOOL, 2)]), "bool"),
    "a text's length that wraps": (blob([key("k", STRING, text("", 2**64 - 8))]), "'k'"),
    "a text of 2^63": (blob([key("k", STRING, text("", 2**63))]), "'k'"),
    "a text that is not UTF-8": (blob([key("k", STRING, text(b"ab\xc3"))]), "UTF-8"),
    "a text with a surrogate": (blob([key("k", STRING, text(b"\xed\xa0\x80"))]), "UTF-8"),
    "an array of an unknown type": (blob([key("k", ARRAY, array(99, b"", 1))]), "type 99"),
    "an array whose count wraps": (blob([key("k", ARRAY, array(U32, b"", 2**64 - 1))]), "elements"),
    "an array whose bytes wrap": (blob([key("k", ARRAY, array(U64, b"", 2**61 + 1))]), "elements"),
    "an array beyond the file": (blob([key("k", ARRAY, array(U32, b"", 1000))]), "the file ends"),
    "an array of more than may be": (blob([key("k", ARRAY, array(U8, b"", 1 << 23))]), "4,194,304"),
    "texts beyond the file": (blob([key("k", ARRAY, array(STRING, b"", 1 << 20))]), "no room"),
    "texts whose lengths wrap": (blob([key("k", ARRAY, array(STRING, text("", 2**64 - 1) * 2, 2))]), "'k'"),
    "a text that is not UTF-8 in an array": (blob([key("k", ARRAY, array(STRING, text(b"\x80"), 1))]), "UTF-8"),
    "arrays beyond the file": (blob([key("k", ARRAY, array(ARRAY, b"", 1 << 20))]), "no room"),
    "an array of bools of 7": (blob([key("k", ARRAY, array(BOOL, b"\1\7", 2))]), "bool"),
    "arrays nested 5 deep": (blob([key("k", ARRAY, deep(5))]), "nested"),
    "arrays nested 900 deep": (blob([key("k", ARRAY, deep(900))]), "nested"),
    "an array's count cut off": (blob([key("k", ARRAY, struct.pack("<I", U8))], [], b"", alignment=1), "'k'"),
    "alignment 0": (blob([key(ALIGN, U32, 0)]), "power of two"),
    "alignment 24": (blob([key(ALIGN, U32, 24)]), "power of two"),
    "alignment -32": (blob([key(ALIGN, I32, -32)]), "power of two"),
    "alignment 2^31": (blob([key(ALIGN, U32, 2**31)]), "power of two"),
    "alignment as text": (blob([key(ALIGN, STRING, text("32"))]), "power of two"),
    "alignment as a float": (blob([key(ALIGN, F32, 32.0)]), "power of two"),
    "alignment true": (blob([key(ALIGN, BOOL, 1)]), "power of two"),
    "a tensor's name that wraps": (blob(None, [text("a", 2**64 - 1)]), "name"),
    "a tensor's name of 2,000 bytes": (blob(None, [info("n" * 2000, (8,), 0, 0)]), "1,024"),
    "a tensor's name that is not UTF-8": (blob(None, [info(b"\xff", (8,), 0, 0)]), "UTF-8"),
    "the same tensor twice": (blob(None, [A, info("a", (8,), 0, 32)]), "twice"),
    "five dimensions": (blob(None, [info("a", (1, 1, 1, 1, 8), 0, 0)]), "5 dimensions"),
    "2^32 - 1 dimensions": (blob(None, [info("a", (8,), 0, 0, rank=2**32 - 1)]), "dimensions"),
    "dimensions cut off": (blob(None, [text("a") + struct.pack("<IQ", 4, 8)], b""), "tensor 'a'"),
    "a tensor of an unknown type": (blob(None, [info("a", (8,), 77, 0)]), "type 77"),
    "a tensor of a type after the last one": (blob(None, [info("a", (8,), 42, 0)]), "type 42"),
    "a tensor of a withdrawn type": (blob(None, [info("a", (32,), 4, 0)]), "withdrawn"),
    "a tensor of Q8_K": (blob(None, [info("a", (256,), 15, 0)]), "Q8_K"),
    "a tensor of I16": (blob(None, [info("a", (8,), 25, 0)]), "I16"),
    "half a block": (blob(None, [info("a", (16,), 8, 0)]), "blocks of 32"),
    "a scalar of blocks": (blob(None, [info("a", (), 12, 0)]), "blocks of 256"),
    "an offset that is not aligned": (blob(None, [info("a", (8,), 0, 4)]), "alignment"),
    "an offset behind the end": (blob(None, [info("a", (8,), 0, 64)]), "the file ends"),
    "an offset that wraps": (blob(None, [info("a", (8,), 0, 2**64 - 32)]), "the file ends"),
    "an offset far behind the end": (blob(None, [info("a", (0,), 0, 2**40)]), "the file ends"),
    "a tensor larger than the file": (blob(None, [info("a", (17,), 0, 0)]), "the file ends"),
    "dimensions whose product wraps to 0": (blob(None, [info("a", (2**32, 2**32), 0, 0)]), "beyond"),
    "dimensions whose product wraps to 8": (blob(None, [info("a", (2**61 + 1, 8), 0, 0)]), "beyond"),
    "dimensions whose bytes wrap": (blob(None, [info("a", (2**62 + 8,), 0, 0)]), "beyond"),
    "dimensions beyond an array beside 0": (blob(None, [info("a", (2**63, 0, 4), 0, 0)]), "beyond"),
    "blocks whose bytes wrap": (blob(None, [info("a", (2**60, 256), 12, 0)]), "beyond"),
    "tensors at the same place": (blob(None, [A, info("b", (8,), 0, 0)]), "overlaps"),
    "tensors that overlap": (blob(None, [info("a", (12,), 0, 0), B]), "overlaps"),
    "a tensor inside another": (blob(None, [info("a", (16,), 0, 0), B]), "overlaps"),
    "no data": (blob(data=b""), "the file ends"),
    "data cut short": (blob(data=bytes(63)), "cut short"),
    "split without a name for it": (blob([key("split.count", U16, 2), key("split.no", U16, 0)]), "00002.gguf"),
    "split into too many": (blob([key("split.count", U16, 60_000)]), "1,000"),
    "split.count as text": (blob([key("split.count", STRING, text("2"))]), "split.count"),
    "split.count of less than none": (blob([key("split.count", I32, -1)]), "split.count"),
}  # fmt: skip
