"""The parts of tokenizer.json files, for tests to put together, and regular expressions, sound and hostile."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SOUND_PATTERNS = (GPT2, GPT4, " {2,}", r"\s+", r"\n", r"[0-9][0-9][0-9]", r"\s{2,}|[\n\r\t]", r"\p{N}{1,3}")
HOSTILE_PATTERNS = (
    "(a+)+$", "(a*)*b", "(a|a)*$", "(a|aa)+$", "a+b", "a*a*a*a*b", "(?:a?){30}a{30}", "(a{1,60}){1,60}b",
    "((a{1,99}){1,99}){1,99}",
    r"(\w+\s?)*$", "(.*)*x", r"(a)\1+", "(?=a+b)", "(?<=a+)b", r"\X+", r"(?<n>a|\g<n>\g<n>)", "[", "(", "a**", "a++b",
    "", "^", "$",
    "(?#", r"\p{Nope}", "[[:alpha:]", "a{99999}", "a{0}", "()", "(?i)a+b", "(?>a+)b", "[]a]", "x" * 3000,
    "(" * 3000, "|a" * 900,
    r"\s*[\r\n]+", r"\s+(?!\S)", "(a?){64}", "a?" * 40 + "a" * 40, "(a|b|ab)+c", r"[a-z]*[a-z]*[a-z]*1",
)  # fmt: skip

Spec = dict[str, Any]


def charsmap(pairs: dict[bytes, bytes]) -> bytes:
    """A character map as SentencePiece compiles one, its double array laid by first fit."""
    texts = b"".join(value + b"\0" for value in pairs.values())
    starts, at = {}, 0
    for key, value in pairs.items():
        starts[key] = at
        at += len(value) + 1
    units, taken, bases = [0] * (256 * (4 + sum(map(len, pairs)))), {0}, set()

    def lay(prefix: bytes, place: int) -> None:
        after = {key[len(prefix)] for key in pairs if len(key) > len(prefix) and key.startswith(prefix)}
        labels = sorted(after | ({0} if prefix in pairs else set()))
        base = next(b for b in range(1, len(units)) if b not in bases and not {b ^ c for c in labels} & taken)
        bases.add(base)
        taken.update(base ^ c for c in labels)
        distance = base ^ place
        assert distance < 1 << 21
        units[place] |= distance << 10 | (256 if prefix in pairs else 0)
        if prefix in pairs:
            units[base] = starts[prefix] | 1 << 31
        for c in sorted(after):
            units[base ^ c] |= c
            lay(prefix + bytes([c]), base ^ c)

    lay(b"", 0)
    return (4 * len(units)).to_bytes(4, "little") + np.array(units, "<u4").tobytes() + texts


MAP = charsmap(
    {
        "½".encode(): "1⁄2".encode(),
        "ﷺ".encode(): "صلى الله عليه وسلم".encode(),
        b"\t": b" ",
        "e\u0301".encode(): "é".encode(),
    }
)


def added(content: str, number: int = 1, **more: Any) -> Spec:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **flags, "special": True, **more}


def template(pieces: list[Any], table: dict[str, Any] | None = None) -> Spec:
    special = {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}} if table is None else table
    pair = [sequence("A"), sequence("B")]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": special}


def sequence(name: str) -> Spec:
    return {"Sequence": {"id": name, "type_id": 0}}


def marked(name: str) -> Spec:
    return {"SpecialToken": {"id": name, "type_id": 0}}


def replace(pattern: str, content: str, kind: str = "String") -> Spec:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def split(pattern: str, behavior: str = "Isolated", invert: bool = False, kind: str = "Regex") -> Spec:
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def precompiled(content: bytes = MAP) -> Spec:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


def metaspace(sign: str = "▁", scheme: str = "always") -> Spec:
    return {"type": "Metaspace", "replacement": sign, "prepend_scheme": scheme, "split": True}


def byte_level(regex: bool = True, prefix: bool = False) -> Spec:
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def chain(field: str, steps: list[Any]) -> Spec:
    return {"type": "Sequence", field: steps}


def wordpiece() -> Spec:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##a", "the", "cat", "##s"]
    return {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {word: i for i, word in enumerate(words)},
    }


def bpe() -> Spec:
    words = [chr(33 + i) for i in range(90)] + [chr(0x100 + i) for i in range(70)] + ["<0x61>", "aa", "aaaa"]
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {word: i for i, word in enumerate(words)}, "merges": [["a", "a"], ["aa", "aa"]],
    }  # fmt: skip


def unigram() -> Spec:
    pieces = [["<unk>", 0.0], ["▁", -2.0], ["a", -3.0], ["aa", -3.5], ["▁the", -4.0]]
    return {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}


def wordlevel() -> Spec:
    return {"type": "WordLevel", "vocab": {"a": 0, "the": 1, "[UNK]": 2}, "unk_token": "[UNK]"}
