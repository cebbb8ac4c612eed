"""Ways to damage a model folder's files and saved programs: bytes flipped and cut, other JSON, headers that lie."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from rlx.errors import ModelFormatError
from rlx.formats import gguf

WORDS = (
    b"-1", b"null", b"1e999", b"[]", b"{}", b'"', b"\\ud800", b"9" * 30, b"18446744073709551616", b"4294967296",
    b"true", b"2.5", b"\0", b"\xff", b"F64", b"U8", b"BOOL", b"__metadata__", b",", b":", b" ", b"[[[[[[[[",
    b"NaN", b"-0", b"\xed\xa0\x80", b"\xef\xbb\xbf",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 7, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**40, 0.5, -0.0, 1e-320, 1e308,
)  # fmt: skip
TEXTS = (
    "",
    "..",
    "../x",
    "/etc/passwd",
    "a\0b",
    "☃",
    "\ud800",
    "F32",
    "I64",
    "cls",
    "(a+)+$",
    "\\p{L}",
    "[",
    "x" * 300_000,
)
DEPTH = 10_000
LARGEST = 4 << 20  # bytes of a file: reading takes memory in proportion
_DEEP = "\x01deep"  # what is written as lists nested so deep, which no encoder writes

Change = Callable[[random.Random, Any], Any]


def mutant(name: str, original: bytes, seed: int) -> tuple[str, bytes]:
    """The file `name` damaged in the way of this seed, and what the way is called."""
    pick = random.Random(f"{name} {seed}")
    if name.endswith(".json"):
        return _json(pick, original) if pick.random() < 0.6 else _bytes(pick, original)
    if name.endswith(".rlx"):
        return _program(pick, original)
    if name.endswith(".gguf"):
        return _gguf(pick, original)
    size = int.from_bytes(original[:8], "little")
    header, data = original[8 : 8 + size], original[8 + size :]
    chance = pick.random()
    if chance < 0.25:
        return _bytes(pick, original)
    if chance < 0.4:
        way, text = _bytes(pick, header)
    elif chance < 0.7:
        way, text = _json(pick, header)
    elif chance < 0.95:
        way, text = "entries", _lying(pick, header)
    else:
        lengths = (0, 1, size - 1, size + 1, len(original), 2**32, 2**63, 2**64 - 8, 2**64 - 1, 100_000_001)
        return "length", pick.choice(lengths).to_bytes(8, "little") + original[8:]
    return f"header {way}", len(text).to_bytes(8, "little") + text + data


def _gguf(pick: random.Random, original: bytes) -> tuple[str, bytes]:
    """A GGUF file: damaged bytes, numbers of its structure that lie, other values of its metadata."""
    chance = pick.random()
    if chance < 0.3:
        return _bytes(pick, original)
    if chance < 0.65:
        made = bytearray(original)
        for _ in range(pick.choice((1, 1, 2))):
            at, size = pick.choice(gguf_fields(original))
            old = int.from_bytes(original[at : at + size], "little")
            flipped = old ^ 1 << pick.randrange(8 * size)
            new = pick.choice((old + 1, old - 1, old * 2, old + 256, flipped, *NUMBERS[:12]))
            made[at : at + size] = (int(new) % (1 << 8 * size)).to_bytes(size, "little")
        return "fields", bytes(made)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        path.write_bytes(original)
        with gguf.read(path) as file:
            metadata = [dict(file.metadata)]
            way = _edit(pick, metadata) if pick.random() < 0.7 else _nudge(pick, metadata)
            tensors = dict(file.tensors)
            if pick.random() < 0.1:
                tensors.pop(pick.choice(list(tensors)))
            try:
                gguf.write(path, metadata[0], tensors)
            except (ModelFormatError, AttributeError, OverflowError, TypeError):  # no file can say this
                return _bytes(pick, original)
        return f"metadata {way}", path.read_bytes()


@cache
def gguf_fields(content: bytes) -> list[tuple[int, int]]:
    """Where the counts, lengths, types, dimensions and offsets of a sound GGUF file stand, and their sizes."""
    found, at = [(4, 4), (8, 8), (16, 8)], 24

    def number(size: int) -> int:
        nonlocal at
        found.append((at, size))
        at += size
        return int.from_bytes(content[at - size : at], "little")

    def text() -> None:
        nonlocal at
        length = number(8)
        at += length

    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def value(kind: int) -> None:
        if kind == 9:
            inner, count = number(4), number(8)
            for _ in range(count):
                value(inner)
        elif kind == 8:
            text()
        else:
            number(sizes[kind])

    for _ in range(int.from_bytes(content[16:24], "little")):
        text()
        value(number(4))
    for _ in range(int.from_bytes(content[8:16], "little")):
        text()
        for _ in range(number(4)):
            number(8)
        number(4)
        number(8)
    return found


def _program(pick: random.Random, original: bytes) -> tuple[str, bytes]:
    """A saved program: damage that its checksums find, and other contents under checksums that are right."""
    chance = pick.random()
    if chance < 0.15:
        return _bytes(pick, original)
    at, size = struct.unpack_from("<QQ", original, 8)
    blocks, text = original[:at], original[at : at + size]
    if chance < 0.3:
        way, text = _bytes(pick, text)
        return f"table {way}", sealed(blocks, text)
    if chance < 0.45:
        way, text = _json(pick, text)
        return f"table {way}", sealed(blocks, text)
    table = json.loads(text)
    if chance < 0.55 and at > 64:
        where = pick.randrange(64, at)
        blocks = blocks[:where] + pick.choice((b"\0", b"\xff", b"\x7f", b"\x80")) + blocks[where + 1 :]
        return "values", sealed(blocks, resealed(blocks, table))
    ways = []
    for _ in range(pick.choice((1, 1, 1, 2, 4))):
        part = pick.choice(("graphs", "graphs", "graphs", "graphs", "exprs", "groups", "weights", "states"))
        value = [table[part]]
        ways.append(f"{part} {_nudge(pick, value) if pick.random() < 0.6 else _edit(pick, value)}")
        table[part] = value[0]
    text = json.dumps(table).replace("\\u0002", "").replace('"\\u0001deep"', "[" * DEPTH + "]" * DEPTH)
    return "+".join(ways), sealed(blocks, text.encode("utf-8", "surrogatepass")[:LARGEST])


def resealed(blocks: bytes, table: dict[str, Any]) -> bytes:
    """The table with the checksums of these blocks."""
    at = 64
    for group in table["groups"]:
        end = at + sum(-(-nbytes // 64) * 64 for nbytes in group[1])
        group[0], at = hashlib.sha256(blocks[at:end]).hexdigest(), end
    return json.dumps(table).encode()


def sealed(blocks: bytes, text: bytes) -> bytes:
    """A saved program's file of a head and blocks and this table, with the checksum of the table."""
    place = struct.pack("<QQ", len(blocks), len(text))
    return blocks[:8] + place + hashlib.sha256(place + text).digest() + blocks[56:] + text


def _nudge(pick: random.Random, root: list[Any]) -> str:
    """Changes one number a little, or to the number or the word that stands elsewhere."""
    places: list[tuple[Any, Any]] = []
    left: list[Any] = [root]
    while left:
        place = left.pop()
        for key in place if isinstance(place, dict) else range(len(place)):
            if isinstance(place[key], dict | list):
                left.append(place[key])
            else:
                places.append((place, key))
    if not places:
        return "nothing"
    place, key = pick.choice(places)
    old = place[key]
    if isinstance(old, bool) or not isinstance(old, int | float):
        other, at = pick.choice(places)
        place[key] = (not old) if isinstance(old, bool) and pick.random() < 0.7 else other[at]
    else:
        place[key] = pick.choice((old + 1, old - 1, old * 2, -old, old + 256, 0, old * 1000, -1, old + 0.5))
    return "nudge"


def _bytes(pick: random.Random, original: bytes) -> tuple[str, bytes]:
    made = bytearray(original)
    at = pick.randrange(len(made))
    span = slice(at, at + pick.randrange(1, 40))
    way = pick.choice(("cut", "flips", "word", "span out", "span twice", "noise"))
    if way == "cut":
        del made[at:]
    elif way == "flips":
        for _ in range(pick.randrange(1, 6)):
            made[pick.randrange(len(made))] ^= 1 << pick.randrange(8)
    elif way == "word":
        made[at : at + pick.randrange(4)] = pick.choice(WORDS)
    elif way == "span out":
        del made[span]
    elif way == "span twice":
        made[at:at] = made[span] * pick.choice((1, 1, 2, 1000))
    else:
        made[span] = pick.randbytes(pick.randrange(1, 40))
    return way, bytes(made)


def _json(pick: random.Random, original: bytes) -> tuple[str, bytes]:
    """One to three values of the file changed."""
    value = [json.loads(original)]
    ways = []
    for _ in range(pick.choice((1, 1, 2, 3))):
        ways.append(_edit(pick, value))
    text = json.dumps(value[0])
    text = text.replace("\\u0002", "")  # a key with this mark becomes one that is there already
    text = text.replace('"\\u0001deep"', "[" * DEPTH + "]" * DEPTH)
    return "+".join(ways), text.encode("utf-8", "surrogatepass")[:LARGEST]


def _edit(pick: random.Random, root: list[Any]) -> str:
    """Changes one place of a JSON value, found by walking down by chance."""
    place: Any = root
    key: Any = 0
    while isinstance(place[key], dict | list) and place[key] and pick.random() < 0.85:
        place = place[key]
        key = pick.choice(list(place)) if isinstance(place, dict) else pick.randrange(len(place))
    way = pick.choice(("number", "text", "kind", "drop", "twice", "other", "deep", "many", "name"))
    inside = place is not root
    if way == "number":
        place[key] = pick.choice(NUMBERS)
    elif way == "text":
        place[key] = pick.choice(TEXTS)
    elif way == "kind":
        place[key] = pick.choice((None, True, False, [], {}, [[]], {"": None}, [1, 2], {"type": "BPE"}))
    elif way == "drop" and inside:
        del place[key]
    elif way == "twice" and isinstance(place, dict):
        place[f"{key}\x02"] = place[key]
    elif way == "other" and inside:
        place[key] = place[
            pick.choice(list(place)) if isinstance(place, dict) else pick.randrange(len(place))
        ]
    elif way == "deep":
        place[key] = _DEEP
    elif way == "many":
        place[key] = [place[key] if not isinstance(place[key], dict | list) else 1] * pick.choice(
            (0, 3, 2_000)
        )
    elif isinstance(place, dict):
        place[pick.choice(TEXTS)] = place.pop(key)
    return way


def _lying(pick: random.Random, header: bytes) -> bytes:
    """Entries of a safetensors header whose sizes wrap, overlap, leave holes, or lie behind the end."""
    entries = json.loads(header)
    names = [n for n in entries if n != "__metadata__"]
    entry = entries[pick.choice(names)]
    begin, end = entry["data_offsets"]
    wrap = pick.choice((2**31, 2**32, 2**63, 2**64))
    change = pick.randrange(7)
    if change == 0:
        entry["data_offsets"] = [begin + wrap, end + wrap]
    elif change == 1:
        entry["data_offsets"] = pick.choice(
            ([end, begin], [begin - 1, end - 1], [begin, end + 4], [0, 2**70], [begin])
        )
    elif change == 2:
        entry["shape"] = pick.choice(
            ([wrap, wrap], [wrap, 4, 0], [0, 2**62], [1] * 65, [-1, -(end - begin)], [wrap // 4 + 1])
        )
    elif change == 3:
        entries[pick.choice(names)] = dict(entry)  # two tensors of the same bytes
    elif change == 4:
        entry["dtype"] = pick.choice(
            ("F64", "F16", "BF16", "I8", "BOOL", "U64", "F8_E4M3", "f32", "", None, 3, [])
        )
    elif change == 5:
        entries["__metadata__"] = pick.choice(({"a": 1}, [], None, {"a": "b" * 100_000}, {"format": "pt"}))
    else:
        entry["data_offsets"], entry["shape"] = [begin, begin], [0]
    return json.dumps(entries).encode()
