"""Tokenizers of GGUF files beside the package `tokenizers`, and SentencePiece's beside its algorithm written out."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.errors import DTypeError, ModelFormatError, ShapeError
from rlx.formats import gguf
from rlx.formats.gguf.pretokenizers import PRE_TOKENIZERS
from rlx.formats.gguf.tokenizer import read_tokenizer
from rlx.formats.tokenizer.decoding import byte_letters
from rlx.formats.tokenizer.language import LanguageTokenizer, from_folder

TEXTS = [
    "", " ", "  two  spaces ", "\n\n\t x\r\n", "it's I'LL 'tis we're", "1234567 3.14 ½ ٣٤", "日本語テキスト 汉字",
    "é e\u0301 ﷺ Ǆ", "🙂👍🏽 zwj👨‍👩‍👧", "\x00\x01\x7f", "<|im_end|> text <|im_end|>", "CamelCaseWords ALLCAPS mIxEd",
    "a" * 300, "नमस्ते दुनिया", "\u200b\ufeff\u00a0", "x\u0000y", "_under__score", "!!!???...", "▁ meta ▁", "<0x0A>",
    "foo(bar)[0] = {'a': 1};\n    return\n\n\n", "한국어 \u3000全角", "end ",
]  # fmt: skip
CORPUS = [
    "the cat's hats and the dogs' coats, 12345 of them; return the other thing there, then this " * 3,
    *TEXTS,
]
KINDS = {id(kind): name for name, kind in reversed(PRE_TOKENIZERS.items())}.values()


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """A BPE of bytes as the package trains it; its first tokens are special."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|im_end|>", "<s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=450, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    found: dict[str, Any] = json.loads(made.to_str())
    return found


def written(path: Path, **keys: Any) -> LanguageTokenizer:
    gguf.write(path, {f"tokenizer.ggml.{key}": value for key, value in keys.items()}, {})
    with gguf.read(path) as file:
        return read_tokenizer(file)


def bpe_keys(trained: dict[str, Any], pre: str, **keys: Any) -> dict[str, Any]:
    tokens = sorted(trained["model"]["vocab"], key=trained["model"]["vocab"].get)
    merges = [" ".join(pair) for pair in trained["model"]["merges"]]
    types = [3, 3, *[1] * (len(tokens) - 2)]
    return {
        "model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges, "token_type": types, "bos_token_id": 1, **keys
    }  # fmt: skip


@pytest.mark.parametrize("pre", KINDS)
def test_bpe_of_every_kind(pre: str, trained: dict[str, Any], tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    kind = PRE_TOKENIZERS[pre]
    model = {**trained["model"], "ignore_merges": kind.ignore_merges}
    parts = {"normalizer": kind.normalizer(), "pre_tokenizer": kind.pre_tokenizer(), "model": model}
    known = Tokenizer.from_str(json.dumps({**trained, **parts}))
    ours = written(tmp_path / "x.gguf", **bpe_keys(trained, pre))
    for text in TEXTS:
        ids = ours.encode(text, special=False, parse_special=True)
        assert ids == known.encode(text, add_special_tokens=False).ids, text
        whole = known.normalizer.normalize_str(text) if known.normalizer else text
        assert ours.decode(ids, special=True) == whole
        plain = ours.encode(text, special=False)
        assert 0 not in plain and ours.decode(plain) == whole
    first = [1] if kind.bos else []
    assert ours.encode("cat")[: len(first)] == first
    assert ours.special.ends == {0} and ours.special.bos == 1


def test_the_expressions_are_those_of_published_files() -> None:
    """Where the models' own tokenizer.json is known, its expression is what the kind has."""
    from tests.formats.published_tokenizers import BLOOM, DEEPSEEK, O200K
    from tests.formats.tokenizer_specs import GPT4

    for name, pattern in (
        ("llama-bpe", GPT4), ("qwen2", GPT4.replace("{1,3}", "")), ("gpt-4o", O200K), ("bloom", BLOOM),
        ("deepseek-v3", DEEPSEEK),
    ):  # fmt: skip
        assert PRE_TOKENIZERS[name].steps[-2]["pattern"]["Regex"] == pattern, name


# Words as llama.cpp v0.5.0 cuts these texts (its ids of a vocabulary that has all words).
CUTS = {
    "afmoe": ("x 1234567 가!ab", ["x", " ", "1", "234", "567", " ", "가", "!ab"]),
    "kimi-k2": ("漢字か don't 12345", ["漢字", "か", " don't", " ", "123", "45"]),
    "tiny_aya": ("1234567 it's", ["1", "234", "567", " it's"]),
    "joyai-llm": ("漢字1234!abc", ["漢字", "123", "4", "!abc"]),
    "jina-v2-de": ("don't 12 ab", ["don", "'t", " 12", " ab"]),
    "youtu": ("한국어、don't 12", ["한국어", "、", "don't", " ", "1", "2"]),
    "exaone-moe": ("a b?\n\n", ["a b", "?\n", "\n"]),
    "jina-v5-nano": ("don't 1234", ["don", "'t", " ", "123", "4"]),
    "mellum2": ("ab 12", ["ab", " ", "1", "2"]),
    "f2llmv2": ("don't 12", ["don", "'t", " ", "1", "2"]),
}


@pytest.mark.parametrize("pre", CUTS)
def test_where_texts_are_cut(pre: str) -> None:
    from tokenizers import Regex, pre_tokenizers

    text, words = CUTS[pre]
    assert "".join(words) == text
    steps = [pre_tokenizers.Split(Regex(step["pattern"]["Regex"]), "isolated") if step["type"] == "Split"
             else pre_tokenizers.ByteLevel(False, use_regex=step["use_regex"]) if step["type"] == "ByteLevel"
             else pre_tokenizers.Digits(step["individual_digits"]) for step in PRE_TOKENIZERS[pre].steps]
    spans = [span for _, span in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]
    assert [text[start:end] for start, end in spans] == words


def sentencepiece(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's BPE: the neighbours whose union has the largest score are merged, the leftmost first, until none
    has one; what is no piece then becomes its bytes."""
    parts = list(text)
    while True:
        found = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not found:
            break
        at = min(found)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    return [t for p in parts for t in ([p] if p in scores else [f"<0x{b:02X}>" for b in p.encode()])]


@pytest.fixture(scope="module")
def pieces() -> dict[str, Any]:
    words = [
        "▁the",
        "▁cat",
        "▁c",
        "▁t",
        "th",
        "at",
        "he",
        "the",
        "ca",
        "▁",
        "▁▁",
        "▁▁▁▁",
        "in",
        "ing",
        "▁in",
        "日本",
    ]
    letters = sorted(
        {c for text in CORPUS for c in text if c.isascii() and c.isprintable() and c != " "} | {"日", "本"}
    )
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], *words[:], *letters]
    scores = [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    return {"model": "llama", "tokens": tokens, "scores": scores, "token_type": types}


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(prefix: bool, pieces: dict[str, Any], tmp_path: Path) -> None:
    ours = written(tmp_path / "x.gguf", **pieces, add_space_prefix=prefix)
    scores = dict(zip(pieces["tokens"], pieces["scores"], strict=True))
    normal = {t: s for t, s in scores.items() if not t.startswith("<") or t == "<"}
    for text in [*TEXTS, "the cat in the hat", "thethe   cat", "caththe"]:
        ids = ours.encode(text, special=False)
        prepared = ("▁" if prefix and text else "") + text.replace(" ", "▁")
        assert [pieces["tokens"][i] for i in ids] == sentencepiece(prepared, normal), text
        assert ours.decode(ids) == text.replace("▁", " ")
    assert ours.encode("cat")[0] == 1 and ours.special.ends == {2}
    assert ours.encode("</s>", special=False, parse_special=True) == [2]
    assert 2 not in ours.encode("</s>", special=False)


def test_text_comes_in_pieces_of_whole_characters(pieces: dict[str, Any], tmp_path: Path) -> None:
    ours = written(tmp_path / "x.gguf", **pieces)
    stream = ours.stream()
    ids = [*ours.encode("🙂 the", special=False)[1:], 3 + 0xE2, 3 + 0x82]
    assert [stream.push(i) for i in ids] == ["", "", "", "🙂", " the", "", ""] and stream.end() == "\ufffd"
    assert ours.decode([1, 3 + 0xFF, 2]) == "\ufffd" and ours.decode([1, 2], special=True) == "<s></s>"
    for bad in (-1, len(ours), 2**40):
        with pytest.raises(ShapeError, match="not in the vocabulary"):
            ours.decode([bad])
    with pytest.raises(DTypeError, match="lone surrogate"):
        ours.encode("a\ud800")


def test_unigram_of_t5(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    from tests.formats.tokenizer_specs import MAP

    words = ["<pad>", "</s>", "<unk>", "▁the", "▁cat", "▁", "t", "h", "e", "c", "a", "▁c", "at", "s"]
    scores = [0.0, 0.0, 0.0, *np.linspace(-2, -9, len(words) - 3).astype(np.float32).tolist()]
    known = Tokenizer(models.Unigram(list(zip(words, scores, strict=True)), 2, False))
    known.normalizer = normalizers.Sequence([normalizers.Precompiled(MAP), normalizers.Strip()])
    known.pre_tokenizer = pre_tokenizers.Metaspace()
    charsmap = np.frombuffer(MAP, np.int8)
    types = [3, 3, 2, *[1] * (len(words) - 3)]
    ours = written(
        tmp_path / "x.gguf",
        model="t5",
        tokens=words,
        scores=scores,
        token_type=types,
        precompiled_charsmap=charsmap,
        add_space_prefix=True,
        remove_extra_whitespaces=True,
    )
    for text in ("the cat sat", "cats\tthe", " the ", "½ xyz"):
        assert ours.encode(text) == [*known.encode(text).ids, 1], text


def test_wordpiece_of_bert(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "run", "##ning", ",", "é"]
    known = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    known.normalizer, known.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokens = [w if w.startswith("[") else w[2:] if w.startswith("##") else f"▁{w}" for w in words]
    keys = {"cls_token_id": 2, "bos_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
    ours = written(tmp_path / "x.gguf", model="bert", tokens=tokens, token_type=[3] * 5 + [1] * 7, **keys)
    for text in ("The cats, running", "dog the", "", "É"):
        assert ours.encode(text) == [2, *known.encode(text).ids, 3], text
    assert ours.decode(ours.encode("The cats running")) == "the cats running"


def test_a_folder_and_a_gguf_file_agree(trained: dict[str, Any], tmp_path: Path) -> None:
    kind = PRE_TOKENIZERS["llama-bpe"]
    mark = {"id": "<s>", "ids": [1], "tokens": ["<s>"]}
    ends = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    processor = {"type": "TemplateProcessing", "single": ends, "pair": ends, "special_tokens": {"<s>": mark}}
    processor["pair"] = [*ends, {"Sequence": {"id": "B", "type_id": 1}}]
    model = {**trained["model"], "ignore_merges": True}
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    parts = {
        "pre_tokenizer": kind.pre_tokenizer(), "post_processor": processor, "model": model, "decoder": decoder,
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps({**trained, **parts}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>", "chat_template": [
            {"name": ["odd"], "template": "{{ 2 }}"}, {"name": "default", "template": "{{ 1 }}"},
        ]})
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 5, 10**9]}))
    folder = from_folder(tmp_path)
    file = written(tmp_path / "x.gguf", **bpe_keys(trained, "llama-bpe"))
    for text in TEXTS:
        for parse in (False, True):
            ids = folder.encode(text, parse_special=parse)
            assert ids == file.encode(text, parse_special=parse)
            assert folder.decode(ids) == file.decode(ids)
    assert folder.special.bos == 1 and folder.special.eos == 0 and folder.special.ends == {0, 5}
    assert folder.chat_template == "{{ 1 }}"


def test_every_byte_has_a_letter() -> None:
    from tokenizers import pre_tokenizers

    letters = byte_letters()
    assert sorted(letters) == sorted(pre_tokenizers.ByteLevel.alphabet())
    for byte in range(128):
        word = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(byte))
        assert word[0][0] == letters[byte]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"model": "rwkv"}, "rlx reads llama"),
    ({"model": 3}, "expected a str"),
    ({"model": None}, "no tokenizer.ggml.model"),
    ({"pre": "llama-9"}, "rlx knows default, llama-bpe"),
    ({"pre": None}, "no tokenizer.ggml.pre"),
    ({"pre": 3}, "rlx knows"),
    ({"tokens": None}, "tokenizer.ggml.tokens is None"),
    ({"tokens": []}, "0 tokens"),
    ({"tokens": [1, 2]}, "list of str"),
    ({"tokens": ["a", "a"]}, "'a' twice"),
    ({"tokens": ["a", "x" * 100_000], "merges": [], "token_type": [1, 1]}, "at most 256"),
    ({"token_type": [1]}, "1 entries for"),
    ({"token_type": [1.0]}, "list of int"),
    ({"merges": None}, "merges is None"),
    ({"merges": ["ab"]}, "a space between"),
    ({"merges": ["q zzzz"]}, "union is a token"),
    ({"merges": ["t h e"]}, "union is a token"),
    ({"bos_token_id": 10**6}, "expected an id below"),
    ({"eos_token_id": -1}, "expected an id below"),
    ({"eos_token_id": "2"}, "expected an id below"),
    ({"add_bos_token": 1}, "expected a bool"),
]


@pytest.mark.parametrize("changes, words", BAD)
def test_metadata_that_lies(
    changes: dict[str, Any], words: str, trained: dict[str, Any], tmp_path: Path
) -> None:
    keys = {k: v for k, v in {**bpe_keys(trained, "gpt-2"), **changes}.items() if v is not None}
    with pytest.raises(ModelFormatError) as caught:
        written(tmp_path / "x.gguf", **keys)
    assert words in str(caught.value) and "x.gguf" in str(caught.value)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"scores": None}, "scores is None"),
        ({"scores": [0.5]}, "1 entries for"),
        ({"scores": "nan"}, "not finite"),
        ({"add_space_prefix": 2}, "expected a bool"),
    ],
)
def test_pieces_that_lie(changes: dict[str, Any], words: str, pieces: dict[str, Any], tmp_path: Path) -> None:
    keys = {**pieces, **changes}
    if keys["scores"] == "nan":
        keys["scores"] = [float("nan")] * len(keys["tokens"])
    with pytest.raises(ModelFormatError, match=words):
        written(tmp_path / "x.gguf", **{k: v for k, v in keys.items() if v is not None})
