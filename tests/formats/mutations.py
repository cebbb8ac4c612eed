"""Ways to damage the files of a model folder: bytes flipped and cut, other JSON, headers that lie."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

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
