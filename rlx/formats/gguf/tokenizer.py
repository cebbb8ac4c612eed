"""The tokenizer of a GGUF file: its metadata (`tokenizer.ggml.*`) as the equivalent tokenizer.json, so that the same
checks and the same package read both.

Kinds: "gpt2" is BPE of bytes with a list of merges, "llama" SentencePiece's BPE, whose merges follow from the scores of
its pieces, "gemma4" the same with a list of merges, "t5" SentencePiece's Unigram, "bert" WordPiece.
"""

from __future__ import annotations

import base64
import math
from functools import partial
from typing import Any, NoReturn

from rlx.errors import ModelFormatError
from rlx.formats.files import shown
from rlx.formats.gguf.pretokenizers import PRE_TOKENIZERS
from rlx.formats.gguf.reader import GgufFile, Value
from rlx.formats.tokenizer.decoding import ByteLetters, Decoding, Make, Pieces, word_pieces
from rlx.formats.tokenizer.language import LanguageTokenizer, Letters, SpecialTokens, Vocabulary, named_ends
from rlx.formats.tokenizer.models import MAX_TOKENS
from rlx.formats.tokenizer.text import MAX_TOKENIZER, build

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_MODELS = ("llama", "gpt2", "bert", "t5", "gemma4")
MAX_PIECE_CHARACTERS = 256
_UNKNOWN = {"llama": 0, "bert": 100, "t5": 2}  # the default id


def read_tokenizer(file: GgufFile) -> LanguageTokenizer:
    """The tokenizer of the file's metadata, with its chat template.

    Raises: RlxError when the package `tokenizers` is not installed, ModelFormatError for what is missing, contradicts
    itself, or is of a kind that rlx does not know."""
    spec = _Spec(file)
    parts = spec.parts()
    tokenizer = build(parts, file.path, spec.size)
    vocabulary = spec.vocabulary()
    marks = spec.special()
    stops = marks["eos"], spec.id_of("eot_token_id"), spec.id_of("eom_token_id")
    ends = frozenset(i for i in stops if i is not None)
    special = SpecialTokens(**marks, ends=ends | named_ends(vocabulary))
    template = file.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelFormatError(f"{file.path}: tokenizer.chat_template is {shown(template)}, expected a text")
    return LanguageTokenizer(file.path, tokenizer, vocabulary, special, template)


def tokenizer_parts(file: GgufFile) -> dict[str, Any]:
    """The tokenizer of the file's metadata as a tokenizer.json, with the decoder that goes with it.

    Raises: ModelFormatError."""
    spec = _Spec(file)
    parts = spec.parts()
    decoder: dict[str, Any] = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    if spec.model == "bert":
        decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    elif spec.model != "gpt2":
        space = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
        steps = [space, {"type": "ByteFallback"}, {"type": "Fuse"}]
        if spec.space_first():
            steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        decoder = {"type": "Sequence", "decoders": steps}
    return {**parts, "truncation": None, "padding": None, "decoder": decoder}


class _Spec:
    """The metadata of a tokenizer, checked to fit together."""

    def __init__(self, file: GgufFile) -> None:
        self.file, self.metadata = file, file.metadata
        self.model = file.value("tokenizer.ggml.model", str)
        if self.model not in _MODELS:
            self.refuse(f"tokenizer.ggml.model is {shown(self.model)}; rlx reads {', '.join(_MODELS)}")
        self.tokens: list[str] = self._list("tokens", str)
        n = len(self.tokens)
        if not 0 < n <= MAX_TOKENS:
            self.refuse(f"tokenizer.ggml.tokens has {n:,} tokens; expected 1 to {MAX_TOKENS:,}")
        for i, token in enumerate(self.tokens):
            if not token:
                self.tokens[i] = f"[EMPTY_{i}]"  # llama.cpp's name, so that ids do not change
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) != n:
            twice = next(t for i, t in enumerate(self.tokens) if self.ids[t] != i)
            self.refuse(f"tokenizer.ggml.tokens has {shown(twice)} twice")
        self.size = sum(len(t.encode()) + 32 for t in self.tokens)
        if self.size > MAX_TOKENIZER:
            self.refuse(
                f"tokenizer.ggml.tokens takes {self.size:,} bytes; at most {MAX_TOKENIZER:,} are read"
            )
        self.types: list[int] = self._list("token_type", int, n, [NORMAL] * n)
        self.bytes = [i for i, kind in enumerate(self.types) if kind == BYTE]

    def refuse(self, what: str) -> NoReturn:
        raise ModelFormatError(f"{self.file.path}: {what}")

    def _get(self, name: str) -> Value | None:
        return self.metadata.get(f"tokenizer.ggml.{name}")

    def _list(self, name: str, kind: type, length: int | None = None, default: Any = None) -> list[Any]:
        values = self._get(name)
        if values is None and default is not None:
            result: list[Any] = default
            return result
        if not isinstance(values, list) or not all(type(v) is kind for v in values):
            self.refuse(f"tokenizer.ggml.{name} is {shown(values)}, expected a list of {kind.__name__}")
        if length is not None and len(values) != length:
            self.refuse(f"tokenizer.ggml.{name} has {len(values):,} entries for {length:,} tokens")
        return list(values)

    def _flag(self, name: str, default: bool) -> bool:
        flag = self._get(name)
        if flag is not None and type(flag) is not bool:
            self.refuse(f"tokenizer.ggml.{name} is {shown(flag)}, expected a bool")
        return default if flag is None else flag

    def id_of(self, name: str, default: int | None = None) -> int | None:
        """A special token's id. An id in the file that is outside the vocabulary is refused."""
        number = self._get(name)
        if number is None:
            return default if default is not None and default < len(self.tokens) else None
        if type(number) is not int or not 0 <= number < len(self.tokens):
            self.refuse(f"tokenizer.ggml.{name} is {shown(number)}, expected an id below {len(self.tokens):,}")
        return number

    def special(self) -> dict[str, int | None]:
        llama, bert = self.model == "llama", self.model == "bert"
        bos = 1 if llama else 101 if bert else None
        return {
            "bos": self.id_of("cls_token_id", self.id_of("bos_token_id", bos))
            if bert
            else self.id_of("bos_token_id", bos),
            "eos": self.id_of("eos_token_id", 2 if llama else 1 if self.model == "t5" else None),
            "unk": self.id_of("unknown_token_id", _UNKNOWN.get(self.model)),
            "sep": self.id_of("seperator_token_id", self.id_of("separator_token_id", 102 if bert else None)),
            "pad": self.id_of("padding_token_id", 0 if bert or self.model == "t5" else None),
            "mask": self.id_of("mask_token_id"),
        }

    def vocabulary(self) -> Vocabulary:
        letters: Letters = "bytes" if self.model == "gpt2" else "words" if self.model == "bert" else "spaces"
        tokens = dict(enumerate(self.tokens))
        if self.model == "bert":
            tokens = dict(enumerate(map(_word, self.tokens)))
        marks = [i for i, kind in enumerate(self.types) if kind in (CONTROL, UNKNOWN)]
        added = [i for i, kind in enumerate(self.types) if kind == USER_DEFINED]
        steps: dict[Letters, Make] = {
            "bytes": ByteLetters,
            "words": word_pieces("##", False),
            "spaces": partial(Pieces, self.space_first()),
        }
        return Vocabulary(tokens, letters, Decoding((steps[letters],)), frozenset(marks), frozenset(added))

    def space_first(self) -> bool:
        wanted = self._flag("add_space_prefix", self.model == "llama")
        return wanted or (self.model == "t5" and self._flag("remove_extra_whitespaces", False))

    def parts(self) -> dict[str, Any]:
        """The parts of a tokenizer.json."""
        make = {"gpt2": self._gpt2, "bert": self._bert, "t5": self._t5}.get(self.model, self._sentencepiece)
        normalizer, pre_tokenizer, model, adds = make()
        return {
            "version": "1.0",
            "added_tokens": self._added(),
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": self._marks(*adds),
            "model": model,
        }

    def _added(self) -> list[dict[str, Any]]:
        """Tokens that are found in a text before it is split into words."""
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return [
            {"id": i, "content": token, **flags, "special": kind != USER_DEFINED}
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (CONTROL, USER_DEFINED, UNKNOWN)
        ]

    def _marks(self, bos: bool, eos: bool, sep: bool) -> dict[str, Any] | None:
        """The post-processor, which adds special tokens at the beginning and the end of a text."""
        special = self.special()
        first = special["bos"] if self._flag("add_bos_token", bos) else None
        last = special["eos"] if self._flag("add_eos_token", eos) else None
        if self._flag("add_sep_token", sep):
            last = special["sep"]
        pieces: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
        marks: dict[str, dict[str, Any]] = {}

        def mark(i: int | None) -> list[dict[str, Any]]:
            if i is None:
                return []
            token = self.tokens[i]
            marks[token] = {"id": token, "ids": [i], "tokens": [token]}
            return [{"SpecialToken": {"id": token, "type_id": 0}}]

        single = [*mark(first), *pieces, *mark(last)]
        if not marks:
            return None
        pair = [*pieces, {"Sequence": {"id": "B", "type_id": 0}}]
        return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": marks}

    def _gpt2(self) -> tuple[Any, Any, dict[str, Any], tuple[bool, bool, bool]]:
        name = self._get("pre")
        kind = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
        if name is None:
            self.refuse(
                "the metadata has no tokenizer.ggml.pre, without which texts would be cut wrongly; convert the model "
                f"again, or set it to one of {', '.join(PRE_TOKENIZERS)}"
            )
        if kind is None:
            self.refuse(f"tokenizer.ggml.pre is {shown(name)}; rlx knows {', '.join(PRE_TOKENIZERS)}")
        model = {
            "type": "BPE",
            "vocab": self.ids,
            "merges": self._merges(),
            "ignore_merges": kind.ignore_merges,
            "fuse_unk": False,
            "byte_fallback": False,
        }
        return kind.normalizer(), kind.pre_tokenizer(), model, (kind.bos, False, kind.sep)

    def _merges(self) -> list[list[str]]:
        """The merges of the file: each is two tokens separated by a space, of which the first may itself begin with a
        space."""
        merges = self._list("merges", str)
        result = []
        for i, merge in enumerate(merges):
            at = merge.find(" ", 1)
            if at < 0:
                self.refuse(
                    f"tokenizer.ggml.merges[{i}] is {shown(merge)}, expected two tokens with a space between"
                )
            result.append([merge[:at], merge[at + 1 :]])
        return result

    def _sentencepiece(self) -> tuple[Any, Any, dict[str, Any], tuple[bool, bool, bool]]:
        gemma4 = self.model == "gemma4"
        unknown = self.id_of("unknown_token_id", _UNKNOWN.get(self.model))
        model = {
            "type": "BPE",
            "vocab": self.ids,
            "merges": self._merges() if gemma4 else self._scored_merges(),
            "unk_token": None if unknown is None else self.tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": bool(self.bytes) or "<0x00>" in self.ids,
            "ignore_merges": False,
        }
        steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
        if self.space_first() and not gemma4:
            steps.insert(0, {"type": "Prepend", "prepend": "▁"})
        cut = None
        if gemma4:
            cut = {"type": "Split", "pattern": {"Regex": r"\n+"}, "behavior": "Isolated", "invert": False}
        return {"type": "Sequence", "normalizers": steps}, cut, model, (not gemma4, False, False)

    def _scored_merges(self) -> list[tuple[str, str]]:
        """All pairs of pieces whose concatenation is a piece, ordered by its score, largest first. Control and byte
        tokens are never made by merges."""
        scores = self._list("scores", float, len(self.tokens))
        if not all(map(math.isfinite, scores)):
            self.refuse("tokenizer.ggml.scores has a score that is not finite")
        pieces = {
            t: i
            for i, (t, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (NORMAL, UNUSED, USER_DEFINED)
        }
        merges = []
        for piece, i in pieces.items():
            score = scores[i]
            pairs = [(piece[:n], piece[n:]) for n in range(1, min(len(piece), MAX_PIECE_CHARACTERS))]
            splits = [(a, b) for a, b in pairs if a in pieces and b in pieces]
            splits.sort(key=lambda pair: (pieces[pair[0]], pieces[pair[1]]))
            merges += [(score, a, b) for a, b in splits]
            if len(merges) > 2 * MAX_TOKENS:
                self.refuse(
                    f"tokenizer.ggml.tokens can be made of each other in more than {2 * MAX_TOKENS:,} ways"
                )
        merges.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
        return [(a, b) for _, a, b in merges]

    def _t5(self) -> tuple[Any, Any, dict[str, Any], tuple[bool, bool, bool]]:
        scores = self._list("scores", float, len(self.tokens))
        steps: list[dict[str, Any]] = []
        charsmap = self._list("precompiled_charsmap", int, None, [])
        if charsmap:
            content = bytes(n & 255 for n in charsmap)  # signed in some files
            text = base64.b64encode(content).decode()
            steps.append({"type": "Precompiled", "precompiled_charsmap": text})
        if self._flag("remove_extra_whitespaces", False):
            for spaces, one in ((" {2,}", " "), (r"\A | \z", "")):  # a Strip would take tabs too
                steps.append({"type": "Replace", "pattern": {"Regex": spaces}, "content": one})
        if self.space_first():
            steps.append({"type": "Prepend", "prepend": " "})
        cut = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}
        model = {
            "type": "Unigram",
            "vocab": [[t, s] for t, s in zip(self.tokens, scores, strict=True)],
            "unk_id": self.id_of("unknown_token_id", _UNKNOWN["t5"]),
            "byte_fallback": bool(self.bytes),
        }
        return {"type": "Sequence", "normalizers": steps}, cut, model, (False, True, False)

    def _bert(self) -> tuple[Any, Any, dict[str, Any], tuple[bool, bool, bool]]:
        """WordPiece. GGUF writes "▁word" and "part" where BERT's vocabulary has "word" and "##part"."""
        words = {_word(t): i for i, t in enumerate(self.tokens)}
        if len(words) != len(self.tokens):
            self.refuse("tokenizer.ggml.tokens has a word twice")
        unknown = self.id_of("unknown_token_id", _UNKNOWN["bert"])
        model = {
            "type": "WordPiece",
            "vocab": words,
            "unk_token": "[UNK]" if unknown is None else _word(self.tokens[unknown]),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        }
        normalizer = {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        }
        return normalizer, {"type": "BertPreTokenizer"}, model, (True, False, True)


def _word(token: str) -> str:
    """A token of GGUF's "bert" as BERT's vocabulary has it."""
    if token.startswith("▁"):
        return token[1:]
    return token if token.startswith("[") and token.endswith("]") else f"##{token}"
