r"""How texts are split into words before BPE: the kinds that `tokenizer.ggml.pre` names, as parts of a tokenizer.json.

GGUF files hold no expressions, only the name of a kind; these are the expressions that the models' own tokenizer.json
files have. llama.cpp has its own form of each for its matcher (`src/llama-vocab.cpp` lists the names); its forms of
kimi-k2, tiny_aya and youtu do not tell upper from lower case, and so do not split `camelCase`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlx.records import Record

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"


def _gpt4(digits: str) -> str:
    return f"{_CONTRACTIONS}|{_WORD}|{digits}|{_SIGNS}|{_SPACES}"


def _cased(ending: str, digits: str) -> str:
    """Words are split where a capital follows a small letter."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    first = r"[^\r\n\p{L}\p{N}]?"
    words = f"{first}{upper}*{lower}+{ending}|{first}{upper}+{lower}*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


def _kimi() -> str:
    """Words are split where a capital follows a small letter, and where Chinese characters begin and end."""
    upper, lower = (rf"[\p{{{case}}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for case in (r"Lu}\p{Lt", "Ll"))
    first, end = r"[^\r\n\p{L}\p{N}]?", f"{_CONTRACTIONS}?"
    words = f"{first}{upper}*{lower}+{end}|{first}{upper}+{lower}*{end}"
    return rf"[\p{{Han}}]+|{words}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|"
    rf"{_SPACES}"
)
_SEED = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+"
# Groups of three digits, counted from the right. `\d{1,3}(?=(?:\d{3})*\b)` would read the rest of a number for each
# group; so numbers are split off, then their first one or two digits beyond groups of three, and later steps cut groups
# of three from the left.
_FROM_RIGHT = (r"(?<!\d)\d+\b", r"(?<!\d)\d{1,2}(?=(?:\d{3})+\b)")
_AFMOE_DIGITS = (r"\p{N}+", r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})+(?!\p{N}))", r"\p{N}{1,3}")
_AFMOE = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ\uff65-\uff9f⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_YOUTU = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_EXAONE_MOE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_DIGITS = {"type": "Digits", "individual_digits": True}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def byte_level(regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


class PreTokenizer(Record):
    """The steps that split a text and map its bytes to letters; whether a word that is a token is taken without merges;
    whether texts begin with the BOS token by default; and the text's Unicode normal form."""

    steps: list[dict[str, Any]]
    ignore_merges: bool = False
    bos: bool = False
    form: str | None = None
    sep: bool = False

    def normalizer(self) -> dict[str, Any] | None:
        return None if self.form is None else {"type": self.form}

    def pre_tokenizer(self) -> dict[str, Any]:
        return self.steps[0] if len(self.steps) == 1 else {"type": "Sequence", "pretokenizers": self.steps}


def _split(*patterns: str, **more: Any) -> PreTokenizer:
    return PreTokenizer([*map(split, patterns), byte_level(False)], **more)


def _table() -> Iterable[tuple[str, PreTokenizer]]:
    plain = PreTokenizer([byte_level(True)])
    composed = PreTokenizer([byte_level(True)], form="NFC")
    apart = PreTokenizer([_DIGITS, byte_level(True)])
    three, one = _gpt4(r"\p{N}{1,3}"), _gpt4(r"\p{N}")
    chinese = "[一-龥぀-ゟ゠-ヿ]+"
    falcon = [
        {"type": "Punctuation", "behavior": "Contiguous"},
        byte_level(True),
        {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]"),
    ]
    cased = _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")
    for names, kind in (
        ("default", _split(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
        (
            "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
            _split(three, ignore_merges=True, bos=True),
        ),
        ("dbrx smaug-bpe chatglm-bpe glm4", _split(three)),
        ("qwen2 megrez f2llmv2", _split(one, form="NFC")),
        ("deepseek-r1-qwen stablelm2 hunyuan grok-2 solar-open kormo", _split(one)),
        ("qwen35", _split(_QWEN35, form="NFC")),
        ("gpt-4o llama4 kanana2 minimax-m2", _split(cased)),
        ("tekken", _split(_cased("", r"\p{N}"), ignore_merges=True, bos=True)),
        ("deepseek-v3 step35 hunyuan-dense joyai-llm", _split(r"\p{N}{1,3}", chinese, _DEEPSEEK)),
        (
            "deepseek-coder",
            PreTokenizer(
                [
                    *map(split, (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+")),
                    _DIGITS,
                    byte_level(False),
                ]
            ),
        ),
        ("afmoe", _split(*_AFMOE_DIGITS, _AFMOE, _DEEPSEEK)),
        ("kimi-k2", _split(_kimi())),
        ("tiny_aya", _split(*_FROM_RIGHT, cased)),
        ("youtu", _split(_YOUTU, _cased(f"{_CONTRACTIONS}?", r"\p{N}"))),
        ("exaone-moe", _split(_EXAONE_MOE)),
        ("gpt-2 phi-2 mpt jais trillion granite-docling exaone4 mellum", plain),
        ("jina-es jina-de jina-v2-es jina-v2-de a.x-4.0 gigachat", plain),
        ("olmo modern-bert", composed),
        ("roberta-bpe jina-v1-en jina-v2-code", PreTokenizer([byte_level(True)], sep=True)),
        ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", apart),
        ("falcon", PreTokenizer(falcon)),
        ("bloom gpt3-finnish poro-chat", _split(_BLOOM)),
        ("viking", PreTokenizer([split(_BLOOM), _DIGITS, byte_level(False)])),
        ("seed-coder", _split(_SEED)),
        ("bailingmoe bailingmoe2 llada-moe", _split(_BAILING)),
    ):
        for name in names.split():
            yield name, kind


PRE_TOKENIZERS: Mapping[str, PreTokenizer] = dict(_table())
