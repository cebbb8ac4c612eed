"""The parts of published tokenizers of sentence encoders and of models near them, with vocabularies of a few tokens."""

from __future__ import annotations

from typing import Any

from tests.formats import tokenizer_specs as h

BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
ROOF = h.template([h.marked("[CLS]"), h.sequence("A")])
ROBERTA = {
    "type": "RobertaProcessing",
    "sep": ["b", 65],
    "cls": ["a", 64],
    "trim_offsets": True,
    "add_prefix_space": False,
}
QWEN3 = h.GPT4.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace("{1,3}", "")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def steps(*names: str) -> list[dict[str, Any]]:
    return [{"type": name} for name in names]


def whole(
    normalizer: Any, pre_tokenizer: Any, post_processor: Any, model: Any, **more: Any
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [h.added("[CLS]", 2)],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": None,
        "model": model,
        **more,
    }


def untyped(model: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in model.items() if name != "type"}


def normalizers(*members: Any) -> dict[str, Any]:
    return h.chain("normalizers", list(members))


def pre_tokenizers(*members: Any) -> dict[str, Any]:
    return h.chain("pretokenizers", list(members))


LEGACY_METASPACE = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True, "str_rep": "▁"}
ALBERT = normalizers(
    h.replace("``", '"'),
    h.replace("''", '"'),
    *steps("NFKD", "StripAccents", "Lowercase"),
    h.precompiled(),
)
# The parts as published tokenizers have them, with vocabularies of a few tokens.
PUBLISHED = {
    "BERT": whole(BERT, {"type": "BertPreTokenizer"}, ROOF, h.wordpiece()),
    "BERT of the first versions": whole(BERT, {"type": "BertPreTokenizer"}, ROOF, untyped(h.wordpiece())),
    "BERT with BertProcessing": whole(
        BERT,
        {"type": "BertPreTokenizer"},
        {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        h.wordpiece(),
    ),
    "MPNet": whole(BERT, {"type": "BertPreTokenizer"}, ROBERTA, h.wordpiece()),
    "RoBERTa, BART": whole(None, h.byte_level(prefix=True), ROBERTA, h.bpe()),
    "GPT-2 of the first versions": whole(None, h.byte_level(), h.byte_level(), untyped(h.bpe())),
    "ModernBERT": whole(steps("NFC")[0], h.byte_level(), ROOF, h.bpe()),
    "XLM-R, e5": whole(
        h.precompiled(), pre_tokenizers(*steps("WhitespaceSplit"), h.metaspace()), ROOF, h.unigram()
    ),
    "XLM-R of the first versions": whole(
        h.precompiled(),
        pre_tokenizers(*steps("WhitespaceSplit"), LEGACY_METASPACE),
        ROOF,
        untyped(h.unigram()),
    ),
    "BGE-M3": whole(
        normalizers(h.precompiled(), h.replace(" {2,}", " ", "Regex")), h.metaspace(), ROOF, h.unigram()
    ),
    "T5": whole(h.precompiled(), h.metaspace(), ROOF, h.unigram()),
    "ALBERT": whole(ALBERT, pre_tokenizers(*steps("WhitespaceSplit"), h.metaspace()), ROOF, h.unigram()),
    "XLNet": whole(
        normalizers(*ALBERT["normalizers"], h.replace(" {2,}", " ", "Regex")),
        h.metaspace(),
        ROOF,
        h.unigram(),
    ),
    "DeBERTa-v2": whole(
        normalizers(
            {"type": "Strip", "strip_left": True, "strip_right": True},
            h.precompiled(),
            h.replace(r"\s{2,}|[\n\r\t]", " ", "Regex"),
        ),
        pre_tokenizers({"type": "Punctuation", "behavior": "Isolated"}, h.metaspace()),
        ROOF,
        h.unigram(),
    ),
    "Llama 2, E5-Mistral": whole(
        normalizers({"type": "Prepend", "prepend": "▁"}, h.replace(" ", "▁")),
        None,
        ROOF,
        {**h.bpe(), "byte_fallback": True, "fuse_unk": True, "unk_token": "a"},
    ),
    "Gemma": whole(h.replace(" ", "▁"), h.split(" ", "MergedWithPrevious", kind="String"), ROOF, h.bpe()),
    "Llama 3": whole(
        None,
        pre_tokenizers(h.split(h.GPT4), h.byte_level(False)),
        h.chain("processors", [h.byte_level(), ROOF]),
        {**h.bpe(), "ignore_merges": True},
    ),
    "Qwen 2": whole(
        steps("NFC")[0],
        pre_tokenizers(h.split(h.GPT4.replace("{1,3}", "")), h.byte_level(False)),
        h.byte_level(False),
        h.bpe(),
    ),
    "Qwen 3": whole(steps("NFC")[0], pre_tokenizers(h.split(QWEN3), h.byte_level(False)), None, h.bpe()),
    "GPT-4o": whole(None, pre_tokenizers(h.split(O200K), h.byte_level(False)), None, h.bpe()),
    "DeepSeek": whole(
        None,
        pre_tokenizers(
            h.split(r"\p{N}{1,3}"), h.split("[一-龥぀-ゟ゠-ヿ]+"), h.split(DEEPSEEK), h.byte_level(False)
        ),
        None,
        h.bpe(),
    ),
    "CLIP": whole(
        normalizers(*steps("NFC"), h.replace(r"\s+", " ", "Regex"), *steps("Lowercase")),
        pre_tokenizers(h.split(CLIP, "Removed", True), h.byte_level()),
        ROBERTA,
        {**h.bpe(), "end_of_word_suffix": "</w>", "unk_token": "a"},
    ),
    "BLOOM": whole(None, pre_tokenizers(h.split(BLOOM), h.byte_level(False)), None, h.bpe()),
    "StarCoder": whole(
        None, pre_tokenizers({"type": "Digits", "individual_digits": True}, h.byte_level()), None, h.bpe()
    ),
    "words": whole(steps("Lowercase")[0], steps("Whitespace")[0], None, h.wordlevel()),
}
