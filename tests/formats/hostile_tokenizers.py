"""tokenizer.json files made to kill or hang who loads them, and JSON that takes far more memory than text.

Bombs of every part, and sound parts put together by chance: `python -m tests.formats.mutants --format bombs --count
10000` works on them; each seed is one file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tests.formats.mutations import _edit
from tests.formats.tokenizer_specs import (
    GPT4,
    HOSTILE_PATTERNS,
    MAP,
    SOUND_PATTERNS,
    Spec,
    added,
    bpe,
    byte_level,
    chain,
    charsmap,
    marked,
    metaspace,
    precompiled,
    replace,
    sequence,
    split,
    template,
    unigram,
    wordlevel,
    wordpiece,
)

NUMBERS = (0, 1, 2, 17, 200, 201, 10**6, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, -1, 1.5, 1e300, None, True)

Bomb = Callable[[random.Random, Spec], None]


def sound(pick: random.Random) -> Spec:
    """A tokenizer as one of the families of published ones."""
    made: Spec = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added("[CLS]", 2)]}
    roof = template([marked("[CLS]"), sequence("A")])
    bert = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    }
    steps = ({"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, precompiled())
    families: tuple[tuple[Any, Any, Any, Spec], ...] = (
        (bert, {"type": "BertPreTokenizer"}, roof, wordpiece()),
        (
            None,
            byte_level(prefix=True),
            {
                "type": "RobertaProcessing",
                "sep": ["b", 65],
                "cls": ["a", 64],
                "trim_offsets": True,
                "add_prefix_space": False,
            },
            bpe(),
        ),
        (
            {"type": "NFC"},
            chain("pretokenizers", [split(GPT4), byte_level(False)]),
            chain("processors", [byte_level(), roof]),
            bpe(),
        ),
        (precompiled(), chain("pretokenizers", [{"type": "WhitespaceSplit"}, metaspace()]), roof, unigram()),
        (chain("normalizers", [replace("``", '"'), *steps]), metaspace(), roof, unigram()),
        (chain("normalizers", [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]), None, roof, bpe()),
        ({"type": "Lowercase"}, {"type": "Whitespace"}, None, wordlevel()),
    )
    made["normalizer"], made["pre_tokenizer"], made["post_processor"], made["model"] = pick.choice(families)
    return {**made, "decoder": None}


def _normalizer(pick: random.Random) -> Spec:
    grown = "".join(pick.choice("aﷺ½é ☃") for _ in range(pick.choice((0, 1, 2, 4, 10, 40, 85))))
    bert = {
        k: pick.random() < 0.5 for k in ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    }
    plain = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")
    return pick.choice(
        (
            {"type": pick.choice(plain)},
            replace(pick.choice(("a", "é", "ﷺ", " ", "aa", "")), grown),
            replace(pick.choice(SOUND_PATTERNS), grown, "Regex"),
            {"type": "Prepend", "prepend": grown},
            {"type": "BertNormalizer", **bert},
            {"type": "Strip", "strip_left": True, "strip_right": pick.random() < 0.5},
            precompiled(
                charsmap(
                    {
                        b"a": grown.replace("\0", "").encode(),
                        "é".encode(): ("ﷺ" * pick.randrange(12)).encode(),
                    }
                )
            ),
        )
    )


def _pre_tokenizer(pick: random.Random) -> Spec:
    behavior = pick.choice(("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"))
    return pick.choice(
        (
            {"type": pick.choice(("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts"))},
            split(pick.choice(SOUND_PATTERNS), behavior, pick.random() < 0.5),
            split(pick.choice(("a", " ", "", "aaa", "x" * 300)), behavior, pick.random() < 0.5, "String"),
            metaspace(pick.choice("▁_x😀"), pick.choice(("first", "never", "always"))),
            byte_level(pick.random() < 0.5, pick.random() < 0.5),
            {"type": "Digits", "individual_digits": True},
            {"type": "Punctuation", "behavior": behavior},
            {"type": "CharDelimiterSplit", "delimiter": pick.choice(("a", " ", "", "ab", "😀"))},
            {"type": "FixedLength", "length": pick.choice((0, 1, 5, 2**31 - 1, 2**63, -1))},
        )
    )


def pipeline(pick: random.Random, made: Spec) -> None:
    """Parts that are each allowed, one behind the other: their bounds must hold together."""
    made["normalizer"] = chain("normalizers", [_normalizer(pick) for _ in range(pick.randrange(6))])
    steps = [_pre_tokenizer(pick) for _ in range(pick.randrange(5))]
    made["pre_tokenizer"] = chain("pretokenizers", steps) if steps else None
    made["model"] = pick.choice((wordpiece, bpe, unigram, wordlevel))()


def repeated_sequence(pick: random.Random, made: Spec) -> None:
    roof = template([sequence(pick.choice("AAAB")) for _ in range(pick.choice((2, 3, 8, 40, 400, 5000)))])
    made["post_processor"] = chain("processors", [roof] * pick.choice((1, 2, 30)))


def template_tables(pick: random.Random, made: Spec) -> None:
    entry = {
        "id": "x",
        "ids": [1] * pick.choice((0, 1, 2, 64, 65, 10**5)),
        "tokens": ["x"] * pick.choice((0, 1, 2, 64)),
    }
    table = pick.choice(({"x": entry}, {"y": entry}, {}, [], {"x": {**entry, "ids": [pick.choice(NUMBERS)]}}))
    pieces = [marked("x")] * pick.choice((1, 2, 70)) + [sequence("A")]
    made["post_processor"] = template(pieces, table)  # type: ignore[arg-type]


def byte_levels(pick: random.Random, made: Spec) -> None:
    count = pick.choice((2, 3, 20, 40, 1000))
    if pick.random() < 0.5:
        made["normalizer"] = chain("normalizers", [{"type": "ByteLevel"}] * count)
    else:
        made["pre_tokenizer"] = chain("pretokenizers", [byte_level(False, pick.random() < 0.5)] * count)


def growing(pick: random.Random, made: Spec) -> None:
    step = pick.choice(
        (
            replace("a", "a" * pick.choice((2, 10, 100, 256, 10**5))),
            replace("a", "ﷺ" * pick.choice((1, 7, 80))),
            replace(".", "aaaa", "Regex"),
            {"type": "Prepend", "prepend": "a" * pick.choice((1, 100, 10**5))},
            precompiled(charsmap({b"a": b"a" * pick.choice((2, 100, 5000))})),
            {"type": "NFKD"},
        )
    )
    made["normalizer"] = chain("normalizers", [step, {"type": "NFKD"}] * pick.choice((1, 2, 4, 7, 200)))


def regexes(pick: random.Random, made: Spec) -> None:
    pattern = pick.choice(HOSTILE_PATTERNS + SOUND_PATTERNS)
    if pick.random() < 0.5:
        parts = (
            "a",
            "b?",
            "[ab]+",
            "\\s*",
            "(?:",
            ")",
            "|",
            "+",
            "*",
            "{1,3}",
            "\\p{L}",
            "(?!\\S)",
            ".",
            "$",
            "(",
            "[^a]",
        )
        pattern = "".join(pick.choice(parts) for _ in range(pick.randrange(1, 12)))
    if pick.random() < 0.5:
        made["pre_tokenizer"] = split(pattern, invert=pick.random() < 0.3)
    else:
        made["normalizer"] = replace(pattern, "b", "Regex")


def words(pick: random.Random, made: Spec) -> None:
    made["pre_tokenizer"] = None
    made["model"] = {**wordpiece(), "max_input_chars_per_word": pick.choice(NUMBERS)}


def pieces(pick: random.Random, made: Spec) -> None:
    model = unigram()
    made["model"] = model
    way = pick.randrange(7)
    if way == 0:
        model["vocab"] = pick.choice(([], {}, None, [[]], [["a"]], [["a", 0.0, 1]], [[1, 2]], [["", 0.0]]))
    elif way == 1:
        model["unk_id"] = pick.choice((*NUMBERS, 4, 5))
    elif way == 2:
        model["vocab"][1][1] = pick.choice(
            (float("nan"), float("inf"), 1e308, -1e308, 1e6, -1e6, "x", None, True)
        )
    elif way == 3:
        longest = pick.choice((40, 100, 250, 1000, 20_000))
        model["vocab"] += [["a" * k, -1.0] for k in range(3, longest, max(1, longest // 200))]
    elif way == 4:
        model["vocab"] += [[pick.randbytes(90).hex(), -1.0] for _ in range(pick.choice((10, 1000, 8000)))]
    elif way == 5:
        model["vocab"] += [["x" * pick.choice((256, 100_000, 1_000_000)), -1.0]]
    else:
        model.update(byte_fallback=True, unk_id=None)


def maps(pick: random.Random, made: Spec) -> None:
    content = bytearray(MAP)
    way = pick.randrange(5)
    if way == 0:
        content = bytearray(pick.randbytes(pick.choice((0, 3, 4, 5, 1000, 100_000))))
    elif way == 1:
        content[:4] = pick.choice((0, 1, 3, 4, 8, len(MAP), 2**31, 2**32 - 4)).to_bytes(4, "little")
    elif way == 2:
        del content[pick.randrange(len(content)) :]
    else:
        for _ in range(pick.choice((1, 5, 100))):
            content[pick.randrange(len(content))] ^= 1 << pick.randrange(8)
        if way == 3:  # the units that lead to the first keys
            content[4 + 4 * pick.randrange(300) :][:4] = pick.randbytes(4)
    step = precompiled(bytes(content))
    if pick.random() < 0.1:
        step["precompiled_charsmap"] = pick.choice(("", "A", "====", "☃", "A" * 3_000_000))
    made["normalizer"] = step


def added_tokens(pick: random.Random, made: Spec) -> None:
    count = pick.choice((1, 3, 200, 3000))
    base = [added(f"<{i}>", 10 + i, special=i % 2 == 0) for i in range(count)]
    way = pick.randrange(6)
    if way == 0:
        base[0]["content"] = pick.choice(("", " ", "a", "\ud800", "a" * 257, "a" * 10**6, "\n", None, 3))
    elif way == 1:
        base = [added("a" * (1 + i % 250) + "b", i) for i in range(count)]
    elif way == 2:
        base = [added(pick.choice("aﷺé "), i, normalized=True, special=False) for i in range(count)]
    elif way == 3:
        flags = {k: True for k in ("single_word", "lstrip", "rstrip", "normalized") if pick.random() < 0.5}
        base = [added("a", 7, **flags), added(" ", 8, **flags)]
    elif way == 4:
        base[-1]["id"] = pick.choice(NUMBERS)
    else:
        base = [added(pick.randbytes(120).hex(), i) for i in range(count)]
    made["added_tokens"] = base


def merges(pick: random.Random, made: Spec) -> None:
    model = bpe()
    made["model"] = model
    way = pick.randrange(8)
    if way == 0:
        model["merges"] = pick.choice(
            ([["a", "zz"]], ["a"], ["a b c"], [["a"]], "a a", [[1, 2]], [["", ""]], {})
        )
    elif way == 1:
        model["continuing_subword_prefix"] = pick.choice(("##", "é" * 3, "a", "a" * 200, "a" * 300))
    elif way == 2:
        model["dropout"] = pick.choice((0.5, 1, 1.5, -1, 0, None, "x", 1e300))
    elif way == 3:
        model["unk_token"] = pick.choice(("missing", "", "a", 3, None))
    elif way == 4:
        model["merges"] *= pick.choice((10, 20_000))
    elif way == 5:
        longest = pick.choice((8, 16))
        model["vocab"] |= {"a" * 2**k: 1000 + k for k in range(longest)}
        model["merges"] = [["a" * 2**k] * 2 for k in range(longest - 1)]
    elif way == 6:
        model["end_of_word_suffix"] = pick.choice(("</w>", "é" * 100, "é" * 1000))
    else:
        model.update(byte_fallback=True, fuse_unk=True, unk_token="a", ignore_merges=True)
        made["pre_tokenizer"] = None


def nested(pick: random.Random, made: Spec) -> None:
    part, field, leaf = pick.choice(
        (
            ("normalizer", "normalizers", {"type": "NFC"}),
            ("pre_tokenizer", "pretokenizers", {"type": "Whitespace"}),
            ("post_processor", "processors", byte_level()),
            ("decoder", "decoders", {"type": "Fuse"}),
        )
    )
    if pick.random() < 0.5:
        made[part] = chain(field, [leaf] * pick.choice((0, 1, 15, 17, 1000, 50_000)))
        return
    for _ in range(pick.choice((5, 20, 150, 400))):
        leaf = chain(field, [leaf])
    made[part] = leaf


def unused(pick: random.Random, made: Spec) -> None:
    made["padding"] = {
        "strategy": {"Fixed": pick.choice(NUMBERS)},
        "direction": "Right",
        "pad_to_multiple_of": pick.choice(NUMBERS),
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]" * pick.choice((1, 10**5)),
    }
    made["truncation"] = {
        "max_length": pick.choice(NUMBERS),
        "strategy": "LongestFirst",
        "stride": pick.choice(NUMBERS),
    }
    made["decoder"] = {"type": "Replace", "pattern": {"Regex": pick.choice(HOSTILE_PATTERNS)}, "content": ""}


def numbers(pick: random.Random, made: Spec) -> None:
    made["model"] = pick.choice((wordpiece, bpe, wordlevel))()
    table = made["model"]["vocab"]
    for word in pick.sample(list(table), min(len(table), pick.choice((1, 3, 90)))):
        table[word] = pick.choice((*NUMBERS, "1", [], 0, 0))


def kinds(pick: random.Random, made: Spec) -> None:
    part = pick.choice(("normalizer", "pre_tokenizer", "post_processor", "model"))
    value = made[part] or {}
    way = pick.randrange(4)
    if way == 0:
        value["type"] = pick.choice(("Nope", "", None, 3, "Sequence", "BPE", "CTC", "Fuse", "ByteFallback"))
    elif way == 1:
        value.pop("type", None)
    elif way == 2:
        value[pick.choice(("alpha", "cache_capacity", "nbest_size", "x"))] = pick.choice(NUMBERS)
    else:
        value = pick.choice((3, "x", [], [value], {"BPE": value}, True))
    made[part] = value


BOMBS: tuple[Bomb, ...] = (
    pipeline, pipeline, pipeline, repeated_sequence, template_tables, byte_levels, growing, regexes, regexes, words,
    pieces, maps, added_tokens, merges, nested, unused, numbers, kinds,
)  # fmt: skip


def hostile(seed: int) -> tuple[str, bytes]:
    """The file of this seed, and what it is called: one to three bombs, one in five of them damaged further."""
    pick = random.Random(f"hostile {seed}")
    made = sound(pick)
    ways = pick.sample(BOMBS, pick.choice((1, 1, 1, 2, 3)))
    for bomb in ways:
        bomb(pick, made)
    names = [bomb.__name__ for bomb in ways]
    if pick.random() < 0.2:
        root = [made]
        names.append(_edit(pick, root))
        made = root[0]
    text = json.dumps(made, ensure_ascii=pick.random() < 0.5)
    return "+".join(names), text.encode("utf-8", "surrogatepass")


def json_bomb(name: str, original: bytes, seed: int) -> tuple[str, bytes]:
    """A JSON file or safetensors header of values that take far more memory than text, and what it is called."""
    pick = random.Random(f"json {name} {seed}")
    count = pick.choice((100, 10_000, 300_000, 1_000_000))
    unit = pick.choice(
        ("[],", "{},", "0,", '"",', '{"":0},', "[[0]],", "1.5,", '"é",', "1e-300,", '{"a":[{}]},', "null,")
    )
    way = pick.randrange(8)
    if way < 4:
        value = "[" + unit * count + "0]"
    elif way == 4:
        value = (
            "{"
            + ",".join(f'"{i}":{pick.choice(("0", "[]", "{}"))}' for i in range(min(count, 300_000)))
            + "}"
        )
    elif way == 5:
        value = pick.choice(("9" * count, "-" + "9" * 300, "1e999", "NaN", "-Infinity", "1" * 4301 + ".5"))
    elif way == 6:
        value = '"' + pick.choice(("😀", "\\ud83d\\ude00", "\\u0000")) + "a" * count + '"'
    else:
        depth = pick.choice((50, 900, 5000, 200_000))
        value = pick.choice(("[" * depth + "]" * depth, '{"a":' * depth + "0" + "}" * depth))
    if name.endswith(".json"):
        text = original.decode().rstrip()[:-1] + f',"x":{value}}}' if pick.random() < 0.7 else value
        return unit, text.encode()
    size = int.from_bytes(original[:8], "little")
    text = original[8 : 8 + size].decode().rstrip()[:-1] + f',"x":{value}}}'
    return unit, len(text).to_bytes(8, "little") + text.encode() + original[8 + size :]
